//! What happens at the ends: LPUSH, RPUSH, LPUSHX, RPUSHX, LPOP, RPOP, LMPOP, LMOVE, RPOPLPUSH, and those of them that wait
//! where there is nothing: BLPOP, BRPOP, BLMPOP, BLMOVE, BRPOPLPUSH.

use smallvec::SmallVec;

use super::read::reply_part;
use super::{End, List};
use crate::handler::effects::Wait;
use crate::handler::events::{self, Event};
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::types::mpop::MultiPop;
use crate::types::timeout::{until_ms, wait_for};
use crate::util::num::parse_natural;

fn push(ctx: &mut Ctx, args: Args<'_>, end: End, create: bool, out: &mut Reply) -> Result {
    let values = args.slice(2).iter();
    let len = match List::find(ctx, &args[1])? {
        Some(mut list) => {
            list.push(ctx, end, values)?;
            list.len()
        }
        None if create => List::create(ctx, &args[1], end, values)?.len(),
        None => 0,
    };
    out.int(len as i64);
    Ok(())
}

fn lpush(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    push(ctx, args, End::Left, true, out)
}

fn rpush(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    push(ctx, args, End::Right, true, out)
}

fn lpushx(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    push(ctx, args, End::Left, false, out)
}

fn rpushx(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    push(ctx, args, End::Right, false, out)
}

/// Takes so many elements at an end out, or all there are, and replies with them in the order in which they come.
pub fn pop_many(ctx: &mut Ctx, key: &[u8], list: List, end: End, count: u64, out: &mut Reply) -> Result {
    let count = count.min(list.len());
    may_touch(count)?;
    let popped = list.part(end, count);
    list.fetch(ctx, popped.clone())?;
    reply_part(ctx, &list, popped.clone(), end == End::Right, out)?;
    let keep = if end == End::Left { popped.end..list.tail } else { list.head..popped.start };
    list.cut(ctx, key, keep)
}

fn pop(ctx: &mut Ctx, args: Args<'_>, end: End, name: &'static str, out: &mut Reply) -> Result {
    if args.len() == 2 {
        match List::find(ctx, &args[1])? {
            Some(mut list) => list.pop(ctx, end, |value| out.bulk(value))?,
            None => out.nil(),
        }
        return Ok(());
    }
    if args.len() > 3 {
        return Err(Error::Arity(name.into()));
    }
    let count = parse_natural(&args[2]).ok_or(crate::error::NOT_POSITIVE)?;
    match List::find(ctx, &args[1])? {
        Some(list) => pop_many(ctx, &args[1], list, end, count, out)?,
        None => out.nil_array(),
    }
    Ok(())
}

fn lpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop(ctx, args, End::Left, "lpop", out)
}

fn rpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop(ctx, args, End::Right, "rpop", out)
}

/// Reads LEFT or RIGHT.
fn parse_end(word: &[u8]) -> Result<End> {
    if word.eq_ignore_ascii_case(b"LEFT") {
        Ok(End::Left)
    } else if word.eq_ignore_ascii_case(b"RIGHT") {
        Ok(End::Right)
    } else {
        Err(Error::Syntax)
    }
}

impl End {
    /// The event of a list whose element was taken from here.
    fn popped(self) -> &'static Event {
        match self {
            End::Left => &events::LPOP,
            End::Right => &events::RPOP,
        }
    }

    /// The event of a list that was given an element here.
    fn pushed(self) -> &'static Event {
        match self {
            End::Left => &events::LPUSH,
            End::Right => &events::RPUSH,
        }
    }
}

/// Takes an element from an end of one list to an end of another, or of the same, and replies with it. False, and
/// nothing happens, if there is none.
pub fn move_element(
    ctx: &mut Ctx,
    (from, take): (&[u8], End),
    (to, put): (&[u8], End),
    out: &mut Reply,
) -> Result<bool> {
    let Some(mut source) = List::find(ctx, from)? else { return Ok(false) };
    let mut value = SmallVec::<[u8; 128]>::new();
    let mut keep = |bytes: &[u8]| value.extend_from_slice(bytes);
    if from == to {
        source.take(ctx, take, &mut keep)?;
        source.push(ctx, put, std::iter::once(&value[..]))?;
    } else {
        let target = List::find(ctx, to)?;
        source.pop(ctx, take, &mut keep)?;
        let values = std::iter::once(&value[..]);
        match target {
            Some(mut list) => list.push(ctx, put, values)?,
            None => drop(List::create(ctx, to, put, values)?),
        }
    }
    out.bulk(&value);
    ctx.tell(put.pushed(), to);
    ctx.tell(take.popped(), from);
    Ok(true)
}

