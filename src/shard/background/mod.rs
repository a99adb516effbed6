//! What the engine does beside commands.
//!
//! | thread | does |
//! |---|---|
//! | `flush` | brings what is dirty to fjall, when that takes up half its budget, keeps the tables above theirs, or the log has grown long; looks after the store, opens it again where a compaction failed |
//! | `watch` | wakes the flusher and who frees; writers' delay by what is dirty and by the runs that wait for compaction; room on the disk, and rounds of eviction; tables over their limit shrink; free memory goes back to the system; who waits too long for other commands' memory goes on |
//! | `long-n`, `script-n` | runs commands, and scripts, in slices ([`crate::shard::engine::long`]) |
//! | `read-n` | reads the store for commands that wait for it ([`crate::shard::engine::readers`]) |
//! | `free` | frees big overlays that commands have thrown away |
//! | `compact` | drops tables that are dead as a whole, compacts partitions of which much is dead ([`crate::store::space`]) |
//!
//! What a flush does stands in [`steps`], and of one shard in [`sight`] and [`flush`]; what a shard's own thread does beside commands in [`timer`].

pub mod fields;
pub mod flush;
pub mod moment;
pub mod recount;
pub mod sight;
pub mod steps;
pub mod timer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::meter;
use crate::shard::actor::Shard;
use crate::shard::engine::long::Long;
use crate::shard::engine::readers::{READERS, READERS_NICE};
use crate::shard::engine::{Engine, MOST_DELAY_US, gate, spawn};
use crate::shard::memory::garbage::Reclaim;
use crate::shard::router::ShardId;
use crate::util::alloc::Trimmer;
use crate::util::bell;
use crate::util::pace::{self, Pace};
use crate::util::ticks;

/// However little is dirty, it is flushed after this time: replays stay short, and what was deleted gives its space back
/// within five minutes.
const FLUSH_EVERY: Duration = Duration::from_secs(200);

/// A log of so many bytes is worth a flush after the shorter time, whether anybody writes or not: deletes are small in it, and
/// what they delete can be large. Below it a flush a minute would cost more than it gives back.
const LOG_WORTH: u64 = if cfg!(test) { 16 << 10 } else { 32 << 20 };
const FLUSH_LOG_EVERY: Duration = Duration::from_secs(60);

/// The same if garbage or a dead namespace waits for it.
const RECLAIM_EVERY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };

/// Time between two flushes that only make room.
const CROWDED_EVERY: Duration = Duration::from_secs(1);

/// As often at most where the disk has little room.
const SQUEEZED_EVERY: Duration = Duration::from_secs(1);

/// Time between two looks at what is dirty, and at the rest that the thread `watch` looks at.
const WATCH_EVERY: Duration = Duration::from_millis(10);

/// Time between two looks at tables that are over their limit.
const SHRINK_EVERY: Duration = Duration::from_millis(100);

/// Places of a table looked at per hold of the lock.
const SHRINK_SLICE: usize = 256;

/// Slices a look.
const SHRINK_SLICES: usize = 16;

/// Time between two looks at the store's health.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// The longest pause between two attempts to open the store again.
const TEND_PAUSE: Duration = Duration::from_secs(64);

/// Runs of one partition that wait for compaction, from which on writers are slowed; at [`RUNS_SLOWEST`] as much as by
/// a full dirty budget.
const RUNS_FREE: u64 = 24;
const RUNS_SLOWEST: u64 = 64;

