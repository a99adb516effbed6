//! Keys that clients have read and keep copies of (CLIENT TRACKING), and who is told when one changes.
//!
//! | mode | told of |
//! |---|---|
//! | default | a key that it has read, once: it stands in the key's shard until then |
//! | BCAST | every key that begins as it has asked, whether it has read it or not |
//!
//! Whoever reads is remembered under the lease under which it has read, and whoever writes tells under the lease of its
//! commit: no change falls between. As in Redis a key is known by its name alone, whatever database it is of; one that
//! is removed when its time is past is a change, and a database that is emptied is a change of everything.
//!
//! Keys that are remembered are bounded in sum: beyond that some are forgotten, and told of as if they had changed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::log::Lsn;

/// What has changed: these keys, or with `None` everything.
pub type Changed<'a> = Option<&'a Arc<[Key]>>;
/// Tells a client, once the log has got there.
type Tell = Box<dyn Fn(Changed<'_>, Lsn) + Send + Sync>;

/// A key, or the beginning of keys.
pub type Key = Box<[u8]>;
/// Those who keep copies of a key, by their clients' ids.
type Keepers = SmallVec<[Arc<Tracker>; 1]>;

/// Keys that are forgotten at once, if there are too many.
const FORGOTTEN: usize = 16;
/// Clients at a key from which on those that have ended are looked for.
const MANY_KEEPERS: usize = 16;

/// A client that keeps copies, from when it says so until it no longer does.
pub struct Tracker {
    /// The client's id.
    pub client: u64,
    /// What it changes itself it is not told of.
    pub noloop: AtomicBool,
    /// `None` once it has ended: nothing of the client is kept for its sake.
    tell: RwLock<Option<Tell>>,
}

impl std::fmt::Debug for Tracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracker({})", self.client)
    }
}

impl Tracker {
    /// Whether it is to be told of a change by this client.
    fn hears(&self, by: u64) -> bool {
        !(self.client == by && self.noloop.load(Ordering::Relaxed))
    }

    fn tell(&self, changed: Changed<'_>, need: Lsn) {
        if let Some(tell) = &*self.tell.read() {
            tell(changed, need);
        }
    }

    fn has_ended(&self) -> bool {
        self.tell.read().is_none()
    }
}

/// Those who keep copies, of all shards.
#[derive(Default)]
pub struct Trackers {
    all: Mutex<HashMap<u64, Arc<Tracker>>>,
    count: AtomicUsize,
    /// Beginnings of keys, and who is told of the keys that begin so.
    prefixes: RwLock<BTreeMap<Key, Vec<Arc<Tracker>>>>,
    broadcasts: AtomicBool,
    /// Keys that are remembered, clients at them, and how many keys may be; 0 for any number.
    keys: AtomicUsize,
    items: AtomicUsize,
    most_keys: AtomicUsize,
}

impl Trackers {
    /// A client keeps copies from now on.
    pub fn begin(&self, client: u64, noloop: bool, tell: Tell) -> Arc<Tracker> {
        let tracker = Arc::new(Tracker { client, noloop: noloop.into(), tell: RwLock::new(Some(tell)) });
        let mut all = self.all.lock();
        all.insert(client, tracker.clone());
        self.count.store(all.len(), Ordering::Relaxed);
        tracker
    }

    /// It is told of all keys that begin so.
    pub fn broadcast(&self, tracker: &Arc<Tracker>, prefix: &[u8]) {
        self.prefixes.write().entry(prefix.into()).or_default().push(tracker.clone());
        self.broadcasts.store(true, Ordering::Relaxed);
    }

    /// It keeps none any more. What is remembered of it goes when its keys change.
    pub fn end(&self, tracker: &Arc<Tracker>) {
        *tracker.tell.write() = None;
        let mut all = self.all.lock();
        all.remove(&tracker.client);
        self.count.store(all.len(), Ordering::Relaxed);
        drop(all);
        if self.broadcasts.load(Ordering::Relaxed) {
            let mut prefixes = self.prefixes.write();
            prefixes.retain(|_, trackers| {
                trackers.retain(|other| !Arc::ptr_eq(other, tracker));
                !trackers.is_empty()
            });
            self.broadcasts.store(!prefixes.is_empty(), Ordering::Relaxed);
        }
    }

    /// Whether there is anybody.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether anybody is told of keys that nobody has read.
    #[inline]
    pub fn broadcasts(&self) -> bool {
        self.broadcasts.load(Ordering::Relaxed)
    }

    /// How many keys may be remembered; 0 for any number.
    pub fn set_most_keys(&self, most: usize) {
        self.most_keys.store(most, Ordering::Relaxed);
    }

    /// Clients, keys that are remembered, clients at them, prefixes.
    pub fn counts(&self) -> [usize; 4] {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        [of(&self.count), of(&self.keys), of(&self.items), self.prefixes.read().len()]
    }

    /// Everything has changed.
    pub fn tell_all(&self, need: Lsn) {
        self.all.lock().values().for_each(|tracker| tracker.tell(None, need));
    }
}

