//! Runs the files of `tests/scripts/` on Tarn, in RESP2 and RESP3, on a Tarn that does with few what it else does with many, and
//! on the real servers that prove what they expect.
//!
//! `TARN_SCRIPTS_RECORD=1 cargo test --test scripts real::` writes the real servers' replies into the files, wherever they are
//! not the ones expected; they are to be reviewed before they are committed. What a machine without those servers does: see
//! `common::server`.

mod common;

use common::script::{Script, folder};
use common::server::{Kind, notice};

fn on_tarn(kind: Kind, name: &str) {
    if let Err(text) = Script::load(name).check(kind) {
        panic!("{text}");
    }
}

fn on_real_servers(name: &str) {
    let script = Script::load(name);
    if std::env::var_os("TARN_SCRIPTS_RECORD").is_some_and(|v| v == "1") {
        script.record();
        return;
    }
    for kind in [Kind::Redis82, Kind::Valkey] {
        if !script.concerns(kind) {
            continue;
        }
        if kind.binary().is_none() {
            notice(&format!("skipped: no {} on this machine to prove {name}", kind.title()));
        } else if let Err(text) = script.check(kind) {
            panic!("{text}");
        }
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Tarn answers as expected.
        mod tarn {
            use super::Kind;
            $(#[test] fn $name() { super::on_tarn(Kind::Tarn, stringify!($name)); })*
        }

        /// What it does with many it does with few.
        mod scaled {
            use super::Kind;
            $(#[test] fn $name() { super::on_tarn(Kind::ScaledTarn, stringify!($name)); })*
        }

        /// The servers that Tarn follows answer as expected.
        mod real {
            $(#[test] fn $name() { super::on_real_servers(stringify!($name)); })*
        }
    };
}

scripts! {
    acl
    acl_rules
    bitfield
    bitmap
    bitop
    blocking
    commandlog
    connection
    debug
    dump
    events
    expiry
    function
    geo
    hash
    hash_expiry
    hash_scan
    hash_unswept
    hyperloglog
    keys
    list_edit
    list_encoding
    list_ends
    list_read
    many
    latency
    migrate
    monitor
    protocol
    pubsub
    scan
    script
    server
    set_algebra
    set_encodings
    sets
    slowlog
    sort
    stream
    stream_claim
    stream_groups
    stream_info
    stream_trim
    string_numbers
    string_options
    string_ranges
    strings
    table
    tracking
    transaction
    watch
    zset
    zset_combine
    zset_ranges
}

#[test]
fn every_file_is_run() {
    let mut found: Vec<String> = std::fs::read_dir(folder())
        .unwrap_or_else(|e| panic!("{}: {e}", folder().display()))
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_suffix(".txt").map(str::to_owned))
        .collect();
    found.sort();
    let mut named = NAMES.to_vec();
    named.sort_unstable();
    assert_eq!(found, named);
}
