//! A pipeline's look-ahead within collections: the elements that its next commands will look for are brought into the
//! processor's cache, those of all commands side by side instead of one after another.
//!
//! | step | reads | fetches |
//! |---|---|---|
//! | 1 | the object | its body |
//! | 2 | the body | what its elements' root is searched by |
//! | 3 | the inner nodes above an element | its leaf |
//! | 4 | the leaf | the heads of its keys |
//! | 5 | the heads | the entry that they single out |
//! | 6 | the entry | its text, if that stands elsewhere |
//!
//! The elements of all commands take a step before any takes the next; where there is but one leaf, the third is left out.
//! Where a command names no element, the first one's way is taken. Where a member's score leads to another element that a
//! command will want ([`Look::place`]), or the score that it gets ([`Look::scored`]), those go through the steps from the third
//! on.
//!
//! Nothing is changed, and nothing depends on what is found: a wrong guess costs a fetch.

use smallvec::SmallVec;

use super::core::Core;
use super::missing::{Missing, missing, read_element, read_whole};
use super::object::{Body, Kind};
use super::overlay::Near;
use super::reads::Reads;
use super::table::Index;
use crate::codec::element::{self, Group};
use crate::codec::{Extra, Score};
use crate::shard::router::ShardId;
use crate::util::num::{parse_double, parse_i64};
use crate::util::prefetch::prefetch_all;

/// The element that a call of a command looks for first, as far as its row can tell.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The argument that names it.
    pub arg: usize,
    /// `None`: whatever elements there are.
    group: Option<Group>,
    kind: Kind,
    /// The element that sorts the member is wanted, too.
    sorted: bool,
    /// The argument before it is the score that the member gets.
    scored: bool,
    /// From one such argument to the next; 0 if there is but one.
    step: usize,
}

impl Look {
    /// A field of a hash.
    pub const fn field(arg: usize) -> Look {
        Look { arg, group: Some(Group::HashField), kind: Kind::Hash, sorted: false, scored: false, step: 0 }
    }

    /// A member of a set.
    pub const fn member(arg: usize) -> Look {
        Look { arg, group: Some(Group::SetMember), kind: Kind::Set, sorted: false, scored: false, step: 0 }
    }

    /// A member's score.
    pub const fn score(arg: usize) -> Look {
        Look { arg, group: Some(Group::ZsetScore), kind: Kind::Zset, sorted: false, scored: false, step: 0 }
    }

    /// A member's score, then what sorts it by that.
    pub const fn place(arg: usize) -> Look {
        Look { sorted: true, ..Look::score(arg) }
    }

    /// The same, and where it will be by the score before it.
    pub const fn scored(arg: usize) -> Look {
        Look { scored: true, ..Look::place(arg) }
    }

    /// What an offset in a list leads to.
    pub const fn offset(arg: usize) -> Look {
        Look { arg, group: Some(Group::ListElement), kind: Kind::List, sorted: false, scored: false, step: 0 }
    }

    /// Elements of the list whose key is the first argument, whichever.
    pub const LIST: Look = Look::elements(Kind::List);
    /// The same of a hash.
    pub const HASH: Look = Look::elements(Kind::Hash);
    /// The same of a set.
    pub const SET: Look = Look::elements(Kind::Set);
    /// The same of a sorted set.
    pub const ZSET: Look = Look::elements(Kind::Zset);

    const fn elements(kind: Kind) -> Look {
        Look { arg: 1, group: None, kind, sorted: false, scored: false, step: 0 }
    }

    /// Whether an argument names an element.
    pub const fn names(&self) -> bool {
        self.group.is_some()
    }

    /// And so on with every such argument behind it.
    pub const fn each(mut self, step: usize) -> Look {
        self.step = step;
        self
    }

    /// The arguments, of so many, that name an element.
    pub fn args(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let end = if self.step == 0 { self.arg + 1 } else { len };
        (self.arg..end.min(len)).step_by(self.step.max(1))
    }

    /// The argument that says which score the first of them gets.
    pub fn score_arg(&self) -> Option<usize> {
        self.scored.then(|| self.arg - 1)
    }

    /// Of what it looks for something.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// What the key of the element in the store ends with, of a collection of this extra and encode-version; `None` where there
    /// is none, or it is not worth a read.
    pub(super) fn element(&self, (extra, encoding): (&Extra, u8), text: &[u8]) -> Option<Key> {
        let mut key = Key::new();
        match self.group? {
            _ if text.len() > LONGEST => return None,
            Group::ListElement => {
                let &Extra::List { head, tail, .. } = extra else { return None };
                element::list_element(element::index_at(&(head..tail), parse_i64(text)?)?, &mut key);
            }
            Group::ZsetScore => element::zset_score_of(encoding, text, &mut key),
            // Those of another encoding are mostly written without a look.
            _ if encoding != 0 => return None,
            group => {
                key.push(group.tag());
                key.extend_from_slice(text);
            }
        }
        Some(key)
    }
}

/// An element that a command is about to look for: the object it belongs to, and the text that names it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Probably the collection.
    pub index: Index,
    /// What the command's row says.
    pub look: Look,
    /// Field, member or offset.
    pub text: &'a [u8],
    /// The score that it gets.
    pub score: Option<&'a [u8]>,
}

