//! `CONFIG GET` and `CONFIG SET`, held against what a real Redis 8.2.3 answered (`testdata`, made by `record.py`).

#![expect(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::super::settings::{Access, AppendFsync, BindAddr, BindHost, LogLevel, OutputLimit};
use super::super::table::Effect;
use super::*;

/// Defaults that differ from Redis's.
const OWN_DEFAULTS: [(&str, &str); 3] = [("appendonly", "yes"), ("bind", "127.0.0.1 -::1"), ("io-threads", "0")];
/// Tarn's own directives, and Valkey's.
const OWN_DIRECTIVES: [&str; 28] = [
    "backup-dir",
    "background-nice",
    "block-cache-size",
    "busy-poll",
    "commandlog-execution-slower-than",
    "commandlog-large-reply-max-len",
    "commandlog-large-request-max-len",
    "commandlog-reply-larger-than",
    "commandlog-request-larger-than",
    "commandlog-slow-execution-max-len",
    "dirty-budget",
    "disk-reserve",
    "hash-encode-version",
    "log-max-size",
    "log-segment-size",
    "maxdisk",
    "max-namespaces",
    "metadata-cache-size",
    "metrics-bind",
    "metrics-hosts",
    "metrics-port",
    "namespaces",
    "script-hold-limit",
    "set-encode-version",
    "shards",
    "tls-handshake-timeout",
    "tls-max-handshakes",
    "zset-encode-version",
];

fn shown(config: &Config, name: &str) -> String {
    let found = config.get(&[name]);
    assert_eq!(found.len(), 1, "{name}");
    String::from_utf8(found.into_iter().next().unwrap().1).unwrap()
}

fn refusal(config: &Config, pairs: &[(&str, &str)]) -> String {
    let before = config.get(&["*"]);
    let text = config.set(pairs).unwrap_err().text().into_owned();
    assert_eq!(config.get(&["*"]), before);
    text
}

#[test]
fn defaults_equal_redis() {
    let config = Config::default();
    let mut names = BTreeSet::new();
    for line in include_str!("testdata/defaults.tsv").lines() {
        let (name, value) = line.split_once('\t').unwrap();
        names.insert(name);
        let own = OWN_DEFAULTS.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        assert_eq!(shown(&config, name), own.unwrap_or(value), "{name}");
    }
    let ours: BTreeSet<_> = config.get(&["*"]).into_iter().map(|(name, _)| name).collect();
    let extra: Vec<_> = ours.difference(&names).copied().filter(|name| !OWN_DIRECTIVES.contains(name)).collect();
    // They depend on the run that was recorded.
    assert_eq!(extra, ["dir", "port"]);
    assert_eq!(names.difference(&ours).count(), 0);
}

