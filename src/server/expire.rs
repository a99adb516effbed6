//! Times of keys: EXPIRE and its family, TTL and its family, PERSIST.
//!
//! | commands | argument, reply |
//! |---|---|
//! | EXPIRE, TTL | seconds from now |
//! | PEXPIRE, PTTL | milliseconds from now |
//! | EXPIREAT, EXPIRETIME | Unix seconds |
//! | PEXPIREAT, PEXPIRETIME | Unix milliseconds |
//!
//! A time is kept absolute, in milliseconds. One that is past removes the key at once.

use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::util::num::parse_i64;

/// In what a time is told.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// Milliseconds of one.
    ms: i64,
    /// From now, not from 1970.
    relative: bool,
}

const SECONDS: Unit = Unit { ms: 1000, relative: true };
const MILLISECONDS: Unit = Unit { ms: 1, relative: true };
const UNIX_SECONDS: Unit = Unit { ms: 1000, relative: false };
const UNIX_MILLISECONDS: Unit = Unit { ms: 1, relative: false };

/// When a new time may replace the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Result<Self> {
        let mut met = Conditions::default();
        for option in args.iter() {
            match option.to_ascii_lowercase().as_slice() {
                b"nx" => met.nx = true,
                b"xx" => met.xx = true,
                b"gt" => met.gt = true,
                b"lt" => met.lt = true,
                _ => return Err(Error::quoting("ERR Unsupported option ", option, usize::MAX, "")),
            }
        }
        if met.nx && (met.xx || met.gt || met.lt) {
            return Err(Error::err("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if met.gt && met.lt {
            return Err(Error::err("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(met)
    }

    /// Whether `new_ms` may replace `old_ms`, of which 0 stands for none: later than any time.
    fn allow(self, old_ms: u64, new_ms: i64) -> bool {
        let old = (old_ms != 0).then_some(i64::try_from(old_ms).unwrap_or(i64::MAX));
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new_ms <= old)
            || self.lt && old.is_some_and(|old| new_ms >= old))
    }
}

fn set_time(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, name: &'static str, unit: Unit) -> Result {
    let conditions = Conditions::parse(args.slice(3))?;
    let time = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let base_ms = if unit.relative { ctx.now_ms as i64 } else { 0 };
    let at_ms = (time.checked_mul(unit.ms)).and_then(|ms| ms.checked_add(base_ms)).ok_or(Error::InvalidExpire(name))?;
    let Some(found) = ctx.lookup(&args[1])? else {
        out.int(0);
        return Ok(());
    };
    let allowed = conditions.allow(ctx.object(found).expire_ms, at_ms);
    if allowed && at_ms <= ctx.due_ms as i64 {
        ctx.delete_found(found);
    } else if allowed {
        ctx.set_expiry(found, at_ms as u64);
    }
    out.int(i64::from(allowed));
    Ok(())
}

fn expire(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_time(ctx, args, out, "expire", SECONDS)
}

fn pexpire(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_time(ctx, args, out, "pexpire", MILLISECONDS)
}

fn expireat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_time(ctx, args, out, "expireat", UNIX_SECONDS)
}

fn pexpireat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_time(ctx, args, out, "pexpireat", UNIX_MILLISECONDS)
}

/// −2 for no key, −1 for no time; seconds are rounded to the nearest.
fn tell_time(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, unit: Unit) -> Result {
    let time = match ctx.peek(&args[1])? {
        None => -2,
        Some(found) => match ctx.object(found).expire_ms {
            0 => -1,
            at_ms => {
                let ms = if unit.relative { at_ms.saturating_sub(ctx.now_ms) } else { at_ms };
                (ms.saturating_add(unit.ms as u64 / 2) / unit.ms as u64) as i64
            }
        },
    };
    out.int(time);
    Ok(())
}

fn ttl(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_time(ctx, args, out, SECONDS)
}

fn pttl(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_time(ctx, args, out, MILLISECONDS)
}

fn expiretime(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_time(ctx, args, out, UNIX_SECONDS)
}

fn pexpiretime(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_time(ctx, args, out, UNIX_MILLISECONDS)
}

fn persist(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let found = ctx.lookup(&args[1])?.filter(|&found| ctx.object(found).expire_ms != 0);
    if let Some(found) = found {
        ctx.set_expiry(found, 0);
    }
    out.int(i64::from(found.is_some()));
    Ok(())
}

