//! Rule 5 over real connections: no reply leaves before the log holds what it tells. And rules 6 and 13 as clients see them.
//!
//! The server runs in this process, its log on the simulated disk: a sync can be held back for as long as a test likes, it
//! can fail, the disk can be full. Nothing here depends on time: a reply that does not come is looked for after the server
//! has said that the command has run, by a connection of the same network thread.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::resp::{Client, Gone, Value, encode};
use common::server::free_port;
use tarn::cli::{self, Invocation};
use tarn::log::sim::{Moment, Op, SimIo};

const LIMIT: Duration = Duration::from_secs(30);

/// A server on a simulated disk.
struct Stand {
    sim: SimIo,
    port: u16,
    dir: Arc<tempfile::TempDir>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Stand {
    fn start(args: &[&str]) -> Stand {
        Stand::start_on(SimIo::new(), Arc::new(tempfile::tempdir().unwrap()), args)
    }

    fn start_on(sim: SimIo, dir: Arc<tempfile::TempDir>, args: &[&str]) -> Stand {
        let port = free_port();
        let (number, path) = (port.to_string(), dir.path().to_str().unwrap().to_owned());
        let mut line = vec!["tarn", "--port", &number, "--bind", "127.0.0.1", "--dir", &path];
        // One network thread: what one connection is told, another one's replies have been decided on.
        line.extend(["--io-threads", "1", "--shards", "4", "--maxmemory", "256mb", "--enable-debug-command", "yes"]);
        line.extend(args);
        let Ok(Invocation::Serve(config, _)) = cli::parse(line.iter().map(std::ffi::OsString::from)) else {
            panic!("the command line is refused: {line:?}")
        };
        let io = Arc::new(sim.clone());
        let thread = std::thread::spawn(move || tarn::boot::run(config, io).map_err(|error| error.to_string()));
        let stand = Stand { sim, port, dir, thread: Some(thread) };
        wait_until("the server is ready", || {
            assert!(!stand.thread.as_ref().is_some_and(JoinHandle::is_finished), "the server does not start");
            let ready = Client::connect(port).ok().and_then(|mut client| client.try_call(&["DBSIZE"]).ok());
            matches!(ready, Some(Value::Int(_)))
        });
        stand
    }

    fn client(&self) -> Client {
        Client::connect(self.port).unwrap()
    }

    /// The log's next sync stands still until this is dropped, and with it everything that `always` acknowledges.
    fn hold(&self) -> Held {
        let (begin, begun) = channel();
        let (release, released) = channel::<()>();
        self.sim.at(Moment::Before(Op::Sync), move || {
            let _ = begin.send(());
            // Ends when the other side is dropped.
            let _ = released.recv();
        });
        Held { begun, _release: release }
    }

    /// Sends commands at once and waits until all of them have run; their replies are not read.
    fn run(&self, control: &mut Client, commands: &[&str]) -> Client {
        let mut client = self.client();
        let id = client.call("CLIENT ID").int().unwrap();
        let request: Vec<u8> = commands.iter().flat_map(|line| encode(&words(line))).collect();
        client.send_raw(&request).unwrap();
        let count = commands.len() + 1;
        wait_until("all commands have run", || listed(control, id, "tot-cmds") == count);
        client
    }

    /// A client, and its id, that has watched a key and queued a command that tells nothing.
    fn watching(&self, key: &str) -> (i64, Client) {
        let mut client = self.client();
        let id = client.call("CLIENT ID").int().unwrap();
        for line in [format!("WATCH {key}").as_str(), "MULTI", "PING"] {
            assert!(!client.call(line).is_error(), "{line}");
        }
        (id, client)
    }

    /// Sends a client's command and waits until it has run; its reply is not read.
    fn send(control: &mut Client, id: i64, client: &mut Client, line: &str) {
        let before = listed(control, id, "tot-cmds");
        client.send_raw(&encode(&words(line))).unwrap();
        wait_until("the command has run", || listed(control, id, "tot-cmds") == before + 1);
    }

    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.sim.heal();
        let _ = self.client().try_call(&["SHUTDOWN", "NOSAVE"]);
        thread.join().expect("the server does not panic").expect("the server ends well");
        // Its network threads end on their own, and the last of them lets go of the directory.
        let lock = std::fs::File::open(self.dir.path().join("LOCK")).unwrap();
        wait_until("the directory is free", || lock.try_lock().is_ok());
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

struct Held {
    begun: Receiver<()>,
    _release: Sender<()>,
}

/// A number of a connection's line in CLIENT LIST.
fn listed(control: &mut Client, id: i64, name: &str) -> usize {
    let line = control.call(&format!("CLIENT LIST ID {id}")).text();
    let number = line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {line}"))
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

/// What is there, acknowledged and on disk, before the sync is held. What the store holds leaves a removal in memory when it is
/// deleted; what came after the flush leaves nothing.
const BEFORE: &[&str] = &["SET old 1", "SET stored 1", "DEBUG RELOAD", "SET gone 1", "SET expiring 1"];

/// What is written while it is held.
const UNSYNCED: &[&str] =
    &["SET new text", "DEL stored", "DEL gone", "RPUSH list a b", "PEXPIREAT expiring 1", "SADD set m", LIBRARY];

/// One word is all of a library.
const LIBRARY: &str = "FUNCTION LOAD #!lua\tname=lib\nredis.register_function('f',function()end)";

/// Keys of these that are watched by somebody.
const WATCHED: [&str; 4] = ["new", "stored", "gone", "list"];

/// Commands whose replies tell of that, and the last of these replies. Nothing here writes a record of its own.
fn tellers() -> Vec<(&'static [&'static str], Option<Value>)> {
    let (zero, nil) = (Some(Value::Int(0)), Some(Value::Nil));
    let error = |text: &str| Some(Value::Error(text.as_bytes().to_vec()));
    vec![
        (&["GET new"], Some(bulk("text"))),
        (&["STRLEN new"], Some(Value::Int(4))),
        (&["MGET old new"], Some(Value::Array(vec![bulk("1"), bulk("text")]))),
        (&["LLEN list"], Some(Value::Int(2))),
        (&["SISMEMBER set other"], zero.clone()),
        (&["OBJECT ENCODING new"], Some(bulk("embstr"))),
        // What is not there: forgotten, in memory as a removal, expired.
        (&["EXISTS gone"], zero.clone()),
        (&["GET stored"], nil.clone()),
        (&["EXISTS expiring"], zero.clone()),
        // Of whichever shard, and whatever its memory still knows: some of so many are where something was written.
        (&["EXISTS a b c d e f g h i j k l m n o p"], zero.clone()),
        (&["DEL a b c d e f g h i j k l m n o p"], zero.clone()),
        (&["UNLINK a b c d e f g h i j k l m n o p"], zero.clone()),
        (&["DEL gone"], zero.clone()),
        (&["DEL stored"], zero.clone()),
        (&["UNLINK gone stored"], zero.clone()),
        (&["PERSIST gone"], zero),
        (&["TYPE gone"], Some(Value::Simple(b"none".to_vec()))),
        // Conditions that are not met.
        (&["SET new other NX"], nil.clone()),
        (&["SET gone other XX"], nil),
        (&["MSETNX new 1 another 2"], Some(Value::Int(0))),
        // Errors tell, too.
        (&["INCR new"], error("ERR value is not an integer or out of range")),
        (&["LPUSH new x"], error("WRONGTYPE Operation against a key holding the wrong kind of value")),
        (&["RENAME gone x"], error("ERR no such key")),
        // Whole shards.
        (&["DBSIZE"], Some(Value::Int(4))),
        (&["SCAN 0 COUNT 1000"], None),
        (&["KEYS *"], None),
        (&["RANDOMKEY"], None),
        // A database that is empty: it may have become so just now.
        (&["SELECT 5", "FLUSHDB"], Some(ok())),
        // Libraries.
        (&["FCALL f 0"], Some(Value::Nil)),
        (&["FUNCTION LIST"], None),
        // Transactions.
        (&["MULTI", "GET new", "EXEC"], Some(Value::Array(vec![bulk("text")]))),
        (&["MULTI", "DEL gone", "EXEC"], Some(Value::Array(vec![Value::Int(0)]))),
        (&["MULTI", "DBSIZE", "EXEC"], Some(Value::Array(vec![Value::Int(4)]))),
        (&["EVAL return{redis.call('exists',KEYS[1])} 1 gone"], Some(Value::Array(vec![Value::Int(0)]))),
        // Posted to the shard's thread.
        (&["DEBUG OBJECT new"], None),
        (&["DEBUG OBJECT gone"], error("ERR no such key")),
    ]
}

#[test]
fn rule_5_no_reply_leaves_before_the_log_holds_what_it_tells() {
    let stand = Stand::start(&["--appendfsync", "always"]);
    let mut control = stand.client();
    for line in BEFORE {
        assert_eq!(control.call(line), ok());
    }
    assert_eq!(control.call("DEBUG SET-ACTIVE-EXPIRE 0"), ok());
    let mut watchers: Vec<_> = WATCHED.iter().map(|key| (key, stand.watching(key))).collect();
    let held = stand.hold();
    let mut writer = stand.run(&mut control, UNSYNCED);
    held.begun.recv_timeout(LIMIT).expect("the log syncs");

    for (_, (id, client)) in &mut watchers {
        Stand::send(&mut control, *id, client, "EXEC");
    }
    let mut waiting = Vec::new();
    for (commands, reply) in tellers() {
        let client = stand.run(&mut control, &[commands, &["PING"]].concat());
        waiting.push((commands, reply, client));
    }
    // Others are served: who has seen nothing of it, and who asks for nothing.
    assert_eq!(stand.client().call("PING"), Value::Simple(b"PONG".to_vec()));
    assert_eq!(stand.client().call("GET old"), bulk("1"));
    assert!(writer.is_silent(), "the writes are not acknowledged");
    let early: Vec<_> =
        waiting.iter_mut().filter_map(|(what, _, client)| (!client.is_silent()).then_some(*what)).collect();
    assert!(early.is_empty(), "replies left before the log held what they tell: {early:?}");
    let early: Vec<_> =
        watchers.iter_mut().filter_map(|(key, (_, client))| (!client.is_silent()).then_some(*key)).collect();
    assert!(early.is_empty(), "told that a watched key has changed before the log held it: {early:?}");

    drop(held);
    for _ in UNSYNCED {
        assert!(!writer.read().unwrap().is_error());
    }
    for (commands, expected, mut client) in waiting {
        let replies: Vec<_> = commands.iter().map(|_| client.read().unwrap()).collect();
        let last = replies.last().unwrap();
        assert!(expected.as_ref().is_none_or(|expected| expected == last), "{commands:?}: {last:?}");
        assert_eq!(client.read().unwrap(), Value::Simple(b"PONG".to_vec()), "{commands:?}");
    }
    for (key, (_, mut client)) in watchers {
        assert_eq!(client.read().unwrap(), Value::NilArray, "{key} was watched, and has changed");
    }
}

/// What a connection is sent without having asked tells of changes, too: messages, events, notices, the end of a wait.
#[test]
fn rule_5_nobody_is_told_before_the_log_holds_what_he_is_told() {
    let stand = Stand::start(&["--appendfsync", "always", "--notify-keyspace-events", "KEA"]);
    let mut control = stand.client();
    for line in ["DEBUG SET-ACTIVE-EXPIRE 0", "SET key 1", "SET due 1 PX 1"] {
        assert_eq!(control.call(line), ok());
    }
    let hears: [&[&str]; 8] = [
        &["SUBSCRIBE text"],
        &["SSUBSCRIBE text"],
        &["PSUBSCRIBE te?t"],
        &["SUBSCRIBE __keyevent@0__:set"],
        &["PSUBSCRIBE __keyspace@0__:*"],
        &["SUBSCRIBE __keyevent@0__:expired"],
        &["HELLO 3", "CLIENT TRACKING ON", "GET key"],
        &["HELLO 3", "CLIENT TRACKING ON BCAST PREFIX k"],
    ];
    let mut told: Vec<_> = hears
        .iter()
        .map(|commands| {
            let mut client = stand.client();
            commands.iter().for_each(|line| assert!(!client.call(line).is_error(), "{line}"));
            (commands, client)
        })
        .collect();
    let mut redirect = stand.client();
    let id = redirect.call("CLIENT ID").int().unwrap();
    redirect.call("SUBSCRIBE __redis__:invalidate");
    let mut keeps = stand.client();
    assert_eq!(keeps.call(&format!("CLIENT TRACKING ON REDIRECT {id}")), ok());
    assert_eq!(keeps.call("GET key"), bulk("1"));
    told.push((&hears[6], redirect));
    told.push((&hears[0], stand.run(&mut control, &["BLPOP list 0"])));
    // Its lines tell nothing that the log holds.
    let mut mark = stand.client();
    assert_eq!(mark.call("MONITOR"), ok());

    let held = stand.hold();
    let script = "redis.call('set',KEYS[1],3);redis.call('publish','text','script')";
    let script = format!("EVAL {script} 1 key");
    let writes = ["MULTI", "SET key 2", "PUBLISH text multi", "SPUBLISH text multi", "EXEC", &script];
    let writer = stand.run(&mut control, &[&writes[..], &["RPUSH list x"]].concat());
    held.begun.recv_timeout(LIMIT).expect("the log syncs");
    assert_eq!(control.call("DEBUG SET-ACTIVE-EXPIRE 1"), ok());
    wait_until("the sweep has removed it", || control.call("INFO stats").text().contains("expired_keys:1\r"));
    // What was left with the thread before this is in the outputs when this arrives.
    control.call("ECHO mark");
    while !mark.read().unwrap().text().ends_with("\"mark\"") {}
    let early: Vec<_> = told.iter_mut().filter_map(|(what, client)| (!client.is_silent()).then_some(*what)).collect();
    assert!(early.is_empty(), "told before the log held it: {early:?}");
    drop(held);
    for (what, mut client) in told {
        assert!(client.read().is_ok(), "{what:?}");
    }
    drop(writer);
}

/// A connection waits for all that it has seen, and not for what it has seen last: that may be less.
#[test]
fn rule_5_a_reply_that_waits_for_less_does_not_let_go_of_those_before_it() {
    let stand = Stand::start(&["--appendfsync", "always"]);
    let mut control = stand.client();
    assert_eq!(control.call("SET old 1"), ok());
    // The first of two syncs is of this write; what follows comes with the second.
    let (first, second) = (stand.hold(), stand.hold());
    let mut covered = stand.run(&mut control, &["SET covered 1"]);
    first.begun.recv_timeout(LIMIT).expect("the log syncs");
    let lesser: [&[&str]; 8] = [
        &["ECHO text"],
        &["GET old"],
        &["GET covered"],
        // What runs elsewhere brings its own back.
        &["DEBUG OBJECT old"],
        &["DEBUG OBJECT covered"],
        &["DEBUG SLEEP 0.001"],
        &["MULTI", "GET covered", "EXEC"],
        &["MULTI", "DEBUG OBJECT covered", "EXEC"],
    ];
    let mut waiting = Vec::new();
    for (nth, lesser) in lesser.iter().enumerate() {
        let write = format!("SET own:{nth} 1");
        waiting.push((lesser, stand.run(&mut control, &[&[write.as_str()], *lesser, &["PING"]].concat())));
    }
    drop(first);
    assert_eq!(covered.read().unwrap(), ok());
    second.begun.recv_timeout(LIMIT).expect("the log syncs again");
    // The thread has gone through all that waits before it runs another command.
    assert_eq!(control.call("GET covered"), bulk("1"));
    let early: Vec<_> =
        waiting.iter_mut().filter_map(|(what, client)| (!client.is_silent()).then_some(*what)).collect();
    assert!(early.is_empty(), "a write is acknowledged with what came after it: {early:?}");
    drop(second);
    for (lesser, mut client) in waiting {
        let replies: Vec<_> = (0..lesser.len() + 2).map(|_| client.read().unwrap()).collect();
        assert!(replies.iter().all(|reply| !reply.is_error()), "{lesser:?}: {replies:?}");
        assert_eq!((&replies[0], replies.last()), (&ok(), Some(&Value::Simple(b"PONG".to_vec()))), "{lesser:?}");
    }
}

/// What the socket does not take when the log lets it go leaves later, and nobody has to ask for it.
#[test]
fn rule_5_a_long_reply_that_has_waited_leaves_whole() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    // A socket of this kind takes little at once.
    let path = dir.path().join("socket");
    let stand =
        Stand::start_on(SimIo::new(), dir, &["--appendfsync", "always", "--unixsocket", path.to_str().unwrap()]);
    let mut control = stand.client();
    let value = "v".repeat(700_000);
    assert_eq!(control.try_call(&["SET", "long", &value]).unwrap(), ok());
    let held = stand.hold();
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"SET k 1\r\nGET long\r\n").unwrap();
    let both = |line: &str| line.contains(" flags=U ") && line.ends_with(" tot-cmds=2");
    wait_until("both have run", || control.call("CLIENT LIST").text().lines().any(both));
    held.begun.recv_timeout(LIMIT).expect("the log syncs");
    drop(held);
    let expected = format!("+OK\r\n$700000\r\n{value}\r\n");
    let mut replies = vec![0; expected.len()];
    stream.read_exact(&mut replies).expect("all of it");
    assert!(replies == expected.as_bytes());
}

