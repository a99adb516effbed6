//! Times of fields: the families of HEXPIRE and HTTL, HPERSIST.
//!
//! | reply for a field | HEXPIRE | HTTL | HPERSIST |
//! |---|---|---|---|
//! | −2 | is not there | is not there | is not there |
//! | −1 | | has no time | has no time |
//! | 0 | the condition does not hold | | |
//! | 1 | has got its time | | has none any more |
//! | 2 | is gone, as the time is past | | |

use super::fields::Hash;
use super::options::{NOT_ABOVE_ZERO, NOT_POSITIVE, field_time_ms, fields_at};
use crate::handler::{Args, Command, Ctx, Group, KeySpec, Reply, Result, events, flags, key};
use crate::types::expire_options::Word;

const ABSENT: i64 = -2;
const NO_TIME: i64 = -1;

/// When a new time may replace the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    Nx,
    Xx,
    Gt,
    Lt,
}

impl Condition {
    fn parse(word: &[u8]) -> Option<Self> {
        Some(match word.to_ascii_lowercase().as_slice() {
            b"nx" => Condition::Nx,
            b"xx" => Condition::Xx,
            b"gt" => Condition::Gt,
            b"lt" => Condition::Lt,
            _ => return None,
        })
    }

    /// Whether `new_ms` may replace `old_ms`, of which 0 stands for none: later than any time.
    const fn allows(self, old_ms: u64, new_ms: u64) -> bool {
        match self {
            Condition::Always => true,
            Condition::Nx => old_ms == 0,
            Condition::Xx => old_ms != 0,
            Condition::Gt => old_ms != 0 && new_ms > old_ms,
            Condition::Lt => old_ms == 0 || new_ms < old_ms,
        }
    }
}

fn set_times(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, name: &'static str, word: Word) -> Result {
    let hash = Hash::find(ctx, &args[1])?;
    let at_ms = field_time_ms(&args[2], word, ctx.now_ms, name)?;
    let condition = Condition::parse(&args[3]);
    let fields = fields_at(args, 3 + usize::from(condition.is_some()), NOT_ABOVE_ZERO)?;
    let condition = condition.unwrap_or(Condition::Always);
    out.array(fields.len());
    let Some(mut hash) = hash else {
        fields.iter().for_each(|_| out.int(ABSENT));
        return Ok(());
    };
    hash.mark_timed();
    ctx.happens(&[]);
    for field in fields.iter() {
        let old = hash.get(ctx, field)?.map(|(old_ms, _)| old_ms);
        out.int(match old {
            None => ABSENT,
            Some(old_ms) if !condition.allows(old_ms, at_ms) => 0,
            Some(_) if at_ms <= ctx.due_ms => {
                hash.remove(ctx, field)?;
                ctx.happens(&[events::HDEL]);
                2
            }
            Some(_) => {
                hash.set_time(ctx, &args[1], field, at_ms)?;
                ctx.happens(&[events::HEXPIRE]);
                1
            }
        });
    }
    hash.finish(ctx)
}

fn hexpire(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_times(ctx, args, out, "hexpire", Word::Ex)
}

fn hpexpire(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_times(ctx, args, out, "hpexpire", Word::Px)
}

fn hexpireat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_times(ctx, args, out, "hexpireat", Word::ExAt)
}

fn hpexpireat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_times(ctx, args, out, "hpexpireat", Word::PxAt)
}

/// Seconds are rounded up.
fn tell_times(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, word: Word) -> Result {
    let hash = Hash::find(ctx, &args[1])?;
    let fields = fields_at(args, 2, NOT_POSITIVE)?;
    let base_ms = if word.is_relative() { ctx.now_ms } else { 0 };
    out.array(fields.len());
    for field in fields.iter() {
        let expire_ms = hash.as_ref().map(|hash| hash.get(ctx, field)).transpose()?.flatten().map(|(ms, _)| ms);
        out.int(match expire_ms {
            None => ABSENT,
            Some(0) => NO_TIME,
            Some(expire_ms) => expire_ms.saturating_sub(base_ms).div_ceil(word.unit_ms()) as i64,
        });
    }
    Ok(())
}