fn lmove(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (take, put) = (parse_end(&args[3])?, parse_end(&args[4])?);
    if !move_element(ctx, (&args[1], take), (&args[2], put), out)? {
        out.nil();
    }
    Ok(())
}

fn rpoplpush(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if !move_element(ctx, (&args[1], End::Right), (&args[2], End::Left), out)? {
        out.nil();
    }
    Ok(())
}

impl MultiPop<'_, End> {
    /// Replies with the key and its elements. False, and nothing happens, if none of the lists is there.
    pub fn run(&self, ctx: &mut Ctx, waits: bool, out: &mut Reply) -> Result<bool> {
        for key in self.keys.iter() {
            if waits && ctx.passes_over(key, Kind::List) {
                continue;
            }
            if let Some(list) = List::find(ctx, key)? {
                out.array(2);
                out.bulk(key);
                pop_many(ctx, key, list, self.end, self.count, out)?;
                ctx.tell(self.end.popped(), key);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn lmpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if !MultiPop::parse(args.slice(1), parse_end)?.run(ctx, false, out)? {
        out.nil_array();
    }
    Ok(())
}

fn blmpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let pop = MultiPop::parse(args.slice(2), parse_end)?;
    let until_ms = until_ms(ctx.txn.now_ms, &args[1])?;
    if !pop.run(ctx, true, out)? && !wait_for(ctx, pop.keys.iter(), Kind::List, until_ms) {
        out.nil_array();
    }
    Ok(())
}

/// Pops an element of the first list that is there, and waits if there is none.
fn pop_or_wait(ctx: &mut Ctx, args: Args<'_>, end: End, out: &mut Reply) -> Result {
    let keys = args.slice(1).take(args.len() - 2);
    let until_ms = until_ms(ctx.txn.now_ms, &args[args.len() - 1])?;
    for key in keys.iter() {
        if ctx.passes_over(key, Kind::List) {
            continue;
        }
        if let Some(mut list) = List::find(ctx, key)? {
            out.array(2);
            out.bulk(key);
            return list.pop(ctx, end, |value| out.bulk(value));
        }
    }
    if !wait_for(ctx, keys.iter(), Kind::List, until_ms) {
        out.nil_array();
    }
    Ok(())
}

fn blpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop_or_wait(ctx, args, End::Left, out)
}

fn brpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop_or_wait(ctx, args, End::Right, out)
}

/// Moves an element, and waits if there is none.
fn move_or_wait(ctx: &mut Ctx, from: (&[u8], End), to: (&[u8], End), timeout: &[u8], out: &mut Reply) -> Result {
    let until_ms = until_ms(ctx.txn.now_ms, timeout)?;
    if !ctx.passes_over(from.0, Kind::List) && move_element(ctx, from, to, out)? {
        return Ok(());
    }
    if ctx.may_wait() {
        let keys = vec![from.0.into()];
        ctx.wait(Wait { keys, kind: Kind::List, hears_all: false, until_ms, whole: true, args: None });
    } else {
        out.nil();
    }
    Ok(())
}

fn blmove(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (take, put) = (parse_end(&args[3])?, parse_end(&args[4])?);
    move_or_wait(ctx, (&args[1], take), (&args[2], put), &args[5], out)
}

fn brpoplpush(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    move_or_wait(ctx, (&args[1], End::Right), (&args[2], End::Left), &args[3], out)
}

const PUSH: u32 = flags::WRITE | flags::DENYOOM | flags::FAST;
const POP: u32 = flags::WRITE | flags::FAST;
const INSERTS: &[KeySpec] = &[KeySpec::one(1, key::RW | key::INSERT)];
const DELETES: &[KeySpec] = &[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE)];
const MOVES: &[KeySpec] =
    &[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE), KeySpec::one(2, key::RW | key::INSERT)];
