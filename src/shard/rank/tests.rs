//! The index against a sorted set, over real flights.

use super::build::build_with;
use super::merge::Run;
use super::record::{Body, Root, damaged};
use super::update::{Update, update_with};
use super::*;
use crate::codec::cursor::Cursor;
use crate::codec::element::Group;
use crate::codec::key::element_prefix;
use crate::shard::keyspace::walk::tests::chance;
use crate::store::{Partition, Store, StoreError, StoreOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const TINY: Shape = Shape { block: 8, fan: 8, small: 20 };
const GROUP: Group = Group::ZsetSort;

type Model = BTreeSet<Vec<u8>>;
type Item = (Vec<u8>, Option<Vec<u8>>);

fn element(text: &[u8]) -> Vec<u8> {
    [&[GROUP.tag()], text].concat()
}

fn numbered(n: u64) -> Vec<u8> {
    element(&n.to_be_bytes())
}

/// One body in a store, with neighbours that must not be counted.
struct World {
    store: Store,
    shape: Shape,
    prefix: Vec<u8>,
    model: Model,
    generation: u64,
    damaged: bool,
    _dir: TempDir,
}

impl World {
    fn new(shape: Shape) -> World {
        let dir = crate::util::scratch::tempdir().unwrap();
        let options = StoreOptions { shards: Some(1), cache_bytes: 1 << 22, nice: None, ..StoreOptions::default() };
        let store = Store::open(dir.path(), options).unwrap();
        let prefix = |version| {
            let mut prefix = Vec::new();
            element_prefix(3, b"key", version, &mut prefix);
            prefix
        };
        let mut others = Vec::new();
        for version in [6, 8] {
            others.extend([[prefix(version), element(b"a")].concat(), [prefix(version), element(b"\xff")].concat()]);
        }
        for tag in [4, 6, 10] {
            others.push([prefix(7), vec![tag, 1]].concat());
        }
        others.sort();
        store.partition(0).ingest(others.into_iter().map(|key| (key, Some(Vec::new())))).unwrap();
        World { store, shape, prefix: prefix(7), model: Model::new(), generation: 0, damaged: false, _dir: dir }
    }

    fn partition(&self) -> &Partition {
        self.store.partition(0)
    }

    fn body(&self) -> Body<'_> {
        Body { partition: self.partition(), prefix: &self.prefix, group: GROUP }
    }

    fn open(&self) -> Option<Counted<'_>> {
        Counted::open(self.partition(), &self.prefix, GROUP).unwrap()
    }

    /// The records of a flight after which the body holds `after`; and whether it has an index then.
    fn flight(&self, after: &Model) -> (Vec<Item>, bool) {
        let gone = self.model.difference(after).map(|element| (element.as_slice(), -1));
        let come = after.difference(&self.model).map(|element| (element.as_slice(), 1));
        let changes: BTreeMap<&[u8], i8> = gone.chain(come).collect();
        let changes: Vec<(&[u8], i8)> = changes.into_iter().collect();
        let mut items: Vec<Item> =
            changes.iter().map(|(element, by)| ([&self.prefix, *element].concat(), (*by > 0).then(Vec::new))).collect();
        if let (false, Ok(Some(root))) = (self.damaged, self.body().root()) {
            // Or counting anew would hide what is wrong with it.
            Update { shape: self.shape, body: self.body() }.plan(root, 0, &changes).unwrap();
        }
        let from = items.len();
        let mut out = |key: &[u8], value: Option<&[u8]>| items.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        let size = after.len() as u64;
        let indexed = update_with(self.shape, self.body(), self.generation + 1, size, &changes, &mut out).unwrap();
        assert!(items[from..].is_sorted_by(|a, b| a.0 < b.0), "records ascend");
        items.sort();
        (items, indexed)
    }

    fn land(&mut self, after: Model) -> bool {
        let (items, indexed) = self.flight(&after);
        self.partition().ingest(items).unwrap();
        self.generation += 1;
        self.model = after;
        indexed
    }

    /// Lands, and holds the whole index against the model.
    fn check(&mut self, after: Model) {
        let had = self.open().is_some();
        let changed = after != self.model;
        let indexed = self.land(after);
        assert_eq!(indexed, had || self.model.len() as u64 > self.shape.small);
        assert_eq!(self.open().is_some(), indexed);
        verify(self.partition(), &self.prefix, GROUP).unwrap();
        if indexed {
            self.check_records(changed || !had);
        }
    }

    /// The counters of each level.
    fn levels(&self) -> (Vec<Vec<Run>>, Option<Root>) {
        let mut levels: Vec<Vec<Run>> = Vec::new();
        let mut root = None;
        for record in self.body().index().unwrap() {
            let (key, value) = record.unwrap();
            let (level, start) = key[self.prefix.len() + 1..].split_first().unwrap();
            if *level == 255 {
                assert_eq!(start, b"");
                root = Some(Root::decode(&value).unwrap());
                continue;
            }
            let level = usize::from(*level);
            assert!(level <= levels.len());
            if level == levels.len() {
                levels.push(Vec::new());
            }
            levels[level].push((start.to_vec(), Cursor::new(&value).varint().unwrap()));
        }
        (levels, root)
    }

    fn check_records(&self, written: bool) {
        let (levels, root) = self.levels();
        let root = root.unwrap();
        assert_eq!(root.total, self.model.len() as u64);
        assert_eq!(usize::from(root.levels), levels.len());
        if written {
            assert_eq!(root.generation, self.generation);
        }
        let mut children: Vec<Run> = self.model.iter().map(|element| (element[1..].to_vec(), 1)).collect();
        for (level, counters) in levels.iter().enumerate() {
            assert_eq!(counters[0].0, b"", "level {level} begins at its beginning");
            let most = 2 * self.shape.most(level as u8) as usize;
            let mut rest = &children[..];
            for (at, (start, count)) in counters.iter().enumerate() {
                let end = counters.get(at + 1).map(|(start, _)| start);
                let (mine, behind) = rest.split_at(rest.partition_point(|(s, _)| end.is_none_or(|end| s < end)));
                rest = behind;
                assert_eq!(mine.iter().map(|(_, count)| count).sum::<u64>(), *count);
                assert!(mine.len() <= most && (*count > 0 || at == 0), "{} children of level {level}", mine.len());
                assert!(level == 0 || mine[0].0 == *start, "level {level} begins where a child does");
            }
            children = counters.clone();
        }
        assert!(children.len() as u64 <= self.shape.fan);
        assert!(children.len() > 1 || levels.len() == 1, "the highest level is needed");
    }

    /// Asks for places and offsets at random.
    fn check_reads(&self, chance: &mut impl FnMut(u64) -> u64, any: &mut impl FnMut() -> Vec<u8>) {
        let Some(counted) = self.open() else { return };
        assert_eq!(counted.total(), self.model.len() as u64);
        for _ in 0..20 {
            let at = any();
            let block = counted.locate(&at).unwrap();
            self.check_block(&block);
            assert!(block.start <= at && block.end.is_none_or(|end| at < end));
        }
        // What memory adds and hides.
        let hidden: Model = self.model.iter().filter(|_| chance(7) == 0).cloned().collect();
        let born: Model = (0..chance(30)).map(|_| any()).filter(|element| !self.model.contains(element)).collect();
        let view: Vec<&Vec<u8>> =
            self.model.difference(&hidden).chain(&born).collect::<BTreeSet<_>>().into_iter().collect();
        let mut delta = |start: &[u8]| {
            let front = |set: &Model| set.range(..start.to_vec()).count() as i64;
            front(&born) - front(&hidden)
        };
        for _ in 0..20 {
            let n = chance(view.len() as u64 + 2);
            let Some(block) = counted.select(n, &mut delta).unwrap() else {
                assert!(n >= view.len() as u64);
                continue;
            };
            self.check_block(&block);
            let element = view[n as usize];
            assert!(block.start <= *element && block.end.as_ref().is_none_or(|end| element < end), "offset {n}");
        }
        assert!(counted.is_current().unwrap());
    }

    fn check_block(&self, block: &Block) {
        let before = self.model.range(..block.start.clone()).count() as u64;
        let until = block.end.as_ref().map_or(self.model.len(), |end| self.model.range(..end.clone()).count()) as u64;
        assert_eq!((block.before, block.count), (before, until - before));
    }
}

