//! The shard's own thread: work that may wait, and the timer.
//!
//! | every 100 ms | bounded by |
//! |---|---|
//! | after a start, and when it is outgrown: a filter of keys is filled from fjall | 8,192 keys a turn, a turn every 5 ms |
//! | expiry: keys of the table whose time is past, then fjall's expiry index, see [`expire`] | 128 keys per hold of the lock |
//! | fields of hashes: those of the table that are due | 1,024 fields per hold of the lock, 50 ms a turn |
//! | the order index grows, or is freed when nobody asks for it | 256 keys per hold of the lock, 20 ms a turn |
//! | a table that has outgrown its slots moves to others | 4,096 slots per hold of the lock |
//! | after a count was found to be wrong: the shard's keys are counted | 8,192 keys a turn |
//! | eviction, while it is due: keys go so that the disk has room | 32 keys per hold of the lock, 50 ms a turn, see [`evict`] |
//! | garbage: elements of dropped bodies get tombstones | a batch of keys a turn, see [`crate::shard::memory::garbage`] |
//! | space: a partition of which much is dead is compacted, by another thread | a look at two numbers |
//! | dead namespaces: their objects leave the table, then their records fjall | 1,024 places and 32 objects per hold of the lock, 50 ms and a batch a turn |
//!
//! What is due at its time comes first; what reads much and ingests is left for the next turn while another shard's thread is at
//! it. Nothing waits for another shard's turn, and where jobs for the thread wait, what goes by slices is left until 5 ms later, when it has had 2.
//!
//! Invariants: only the sweep expires keys of its own accord, with count and log record in one commit; a key is
//! deleted only if its metadata holds the very time the index names.

mod evict;
pub(in crate::shard) mod expire;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::codec::{self, DiskKey};
use crate::error::Result;
use crate::latency::{self, Event};
use crate::util::alloc::heaps;
use crate::util::bell;
use crate::util::pace::Pace;
use crate::util::scale::Scaled;

use crate::shard::actor::{Job, Lease, ShardSet};
use crate::shard::background::fields::FieldSweep;
use crate::shard::background::recount::Recount;
use crate::shard::engine::Engine;
use crate::shard::memory::core::{Core, unreadable};
use crate::shard::memory::garbage::{Batch, Queue, Reclaim};
use crate::shard::memory::object::{Object, state};
use crate::shard::memory::table::table_hash;
use crate::shard::router::ShardId;
use crate::shard::txn::{Mark, Txn, WriteSet};

/// Time between two turns of a shard's timer.
pub const TURN: Duration = Duration::from_millis(100);
/// The same while the filter of keys is being filled, for who found others at it, and for what was left.
const SOON: Duration = Duration::from_millis(5);
/// So many microseconds a turn has for its slices, whatever jobs wait: of 7 ms then, so that a steady stream of them does not keep more from
/// expiring than does.
const OWN_US: Scaled<u64> = Scaled::new(2_000).in_unit_tests(0);
/// A sweep that takes longer is counted as such.
const LONG_SWEEP: Duration = Duration::from_millis(25);
const FILL_SLICE: usize = 8192;
/// Of these so many per hold of the lock.
const FILL_HASHES: usize = 128;
/// Objects of dead namespaces that are taken out of the table per hold of the lock, and freed after it: each is far from the one before, in
/// memory that nobody has looked at for long.
const REAP_SLICE: usize = 32;
/// Time that a turn spends on objects of dead namespaces at most, most of which is left to others.
const REAP_TURN: Duration = Duration::from_millis(50);
/// Time that a turn spends on the order index at most.
const ORDER_TURN: Duration = Duration::from_millis(20);

/// Body of the thread `shard-N`.
pub fn shard_thread(engine: &Engine, id: ShardId, work: &Jobs) {
    engine.shards.at(id).bell().answer();
    let (mut next_turn, mut next_long) = (Instant::now() + TURN, Instant::now());
    let mut timer = Timer::with_jobs(engine, id, work);
    while !engine.stopping.load(Ordering::Relaxed) {
        match work.try_recv() {
            Ok((shards, job)) => drop(job(engine.lease(&shards))),
            Err(_) => bell::sleep_until(next_turn),
        }
        if Instant::now() >= next_turn {
            timer.begin_turn();
            // Who finds others at it comes again: what is due on time waits for nobody's ingestion, and no job for another's turn.
            let turn = engine.try_turn(id);
            let mut soon = turn.is_none();
            if turn.is_some() && !engine.timers_rest() {
                timer.short_turn(crate::util::time::now_ms());
                soon |= timer.gave_way;
            }
            let long_is_due = turn.is_some() && (timer.filling() || Instant::now() >= next_long);
            drop(turn);
            if long_is_due
                && let Some(_turn) = engine.try_long_turn(id)
                && !engine.timers_rest()
            {
                timer.begin_turn();
                timer.long_turn(crate::util::time::now_ms());
                next_long = Instant::now() + if timer.gave_way { SOON } else { TURN };
                soon |= timer.gave_way;
            }
            next_turn = Instant::now() + if soon || timer.filling() { SOON } else { TURN };
        }
    }
}