const POP_OR_WAIT: u32 = flags::WRITE | flags::BLOCKING;
const MOVE_OR_WAIT: u32 = flags::WRITE | flags::DENYOOM | flags::BLOCKING;
const DELETES_SOME: &[KeySpec] = &[KeySpec::range(1, -2, 1, key::RW | key::ACCESS | key::DELETE)];
const PER_KEY: &str = "O(N), where N is the number of keys.";
const PER_ELEMENT: &str = "O(N), where N is the number of elements given.";
const PER_POPPED: &str = "O(N), where N is the number of elements returned.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("lpush", lpush, -3, PUSH, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::LPUSH)
        .keys(INSERTS)
        .help("1.0.0", "Puts elements in front of a list, each before the last; creates the list if it is not there.")
        .syntax("key element [element ...]", PER_ELEMENT),
    Command::new("rpush", rpush, -3, PUSH, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::RPUSH)
        .keys(INSERTS)
        .help("1.0.0", "Puts elements at the end of a list; creates the list if it is not there.")
        .syntax("key element [element ...]", PER_ELEMENT),
    Command::new("lpushx", lpushx, -3, PUSH, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::LPUSH)
        .keys(INSERTS)
        .help("2.2.0", "Puts elements in front of a list, each before the last, if the list is there.")
        .syntax("key element [element ...]", PER_ELEMENT),
    Command::new("rpushx", rpushx, -3, PUSH, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::RPUSH)
        .keys(INSERTS)
        .help("2.2.0", "Puts elements at the end of a list if the list is there.")
        .syntax("key element [element ...]", PER_ELEMENT),
    Command::new("lpop", lpop, -2, POP, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::LPOP)
        .keys(DELETES)
        .help("1.0.0", "Removes the first element of a list, or the first so many, and returns what it removed.")
        .syntax("key [count]", PER_POPPED),
    Command::new("rpop", rpop, -2, POP, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::RPOP)
        .keys(DELETES)
        .help("1.0.0", "Removes the last element of a list, or the last so many, and returns what it removed.")
        .syntax("key [count]", PER_POPPED),
    Command::new("lmove", lmove, 5, flags::WRITE | flags::DENYOOM, Group::List)
        .keys(MOVES)
        .help("6.2.0", "Moves an element from an end of one list to an end of another, or of the same, and returns it.")
        .syntax("source destination <LEFT | RIGHT> <LEFT | RIGHT>", "O(1)"),
    Command::new("rpoplpush", rpoplpush, 3, flags::WRITE | flags::DENYOOM, Group::List)
        .keys(MOVES)
        .help("1.2.0", "Moves the last element of a list to the front of another, or of the same, and returns it.")
        .syntax("source destination", "O(1)"),
    Command::new("lmpop", lmpop, -4, flags::WRITE | flags::MOVABLEKEYS, Group::List)
        .keys(&[KeySpec::counted(1, 1, key::RW | key::ACCESS | key::DELETE)])
        .help("7.0.0", "Removes elements at an end of the first list that is there, and returns its key and them.")
        .syntax(
            "numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
            "O(N+M), where N is the number of keys and M that of elements returned.",
        ),
    Command::new("blpop", blpop, -3, POP_OR_WAIT, Group::List)
        .tells(&events::LPOP)
        .keys(DELETES_SOME)
        .help(
            "2.0.0",
            "Removes the first element of the first list that is there and returns both; waits if there is none.",
        )
        .syntax("key [key ...] timeout:double", PER_KEY),
    Command::new("brpop", brpop, -3, POP_OR_WAIT, Group::List)
        .tells(&events::RPOP)
        .keys(DELETES_SOME)
        .help(
            "2.0.0",
            "Removes the last element of the first list that is there and returns both; waits if there is none.",
        )
        .syntax("key [key ...] timeout:double", PER_KEY),
    Command::new("blmove", blmove, 6, MOVE_OR_WAIT, Group::List)
        .keys(MOVES)
        .help(
            "6.2.0",
            "Moves an element from an end of one list to an end of another, or of the same; waits if there is none.",
        )
        .syntax("source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout:double", "O(1)"),
    Command::new("brpoplpush", brpoplpush, 4, MOVE_OR_WAIT, Group::List)
        .keys(MOVES)
        .help(
            "2.2.0",
            "Moves the last element of a list to the front of another, or of the same; waits if there is none.",
        )
        .syntax("source destination timeout:double", "O(1)"),
    Command::new("blmpop", blmpop, -5, POP_OR_WAIT | flags::MOVABLEKEYS, Group::List)
        .keys(&[KeySpec::counted(2, 1, key::RW | key::ACCESS | key::DELETE)])
        .help("7.0.0", "Removes elements at an end of the first list that is there; waits if there is none.")
        .syntax(
            "timeout:double numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
            "O(N+M), where N is the number of keys and M that of elements returned.",
        ),
];
