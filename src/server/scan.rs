//! The key space: SCAN, KEYS, RANDOMKEY.
//!
//! SCAN goes through the shards one after the other, through each in the order of its keys; a cursor names shard and
//! last key, so whatever is there during the whole scan is met. COUNT bounds the keys that a call looks at, not those
//! that match, as in Redis. What a pattern begins with bounds the keys that are walked at all: the cost follows the
//! matches, not the database; where that part holds a `{tag}`, only the tag's shard is asked.
//!
//! A call leases the cursor's shard and, while those before it hold fewer than COUNT keys, the ones behind it. So a small
//! database comes in one page, and a large one is never held up as a whole. A page of a large one that takes long
//! ends before it has COUNT keys.
//!
//! What is to look at many keys, a SCAN of a large COUNT or KEYS of a large database, goes in steps on a shard's thread:
//! each leases one shard, and commands come in between. Within EXEC it holds what EXEC holds.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, Server, Session, flags};
use crate::log::Lsn;
use crate::meter;
use crate::shard::actor::{Lease, ShardSet};
use crate::shard::keyspace::draw::draw;
use crate::shard::keyspace::walk::{Met, Phase, Stop, Walk, cost, must_wait};
use crate::shard::memory::core::Core;
use crate::shard::router::Router;
use crate::shard::router::ShardId;
use crate::types::scan::{Options, parse_cursor};
use crate::util::glob;
use crate::util::pace::Pace;
use crate::util::scale::Scaled;

/// Keys that a call may look at where it is, under one lease.
const IN_PLACE: Scaled<usize> = Scaled::new(1000);
/// Keys that a step looks at, and those that a page looks at however long it takes.
const STEP: usize = if cfg!(test) { 8 } else { 256 };
/// What a page that is made where it is may take; others wait meanwhile.
const PAGE_TIME: Duration = Duration::from_micros(500);
/// The time is looked at after so many keys.
const KEYS_PER_LOOK: usize = if cfg!(test) { 4 } else { 64 };

/// Whether a key is answered.
fn accepts(options: &Options<'_>, met: &Met) -> bool {
    met.is_live()
        && options.accepts(&met.key)
        && options.kind.is_none_or(|kind| met.kind.name().as_bytes().eq_ignore_ascii_case(kind))
}

/// The shards in which matches may be: all, or the one of the tag in what every match begins with.
fn shards_of(options: &Options<'_>, router: &Router) -> Range<ShardId> {
    let home = options.pattern.and_then(|pattern| home(router, pattern));
    home.map_or(0..router.shards() as ShardId, |home| home..home + 1)
}

/// The only shard in which a match may be, if there is only one.
fn home(router: &Router, pattern: &[u8]) -> Option<ShardId> {
    let prefix = glob::literal_prefix(pattern);
    if glob::is_literal(pattern) { Some(router.shard_of(&prefix)) } else { router.shard_of_prefix(&prefix) }
}

/// Whether all these are under lease.
fn holds(ctx: &Ctx, mut shards: Range<ShardId>) -> bool {
    shards.all(|shard| ctx.txn.lease.binary_search_by_key(&shard, |core| core.shard).is_ok())
}

/// A call's way through the shards.
struct Walker<'a> {
    server: &'a Server,
    walk: Walk<'a>,
    /// Each step leases its shard. Otherwise the call holds what it walks.
    in_steps: bool,
    /// What the reply must wait for.
    need: Lsn,
    pace: Pace,
}

impl<'a> Walker<'a> {
    /// Through the keys that begin so; gives the cores back where steps are to lease them one by one.
    fn new<'s: 'a>(ctx: &mut Ctx<'s, '_>, prefix: &'a [u8], in_steps: bool) -> Self {
        if in_steps {
            drop(std::mem::take(ctx.txn.lease));
        }
        let walk = Walk::new(&ctx.server.engine.router, ctx.ns(), prefix, ctx.now_ms);
        Walker { server: ctx.server, walk, in_steps, need: ctx.txn.need, pace: Pace::new() }
    }

