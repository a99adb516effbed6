//! INFO: sections of `name:value` lines, under the names that Redis gives them, written from a list of [`fact`]s.
//!
//! The facts are read at one moment, [`Facts`], under a lease of all shards; while the log is replayed there is none, and
//! what the shards count reads as zero. What Redis counts and this server has no such thing for is
//! [`nothing`](fact::Kind::Nothing); COMPAT.md lists it. What only this server has stands in the section `Tarn`.
//!
//! | file | sections |
//! |---|---|
//! | `general` | Server, Clients, Threads, Replication, CPU, Cluster |
//! | `memory`, `persistence`, `stats` | Memory, Persistence, Stats |
//! | `commands` | Commandstats, Latencystats, Errorstats, Keyspace |
//! | `tarn` | Tarn |

mod commands;
pub mod fact;
mod general;
mod memory;
mod persistence;
mod stats;
mod tarn;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::codec::NsId;
use crate::config::Settings;
use crate::config::budget::Budget;
use crate::handler::server::Totals;
use crate::handler::session::Client;
use crate::handler::{Args, Command, Ctx, Group, Reply, Result, Server, Session, flags};
use crate::log::Status;
use crate::shard::actor::{Lease, ShardSet};
use crate::shard::engine::{Flushing, gate};
use crate::shard::memory::core::Core;
use crate::shard::memory::names::Names;
use crate::shard::memory::stats::CoreStats;
use crate::shard::memory::table::Index;
use crate::store::Partition;
use crate::util::sys::{self, CpuTime};
use fact::{Entry, Fact, Family, Value};

/// A section of INFO.
pub struct Section {
    /// Its name, as INFO writes it.
    pub name: &'static str,
    /// Whether plain INFO shows it.
    by_default: bool,
    /// Its lines.
    pub entries: &'static [Entry],
}

const fn section(name: &'static str, by_default: bool, entries: &'static [Entry]) -> Section {
    Section { name, by_default, entries }
}

/// All facts, in Redis's order; what follows it is this server's own.
pub const SECTIONS: &[Section] = &[
    section("Server", true, general::SERVER),
    section("Clients", true, general::CLIENTS),
    section("Memory", true, memory::MEMORY),
    section("Persistence", true, persistence::PERSISTENCE),
    section("Threads", true, general::THREADS),
    section("Stats", true, stats::STATS),
    section("Replication", true, general::REPLICATION),
    section("CPU", true, general::CPU),
    section("Modules", true, &[]),
    section("Commandstats", false, commands::COMMANDSTATS),
    section("Errorstats", true, commands::ERRORSTATS),
    section("Latencystats", false, commands::LATENCYSTATS),
    section("Cluster", true, general::CLUSTER),
    section("Keyspace", true, commands::KEYSPACE),
    section("Keysizes", true, &[]),
    section("Tarn", true, tarn::TARN),
];

/// What facts are read from: the server at one moment.
pub struct Facts<'a> {
    server: &'a Server,
    now_ms: u64,
    settings: Arc<Settings>,
    budget: Budget,
    clients: Vec<Arc<Client>>,
    /// Since CONFIG RESETSTAT.
    totals: Totals,
    rates: [u64; 5],
    memory: memory::Memory,
    cpu: CpuTime,
    /// Scripts that are known, their bytes, and how many had to go.
    scripts: (usize, usize, u64),
    loading: bool,
    log: Status,
    flush: Flushing,
    shards: Shards,
    /// Namespaces that have keys, by name.
    keys: BTreeMap<Vec<u8>, Keys>,
}

/// Keys of a namespace.
#[derive(Debug, Clone, Copy)]
struct Keys {
    all: u64,
    /// In memory, with a time (see [`Timed`]).
    timed: u64,
    /// That these have left, on average.
    ttl_ms: u64,
    /// Hashes in memory of which fields have one.
    with_fields: u64,
}

/// Sums over the leased shards.
#[derive(Default)]
struct Shards {
    stats: CoreStats,
    dirty_objects: u64,
    table_objects: u64,
    filter_bytes: u64,
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
    /// How long the key waits to be swept that has waited longest, ms.
    expiry_lag_ms: u64,
    /// Commands a second, of late, by shard.
    paces: Vec<(u16, u64)>,
    cold_bytes: u64,
    cold_entries: u64,
    garbage: u64,
    dead_namespaces: u64,
    timed: Timed,
    /// Those of them that have expired and are not swept yet, as far as they were counted.
    overdue: u64,
    /// Hashes of which fields have a time.
    timed_fields: Timed,
    keys: BTreeMap<NsId, u64>,
    /// Libraries and functions, and their bytes.
    libraries: ((usize, usize), usize),
    each: Vec<Shard>,
}