#[test]
fn rule_6_each_reply_that_waits_becomes_one_error() {
    let stand = Stand::start(&["--appendfsync", "always"]);
    let mut control = stand.client();
    assert_eq!(control.call("SET old 1"), ok());
    let held = stand.hold();
    // Replies of every making: at once, queued, of several parts, posted, held back, errors, none at all.
    let commands = [
        "SET a 1",
        "GET a",
        "PING",
        "NOSUCHCOMMAND",
        "INCR a b",
        "MULTI",
        "SET b 1",
        "MGET a b",
        "EXEC",
        "DEBUG OBJECT a",
        "DEBUG OBJECT nosuchkey",
        "DEBUG SLEEP 0.001",
        "CLIENT REPLY SKIP",
        "GET a",
        "SCAN 0",
        "CLIENT REPLY OFF",
        "GET a",
        "CLIENT REPLY ON",
        "DBSIZE",
    ];
    let unanswered = 4;
    // A command that nobody knows is not counted.
    let run: Vec<_> = commands.iter().copied().filter(|line| *line != "NOSUCHCOMMAND").collect();
    let mut client = stand.client();
    let id = client.call("CLIENT ID").int().unwrap();
    client.send_raw(&commands.iter().flat_map(|line| encode(&words(line))).collect::<Vec<_>>()).unwrap();
    wait_until("all commands have run", || listed(&mut control, id, "tot-cmds") == run.len() + 1);
    held.begun.recv_timeout(LIMIT).expect("the log syncs");
    let mut leaving = stand.run(&mut control, &["SET left 1", "QUIT"]);
    assert!(client.is_silent() && leaving.is_silent());
    stand.sim.fail(Op::Sync, 0, 1, libc::EIO);
    drop(held);
    for n in 0..commands.len() - unanswered {
        let reply = client.read().unwrap();
        assert_eq!(reply.text(), "MISCONF Errors writing to the AOF file: Input/output error", "reply {n}");
    }
    for _ in 0..2 {
        assert!(leaving.read().unwrap().text().starts_with("MISCONF"));
    }
    assert!(matches!(leaving.read(), Err(Gone::Closed)));
    // No more and no less; and the server flushes the segment away by itself.
    assert_eq!(client.call("ECHO next"), bulk("next"));
    wait_until("writes are taken again", || control.call("SET c 1") == ok());
    assert_eq!(client.call("MGET a b c"), Value::Array(vec![bulk("1"), bulk("1"), bulk("1")]));
}

