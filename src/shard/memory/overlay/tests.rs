//! The overlay against a `BTreeMap`, and its invariants after every step.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;

use super::node::{Children, FAN_OUT};
use super::*;

type Model = BTreeMap<Vec<u8>, Entry>;

/// What an entry has beside its key.
#[derive(Debug, Clone)]
struct Element {
    value: Option<Vec<u8>>,
    state: u8,
}

impl Element {
    fn at(&self, key: &[u8]) -> Entry {
        Entry::new(key, self.value.as_deref(), self.state)
    }
}

/// Panics unless all invariants of the module hold.
fn check(overlay: &Overlay) {
    let (sums, heap, _) = match &overlay.root {
        Root::Leaf(leaf) => check_leaf(leaf),
        Root::Inner(inner) => {
            assert!(inner.len() > 1, "a root with one child");
            check_inner(inner)
        }
    };
    assert_eq!(overlay.sums, sums);
    assert_eq!(overlay.heap_bytes, heap);
    assert_eq!(overlay.bytes(), overlay.len() * ENTRY_BYTES + heap);
    let keys: Vec<_> = overlay.iter().map(Entry::key).collect();
    assert!(keys.is_sorted_by(|a, b| a < b), "keys ascend");
    assert_eq!(keys.len(), overlay.len());
}

fn check_leaf(leaf: &Leaf) -> (Sums, usize, usize) {
    assert!(leaf.len() <= LEAF_ENTRIES);
    leaf.check_arrays();
    let (mut sums, mut heap) = (Sums::default(), 0);
    for at in 0..leaf.len() {
        sums += leaf.entry(at).sums();
        heap += leaf.entry(at).heap_bytes();
    }
    assert_eq!(leaf.sums(), sums);
    (sums, heap, 0)
}

/// Sums, bytes elsewhere and depth of a node.
fn check_inner(inner: &Inner) -> (Sums, usize, usize) {
    assert!((1..=FAN_OUT).contains(&inner.len()));
    let below: Vec<_> = match inner.children() {
        Children::Leaves(leaves) => leaves.iter().map(check_leaf).collect(),
        Children::Inners(inners) => inners.iter().map(check_inner).collect(),
    };
    assert_eq!(inner.child_sums(), below.iter().map(|b| b.0).collect::<Vec<_>>());
    assert!(below.iter().all(|b| b.0.entries > 0 && b.2 == below[0].2), "no empty node, one depth");
    for at in 1..inner.len() {
        let bound = inner.bound(at);
        assert!(edge_key(inner, at - 1, true) < bound && bound <= edge_key(inner, at, false), "bounds part children");
    }
    (below.iter().map(|b| &b.0).sum(), below.iter().map(|b| b.1).sum(), below[0].2 + 1)
}

/// The first or last key below a child.
fn edge_key(inner: &Inner, at: usize, last: bool) -> &[u8] {
    match inner.children() {
        Children::Leaves(leaves) => leaves[at].key(if last { leaves[at].len() - 1 } else { 0 }),
        Children::Inners(inners) => edge_key(&inners[at], if last { inners[at].len() - 1 } else { 0 }, last),
    }
}

fn leaves(overlay: &Overlay) -> usize {
    fn count(inner: &Inner) -> usize {
        match inner.children() {
            Children::Leaves(leaves) => leaves.len(),
            Children::Inners(inners) => inners.iter().map(count).sum(),
        }
    }
    match &overlay.root {
        Root::Leaf(_) => 1,
        Root::Inner(inner) => count(inner),
    }
}

fn same(overlay: &Overlay, model: &Model) {
    check(overlay);
    assert!(overlay.iter().eq(model.values()));
    assert!(overlay.iter().rev().eq(model.values().rev()));
}

fn sums_of<'a>(entries: impl Iterator<Item = &'a Entry>) -> Sums {
    entries.fold(Sums::default(), |all, entry| all + entry.sums())
}

