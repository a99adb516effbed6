//! What an operator relies on: files that the server leaves and removes, what it tells about itself and to whom, its end.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::resp::{Client, encode};
use common::server::{Kind, Server, free_port, notice};
use common::wait::{PATIENCE, until};

fn tarn(args: &[&str]) -> Command {
    let mut command = Command::new(Kind::Tarn.binary().expect("cargo builds tarn before its tests"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits for the end of a process that is to end by itself.
fn ended(mut child: Child) -> ExitStatus {
    let mut status = None;
    let began = Instant::now();
    while status.is_none() && began.elapsed() < PATIENCE {
        status = child.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let _ = child.wait();
    status.expect("the process ends by itself")
}

/// Tests of several processes look for ports at the same time.
#[test]
fn a_server_whose_port_is_taken_meanwhile_gets_another() {
    for kind in [Kind::Tarn, Kind::Redis82] {
        let Some(mut server) = Server::prepare(kind, &[]) else { continue };
        let taken = server.port();
        let dir = tempfile::tempdir().unwrap();
        let mut other = tarn(&["--port", &taken.to_string(), "--dir", dir.path().to_str().unwrap()]).spawn().unwrap();
        until("it listens", || TcpStream::connect(("127.0.0.1", taken)).is_ok());
        // That one answers, too.
        server.begin();
        assert_ne!(server.port(), taken);
        assert_eq!(server.client().info("server", "process_id").to_string(), server.pid().unwrap().to_string());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn info(client: &mut Client, section: &str) -> Vec<(String, String)> {
    let text = client.call(&format!("INFO {section}")).text();
    let line = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().filter_map(line).collect()
}

fn number(client: &mut Client, section: &str, name: &str) -> i64 {
    let found = info(client, section).into_iter().find(|(line, _)| line == name);
    found.unwrap_or_else(|| panic!("INFO has no {name}")).1.parse().unwrap()
}

/// A server that cannot have data directory or port is told of the same pid file by the same configuration.
#[test]
fn a_second_start_leaves_the_pid_file_of_the_first_alone() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let pid_file_arg = pid_file.to_str().unwrap();
    let mut first = Server::tarn(&["--pidfile", pid_file_arg]);
    let pid = format!("{}\n", first.pid().unwrap());
    assert_eq!(text(&pid_file), pid);
    let data = first.dir().join("data").to_str().unwrap().to_owned();
    let other = dir.path().join("other").to_str().unwrap().to_owned();
    let [port, free] = [first.port(), free_port()].map(|port| port.to_string());
    for (dir, port) in [(&data, &free), (&other, &port)] {
        let second = tarn(&["--dir", dir, "--port", port, "--bind", "127.0.0.1", "--pidfile", pid_file_arg]);
        assert_eq!(ended({ second }.spawn().unwrap()).code(), Some(1));
        assert_eq!(text(&pid_file), pid, "after a start in {dir} on {port}");
    }
    assert_eq!(first.stop(), Some(0));
    assert!(!pid_file.exists());
}

#[test]
fn a_pid_file_that_has_become_anothers_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let mut server = Server::tarn(&["--pidfile", pid_file.to_str().unwrap()]);
    std::fs::write(&pid_file, "1\n").unwrap();
    assert_eq!(server.stop(), Some(0));
    assert_eq!(text(&pid_file), "1\n");
}

#[test]
fn the_service_manager_is_told_of_begin_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut text = [0; 256];
        let len = socket.recv(&mut text).expect("a datagram");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    // A port that was free might be somebody else's by now.
    let (unix, data) = (dir.path().join("socket"), dir.path().join("data"));
    let socket_file = unix.clone();
    let [unix, data] = [&unix, &data].map(|path| path.to_str().unwrap());
    let permissions = ["--unixsocketperm", "702"];
    let args = ["--port", "0", "--unixsocket", unix, "--supervised", "systemd", "--dir", data];
    let args = [&args[..], &permissions].concat();
    let mut command = tarn(&args);
    let child = command.env("NOTIFY_SOCKET", dir.path().join("notify")).spawn().unwrap();
    assert!(told().lines().any(|line| line == "READY=1"));
    assert_eq!(std::fs::metadata(&socket_file).unwrap().permissions().mode() & 0o777, 0o702);
    signal(child.id(), "TERM");
    assert_eq!(told(), "STOPPING=1\n");
    assert_eq!(ended(child).code(), Some(0));
    assert!(!socket_file.exists(), "nobody listens there any more");
}

#[test]
fn the_log_says_ready_in_the_words_that_tools_look_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server = Server::tarn(&["--unixsocket", socket.to_str().unwrap()]);
    until("the log says so", || {
        let said = server.output();
        said.contains("Ready to accept connections tcp") && said.contains("Ready to accept connections unix")
    });
}

#[test]
fn version_as_redis_server_prints_it() {
    let printed = |binary: &Path, arg: &str| {
        let output = Command::new(binary).arg(arg).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let names = |line: &str| -> Vec<String> {
        let words = line.trim_end().split(' ').skip(2);
        words.map(|word| word.split('=').next().unwrap_or_default().to_owned()).collect()
    };
    let tarn = Kind::Tarn.binary().unwrap();
    for arg in ["-v", "--version"] {
        let line = printed(&tarn, arg);
        assert!(line.starts_with(concat!("Tarn server v=", env!("CARGO_PKG_VERSION"), " sha=")), "{line}");
        match Kind::Redis82.binary() {
            Some(redis) => assert_eq!(names(&line), names(&printed(&redis, arg))),
            None => notice("skipped: no redis 8.2 on this machine to compare the version's form with"),
        }
    }
}

/// A panic ends the process, and the log, not only standard error, tells where it was.
#[test]
fn a_panic_leaves_its_backtrace_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (log, port, data) = (dir.path().join("log"), free_port(), dir.path().join("data"));
    let port_arg = port.to_string();
    let args = ["--port", &port_arg, "--bind", "127.0.0.1", "--dir", data.to_str().unwrap()];
    let more = ["--logfile", log.to_str().unwrap(), "--enable-debug-command", "yes"];
    let child = tarn(&[&args[..], &more].concat()).spawn().unwrap();
    until("the server is ready", || text(&log).contains("Ready to accept connections"));
    let _ = Client::connect(port).unwrap().try_call(&["DEBUG", "PANIC"]);
    assert_eq!(ended(child).code(), None, "ended by a signal");
    let said = text(&log);
    for what in ["panicked at src", "DEBUG PANIC called at Unix time", "thread=\"shard-", "tarn::server::debug"] {
        assert!(said.contains(what), "{what}: {said}");
    }
}

/// `copytruncate`, and a file that was moved away.
#[test]
fn the_log_file_survives_logrotate() {
    let dir = tempfile::tempdir().unwrap();
    let (log, moved) = (dir.path().join("log"), dir.path().join("log.1"));
    let server = Server::tarn(&["--logfile", log.to_str().unwrap(), "--enable-debug-command", "yes"]);
    let mut client = server.client();
    std::fs::rename(&log, &moved).unwrap();
    client.call("DEBUG LOG one");
    assert!(!text(&moved).contains("one") && text(&log).contains("DEBUG LOG: one"));
    std::fs::File::create(&log).unwrap();
    client.call("DEBUG LOG two");
    let said = text(&log);
    assert!(said.contains("DEBUG LOG: two") && !said.contains('\0') && !said.contains("one"), "{said}");
    // How much is logged is changed at any time.
    for (level, words) in [("nothing", "three"), ("warning", "four")] {
        client.call(&format!("CONFIG SET loglevel {level}"));
        client.call(&format!("DEBUG LOG {words}"));
    }
    let said = text(&log);
    assert!(said.contains("DEBUG LOG: four") && !said.contains("three"), "{said}");
}

#[test]
fn refused_connections_are_counted_as_redis_counts_them() {
    for kind in [Kind::Tarn, Kind::Redis82] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let Some(server) = Server::start(kind, &["--maxclients", "3", "--unixsocket", socket.to_str().unwrap()]) else {
            notice("skipped: no redis 8.2 on this machine to prove how refused connections are counted");
            continue;
        };
        let mut client = server.client();
        until("connections of the start are gone", || client.call("CLIENT LIST").text().lines().count() == 1);
        client.call("CONFIG RESETSTAT");
        let _two = (server.client(), UnixStream::connect(&socket).unwrap());
        until("they are let in", || client.call("CLIENT LIST").text().lines().count() == 3);
        let refused = |mut stream: Box<dyn std::io::Read>| {
            let mut why = String::new();
            stream.read_to_string(&mut why).unwrap();
            assert_eq!(why, "-ERR max number of clients reached\r\n", "{kind:?}");
        };
        let mut seen =
            || ["total_connections_received", "rejected_connections"].map(|n| number(&mut client, "stats", n));
        let tcp = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        refused(Box::new(tcp));
        assert_eq!(seen(), [2, 1], "{kind:?}");
        let unix = UnixStream::connect(&socket).unwrap();
        unix.set_read_timeout(Some(PATIENCE)).unwrap();
        refused(Box::new(unix));
        assert_eq!(seen(), [2, 2], "{kind:?}");
    }
}

/// The kernel takes less than the directive does, and not a third of a second.
#[test]
fn whatever_keepalive_is_asked_for_connections_are_let_in() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    for seconds in ["1", "2", "3", "0", "32767", "32768", "2147483647"] {
        assert_eq!(client.call(&format!("CONFIG SET tcp-keepalive {seconds}")).text(), "OK");
        let mut other = Client::connect(server.port()).unwrap();
        assert!(other.try_call(&["PING"]).is_ok_and(|pong| pong.text() == "PONG"), "{seconds} s");
    }
}