/// What does not tell of the log is not the log's: messages that stand among the replies, and the end of who was killed before.
#[test]
fn rule_6_messages_and_kills_do_not_go_with_the_replies() {
    let stand = Stand::start(&["--appendfsync", "always"]);
    let (mut control, mut killed, mut client) = (stand.client(), stand.client(), stand.client());
    let victim = killed.call("CLIENT ID").int().unwrap();
    assert!(!client.call("HELLO 3").is_error() && !client.call("SUBSCRIBE text").is_error());
    let id = client.call("CLIENT ID").int().unwrap();
    let held = stand.hold();
    for line in ["SET a 1", &format!("CLIENT KILL ID {victim}"), "PUBLISH text message"] {
        Stand::send(&mut control, id, &mut client, line);
    }
    held.begun.recv_timeout(LIMIT).expect("the log syncs");
    assert!(client.is_silent());
    stand.sim.fail(Op::Sync, 0, 1, libc::EIO);
    drop(held);
    let told: Vec<_> = (0..4).map(|_| client.read().unwrap()).collect();
    let errors = told.iter().filter(|reply| reply.text().starts_with("MISCONF")).count();
    let message = |reply: &Value| reply.items().last().is_some_and(|text| *text == bulk("message"));
    assert_eq!((errors, told.iter().filter(|reply| message(reply)).count()), (3, 1), "{told:?}");
    assert!(matches!(killed.read(), Err(Gone::Closed)));
    assert_eq!(client.call("ECHO next"), bulk("next"));
}

