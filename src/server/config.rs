//! CONFIG: the directives of [`crate::config`], and what takes effect when one changes.
//!
//! Most settings are read where they are used. What must be told elsewhere is told by [`put_in_force`].

use std::sync::Arc;

use tracing::level_filters::LevelFilter;

use super::{help, unknown_subcommand};
use crate::config::budget::{Budget, Machine};
use crate::config::settings::{AppendFsync, LogLevel};
use crate::config::{Refusal, Settings};
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, Server, flags};
use crate::log::Fsync;
use crate::meter;
use crate::shard::engine::eviction::{By, Policy};
use crate::shard::engine::{Engine, Sizes};
use crate::shard::memory::uses::Frequency;
use crate::store::LEAST_TABLE_FILES;
use crate::tls::agreement as tls;
use crate::util::sys;

/// Descriptors beside those of clients: log, store with so many table files, listeners, runtimes, and of TLS handshakes.
pub fn reserved_files(settings: &Settings, table_files: usize) -> u64 {
    (1024 - LEAST_TABLE_FILES + table_files) as u64
        + if settings.tls.port == 0 { 0 } else { settings.tls.max_handshakes as u64 }
}

impl From<AppendFsync> for Fsync {
    fn from(directive: AppendFsync) -> Self {
        match directive {
            AppendFsync::Always => Fsync::Always,
            AppendFsync::Everysec => Fsync::EverySec,
            AppendFsync::No => Fsync::No,
        }
    }
}

impl From<LogLevel> for LevelFilter {
    fn from(directive: LogLevel) -> Self {
        match directive {
            LogLevel::Nothing => LevelFilter::OFF,
            LogLevel::Warning => LevelFilter::WARN,
            LogLevel::Notice => LevelFilter::INFO,
            LogLevel::Verbose => LevelFilter::DEBUG,
            LogLevel::Debug => LevelFilter::TRACE,
        }
    }
}

