//! The documents keep their word: every command line in them is run, every session is what redis-cli shows, every link leads somewhere.
//!
//! A block of code says by the words behind its ticks how:
//!
//! | words | the block is |
//! |---|---|
//! | `sh` | run by bash, with a Tarn on port 6379 |
//! | `sh redis` | the same, with a Redis on port 6390 besides |
//! | `sh start` | run without either: it starts what it needs |
//! | `sh needs=program` | left out where the machine lacks the program, and always if it is docker or cargo: then only read by bash |
//! | `session` | what redis-cli shows, line by line |
//! | others | not run |
//!
//! Each document has a directory of its own, and a network of its own as far as ports go.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::server::{Kind, notice};

/// Never run: they would build the project within its tests, or want a service.
const ONLY_READ: [&str; 3] = ["cargo", "cargo-deb", "docker"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn documents() -> Vec<PathBuf> {
    let of = |dir: PathBuf| dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut found = [of(root().to_owned()), of(root().join("docs"))].concat();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    found.sort();
    found
}

struct Block {
    line: usize,
    words: Vec<String>,
    text: String,
}

fn blocks(path: &Path) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for (line, text) in std::fs::read_to_string(path).unwrap().lines().enumerate() {
        match (text.strip_prefix("```"), open) {
            (Some(words), false) => {
                let words = words.split(' ').map(str::to_owned).collect();
                found.push(Block { line: line + 1, words, text: String::new() });
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => writeln!(found.last_mut().unwrap().text, "{text}").unwrap(),
            (None, false) => {}
        }
    }
    assert!(!open, "{}: a block is not closed", path.display());
    found
}

fn has(program: &str) -> bool {
    let found = |dir: PathBuf| dir.join(program).is_file();
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(found))
}

/// Runs a script with ports of its own; `None` where this user may not have them.
fn run(script: &str, dir: &Path) -> Option<std::process::Output> {
    let apart = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--pid", "--fork", "--kill-child", "--map-root-user"]);
        unshare.args(["bash", "-c", command]).current_dir(dir).stdin(Stdio::null());
        unshare
    };
    if !apart("ip link set lo up").output().is_ok_and(|output| output.status.success()) {
        notice("skipped: no network of its own can be had here (unshare, ip)");
        return None;
    }
    let bin = dir.join(".bin");
    std::fs::create_dir_all(&bin).unwrap();
    let _ = std::os::unix::fs::symlink(Kind::Tarn.binary().unwrap(), bin.join("tarn"));
    std::fs::copy(root().join("tarn.conf"), dir.join("tarn.conf")).unwrap();
    let path = format!("{}:{}:/usr/sbin:/sbin", bin.display(), std::env::var("PATH").unwrap());
    Some(apart(&format!("ip link set lo up\n{script}")).env("PATH", path).output().unwrap())
}

/// What comes before a block that wants servers.
fn with_servers(redis: bool) -> String {
    let mut script = "tarn --dir .data >.tarn.log 2>&1 &\n".to_owned();
    let mut ports = vec![6379];
    if redis {
        script += "redis-server --port 6390 --save '' --dir . >.redis.log 2>&1 &\n";
        ports.push(6390);
    }
    for port in ports {
        writeln!(script, "until redis-cli -p {port} DBSIZE 2>/dev/null | grep -q '^[0-9]'; do sleep 0.05; done")
            .unwrap();
    }
    script
}

#[test]
fn every_command_line_runs() {
    let mut count = 0;
    for document in documents() {
        let dir = tempfile::tempdir().unwrap();
        for block in blocks(&document).iter().filter(|block| block.words[0] == "sh") {
            let place = format!("{}:{}", document.display(), block.line);
            count += 1;
            let needs = block.words.iter().find_map(|word| word.strip_prefix("needs="));
            if needs.is_some_and(|program| ONLY_READ.contains(&program)) {
                let read = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
                assert!(read.status.success(), "{place}: {read:?}");
                continue;
            }
            let is = |word: &str| block.words.iter().any(|known| known == word);
            if let Some(program) = needs.filter(|program| !has(program)) {
                notice(&format!("skipped: {place} needs {program}"));
                continue;
            }
            if !has("redis-cli") || is("redis") && !has("redis-server") {
                notice(&format!("skipped: {place} needs Redis"));
                continue;
            }
            let servers = if is("start") { String::new() } else { with_servers(is("redis")) };
            let script = format!("{servers}set -eo pipefail\nTIMEFORMAT=\n{}", block.text);
            let Some(output) = run(&script, dir.path()) else { return };
            assert!(output.status.success(), "{place}:\n{}\n{output:?}", block.text);
        }
    }
    assert!(count > 10, "{count}");
}

/// Prompt and command of a line of a session.
fn prompt(line: &str) -> Option<(&str, &str)> {
    line.split_once("> ").filter(|(head, _)| head.starts_with("127.0.0.1:6379"))
}

#[test]
fn sessions_are_as_redis_cli_shows_them() {
    let mut count = 0;
    for document in documents() {
        for block in blocks(&document).iter().filter(|block| block.words[0] == "session") {
            let commands: String =
                block.text.lines().filter_map(|line| Some(prompt(line)?.1.to_owned() + "\n")).collect();
            let shown: Vec<&str> = block.text.lines().filter(|line| prompt(line).is_none()).collect();
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("commands"), commands).unwrap();
            let script = with_servers(false) + "redis-cli --no-raw < commands";
            let Some(output) = run(&script, dir.path()) else { return };
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(text.lines().collect::<Vec<_>>(), shown, "{}:{}", document.display(), block.line);
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn every_link_leads_somewhere() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") {
                continue;
            }
            let path = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(path.exists(), "{}: {target}", document.display());
            if !anchor.is_empty() {
                let slug = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
                let headings = std::fs::read_to_string(&path).unwrap();
                let found = headings.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
                assert!(found, "{}: {target}", document.display());
            }
        }
    }
}

/// What a table of long tests calls: targets that there are.
#[test]
fn long_tests_exist() {
    let text = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let named = |flag: &str| -> Vec<String> {
        let rest = text.split(flag).skip(1);
        rest.map(|rest| rest.split([' ', '`']).next().unwrap().to_owned()).collect()
    };
    let (tests, benches) = (named("--test "), named("--bench "));
    assert!(tests.len() > 5 && benches.len() > 2, "{tests:?} {benches:?}");
    for test in tests {
        assert!(root().join(format!("tests/{test}.rs")).exists(), "{test}");
    }
    for bench in benches {
        assert!(["", "/main"].iter().any(|end| root().join(format!("benches/{bench}{end}.rs")).exists()), "{bench}");
    }
}
