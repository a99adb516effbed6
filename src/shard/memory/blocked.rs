//! Clients that wait until one of their keys holds something for them (BLPOP, XREAD BLOCK and their kin).
//!
//! A shard knows who waits for which of its keys, in the order in which they came. A commit that changes such a key makes it
//! *due*; whoever has committed serves, under the same lease, those who wait for it, so that nobody comes in between.
//!
//! | a waiter | is |
//! |---|---|
//! | `Waits` | to be taken by whoever can serve it or ends its wait: only one of them gets it |
//! | `Runs` | being served, perhaps elsewhere and later: those behind it keep behind it |
//! | `Over` | answered, or gone |
//!
//! What a waiter waits with, its command, is known to those who put it there and take it; here it is a box.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::names::Names;
use super::object::Kind;
use crate::codec::NsId;
use crate::log::Lsn;
use crate::shard::router::ShardId;

/// Why a wait ends without anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Its time is over, or somebody says that it be (CLIENT UNBLOCK).
    Timeout,
    /// CLIENT UNBLOCK with ERROR.
    Unblocked,
    /// The client has left.
    Gone,
}

/// What a waiter waits with.
pub type Parked = Box<dyn Any + Send>;

enum State {
    Waits(Parked),
    /// A key of it has become due meanwhile; its wait has been ended meanwhile.
    Runs {
        missed: bool,
        end: Option<End>,
    },
    /// Its wait was ended; to be answered.
    Ended(Parked, End),
    Over,
}

/// A client that waits.
pub struct Waiter {
    state: Mutex<State>,
    /// What it waits for.
    pub kind: Kind,
    /// It is told, too, when a key is gone or of another kind.
    pub hears_all: bool,
    /// Its database.
    pub db: Box<[u8]>,
    /// The keys with their shards, in this order, without repetition.
    pub keys: Vec<(ShardId, Box<[u8]>)>,
    /// It can be served only where all shards of its command are at hand.
    pub whole: bool,
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("kind", &self.kind).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// What becomes of a waiter that was served in vain.
pub enum Again {
    /// It waits as before.
    Waits,
    /// One of its keys has become due meanwhile: to be run again.
    Run(Parked),
    /// It has been ended meanwhile.
    End(Parked, End),
}

impl Waiter {
    /// One that is being served: [`Waiter::again`] has it wait.
    pub fn new(kind: Kind, hears_all: bool, whole: bool, db: &[u8], keys: Vec<(ShardId, Box<[u8]>)>) -> Waiter {
        let state = Mutex::new(State::Runs { missed: false, end: None });
        Waiter { state, kind, hears_all, db: db.into(), keys, whole }
    }

    /// Takes it to serve it. `None`: somebody else has it.
    pub fn claim(&self) -> Option<Parked> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Runs { missed: false, end: None }) {
            State::Waits(parked) => Some(parked),
            other => {
                *state = other;
                None
            }
        }
    }

    /// It was served in vain.
    pub fn again(&self, parked: Parked) -> Again {
        let mut state = self.state.lock();
        match *state {
            State::Runs { end: Some(end), .. } => {
                *state = State::Over;
                Again::End(parked, end)
            }
            State::Runs { missed: true, .. } => {
                *state = State::Runs { missed: false, end: None };
                Again::Run(parked)
            }
            _ => {
                *state = State::Waits(parked);
                Again::Waits
            }
        }
    }

    /// Ends its wait; whether it was waiting. One that is being served is ended if that is in vain.
    pub fn end(&self, why: End) -> bool {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Waits(parked) => {
                *state = State::Ended(parked, why);
                true
            }
            State::Runs { missed, .. } => {
                *state = State::Runs { missed, end: Some(why) };
                false
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Takes it, if its wait was ended, to answer it.
    pub fn take_ended(&self) -> Option<(Parked, End)> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Over) {
            State::Ended(parked, end) => Some((parked, end)),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Why it is to end, if that was said while it is being served.
    pub fn is_to_end(&self) -> Option<End> {
        match *self.state.lock() {
            State::Runs { end, .. } => end,
            _ => None,
        }
    }

    /// Its keys in a shard.
    pub fn keys_in(&self, shard: ShardId) -> impl Iterator<Item = &[u8]> {
        let first = self.keys.partition_point(|(of, _)| *of < shard);
        self.keys[first..].iter().take_while(move |(of, _)| *of == shard).map(|(_, key)| &**key)
    }

    /// The shards of its keys, ascending.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.keys.chunk_by(|a, b| a.0 == b.0).filter_map(|keys| Some(keys.first()?.0))
    }

    /// Whether its wait could be ended: it is ended, too, if it is just being served, and in vain.
    pub fn can_end(&self) -> bool {
        matches!(*self.state.lock(), State::Waits(_) | State::Runs { end: None, .. })
    }

    /// Whether it waits, and is not being served.
    pub fn waits(&self) -> bool {
        matches!(*self.state.lock(), State::Waits(_))
    }

    /// It was answered, or has become nobody's.
    pub fn over(&self) {
        *self.state.lock() = State::Over;
    }

    /// Notes that a key became due while it is being served; whether it is.
    fn miss(&self) -> bool {
        match &mut *self.state.lock() {
            State::Runs { missed, .. } => {
                *missed = true;
                true
            }
            _ => false,
        }
    }

    /// Memory, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Waiter>()
            + self.db.len()
            + self.keys.iter().map(|(_, key)| 2 * (key.len() + ENTRY_BYTES)).sum::<usize>()
    }
}