const UPDATED: &[KeySpec] = &[KeySpec::one(1, key::RW | key::UPDATE)];
const READ: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];
const WRITES: u32 = flags::WRITE | flags::FAST | flags::KEYSPACE;
const READS: u32 = flags::READONLY | flags::FAST | flags::KEYSPACE;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("expire", expire, -3, WRITES, Group::Generic)
        .tells(&events::EXPIRE)
        .keys(UPDATED)
        .help("1.0.0", "Lets a key expire after a number of seconds.")
        .syntax("key seconds [NX | XX | GT | LT]", "O(1)"),
    Command::new("pexpire", pexpire, -3, WRITES, Group::Generic)
        .tells(&events::EXPIRE)
        .keys(UPDATED)
        .help("2.6.0", "Lets a key expire after a number of milliseconds.")
        .syntax("key milliseconds [NX | XX | GT | LT]", "O(1)"),
    Command::new("expireat", expireat, -3, WRITES, Group::Generic)
        .tells(&events::EXPIRE)
        .keys(UPDATED)
        .help("1.2.0", "Lets a key expire at a Unix time in seconds.")
        .syntax("key unix-time-seconds [NX | XX | GT | LT]", "O(1)"),
    Command::new("pexpireat", pexpireat, -3, WRITES, Group::Generic)
        .tells(&events::EXPIRE)
        .keys(UPDATED)
        .help("2.6.0", "Lets a key expire at a Unix time in milliseconds.")
        .syntax("key unix-time-milliseconds [NX | XX | GT | LT]", "O(1)"),
    Command::new("ttl", ttl, 2, READS, Group::Generic)
        .keys(READ)
        .help("1.0.0", "Tells how many seconds a key has left.")
        .syntax("key", "O(1)"),
    Command::new("pttl", pttl, 2, READS, Group::Generic)
        .keys(READ)
        .help("2.6.0", "Tells how many milliseconds a key has left.")
        .syntax("key", "O(1)"),
    Command::new("expiretime", expiretime, 2, READS, Group::Generic)
        .keys(READ)
        .help("7.0.0", "Tells the Unix time in seconds at which a key expires.")
        .syntax("key", "O(1)"),
    Command::new("pexpiretime", pexpiretime, 2, READS, Group::Generic)
        .keys(READ)
        .help("7.0.0", "Tells the Unix time in milliseconds at which a key expires.")
        .syntax("key", "O(1)"),
    Command::new("persist", persist, 2, WRITES, Group::Generic)
        .tells(&events::PERSIST)
        .keys(UPDATED)
        .help("2.2.0", "Takes a key's time away, so that it stays.")
        .syntax("key", "O(1)"),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::handler::OwnedArgs;

    fn parse(options: &[&[u8]]) -> Result<Conditions> {
        Conditions::parse(options.iter().copied().collect::<OwnedArgs>().as_args())
    }

    #[test]
    fn no_time_counts_as_later_than_any() {
        let allowed = |option: &[u8], old, new| parse(&[option]).unwrap().allow(old, new);
        assert!(!allowed(b"gt", 0, i64::MAX) && allowed(b"lt", 0, i64::MAX));
        assert!(allowed(b"GT", 5, 6) && !allowed(b"GT", 5, 5));
        assert!(allowed(b"LT", 5, -1) && !allowed(b"LT", 5, 5));
        assert!(allowed(b"nx", 0, 1) && !allowed(b"nx", 5, 6));
        assert!(!allowed(b"xx", 0, 1) && allowed(b"xx", 5, 6));
        assert!(!parse(&[b"xx", b"lt"]).unwrap().allow(0, 6), "XX asks for a time even where LT would do without");
    }

    #[test]
    fn an_unknown_option_is_told_before_incompatible_ones() {
        assert_eq!(parse(&[b"NX", b"xx", b"Foo"]), Err(Error::Quoted(b"ERR Unsupported option Foo"[..].into())));
        assert!(parse(&[b"gt", b"LT"]).is_err() && parse(&[b"nx", b"gt"]).is_err());
        assert_eq!(parse(&[]), Ok(Conditions::default()));
    }
}
