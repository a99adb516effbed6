//! Directives as an operator uses them: listeners that move, files written for Redis, the daemon.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

use common::resp::Client;
use common::server::{Kind, Server, free_port, notice};
use common::wait::until;

/// Each server that is here, Redis as the proof.
fn each(args: &[&str], check: impl Fn(Kind, Server)) {
    for kind in [Kind::Redis82, Kind::Tarn] {
        match Server::start(kind, args) {
            Some(server) => check(kind, server),
            None => notice(&format!("skipped: no {} on this machine", kind.title())),
        }
    }
}

/// Whether somebody listens there, who has loaded the data: Tarn answers PING before.
fn serves(port: u16) -> bool {
    Client::connect(port).is_ok_and(|mut client| client.try_call(&["DBSIZE"]).is_ok_and(|size| size.int().is_some()))
}

fn refused(name: &str, why: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
}

#[test]
fn the_port_moves_while_connections_live_on() {
    each(&[], |kind, server| {
        let mut client = server.client();
        let (old, new) = (server.port(), free_port());
        assert_eq!(client.call(&format!("CONFIG SET port {new}")).text(), "OK", "{kind:?}");
        assert!(serves(new) && !serves(old), "{kind:?}");
        assert_eq!(client.call("CONFIG GET port").items()[1].text(), new.to_string());
        assert!(client.call("INFO server").text().contains(&format!("tcp_port:{new}\r\n")));

        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken_port = taken.local_addr().unwrap().port();
        let said = client.call(&format!("CONFIG SET port {taken_port}"));
        assert_eq!(said.text(), refused("port", "Unable to listen on this port. Check server logs."), "{kind:?}");
        assert!(serves(new), "{kind:?}: as before");
        assert_eq!(client.call("CONFIG GET port").items()[1].text(), new.to_string());

        assert_eq!(client.call("CONFIG SET port 0").text(), "OK");
        assert!(!serves(new), "{kind:?}");
        assert_eq!(client.call(&format!("CONFIG SET port {old}")).text(), "OK");
        assert!(serves(old), "{kind:?}");
    });
}

#[test]
fn addresses_come_and_go() {
    each(&["--protected-mode", "no"], |kind, server| {
        let mut client = server.client();
        let loopbacks =
            |port| ["127.0.0.1", "127.0.0.2"].map(|host| std::net::TcpStream::connect((host, port)).is_ok());
        let port = server.port();
        assert_eq!(loopbacks(port), [true, false], "{kind:?}");
        // What is already listened on stands in the way of every address, and goes first.
        for (bind, reached) in [
            ("*", [true, true]),
            ("127.0.0.2", [false, true]),
            ("127.0.0.1 127.0.0.2", [true, true]),
            ("127.0.0.1 -192.0.2.1", [true, false]),
            ("localhost", [true, false]),
        ] {
            assert_eq!(client.try_call(&["CONFIG", "SET", "bind", bind]).unwrap().text(), "OK", "{kind:?} {bind}");
            assert_eq!(loopbacks(port), reached, "{kind:?} {bind}");
        }
        for bind in ["192.0.2.1", "127.0.0.2 nowhere.invalid"] {
            let said = client.try_call(&["CONFIG", "SET", "bind", bind]).unwrap();
            assert_eq!(said.text(), refused("bind", "Failed to bind to specified addresses."), "{kind:?} {bind}");
            assert_eq!(loopbacks(port), [true, false], "{kind:?}: as before {bind}");
        }
        let other = free_port();
        let both = ["CONFIG", "SET", "bind", "127.0.0.2", "port", &other.to_string()];
        assert_eq!(client.try_call(&both).unwrap().text(), "OK");
        assert_eq!((loopbacks(port), loopbacks(other)), ([false, false], [false, true]), "{kind:?}");
    });
}

/// A thread that looks for work all the time does not sleep between two commands.
#[test]
fn busy_poll_begins_and_ends_while_it_serves() {
    let server = Server::tarn(&["--io-threads", "1"]);
    let mut client = server.client();
    let sleeps = |client: &mut Client| {
        let before = client.info("stats", "eventloop_cycles");
        (0..10).for_each(|_| assert_eq!(client.call("PING").text(), "PONG"));
        client.info("stats", "eventloop_cycles") - before
    };
    for (span, expected) in [("20s", 0..1), ("0", 10..100)] {
        assert_eq!(client.call(&format!("CONFIG SET busy-poll {span}")).text(), "OK");
        until(span, || expected.contains(&sleeps(&mut client)));
    }
}

/// Ten clients that connect all the time, while the port goes to and fro: whoever has got in is served.
#[test]
fn who_connects_meanwhile_is_served_or_refused() {
    let server = Server::tarn(&[]);
    let (mut client, ports) = (server.client(), [server.port(), free_port()]);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..10 {
            let (end, ports) = (&end, &ports);
            scope.spawn(move || {
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    if let Ok(mut client) = Client::connect(ports[n % 2]) {
                        let _ = client.try_call(&["PING"]);
                    }
                }
            });
        }
        for round in 0..50 {
            let port = ports[(round + 1) % 2];
            assert_eq!(client.call(&format!("CONFIG SET port {port}")).text(), "OK");
            assert!(serves(port));
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    until("all have left", || client.call("CLIENT LIST").text().lines().count() == 1);
}