/// Jobs for a shard's thread.
type Jobs = crossbeam_channel::Receiver<(ShardSet, Job)>;

/// The timer of one shard.
pub struct Timer<'a> {
    engine: &'a Engine,
    id: ShardId,
    set: WriteSet,
    /// The hash whose fields are being swept.
    fields: Option<FieldSweep>,
    /// A count of the shard's keys under way.
    recount: Option<Recount>,
    /// Where eviction has come to.
    hand: Option<evict::Hand>,
    /// A sweep through fjall's expiry index under way.
    stored: Option<expire::Sweep>,
    /// Jobs for this thread.
    jobs: Option<&'a Jobs>,
    /// When the turn began, and whether something was left for the next one since, as jobs waited.
    began: Instant,
    gave_way: bool,
}

impl Engine {
    /// Reads the filter of keys that a clean end has left to a shard, if there is one, without its lock.
    pub(in crate::shard) fn restore_filter(&self, shard: ShardId) {
        let shard = self.shards.at(shard);
        let saved = shard.core().membership.take_saved();
        if let Some((saved, most_bytes)) = saved
            && let Some(restored) = saved.load(most_bytes)
        {
            shard.core().restore_membership(restored);
        }
    }
}

impl<'a> Timer<'a> {
    /// A timer for a shard.
    pub fn new(engine: &'a Engine, id: ShardId) -> Self {
        Timer {
            engine,
            id,
            set: WriteSet::default(),
            fields: None,
            recount: None,
            hand: None,
            stored: None,
            jobs: None,
            began: Instant::now(),
            gave_way: false,
        }
    }

    /// One that gives way to these jobs.
    pub(in crate::shard) fn with_jobs(engine: &'a Engine, id: ShardId, jobs: &'a Jobs) -> Self {
        Timer { jobs: Some(jobs), ..Timer::new(engine, id) }
    }

    fn begin_turn(&mut self) {
        (self.began, self.gave_way) = (Instant::now(), false);
    }

    /// Between two slices of what can go on at the next turn, with no lock held: pauses if it is time to, and tells whether to leave the
    /// rest until then, as jobs have waited for the thread for some time, or it is to end.
    fn gives_way(&mut self, pace: &mut Pace) -> bool {
        pace.step();
        let is_wanted = || self.jobs.is_some_and(|jobs| !jobs.is_empty());
        let gives_way = self.engine.stopping.load(Ordering::Relaxed)
            || self.began.elapsed() >= Duration::from_micros(OWN_US.get()) && is_wanted();
        self.gave_way |= gives_way;
        gives_way
    }

    /// One turn at this time.
    #[cfg(test)]
    pub fn turn(&mut self, now_ms: u64) {
        self.short_turn(now_ms);
        self.long_turn(now_ms);
    }

    /// What is due at its time.
    fn short_turn(&mut self, now_ms: u64) {
        self.each(&[Self::tend_table, Self::tend_order, Self::collect_staged], now_ms);
        let began = Instant::now();
        self.each(&[Self::expire_table, Self::expire_stored, Self::expire_fields], now_ms);
        let took = began.elapsed();
        latency::keep(Event::ExpireCycle, took.as_nanos() as u64);
        self.with_core(|core| {
            core.pace.look(core.commands);
            core.stats.sweep_us += took.as_micros() as u64;
            core.stats.long_sweeps += u64::from(took > LONG_SWEEP);
        });
    }

    /// What reads much, and ingests: it takes as long as the disk does.
    fn long_turn(&mut self, now_ms: u64) {
        let turns = [
            Self::fill_membership,
            Self::evict,
            Self::collect_garbage,
            Self::reap_namespaces,
            Self::give_back,
            Self::count_anew,
        ];
        self.each(&turns, now_ms);
    }

    fn each(&mut self, turns: &[fn(&mut Self, u64) -> Result], now_ms: u64) {
        if self.engine.log.health().is_some() {
            // It keeps the store from being reopened, which may be what is needed.
            self.recount = None;
            return;
        }
        for turn in turns {
            if let Err(error) = turn(self, now_ms) {
                tracing::error!(shard = self.id, %error, "a turn of the shard's timer failed");
            }
        }
    }

    /// Whether a filter of keys is being filled.
    fn filling(&self) -> bool {
        self.with_core(|core| core.membership.fill_from().is_some())
    }