/// One of the shards.
#[derive(Debug, Clone, Copy)]
pub struct Shard {
    /// Objects in memory.
    pub objects: u64,
    /// Changed ones among them.
    pub dirty: u64,
    /// Look-ups of reading commands.
    pub lookups: u64,
    /// Its last commit.
    pub last_lsn: u64,
    /// By how many ms the removal of expired keys is late.
    pub late_ms: u64,
}

/// Keys in memory that have a time.
#[derive(Default)]
struct Timed {
    all: u64,
    /// Of some of those, how many by namespace, and the sum of the times that they have left.
    sample: BTreeMap<NsId, [u64; 2]>,
}

/// Keys with a time that are looked at in each shard, to tell how they divide among the namespaces.
const SAMPLE: usize = 64;
/// Places of a shard's table that are looked at for them.
const PLACES: u32 = 256;

/// Some objects that have a time, whatever that is: those of a stretch of the table, or, where there are hardly any, those
/// that expire first.
fn some_timed(core: &Core) -> impl Iterator<Item = (u64, Index)> {
    let places = core.table.places();
    // Another stretch each time.
    let from = (core.last_lsn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % places.max(1);
    let stretch = (0..PLACES.min(places)).map(move |n| (from + n) % places);
    let timed = stretch.filter(|&index| core.table.is_used(index)).filter_map(|index| {
        let expire_ms = core.table.at(index).expire_ms;
        (expire_ms != 0).then_some((expire_ms, index))
    });
    let mut some: Vec<_> = timed.take(SAMPLE).collect();
    if some.len() < SAMPLE / 8 {
        some = core.expiry.iter().take(SAMPLE).copied().collect();
    }
    some.into_iter()
}

impl Timed {
    /// Adds a shard's: all of them, and the times of some that stand for the others.
    fn add(&mut self, core: &Core, all: usize, some: impl Iterator<Item = (u64, Index)>, now_ms: u64) {
        self.all += all as u64;
        for (expire_ms, index) in some {
            let [count, left_ms] = self.sample.entry(core.table.at(index).ns).or_default();
            *count += 1;
            *left_ms += expire_ms.saturating_sub(now_ms);
        }
    }

    /// Those of a namespace, and what they have left on average.
    fn of(&self, ns: NsId) -> (u64, u64) {
        let sampled: u64 = self.sample.values().map(|[count, _]| count).sum();
        let [count, left_ms] = self.sample.get(&ns).copied().unwrap_or_default();
        ((self.all * count).checked_div(sampled).unwrap_or(0), left_ms.checked_div(count).unwrap_or(0))
    }
}

impl Shards {
    fn add(&mut self, core: &Core, now_ms: u64) {
        let (sum, stats) = (&mut self.stats, &core.stats);
        sum.keyspace_hits += stats.keyspace_hits;
        sum.keyspace_misses += stats.keyspace_misses;
        sum.expired_keys += stats.expired_keys;
        sum.expired_fields += stats.expired_fields;
        sum.evicted_objects += stats.evicted_objects;
        sum.evicted_keys += stats.evicted_keys;
        sum.cold_reads += stats.cold_reads;
        sum.stored_reads += stats.stored_reads;
        sum.rests += stats.rests;
        sum.long_sweeps += stats.long_sweeps;
        sum.sweep_us += stats.sweep_us;
        self.busy += core.busy.len() as u64;
        self.waiting += core.busy.waiting() as u64;
        self.watched += core.watched.len() as u64;
        self.blocking += core.blocked.len() as u64;
        self.blocking_on_none += core.blocked.hearing() as u64;
        sum.passing_reads += stats.passing_reads;
        sum.blind_writes += stats.blind_writes;
        self.dirty_objects += (core.dirty.len() + core.in_flight.len()) as u64;
        self.table_objects += core.table.len() as u64;
        self.filter_bytes += core.membership.bytes() as u64;
        self.blind += core.blind.len() as u64;
        self.cold_bytes += core.cold.bytes();
        self.cold_entries += core.cold.len();
        self.garbage += core.garbage.len();
        self.libraries = (core.libraries.counts(), core.libraries.bytes());
        self.dead_namespaces = self.dead_namespaces.max(core.dead_names.len());
        if let Some((due_ms, _)) = core.expiry.first() {
            self.expiry_lag_ms = self.expiry_lag_ms.max(now_ms.saturating_sub(*due_ms));
        }
        self.paces.push((core.shard, core.pace.per_second));
        self.overdue += core.expiry.range(..(now_ms, 0)).take(SAMPLE).count() as u64;
        self.each.push(Shard {
            objects: core.table.len() as u64,
            dirty: (core.dirty.len() + core.in_flight.len()) as u64,
            lookups: stats.keyspace_hits + stats.keyspace_misses,
            last_lsn: core.last_lsn,
            late_ms: core.expiry.first().map_or(0, |(due_ms, _)| now_ms.saturating_sub(*due_ms)),
        });
        self.timed.add(core, core.expiry.len(), some_timed(core), now_ms);
        let fields = core.fields.iter();
        self.timed_fields.add(core, fields.len(), fields.take(SAMPLE).map(|index| (0, index)), now_ms);
        for &ns in core.counts.keys() {
            *self.keys.entry(ns).or_default() += core.count_about(ns);
        }
    }
}

impl<'a> Facts<'a> {
    /// All that there is to know now, of all shards, or of none while the log is replayed. The names are the last ones known.
    pub(crate) fn gather(server: &'a Server, lease: &Lease<'_>, names: &Names, now_ms: u64) -> Facts<'a> {
        let mut shards = Shards::default();
        lease.iter().for_each(|core| shards.add(core, now_ms));
        let names = lease.first().map_or(names, |core| &core.names);
        let keys = names.map().iter().filter_map(|(name, id)| {
            let all = shards.keys.get(&id).copied().filter(|keys| *keys > 0)?;
            let (timed, ttl_ms) = shards.timed.of(id);
            let with_fields = shards.timed_fields.of(id).0.min(all);
            Some((name.to_vec(), Keys { all, timed: timed.min(all), ttl_ms, with_fields }))
        });
        // One after the other: no lock is held while another is taken.
        let budget = *server.budget.lock();
        let rates = server.rates.lock().per_second();
        Facts {
            now_ms,
            settings: server.config.settings(),
            budget,
            clients: server.every_client(),
            totals: since_reset(server),
            rates,
            memory: memory::Memory::read(server, now_ms),
            cpu: sys::cpu_time(),
            scripts: server.scripts.counts(),
            loading: server.engine.gate.load(Ordering::Relaxed) & gate::LOADING != 0,
            log: server.engine.log.status(),
            flush: server.engine.flushing(),
            keys: keys.collect(),
            shards,
            server,
        }
    }

    /// Gathers what there is to know, on whatever thread has the shards, and hands it over there.
    pub fn collect(server: &Arc<Server>, then: impl FnOnce(&Facts<'_>) + Send + 'static) {
        let gather = {
            let server = server.clone();
            move |lease: &Lease<'_>| {
                then(&Facts::gather(&server, lease, &server.engine.first_names(), crate::util::time::now_ms()));
            }
        };
        if server.engine.gate.load(Ordering::Relaxed) & gate::LOADING != 0 {
            return gather(&Lease::default());
        }
        server.engine.post(
            server.engine.all_shards(),
            Box::new(move |lease| {
                gather(&lease);
                lease
            }),
        );
    }

    /// Unix ms of all of it.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The server.
    pub fn server(&self) -> &'a Server {
        self.server
    }

    /// The shards, in their order; none while the log is replayed.
    pub fn each_shard(&self) -> &[Shard] {
        &self.shards.each
    }

    /// Open connections.
    pub fn clients(&self) -> &[Arc<Client>] {
        &self.clients
    }

    /// Sums over the partitions of the store.
    fn store_sum(&self, of: impl Fn(&Partition) -> u64) -> u64 {
        self.server.engine.store.partitions().iter().map(|partition| of(partition)).sum()
    }

    /// Calls of a command.
    fn calls_of(&self, name: &str) -> u64 {
        let slot = self.server.table.find(name.as_bytes()).map(|(id, _)| usize::from(id));
        slot.and_then(|slot| self.totals.calls.get(slot)).map_or(0, |calls| calls[0])
    }

    /// CPU time of the network thread that has taken most.
    fn busiest(&self) -> CpuTime {
        let threads = self.server.threads.lock();
        let times = threads.iter().map(|thread| sys::cpu_time_of(thread.thread_id.load(Ordering::Relaxed)));
        times.max_by_key(|time| time.system_us + time.user_us).unwrap_or_default()
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
        (&mut totals.ran_ns, before.ran_ns),
    ] {
        *now = now.saturating_sub(then);
    }
    let pairs = [
        (&mut totals.ahead[..], &before.ahead[..]),
        (&mut totals.buffers, &before.buffers),
        (&mut totals.turns, &before.turns),
        (&mut totals.aside, &before.aside),
    ];
    for (now, then) in pairs.into_iter().flat_map(|(now, then)| now.iter_mut().zip(then)) {
        *now = now.saturating_sub(*then);
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
    let facts = Facts::gather(ctx.server, ctx.lease, &ctx.session().names, ctx.now_ms);
    let mut text = String::with_capacity(8 << 10);
    for section in SECTIONS.iter().filter(|section| wanted(section, args.slice(1))) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let _ = write!(text, "# {}\r\n", section.name);
        section.entries.iter().for_each(|entry| write_entry(entry, &facts, &mut text));
    }
    out.verbatim(text.as_bytes(), b"txt");
    Ok(())
}