/// About what a key takes beside its bytes, with its waiter and in the shard.
const ENTRY_BYTES: usize = 96;

/// Who waits for a key.
#[derive(Default)]
struct Line {
    waiters: VecDeque<Arc<Waiter>>,
    /// It is among the keys that are due.
    due: bool,
    /// Those up to this one have been looked at since the key has changed.
    tried: Option<Arc<Waiter>>,
}

/// A key that may hold something for those who wait.
#[derive(Debug)]
pub struct Due {
    /// Namespace.
    pub ns: NsId,
    /// Key.
    pub key: Box<[u8]>,
    /// Nothing is known of what it holds: its database is another one than before.
    pub unknown: bool,
    turn: Turn,
}

/// When a key's turn is among those of all shards that are due: LSN of the change, and the how-manieth of its commit it was. Zeros go
/// before all others.
pub type Turn = (Lsn, u32);

/// What is to be done for a key that is due.
pub enum Next {
    /// This one is to be served; it is the so-many-th.
    Serve(usize, Arc<Waiter>, Parked),
    /// Nobody, or not yet.
    Nobody,
}

/// The keys of a shard that clients wait for.
#[derive(Default)]
pub struct Blocked {
    of: HashMap<NsId, Lines, foldhash::fast::RandomState>,
    due: VecDeque<Due>,
    /// No lines, and room for a few: where one waits at a time, each would have a map made for it.
    spare: Lines,
}

type Lines = HashMap<Box<[u8]>, Line, foldhash::fast::RandomState>;

/// Lines for which room is kept when there are none.
const KEPT_LINES: usize = 32;

impl Blocked {
    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Keys that somebody waits for.
    pub fn len(&self) -> usize {
        self.of.values().map(HashMap::len).sum()
    }

    /// Those of them for which somebody waits who hears of their absence, too.
    pub fn hearing(&self) -> usize {
        let hears = |line: &&Line| line.waiters.iter().any(|waiter| waiter.hears_all);
        self.of.values().flat_map(HashMap::values).filter(hears).count()
    }

    /// Whether somebody waits for a key.
    pub fn has_line(&self, ns: NsId, key: &[u8]) -> bool {
        !self.is_empty() && self.of.get(&ns).is_some_and(|keys| keys.contains_key(key))
    }

    fn line(&mut self, ns: NsId, key: &[u8]) -> Option<&mut Line> {
        self.of.get_mut(&ns)?.get_mut(key)
    }

    /// Puts a waiter at the end of a key's line.
    pub fn add(&mut self, ns: NsId, key: &[u8], waiter: &Arc<Waiter>) {
        let keys = self.of.entry(ns).or_insert_with(|| std::mem::take(&mut self.spare));
        match keys.get_mut(key) {
            Some(line) => line.waiters.push_back(waiter.clone()),
            None => {
                let line = Line { waiters: VecDeque::from([waiter.clone()]), ..Line::default() };
                keys.insert(key.into(), line);
            }
        }
    }