    /// Adds the next keys that fjall holds to the filter of keys, or begins another one if it is outgrown.
    fn fill_membership(&mut self, _now_ms: u64) -> Result {
        self.engine.restore_filter(self.id);
        let codec::key::KeyRange { lower, upper } = codec::key::tag_range(codec::key::tag::META);
        let (from, partition) = self.with_core(|core| {
            let (keys, records) = (core.keys(), core.partition.bulk().records);
            // Another one would get what is dead.
            let waits = !core.in_flight.is_empty() || !core.dead_names.is_empty() && core.membership.has_room();
            if !waits && core.membership.is_wanted(keys, records) {
                core.membership.refill(lower);
            }
            (core.membership.fill_from().map(<[u8]>::to_vec), core.partition.clone())
        });
        let Some(from) = from else { return Ok(()) };
        let mut hashes = Vec::with_capacity(FILL_SLICE);
        let (mut last, mut seen, mut pace) = (None, 0, Pace::new());
        for item in partition.range(&from, &upper).map_err(unreadable)?.take(FILL_SLICE) {
            let (record, value) = item.map_err(unreadable)?;
            if let DiskKey::Meta { ns, key } = codec::key::decode_key(&record).map_err(unreadable)? {
                let key = match codec::is_long_form(key) {
                    true => codec::Meta::decode(&value).map_err(unreadable)?.1.unwrap_or(key),
                    false => key,
                };
                hashes.push(table_hash(self.engine.router.hash(key), ns));
            }
            last = Some(record);
            seen += 1;
            pace.step();
        }
        for hashes in hashes.chunks(FILL_HASHES) {
            self.with_core(|core| core.fill_membership(hashes));
        }
        let more = seen == FILL_SLICE;
        let next = last.filter(|_| more).map(|last| codec::key::successor(&last));
        self.with_core(|core| core.membership_filled_to(next));
        Ok(())
    }

    /// Goes on with the order index, and frees those that are put aside, without the lock.
    fn tend_order(&mut self, now_ms: u64) -> Result {
        let idle = self.with_core(|core| core.idle_orders(now_ms));
        drop(idle);
        let (started, mut pace) = (Instant::now(), Pace::new());
        while started.elapsed() < ORDER_TURN && self.with_core(Core::grow_order) {
            if self.gives_way(&mut pace) {
                break;
            }
        }
        Ok(())
    }

    /// Goes on with a table that grows, and frees the slots that it has left, without the lock.
    fn tend_table(&mut self, _now_ms: u64) -> Result {
        let mut pace = Pace::new();
        loop {
            let (more, spent) = self.with_core(|core| (core.table.move_slice(), core.table.take_spent()));
            drop(spent);
            if !more || self.gives_way(&mut pace) {
                return Ok(());
            }
        }
    }

    /// Runs one bounded transaction on the shard. The engine lives as long as the borrow.
    fn transact<R>(&mut self, now_ms: u64, run: impl FnOnce(&mut Txn<'_, 'a>) -> Result<R>) -> Result<R> {
        let mut lease: Lease<'a> = self.engine.lease(&[self.id]);
        let mut txn = Txn::new(&mut lease, &self.engine.router, &mut self.set, now_ms, true);
        let tell = self.engine.tells_swept();
        if tell.is_some() {
            txn.note_sweeps();
        }
        let result = run(&mut txn);
        let need = match &result {
            Ok(_) => {
                let need = txn.commit(&self.engine.log);
                if let Some(tell) = tell {
                    let swept = txn.take_swept();
                    tell(&txn.lease[0].names, &swept, need);
                }
                need
            }
            Err(_) => {
                txn.rollback_to(Mark::default());
                0
            }
        };
        let is_due = txn.lease.iter().any(|core| core.blocked.is_due());
        drop(lease);
        if is_due && let Some(serve) = self.engine.serve.get() {
            serve(self.id);
        }
        self.engine.write_out(need);
        heaps::tell_owners();
        result
    }

    /// Counts the next of the shard's keys, if a count was found to be wrong.
    fn count_anew(&mut self, now_ms: u64) -> Result {
        let under_way = self.recount.take();
        if self.engine.store.health().is_err() {
            // It keeps the store from being reopened, and begins anew when that is done.
            return Ok(());
        }
        let mut recount = match under_way {
            Some(recount) => recount,
            None => match self.with_core(|core| core.miscounted.then(|| Recount::begin(core))) {
                Some(recount) => recount?,
                None => return Ok(()),
            },
        };
        if recount.step()? {
            self.recount = Some(recount);
            return Ok(());
        }
        self.transact(now_ms, |txn| {
            recount.end(txn, 0);
            Ok(())
        })?;
        tracing::info!(shard = self.id, "keys counted anew");
        Ok(())
    }