/// What has committed happens, whether its reply can leave or not.
#[test]
fn rule_6_who_was_killed_goes_though_the_killer_has_left() {
    let stand = Stand::start(&["--appendfsync", "always"]);
    let (mut control, mut killed) = (stand.client(), stand.client());
    let victim = killed.call("CLIENT ID").int().unwrap();
    let held = stand.hold();
    let killer = stand.run(&mut control, &["SET a 1", &format!("CLIENT KILL ID {victim}")]);
    held.begun.recv_timeout(LIMIT).expect("the log syncs");
    assert!(killed.is_silent());
    drop(killer);
    assert!(matches!(killed.read(), Err(Gone::Closed)));
}

/// Whatever it was at the start.
#[test]
fn rule_5_appendfsync_is_what_it_was_last_set_to() {
    let stand = Stand::start(&["--appendfsync", "everysec"]);
    let mut control = stand.client();
    for mode in ["always", "no"] {
        assert_eq!(control.call(&format!("CONFIG SET appendfsync {mode}")), ok());
        let held = stand.hold();
        if mode == "always" {
            let mut writer = stand.run(&mut control, &["SET k 1"]);
            held.begun.recv_timeout(LIMIT).expect("the log syncs");
            assert!(writer.is_silent());
            drop(held);
            assert_eq!(writer.read().unwrap(), ok());
        } else {
            assert_eq!(stand.client().call("SET k 2"), ok(), "nobody waits for the disk");
        }
    }
}