    /// Takes a waiter out of a key's line. The key is due if those behind it may have waited for it.
    pub fn remove(&mut self, ns: NsId, key: &[u8], waiter: &Arc<Waiter>, is_due: bool) {
        let Some(keys) = self.of.get_mut(&ns) else { return };
        let Some(line) = keys.get_mut(key) else { return };
        if let Some(at) = line.waiters.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            // Who was the last that was looked at leaves that to the one before.
            if line.tried.as_ref().is_some_and(|tried| Arc::ptr_eq(tried, waiter)) {
                line.tried = at.checked_sub(1).and_then(|before| line.waiters.get(before)).cloned();
            }
            line.waiters.remove(at);
        }
        if !line.waiters.is_empty() {
            if is_due {
                self.fall_due(ns, key, true, Turn::default());
            }
            return;
        }
        keys.remove(key);
        if keys.is_empty()
            && let Some(keys) = self.of.remove(&ns)
            && keys.capacity() <= KEPT_LINES
        {
            self.spare = keys;
        }
    }

    /// A key has changed: it is due if anybody waits for it.
    #[cold]
    pub fn changed(&mut self, ns: NsId, key: &[u8], turn: Turn) {
        self.fall_due(ns, key, false, turn);
    }

    fn fall_due(&mut self, ns: NsId, key: &[u8], unknown: bool, turn: Turn) {
        if let Some(line) = self.line(ns, key) {
            line.tried = None;
            if !std::mem::replace(&mut line.due, true) {
                self.due.push_back(Due { ns, key: key.into(), unknown, turn });
            }
        }
    }

    /// One that others have waited for has found nothing, and waits again: those behind it are looked at, unless they will be.
    pub fn look_behind(&mut self, ns: NsId, key: &[u8], waiter: &Arc<Waiter>) {
        let Some(line) = self.line(ns, key) else { return };
        if !line.due && line.waiters.back().is_some_and(|last| !Arc::ptr_eq(last, waiter)) {
            self.pause(ns, key, true, Some(waiter.clone()));
        }
    }

    /// Whether there may be something for one that waits, which it gets once others before it have been served.
    pub fn is_held_up(&self, ns: NsId, key: &[u8], waiter: &Arc<Waiter>) -> bool {
        let Some(line) = self.of.get(&ns).and_then(|keys| keys.get(key)) else { return false };
        let mut before = line.waiters.iter().take_while(|other| !Arc::ptr_eq(other, waiter));
        line.due || before.any(|other| other.kind == waiter.kind && !other.waits())
    }

    /// Others have a turn before those behind this one are looked at.
    pub fn pause(&mut self, ns: NsId, key: &[u8], unknown: bool, behind: Option<Arc<Waiter>>) {
        self.fall_due(ns, key, unknown, Turn::default());
        if let Some(line) = self.line(ns, key) {
            line.tried = behind;
        }
    }

    /// Where to begin to look: behind those that have been looked at since the key has changed.
    pub fn begin(&mut self, ns: NsId, key: &[u8]) -> usize {
        let Some(line) = self.line(ns, key) else { return 0 };
        let tried = line.tried.take();
        let at = tried.and_then(|tried| line.waiters.iter().position(|other| Arc::ptr_eq(other, &tried)));
        at.map_or(0, |at| at + 1)
    }

    /// Whether somebody who comes now to wait for a key's elements has others before him who are about to be served.
    pub fn comes_later(&self, ns: NsId, key: &[u8], kind: Kind) -> bool {
        let Some(line) = self.of.get(&ns).and_then(|keys| keys.get(key)) else { return false };
        for waiter in line.waiters.iter().filter(|waiter| waiter.kind == kind) {
            match *waiter.state.lock() {
                State::Runs { .. } => return true,
                // Those behind are no further than this one.
                State::Waits(_) => return line.due,
                _ => {}
            }
        }
        false
    }

    /// The next key that is due.
    pub fn next_due(&mut self) -> Option<Due> {
        loop {
            let due = self.due.pop_front()?;
            if let Some(line) = self.line(due.ns, &due.key) {
                line.due = false;
                return Some(due);
            }
        }
    }

    /// Whether a key is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// When the turn of the next one is.
    pub fn turn(&self) -> Option<Turn> {
        Some(self.due.front()?.turn)
    }

    /// Who is to be served for a key that holds this (`None`: unknown), from the so-many-th in its line on.
    pub fn next(&mut self, ns: NsId, key: &[u8], holds: Option<Kind>, from: usize) -> Next {
        let Some(line) = self.line(ns, key) else { return Next::Nobody };
        for (at, waiter) in line.waiters.iter().enumerate().skip(from) {
            if holds.is_some_and(|kind| kind != waiter.kind && !waiter.hears_all) {
                continue;
            }
            if waiter.miss() {
                // It comes first, and has the key looked at again when it is done.
                return Next::Nobody;
            }
            if let Some(parked) = waiter.claim() {
                return Next::Serve(at, waiter.clone(), parked);
            }
        }
        Next::Nobody
    }

    /// Where somebody stands in a key's line.
    pub fn stands(&mut self, ns: NsId, key: &[u8], waiter: &Arc<Waiter>, about: usize) -> Option<usize> {
        let waiters = &self.line(ns, key)?.waiters;
        let is_it = |other: &Arc<Waiter>| Arc::ptr_eq(other, waiter);
        if waiters.get(about).is_some_and(is_it) { Some(about) } else { waiters.iter().position(is_it) }
    }

    /// Databases were emptied or swapped: who waits for a key waits for it under its database's name, and looks anew.
    #[cold]
    pub fn follow(&mut self, before: &Names, now: &Names) {
        for (new, mut keys) in before.take_moved(now, &mut self.of) {
            for (key, line) in &mut keys {
                (line.due, line.tried) = (true, None);
                self.due.push_back(Due { ns: new, key: key.clone(), unknown: true, turn: Turn::default() });
            }
            self.of.insert(new, keys);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::NamespaceMap;

    fn waiter(kind: Kind) -> Arc<Waiter> {
        let waiter = Waiter::new(kind, false, false, b"0", vec![(0, b"key".as_slice().into())]);
        assert!(matches!(waiter.again(Box::new(())), Again::Waits));
        Arc::new(waiter)
    }

    #[test]
    fn one_of_those_who_want_a_waiter_gets_it() {
        let one = waiter(Kind::List);
        assert!(one.waits() && one.claim().is_some() && one.claim().is_none() && !one.waits());
        assert!(!one.end(End::Timeout), "it is being served");
        assert!(matches!(one.again(Box::new(())), Again::End(_, End::Timeout)));
        assert!(one.claim().is_none() && one.take_ended().is_none());

        let other = waiter(Kind::List);
        assert!(other.end(End::Unblocked) && !other.end(End::Timeout) && other.claim().is_none());
        assert_eq!(other.take_ended().unwrap().1, End::Unblocked);
        assert!(other.take_ended().is_none());
    }

    #[test]
    fn who_is_served_elsewhere_is_waited_for() {
        let (mut blocked, [a, b]) = (Blocked::default(), std::array::from_fn(|_| waiter(Kind::List)));
        blocked.add(1, b"key", &a);
        blocked.add(1, b"key", &b);
        blocked.changed(1, b"key", Turn::default());
        blocked.changed(1, b"key", Turn::default());
        assert!(blocked.comes_later(1, b"key", Kind::List) && !blocked.comes_later(1, b"key", Kind::Zset));
        assert!(blocked.next_due().is_some() && blocked.next_due().is_none());
        let Next::Serve(0, first, parked) = blocked.next(1, b"key", Some(Kind::List), 0) else { panic!("nobody") };
        assert!(Arc::ptr_eq(&first, &a) && blocked.comes_later(1, b"key", Kind::List));
        assert!(!blocked.comes_later(1, b"key", Kind::Zset), "who waits for something else is not in the way");
        assert!(blocked.is_held_up(1, b"key", &b) && !blocked.is_held_up(1, b"key", &a));
        assert!(matches!(blocked.next(1, b"key", Some(Kind::List), 0), Next::Nobody));
        assert!(matches!(a.again(parked), Again::Run(_)), "it has missed something");
        a.over();
        blocked.remove(1, b"key", &a, true);
        assert!(blocked.next_due().is_some(), "those behind it are looked at");
        assert!(matches!(blocked.next(1, b"key", Some(Kind::Zset), 0), Next::Nobody));
        assert!(matches!(blocked.next(1, b"key", Some(Kind::List), 0), Next::Serve(0, ..)));
        b.over();
        blocked.remove(1, b"key", &b, false);
        assert!(blocked.is_empty() && !blocked.is_due());
    }

    #[test]
    fn who_is_being_served_holds_up_those_who_wait_for_the_same() {
        let mut blocked = Blocked::default();
        let [first, list, zset] = [Kind::List, Kind::List, Kind::Zset].map(waiter);
        [&first, &list, &zset].iter().for_each(|waiter| blocked.add(1, b"key", waiter));
        assert!(first.claim().is_some());
        assert!(blocked.is_held_up(1, b"key", &list) && !blocked.is_held_up(1, b"key", &zset));
    }

    #[test]
    fn room_is_kept_for_a_few_lines_and_not_for_many() {
        let (mut blocked, one) = (Blocked::default(), waiter(Kind::List));
        for (lines, is_kept) in [(1usize, true), (1000, false)] {
            let keys: Vec<_> = (0..lines).map(usize::to_be_bytes).collect();
            keys.iter().for_each(|key| blocked.add(1, key, &one));
            keys.iter().for_each(|key| blocked.remove(1, key, &one, false));
            assert!(blocked.is_empty() && (blocked.spare.capacity() > 0) == is_kept, "{lines} lines");
        }
    }

    /// What has to end its wait is there once.
    #[test]
    fn who_asks_for_one_whose_wait_goes_on_changes_nothing() {
        let one = waiter(Kind::List);
        assert!(one.take_ended().is_none() && one.waits() && one.claim().is_some());
    }

    #[test]
    fn who_was_served_in_vain_has_those_behind_it_looked_at() {
        let (mut blocked, [a, b]) = (Blocked::default(), std::array::from_fn(|_| waiter(Kind::Stream)));
        blocked.add(1, b"key", &a);
        blocked.add(1, b"key", &b);
        let parked = a.claim().unwrap();
        blocked.changed(1, b"key", Turn::default());
        assert!(blocked.next_due().is_some());
        assert!(matches!(blocked.next(1, b"key", Some(Kind::Stream), 0), Next::Nobody));
        let Again::Run(parked) = a.again(parked) else { panic!("it has missed something") };
        assert!(matches!(a.again(parked), Again::Waits));
        blocked.look_behind(1, b"key", &a);
        blocked.look_behind(1, b"key", &b);
        assert!(blocked.is_held_up(1, b"key", &b), "it is about to be looked at");
        assert!(blocked.next_due().is_some() && blocked.next_due().is_none());
        let from = blocked.begin(1, b"key");
        assert!(matches!(blocked.next(1, b"key", None, from), Next::Serve(1, ..)));
        assert!(!blocked.is_held_up(1, b"key", &b));
        // What comes before those behind it have their turn is for it, too.
        blocked.pause(1, b"key", false, Some(a.clone()));
        blocked.changed(1, b"key", Turn::default());
        assert!(blocked.next_due().is_some() && blocked.next_due().is_none());
        assert_eq!(blocked.begin(1, b"key"), 0);
    }

    /// Those up to the one that leaves have had their turn; who stood behind it has it next.
    #[test]
    fn one_that_leaves_takes_nobody_s_turn_along() {
        let (mut blocked, [a, b, c]) = (Blocked::default(), std::array::from_fn(|_| waiter(Kind::List)));
        [&a, &b, &c].into_iter().for_each(|one| blocked.add(1, b"key", one));
        blocked.pause(1, b"key", false, Some(b.clone()));
        b.over();
        blocked.remove(1, b"key", &b, false);
        assert_eq!(blocked.begin(1, b"key"), 1);
        blocked.pause(1, b"key", false, Some(a.clone()));
        a.over();
        blocked.remove(1, b"key", &a, false);
        assert_eq!(blocked.begin(1, b"key"), 0);
    }

    #[test]
    fn what_has_come_since_is_for_one_that_was_served_in_vain_too() {
        let (mut blocked, [a, b]) = (Blocked::default(), std::array::from_fn(|_| waiter(Kind::List)));
        blocked.add(1, b"key", &a);
        blocked.add(1, b"key", &b);
        let parked = a.claim().unwrap();
        blocked.changed(1, b"key", Turn::default());
        assert!(matches!(a.again(parked), Again::Waits), "nobody has looked at the key yet");
        blocked.look_behind(1, b"key", &a);
        assert!(blocked.next_due().is_some() && blocked.next_due().is_none());
        let from = blocked.begin(1, b"key");
        assert!(matches!(blocked.next(1, b"key", Some(Kind::List), from), Next::Serve(0, ..)));
    }

    #[test]
    fn who_waits_follows_its_database() {
        let names = Names::new(NamespaceMap::default(), 2);
        let [zero, one] = [b"0", b"1"].map(|name| names.id(name).unwrap());
        let (mut blocked, [a, b]) = (Blocked::default(), std::array::from_fn(|_| waiter(Kind::List)));
        blocked.add(zero, b"key", &a);
        blocked.add(one, b"key", &b);
        let swapped = names.swapped(b"0", b"1").unwrap();
        blocked.follow(&names, &swapped);
        assert_eq!(blocked.next_due().map(|due| due.unknown), Some(true));
        assert!(blocked.next_due().is_some() && blocked.next_due().is_none());
        assert_eq!(blocked.stands(one, b"key", &a, 0), Some(0));
        assert_eq!(blocked.stands(zero, b"key", &b, 0), Some(0));
        assert_eq!(blocked.len(), 2);
    }
}