/// Every line that Redis has, in every section that COMPAT.md does not leave out.
#[test]
fn info_has_every_line_of_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &["--appendonly", "yes"]) else {
        notice("skipped: no redis 8.2 on this machine to compare INFO with");
        return;
    };
    let tarn = Server::tarn(&[]);
    let lines = |server: &Server| -> BTreeSet<String> {
        let mut client = server.client();
        client.call("SET k v");
        let names = |section| info(&mut client, section).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let sections = ["server", "clients", "memory", "persistence", "threads", "stats", "replication", "cpu"];
        sections.into_iter().chain(["cluster", "keyspace"]).flat_map(names).collect()
    };
    let missing: Vec<_> = lines(&redis).difference(&lines(&tarn)).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn info_shows_the_budget_in_force_and_config_what_was_asked_for() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let all = |client: &mut Client| {
        let [memory, budget] =
            [("memory", "maxmemory"), ("tarn", "tarn_memory_budget")].map(|(of, name)| number(client, of, name));
        (memory, budget, client.call("CONFIG GET maxmemory").items()[1].text())
    };
    let (memory, budget, asked) = all(&mut client);
    assert!(memory > 0 && memory == budget && asked == "0", "{memory} {budget} {asked}");
    client.call("CONFIG SET maxmemory 100mb");
    assert_eq!(all(&mut client), (100 << 20, 100 << 20, (100 << 20).to_string()));
    assert!(info(&mut client, "memory").contains(&("maxmemory_human".into(), "100.00M".into())));
    assert!(info(&mut client, "memory").contains(&("maxmemory_policy".into(), "noeviction".into())));
}