#[test]
fn set_answers_as_redis_does() {
    // A template is refused in Redis when it expands to nothing at that moment; here only its form counts.
    const SKIP: [(&str, &str); 2] = [("proc-title-template", "{unixsocket}"), ("proc-title-template", "{server-mode}")];
    let (mut checked, mut wrong) = (0, Vec::new());
    for line in include_str!("testdata/set.tsv").lines() {
        let [name, value, answer] = line.splitn(3, '\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        // Redis rounds the size of a backlog up when it resizes it; here there is none.
        if SKIP.contains(&(name, value)) || (name == "repl-backlog-size" && answer == "=16384") {
            continue;
        }
        let config = Config::default();
        let ours = match config.set(&[(name, value)]) {
            Ok(_) => format!("={}", shown(&config, name)),
            Err(error) => {
                let head = format!("ERR CONFIG SET failed (possibly related to argument '{name}') - ");
                format!("-{}", error.text().strip_prefix(&head).unwrap())
            }
        };
        checked += 1;
        if ours != answer {
            wrong.push(format!("{name} {value:?}: {ours}, Redis {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 1000);
}

#[test]
fn every_live_directive_and_no_other_is_in_settings() {
    let values = Values::defaults();
    let read = RefCell::new(BTreeSet::new());
    Reader(|name: &str| {
        let (index, row) = table::find(name).unwrap();
        read.borrow_mut().insert(row.name);
        values.get(index)
    })
    .settings();
    let live: BTreeSet<_> = table::all().filter(|row| row.effect == Effect::Live).map(|row| row.name).collect();
    assert_eq!(read.into_inner(), live);
}

#[test]
fn get_takes_globs_in_any_case_and_answers_once() {
    let config = Config::default();
    let names = |patterns: &[&str]| config.get(patterns).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&["timeout", "TIME*", "Timeout"]), ["timeout"]);
    assert_eq!(names(&["foo"]), Vec::<&str>::new());
    assert_eq!(names(&["slave-priority"]), ["slave-priority"]);
    assert_eq!(names(&["*-priority"]), ["replica-priority", "slave-priority"]);
    assert_eq!(names(&["[a]ppendf?ync"]), ["appendfsync"]);
    assert_eq!(names(&["MAXMEM*"]).len(), 5);
}

#[test]
fn set_changes_all_or_nothing() {
    let config = Config::default();
    let generation = config.generation();
    let failed =
        |name: &str, why: &str| format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}");
    for (pairs, text) in [
        (&[("foo", "1")][..], "ERR Unknown option or number of arguments for CONFIG SET - 'foo'".into()),
        (&[("timeout", "1"), ("Foo", "1")], "ERR Unknown option or number of arguments for CONFIG SET - 'Foo'".into()),
        (&[("timeout", "1"), ("TimeOut", "2")], failed("TimeOut", "duplicate parameter")),
        (&[("DaeMonize", "yes")], failed("DaeMonize", "can't set immutable config")),
        (&[("dir", "/tmp")], failed("dir", "can't set protected config")),
        (&[("daemonize", "yes"), ("foo", "1")], failed("daemonize", "can't set immutable config")),
        (&[("timeout", "7"), ("maxmemory", "x")], failed("maxmemory", "argument must be a memory value")),
        (
            &[("tls-protocols", "TLSv1.1")],
            failed("tls-protocols", "TLSv1 and TLSv1.1 are not supported, as they are not safe"),
        ),
        (&[("shards", "32")], failed("shards", "can't set immutable config")),
    ] {
        assert_eq!(refusal(&config, pairs), text);
    }
    assert_eq!(config.generation(), generation);

    let changed =
        config.set(&[("timeout", "7"), ("hz", "10"), ("maxmemory", "64mb"), ("slave-priority", "1")]).unwrap();
    assert_eq!(changed, ["maxmemory", "replica-priority", "timeout"]);
    assert_ne!(config.generation(), generation);
    // Two names of a directive are two parameters, as in Redis; the later one wins.
    config.set(&[("slave-priority", "3"), ("replica-priority", "4")]).unwrap();
    assert_eq!(shown(&config, "slave-priority"), "4");
}

#[test]
fn what_the_server_cannot_do_is_not_set() {
    let config = Config::default();
    let error = config.set_with(&[("timeout", "7"), ("maxclients", "9")], |settings, changed| {
        assert_eq!((settings.maxclients, changed), (9, &["maxclients", "timeout"][..]));
        assert_eq!(config.settings().maxclients, 10_000);
        Err(("maxclients", "too many".into()))
    });
    let text = "ERR CONFIG SET failed (possibly related to argument 'maxclients') - too many";
    assert_eq!(error.unwrap_err().text(), text);
    assert_eq!(shown(&config, "timeout"), "0");
}

#[test]
fn settings_follow() {
    let config = Config::default();
    let before = config.settings();
    assert_eq!((before.port, before.databases, before.appendfsync), (6379, 16, AppendFsync::Everysec));
    assert_eq!(
        before.bind,
        [
            BindAddr { host: BindHost::Named("127.0.0.1".into()), optional: false },
            BindAddr { host: BindHost::Named("::1".into()), optional: true },
        ]
    );
    assert_eq!((before.timeout, before.tcp_keepalive), (None, Some(Duration::from_secs(300))));
    assert_eq!(before.enable_debug_command, Access::No);
    assert!(before.dir.is_absolute() && before.dir.ends_with("data"));
    assert_eq!((&before.logfile, before.unixsocketperm), (&None, None));
    config
        .set(&[
            ("appendfsync", "ALWAYS"),
            ("client-output-buffer-limit", "pubsub 1kb 2 3"),
            ("loglevel", "debug"),
            ("requirepass", "x"),
            ("busy-poll", "20us"),
        ])
        .unwrap();
    let after = config.settings();
    assert_eq!(after.appendfsync, AppendFsync::Always);
    let limit = OutputLimit { hard_bytes: 1024, soft_bytes: 2, soft_time: Duration::from_secs(3) };
    assert_eq!(after.client_output_buffer_limit.pubsub, limit);
    assert!(after.loglevel == LogLevel::Debug && after.loglevel > LogLevel::Notice);
    assert_eq!(after.busy_poll, Duration::from_micros(20));
    assert_eq!((&after.requirepass.0[..], &before.requirepass.0[..]), (&b"x"[..], &b""[..]));
    assert!(format!("{after:?}").contains("requirepass: (secret)"));
}

#[test]
fn bind_forms() {
    let config = Config::load(Source::Stdin("bind * -::* localhost".into()), &[]).unwrap();
    let hosts: Vec<_> = config.settings().bind.iter().map(|addr| (addr.host.clone(), addr.optional)).collect();
    let named = BindHost::Named("localhost".into());
    assert_eq!(hosts, [(BindHost::AnyV4, false), (BindHost::AnyV6, true), (named, false)]);
    let config = Config::load(Source::Stdin("bind \"\"".into()), &[]).unwrap();
    assert!(config.settings().bind.is_empty());
}

#[test]
fn readers_never_see_half_of_a_change() {
    let config = Config::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..500 {
                let n = n.to_string();
                config.set(&[("timeout", &n), ("tcp-keepalive", &n), ("maxclients", &n)]).unwrap();
            }
        });
        scope.spawn(|| {
            while config.generation() < 499 {
                let settings = config.settings();
                let seconds = settings.timeout.map_or(0, |span| span.as_secs());
                assert!(
                    seconds == 0 || (settings.maxclients as u64, settings.tcp_keepalive) == (seconds, settings.timeout)
                );
            }
        });
    });
}
