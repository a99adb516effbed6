//! A pipeline's look-ahead within big collections: the elements that its next commands will look for are brought into
//! the processor's cache, those of all commands side by side instead of one after another.
//!
//! | step | reads | fetches |
//! |---|---|---|
//! | 1 | the inner nodes above an element | its leaf |
//! | 2 | the leaf | the heads of its keys |
//! | 3 | the heads | the entry that they single out |
//! | 4 | the entry | its text, if that stands elsewhere |
//!
//! The elements of all commands take a step before any takes the next. Where a member's score leads to another element
//! that a command will want ([`Look::place`]), or the score that it gets ([`Look::scored`]), those go through the steps after
//! the first.
//!
//! Nothing is changed, and nothing depends on what is found: a wrong guess costs a fetch.

use smallvec::SmallVec;

use super::core::Core;
use super::missing::{Missing, missing, read_element, read_whole};
use super::object::Kind;
use super::overlay::Near;
use super::reads::Reads;
use super::table::Index;
use crate::codec::element::{self, Group};
use crate::codec::{Extra, Score};
use crate::util::num::{parse_double, parse_i64};

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

/// An element on its way.
struct Way<'c, 'a> {
    wanted: Wanted<'a>,
    key: Key,
    near: Near<'c>,
}

/// Fetches what commands of a pipeline will look for in one shard; `reads` has what was brought for them.
pub fn fetch<'a>(core: &Core, wanted: impl Iterator<Item = Wanted<'a>>, reads: Option<&Reads>) {
    let mut ways: SmallVec<[Way<'_, 'a>; 16]> = SmallVec::new();
    for wanted in wanted {
        // What an offset names is read ahead from the store, and not brought from memory into the cache.
        let Some(group) = wanted.look.group.filter(|group| *group != Group::ListElement) else { continue };
        let mut key = Key::new();
        key.push(group.tag());
        key.extend_from_slice(wanted.text.get(..LONGEST).unwrap_or(wanted.text));
        ways.extend(near(core, wanted, &key).map(|near| Way { wanted, key, near }));
    }
    walk(&mut ways);
    let mut sorted: SmallVec<[Way<'_, 'a>; 32]> = SmallVec::new();
    for way in ways.iter().filter(|way| way.wanted.look.sorted) {
        let wanted = way.wanted;
        let comes = || Score::new(parse_double(wanted.score?)?).ok();
        for score in [way.score(core, reads), comes()].into_iter().flatten() {
            let mut key = Key::new();
            element::zset_sort(score, wanted.text, &mut key);
            sorted.extend(near(core, wanted, &key).map(|near| Way { wanted, key, near }));
        }
    }
    walk(&mut sorted);
}

impl Way<'_, '_> {
    /// The score that a member has.
    fn score(&self, core: &Core, reads: Option<&Reads>) -> Option<Score> {
        let score = |value: &[u8]| Score::from_bytes(value.try_into().ok()?).ok();
        match self.near.value(&self.key) {
            Some(value) => score(value),
            None => score(reads?.brought_element(core, core.table.at(self.wanted.index), &self.key)?),
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

/// The first step.
#[inline]
fn near<'c>(core: &'c Core, wanted: Wanted<'_>, key: &[u8]) -> Option<Near<'c>> {
    if wanted.text.len() > LONGEST || !core.table.is_used(wanted.index) {
        return None;
    }
    let object = core.table.at(wanted.index);
    object.body.as_ref().filter(|_| object.kind == wanted.look.kind)?.overlay.near(key)
}

/// The steps from the second on.
fn walk(ways: &mut [Way<'_, '_>]) {
    ways.iter().for_each(|way| way.near.fetch_heads());
    ways.iter_mut().for_each(|way| way.near.fetch_entry(&way.key));
    ways.iter().for_each(|way| way.near.fetch_text());
}