/// Memory that is in use is given back by a server that nobody writes to.
#[test]
fn config_set_maxmemory_divides_the_whole_budget_anew() {
    let server = Server::tarn(&["--maxmemory", "400mb", "--block-cache-size", "16mb", "--enable-debug-command", "yes"]);
    let mut client = server.client();
    // One command may hold an eighth of the budget.
    for prefix in ["a", "b"] {
        assert_eq!(client.call(&format!("DEBUG POPULATE 50000 {prefix} 500")).text(), "OK");
    }
    client.call("SAVE");
    let get = |client: &mut Client, name: &str| number(client, "tarn", name);
    let names = ["tarn_table_budget", "tarn_dirty_budget", "tarn_metadata_cache_budget", "tarn_log_limit"];
    let sizes = |client: &mut Client| names.map(|name| get(client, name));
    let mb = |sizes: [i64; 4]| sizes.map(|size| size >> 20);
    assert_eq!(mb(sizes(&mut client)), [304, 100, 40, 256]);
    assert!(get(&mut client, "tarn_table_bytes") > 50 << 20);

    client.call("CONFIG SET maxmemory 60mb");
    assert_eq!(mb(sizes(&mut client)), [32, 15, 6, 256]);
    // To what they may have with what the metadata cache leaves.
    until("the tables shrink", || {
        let [bytes, limit] = ["tarn_table_bytes", "tarn_table_limit"].map(|name| get(&mut client, name));
        bytes <= limit && (32 << 20..39 << 20).contains(&limit)
    });
    assert!(get(&mut client, "tarn_metadata_cache_bytes") <= 6 << 20);
    assert!(!client.call("GET a:7777").is_nil());

    client.call("CONFIG SET maxmemory 2gb log-max-size 100mb metadata-cache-size 10mb");
    assert_eq!(mb(sizes(&mut client)), [1817, 512, 10, 100]);
    // Each of them alone.
    for (directive, divided) in [
        ("dirty-budget 20mb", [1817, 20, 10, 100]),
        ("log-max-size 50mb", [1817, 20, 10, 64]),
        ("log-segment-size 80mb", [1817, 20, 10, 80]),
        ("metadata-cache-size 20mb", [1807, 20, 20, 80]),
    ] {
        assert_eq!(client.call(&format!("CONFIG SET {directive}")).text(), "OK");
        assert_eq!(mb(sizes(&mut client)), divided, "{directive}");
    }
}