/// Keys of two groups and of any length up to too long to stand inline, in the order of `n`.
fn key(n: u32) -> Vec<u8> {
    let tag = if n < 5_000 { 1 } else { 2 };
    let tail = if n.is_multiple_of(7) { ":and a tail that does not fit" } else { "" };
    [&[tag][..], format!("e:{n:06}{tail}").as_bytes()].concat()
}

fn clean(key: &[u8]) -> Entry {
    Entry::new(key, Some(b"value"), state::BASE | state::NEXT)
}

fn element() -> impl Strategy<Value = Element> {
    let value = prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..40));
    let states = vec![0, 1, 4, 5, 8, 16, 48, 49, 32, 44];
    (value, prop::sample::select(states)).prop_map(|(value, state)| Element { value, state })
}

const KEYS: u32 = 10_000;

#[derive(Debug, Clone)]
enum Step {
    Insert(u32, Element),
    /// Unless it is there.
    Add(u32, Element),
    Remove(u32),
    Update(u32, Element),
    /// Many insertions: from where, how many, how far apart, downwards.
    Run(u32, u32, u32, bool, Element),
    Clear(u32, u32, bool),
    Scatter(u32, u32, Element),
    VisitDirty(u32, usize, Element),
    Evict(u32, usize),
    Touch(u32),
    Before(u32),
    Select(u64),
    Range(Bound<u32>, Bound<u32>, u64),
    Clone,
}

fn bound() -> impl Strategy<Value = Bound<u32>> {
    prop_oneof![
        Just(Bound::Unbounded),
        (0..KEYS).prop_map(Bound::Included),
        (0..KEYS).prop_map(Bound::Excluded),
        // Likely to meet.
        (4_998u32..5_002).prop_map(Bound::Included),
        (4_998u32..5_002).prop_map(Bound::Excluded),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0..KEYS, element()).prop_map(|(k, e)| Step::Insert(k, e)),
        1 => (0..KEYS, element()).prop_map(|(k, e)| Step::Add(k, e)),
        1 => (0..KEYS).prop_map(Step::Remove),
        1 => (0..KEYS, element()).prop_map(|(k, e)| Step::Update(k, e)),
        4 => (0..KEYS, 1u32..3_000, 1u32..4, any::<bool>(), element())
            .prop_map(|(k, n, by, down, e)| Step::Run(k, n, by, down, e)),
        2 => (0..KEYS, 1u32..2_500, any::<bool>()).prop_map(|(k, n, down)| Step::Clear(k, n, down)),
        2 => (1u32..KEYS, 1u32..2_000, element()).prop_map(|(k, n, e)| Step::Scatter(k, n, e)),
        2 => (0..KEYS, 0usize..300, element()).prop_map(|(k, n, e)| Step::VisitDirty(k, n, e)),
        2 => (0..KEYS, 0usize..60).prop_map(|(k, n)| Step::Evict(k, n)),
        1 => (0..KEYS).prop_map(Step::Touch),
        2 => (0..KEYS).prop_map(Step::Before),
        1 => (0u64..KEYS.into()).prop_map(Step::Select),
        4 => (bound(), bound(), any::<u64>()).prop_map(|(l, u, turns)| Step::Range(l, u, turns)),
        1 => Just(Step::Clone),
    ]
}

fn insert(overlay: &mut Overlay, model: &mut Model, n: u32, element: &Element) {
    let entry = element.at(&key(n));
    assert_eq!(overlay.insert(entry.clone()), model.insert(key(n), entry));
}

fn remove(overlay: &mut Overlay, model: &mut Model, n: u32) {
    assert_eq!(overlay.remove(&key(n)), model.remove(&key(n)));
}