#[test]
fn random_flights_keep_the_index_true() {
    for seed in 1..=6 {
        let mut world = World::new(TINY);
        let mut dice = chance(seed);
        // Few letters: texts that begin with one another, the empty one among them.
        let mut letters = chance(seed + 100);
        let mut any = || {
            let len = letters(9);
            element(&(0..len).map(|_| [0, b'a', b'b', 0xff][letters(4) as usize]).collect::<Vec<u8>>())
        };
        for round in 0..60 {
            let mut after = world.model.clone();
            let shrinks = round % 20 >= 12;
            let most = if dice(3) == 0 { 600 } else { 20 };
            for _ in 0..1 + dice(most) {
                if shrinks && dice(8) != 0 {
                    let at = any();
                    let near = after.range(at.clone()..).next().or_else(|| after.range(..at).next_back()).cloned();
                    near.map(|element| after.remove(&element));
                } else {
                    after.insert(any());
                }
            }
            if dice(10) == 0 {
                // A range goes as a whole.
                let (a, b) = (any(), any());
                after.retain(|element| *element < a || *element > b);
            }
            if round % 20 == 19 && dice(2) == 0 {
                after.clear();
            }
            world.check(after);
            world.check_reads(&mut dice, &mut any);
        }
    }
}

#[test]
fn an_index_grows_to_many_levels_and_shrinks_to_nothing() {
    let mut world = World::new(TINY);
    let mut dice = chance(3);
    let mut more = chance(4);
    let mut any = || numbered(more(1 << 31));
    let mut highest = 0;
    while world.model.len() < 60_000 {
        let mut after = world.model.clone();
        let few = world.model.len() / 3 + 300;
        after.extend((0..few).map(|_| any()));
        world.check(after);
        world.check_reads(&mut dice, &mut any);
        highest = highest.max(world.levels().0.len());
    }
    assert!(highest >= 4, "{highest} levels");
    while !world.model.is_empty() {
        let rest = world.model.len() / 3;
        let after: Model = world.model.iter().filter(|_| rest > 10 && dice(3) == 0).cloned().collect();
        world.check(after);
    }
    let (levels, root) = world.levels();
    assert_eq!(levels, [[(Vec::new(), 0)]]);
    assert_eq!(root.map(|root| root.total), Some(0));
    assert_eq!(world.open().unwrap().select(0, &mut |_| 0).unwrap(), None);
    assert_eq!(world.open().unwrap().locate(&numbered(1)).unwrap().count, 0);
    world.check((0..100).map(numbered).collect());
}