/// Files that the system does not let it open cannot be clients.
#[test]
fn there_are_no_more_clients_than_the_system_lets_in() {
    let dir = tempfile::tempdir().unwrap();
    let (port, data) = (free_port(), dir.path().join("data"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 2500; exec \"$@\"", "sh"]).arg(Kind::Tarn.binary().unwrap());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", data.to_str().unwrap()]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let size = || Client::connect(port).ok().and_then(|mut client| client.try_call(&["DBSIZE"]).ok());
    until("it serves", || size().is_some_and(|size| size.int() == Some(0)));
    let mut client = Client::connect(port).unwrap();
    let most = |client: &mut Client| client.call("CONFIG GET maxclients").items()[1].text();
    let lowered = most(&mut client);
    assert!(lowered.parse::<u64>().is_ok_and(|most| (1000..2000).contains(&most)), "{lowered}");
    let refused = client.call("CONFIG SET maxclients 3000").text();
    assert!(refused.ends_with(&format!("number of clients, try with {lowered}")), "{refused}");
    assert_eq!(most(&mut client), lowered);
    signal(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
}

/// Twice SIGINT ends a server that would still wait for a client to read its replies.
#[test]
fn a_second_sigint_ends_the_server_at_once() {
    use std::io::Write as _;
    let server = Server::prepare(Kind::Tarn, &["--shutdown-timeout", "3600"]);
    let mut server = server.unwrap();
    server.spawn();
    server.wait_ready();
    let mut client = server.client();
    client.call(&format!("SET k {}", "x".repeat(1 << 20)));
    let mut deaf = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    for _ in 0..64 {
        deaf.write_all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n").unwrap();
    }
    until("replies wait", || {
        let list = client.call("CLIENT LIST").text();
        list.lines().any(|line| !line.contains(" omem=0 ") && line.contains(" cmd=get "))
    });
    let pid = server.pid().unwrap();
    signal(pid, "INT");
    until("the shutdown has begun", || server.output().contains("signal received"));
    signal(pid, "INT");
    let mut status = None;
    until("the process ends", || {
        status = server.exited();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(1));
}

/// However long it was to wait when it was started.
#[test]
fn a_shutdown_waits_for_last_replies_as_long_as_was_said_last() {
    use std::io::Write as _;
    let mut server = Server::tarn(&["--shutdown-timeout", "3600"]);
    let mut client = server.client();
    client.call(&format!("SET k {}", "x".repeat(1 << 20)));
    assert_eq!(client.call("CONFIG SET shutdown-timeout 0").text(), "OK");
    let mut deaf = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    deaf.write_all(&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(64)).unwrap();
    until("replies wait", || client.call("CLIENT LIST").text().lines().any(|line| line.contains(" events=rw ")));
    assert_eq!(server.stop(), Some(0));
    assert!(server.output().contains("some clients have not read their last replies"), "{}", server.output());
}

/// Who waits is shown as it comes, and not again when it is served.
#[test]
fn monitor_shows_who_waits_once() {
    for kind in [Kind::Redis82, Kind::Tarn, Kind::ScaledTarn] {
        let Some(server) = Server::start(kind, &[]) else {
            notice(&format!("skipped: no {} on this machine", kind.title()));
            continue;
        };
        let (mut monitor, mut waiter, mut client) = (server.client(), server.client(), server.client());
        let id = waiter.call("CLIENT ID").int().unwrap();
        assert_eq!(monitor.call("MONITOR").text(), "OK");
        waiter.send_raw(&encode(&["BLPOP", "list", "0"])).unwrap();
        // What this asks is not shown.
        until("it waits", || client.call(&format!("CLIENT LIST ID {id}")).text().contains(" flags=b "));
        client.call("RPUSH list x");
        assert_eq!(waiter.read().unwrap().items().len(), 2);
        client.call("PING");
        for command in ["\"BLPOP\" \"list\" \"0\"", "\"RPUSH\" \"list\" \"x\"", "\"PING\""] {
            let shown = monitor.read().unwrap().text();
            assert!(shown.ends_with(command), "{}: {shown}", kind.title());
        }
    }
}

/// What MONITOR shows of commands, without the times and addresses at the beginning of its lines.
#[test]
fn monitor_shows_what_runs_and_no_passwords() {
    let shown = [
        "[0 A] \"PING\"",
        "[0 A] \"SET\" \"k\" \"a\\\"b\\r\\n\\x01\\xc3\\\\\"",
        "[0 A] \"LPUSH\" \"k\" \"x\"",
        "[0 A] \"MULTI\"",
        "[0 A] \"SET\" \"a\" \"1\"",
        "[0 A] \"INCR\" \"k\"",
        "[0 A] \"EXEC\"",
        "[0 A] \"EVAL\" \"return redis.call('get', KEYS[1])\" \"1\" \"k\"",
        "[0 lua] \"get\" \"k\"",
        "[0 A] \"EVALSHA\" \"x\" \"0\"",
        "[0 A] \"AUTH\" \"(redacted)\"",
        "[0 A] \"HELLO\" \"2\" \"AUTH\" \"(redacted)\" \"(redacted)\"",
        "[0 A] \"HELLO\" \"2\" \"SETNAME\" \"me\" \"AUTH\" \"(redacted)\" \"(redacted)\"",
        "[0 A] \"HELLO\" \"2\" \"SETNAME\" \"auth\" \"AUTH\" \"(redacted)\" \"(redacted)\"",
        "[3 A] \"SELECT\" \"3\"",
        "[3 A] \"BLPOP\" \"none\" \"0.01\"",
        "[3 A] \"DISCARD\"",
        "[0 A] \"RESET\"",
        "[0 A] \"PING\" \"end\"",
    ];
    for kind in [Kind::Redis82, Kind::Tarn, Kind::ScaledTarn] {
        let Some(server) = Server::start(kind, &[]) else {
            notice(&format!("skipped: no {} on this machine", kind.title()));
            continue;
        };
        let (mut monitor, mut client) = (server.client(), server.client());
        assert_eq!(monitor.call("MONITOR").text(), "OK");
        client.call("PING");
        client.try_call(&[&b"SET"[..], b"k", b"a\"b\r\n\x01\xc3\\"]).unwrap();
        for command in [
            "LPUSH k x",
            "NOSUCH x",
            "GET",
            "MULTI",
            "SET a 1",
            "INCR k",
            "EXEC",
            "CONFIG GET maxmemory",
            "CLIENT LIST",
        ] {
            client.call(command);
        }
        client.try_call(&["EVAL", "return redis.call('get', KEYS[1])", "1", "k"]).unwrap();
        for command in [
            "EVALSHA x 0",
            "AUTH secret",
            "HELLO 2 AUTH default secret",
            "HELLO 2 SETNAME me AUTH default secret",
            "HELLO 2 SETNAME auth AUTH default secret",
            "ACL SETUSER user >secret",
            "SELECT 3",
            "BLPOP none 0.01",
            "DISCARD",
            "RESET",
            "PING end",
        ] {
            client.call(command);
        }
        for line in shown {
            let got = monitor.read().unwrap().text();
            let (_, got) = got.split_once(' ').unwrap();
            let (db, rest) = got.split_once(' ').unwrap();
            let by = if rest.starts_with("lua") { "lua" } else { "A" };
            let got = format!("{db} {by}{}", &rest[rest.find(']').unwrap()..]);
            assert_eq!(got, line, "{}", kind.title());
        }
    }
}

/// How often the threads of a process have gone to sleep, by their names.
fn slept(pid: u32) -> std::collections::BTreeMap<String, u64> {
    let mut slept = std::collections::BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread = thread.unwrap().path();
        let status = text(&thread.join("status"));
        let times = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let times = times.and_then(|times| times.trim().parse::<u64>().ok()).unwrap_or(0);
        *slept.entry(text(&thread.join("comm")).trim().to_owned()).or_default() += times;
    }
    slept
}

/// How the system schedules the threads of a process whose names begin so, and how nice they are: the 41st field and the 19th,
/// the 39th and the 17th behind the name in brackets.
#[cfg(target_os = "linux")]
fn schedules(pid: u32, name: &str) -> Vec<(i32, i32)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap().path());
    let named = threads.filter(|thread| text(&thread.join("comm")).starts_with(name));
    let schedule = |stat: &str| {
        let field = |n: usize| stat.rsplit_once(") ")?.1.split(' ').nth(n)?.parse().ok();
        Some((field(38)?, field(16)?))
    };
    named.map(|thread| schedule(&text(&thread.join("stat"))).unwrap()).collect()
}