#[test]
fn rule_6_a_full_disk_refuses_writes_answers_reads_and_loses_nothing_acknowledged() {
    let mut stand = Stand::start(&["--appendfsync", "everysec"]);
    let mut client = stand.client();
    stand.sim.set_capacity(Some(20_000));
    let value = "x".repeat(100);
    let mut acknowledged = 0;
    let refusal = loop {
        let reply = client.call(&format!("SET k{acknowledged} {value}"));
        if reply != ok() {
            break reply;
        }
        acknowledged += 1;
        assert!(acknowledged < 1000, "the disk is full");
    };
    assert_eq!(refusal.text(), "MISCONF Errors writing to the AOF file: No space left on device");
    assert!(acknowledged > 50);
    assert_eq!(client.call("GET k0"), bulk(&value));
    assert_eq!(client.call("DEL k0").text(), refusal.text());
    assert_eq!(client.call("SHUTDOWN").text(), "ERR Errors trying to SHUTDOWN. Check logs.");
    stand.sim.set_capacity(None);
    wait_until("there is room again", || client.call("SET again 1") == ok());
    // The process ends without a word.
    let (sim, dir) = (stand.sim.process_crash(), stand.dir.clone());
    stand.stop();
    let stand = Stand::start_on(sim, dir, &["--appendfsync", "everysec"]);
    let mut client = stand.client();
    for n in 0..acknowledged {
        assert_eq!(client.call(&format!("GET k{n}")), bulk(&value), "key {n} of {acknowledged}");
    }
    assert_eq!(client.call("GET again"), bulk("1"));
}