/// What can fail, before anything is changed.
fn check(server: &Server, settings: &Settings, changed: &[&'static str]) -> Result<(), Refusal> {
    if changed.contains(&"maxclients") {
        let reserved = reserved_files(settings, server.engine.options.table_files);
        let wanted = settings.maxclients as u64 + reserved;
        let limit = sys::raise_file_limit(wanted);
        if limit < wanted {
            let most = limit.saturating_sub(reserved);
            let why =
                format!("The operating system is not able to handle the specified number of clients, try with {most}");
            return Err(("maxclients", why.into()));
        }
    }
    Ok(())
}

/// What [`crate::handler::observe`] goes by.
const OBSERVING: [&str; 8] = [
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "commandlog-request-larger-than",
    "commandlog-large-request-max-len",
    "commandlog-reply-larger-than",
    "commandlog-large-reply-max-len",
    "latency-monitor-threshold",
    "latency-tracking",
];

/// Opens listeners where others are asked for. The last that can fail, as it has an effect of its own.
fn listen_anew(server: &Server, settings: &Settings, changed: &[&'static str]) -> Result<(), Refusal> {
    const PORT: &str = "Unable to listen on this port. Check server logs.";
    const REFUSALS: [(&str, &str); 3] =
        [("bind", "Failed to bind to specified addresses."), ("port", PORT), ("tls-port", PORT)];
    let Some((name, why)) = REFUSALS.iter().find(|(name, _)| changed.contains(name)) else { return Ok(()) };
    let outcome = server.listen_anew.get().map_or(Ok(()), |listen| listen(settings));
    outcome.map_err(|error| {
        tracing::warn!(%error, "cannot listen as CONFIG SET asks; listening as before");
        (*name, (*why).into())
    })
}

/// What TLS is to be spoken with from now on, if the directives of it have changed.
fn agreement(settings: &Settings, changed: &[&'static str]) -> Result<Option<Arc<rustls::ServerConfig>>, Refusal> {
    let concerns = |name: &&str| *name == "tls-port" || tls::DIRECTIVES.contains(name);
    if settings.tls.port == 0 || !changed.iter().any(concerns) {
        return Ok(None);
    }
    // The directive that was changed is the one to be named, and not the one that no longer fits it.
    let refused = |(at, why): tls::Refusal| {
        let named = if changed.contains(&at) { at } else { changed[0] };
        (named, format!("Unable to update TLS configuration. {why}").into())
    };
    tls::make(&settings.tls).map(Some).map_err(refused)
}

/// Tells the rest of the server what has changed.
fn put_in_force(server: &Server, changed: &[&'static str]) {
    let settings = server.config.settings();
    let engine = &server.engine;
    for name in changed {
        match *name {
            "appendfsync" => engine.log.set_fsync(settings.appendfsync.into()),
            "requirepass" => server.acl.set_default_password(&settings.requirepass.0),
            "notify-keyspace-events" => server.set_events(settings.notify_keyspace_events),
            "tracking-table-max-keys" => engine.trackers.set_most_keys(settings.tracking_table_max_keys),
            "maxdisk" | "disk-reserve" => engine.disk.limit(settings.maxdisk, settings.disk_reserve),
            "maxmemory-policy" | "maxmemory-samples" | "lfu-log-factor" | "lfu-decay-time" => {
                evict_by(engine, &settings)
            }
            _ if OBSERVING.contains(name) => server.observer.follow(&settings.observing),
            "loglevel" => crate::util::logging::set_level(settings.loglevel.into()),
            _ => {}
        }
    }
    let divides =
        ["maxmemory", "maxmemory-clients", "dirty-budget", "metadata-cache-size", "log-max-size", "log-segment-size"];
    if changed.iter().any(|name| divides.contains(name)) {
        divide_anew(server, &settings);
    }
}

/// Has keys evicted, and their uses kept, as the directives ask.
pub fn evict_by(engine: &Engine, settings: &Settings) {
    let policy = Policy::named(settings.maxmemory_policy);
    let counts = policy.is_some_and(|policy| policy.by == By::Frequency);
    let by = Frequency { log_factor: settings.lfu_log_factor, decay_minutes: settings.lfu_decay_time };
    engine.uses.keep(counts.then_some(by));
    engine.eviction.set(policy, settings.maxmemory_samples);
}

/// Divides the memory as the directives now ask. The engine follows at once, its tables within a moment.
fn divide_anew(server: &Server, settings: &Settings) {
    let mut budget = server.budget.lock();
    *budget = budget.anew(settings, &Machine::read());
    let Budget {
        total_bytes, block_cache_bytes, metadata_cache_bytes, tables_bytes, dirty_bytes, log_max_bytes, ..
    } = *budget;
    tracing::info!(
        total_bytes,
        tables_bytes,
        dirty_bytes,
        metadata_cache_bytes,
        block_cache_bytes,
        log_max_bytes,
        "memory divided anew; the block cache keeps its size until the next start"
    );
    let (tables, dirty, cold, log) = (tables_bytes, dirty_bytes, metadata_cache_bytes, log_max_bytes);
    server.buffers.set_limit(budget.clients_bytes);
    server.engine.resize(Sizes { tables, dirty, cold, log });
}

/// What comparing a pattern with all directives takes, beside a visit of an element.
const STEPS_OF_A_PATTERN: usize = 64;

fn get(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let patterns: Vec<&[u8]> = args.slice(2).iter().collect();
    // Each is compared with every directive: more than a screenful is a mistake, and takes seconds.
    meter::foresee((patterns.len() * STEPS_OF_A_PATTERN) as u64)?;
    let found = ctx.server.config.get(&patterns);
    out.map(found.len());
    for (name, value) in found {
        // Redis shows a name that was given in full as it was given.
        let given = patterns.iter().find(|pattern| pattern.eq_ignore_ascii_case(name.as_bytes()));
        out.bulk(given.map_or(name.as_bytes(), |given| given));
        out.bulk(&value);
    }
    Ok(())
}

fn set(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if !args.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    let pairs: Vec<_> = (2..args.len()).step_by(2).map(|at| (&args[at], &args[at + 1])).collect();
    let changed = ctx.server.config.set_with(&pairs, |settings, changed| {
        check(ctx.server, settings, changed)?;
        let agreement = agreement(settings, changed)?;
        let agreed = agreement.is_some();
        if let Some(agreement) = agreement {
            ctx.server.tls.agree(agreement);
        }
        listen_anew(ctx.server, settings, changed).inspect_err(|_| {
            // The settings are still those of before.
            let before = ctx.settings();
            if agreed
                && before.tls.port != 0
                && let Ok(agreement) = tls::make(&before.tls)
            {
                ctx.server.tls.agree(agreement);
            }
        })
    })?;
    put_in_force(ctx.server, &changed);
    out.ok();
    Ok(())
}

/// Passwords, and whose they are.
fn set_hides(args: Args<'_>, at: usize) -> bool {
    const SECRETS: [&[u8]; 5] =
        [b"requirepass", b"masterauth", b"masteruser", b"tls-key-file-pass", b"tls-client-key-file-pass"];
    at > 2 && !at.is_multiple_of(2) && SECRETS.iter().any(|name| args[at - 1].eq_ignore_ascii_case(name))
}

fn rewrite(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    // Users of an ACL file are kept there.
    let has_file = ctx.server.config.settings().aclfile.is_some();
    let users = if has_file { Vec::new() } else { super::acl::file::lines(ctx.server) };
    ctx.server.config.rewrite(&users)?;
    out.ok();
    Ok(())
}

fn resetstat(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    for core in ctx.txn.lease.iter_mut() {
        core.stats = Default::default();
    }
    ctx.server.engine.disk.forget_reached();
    *ctx.server.baseline.lock() = ctx.server.totals();
    *ctx.server.times_before.lock() = ctx.server.times();
    crate::latency::reset_waits();
    out.ok();
    Ok(())
}

fn config_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "GET <pattern> [<pattern> ...]",
        "    Directives whose names match one of the patterns, and their values.",
        "SET <directive> <value> [<directive> <value> ...]",
        "    Changes all of these directives, or none.",
        "RESETSTAT",
        "    Begins the counters of INFO anew.",
        "REWRITE",
        "    Brings the configuration file in line with the directives as they are.",
    ];
    help(out, "CONFIG", &lines);
    Ok(())
}

const ADMIN: u32 = flags::ADMIN | flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::ONCE;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("config", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
    .help("2.0.0", "Commands about the server's directives.")
    .syntax("", "Depends on the subcommand")
    .subcommands(&[
        Command::new("get", get, -3, ADMIN, Group::Server)
            .help("2.0.0", "Returns directives and their values.")
            .syntax("parameter [parameter ...]", "O(N) where N is the number of directives"),
        Command::new("help", config_help, 2, flags::LOADING | flags::STALE, Group::Server)
            .help("5.0.0", "Describes the subcommands of CONFIG.")
            .syntax("", "O(1)"),
        Command::new("resetstat", resetstat, 2, ADMIN, Group::Server)
            .route_by(super::info::shards_unless_loading)
            .help("2.0.0", "Begins the counters of INFO anew.")
            .syntax("", "O(1)"),
        Command::new("rewrite", rewrite, 2, ADMIN | flags::THREAD, Group::Server)
            .help("2.8.0", "Writes the directives as they are to the configuration file.")
            .syntax("", "O(1)"),
        Command::new("set", set, -4, ADMIN | flags::THREAD, Group::Server)
            .hides(set_hides)
            .help("2.0.0", "Changes directives.")
            .syntax("parameter value [parameter value ...]", "O(N) where N is the number of directives given"),
    ])];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::Table;
    use crate::shard::keyspace::walk::tests::engine;

    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(&[COMMANDS]));

    #[test]
    fn how_uses_are_counted_follows_each_of_its_directives_alone() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let config = Config::load(Source::Defaults, &[]).unwrap();
        let server = Server::new(engine(dir.path(), 1), config, &TABLE);
        for (name, value, counted) in [
            ("maxmemory-policy", "allkeys-lfu", Some((10, 1))),
            ("lfu-log-factor", "3", Some((3, 1))),
            ("lfu-decay-time", "7", Some((3, 7))),
            ("maxmemory-policy", "allkeys-lru", None),
        ] {
            let changed = server.config.set(&[(name, value)]).unwrap();
            put_in_force(&server, &changed);
            let counts = server.engine.uses.frequency();
            assert_eq!(counts.map(|by| (by.log_factor, by.decay_minutes)), counted, "{name} {value}");
        }
    }

    #[test]
    fn of_how_many_keys_one_goes_is_as_was_set_last() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let config = Config::load(Source::Defaults, &[]).unwrap();
        let server = Server::new(engine(dir.path(), 1), config, &TABLE);
        for samples in [7, 1, 64] {
            let changed = server.config.set(&[("maxmemory-samples", samples.to_string())]).unwrap();
            put_in_force(&server, &changed);
            assert_eq!(server.engine.eviction.samples(), samples);
        }
    }
}