/// They have no more together than a new one.
#[test]
fn a_block_is_joined_to_one_that_has_just_room_for_it() {
    for (level, front, joined) in [(0, 7, 1), (0, 8, 0), (1, 7, 1), (1, 8, 0)] {
        let mut world = World::new(TINY);
        world.check((0..512).map(numbered).collect());
        let (levels, _) = world.levels();
        let children: Vec<Run> = match level {
            0 => world.model.iter().map(|element| (element[1..].to_vec(), 1)).collect(),
            _ => levels[0].clone(),
        };
        let at = |runs: &[Run], start: &[u8]| runs.partition_point(|run| run.0[..] <= *start).max(1) - 1;
        // Of two blocks so many children are left.
        let stays = |element: &Vec<u8>| {
            let child = at(&children, &element[1..]);
            let block = at(&levels[level], &element[1..]);
            let first = children.partition_point(|run| run.0 < levels[level][block].0);
            [front, 1].get(block).is_none_or(|left| child - first < *left)
        };
        let after: Model = world.model.iter().filter(|element| stays(element)).cloned().collect();
        world.check(after);
        assert_eq!(world.levels().0[level].len(), levels[level].len() - joined, "level {level}, {front} in front");
    }
}

#[test]
fn a_queue_leaves_nothing_behind() {
    for shape in [TINY, SHAPE] {
        let mut world = World::new(shape);
        let (mut head, mut tail) = (0, 0);
        let mut dice = chance(9);
        for round in 0..60 {
            tail += dice(if round < 40 { 900 } else { 100 });
            head = (head + dice(700)).min(tail);
            world.check((head..tail).map(numbered).collect());
        }
        let (levels, _) = world.levels();
        let most = 2 + 4 * (tail - head) / shape.block;
        assert!(levels[0].len() as u64 <= most, "{} blocks for {} elements", levels[0].len(), tail - head);
    }
}

#[test]
fn a_small_body_has_no_index() {
    let mut world = World::new(SHAPE);
    assert!(!world.land((0..SMALL).map(numbered).collect()));
    assert!(world.open().is_none());
    assert!(world.land((0..=SMALL).map(numbered).collect()));
    world.check_records(true);
    // It is kept from then on; a flight that changes nothing of the group writes nothing.
    world.check((0..9).map(numbered).collect());
    assert!(world.flight(&world.model).0.is_empty());
}

