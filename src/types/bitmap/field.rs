//! BITFIELD: integers of any width at any bit of a string.
//!
//! A field lies in at most nine bytes, read as one big-endian number of which the field is a slice.

use super::bits::field_offset;
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, events, flags, key};
use crate::resp::args::Cursor;
use crate::shard::memory::object::state;
use crate::types::string::value::write_at;
use crate::util::num::parse_i64;

/// Signed of 1 to 64 bits or unsigned of 1 to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Encoding {
    signed: bool,
    bits: u32,
}

impl Encoding {
    fn read(text: &[u8]) -> Result<Self> {
        let (signed, bits) = match text {
            [b'i', bits @ ..] => (true, bits),
            [b'u', bits @ ..] => (false, bits),
            _ => (false, &b""[..]),
        };
        match parse_i64(bits) {
            Some(bits @ 1..=63) => Ok(Encoding { signed, bits: bits as u32 }),
            Some(64) if signed => Ok(Encoding { signed, bits: 64 }),
            _ => Err(Error::err(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            )),
        }
    }

    /// Lowest and highest value.
    fn bounds(self) -> (i128, i128) {
        if self.signed { (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) } else { (0, (1 << self.bits) - 1) }
    }

    /// The value of these bits; higher ones are not looked at.
    fn wrap(self, value: i128) -> i128 {
        let unused = i128::BITS - self.bits;
        if self.signed { value << unused >> unused } else { (value.cast_unsigned() << unused >> unused).cast_signed() }
    }
}

/// What becomes of a value that its field cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

impl Overflow {
    fn read(text: &[u8]) -> Result<Self> {
        if text.eq_ignore_ascii_case(b"WRAP") {
            Ok(Overflow::Wrap)
        } else if text.eq_ignore_ascii_case(b"SAT") {
            Ok(Overflow::Saturate)
        } else if text.eq_ignore_ascii_case(b"FAIL") {
            Ok(Overflow::Fail)
        } else {
            Err(Error::err("ERR Invalid OVERFLOW type specified"))
        }
    }