fn write_entry(entry: &Entry, facts: &Facts<'_>, text: &mut String) {
    match entry {
        Entry::One(Fact { name, read, .. }) => match read(facts) {
            Value::Absent => {}
            value => _ = write!(text, "{name}:{value}\r\n"),
        },
        Entry::Many(Family { prefix, fields, each, .. }) => each(facts, &mut |of, values| {
            let _ = write!(text, "{prefix}{of}:");
            for (n, value) in values.iter().enumerate() {
                let comma = if n > 0 { "," } else { "" };
                let _ = match fields.get(n) {
                    Some(field) => write!(text, "{comma}{}={value}", field.name),
                    None => write!(text, "{comma}{value}"),
                };
            }
            text.push_str("\r\n");
        }),
    }
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
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;

    /// What is always 0, by what there is not: COMPAT.md has the same list.
    fn list_of_nothing() -> String {
        let mut by_lack: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for entry in SECTIONS.iter().flat_map(|section| section.entries) {
            if let Entry::One(Fact { name, kind: fact::Kind::Nothing(lack), .. }) = entry {
                by_lack.entry(format!("{lack:?}").to_lowercase()).or_default().push(name);
            }
        }
        let line = |(lack, names): (String, Vec<&str>)| format!("| {lack} | `{}` |\n", names.join("`, `"));
        by_lack.into_iter().map(line).collect()
    }

    #[test]
    fn what_is_always_0_is_listed() {
        let text = include_str!("../../COMPAT.md");
        let (_, rest) = text.split_once("<!-- always 0: begin -->\n").unwrap();
        let (listed, _) = rest.split_once("<!-- always 0: end -->").unwrap();
        assert_eq!(listed, format!("| there is no | always 0 in INFO |\n|---|---|\n{}", list_of_nothing()));
    }

    #[test]
    fn facts_have_names_of_their_own_and_a_sentence() {
        let mut names = std::collections::HashSet::new();
        for entry in SECTIONS.iter().flat_map(|section| section.entries) {
            let Entry::One(Fact { name, kind, help, .. }) = entry else { continue };
            assert!(names.insert(name), "{name} twice");
            assert_eq!(help.is_empty(), matches!(kind, fact::Kind::Text | fact::Kind::Nothing(_)), "{name}");
        }
    }

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

    #[test]
    fn the_time_that_sweeps_took_is_told_in_milliseconds() {
        use crate::config::{Config, Source};
        use crate::handler::session::Client;
        use crate::handler::{Effects, Session, Table};
        use crate::shard::txn::{Txn, WriteSet};
        static TABLE: std::sync::LazyLock<Table> = std::sync::LazyLock::new(|| Table::new(&[COMMANDS]));
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = crate::shard::keyspace::walk::tests::engine(dir.path(), 1);
        let server = Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        let (mut set, mut effects) = (WriteSet::default(), Effects::default());
        let mut lease = server.engine.lease(&[0]);
        lease[0].stats.sweep_us = 2500;
        let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, true);
        let mut ctx = Ctx::new(txn, &mut session, &mut effects, &server);
        let (args, mut out): (OwnedArgs, _) = ([&b"INFO"[..], b"stats"].into_iter().collect(), Reply::new(2));
        info(&mut ctx, args.as_args(), &mut out).unwrap();
        let text = String::from_utf8_lossy(out.as_slice());
        assert!(text.contains("\r\nexpire_cycle_cpu_milliseconds:2\r\n"), "{text}");
        drop(lease);
    }

    #[test]
    fn what_each_shard_counts_is_summed_up_and_what_all_of_them_have_is_not() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = crate::shard::keyspace::walk::tests::engine(dir.path(), 2);
        let counted = |n: u64| CoreStats {
            keyspace_hits: n,
            keyspace_misses: 2 * n,
            expired_keys: 3 * n,
            expired_fields: 4 * n,
            evicted_objects: 5 * n,
            evicted_keys: 6 * n,
            cold_reads: 7 * n,
            stored_reads: 8 * n,
            blind_writes: 9 * n,
            passing_reads: 10 * n,
            rests: 11 * n,
            long_sweeps: 12 * n,
            sweep_us: 13 * n,
        };
        let flush = engine.transact(&[0, 1], 1, |txn| {
            let (renewed, dead) = txn.lease[0].names.renewed(&[b"0"]).unwrap();
            txn.replace_names(renewed, &dead);
            Ok(())
        });
        flush.unwrap();
        let mut shards = Shards::default();
        for (core, n) in engine.lease(&[0, 1]).iter_mut().zip([1, 100]) {
            core.stats = counted(n);
            shards.add(core, 1);
        }
        assert_eq!(format!("{:?}", shards.stats), format!("{:?}", counted(101)));
        assert_eq!(shards.dead_namespaces, 1);
    }
}