    /// One step through a shard.
    fn step(
        &mut self,
        lease: &mut Lease<'_>,
        shard: ShardId,
        from: &Stop,
        visit: impl FnMut(&Met) -> bool,
    ) -> Result<Option<Stop>> {
        if let Some(core) = lease.iter_mut().find(|core| core.shard == shard) {
            return self.walk.go_on(core, from, visit);
        }
        let mut core = self.server.engine.shards.at(shard).core();
        self.need = self.need.max(core.last_lsn);
        self.walk.renew();
        let next = self.walk.go_on(&mut core, from, visit);
        drop(core);
        self.pace.step();
        next
    }
}

fn scan(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let cursor = parse_cursor(&args[1])?;
    let options = Options::parse(args.cursor(2), None)?;
    ctx.txn.saw_all();
    let many = options.count > IN_PLACE.get();
    if !ctx.txn.may_block() && (many || ctx.txn.lease.iter().any(|core| must_wait(core))) {
        return Err(Error::Cold);
    }
    if many && ctx.scripted && !holds(ctx, shards_of(&options, ctx.txn.router)) {
        // The lease was asked for as if this were to go in steps.
        return Err(Error::Undeclared);
    }
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    // One page has all keys of a small database, however slow the machine; only what is in memory besides may end it before.
    let (ns, most) = (ctx.ns(), IN_PLACE.get() as u64);
    let few = ctx.txn.lease.iter().map(|core| core.count(ns)).sum::<u64>() <= most;
    let until = Until { end: Instant::now() + PAGE_TIME, ends_keys: !many && !few };
    let mut walker = Walker::new(ctx, &prefix, many && ctx.may_wait());
    let (next, keys) = scan_shards(&mut walker, ctx.txn.lease, cursor, (&options, until))?;
    ctx.txn.need = walker.need;
    out.array(2);
    out.bulk(itoa::Buffer::new().format(next).as_bytes());
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
    Ok(())
}

/// Until when a page goes on that is made where it is.
#[derive(Clone, Copy)]
struct Until {
    /// Then no other step through what is in memory begins.
    end: Instant,
    /// Nor is another key taken, if it has a step's.
    ends_keys: bool,
}

impl Until {
    fn is_over(self) -> bool {
        Instant::now() >= self.end
    }
}

