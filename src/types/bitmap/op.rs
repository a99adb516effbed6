//! BITOP: strings combined bit by bit.
//!
//! | operation | result of the sources x, y… |
//! |---|---|
//! | AND, OR, XOR, NOT | as the names say; NOT of one source |
//! | DIFF | in x and in none of y… |
//! | DIFF1 | in one of y… but not in x |
//! | ANDOR | in x and in one of y… |
//! | ONE | in exactly one source |
//!
//! Sources are read chunk by chunk, the shorter ones continued by zeros; parts of a long result that are all zero are
//! neither kept nor stored.

use crate::handler::events;
use crate::handler::limits::may_go_through;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::object::{Kind, state};
use crate::shard::txn::build::{Build, Shape};
use crate::shard::txn::{BIG_STRING, CHUNK, chunk_element, passes_by};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    And,
    Or,
    Xor,
    Not,
    Diff,
    Diff1,
    AndOr,
    One,
}

const OPS: [(&str, Op); 8] = [
    ("AND", Op::And),
    ("OR", Op::Or),
    ("XOR", Op::Xor),
    ("NOT", Op::Not),
    ("DIFF", Op::Diff),
    ("DIFF1", Op::Diff1),
    ("ANDOR", Op::AndOr),
    ("ONE", Op::One),
];

impl Op {
    /// The operation of this name, if it takes so many sources.
    fn read(word: &[u8], sources: usize) -> Result<Op> {
        let (name, op) =
            OPS.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes())).ok_or(Error::Syntax)?;
        match op {
            Op::Not if sources != 1 => Err(Error::err("ERR BITOP NOT must be called with a single source key.")),
            Op::Diff | Op::Diff1 | Op::AndOr if sources < 2 => {
                Err(Error::Text(format!("ERR BITOP {name} must be called with at least two source keys.").into()))
            }
            op => Ok(op),
        }
    }
}

/// The same part of every source, combined one after the other.
struct Fold {
    op: Op,
    /// AND, OR, XOR, NOT: the result so far; ONE: in any source so far; else: the first source.
    main: Vec<u8>,
    /// ONE: in more than one source so far; DIFF, DIFF1, ANDOR: in any source but the first.
    rest: Vec<u8>,
}

impl Fold {
    fn new(op: Op) -> Self {
        Fold { op, main: Vec::new(), rest: Vec::new() }
    }

    fn first(&mut self, part: &[u8]) {
        self.main.clear();
        self.main.extend_from_slice(part);
        self.rest.clear();
        self.rest.resize(part.len(), 0);
    }

    /// Another source's part, of the first one's length.
    fn next(&mut self, part: &[u8]) {
        let main = self.main.iter_mut().zip(part);
        match self.op {
            Op::And => main.for_each(|(to, from)| *to &= from),
            Op::Or => main.for_each(|(to, from)| *to |= from),
            Op::Xor => main.for_each(|(to, from)| *to ^= from),
            Op::Diff | Op::Diff1 | Op::AndOr => self.rest.iter_mut().zip(part).for_each(|(to, from)| *to |= from),
            Op::One => main.zip(&mut self.rest).for_each(|((any, from), many)| {
                *many |= *any & from;
                *any |= from;
            }),
            Op::Not => unreachable!("NOT has one source"),
        }
    }

    fn finish(&mut self) -> &[u8] {
        let main = self.main.iter_mut().zip(&self.rest);
        match self.op {
            Op::And | Op::Or | Op::Xor => {}
            Op::Not => main.for_each(|(to, _)| *to = !*to),
            Op::Diff | Op::One => main.for_each(|(to, rest)| *to &= !rest),
            Op::Diff1 => main.for_each(|(to, rest)| *to = !*to & rest),
            Op::AndOr => main.for_each(|(to, rest)| *to &= rest),
        }
        &self.main
    }
}

fn bitop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let sources = args.slice(3);
    let op = Op::read(&args[1], sources.len())?;
    let (mut len, mut all) = (0, 0);
    for key in sources.iter() {
        if let Some(found) = ctx.to_read(|ctx| ctx.lookup_string(key))? {
            len = len.max(ctx.string_len(found));
            all += ctx.string_len(found);
        }
    }
    let sources = Sources { keys: sources, pass: passes_by(all) };
    may_go_through(len)?;
    let key = &args[2];
    if len == 0 {
        ctx.remove(key)?;
    } else if len <= BIG_STRING {
        let mut value = vec![0; len];
        combine(ctx, op, sources, len, |start, bytes| {
            value[start..start + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })?;
        let found = ctx.set_string(key, &value, 0)?;
        ctx.mark_encoding(found, state::RAW);
    } else {
        let mut build = Build::new(&ctx.txn, ctx.ns(), key)?;
        combine(ctx, op, sources, len, |start, bytes| build.put(&chunk_element((start / CHUNK) as u32), bytes))?;
        build.finish(&mut ctx.txn, Shape::new(Kind::String, len as u64))?;
    }
    out.int(len as i64);
    Ok(())
}