    /// The value that the field takes; `None`: it stays as it is.
    fn fit(self, value: i128, encoding: Encoding) -> Option<i128> {
        let (low, high) = encoding.bounds();
        if (low..=high).contains(&value) {
            return Some(value);
        }
        match self {
            Overflow::Wrap => Some(encoding.wrap(value)),
            Overflow::Saturate => Some(value.clamp(low, high)),
            Overflow::Fail => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Get,
    Set(i64),
    IncrBy(i64),
}

/// One operation of a call.
struct FieldOp {
    action: Action,
    encoding: Encoding,
    offset: u64,
    overflow: Overflow,
}

impl FieldOp {
    /// What Redis takes a number to be set for: unsigned fields, a negative one for one far above them; to saturate, signed
    /// fields one that lies more than 2⁶³ below their highest for that, as its check overflows.
    fn seen(&self, value: i64) -> i128 {
        let Encoding { signed, bits } = self.encoding;
        let (_, high) = self.encoding.bounds();
        let too_low = || self.overflow == Overflow::Saturate && high - i128::from(value) > i64::MAX.into();
        match signed {
            false => i128::from(value as u64),
            true if bits < 64 && too_low() => high,
            true => value.into(),
        }
    }

    /// The byte after the field's last.
    fn end(&self) -> usize {
        ((self.offset + u64::from(self.encoding.bits)).div_ceil(8)) as usize
    }
}

fn read_ops(ctx: &Ctx, mut words: Cursor<'_>) -> Result<Vec<FieldOp>> {
    let (mut ops, mut overflow) = (Vec::new(), Overflow::Wrap);
    while let Some(word) = words.next() {
        let is = |name: &[u8], rest: usize| word.eq_ignore_ascii_case(name) && words.remaining() >= rest;
        let (get, set, incrby) = (is(b"GET", 2), is(b"SET", 3), is(b"INCRBY", 3));
        if is(b"OVERFLOW", 1) {
            overflow = Overflow::read(words.arg()?)?;
            continue;
        }
        if !(get || set || incrby) {
            return Err(Error::Syntax);
        }
        let encoding = Encoding::read(words.arg()?)?;
        let offset = field_offset(ctx, words.arg()?, encoding.bits)?;
        let action = if get {
            Action::Get
        } else if set {
            Action::Set(words.int()?)
        } else {
            Action::IncrBy(words.int()?)
        };
        ops.push(FieldOp { action, encoding, offset, overflow });
    }
    Ok(ops)
}

/// The bytes around a field, as the high end of a number.
fn load(ctx: &mut Ctx, found: Found, op: &FieldOp) -> Result<u128> {
    let mut bytes = Vec::with_capacity(size_of::<u128>());
    ctx.string_range(found, (op.offset / 8) as usize, op.end(), &mut bytes)?;
    let mut window = [0; size_of::<u128>()];
    window[..bytes.len()].copy_from_slice(&bytes);
    Ok(u128::from_be_bytes(window))
}

/// A field's value out of the bytes around it.
fn extract(window: u128, offset: u64, encoding: Encoding) -> i128 {
    let bits = window << (offset % 8) >> (u128::BITS - encoding.bits);
    encoding.wrap(bits.cast_signed())
}

/// The bytes around a field with another value in it.
fn insert(window: u128, offset: u64, encoding: Encoding, value: i128) -> u128 {
    let shift = u128::BITS - encoding.bits - (offset % 8) as u32;
    let mask = ((1 << encoding.bits) - 1) << shift;
    window & !mask | value.cast_unsigned() << shift & mask
}

fn run(ctx: &mut Ctx, key: &[u8], mut found: Option<Found>, ops: &[FieldOp], out: &mut Reply) -> Result {
    out.array(ops.len());
    // Room that is made for a field which is not written then, as it would overflow, is no `setbit`.
    ctx.happens(&[]);
    for op in ops {
        let window = match found {
            Some(found) => load(ctx, found, op)?,
            None => 0,
        };
        let old = extract(window, op.offset, op.encoding);
        let (wanted, replies_old) = match op.action {
            Action::Get => {
                out.int(old as i64);
                continue;
            }
            Action::Set(value) => (op.seen(value), true),
            Action::IncrBy(delta) => (old + i128::from(delta), false),
        };
        let Some(new) = op.overflow.fit(wanted, op.encoding) else {
            out.nil();
            continue;
        };
        ctx.happens(&[events::SETBIT]);
        if new != old {
            let bytes = insert(window, op.offset, op.encoding, new).to_be_bytes();
            let at = (op.offset / 8) as usize;
            found = Some(write_at(ctx, key, found, at, &bytes[..op.end() - at])?);
        }
        out.int(if replies_old { old } else { new } as i64);
    }
    Ok(())
}

fn bitfield(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let ops = read_ops(ctx, args.cursor(2))?;
    let mut found = match ops.iter().any(|op| op.action != Action::Get) {
        true => ctx.lookup_string(&args[1])?,
        false => ctx.to_read(|ctx| ctx.lookup_string(&args[1]))?,
    };
    // Room is made for every field that may be written, even if none is.
    if let Some(end) = ops.iter().filter(|op| op.action != Action::Get).map(FieldOp::end).max()
        && end > found.map_or(0, |found| ctx.string_len(found))
    {
        found = Some(write_at(ctx, &args[1], found, end - 1, &[0])?);
    } else if let Some(found) = found
        && ops.iter().any(|op| op.action != Action::Get)
    {
        ctx.mark_encoding(found, state::RAW);
    }
    run(ctx, &args[1], found, &ops, out)
}

fn bitfield_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let ops = read_ops(ctx, args.cursor(2))?;
    if ops.iter().any(|op| op.action != Action::Get) {
        return Err(Error::err("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    let found = ctx.lookup_string(&args[1])?;
    run(ctx, &args[1], found, &ops, out)
}

/// A call of GET alone only reads. One that is wrong counts as one that writes.
fn bitfield_access(args: Args<'_>) -> u16 {
    let mut words = args.cursor(2);
    let mut only_gets = true;
    while only_gets && !words.is_empty() {
        let left = words.remaining();
        let (more, gets) = if left > 2 && words.next_is(b"GET") {
            (2, true)
        } else if left > 1 && words.next_is(b"OVERFLOW") {
            (1, true)
        } else {
            (0, false)
        };
        only_gets = gets;
        (0..more).for_each(|_| _ = words.next());
    }
    if only_gets { key::RO | key::ACCESS } else { key::RW | key::ACCESS | key::UPDATE }
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("bitfield", bitfield, -2, flags::WRITE | flags::DENYOOM, Group::Bitmap)
        .tells(&events::SETBIT)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE | key::VARIABLE_FLAGS)])
        .access_by(bitfield_access)
        .help("3.2.0", "Reads, sets and increments integers of any width within a string.")
        .syntax(
            "key [<GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value:integer | \
             INCRBY encoding offset increment>> [<GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] \
             <SET encoding offset value:integer | INCRBY encoding offset increment>> ...]]",
            "O(1) for each operation.",
        ),
    Command::new("bitfield_ro", bitfield_ro, -2, flags::READONLY | flags::FAST, Group::Bitmap)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("6.0.0", "Reads integers of any width within a string.")
        .syntax("key [GET encoding offset [GET encoding offset ...]]", "O(1) for each operation."),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overflow_of_the_widest_fields() {
        let (i64_, u63) = (Encoding::read(b"i64").unwrap(), Encoding::read(b"u63").unwrap());
        let above = i128::from(i64::MAX) + 1;
        assert_eq!(Overflow::Wrap.fit(above, i64_), Some(i64::MIN.into()));
        assert_eq!(Overflow::Saturate.fit(above, i64_), Some(i64::MAX.into()));
        assert_eq!(Overflow::Saturate.fit(-1, u63), Some(0));
        assert_eq!(Overflow::Wrap.fit(-1, u63), Some(i64::MAX.into()));
        assert_eq!(Overflow::Fail.fit(above, u63), None);
        for text in [&b"u64"[..], b"i65", b"i0", b"u", b"", b"x8", b"I8", b"i-1", b"i08"] {
            assert!(Encoding::read(text).is_err());
        }
    }

    proptest! {
        #[test]
        fn a_field_holds_what_is_set_and_spares_the_rest(
            window in any::<u128>(), value in any::<i64>(), offset in 0..64u64, bits in 1..=64u32, signed in any::<bool>(),
        ) {
            let encoding = Encoding { signed, bits: if signed { bits } else { bits.min(63) } };
            let value = encoding.wrap(value.into());
            let (low, high) = encoding.bounds();
            prop_assert!((low..=high).contains(&value));
            let new = insert(window, offset, encoding, value);
            prop_assert_eq!(extract(new, offset, encoding), value);
            let old = extract(window, offset, encoding);
            prop_assert_eq!(insert(new, offset, encoding, old), window);
        }
    }
}