fn change(overlay: &mut Overlay, model: &mut Model, step: Step) {
    match step {
        Step::Insert(n, element) => insert(overlay, model, n, &element),
        Step::Add(n, element) => {
            let entry = element.at(&key(n));
            assert_eq!(overlay.merge(entry.clone(), |_, _| false), None);
            model.entry(key(n)).or_insert(entry);
        }
        Step::Remove(n) => remove(overlay, model, n),
        Step::Update(n, element) => {
            let entry = element.at(&key(n));
            let old = overlay.update(&key(n), |e| std::mem::replace(e, entry.clone()));
            assert_eq!(old, model.get_mut(&key(n)).map(|e| std::mem::replace(e, entry)));
        }
        Step::Run(start, n, by, down, element) => {
            for i in 0..n {
                let n = if down { start.checked_sub(i * by) } else { Some(start + i * by) };
                n.into_iter().for_each(|n| insert(overlay, model, n, &element));
            }
        }
        Step::Clear(start, n, down) => {
            for i in 0..n {
                remove(overlay, model, if down { start + n - i } else { start + i });
            }
        }
        Step::Scatter(start, n, element) => {
            for i in 0..n {
                insert(overlay, model, i.wrapping_mul(2_654_435_761).wrapping_add(start) % KEYS, &element);
            }
        }
        Step::VisitDirty(from, most, element) => visit_dirty(overlay, model, &key(from), most, element),
        Step::Evict(from, leaves) => evict(overlay, model, &key(from), leaves),
        Step::Clone => {
            let clone = overlay.clone();
            assert_eq!(clone, *overlay);
            *overlay = clone;
        }
        Step::Touch(_) | Step::Before(_) | Step::Select(_) | Step::Range(..) => ask(overlay, model, step),
    }
}

fn ask(overlay: &Overlay, model: &Model, step: Step) {
    match step {
        Step::Touch(n) => assert_eq!(overlay.get(&key(n)), model.get(&key(n))),
        Step::Before(n) => {
            let before = sums_of(model.range(..key(n)).map(|(_, e)| e));
            assert_eq!((overlay.before(&key(n)), overlay.live_before(&key(n))), (before, before.live));
        }
        Step::Select(n) => {
            assert_eq!(overlay.select_live(n), model.values().filter(|e| e.is_live()).nth(n as usize));
        }
        Step::Range(lower, upper, mut turns) => {
            let (lower, upper) = (lower.map(key), upper.map(key));
            let as_slices = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            let mut range = overlay.range(as_slices.0, as_slices.1);
            let inside = |k: &&Vec<u8>| std::ops::RangeBounds::contains(&(lower.clone(), upper.clone()), *k);
            let mut expected = model.iter().filter(|(k, _)| inside(k)).map(|(_, e)| e);
            loop {
                let pair = match turns % 2 {
                    0 => (range.next(), expected.next()),
                    _ => (range.next_back(), expected.next_back()),
                };
                turns = turns.rotate_right(1);
                assert_eq!(pair.0, pair.1);
                if pair.1.is_none() {
                    break assert_eq!((range.next(), range.next_back()), (None, None));
                }
            }
        }
        _ => {}
    }
}

fn visit_dirty(overlay: &mut Overlay, model: &mut Model, from: &[u8], most: usize, element: Element) {
    let mut visited = Vec::new();
    let next = overlay.visit_dirty(from, most, |e| {
        visited.push(e.key().to_vec());
        *e = element.at(visited.last().unwrap());
        1
    });
    let dirty = model.range(from.to_vec()..).filter(|(_, e)| e.state & state::DIRTY != 0);
    let mut dirty: Vec<_> = dirty.map(|(key, _)| key.clone()).collect();
    let rest = dirty.split_off(most.min(dirty.len()));
    assert_eq!(visited, dirty);
    assert_eq!(next.as_deref(), rest.first().map(Vec::as_slice));
    dirty.into_iter().for_each(|key| drop(model.insert(key.clone(), element.at(&key))));
}