/// What is combined.
#[derive(Clone, Copy)]
struct Sources<'a> {
    keys: Args<'a>,
    /// Their chunks are passed by.
    pass: bool,
}

/// A chunk of the result and where it begins.
type Part = (usize, Vec<u8>);

/// Hands the chunks of the result that are not all zero to `put`, and rests between slices of them: no more than one slice is at
/// hand.
fn combine(
    ctx: &mut Ctx,
    op: Op,
    sources: Sources<'_>,
    len: usize,
    mut put: impl FnMut(usize, &[u8]) -> Result,
) -> Result {
    let (mut fold, mut part, ns) = (Fold::new(op), Vec::new(), ctx.ns());
    let (mut end, mut read, mut slice) = (0, 0, Vec::<Part>::new());
    let mut put_all = |slice: &mut Vec<Part>| slice.drain(..).try_for_each(|(start, bytes)| put(start, &bytes));
    while end < len {
        let start = if op == Op::Not { end } else { next_stored(ctx, sources.keys, end)? };
        if start >= len {
            break;
        }
        end = (start + CHUNK).min(len);
        for (at, key) in sources.keys.iter().enumerate() {
            // What takes long goes on without the shards: the result may be on its way to the disk.
            ctx.txn.rest_between_chunks(ns, read, || put_all(&mut slice))?;
            read += 1;
            part.clear();
            // Looked up for each part: reading one source may push another out of memory.
            if let Some(found) = ctx.lookup_string(key)? {
                ctx.txn.copy_range(found, (start, end), sources.pass, &mut part)?;
            }
            part.resize(end - start, 0);
            if at == 0 { fold.first(&part) } else { fold.next(&part) }
        }
        let result = fold.finish();
        if result.iter().any(|&byte| byte != 0) {
            slice.push((start, result.to_vec()));
        }
    }
    put_all(&mut slice)
}

/// Where the first chunk of any source begins that may hold bytes, from the beginning of a chunk on.
fn next_stored(ctx: &mut Ctx, sources: Args<'_>, from: usize) -> Result<usize> {
    let mut next = usize::MAX;
    for key in sources.iter() {
        let Some(found) = ctx.lookup_string(key)? else { continue };
        let at = match ctx.object(found).body {
            Some(_) => {
                ctx.next_chunk(found, (from / CHUNK) as u32).map_or(usize::MAX, |number| number as usize * CHUNK)
            }
            None if from < ctx.string_len(found) => from,
            None => usize::MAX,
        };
        next = next.min(at);
        if next == from {
            break;
        }
    }
    Ok(next)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("bitop", bitop, -4, flags::WRITE | flags::DENYOOM, Group::Bitmap)
    .tells(&events::SET)
    .keys(&[KeySpec::one(2, key::OW | key::UPDATE), KeySpec::range(3, -1, 1, key::RO | key::ACCESS)])
    .help("2.6.0", "Combines strings bit by bit and stores the result.")
    .syntax(
        "<AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> destkey key [key ...]",
        "O(N) where N is the length of the longest string.",
    )];

#[cfg(test)]
mod tests {
    use super::*;

    /// All combinations of three bits, one a source.
    #[test]
    fn operations_as_their_table_says() {
        let (x, y, z) = (0b1111_0000u8, 0b1100_1100u8, 0b1010_1010u8);
        for (op, expected) in [
            (Op::And, x & y & z),
            (Op::Or, x | y | z),
            (Op::Xor, x ^ y ^ z),
            (Op::Diff, x & !(y | z)),
            (Op::Diff1, !x & (y | z)),
            (Op::AndOr, x & (y | z)),
            (Op::One, 0b0001_0110),
        ] {
            let mut fold = Fold::new(op);
            for _ in 0..2 {
                fold.first(&[x]);
                fold.next(&[y]);
                fold.next(&[z]);
                assert_eq!(fold.finish(), [expected], "{op:?}");
            }
        }
        let mut not = Fold::new(Op::Not);
        not.first(&[x]);
        assert_eq!(not.finish(), [!x]);
    }
}