/// Whoever says FORCE or NOSAVE knows what may be lost.
#[test]
fn rule_6_a_server_whose_log_refuses_writes_goes_down_if_it_is_forced() {
    for how in ["FORCE", "NOSAVE"] {
        let mut stand = Stand::start(&["--appendfsync", "everysec"]);
        let mut client = stand.client();
        stand.sim.set_capacity(Some(20_000));
        let value = "x".repeat(30_000);
        assert!(client.call(&format!("SET k {value}")).text().starts_with("MISCONF "));
        for unforced in ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOW"] {
            assert_eq!(client.call(unforced).text(), "ERR Errors trying to SHUTDOWN. Check logs.", "{unforced}");
        }
        assert!(matches!(client.try_call(&["SHUTDOWN", how]), Err(Gone::Closed)), "{how}");
        assert!(stand.thread.take().is_some_and(|thread| thread.join().is_ok()), "{how}: it panics");
    }
}

/// INFO tells of a sync that has failed until one succeeds.
#[test]
fn rule_6_a_sync_that_fails_is_told_of() {
    let stand = Stand::start(&["--appendfsync", "always"]);
    let mut client = stand.client();
    let status = |client: &mut Client| {
        let text = client.call("INFO persistence").text();
        text.lines().find_map(|line| line.strip_prefix("aof_last_write_status:")).map(str::to_owned).unwrap()
    };
    assert_eq!((client.call("SET k 1"), status(&mut client).as_str()), (ok(), "ok"));
    stand.sim.fail(Op::Sync, 0, u64::MAX, libc::EIO);
    assert!(client.call("SET k 2").text().starts_with("MISCONF "));
    assert_eq!(status(&mut client), "err");
    stand.sim.heal();
    wait_until("writes are taken again", || client.call("SET k 3") == ok());
    assert_eq!(status(&mut client), "ok");
}

