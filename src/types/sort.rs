//! SORT and SORT_RO: the elements of a list, set or sorted set, ordered by themselves or by what other keys hold.
//!
//! | order | of |
//! |---|---|
//! | by number, equal ones by element | without ALPHA |
//! | by bytes | ALPHA; what BY does not find comes first |
//! | as the key has it, from its end with DESC | BY without `*`, of lists and sorted sets |
//!
//! What of other keys is looked at cannot be told from the arguments: a `*` in BY or GET takes the lease of all shards,
//! other calls that of the keys they name. Sets have an order of their own here, so they are sorted by bytes where Redis
//! leaves the order open. Where LIMIT asks for the first few, no more than twice as many are kept while the others are
//! compared with them.
//!
//! The elements are read in slices, and sorted and answered while the command rests; not so where other keys are looked at:
//! these nobody holds, so that from the first of them to the end is one moment.

use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};

use crate::codec::element::{Group as Elements, split_text};
use crate::handler::acl::check::Asked;
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{
    Args, Begin, Command, Ctx, Error, Find, Found, Group, KeySpec, KeysAt, Reply, Result, flags, key,
};
use crate::meter;
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::shard::txn::slices::Slices;
use crate::types::front::Front;
use crate::types::hash::fields::Hash;
use crate::types::list::{Builder, End, List};
use crate::types::set::cardinality;
use crate::types::zset::value::form;
use crate::util::num::parse_bound;

/// Where in another key what belongs to an element stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// Names nothing: a pattern without `*`.
    Nothing,
    /// The key is the element between these two; with a field, it is one of a hash.
    Key { before: &'a [u8], after: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    /// As Redis reads it: as C strings, which end at a zero byte, are searched.
    fn parse(text: &'a [u8]) -> Self {
        if text == b"#" {
            return Pattern::Element;
        }
        let Some(star) = text.iter().take_while(|&&byte| byte != 0).position(|&byte| byte == b'*') else {
            return Pattern::Nothing;
        };
        let (before, after) = (&text[..star], &text[star + 1..]);
        let visible = &after[..memchr::memchr(0, after).unwrap_or(after.len())];
        let arrow = memchr::memmem::find(visible, b"->");
        // Without a field behind it the arrow belongs to the key.
        match arrow.filter(|arrow| after.get(arrow + 2).is_some_and(|&byte| byte != 0)) {
            Some(arrow) => Pattern::Key { before, after: &after[..arrow], field: Some(&after[arrow + 2..]) },
            None => Pattern::Key { before, after, field: None },
        }
    }

    /// What it names for this element; charged as held.
    fn look_up(&self, ctx: &mut Ctx, element: &[u8]) -> Result<Option<Vec<u8>>> {
        meter::step(1)?;
        let (before, after, field) = match *self {
            Pattern::Element => return Ok(Some(element.to_vec())),
            Pattern::Nothing => return Ok(None),
            Pattern::Key { before, after, field } => (before, after, field),
        };
        let key = [before, element, after].concat();
        let Some(at) = ctx.lookup(&key)? else { return Ok(None) };
        match (ctx.object(at).kind, field) {
            (Kind::String, None) => {
                if ctx.object(at).body.is_none() {
                    meter::hold(ctx.string_len(at))?;
                }
                Ok(Some(ctx.string_value(at)?.into_owned()))
            }
            (Kind::Hash, Some(field)) => {
                let hash = Hash::find(ctx, &key)?;
                let value = hash.map(|hash| hash.get(ctx, field)).transpose()?.flatten();
                let value = value.map(|(_, value)| value.to_vec());
                meter::hold(value.as_ref().map_or(0, Vec::len))?;
                Ok(value)
            }
            _ => Ok(None),
        }
    }
}