fn evict(overlay: &mut Overlay, model: &mut Model, from: &[u8], leaves: usize) {
    let before = overlay.len();
    let complete = overlay.complete;
    let next = overlay.evict_clean(from, leaves);
    assert!(next.is_none_or(|next| leaves == 0 || next.as_slice() > from), "it gets on");
    assert_eq!(overlay.complete, complete && overlay.len() == before);
    let kept: Model = overlay.iter().map(|entry| (entry.key().to_vec(), entry.clone())).collect();
    assert!(kept.iter().all(|(key, element)| model.get(key) == Some(element)));
    assert!(model.iter().all(|(key, element)| element.is_clean() || kept.contains_key(key)));
    *model = kept;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn does_what_a_btreemap_does(steps in prop::collection::vec(step(), 1..60)) {
        let (mut overlay, mut model) = (Overlay::new(), Model::new());
        for step in steps {
            change(&mut overlay, &mut model, step);
            same(&overlay, &model);
        }
        let keys: Vec<_> = model.keys().cloned().collect();
        keys.iter().for_each(|key| assert!(overlay.remove(key).is_some()));
        check(&overlay);
        prop_assert!(overlay.is_empty() && matches!(overlay.root, Root::Leaf(_)));
    }

    /// Keys that are prefixes of others, and zeros that a head cannot tell from a missing byte.
    #[test]
    fn finds_keys_of_any_shape(
        keys in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..8), 1..600),
        prefix in 0usize..30,
    ) {
        let (mut overlay, mut model) = (Overlay::new(), Model::new());
        for (i, key) in keys.iter().enumerate() {
            let key = if i % 10 == 0 { key.clone() } else { [&[1; 30][..prefix], key].concat() };
            prop_assert_eq!(overlay.get(&key), model.get(&key));
            if i % 3 == 2 {
                prop_assert_eq!(overlay.remove(&keys[i / 2]), model.remove(&keys[i / 2]));
            }
            prop_assert_eq!(overlay.insert(clean(&key)), model.insert(key.clone(), clean(&key)));
            prop_assert_eq!(overlay.before(&key).entries, model.range(..key.clone()).count() as u64);
        }
        same(&overlay, &model);
        let (mut freed, leaves) = (0, leaves(&overlay));
        overlay.free(|| freed += 1);
        prop_assert_eq!(freed, leaves);
    }
}

#[test]
fn an_empty_map_answers() {
    let mut overlay = Overlay::default();
    assert!(overlay.complete && overlay.is_empty() && overlay.bytes() == 0);
    assert_eq!(overlay.get(b""), None);
    assert_eq!(overlay.remove(b""), None);
    assert_eq!(overlay.update(b"", |_| ()), None);
    assert_eq!((overlay.before(b"k"), overlay.select_live(0)), (Sums::default(), None));
    assert_eq!(overlay.visit_dirty(b"", 1, |_| 1), None);
    assert_eq!(overlay.evict_clean(b"", 1), None);
    assert!(overlay.complete, "nothing was dropped");
}

#[test]
fn a_look_ahead_meets_what_it_looks_for() {
    for (entries, steps) in [(0, 2), (5, 2), (50, 2), (5_000, 4), (200_000, 4)] {
        let mut overlay = Overlay::new();
        (0..entries).for_each(|n| drop(overlay.insert(clean(&key(n)))));
        for n in (0..entries + 1_000).step_by(1 + entries as usize / 1_000) {
            let (mut near, mut taken) = (Near::default(), 0);
            overlay.fetch_root();
            while !near.is_there() {
                overlay.fetch(&key(n), &mut near);
                taken += 1;
            }
            let (seen, element) = (overlay.value_at(&near, &key(n)), overlay.get(&key(n)));
            // Of many keys some have one head.
            if seen.is_some() || entries < 10_000 {
                assert_eq!(seen, element.and_then(Entry::value), "{n} of {entries}");
            }
            // Where nothing is singled out there is no text to be fetched; the heads of fifty keys tell each of these.
            let spared = steps - taken;
            let may = if element.is_some() { 0..=0 } else { usize::from(entries == 50)..=1 };
            assert!(may.contains(&spared), "{taken} steps, {n} of {entries}");
        }
    }
}