/// Time between two looks at the allocator's free memory.
const TRIM_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// Starts the threads that serve no shard.
    pub(in crate::shard) fn start_background(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let [flush, watch, free, files, compact] = std::array::from_fn(|_| self.clone());
        let reader = |n: usize| {
            let engine = self.clone();
            spawn(format!("read-{n}"), READERS_NICE, move || engine.readers.run())
        };
        let mut threads = vec![
            spawn("flush".to_owned(), 0, move || flush.flush_thread()),
            spawn("watch".to_owned(), 0, move || watch.watch_thread()),
            spawn("free".to_owned(), self.options.nice, move || free.free_thread()),
            spawn("files".to_owned(), self.options.nice, move || files.store.remove_replaced()),
            spawn("compact".to_owned(), self.options.nice, move || compact.compact_thread()),
        ];
        threads.extend((0..READERS).map(reader));
        threads.extend(Long::start(self));
        threads
    }

    fn flush_thread(&self) {
        let mut tend = Tend::new(Instant::now());
        while !self.stopping.load(Ordering::Relaxed) {
            self.tend(&mut tend, Instant::now());
            let asked = {
                let mut asked = self.flush_wake.0.lock();
                if !*asked && !self.stopping.load(Ordering::Relaxed) {
                    self.flush_wake.1.wait_until(&mut asked, tend.next);
                }
                std::mem::take(&mut *asked)
            };
            if !asked && !self.needs_flush(self.last_flush()) {
                continue;
            }
            *self.flushed_at.lock() = Instant::now();
            if self.flush().is_err() {
                self.stats.flush_errors.fetch_add(1, Ordering::Relaxed);
                self.mend_store();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn last_flush(&self) -> Instant {
        *self.flushed_at.lock()
    }

    /// Whether a flush is to begin.
    pub(in crate::shard) fn needs_flush(&self, last_flush: Instant) -> bool {
        let poisoned = self.log.needs_flush();
        let full = self.dirty_bytes() as u64 > self.dirty_budget.load(Ordering::Relaxed) / 2;
        let dirty_for = |time| self.dirty_bytes() > 0 && last_flush.elapsed() > time;
        let (log, short) = (self.log.size_bytes(), self.log_most());
        let long = log > self.log_limit.load(Ordering::Relaxed) || log > short && dirty_for(Duration::ZERO);
        let reclaim = self.reclaim.load(Ordering::Relaxed) && last_flush.elapsed() > RECLAIM_EVERY;
        let worth = self.log.size_bytes() > LOG_WORTH && dirty_for(FLUSH_LOG_EVERY);
        let old = dirty_for(FLUSH_EVERY) || worth || reclaim;
        // What is dirty by one element stays whole: little dirt can keep much from leaving.
        let tables: usize = self.shards.iter().map(|shard| shard.table_bytes()).sum();
        let crowded = tables as u64 > self.table_limit.load(Ordering::Relaxed) / 8 * 9 && dirty_for(CROWDED_EVERY);
        let squeezed = self.is_squeezed() && dirty_for(SQUEEZED_EVERY);
        poisoned || full || long || old || crowded || squeezed
    }

    /// Watches over memory, and over who waits for it. It is not the flusher's to do: writers fill the budget while a flush runs.
    fn watch_thread(&self) {
        let (mut last_trim, mut trimmer) = (Instant::now(), Trimmer::default());
        let (mut last_shrink, mut asked) = (Instant::now(), 0);
        while !self.stopping.load(Ordering::Relaxed) {
            self.set_gates();
            self.look_at_disk();
            self.tend_eviction();
            self.follow_sizes();
            meter::tend();
            if self.needs_flush(self.last_flush()) {
                self.wake_flusher();
            }
            if !self.trash.is_empty() {
                self.freer.ring();
            }
            if last_shrink.elapsed() > SHRINK_EVERY {
                self.shrink_tables();
                ticks::calibrate();
                last_shrink = Instant::now();
            }
            if last_trim.elapsed() > TRIM_EVERY {
                let [tables, cold] = [&self.table_budget, &self.cold_budget].map(|size| size.load(Ordering::Relaxed));
                trimmer.turn(tables + cold + self.options.block_cache as u64, || self.is_quiet(&mut asked));
                last_trim = Instant::now();
            }
            std::thread::sleep(WATCH_EVERY);
        }
    }

    /// Whether no command has come to the server or to any shard since the last look, of which is kept how many had by
    /// then, and none runs.
    fn is_quiet(&self, asked: &mut u64) -> bool {
        let commands = |shard: Shard<'_>| shard.try_core().map(|core| core.commands);
        let now = self.shards.iter().map(commands).sum::<Option<u64>>();
        let now = now.map(|now| now.wrapping_add(self.heard.load(Ordering::Relaxed)));
        now.is_some_and(|now| std::mem::replace(asked, now) == now)
    }

    /// Brings the cores to live with the sizes that [`Engine::resize`] has set.
    pub(in crate::shard) fn follow_sizes(&self) {
        if !self.resized.swap(false, Ordering::Acquire) {
            return;
        }
        let each = |size: &AtomicU64| size.load(Ordering::Relaxed) as usize / self.shards.count();
        let [tables, cold] = [&self.table_budget, &self.cold_budget].map(each);
        for shard in self.shards.iter() {
            let Some(mut core) = shard.try_core() else {
                // Its turn comes again, and does nothing to the others: nobody waits here while a command runs long.
                self.resized.store(true, Ordering::Release);
                continue;
            };
            let before = core.resize(tables, cold);
            drop(core);
            // Not under the lock: it may hold millions of entries.
            drop(before);
        }
    }

    /// Gives tables that are nearly full what the caches behind them leave, and lets clean objects leave those that are over
    /// their limit. Commands do so as well, but only where they bring something in: a table that is too big for a smaller
    /// budget would stay so until then. Bounded steps, as a table full of dirty objects must not be walked.
    pub(in crate::shard) fn shrink_tables(&self) {
        let share = self.table_budget.load(Ordering::Relaxed) as usize / self.shards.count();
        let (mut pace, mut limits) = (Pace::new(), Vec::with_capacity(self.shards.count()));
        for shard in self.shards.iter() {
            let is_nearly_full = shard.table_bytes() > share - share / 8;
            let mut limit = Some(share).filter(|_| !is_nearly_full);
            for _ in 0..if is_nearly_full { SHRINK_SLICES } else { 0 } {
                let Some(mut core) = shard.try_core() else { break };
                core.lend();
                limit = Some(core.table_limit);
                if !core.shrink(SHRINK_SLICE) {
                    break;
                }
                drop(core);
                pace.step();
            }
            limits.extend(limit.map(|limit| limit as u64));
        }
        // Whoever could not be asked has what the others have.
        if !limits.is_empty() {
            let all = limits.iter().sum::<u64>() / limits.len() as u64 * self.shards.count() as u64;
            self.table_limit.store(all, Ordering::Relaxed);
        }
    }

    /// Frees what commands have thrown away, at the lower priority of background work. The thread `watch` wakes it: that would
    /// cost a command more than it saves.
    fn free_thread(&self) {
        self.freer.answer();
        while !self.stopping.load(Ordering::Relaxed) {
            let mut pace = Pace::new();
            for body in self.trash.try_iter().take_while(|_| !self.stopping.load(Ordering::Relaxed)) {
                body.overlay.free(|| pace.step());
                self.stats.freed_bodies.fetch_add(1, Ordering::Relaxed);
            }
            bell::sleep();
        }
    }

    /// Has the space of what is dead in a partition given back. The core is marked as `reclaiming`.
    pub(in crate::shard) fn reclaim(&self, id: ShardId, work: Reclaim) {
        if !self.options.background {
            self.reclaim_now(id, &work);
        } else {
            self.tell_compacting(Some((id, work)));
        }
    }

    /// Gives the thread that compacts work, or wakes it to see that the engine stops.
    pub(in crate::shard) fn tell_compacting(&self, work: Option<(ShardId, Reclaim)>) {
        if self.reclaims.0.send(work).is_err() {
            unreachable!("the engine holds both ends");
        }
    }

    /// Drops tables, and compacts, for what is dead. Not on the shards' threads: it may take long, and others wait for those.
    fn compact_thread(&self) {
        while let Ok(Some((id, work))) = self.reclaims.1.recv() {
            if self.stopping.load(Ordering::Relaxed) {
                break;
            }
            self.reclaim_now(id, &work);
        }
    }

    fn reclaim_now(&self, id: ShardId, work: &Reclaim) {
        let partition = self.store.partition(id);
        let (done, counter) = match work {
            Reclaim::Drop(ranges) => (partition.drop_tables(ranges), &self.stats.dropped_tables),
            Reclaim::Compact => (partition.compact_dead().map(u64::from), &self.stats.compactions),
        };
        match done {
            Ok(count) => _ = counter.fetch_add(count, Ordering::Relaxed),
            // What is dead stays known to be.
            Err(error) => tracing::error!(shard = id, %error, "cannot give back the space of what is dead"),
        }
        let mut core = self.shards.at(id).core();
        core.reclaiming = false;
        // Whether all were dropped or, with an error, some.
        if let Reclaim::Drop(_) = work {
            core.garbage.look_again();
            core.dead_names.look_again();
        }
    }

    /// Watches budget and log: writers are slowed smoothly over the budget's last quarter.
    pub(in crate::shard) fn set_gates(&self) {
        let budget = self.dirty_budget.load(Ordering::Relaxed).max(1);
        let dirty = self.dirty_bytes() as u64;
        let free = budget / 4 * 3;
        let over = dirty.saturating_sub(free);
        let delay = MOST_DELAY_US * over.min(budget - free) / (budget - free).max(1);
        let runs = self.stats.level0_runs_max.load(Ordering::Relaxed).clamp(RUNS_FREE, RUNS_SLOWEST) - RUNS_FREE;
        let delay = delay.max(MOST_DELAY_US * runs / (RUNS_SLOWEST - RUNS_FREE));
        self.write_delay_us.store(delay, Ordering::Relaxed);
        pace::press(delay > 0);
        let room_delay = self.room_delay();
        self.room_delay_us.store(room_delay, Ordering::Relaxed);
        let is_slowed = delay.max(room_delay) > 0;
        if (self.gate.load(Ordering::Relaxed) & gate::SLOWED != 0) != is_slowed {
            self.set_gate(gate::SLOWED, is_slowed);
        }
        if (self.gate.load(Ordering::Relaxed) & gate::REFUSED != 0) != self.refusal().is_some() {
            self.set_gate(gate::REFUSED, self.refusal().is_some());
        }
    }

    /// Counts the runs that wait for compaction: debt, as fjall takes in any number of them.
    pub(in crate::shard) fn count_runs(&self) {
        let runs = || self.store.partitions().iter().map(|partition| partition.l0_runs() as u64);
        self.stats.level0_runs.store(runs().sum(), Ordering::Relaxed);
        self.stats.level0_runs_max.store(runs().max().unwrap_or(0), Ordering::Relaxed);
    }

    /// Looks after the store if it is time to; what was wrong with it is told of until it may be taken for healed.
    fn tend(&self, tend: &mut Tend, now: Instant) {
        if tend.turn(now, || self.tend_store()) && self.store_failure.lock().take().is_some() {
            tracing::info!("the store's compactions go on");
        }
    }

    /// Looks at the store: false, and it was tried to open it again, where a worker of it has ended. Nothing else would
    /// tell before reads slow down: ingestions go on well.
    pub(in crate::shard) fn tend_store(&self) -> bool {
        self.store.partitions().iter().for_each(|partition| partition.follow());
        self.count_runs();
        let Err(error) = self.store.health() else { return true };
        let why: Arc<str> = error.to_string().into();
        if self.store_failure.lock().replace(why).is_none() {
            tracing::error!(%error, "the store's compactions have ended, opens it again");
        }
        self.stats.store_reopens.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.store.reopen() {
            tracing::error!(%error, "cannot reopen the store");
        }
        self.count_runs();
        false
    }
}

/// Looks after the store from time to time.
struct Tend {
    next: Instant,
    /// Time to the next attempt if it is still ill; doubled by each.
    pause: Duration,
    /// When it was last found ill.
    ill: Instant,
}

impl Tend {
    fn new(now: Instant) -> Self {
        Tend { next: now + TEND_EVERY, pause: TEND_EVERY, ill: now }
    }

    /// Looks if it is time to. True where it has been well for so long that it may be taken for healed: what has ended the
    /// worker may come up again when it gets that far.
    fn turn(&mut self, now: Instant, is_well: impl FnOnce() -> bool) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + TEND_EVERY;
        if !is_well() {
            (self.ill, self.next) = (now, now + self.pause);
            self.pause = (self.pause * 2).min(TEND_PAUSE);
            return false;
        }
        let healed = now > self.ill + 2 * self.pause;
        if healed {
            self.pause = TEND_EVERY;
        }
        healed
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;

    /// Seconds at which a store is looked at that is ill before `well_from`, and the first at which it counts as healed.
    fn looks(
        tend: &mut Tend,
        start: Instant,
        seconds: std::ops::Range<u64>,
        well_from: u64,
    ) -> (Vec<u64>, Option<u64>) {
        let (mut looks, mut healed) = (Vec::new(), None);
        for s in seconds {
            let well = || {
                looks.push(s);
                s >= well_from
            };
            if tend.turn(start + Duration::from_secs(s), well) {
                healed = healed.or(Some(s));
            }
        }
        (looks, healed)
    }

    #[test]
    fn a_store_that_stays_ill_is_tended_ever_more_rarely_until_it_is_well_for_long() {
        let start = Instant::now();
        let mut tend = Tend::new(start);
        let (ill, healed) = looks(&mut tend, start, 0..300, 300);
        assert_eq!((ill, healed), (vec![1, 2, 4, 8, 16, 32, 64, 128, 192, 256], None));
        let (well, healed) = looks(&mut tend, start, 300..500, 300);
        assert_eq!(well, (320..500).collect::<Vec<_>>());
        assert_eq!(healed, Some(256 + 2 * 64 + 1));
        let (again, _) = looks(&mut tend, start, 500..510, 510);
        assert_eq!(again, [500, 501, 503, 507], "the pauses begin anew");
    }

    #[test]
    fn it_is_quiet_while_no_command_comes_and_none_runs() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 2);
        let mut asked = 0;
        assert!(engine.is_quiet(&mut asked) && engine.is_quiet(&mut asked));
        for shard in engine.shards.iter() {
            shard.core().commands += 1;
            assert!(!engine.is_quiet(&mut asked), "all shards count");
            assert!(engine.is_quiet(&mut asked));
        }
        engine.heard.store(1, Ordering::Relaxed);
        assert!(!engine.is_quiet(&mut asked), "those that ask no shard count");
        assert!(engine.is_quiet(&mut asked));
        let at_work = engine.shards.iter().last().unwrap().core();
        assert!(!engine.is_quiet(&mut asked));
        drop(at_work);
        assert!(engine.is_quiet(&mut asked));
    }

    #[test]
    fn what_was_wrong_with_the_store_is_told_of_until_it_counts_as_healed() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (engine, start) = (engine(dir.path(), 1), Instant::now());
        let mut tend = Tend::new(start);
        *engine.store_failure.lock() = Some("a compaction failed".into());
        let told = [1, 2, 3].map(|s| {
            engine.tend(&mut tend, start + Duration::from_secs(s));
            engine.store_failure().is_some()
        });
        assert_eq!(told, [true, true, false]);
    }
}