/// A start that is to end by itself, with this on standard input.
fn run(kind: Kind, dir: &Path, args: &[&str], stdin: &str) -> Option<Output> {
    let mut command = Command::new(kind.binary()?);
    command.args(args).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

/// Ends the process whose id stands in this file.
fn end(pid_file: &Path) {
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let sent = Command::new("kill").args(["-TERM", pid.trim()]).status();
    assert!(sent.as_ref().is_ok_and(ExitStatus::success), "{pid} {sent:?}");
    until("the pid file goes", || !pid_file.exists());
}

/// With nothing changed but the port and what would be written outside of the test.
#[test]
fn the_configuration_file_of_redis_8_2_starts_it() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/redis-8.2.conf");
    let lines = std::fs::read_to_string(file).unwrap();
    let names: Vec<&str> = lines
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.is_empty() && !["port", "pidfile", "dir", "appendonly"].contains(name))
        .collect();
    assert!(names.len() > 65, "{}", names.len());
    let mut seen: Vec<Vec<String>> = Vec::new();
    for kind in [Kind::Redis82, Kind::Tarn] {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let Some(binary) = kind.binary() else {
            notice(&format!("skipped: no {} on this machine", kind.title()));
            continue;
        };
        let port = free_port();
        let mut command = Command::new(binary);
        command.arg(file).args(["--port", &port.to_string(), "--pidfile"]).arg(&pid_file).current_dir(dir.path());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("it serves", || serves(port));
        let mut client = Client::connect(port).unwrap();
        let value = |name: &&str| client.call(&format!("CONFIG GET {name}")).items()[1].text();
        seen.push(names.iter().map(value).collect());
        end(&pid_file);
        assert!(child.wait().unwrap().success(), "{kind:?}");
    }
    for (at, name) in names.iter().enumerate() {
        assert_eq!(seen.first().map(|values| &values[at]), seen.last().map(|values| &values[at]), "{name}");
    }
}

/// Debian's, which has it run in the background.
#[test]
fn debians_configuration_file_starts_it_in_the_background() {
    let file = Path::new("/etc/redis/redis.conf");
    if std::fs::read(file).is_err() {
        notice("skipped: no /etc/redis/redis.conf on this machine that this user may read");
        return;
    }
    for kind in [Kind::Redis70, Kind::Tarn] {
        let dir = tempfile::tempdir().unwrap();
        let (pid_file, log, port) = (dir.path().join("pid"), dir.path().join("redis.log"), free_port());
        let args = [
            file.to_str().unwrap(),
            "--port",
            &port.to_string(),
            "--dir",
            dir.path().to_str().unwrap(),
            "--pidfile",
            pid_file.to_str().unwrap(),
            "--logfile",
            log.to_str().unwrap(),
        ];
        let Some(output) = run(kind, dir.path(), &args, "") else {
            notice(&format!("skipped: no {} on this machine", kind.title()));
            continue;
        };
        assert!(output.status.success(), "{kind:?}: {output:?}");
        until("it serves", || serves(port));
        let mut client = Client::connect(port).unwrap();
        assert_eq!(client.call("SET k v").text(), "OK");
        assert_eq!(client.call("CONFIG GET daemonize").items()[1].text(), "yes");
        let pid: u32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        assert_eq!(client.info("server", "process_id"), u64::from(pid));
        // Its own session, and no stream of the shell's.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let session = stat.rsplit(')').next().unwrap().split(' ').nth(4).unwrap().to_owned();
        assert_eq!(session, pid.to_string(), "{kind:?}");
        for stream in 0..3 {
            let leads_to = std::fs::read_link(format!("/proc/{pid}/fd/{stream}")).unwrap();
            assert_eq!(leads_to, Path::new("/dev/null"), "{kind:?}");
        }
        let wrote = || std::fs::read_to_string(&log).unwrap_or_default();
        until("its log says so", || wrote().contains("Ready to accept connections"));
        drop(client);
        end(&pid_file);
    }
}

#[test]
fn file_standard_input_and_command_line_in_this_order() {
    for kind in [Kind::Redis82, Kind::Tarn] {
        let dir = tempfile::tempdir().unwrap();
        let (port, pid_file) = (free_port(), dir.path().join("pid"));
        let text = format!("port {port}\ntimeout 1\nhz 11\nslowlog-max-len 1\nsave \"\"\n");
        std::fs::write(dir.path().join("a.conf"), text).unwrap();
        let pid = pid_file.to_str().unwrap();
        let args = ["a.conf", "--daemonize", "yes", "--slowlog-max-len", "3", "--pidfile", pid, "-"];
        let Some(output) = run(kind, dir.path(), &args, "hz 12\nslowlog-max-len 2\n") else { continue };
        assert!(output.status.success(), "{kind:?}: {output:?}");
        until("it serves", || serves(port));
        let mut client = Client::connect(port).unwrap();
        let mut value = |name: &str| client.call(&format!("CONFIG GET {name}")).items()[1].text();
        let values = ["timeout", "hz", "slowlog-max-len"].map(&mut value);
        assert_eq!(values, ["1", "12", "3"], "{kind:?}");
        drop(client);
        end(&pid_file);
    }
}