/// Of both groups of a sorted set, which share no first byte, a search compares no more keys than of one.
#[test]
fn a_search_among_two_groups_compares_few_keys() {
    let keys = |n: u32| [format!("\x01member:{n:09}").into_bytes(), [&[2], &n.to_be_bytes()[..], b"member"].concat()];
    for members in [20, 32, 500, 6_000] {
        let mut overlay = Overlay::new();
        let compares_few = |overlay: &Overlay| {
            let compared = |key: &Vec<u8>| match &overlay.root {
                Root::Leaf(leaf) => leaf.compared(key),
                Root::Inner(inner) => inner.compared(key),
            };
            let most = (0..members).flat_map(keys).map(|key| compared(&key)).max().unwrap();
            assert!((1..=if members < 1_000 { 1 } else { 2 }).contains(&most), "{most} of {members} members");
        };
        (0..members).flat_map(keys).for_each(|key| drop(overlay.insert(clean(&key))));
        check(&overlay);
        compares_few(&overlay);
        // The first group goes, and comes again.
        (0..members).for_each(|n| assert!(overlay.remove(&keys(n)[0]).is_some()));
        check(&overlay);
        (0..members).for_each(|n| drop(overlay.insert(clean(&keys(n)[0]))));
        check(&overlay);
        compares_few(&overlay);
    }
}

#[test]
fn a_look_ahead_bears_that_the_map_changes() {
    let (mut overlay, mut nears) = (Overlay::new(), Vec::new());
    for size in [0, 50, 20_000, 300, 2, 0] {
        (0..20_000).for_each(|n| drop(if n < size { overlay.insert(clean(&key(n))) } else { overlay.remove(&key(n)) }));
        nears.extend((0..6).map(|steps| {
            let mut near = Near::default();
            (0..steps).for_each(|_| overlay.fetch(&key(19_999), &mut near));
            near
        }));
        for mut near in nears.clone() {
            assert!(overlay.value_at(&near, &key(19_999)).is_none_or(|value| size == 20_000 && !value.is_empty()));
            (0..4).for_each(|_| overlay.fetch(&key(19_999), &mut near));
            assert!(near.is_there(), "it ends");
        }
    }
}

#[test]
fn a_value_is_cut_and_grows_in_place() {
    for len in [0usize, 3, 40, 5_000] {
        let mut entry = Entry::new(b"key", Some(&vec![7; len]), 0);
        entry.resize_value(len + 10);
        assert_eq!(entry.value().unwrap(), [vec![7; len], vec![0; 10]].concat());
        entry.value_mut().unwrap()[len] = 1;
        entry.resize_value(len / 2);
        assert_eq!((entry.key(), entry.value().unwrap()), (&b"key"[..], &vec![7; len / 2][..]));
        assert!(entry.heap_bytes() < len + len / 2 + 100, "no doubling");
    }
    let mut removed = Entry::new(b"key", None, 0);
    removed.resize_value(10);
    assert!(removed.value().is_none() && removed.value_mut().is_none());
}

#[test]
fn crosses_threads() {
    fn is_send<T: Send>() {}
    is_send::<Overlay>();
}

/// Nodes above the leaves.
fn inners(overlay: &Overlay) -> usize {
    fn count(inner: &Inner) -> usize {
        match inner.children() {
            Children::Leaves(_) => 1,
            Children::Inners(inners) => 1 + inners.iter().map(count).sum::<usize>(),
        }
    }
    match &overlay.root {
        Root::Leaf(_) => 0,
        Root::Inner(inner) => count(inner),
    }
}

