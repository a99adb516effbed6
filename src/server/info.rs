//! INFO: sections of `name:value` lines, under the names that Redis gives them.
//!
//! What Redis counts and this server has no such thing for is 0. The shards' counters are read under a lease of all of
//! them; while the log is replayed there is none, and they read as zero. What only this server has stands in the
//! section `Tarn`.

mod sections;

use crate::codec::NsId;
use crate::handler::server::Totals;
use crate::handler::{Args, Command, Ctx, Group, Reply, Result, Server, Session, flags};
use crate::shard::actor::ShardSet;
use crate::shard::engine::gate;
use crate::shard::memory::core::{Core, CoreStats};
use crate::shard::memory::table::Index;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

/// A section: its name as given, whether plain INFO shows it, and what writes it.
struct Section {
    name: &'static str,
    by_default: bool,
    write: fn(&Facts<'_>, &mut Text),
}

const fn section(name: &'static str, by_default: bool, write: fn(&Facts<'_>, &mut Text)) -> Section {
    Section { name, by_default, write }
}

/// In Redis's order; what follows it is this server's own.
const SECTIONS: &[Section] = &[
    section("Server", true, sections::server),
    section("Clients", true, sections::clients),
    section("Memory", true, sections::memory),
    section("Persistence", true, sections::persistence),
    section("Threads", true, sections::threads),
    section("Stats", true, sections::stats),
    section("Replication", true, sections::replication),
    section("CPU", true, sections::cpu),
    section("Modules", true, |_, _| ()),
    section("Commandstats", false, sections::commandstats),
    section("Errorstats", true, sections::errorstats),
    section("Latencystats", false, |_, _| ()),
    section("Cluster", true, sections::cluster),
    section("Keyspace", true, sections::keyspace),
    section("Keysizes", true, |_, _| ()),
    section("Tarn", true, sections::tarn),
];

/// The text under way.
struct Text(String);

impl Text {
    fn line(&mut self, name: impl Display, value: impl Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
}

/// What the sections are written from, read once.
struct Facts<'a> {
    server: &'a Server,
    now_ms: u64,
    totals: Totals,
    shards: Shards,
    /// Namespaces that have keys: name, keys, keys with a time, hashes of which fields have one (see [`Timed`]).
    keys: BTreeMap<Vec<u8>, [u64; 3]>,
}

/// Sums over the leased shards.
#[derive(Default)]
struct Shards {
    stats: CoreStats,
    dirty_objects: u64,
    table_objects: u64,
    /// Keys that are blind.
    blind: u64,
    /// Keys that are held by commands in slices, and commands that wait for one.
    busy: u64,
    waiting: u64,
    /// Keys that clients watch.
    watched: u64,
    /// Keys that clients wait for, and those of which they hear the absence, too.
    blocking: u64,
    blocking_on_none: u64,
    cold_bytes: u64,
    cold_entries: u64,
    garbage: u64,
    dead_namespaces: u64,
    timed: Timed,
    /// Hashes of which fields have a time.
    timed_fields: Timed,
    keys: BTreeMap<NsId, u64>,
    /// Libraries and functions, and their bytes.
    libraries: ((usize, usize), usize),
}

/// Keys in memory that have a time.
#[derive(Default)]
struct Timed {
    all: u64,
    /// Of the first of those, how many by namespace.
    sample: BTreeMap<NsId, u64>,
}

/// Keys with a time that are looked at in each shard, to tell how they divide among the namespaces.
const SAMPLE: usize = 256;

impl Timed {
    fn add(&mut self, core: &Core, keys: impl ExactSizeIterator<Item = Index>) {
        self.all += keys.len() as u64;
        for index in keys.take(SAMPLE) {
            *self.sample.entry(core.table.at(index).ns).or_default() += 1;
        }
    }

    /// Those of a namespace.
    fn of(&self, ns: NsId) -> u64 {
        let sampled: u64 = self.sample.values().sum();
        let of_ns = self.sample.get(&ns).copied().unwrap_or(0);
        (self.all * of_ns).checked_div(sampled).unwrap_or(0)
    }
}

impl Shards {
    fn add(&mut self, core: &Core) {
        let (sum, stats) = (&mut self.stats, &core.stats);
        sum.keyspace_hits += stats.keyspace_hits;
        sum.keyspace_misses += stats.keyspace_misses;
        sum.expired_keys += stats.expired_keys;
        sum.expired_fields += stats.expired_fields;
        sum.evicted_objects += stats.evicted_objects;
        sum.cold_reads += stats.cold_reads;
        sum.stored_reads += stats.stored_reads;
        sum.rests += stats.rests;
        self.busy += core.busy.len() as u64;
        self.waiting += core.busy.waiting() as u64;
        self.watched += core.watched.len() as u64;
        self.blocking += core.blocked.len() as u64;
        self.blocking_on_none += core.blocked.hearing() as u64;
        sum.passing_reads += stats.passing_reads;
        sum.blind_writes += stats.blind_writes;
        self.dirty_objects += (core.dirty.len() + core.in_flight.len()) as u64;
        self.table_objects += core.table.len() as u64;
        self.blind += core.blind.len() as u64;
        self.cold_bytes += core.cold.bytes();
        self.cold_entries += core.cold.len();
        self.garbage += core.garbage.len();
        self.libraries = (core.libraries.counts(), core.libraries.bytes());
        self.dead_namespaces = self.dead_namespaces.max(core.dead_names.len());
        self.timed.add(core, core.expiry.iter().map(|&(_, index)| index));
        self.timed_fields.add(core, core.fields.iter());
        for &ns in core.counts.keys() {
            *self.keys.entry(ns).or_default() += core.count_about(ns);
        }
    }
}

