use super::*;
use crate::config::Source;
use crate::shard::keyspace::walk::tests::options;

/// A server on an empty directory whose log is not replayed.
fn server(dir: &Path) -> Server {
    let engine = Engine::open(Arc::new(RealIo), options(dir, 1)).unwrap();
    Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), crate::command::table())
}

#[tokio::test(flavor = "current_thread")]
async fn who_ends_before_the_replay_has_nothing_to_save() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let (server, mut signals) = (server(dir.path()), Signals::new().unwrap());
    let (_replays, replayed) = oneshot::channel();
    server.shutdown.send_replace(Some(Shutdown::NoSave));
    let end = load_and_wait(&server, &server.config.settings(), &mut signals, replayed).await.unwrap();
    assert_eq!(end, End::NothingToSave);
    server.engine.replay().unwrap();
    assert_ne!(server.engine.gate.load(Ordering::SeqCst) & gate::STOPPING, 0, "no command is served any more");
}

/// Clients are served as soon as the gate opens, which is before the main task is told of it.
#[tokio::test(flavor = "current_thread")]
async fn who_ends_right_after_the_replay_ends_in_good_order() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let (server, mut signals) = (server(dir.path()), Signals::new().unwrap());
    let (done, replayed) = oneshot::channel();
    server.engine.replay().unwrap();
    server.shutdown.send_replace(Some(Shutdown::NoSave));
    let told = async {
        tokio::task::yield_now().await;
        done.send(Ok(())).unwrap();
    };
    let settings = server.config.settings();
    let (end, ()) = tokio::join!(load_and_wait(&server, &settings, &mut signals, replayed), told);
    assert_eq!(end.unwrap(), End::Asked(Shutdown::NoSave));
}

/// Eviction waits for its end, and may be all that goes on.
#[tokio::test(flavor = "current_thread")]
async fn a_pause_ends_at_its_time_though_no_command_comes() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let server = Arc::new(server(dir.path()));
    let paused = || server.engine.gate.load(Ordering::SeqCst) & gate::PAUSED != 0;
    let now_ms = time::now_ms();
    server.hold_back(now_ms, u64::MAX, true);
    server.end_pause(now_ms);
    assert!(paused(), "it is not over");
    server.end_pause(u64::MAX);
    server.hold_back(now_ms - 2, now_ms - 1, true);
    assert!(paused());
    let mut pause = server.pause.subscribe();
    let over = tokio::time::timeout(Duration::from_secs(30), pause.wait_for(|pause| pause.until_ms == 0));
    tokio::select! {
        () = sample(server.clone()) => {}
        over = over => assert!(over.unwrap().is_ok()),
    }
    assert!(!paused());
}

#[test]
fn tables_have_half_of_the_files_that_are_left() {
    let files = [0, 1000, 20_000, 1 << 20, u64::MAX].map(table_files);
    assert_eq!(files, [LEAST_TABLE_FILES, LEAST_TABLE_FILES + 500, LEAST_TABLE_FILES + 10_000, 16_384, 16_384]);
}