/// Keys that a transaction has changed, by the beginnings that somebody has asked for.
#[derive(Default)]
pub struct Broadcast {
    keys: BTreeMap<Key, Vec<Key>>,
    trackers: Option<Arc<Trackers>>,
    by: u64,
}

impl Broadcast {
    /// A key has changed, by this client.
    #[cold]
    pub fn changed(&mut self, trackers: &Arc<Trackers>, key: &[u8], by: u64) {
        (self.trackers, self.by) = (Some(trackers.clone()), by);
        let prefixes = trackers.prefixes.read();
        let mut matches = |prefix: &[u8]| match self.keys.get_mut(prefix) {
            Some(keys) => keys.push(key.into()),
            None => _ = self.keys.insert(prefix.into(), vec![key.into()]),
        };
        // Whatever there is less of is gone through.
        if prefixes.len() <= key.len() {
            prefixes.keys().filter(|prefix| key.starts_with(prefix)).for_each(|prefix| matches(prefix));
        } else {
            let beginnings = (0..=key.len()).map(|len| &key[..len]);
            beginnings.filter(|prefix| prefixes.contains_key(*prefix)).for_each(matches);
        }
    }

    /// Tells everybody, prefixes and keys in order.
    #[inline]
    pub fn tell(&mut self, need: Lsn) {
        if let Some(trackers) = self.trackers.take() {
            self.tell_some(&trackers, need);
        }
    }

    #[cold]
    fn tell_some(&mut self, trackers: &Trackers, need: Lsn) {
        let prefixes = trackers.prefixes.read();
        for (prefix, mut keys) in std::mem::take(&mut self.keys) {
            keys.sort_unstable();
            keys.dedup();
            let keys: Arc<[Key]> = keys.into();
            let all = prefixes.get(&prefix).into_iter().flatten();
            all.filter(|tracker| tracker.hears(self.by)).for_each(|tracker| tracker.tell(Some(&keys), need));
        }
    }
}

/// The keys of a shard that somebody has a copy of.
#[derive(Default)]
pub struct Tracked {
    keys: HashMap<Key, Keepers, foldhash::fast::RandomState>,
    /// All shards'.
    pub trackers: Arc<Trackers>,
}

impl Tracked {
    /// Of a shard without any.
    pub fn new(trackers: Arc<Trackers>) -> Tracked {
        Tracked { keys: HashMap::default(), trackers }
    }