/// Texts that are longer are left to their commands.
pub(super) const LONGEST: usize = 54;

pub(super) type Key = SmallVec<[u8; 64]>;

/// Where the cores are that a look-ahead reads: one at a time, which is given back when another one is asked for.
pub trait Cores {
    /// The core of a shard, if nobody else has it.
    fn of(&mut self, shard: ShardId) -> Option<&Core>;
}

/// An element on its way.
struct Way<'a> {
    shard: ShardId,
    wanted: Wanted<'a>,
    key: Key,
    near: Near,
}

/// Fetches what commands of a pipeline will look for; `reads` has what was brought for them.
pub fn fetch<'a>(cores: &mut impl Cores, wanted: impl Iterator<Item = (ShardId, Wanted<'a>)>, reads: &Reads) {
    let mut ways: SmallVec<[Way<'a>; 16]> = SmallVec::new();
    for (shard, wanted) in wanted {
        let mut key = Key::new();
        match wanted.look.group {
            // What an offset names is read ahead from the store, and not brought from memory into the cache.
            Some(Group::ListElement) => continue,
            Some(_) if wanted.text.len() > LONGEST => continue,
            Some(group) => {
                key.push(group.tag());
                key.extend_from_slice(wanted.text);
            }
            // The first of them.
            None => {}
        }
        ways.push(Way { shard, wanted, key, near: Near::default() });
    }
    ways.sort_by_key(Way::place);
    each_body(cores, &mut ways, |body, _| prefetch_all(std::slice::from_ref(body)));
    each_body(cores, &mut ways, |body, _| body.overlay.fetch_root());
    walk(cores, &mut ways);
    let mut sorted: SmallVec<[Way<'a>; 32]> = SmallVec::new();
    for way in ways.iter().filter(|way| way.wanted.look.sorted) {
        let comes = || Score::new(parse_double(way.wanted.score?)?).ok();
        let Some(known) = cores.of(way.shard).and_then(|core| way.known(core, reads)) else { continue };
        for score in [known, comes()].into_iter().flatten() {
            let mut key = Key::new();
            element::zset_sort(score, way.wanted.text, &mut key);
            sorted.push(Way { shard: way.shard, wanted: way.wanted, key, near: Near::default() });
        }
    }
    walk(cores, &mut sorted);
}

/// The steps that lead to an element, each taken by all of them before any takes the next.
fn walk(cores: &mut impl Cores, ways: &mut [Way<'_>]) {
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        each_body(cores, ways, |body, ways| {
            for way in ways {
                body.overlay.fetch(&way.key, &mut way.near);
                goes_on |= !way.near.is_there();
            }
        });
    }
}

/// Does something with every collection that is there, and those of the elements, in order of their places, that it has; not
/// where all of these have been reached.
#[inline]
fn each_body(cores: &mut impl Cores, ways: &mut [Way<'_>], mut run: impl FnMut(&Body, &mut [Way<'_>])) {
    for ways in ways.chunk_by_mut(|a, b| a.place() == b.place()) {
        let Some(way) = ways.iter().find(|way| !way.near.is_there()) else { continue };
        let Some(core) = cores.of(way.shard) else { continue };
        match way.body(core) {
            Some(body) => run(body, ways),
            // It is gone, and with it the way there.
            None => ways.iter_mut().for_each(|way| way.near = Near::THERE),
        }
    }
}

impl Way<'_> {
    /// Where its collection is.
    #[inline]
    fn place(&self) -> (ShardId, Index, u8) {
        (self.shard, self.wanted.index, self.wanted.look.kind as u8)
    }

    /// The collection's body, if it is there.
    #[inline]
    fn body<'c>(&self, core: &'c Core) -> Option<&'c Body> {
        let index = self.wanted.index;
        let object = core.table.is_used(index).then(|| core.table.at(index))?;
        object.body.as_deref().filter(|_| object.kind == self.wanted.look.kind)
    }

    /// The score that a member has, or that it has none; `None` if only the store knows.
    fn known(&self, core: &Core, reads: &Reads) -> Option<Option<Score>> {
        let score = |value: &[u8]| Score::from_bytes(value.try_into().ok()?).ok();
        let overlay = &self.body(core)?.overlay;
        match overlay.value_at(&self.near, &self.key) {
            Some(value) => Some(score(value)),
            None if overlay.complete => Some(None),
            None => Some(score(reads.brought_element(core, core.table.at(self.wanted.index), &self.key)?)),
        }
    }
}

/// Has an element that only the store may have be read ahead of who will look for it.
pub fn want(core: &Core, Wanted { index, look, text, .. }: Wanted<'_>, reads: &mut Reads) {
    if !core.store_is_cold || !core.table.is_used(index) {
        return;
    }
    let object = core.table.at(index);
    let Some(body) = object.body.as_ref().filter(|_| object.kind == look.kind) else { return };
    let element = look.element((&body.extra, body.encoding), text);
    _ = match (missing(object, element.as_deref().unwrap_or_default()), element) {
        (Some(Missing::Whole), _) => read_whole(core, object, reads).map(drop),
        (Some(Missing::Element), Some(element)) => read_element(core, object, &element, reads).map(drop),
        _ => Ok(()),
    };
}