#[test]
fn commands_have_the_names_that_they_are_given() {
    let hidden = "b840fc02d524045429941cc15f59e41cb7be6c52";
    let args = ["--rename-command", "CONFIG", hidden, "--rename-command", "FLUSHALL", ""];
    each(&[&args[..], &["--rename-command", "get", "GEtX"]].concat(), |kind, server| {
        let mut client = server.client();
        let mut call = |command: &str| client.call(command).text();
        for (command, reply) in [
            ("SET k v", "OK"),
            ("getX k", "v"),
            // Of the command that ran last Redis knows the old name as well.
            ("PING", "PONG"),
            ("GET k", "ERR unknown command 'GET', with args beginning with: 'k' "),
            ("CONFIG GET port", "ERR unknown command 'CONFIG', with args beginning with: 'GET' 'port' "),
            ("FLUSHALL", "ERR unknown command 'FLUSHALL', with args beginning with: "),
            ("getx", "ERR wrong number of arguments for 'get' command"),
            ("MULTI", "OK"),
            ("GETX k", "QUEUED"),
            ("DISCARD", "OK"),
        ] {
            assert_eq!(call(command), reply, "{kind:?} {command}");
        }
        if kind == Kind::Tarn {
            assert_eq!(call("GETX k") + &call("GET k")[..24], "vERR unknown command 'GET");
        }
        let scripts = ["return redis.call('getx','k')", "return redis.call('get','k')"];
        let mut eval = |script: &str| client.try_call(&["EVAL", script, "1", "k"]).unwrap().text();
        assert_eq!(eval(scripts[0]), "v", "{kind:?}");
        assert!(eval(scripts[1]).starts_with("ERR Unknown Redis command called from script"), "{kind:?}");
        let secret = client.call(&format!("{hidden} GET port"));
        assert_eq!(secret.items()[1].text(), server.port().to_string(), "{kind:?}");
        let names = client.call("COMMAND LIST");
        let commands = names.items().iter().filter(|item| !item.text().contains('|')).count();
        let has = |name: &str| names.items().iter().any(|item| item.text() == name);
        assert_eq!([has("get"), has("flushall")], [true, false], "{kind:?}");
        assert_eq!(client.call("COMMAND COUNT").int(), Some(commands as i64), "{kind:?}");
        assert_eq!(client.call("COMMAND INFO getx").items()[0].items()[0].text(), "get", "{kind:?}");
        assert!(client.call("COMMAND INFO get").items()[0].is_nil(), "{kind:?}");
    });
}

/// What the words of a refusal have in common with Redis's: the line, and that the process ends.
#[test]
fn a_bad_line_ends_the_start() {
    for kind in [Kind::Redis82, Kind::Tarn] {
        for (line, said) in [
            ("rename-command nosuch x", "No such command in rename-command"),
            ("rename-command get set", "Target command name already exists"),
            ("port x", "argument couldn't be parsed into an integer"),
            ("port ${PORT}", "argument couldn't be parsed into an integer"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("a.conf"), format!("# first\n{line}\n")).unwrap();
            let Some(output) = run(kind, dir.path(), &["a.conf"], "") else { continue };
            assert_eq!(output.status.code(), Some(1), "{kind:?} {line}");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(text.contains(&format!("at line 2\n>>> '{line}'\n{said}")), "{kind:?} {text}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let output = run(Kind::Tarn, dir.path(), &["--maxmemmory", "1gb"], "").unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.ends_with("Bad directive or wrong number of arguments; is 'maxmemory' meant?\n"), "{text}");
}

/// A path that leads nowhere ends the start, and is named.
#[test]
fn a_bad_path_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let port = common::server::free_port().to_string();
    for (name, path, said) in [
        ("logfile", "none/x", "cannot open the log file: No such file or directory"),
        ("logfile", ".", "cannot open the log file: Is a directory"),
        ("unixsocket", "none/sock", "could not bind none/sock: No such file or directory"),
        ("aclfile", "none/acl", "/none/acl': No such file or directory"),
        ("include", "none.conf", "Fatal error, can't open config file 'none.conf': No such file or directory"),
        ("dir", "file", "/file: File exists"),
        ("dir", "/proc/none", "cannot create /proc/none: No such file or directory"),
    ] {
        let args = ["--port", &port, "--dir", "data", &format!("--{name}"), path];
        let output = run(Kind::Tarn, dir.path(), &args, "").unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(output.status.code(), Some(1), "{name} {path}: {text}");
        assert!(text.contains(said), "{name} {path}: {text}");
    }
}