    /// Whether nobody is to be told of anything here.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A client has read a key.
    pub fn add(&mut self, key: &[u8], tracker: &Arc<Tracker>, need: Lsn) {
        let Some(clients) = self.keys.get_mut(key) else {
            self.keys.insert(key.into(), SmallVec::from_elem(tracker.clone(), 1));
            let count = self.trackers.keys.fetch_add(1, Ordering::Relaxed) + 1;
            self.trackers.items.fetch_add(1, Ordering::Relaxed);
            let most = self.trackers.most_keys.load(Ordering::Relaxed);
            if most != 0 && count > most {
                // More than one, as there may be fewer than there were.
                (0..FORGOTTEN.min(count - most)).for_each(|_| self.forget_some(key, need));
            }
            return;
        };
        match clients.binary_search_by_key(&tracker.client, |other| other.client) {
            // A later tracker of the same client takes the place of an earlier one.
            Ok(at) => clients[at] = tracker.clone(),
            Err(at) => {
                clients.insert(at, tracker.clone());
                self.trackers.items.fetch_add(1, Ordering::Relaxed);
                // Those that have ended go at the latest when the others' number has doubled.
                if clients.len() >= MANY_KEEPERS && clients.len().is_power_of_two() {
                    let before = clients.len();
                    clients.retain(|tracker| !tracker.has_ended());
                    self.trackers.items.fetch_sub(before - clients.len(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Forgets one key, but not this one if there are others.
    fn forget_some(&mut self, but: &[u8], need: Lsn) {
        let some = self.keys.keys().find(|key| ***key != *but).or_else(|| self.keys.keys().next()).cloned();
        if let Some(key) = some {
            self.changed(&key, 0, need);
        }
    }

    /// A key has changed, by this client; 0 for none.
    #[cold]
    pub fn changed(&mut self, key: &[u8], by: u64, need: Lsn) {
        let Some(clients) = self.keys.remove(key) else { return };
        self.trackers.keys.fetch_sub(1, Ordering::Relaxed);
        self.trackers.items.fetch_sub(clients.len(), Ordering::Relaxed);
        let keys: Arc<[Key]> = [key.into()].into();
        clients.iter().filter(|tracker| tracker.hears(by)).for_each(|tracker| tracker.tell(Some(&keys), need));
        if self.keys.capacity() > 1024 && self.keys.len() < self.keys.capacity() / 8 {
            self.keys.shrink_to_fit();
        }
    }

    /// Forgets all, of which somebody else tells.
    pub fn clear(&mut self) {
        self.trackers.keys.fetch_sub(self.keys.len(), Ordering::Relaxed);
        let items = self.keys.values().map(SmallVec::len).sum();
        self.trackers.items.fetch_sub(items, Ordering::Relaxed);
        self.keys = HashMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = Arc<Mutex<Vec<String>>>;

    fn tracker(trackers: &Trackers, told: &Told, client: u64, noloop: bool) -> Arc<Tracker> {
        let told = told.clone();
        let tell = move |changed: Changed<'_>, need: Lsn| {
            let keys = changed.map(|keys| keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect());
            told.lock().push(format!("{client} {need} {}", keys.map_or("all".into(), |keys: Vec<_>| keys.join(","))));
        };
        trackers.begin(client, noloop, Box::new(tell))
    }

    #[test]
    fn who_has_read_a_key_is_told_once_and_forgotten() {
        let (trackers, told) = (Arc::new(Trackers::default()), Told::default());
        let mut tracked = Tracked::new(trackers.clone());
        let [a, b] = [(1, false), (2, true)].map(|(client, noloop)| tracker(&trackers, &told, client, noloop));
        for key in [b"k", b"l"] {
            tracked.add(key, &a, 0);
            tracked.add(key, &b, 0);
            tracked.add(key, &a, 0);
        }
        assert_eq!(trackers.counts(), [2, 2, 4, 0]);
        tracked.changed(b"k", 2, 7);
        tracked.changed(b"k", 3, 8);
        assert_eq!(*told.lock(), ["1 7 k"], "who has changed it itself did not want to be told");
        trackers.end(&a);
        tracked.changed(b"l", 1, 9);
        assert_eq!(told.lock()[1..], ["2 9 l"]);
        assert_eq!((trackers.counts(), tracked.is_empty()), ([1, 0, 0, 0], true));
        // A bounded number: one that is forgotten is told of.
        trackers.set_most_keys(2);
        (0..5u8).for_each(|n| tracked.add(&[b'0' + n], &b, 10));
        assert_eq!((trackers.counts()[1], told.lock().len()), (2, 5));
        assert!(tracked.keys.contains_key(&b"4"[..]), "the one that was just read stays");
        tracked.clear();
        trackers.tell_all(11);
        assert_eq!((trackers.counts()[1..3].to_vec(), told.lock()[5].clone()), (vec![0, 0], "2 11 all".into()));
    }

    /// Of those who have read a key that nobody changes few are remembered that have ended since.
    #[test]
    fn who_has_ended_is_not_remembered_for_ever() {
        let (trackers, told) = (Arc::new(Trackers::default()), Told::default());
        let mut tracked = Tracked::new(trackers.clone());
        for client in 1..1000 {
            let one = tracker(&trackers, &told, client, false);
            tracked.add(b"k", &one, 0);
            trackers.end(&one);
        }
        let [clients, keys, items, _] = trackers.counts();
        assert!((clients, keys) == (0, 1) && items <= MANY_KEEPERS, "{items}");
        tracked.changed(b"k", 0, 1);
        assert_eq!((trackers.counts(), told.lock().len()), ([0; 4], 0));
    }

    #[test]
    fn a_broadcast_tells_of_all_keys_of_a_commit_at_once() {
        let (trackers, told) = (Arc::new(Trackers::default()), Told::default());
        let [a, b] = [(1, false), (2, true)].map(|(client, noloop)| tracker(&trackers, &told, client, noloop));
        trackers.broadcast(&a, b"");
        trackers.broadcast(&b, b"x");
        trackers.broadcast(&b, b"y");
        let mut broadcast = Broadcast::default();
        [&b"y1"[..], b"k", b"x2", b"k"].iter().for_each(|key| broadcast.changed(&trackers, key, 5));
        broadcast.tell(4);
        broadcast.tell(5);
        broadcast.changed(&trackers, b"x3", 2);
        broadcast.tell(6);
        assert_eq!(*told.lock(), ["1 4 k,x2,y1", "2 4 x2", "2 4 y1", "1 6 x3"]);
        assert_eq!(trackers.counts(), [2, 0, 0, 3]);
        trackers.end(&b);
        trackers.end(&a);
        assert!(!trackers.broadcasts() && !trackers.any());
    }

    /// A beginning may be all of a key. However many others there are, and whichever way it is found.
    #[test]
    fn a_key_begins_as_all_of_it_is() {
        for others in [0, 9] {
            let (trackers, told) = (Arc::new(Trackers::default()), Told::default());
            let one = tracker(&trackers, &told, 1, false);
            let many = (0..others).map(|n| format!("other{n}").into_bytes());
            many.chain([b"key".to_vec()]).for_each(|prefix| trackers.broadcast(&one, &prefix));
            let mut broadcast = Broadcast::default();
            [&b"ke"[..], b"key", b"keys"].iter().for_each(|key| broadcast.changed(&trackers, key, 5));
            broadcast.tell(4);
            assert_eq!(*told.lock(), ["1 4 key,keys"], "beside {others}");
        }
    }
}