/// While no flush gets through, whatever writes stays where it came from, and readers are answered.
#[test]
fn rule_13_who_writes_waits_while_the_dirty_budget_is_used_up() {
    let stand = Stand::start(&["--appendfsync", "everysec", "--dirty-budget", "8mb"]);
    let mut control = stand.client();
    assert_eq!(control.call("SET old 1"), ok());
    let writes = [("EXEC", Value::Array(vec![ok()])), ("SET new 1", ok()), ("DEL old", Value::Int(1))];
    let mut writers = writes.map(|(command, reply)| {
        let mut client = stand.client();
        let id = client.call("CLIENT ID").int().unwrap();
        if command == "EXEC" {
            assert_eq!((client.call("MULTI"), client.call("SET queued 1").text()), (ok(), "QUEUED".to_owned()));
        }
        (command, reply, client, id)
    });
    let held = stand.hold();
    let big = "x".repeat(12 << 20);
    assert_eq!(stand.client().try_call(&["SET", "big", &big]).unwrap(), ok(), "it passes alone");
    wait_until("the budget is used up", || control.call("INFO tarn").text().contains("tarn_write_delay_us:20000\r"));
    for (command, _, client, id) in &mut writers {
        let (request, before) = (encode(&words(command)), listed(&mut control, *id, "tot-net-in"));
        client.send_raw(&request).unwrap();
        wait_until("it has come", || listed(&mut control, *id, "tot-net-in") == before + request.len());
        assert_eq!(listed(&mut control, *id, "qbuf"), request.len(), "{command} does not run");
    }
    let mut reader = stand.client();
    assert_eq!(reader.call("MULTI"), ok());
    assert_eq!(reader.call("GET old").text(), "QUEUED");
    assert_eq!(reader.call("EXEC"), Value::Array(vec![bulk("1")]), "what only reads does not wait");
    assert_eq!(
        (reader.call("MULTI"), reader.call("SET later 1").text()),
        (ok(), "QUEUED".to_owned()),
        "nor what is kept"
    );
    assert_eq!(reader.call("DISCARD"), ok());
    assert_eq!((control.call("GET old"), control.call("EXISTS queued new")), (bulk("1"), Value::Int(0)));
    drop(held);
    for (command, reply, mut client, _) in writers {
        assert_eq!(client.read().unwrap(), reply, "{command}");
    }
}