#[test]
fn keys_in_order_fill_nodes() {
    let n = 500 * LEAF_ENTRIES as u32;
    // Up, down, and down towards a group that stands before in full leaves: not at an end, there nodes above are split in half.
    let orders: [(&dyn Fn(u32) -> u32, usize); 3] =
        [(&|i| i, 1), (&|i| n - i, 1), (&|i| if i < n / 2 { i } else { n + n - i }, 2)];
    for (order, split) in orders {
        let mut overlay = Overlay::new();
        (0..n).for_each(|i| drop(overlay.insert(clean(&order(i).to_be_bytes()))));
        check(&overlay);
        assert!(leaves(&overlay) < n as usize / LEAF_ENTRIES * 11 / 10, "{} leaves", leaves(&overlay));
        assert!(
            inners(&overlay) <= 2 + split * (n as usize / LEAF_ENTRIES / FAN_OUT),
            "{} above them",
            inners(&overlay)
        );
    }
}

#[test]
fn a_queue_stays_small() {
    let mut overlay = Overlay::new();
    for i in 0..100_000u32 {
        overlay.insert(clean(&i.to_be_bytes()));
        if i >= 1_000 {
            assert!(overlay.remove(&(i - 1_000).to_be_bytes()).is_some());
        }
        if i % 10_000 == 0 {
            check(&overlay);
            assert!(leaves(&overlay) < 20);
        }
    }
}

#[test]
fn what_shrinks_at_random_merges() {
    let mut overlay = Overlay::new();
    let scattered = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes();
    (0..50_000).for_each(|i| drop(overlay.insert(clean(&scattered(i)))));
    (0..49_000).for_each(|i| drop(overlay.remove(&scattered(i))));
    check(&overlay);
    assert!(leaves(&overlay) < 1_000 / 8, "{} leaves", leaves(&overlay));
}

#[test]
fn a_small_map_takes_the_room_it_was_told_and_a_swept_one_what_it_needs() {
    let room = |overlay: &Overlay| match &overlay.root {
        Root::Leaf(leaf) => leaf.room(),
        Root::Inner(_) => panic!("one leaf"),
    };
    let mut overlay = Overlay::new();
    overlay.reserve(50);
    assert_eq!(room(&overlay), 50);
    for n in 0..50 {
        let state = if n < 20 { state::DIRTY } else { 0 };
        overlay.insert(Entry::new(&key(n), Some(b"v"), state));
    }
    assert_eq!(room(&overlay), 50);
    overlay.evict_clean(b"", 1);
    overlay.evict_clean(b"", 1);
    assert_eq!(overlay.len(), 20);
    assert_eq!(room(&overlay), 25);
    check(&overlay);
    overlay.reserve(1_000_000);
    assert_eq!(room(&overlay), LEAF_ENTRIES, "a leaf's");
}

#[test]
fn a_sweep_spares_the_touched_once_and_the_unclean_always() {
    let mut overlay = Overlay::new();
    (0..10_000u32).for_each(|i| drop(overlay.insert(clean(&i.to_be_bytes()))));
    overlay.update(&7_000u32.to_be_bytes(), |e| e.state |= state::IN_FLIGHT);
    overlay.update(&9_000u32.to_be_bytes(), |e| e.state |= state::DIRTY);
    let sweep = |overlay: &mut Overlay| {
        let mut from = Some(Key::new());
        while let Some(key) = from {
            from = overlay.evict_clean(&key, 5);
            check(overlay);
        }
    };
    overlay.get(&100u32.to_be_bytes()).unwrap();
    sweep(&mut overlay);
    assert!(!overlay.complete && overlay.len() <= LEAF_ENTRIES + 2);
    assert!([100u32, 7_000, 9_000].iter().all(|i| {
        overlay
            .range(Bound::Included(&i.to_be_bytes()), Bound::Unbounded)
            .next()
            .is_some_and(|entry| entry.key() == i.to_be_bytes())
    }));
    sweep(&mut overlay);
    sweep(&mut overlay);
    assert!(overlay.len() == 2, "what is not clean stays");
    overlay.update(&7_000u32.to_be_bytes(), |e| e.state = 0);
    overlay.update(&9_000u32.to_be_bytes(), |e| e.state = 0);
    sweep(&mut overlay);
    sweep(&mut overlay);
    assert!(overlay.is_empty() && overlay.bytes() == 0);
}