    /// Leftovers of big results.
    fn collect_staged(&mut self, now_ms: u64) -> Result {
        if self.with_core(|core| core.staged.lock().iter().all(|(_, builder)| builder.strong_count() > 0)) {
            return Ok(());
        }
        self.transact(now_ms, |txn| {
            txn.collect_staged();
            Ok(())
        })
    }

    /// Runs on the shard's core.
    fn with_core<R>(&self, run: impl FnOnce(&mut Core) -> R) -> R {
        run(&mut self.engine.shards.at(self.id).core())
    }

    /// Elements of dropped bodies leave fjall.
    fn collect_garbage(&mut self, _now_ms: u64) -> Result {
        let dead_bytes = self.work_off(|core| &mut core.garbage)?;
        let all = self.with_core(|core| core.garbage.is_empty());
        self.engine.eviction.known_dead(self.id, dead_bytes, all);
        Ok(())
    }

    /// Objects of dead namespaces leave the table, and their records fjall.
    fn reap_namespaces(&mut self, _now_ms: u64) -> Result {
        let (began, mut pace, mut reaped) = (Instant::now(), Pace::sparing(), Vec::new());
        loop {
            let more = self.with_core(|core| reap_slice(core, &mut reaped));
            reaped.clear();
            if !more || began.elapsed() >= REAP_TURN {
                heaps::tell_owners();
                break;
            }
            if self.gives_way(&mut pace) {
                break;
            }
        }
        self.work_off(|core| &mut core.dead_names).map(drop)
    }

    /// Deals with the next batch of a queue, and sees to it that what waits for a flush gets one. Answers the bytes that are known to
    /// be dead by that.
    fn work_off(&mut self, queue: impl Fn(&mut Core) -> &mut Queue) -> Result<u64> {
        let next = self.with_core(|core| {
            if queue(core).waits_for_flush() {
                self.engine.want_reclaim();
            }
            // What goes with its table, or is met by the compaction's filter, needs no tombstones.
            let cursor = if core.reclaiming { None } else { queue(core).cursor() };
            cursor.map(|cursor| (cursor, core.partition.clone()))
        });
        let Some((cursor, partition)) = next.filter(|_| self.engine.store.health().is_ok()) else { return Ok(0) };
        let mut batch = Batch::read(&partition, &cursor).map_err(unreadable)?;
        let dead_bytes = batch.dead_bytes;
        if batch.is_part() && partition.would_want_compaction(dead_bytes, self.engine.is_tight()) {
            // Tombstones would be written to be met by it, one after the other.
            let leaves = self.with_core(|core| {
                let leaves = queue(core).leave_to_compaction();
                core.reclaiming |= leaves;
                leaves
            });
            if leaves {
                self.engine.reclaim(self.id, Reclaim::Compact);
                return Ok(0);
            }
        }
        let mut pace = Pace::new();
        partition.ingest(batch.tombstones().inspect(|_| pace.step()))?;
        partition.note_dead(dead_bytes);
        let drop = std::mem::take(&mut batch.drop);
        self.with_core(|core| {
            queue(core).worked_off(batch);
            core.reclaiming |= !drop.is_empty();
        });
        if !drop.is_empty() {
            self.engine.reclaim(self.id, Reclaim::Drop(drop));
        }
        Ok(dead_bytes)
    }

    /// Has the partition compacted if much of it is dead, whether anybody writes or not. Afterwards little is.
    fn give_back(&mut self, _now_ms: u64) -> Result {
        let much = self.with_core(|core| {
            let much = !core.reclaiming && core.partition.wants_compaction(self.engine.is_tight());
            core.reclaiming |= much;
            much
        });
        if much {
            self.engine.reclaim(self.id, Reclaim::Compact);
        }
        Ok(())
    }
}

/// Takes the next objects of dead namespaces out of the table, to be freed without the lock. True while there are more.
fn reap_slice(core: &mut Core, reaped: &mut Vec<Object>) -> bool {
    const PLACES: usize = 1024;
    let Some(mut reap) = core.reap else { return false };
    let (mut left, mut in_flight) = (true, None);
    for _ in 0..PLACES {
        let before = reap;
        let next = reap.step(core.table.places());
        left = next.is_some();
        let Some(index) = next else { break };
        if !core.table.is_used(index) || core.names.is_live(core.table.at(index).ns) {
            continue;
        }
        if core.table.at(index).state & state::IN_FLIGHT == 0 {
            reaped.push(core.abandon(index));
        } else if in_flight.is_none() {
            in_flight = Some(before);
        }
        if reaped.len() >= REAP_SLICE {
            break;
        }
    }
    // What is in flight settles first; the next turn goes on there.
    core.reap = in_flight.or(left.then_some(reap));
    in_flight.is_none() && left
}