/// A call's arguments.
#[derive(Debug, Default)]
struct Options<'a> {
    descending: bool,
    alpha: bool,
    limit: Option<(i64, i64)>,
    by: Option<Pattern<'a>>,
    get: Vec<Pattern<'a>>,
    store: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    /// `full`: the caller may read every key.
    fn parse(args: Args<'a>, may_store: bool, full: bool) -> Result<Self> {
        let mut options = Options::default();
        let mut words = args.cursor(2);
        while !words.is_empty() {
            let left = words.remaining();
            if words.next_is(b"ASC") {
                options.descending = false;
            } else if words.next_is(b"DESC") {
                options.descending = true;
            } else if words.next_is(b"ALPHA") {
                options.alpha = true;
            } else if left > 2 && words.next_is(b"LIMIT") {
                options.limit = Some((words.int()?, words.int()?));
            } else if may_store && left > 1 && words.next_is(b"STORE") {
                options.store = Some(words.arg()?);
            } else if left > 1 && words.next_is(b"BY") {
                let by = Pattern::parse(words.arg()?);
                if !full && matches!(by, Pattern::Key { .. }) {
                    return Err(Error::err("ERR BY option of SORT denied due to insufficient ACL permissions."));
                }
                options.by = Some(by);
            } else if left > 1 && words.next_is(b"GET") {
                if !full {
                    return Err(Error::err("ERR GET option of SORT denied due to insufficient ACL permissions."));
                }
                meter::hold(2 * size_of::<Pattern<'_>>())?;
                options.get.push(Pattern::parse(words.arg()?));
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }

    /// Which elements of so many, in order, are asked for.
    fn window(&self, len: usize) -> Range<usize> {
        let Some((start, count)) = self.limit else { return 0..len };
        let start = usize::try_from(start).unwrap_or(0).min(len);
        let end = usize::try_from(count).map_or(len, |count| start.saturating_add(count).min(len));
        start..end
    }

    /// Whether BY says not to sort.
    fn keeps_order(&self) -> bool {
        matches!(self.by, Some(Pattern::Element | Pattern::Nothing))
    }
}

/// What an element is sorted by.
#[derive(Debug)]
enum Weight {
    Number(f64),
    /// By itself.
    Text,
    /// By what BY has found.
    Found(Option<Vec<u8>>),
}

#[derive(Debug)]
struct Item {
    element: Vec<u8>,
    weight: Weight,
}

impl Item {
    fn compare(&self, other: &Item, descending: bool) -> Ordering {
        let order = match (&self.weight, &other.weight) {
            (Weight::Number(a), Weight::Number(b)) => {
                a.partial_cmp(b).unwrap_or(Ordering::Equal).then_with(|| self.element.cmp(&other.element))
            }
            (Weight::Found(a), Weight::Found(b)) => a.cmp(b),
            _ => self.element.cmp(&other.element),
        };
        if descending { order.reverse() } else { order }
    }
}

/// What is sorted.
#[derive(Debug, Clone, Copy)]
enum Source {
    List(List),
    Set(Found),
    Zset(Found),
}

impl Source {
    fn find(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Self>> {
        let Some(at) = ctx.to_read(|ctx| ctx.lookup(key))? else { return Ok(None) };
        Ok(match ctx.object(at).kind {
            Kind::List => List::find(ctx, key)?.map(Source::List),
            Kind::Set => Some(Source::Set(at)),
            Kind::Zset => Some(Source::Zset(at)),
            _ => return Err(Error::WrongType),
        })
    }

    fn len(&self, ctx: &Ctx) -> Result<usize> {
        Ok(match *self {
            Source::List(list) => list.len(),
            Source::Set(at) => cardinality(ctx, at)?,
            Source::Zset(at) => ctx.size(at),
        } as usize)
    }
}

/// Visits a window of the elements, in order or from the end backwards.
fn each(
    ctx: &Ctx,
    source: &Source,
    window: Range<usize>,
    reverse: bool,
    mut visit: impl FnMut(&[u8]) -> Result<ControlFlow<()>>,
) -> Result {
    let group = match source {
        Source::List(list) => {
            return list.each(ctx, part(list, window, reverse), reverse, |_, element| visit(element));
        }
        Source::Set(_) => Elements::SetMember,
        Source::Zset(_) => Elements::ZsetSort,
    };
    let (Source::Set(at) | Source::Zset(at)) = *source else { return Ok(()) };
    let all = match window.start {
        0 if !reverse => ctx.group(at, group)?,
        start => ctx.elements_at(at, group, start as u64, reverse)?,
    };
    for element in all.take(window.len()) {
        let (element, value) = element?;
        if visit(text(group, &element, &value)?)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The same in slices, where the command runs so, and to the end of the window.
fn each_in_slices(
    ctx: &mut Ctx,
    source: &Source,
    window: Range<usize>,
    reverse: bool,
    mut visit: impl FnMut(&[u8]) -> Result,
) -> Result {
    if !ctx.reads_in_slices() {
        return each(ctx, source, window, reverse, |element| visit(element).map(ControlFlow::Continue));
    }
    let (at, group) = match *source {
        Source::List(list) => {
            let part = part(&list, window, reverse);
            return if reverse {
                list.each_in_slices_back(ctx, part, visit)
            } else {
                list.each_in_slices(ctx, part, visit)
            };
        }
        Source::Set(at) => (at, Elements::SetMember),
        Source::Zset(at) => (at, Elements::ZsetSort),
    };
    let slices = match window.start {
        0 if !reverse => Slices::of_group(at, group),
        start => ctx.slices_at(at, group, start as u64, reverse)?,
    };
    let (ns, slices) = (ctx.ns(), slices.at_most(window.len() as u64));
    ctx.txn.pass_in_slices(ns, slices, |(element, value)| {
        visit(text(group, &element, &value)?)?;
        Ok(true)
    })
}

/// The elements of a window of a list.
fn part(list: &List, window: Range<usize>, reverse: bool) -> Range<i64> {
    let len = window.len() as u64;
    if reverse {
        let whole = list.part(End::Right, window.end as u64);
        whole.start..whole.start.saturating_add_unsigned(len)
    } else {
        let whole = list.part(End::Left, window.end as u64);
        whole.end.saturating_sub_unsigned(len)..whole.end
    }
}

/// The element whose record this is.
fn text<'a>(group: Elements, element: &'a [u8], value: &'a [u8]) -> Result<&'a [u8]> {
    let front = if group == Elements::SetMember { 1 } else { 1 + size_of::<f64>() };
    Ok(split_text(element.get(front..).unwrap_or_default(), value).map_err(unreadable)?.0)
}

/// The elements that are wanted, in order.
fn sorted(ctx: &mut Ctx, source: &Source, len: usize, options: &Options<'_>) -> Result<Vec<Vec<u8>>> {
    let window = options.window(len);
    let is_set = matches!(source, Source::Set(_));
    let mut all = Vec::new();
    let gather = |element: &[u8]| {
        meter::hold(element.len() + size_of::<Vec<u8>>())?;
        all.push(element.to_vec());
        Ok(())
    };
    if options.keeps_order() && !is_set {
        each_in_slices(ctx, source, window, options.descending, gather)?;
        return Ok(all);
    }
    let descending = options.descending;
    let mut front = Front::new(window.end, |a: &Item, b: &Item| a.compare(b, descending));
    match options.by {
        Some(by @ Pattern::Key { .. }) => {
            each_in_slices(ctx, source, 0..len, false, gather)?;
            ctx.txn.stay();
            for element in all {
                let found = by.look_up(ctx, &element)?;
                let bytes = found.as_ref().map_or(0, Vec::len);
                let weight = match found {
                    found if options.alpha => Weight::Found(found),
                    Some(text) => number(&text)?,
                    None => Weight::Number(0.0),
                };
                // From here on the front answers for it.
                meter::release(bytes);
                front.push(Item { element, weight }, if options.alpha { bytes } else { 0 })?;
            }
        }
        by => {
            let alpha = options.alpha || by.is_some();
            each_in_slices(ctx, source, 0..len, false, |element| {
                let weight = if alpha { Weight::Text } else { number(element)? };
                front.push(Item { element: element.to_vec(), weight }, element.len())
            })?;
        }
    }
    let ns = ctx.ns();
    ctx.txn.rest_for(ns, front.seen(), || Ok(front.into_sorted().skip(window.start).map(|item| item.element).collect()))
}

fn number(text: &[u8]) -> Result<Weight> {
    let number = parse_bound(text);
    number.map(Weight::Number).ok_or(Error::err("ERR One or more scores can't be converted into double"))
}

fn sort_by(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, may_store: bool) -> Result {
    let full = match (ctx.restricted(), ctx.server.table.find(&args[0])) {
        (Some(user), Some((_, row))) => Asked::new(ctx.server.table, row, args).with_every_key(&user)?,
        _ => true,
    };
    let options = Options::parse(args, may_store, full)?;
    let source = Source::find(ctx, &args[1])?;
    let elements = match &source {
        Some(source) => {
            let len = source.len(ctx)?;
            may_touch(len as u64)?;
            sorted(ctx, source, len, &options)?
        }
        None => Vec::new(),
    };
    let count = elements.len() * options.get.len().max(1);
    let mut list = options.store.map(|key| Builder::new(ctx, key)).transpose()?;
    if list.is_none() {
        out.array(count);
    }
    if options.get.iter().any(|pattern| matches!(pattern, Pattern::Key { .. })) {
        ctx.txn.stay();
        for element in elements {
            for pattern in &options.get {
                let found = pattern.look_up(ctx, &element)?;
                give(found.as_deref(), &mut list, out)?;
                meter::release(found.map_or(0, |found| found.len()));
            }
        }
    } else {
        let ns = ctx.ns();
        let itself = [Pattern::Element];
        let get = if options.get.is_empty() { &itself[..] } else { &options.get };
        ctx.txn.rest_for(ns, count, || {
            elements.into_iter().try_for_each(|element| {
                get.iter().try_for_each(|pattern| {
                    meter::step(1)?;
                    give((*pattern == Pattern::Element).then_some(&element[..]), &mut list, out)
                })
            })
        })?;
    }
    if let Some(Source::Zset(at)) = source
        && may_store
    {
        // Redis sorts skip lists only, and leaves them behind.
        ctx.txn.set_form(at, form::SKIPLIST);
    }
    if let Some(list) = list {
        list.finish_new(ctx, 0)?;
        if let Some(key) = options.store {
            ctx.tell(&events::SORTSTORE, key);
        }
        out.int(count as i64);
    }
    Ok(())
}

/// Stores or replies with a value; what is not there is stored as an empty element.
fn give(value: Option<&[u8]>, list: &mut Option<Builder>, out: &mut Reply) -> Result {
    match (list, value) {
        (Some(list), value) => return list.push(value.unwrap_or_default()),
        (None, Some(value)) => out.bulk(value),
        (None, None) => out.nil(),
    }
    Ok(())
}

fn sort(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    sort_by(ctx, args, out, true)
}

fn sort_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    sort_by(ctx, args, out, false)
}

/// The source, and where SORT stores: behind the last STORE that is no argument of another option. Patterns lead to any
/// others.
fn named(args: Args<'_>) -> (KeysAt, bool) {
    let (mut at, mut stored, mut others) = (2, None, false);
    while let Some(word) = args.get(at) {
        let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
        at += if is(&["LIMIT"]) {
            3
        } else if is(&["GET", "BY"]) {
            others |= args.get(at + 1).is_some_and(|pattern| pattern.contains(&b'*'));
            2
        } else {
            if is(&["STORE"]) && at + 1 < args.len() {
                stored = Some((at + 1, key::OW | key::UPDATE));
            }
            1
        };
    }
    ([(1, key::RO | key::ACCESS)].into_iter().chain(stored).collect(), others)
}

fn named_ro(args: Args<'_>) -> (KeysAt, bool) {
    let (mut keys, others) = named(args);
    keys.truncate(1);
    (keys, others)
}

const COMMON: u32 = flags::MOVABLEKEYS | flags::SORTS | flags::DANGEROUS;
const UNKNOWN: KeySpec = KeySpec { flags: 0, begin: Begin::Unknown, find: Find::Unknown };
const SOURCE: KeySpec = KeySpec::one(1, key::RO | key::ACCESS);
const LOOKED_AT: KeySpec = KeySpec { flags: key::RO | key::ACCESS, ..UNKNOWN };
const STORED: KeySpec = KeySpec { flags: key::OW | key::UPDATE, ..UNKNOWN };
const COST: &str = "O(N+M*log(M)) where N is the number of elements and M the number of those that are returned; \
                    O(N) where nothing is sorted.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("sort", sort, -2, flags::WRITE | flags::DENYOOM | COMMON, Group::Generic)
        .keys(&[SOURCE, LOOKED_AT, STORED])
        .named_by(named)
        .help("1.0.0", "Sorts the elements of a list, set or sorted set; stores them if so asked.")
        .syntax(
            "key [BY by-pattern] [LIMIT offset count] [GET get-pattern [GET get-pattern ...]] [ASC | DESC] [ALPHA] \
             [STORE destination]",
            COST,
        ),
    Command::new("sort_ro", sort_ro, -2, flags::READONLY | COMMON, Group::Generic)
        .keys(&[SOURCE, LOOKED_AT])
        .named_by(named_ro)
        .help("7.0.0", "Sorts the elements of a list, set or sorted set.")
        .syntax(
            "key [BY by-pattern] [LIMIT offset count] [GET get-pattern [GET get-pattern ...]] [ASC | DESC] [ALPHA]",
            COST,
        ),
];
