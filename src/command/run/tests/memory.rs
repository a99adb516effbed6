//! What commands hold as long as they wait, and commands that wait for memory.

use super::*;

/// Other commands take the pool that leaves a command `most` bytes, until what this answers is called.
pub(super) fn take_pool(most: usize) -> impl FnOnce() {
    // The first megabyte of each is its own.
    let others = [most, 2 << 20].map(|bytes| {
        let (free, told) = std::sync::mpsc::channel::<()>();
        let (begun, holds) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let _running = meter::begin(Allowance::here(most));
            begun.send(meter::hold(bytes)).unwrap();
            told.recv()
        });
        assert_eq!(holds.recv().unwrap(), Ok(()));
        (free, other)
    });
    || {
        others.into_iter().for_each(|(free, other)| {
            free.send(()).unwrap();
            other.join().unwrap().unwrap();
        })
    }
}

#[test]
fn a_request_that_waits_for_its_shard_counts_as_its_clients_memory() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let [key, _] = world.keys();
    let set: OwnedArgs = ["SET", &key, &"v".repeat(1 << 20)].into_iter().map(str::as_bytes).collect();
    let held = server.engine.lease(&[0]);
    let begun = world.begin(&set).unwrap_err();
    assert!(server.buffers.bytes() >= 1 << 20);
    drop(held);
    assert_eq!(world.end(Err(begun)), "+OK ");
    assert_eq!(server.buffers.bytes(), 0);
}

/// What was read for it, too, until it has run.
#[test]
fn what_was_brought_for_a_request_counts_as_its_clients_memory() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let [key, _] = world.keys();
    world.call(&format!("SET {key} {}", "v".repeat(60_000)));
    world.rest();
    // Nothing is read before somebody has the shard again.
    let go = world.hold_up_readers();
    let held = server.engine.lease(&[0]);
    let begun = world.begin(&words(&format!("GET {key}"))).unwrap_err();
    drop(held);
    world.await_readers_work();
    let held = server.engine.lease(&[0]);
    assert_eq!(server.buffers.bytes(), 0);
    drop(go);
    let began = std::time::Instant::now();
    while server.buffers.bytes() < 60_000 {
        assert!(began.elapsed().as_secs() < 30, "{} bytes", server.buffers.bytes());
        std::thread::yield_now();
    }
    drop(held);
    assert!(world.end(Err(begun)).starts_with("$60000 "));
}

/// The names of the keys stand in lines, too.
#[test]
fn a_command_that_waits_for_a_key_counts_as_its_clients_memory() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let key = "k".repeat(1 << 20);
    let mut other = Peer::new(&server);
    let waits = other.begin(&words(&format!("BLPOP {key} 0")));
    assert!(server.buffers.bytes() >= 3 << 20, "{} bytes", server.buffers.bytes());
    assert_eq!(world.call(&format!("RPUSH {key} v")), ":1 ");
    assert!(other.end(waits).ends_with(" $1 v "));
    assert_eq!(server.buffers.bytes(), 0);
}

/// It would fit alone: it waits, and is not refused.
#[test]
fn a_command_that_finds_the_memory_taken_runs_when_it_is_free() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    server.config.set(&[("maxmemory", "32mb")]).unwrap();
    let big = "v".repeat(1_400_000);
    assert_eq!(world.call(&format!("SET k {big}")), "+OK ");
    let most = Bounds::of(&server.config.settings()).command;
    let free = take_pool(most);
    let waiting = |commands: usize| {
        while meter::crowd() < commands {
            std::thread::yield_now();
        }
    };
    let get: OwnedArgs = ["GET", "k"].into_iter().map(str::as_bytes).collect();
    let left = world.begin(&get).unwrap_err();
    waiting(1);
    // Its client leaves: the turn comes and passes.
    drop(left);
    let session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
    world.session = Some(Box::new(session));
    let set: OwnedArgs = ["SET", "other", &big].into_iter().map(str::as_bytes).collect();
    let mut begun = world.begin(&set).unwrap_err();
    waiting(2);
    assert!(begun.try_recv().is_err());
    free();
    assert_eq!(world.end(Err(begun)), "+OK ");
    assert_eq!(world.call("STRLEN other"), format!(":{} ", big.len()));
    assert_eq!(meter::crowd(), 0);
}

#[test]
fn a_queue_that_no_command_could_hold_is_given_up() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    server.config.set(&[("maxmemory", "32mb")]).unwrap();
    assert_eq!(world.call("MULTI"), "+OK ");
    let big = format!("SET k {}", "v".repeat(3 << 20));
    assert_eq!(world.call(&big), "+QUEUED ");
    let client = world.session.as_ref().unwrap().client.clone();
    assert_eq!(client.multi.load(Ordering::Relaxed), 1);
    assert!(world.call(&big).starts_with("-OOM command needs more memory"));
    assert_eq!(client.multi.load(Ordering::Relaxed), 0);
    let aborted = "-EXECABORT Transaction discarded because of previous errors. ";
    assert_eq!(world.call("EXEC"), aborted);
    assert_eq!(world.call("EXISTS k"), ":0 ");
}

/// However many there are: who asks for all of them goes elsewhere in time.
#[test]
fn a_list_of_clients_takes_steps_for_each() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let mut steps = [0, 100].map(|more| {
        let clients = (1..=more).map(|id| (id, Arc::new(Client { id, ..Client::default() })));
        server.clients.lock().extend(clients);
        let before = meter::tests::taken();
        let lines = world.call("CLIENT LIST").matches("id=").count();
        assert!(lines >= more as usize, "{lines} lines");
        meter::tests::taken() - before
    });
    steps[1] -= steps[0];
    assert!(steps[1] > 1000, "{steps:?}");
    server.clients.lock().clear();
}