fn httl(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_times(ctx, args, out, Word::Ex)
}

fn hpttl(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_times(ctx, args, out, Word::Px)
}

fn hexpiretime(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_times(ctx, args, out, Word::ExAt)
}

fn hpexpiretime(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    tell_times(ctx, args, out, Word::PxAt)
}

fn hpersist(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let hash = Hash::find(ctx, &args[1])?;
    let fields = fields_at(args, 2, NOT_POSITIVE)?;
    out.array(fields.len());
    let Some(mut hash) = hash else {
        fields.iter().for_each(|_| out.int(ABSENT));
        return Ok(());
    };
    for field in fields.iter() {
        let old = hash.get(ctx, field)?.map(|(old_ms, _)| old_ms);
        out.int(match old {
            None => ABSENT,
            Some(0) => NO_TIME,
            Some(_) => {
                hash.set_time(ctx, &args[1], field, 0)?;
                1
            }
        });
    }
    hash.finish(ctx)
}

const WRITE: u32 = flags::WRITE | flags::FAST;
const READ: u32 = flags::READONLY | flags::FAST;
const UPDATED: &[KeySpec] = &[KeySpec::one(1, key::RW | key::UPDATE)];
const ACCESSED: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];
const PER_FIELD: &str =
    "O(N) where N is the number of fields, plus the size of the hash when its first field gets a time";
const PER_FIELD_READ: &str = "O(N) where N is the number of fields";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("hexpire", hexpire, -6, WRITE, Group::Hash)
        .tells(&events::HEXPIRE)
        .keys(UPDATED)
        .help("7.4.0", "Lets fields of a hash expire in so many seconds.")
        .syntax("key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", PER_FIELD),
    Command::new("hpexpire", hpexpire, -6, WRITE, Group::Hash)
        .tells(&events::HEXPIRE)
        .keys(UPDATED)
        .help("7.4.0", "Lets fields of a hash expire in so many milliseconds.")
        .syntax("key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", PER_FIELD),
    Command::new("hexpireat", hexpireat, -6, WRITE, Group::Hash)
        .tells(&events::HEXPIRE)
        .keys(UPDATED)
        .help("7.4.0", "Lets fields of a hash expire at a Unix time in seconds.")
        .syntax("key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", PER_FIELD),
    Command::new("hpexpireat", hpexpireat, -6, WRITE, Group::Hash)
        .tells(&events::HEXPIRE)
        .keys(UPDATED)
        .help("7.4.0", "Lets fields of a hash expire at a Unix time in milliseconds.")
        .syntax("key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]", PER_FIELD),
    Command::new("httl", httl, -5, READ, Group::Hash)
        .keys(ACCESSED)
        .help("7.4.0", "Tells how many seconds fields of a hash have left.")
        .syntax("key FIELDS numfields field [field ...]", PER_FIELD_READ),
    Command::new("hpttl", hpttl, -5, READ, Group::Hash)
        .keys(ACCESSED)
        .help("7.4.0", "Tells how many milliseconds fields of a hash have left.")
        .syntax("key FIELDS numfields field [field ...]", PER_FIELD_READ),
    Command::new("hexpiretime", hexpiretime, -5, READ, Group::Hash)
        .keys(ACCESSED)
        .help("7.4.0", "Tells the Unix times in seconds at which fields of a hash expire.")
        .syntax("key FIELDS numfields field [field ...]", PER_FIELD_READ),
    Command::new("hpexpiretime", hpexpiretime, -5, READ, Group::Hash)
        .keys(ACCESSED)
        .help("7.4.0", "Tells the Unix times in milliseconds at which fields of a hash expire.")
        .syntax("key FIELDS numfields field [field ...]", PER_FIELD_READ),
    Command::new("hpersist", hpersist, -5, WRITE, Group::Hash)
        .tells(&events::HPERSIST)
        .keys(UPDATED)
        .help("7.4.0", "Takes the times of fields of a hash away, so that they stay.")
        .syntax("key FIELDS numfields field [field ...]", PER_FIELD_READ),
];