#[cfg(target_os = "linux")]
fn policies(pid: u32, name: &str) -> Vec<i32> {
    schedules(pid, name).into_iter().map(|(policy, _)| policy).collect()
}

/// Who has a core to itself interrupts what runs there in the background; of more threads than cores none interrupts another, or
/// a client amid its requests.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_outnumber_the_cores_interrupt_nobody() {
    const MOST: usize = 128;
    let cores = std::thread::available_parallelism().unwrap().get();
    for threads in [cores.min(MOST), (cores + 1).min(MOST)] {
        let server = Server::start(Kind::Tarn, &["--io-threads", &threads.to_string()]).unwrap();
        // One of each thread, which is what it will be before it serves anybody.
        (0..threads).for_each(|_| assert_eq!(server.client().call("PING").text(), "PONG"));
        let pid = server.pid().unwrap();
        let policy = if threads > cores { libc::SCHED_BATCH } else { policies(pid, "tarn")[0] };
        assert_eq!(policies(pid, "net-"), vec![policy; threads]);
    }
}

/// However many readers the disk answers at once, who serves what is in memory goes on with it.
#[test]
#[cfg(target_os = "linux")]
fn readers_interrupt_nobody_and_yield_to_who_serves() {
    let server = Server::start(Kind::Tarn, &[]).unwrap();
    let pid = server.pid().unwrap();
    let (_, nice) = schedules(pid, "tarn")[0];
    until("the readers have begun", || schedules(pid, "read-") == vec![(libc::SCHED_BATCH, nice + 5); 32]);
}

/// One thread looks every hundredth of a second whether there is something to do; the others sleep until it wakes them.
#[test]
fn one_thread_of_an_idle_server_looks_often() {
    let server = Server::start(Kind::Tarn, &["--shards", "4"]).unwrap();
    let pid = server.pid().unwrap();
    server.client().call("SET k v");
    // The start is over by then.
    until("the watch looks", || slept(pid)["watch"] >= 50);
    let before = slept(pid);
    until("the watch looks", || slept(pid)["watch"] >= before["watch"] + 200);
    let after = slept(pid);
    let times = |name: &str| after[name] - before[name];
    let looked = times("watch");
    for name in ["flush", "free", "compact", "log"] {
        assert!(times(name) < looked / 10, "{name} went to sleep {} times, watch {looked} times", times(name));
    }
    for name in ["shard-0", "shard-3"] {
        assert!(times(name) < looked / 5, "{name} went to sleep {} times, watch {looked} times", times(name));
    }
}