#[test]
fn what_was_ingested_before_is_counted_by_build() {
    for n in [0, 1, 8, 9, 64, 65, 5000] {
        let mut world = World::new(TINY);
        world.model = (0..n).map(numbered).collect();
        let items = world.model.iter().map(|element| ([&world.prefix[..], element].concat(), Some(Vec::new())));
        world.partition().ingest(items).unwrap();
        world.generation = 4;
        let mut records: Vec<Item> = Vec::new();
        let mut out = |key: &[u8], value: Option<&[u8]>| records.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        build_with::<(&[u8], i8)>(TINY, world.body(), 4, &[], &mut out).unwrap();
        world.partition().ingest(records).unwrap();
        world.check_records(true);
        let root = world.open().unwrap();
        assert_eq!((root.generation(), root.total()), (4, n));
        let mut again: Vec<Item> = Vec::new();
        build(world.partition(), &world.prefix, GROUP, 5, &mut |key, value| {
            again.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        })
        .unwrap();
        world.partition().ingest(again).unwrap();
        world.shape = SHAPE;
        world.generation = 5;
        world.check_records(true);
    }
}

#[test]
fn a_damaged_index_is_counted_anew() {
    let n = 2000;
    for damage in 0..6 {
        let mut world = World::new(TINY);
        world.land((0..n).map(numbered).collect());
        let body = world.body();
        let (levels, _) = world.levels();
        let item: Item = match damage {
            0 => (body.root_key(), Some(vec![1, 2])),
            1 => (body.key(0, b""), None),
            2 => (body.key(0, b""), Some(Vec::new())),
            3 => (body.key(0, b""), Some(vec![1])),
            4 => (body.key(1, &levels[1][1].0), Some(vec![3])),
            _ => (body.root_key(), Some(Root { generation: 1, revision: 1, levels: 9, total: 1 }.encode())),
        };
        world.partition().ingest([item]).unwrap();
        if damage < 3 {
            let read = Counted::open(world.partition(), &world.prefix, GROUP)
                .and_then(|counted| counted.unwrap().locate(&numbered(0)));
            assert!(matches!(read, Err(StoreError::Codec(_))), "damage {damage}");
        }
        world.damaged = true;
        let some: Model = (0..n).filter(|n| n % 97 > 40).map(numbered).collect();
        assert!(world.land(some));
        world.check_records(true);
    }
    assert_eq!(damaged("so").to_string(), "damaged record: rank index: so");
}

#[test]
fn a_flight_that_lands_during_a_read_is_noticed() {
    let mut world = World::new(TINY);
    let old: Model = (0..3000).map(|n| numbered(2 * n)).collect();
    let new: Model = (0..2500).map(|n| numbered(3 * n + 1)).collect();
    world.land(old);
    let (items, _) = world.flight(&new);
    let counted = world.open().unwrap();
    let mut items = Some(items);
    let mut calls = 0;
    let block = counted.select(700, &mut |_| {
        calls += 1;
        if calls == 5 {
            world.partition().ingest(items.take().unwrap()).unwrap();
        }
        0
    });
    let block = block.unwrap().unwrap();
    assert!(!counted.is_current().unwrap());
    assert_eq!(counted.generation(), 1);
    assert_eq!(counted.locate(&numbered(0)).unwrap().before, 0);
    world.model = new;
    world.check_block(&block);
    assert!(block.before <= 700 && 700 < block.before + block.count);
}

#[test]
fn readers_see_the_index_of_one_flight() {
    let mut world = World::new(TINY);
    let models: Vec<Model> =
        (0..12u64).map(|at| (0..400 + 150 * at).map(|n| numbered(n * (at + 1))).collect()).collect();
    world.land(models[0].clone());
    let store = world.store.partition(0).clone();
    let prefix = world.prefix.clone();
    let (states, done) = (Arc::new(models.clone()), Arc::new(Mutex::new(false)));
    let reader = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let mut dice = chance(1);
            let mut current = 0;
            while !*done.lock().unwrap() {
                let counted = Counted::open(&store, &prefix, GROUP).unwrap().unwrap();
                let at = numbered(dice(12_000));
                let located = counted.locate(&at).unwrap();
                let selected = counted.select(dice(400), &mut |_| 0).unwrap().unwrap();
                if !counted.is_current().unwrap() {
                    continue;
                }
                current += 1;
                let model = &states[counted.generation() as usize - 1];
                for block in [located, selected] {
                    assert_eq!(block.before, model.range(..block.start).count() as u64);
                }
            }
            current
        }
    });
    for model in &models[1..] {
        world.land(model.clone());
    }
    *done.lock().unwrap() = true;
    assert!(reader.join().unwrap() > 0);
}
