//! A step of the model: a command in slices.

use std::ops::Bound;

use super::super::world::{NAMES, Value, shown};
use super::{Run, trace};
use crate::Error;
use crate::shard::memory::object::{Body, Kind};
use crate::shard::txn::build::{Build, Shape};
use crate::shard::txn::rest::Rests;
use crate::shard::txn::{Mark, Txn, WriteSet};

impl Run {
    /// A collection goes to another key, while the world goes on between the slices.
    pub(super) fn copy_in_slices(&mut self) {
        let (name, now_ms, engine) = (*self.rng.pick(&NAMES), self.world.now_ms, self.world.engine().clone());
        let is_live = |value: &Value| value.expire_ms == 0 || value.expire_ms > now_ms;
        let db = self.world.model.get(name).into_iter().flatten();
        let largest = db.filter(|(_, value)| value.kind != Kind::String && is_live(value));
        let Some((from, value)) = largest.max_by_key(|(_, value)| value.elements.len()) else { return };
        let (from, value) = (from.clone(), Value { expire_ms: 0, ..value.clone() });
        let to = self.rng.pick(&self.keys).clone();
        if from == to || !self.held.is_empty() {
            return;
        }
        trace(|| format!("{name:?} copy {} to {} in slices", shown(b"", &from), shown(b"", &to)));
        self.held = vec![from.clone(), to.clone()];
        let ns = self.world.ns(name);
        let mut shards = [engine.router.shard_of(&from), engine.router.shard_of(&to)].to_vec();
        shards.sort_unstable();
        shards.dedup();
        let mut set = WriteSet::default();
        let mut lease = engine.lease(&shards);
        let mut txn = Txn::new(&mut lease, &engine.router, &mut set, now_ms, true);
        txn.may_do(Rests::Holding(vec![(from.clone(), false), (to.clone(), true)]));
        let found = txn.find(ns, &from).unwrap().unwrap();
        let Body { encoding, form, size, extra, .. } = *txn.body(found);
        let mut build = Build::new(&txn, ns, &to).unwrap();
        let mut seen = 0;
        let copied = txn.each_in_slices(found, Bound::Unbounded, Bound::Unbounded, |element, value| {
            seen += 1;
            if seen % 16 == 0 && engine.try_lease(&shards).is_some() {
                self.meanwhile();
            }
            build.put(element, value)
        });
        let wanted = self.wanted(&value);
        let mut wrong = None;
        let looked_up = copied.and_then(|()| {
            txn.look_up_in_slices(found, wanted.iter().map(|key| &key[..]), |place, read| {
                seen += 1;
                if seen % 16 == 0 && engine.try_lease(&shards).is_some() {
                    self.meanwhile();
                }
                if read != value.elements.get(&wanted[place]).map(|value| &value[..]) {
                    wrong = Some(wanted[place].clone());
                }
                Ok(())
            })
        });
        if looked_up.is_ok() {
            // Of a database that was flushed meanwhile there may be anything.
            assert_eq!(wrong, None, "an element is not what it was");
        }
        let shape = Shape { kind: value.kind, encoding, form, size, extra, expire_ms: 0 };
        let built = looked_up.and_then(|()| build.finish(&mut txn, shape));
        assert!(txn.let_go().is_empty(), "nobody waits");
        let need = match built {
            Ok(_) => Some(txn.commit(&engine.log)),
            Err(error) => {
                assert_eq!(error, Error::Cold, "the database was flushed");
                txn.rollback_to(Mark::default());
                None
            }
        };
        drop(lease);
        self.held.clear();
        if let Some(need) = need {
            // Two that were swapped meanwhile were so after it.
            let now = NAMES.iter().find(|name| self.world.ns(name) == ns).unwrap();
            self.world.model.get_mut(now).unwrap().insert(to, value);
            self.world.note();
            self.world.engine().write_out(need);
        }
    }

    /// Elements to be looked up: some that a collection has, in no order, and others.
    fn wanted(&mut self, value: &Value) -> Vec<Vec<u8>> {
        let mut wanted: Vec<_> = value.elements.keys().filter(|_| self.rng.chance(70)).cloned().collect();
        for n in 0..wanted.len() {
            let other = self.rng.below(wanted.len());
            wanted.swap(n, other);
            if self.rng.chance(10) {
                wanted[n].push(0);
            }
        }
        wanted
    }
}