/// The cursor that goes on, and the matches of this page.
fn scan_shards(
    walker: &mut Walker<'_>,
    lease: &mut Lease<'_>,
    cursor: u64,
    (options, until): (&Options<'_>, Until),
) -> Result<(u64, Vec<Vec<u8>>)> {
    let (cursors, in_steps) = (&walker.server.cursors, walker.in_steps);
    let shards = shards_of(options, &walker.server.engine.router);
    let (from, mut stop) = cursors.resolve(cursor);
    let mut keys = Vec::new();
    let mut left = options.count;
    let is_late = |left: usize| {
        let met = options.count - left;
        met >= STEP && met.is_multiple_of(KEYS_PER_LOOK) && until.ends_keys && until.is_over()
    };
    for shard in from.max(shards.start)..shards.end {
        if !in_steps && lease.iter().all(|core| core.shard != shard) {
            return Ok((cursors.issue(shard, None), keys));
        }
        let mut next = Some(stop.take().filter(|_| shard == from).unwrap_or_default());
        while let Some(stop) = next {
            let enough = if in_steps { left.saturating_sub(STEP) } else { 0 };
            next = walker.step(lease, shard, &stop, |met| {
                if left == enough || is_late(left) {
                    return false;
                }
                left -= 1;
                if accepts(options, met) {
                    // A refusal ends the walk at its next step.
                    _ = meter::hold(met.key.len() + size_of::<Vec<u8>>());
                    keys.push(met.key.clone());
                }
                true
            })?;
            if next.is_some() {
                if left == 0 || !in_steps && until.is_over() {
                    return Ok((cursors.issue(shard, next), keys));
                }
                walker.walk.renew();
            }
        }
    }
    Ok((0, keys))
}

/// The cursor's shard, and those behind it while there are fewer than COUNT keys in those before. What goes in steps
/// needs the first one's thread only.
fn shards_of_scan(server: &Server, session: &Session, args: Args<'_>) -> Option<ShardSet> {
    let mut leased = ShardSet::new();
    let (Ok(cursor), Ok(options)) = (parse_cursor(&args[1]), Options::parse(args.cursor(2), None)) else {
        return Some(leased);
    };
    let engine = &server.engine;
    let shards = shards_of(&options, &engine.router);
    let in_steps = options.count > IN_PLACE.get() && session.multi.is_none();
    let mut keys = 0;
    for shard in server.cursors.resolve(cursor).0.max(shards.start)..shards.end {
        leased.push(shard);
        // A shard that is busy now is not waited for just to be asked how large it is.
        let core = engine.shards.at(shard).try_core();
        keys += core.and_then(|core| Some(core.count(core.names.id(&session.db)?))).unwrap_or(0);
        if in_steps || keys >= options.count as u64 {
            break;
        }
    }
    Some(leased)
}

fn keys(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::matching(&args[1]);
    let (ns, shards) = (ctx.ns(), shards_of(&options, ctx.txn.router));
    ctx.txn.saw_all();
    let whole = holds(ctx, shards.clone());
    let little = whole && ctx.txn.lease.iter().map(|core| cost(core, ns)).sum::<usize>() <= IN_PLACE.get();
    if !ctx.txn.may_block() && (!little || ctx.txn.lease.iter().any(|core| must_wait(core))) {
        return Err(Error::Cold);
    }
    let in_steps = !little && ctx.may_wait();
    if !in_steps && !whole {
        return Err(Error::Undeclared);
    }
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    let mut walker = Walker::new(ctx, &prefix, in_steps);
    let mark = out.defer_array();
    let mut count = 0;
    for shard in shards {
        count += keys_of_shard(&mut walker, ctx.txn.lease, shard, &options, out)?;
    }
    ctx.txn.need = walker.need;
    out.set_len(mark, count);
    Ok(())
}

/// Replies with the matches in one shard and answers how many.
fn keys_of_shard(
    walker: &mut Walker<'_>,
    lease: &mut Lease<'_>,
    shard: ShardId,
    options: &Options<'_>,
    out: &mut Reply,
) -> Result<usize> {
    // What the table has shown, fjall may show once more.
    let mut shown: HashSet<Vec<u8>, foldhash::fast::RandomState> = HashSet::default();
    let mut count = 0;
    let mut next = Some(Stop::default());
    while let Some(stop) = next {
        let mut left = STEP;
        let in_table = stop.phase != Phase::Stored;
        next = walker.step(lease, shard, &stop, |met| {
            if left == 0 {
                return false;
            }
            left -= 1;
            let mut first =
                |met: &Met| if in_table { shown.insert(met.key.clone()) } else { !shown.contains(&met.key) };
            if accepts(options, met) && first(met) {
                out.bulk(&met.key);
                count += 1;
            }
            true
        })?;
        if next.as_ref().is_some_and(|next| next.phase == Phase::Merged) {
            shown.clear();
        }
        if !walker.in_steps {
            walker.walk.renew();
        }
    }
    Ok(count)
}

/// All shards in which matches may be; only the first, for its thread, if they are walked in steps.
fn shards_of_keys(server: &Server, session: &Session, args: Args<'_>) -> Option<ShardSet> {
    let engine = &server.engine;
    if let Some(home) = home(&engine.router, &args[1]) {
        return Some([home].into_iter().collect());
    }
    let mut cost_so_far = 0;
    for shard in engine.shards.iter() {
        // What is busy counts as large.
        let core = shard.try_core();
        let cost = |core: &Core| core.names.id(&session.db).map_or(0, |ns| cost(core, ns));
        cost_so_far += core.map_or(IN_PLACE.get() + 1, |core| cost(&core));
        if cost_so_far > IN_PLACE.get() && session.multi.is_none() {
            return Some([0].into_iter().collect());
        }
    }
    None
}

/// A number below `n`, of chance.
fn dice(n: u64) -> u64 {
    RandomState::new().build_hasher().finish() % n.max(1)
}

fn randomkey(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let (ns, router, now_ms) = (ctx.ns(), ctx.txn.router, ctx.now_ms);
    ctx.txn.saw_all();
    if !ctx.txn.may_block() && ctx.txn.lease.iter().any(|core| must_wait(core)) {
        return Err(Error::Cold);
    }
    // A shard is as likely as its keys are many; if all of its keys have just expired, the next one is asked.
    let total: u64 = ctx.txn.lease.iter().map(|core| core.count(ns)).sum();
    let mut thrown = dice(total);
    let shards = ctx.txn.lease.len();
    let mut first = 0;
    while first + 1 < shards && thrown >= ctx.txn.lease[first].count(ns) {
        thrown -= ctx.txn.lease[first].count(ns);
        first += 1;
    }
    for at in (first..shards).chain(0..first) {
        if ctx.txn.lease[at].count(ns) == 0 {
            continue;
        }
        if let Some(key) = draw(&mut ctx.txn.lease[at], router, ns, now_ms, dice)? {
            out.bulk(&key);
            return Ok(());
        }
    }
    out.nil();
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("scan", scan, -2, flags::READONLY | flags::KEYSPACE, Group::Generic)
        .route_by(shards_of_scan)
        .help("2.8.0", "Goes through the keys of the database page by page.")
        .syntax(
            "cursor [MATCH pattern] [COUNT count] [TYPE type]",
            "O(1) for a call, O(N) for a whole scan, where N is the number of keys that begin as the pattern does",
        ),
    Command::new("keys", keys, 2, flags::READONLY | flags::KEYSPACE | flags::DANGEROUS, Group::Generic)
        .route_by(shards_of_keys)
        .help("1.0.0", "Lists all keys that match a pattern.")
        .syntax("pattern", "O(N) where N is the number of keys that begin as the pattern does"),
    Command::new("randomkey", randomkey, 1, flags::READONLY | flags::KEYSPACE | flags::ALL_SHARDS, Group::Generic)
        .help("1.0.0", "Picks a key by chance.")
        .syntax("", "O(1)"),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::keys::shards_of;
    use crate::handler::session::{Client, Multi};
    use crate::handler::{Effects, OwnedArgs, Session, Table};
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::txn::{Hints, Txn, WriteSet};

    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(&[COMMANDS]));

    const KEYS: usize = 3000;

    /// A server of four shards: a third of its keys is in fjall, a third in memory, a third made anew over what fjall shows. In
    /// the tables they stand among each other.
    fn server(dir: &std::path::Path) -> (Server, Session) {
        let engine = engine(dir, 4);
        let (shards, ns) = (engine.all_shards(), engine.first_names().id(b"0").unwrap());
        let put = |n: usize| {
            let key = format!("key:{n:04}").into_bytes();
            let put = |txn: &mut Txn<'_, '_>| {
                txn.delete(ns, &key)?;
                txn.put_string(ns, &key, b"v", 0)
            };
            engine.transact(&shards, 1, put).unwrap();
        };
        (0..KEYS).filter(|n| n % 3 != 2).for_each(put);
        engine.flush().unwrap();
        (0..KEYS).filter(|n| n % 3 != 0).for_each(put);
        let server = Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        session.ns = ns;
        (server, session)
    }

    /// What a command replies under the lease that it asks for, its bulks alone, and the shards that it gives back.
    fn run(server: &Server, session: &mut Session, line: &str, may_block: bool) -> (Result, Vec<String>, usize) {
        run_and_need(server, session, line, may_block, false).0
    }

    /// The same, by a script or not, and what the reply must wait for.
    fn run_and_need(
        server: &Server,
        session: &mut Session,
        line: &str,
        may_block: bool,
        scripted: bool,
    ) -> ((Result, Vec<String>, usize), Lsn) {
        let args: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
        let command = server.table.find(&args.as_args()[0]).unwrap().1;
        let shards = shards_of(server, session, command, args.as_args(), &mut Hints::new());
        let mut lease = server.engine.lease(&shards.unwrap_or_else(|| server.engine.all_shards()));
        let mut set = WriteSet::default();
        let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, may_block);
        let mut effects = Effects::default();
        let mut ctx = Ctx::new(txn, session, &mut effects, server);
        ctx.scripted = scripted;
        let mut out = Reply::new(2);
        let result = (command.run)(&mut ctx, args.as_args(), &mut out);
        let text = String::from_utf8_lossy(out.as_slice()).into_owned();
        let bulks = text.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['*', '$']));
        ((result, bulks.map(str::to_owned).collect(), ctx.txn.lease.len()), ctx.txn.need)
    }

    fn all() -> Vec<String> {
        (0..KEYS).map(|n| format!("key:{n:04}")).collect()
    }

    #[test]
    fn keys_of_many_lease_a_shard_a_step_and_answer_each_once() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = server(dir.path());
        for (pattern, expected) in [("*", all()), ("none*", Vec::new()), ("key:29*", all()[2900..].to_vec())] {
            let line = format!("KEYS {pattern}");
            assert_eq!(run(&server, &mut session, &line, false), (Err(Error::Cold), Vec::new(), 1));
            let (result, mut keys, leased) = run(&server, &mut session, &line, true);
            keys.sort();
            assert_eq!((result, leased), (Ok(()), 0), "what it steps through it does not hold");
            assert_eq!(keys, expected);
            session.multi = Some(Multi::default());
            let (result, mut keys, leased) = run(&server, &mut session, &line, true);
            keys.sort();
            assert_eq!((result, leased), (Ok(()), 4), "a transaction holds all it sees");
            assert_eq!(keys, expected);
            session.multi = None;
        }
    }

    #[test]
    fn a_scan_of_many_leases_a_shard_a_step_and_goes_on_where_it_stopped() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = server(dir.path());
        assert_eq!(run(&server, &mut session, "SCAN 0 COUNT 1001", false), (Err(Error::Cold), Vec::new(), 1));
        for count in [100, 1000, 1100, 1_000_000] {
            let (mut cursor, mut met, mut pages) = ("0".to_owned(), Vec::new(), 0);
            while pages == 0 || cursor != "0" {
                let line = format!("SCAN {cursor} COUNT {count}");
                let (result, mut page, leased) = run(&server, &mut session, &line, count > 1000);
                assert_eq!((result, leased == 0), (Ok(()), count > 1000), "{line}");
                cursor = page.remove(0);
                assert!(page.len() <= count);
                met.extend(page);
                pages += 1;
            }
            met.sort();
            met.dedup();
            assert_eq!(met, all(), "COUNT {count}");
        }
    }

    /// A page of 1,000 keys at most, made where it is: the cursor behind it, and what it has.
    fn page(server: &Server, session: &mut Session, cursor: u64, until: Until) -> (u64, Vec<Vec<u8>>) {
        let mut lease = server.engine.lease(&server.engine.all_shards());
        let mut set = WriteSet::default();
        let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, false);
        let mut effects = Effects::default();
        let mut ctx = Ctx::new(txn, session, &mut effects, server);
        let mut walker = Walker::new(&mut ctx, b"", false);
        let options = Options { count: 1000, ..Options::matching(b"*") };
        scan_shards(&mut walker, ctx.txn.lease, cursor, (&options, until)).unwrap()
    }

    /// Whoever has waited long for a page, or been held up in it, gets what there is, and the rest by the cursor.
    #[test]
    fn a_page_whose_time_is_over_ends() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = server(dir.path());
        // Else places of the table end it.
        server.engine.flush().unwrap();
        let mut page = |cursor, end, ends_keys| page(&server, &mut session, cursor, Until { end, ends_keys });
        let met = |page: (u64, Vec<Vec<u8>>)| page.1.len();
        let far = Instant::now() + Duration::from_secs(1000);
        assert_eq!([met(page(0, Instant::now(), false)), met(page(0, far, true))], [1000, 1000]);
        let (mut cursor, mut keys) = (0, Vec::new());
        while keys.is_empty() || cursor != 0 {
            let (next, new) = page(cursor, Instant::now(), true);
            assert!(new.len() == STEP || next == 0 && new.len() < STEP, "{} keys", new.len());
            (cursor, keys) = (next, [keys, new].concat());
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys, all().into_iter().map(String::into_bytes).collect::<Vec<_>>());
    }

    /// Of a small database, whatever was changed and removed besides, as long as that takes no time.
    #[test]
    fn a_page_goes_on_through_what_is_in_memory_until_its_time_is_over() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 4);
        let (shards, ns) = (engine.all_shards(), engine.first_names().id(b"0").unwrap());
        let keys: Vec<_> = (0..24).map(|n| format!("key:{n:04}").into_bytes()).collect();
        for key in &keys {
            engine.transact(&shards, 1, |txn| txn.put_string(ns, key, b"v", 0)).unwrap();
        }
        let server = Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        session.ns = ns;
        let mut page = |cursor, end| page(&server, &mut session, cursor, Until { end, ends_keys: false });
        let (first, some) = page(0, Instant::now());
        assert!(first != 0 && some.len() < keys.len(), "{} keys in a step", some.len());
        // What that step has made serves this one, too, but not the shards behind it.
        let (end, mut all) = page(0, Instant::now() + Duration::from_secs(1000));
        all.sort();
        assert_eq!((end, all), (0, keys));
    }

    /// A page that ends with the first shard would be an answer, but not the one that the script gets with other keys.
    #[test]
    fn a_scan_of_many_by_a_script_needs_all_shards() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = server(dir.path());
        let ((result, page, _), _) = run_and_need(&server, &mut session, "SCAN 0 COUNT 100000", true, true);
        assert_eq!((result, page), (Err(Error::Undeclared), Vec::new()));
    }

    /// As most keys are in shards whose keys have expired, these are mostly asked first.
    #[test]
    fn a_random_key_comes_from_whatever_shard_one_lives_in() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 4);
        let (shards, ns) = (engine.all_shards(), engine.first_names().id(b"0").unwrap());
        let put = |key: &[u8], expire_ms| engine.transact(&shards, 0, |txn| txn.put_string(ns, key, b"v", expire_ms));
        (0..400).for_each(|n| _ = put(format!("gone:{n}").as_bytes(), 1).unwrap());
        let server = Server::new(engine.clone(), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), engine.first_names(), &server.acl);
        session.ns = ns;
        for shard in engine.all_shards() {
            let key = (0..).map(|n| format!("key:{n}")).find(|key| engine.router.shard_of(key.as_bytes()) == shard);
            let key = key.unwrap();
            put(key.as_bytes(), 0).unwrap();
            for _ in 0..20 {
                assert_eq!(run(&server, &mut session, "RANDOMKEY", true).1, [&key[..]]);
            }
            engine.transact(&[shard], 1, |txn| txn.delete(ns, key.as_bytes())).unwrap();
        }
    }

    /// What the reply tells of each shard is not to be told before the log holds it.
    #[test]
    fn rule_5_what_goes_in_steps_waits_for_every_shard_it_comes_through() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = server(dir.path());
        let (engine, ns) = (&server.engine, session.ns);
        for shard in engine.all_shards() {
            let mut names = (0..).map(|n| format!("late:{n}").into_bytes());
            let key = names.find(|key| engine.router.shard_of(key) == shard).unwrap();
            for line in ["KEYS *", "SCAN 0 COUNT 1000000"] {
                engine.transact(&[shard], 1, |txn| txn.put_string(ns, &key, b"v", 0)).unwrap();
                let ((result, _, leased), need) = run_and_need(&server, &mut session, line, true, false);
                assert_eq!((result, leased), (Ok(()), 0));
                assert_eq!(need, engine.log.last(), "{line}, written in shard {shard}");
            }
        }
    }
}