impl<'a> Facts<'a> {
    fn gather(ctx: &Ctx<'a, '_>) -> Facts<'a> {
        let mut shards = Shards::default();
        ctx.lease.iter().for_each(|core| shards.add(core));
        let names = ctx.lease.first().map_or(&ctx.session().names, |core| &core.names);
        let keys = names.map().iter().filter_map(|(name, id)| {
            let keys = shards.keys.get(&id).copied().filter(|keys| *keys > 0)?;
            Some((name.to_vec(), [keys, shards.timed.of(id).min(keys), shards.timed_fields.of(id).min(keys)]))
        });
        let keys = keys.collect();
        let server = ctx.server;
        Facts { server, now_ms: ctx.now_ms, totals: since_reset(server), shards, keys }
    }
}

/// The counters since CONFIG RESETSTAT.
fn since_reset(server: &Server) -> Totals {
    let mut totals = server.totals();
    let before = server.baseline.lock();
    for (now, then) in [
        (&mut totals.accepted, before.accepted),
        (&mut totals.rejected, before.rejected),
        (&mut totals.commands, before.commands),
        (&mut totals.bytes_in, before.bytes_in),
        (&mut totals.bytes_out, before.bytes_out),
        (&mut totals.errors, before.errors),
        (&mut totals.reads, before.reads),
        (&mut totals.writes, before.writes),
        (&mut totals.over_input, before.over_input),
        (&mut totals.over_output, before.over_output),
    ] {
        *now = now.saturating_sub(then);
    }
    for (now, then) in totals.calls.iter_mut().flatten().zip(before.calls.iter().flatten()) {
        *now = now.saturating_sub(*then);
    }
    for (code, then) in &before.error_codes {
        if let Some(now) = totals.error_codes.get_mut(code) {
            *now = now.saturating_sub(*then);
        }
    }
    totals
}

/// Which sections these words ask for; a word that names none asks for nothing.
fn wanted(section: &Section, words: Args<'_>) -> bool {
    if words.is_empty() {
        return section.by_default;
    }
    words.iter().any(|word| match word.to_ascii_lowercase().as_slice() {
        b"default" => section.by_default,
        b"all" | b"everything" => true,
        name => section.name.as_bytes().eq_ignore_ascii_case(name),
    })
}

fn info(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let facts = Facts::gather(ctx);
    let mut text = Text(String::with_capacity(8 << 10));
    for section in SECTIONS.iter().filter(|section| wanted(section, args.slice(1))) {
        if !text.0.is_empty() {
            text.0.push_str("\r\n");
        }
        let _ = write!(text.0, "# {}\r\n", section.name);
        (section.write)(&facts, &mut text);
    }
    out.verbatim(text.0.as_bytes(), "txt");
    Ok(())
}

/// All shards, but none while the log is replayed: the replay holds them.
pub(super) fn shards_unless_loading(server: &Server, _: &Session, _: Args<'_>) -> Option<ShardSet> {
    let loading = server.engine.gate.load(Ordering::Relaxed) & gate::LOADING != 0;
    loading.then(ShardSet::new)
}

/// The rows of this file.
pub const COMMANDS: &[Command] =
    &[Command::new("info", info, -1, flags::LOADING | flags::STALE | flags::DANGEROUS, Group::Server)
        .route_by(shards_unless_loading)
        .help("1.0.0", "Describes the server: its state and its counters.")
        .syntax("[section [section ...]]", "O(1)")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;

    #[test]
    fn sections_by_name() {
        let ask = |words: &[&str]| -> Vec<&str> {
            let words: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
            SECTIONS.iter().filter(|s| wanted(s, words.as_args())).map(|s| s.name).collect()
        };
        assert_eq!(ask(&["cpu", "SERVER", "x"]), ["Server", "CPU"]);
        assert_eq!(ask(&["x"]), Vec::<&str>::new());
        assert_eq!(ask(&[]), ask(&["default"]));
        assert!(!ask(&[]).contains(&"Commandstats"));
        assert_eq!(ask(&["all"]).len(), SECTIONS.len());
        assert_eq!(ask(&["default", "commandstats"]).len(), ask(&[]).len() + 1);
    }
}
