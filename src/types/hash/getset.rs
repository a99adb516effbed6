//! HGETEX, HSETEX, HGETDEL: values and times, or values and the end of their fields, in one call.

use super::basic::reply_field;
use super::fields::Hash;
use super::options::{NOT_POSITIVE, field_time_ms, fields_at};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::types::expire_options::{READ_WORDS, WRITE_WORDS, Word};
use crate::util::num::parse_i64;

/// What HGETEX does to the times.
#[derive(Debug, Clone, Copy)]
enum Change {
    None,
    Until(u64),
    Persist,
}

fn hgetex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let hash = Hash::find(ctx, &args[1])?;
    let word = READ_WORDS.iter().copied().find(|word| args[2].eq_ignore_ascii_case(word.text()));
    let (change, fields_from) = match word {
        None => (Change::None, 2),
        Some(Word::Persist) => (Change::Persist, 3),
        Some(word) => (Change::Until(field_time_ms(&args[3], word, ctx.now_ms, "hgetex")?), 4),
    };
    if args.len() <= fields_from + 1 {
        return Err(Error::Arity("hgetex".into()));
    }
    let fields = fields_at(args, fields_from, NOT_POSITIVE)?;
    out.array(fields.len());
    let Some(mut hash) = hash else {
        fields.iter().for_each(|_| out.nil());
        return Ok(());
    };
    ctx.happens(&[]);
    for field in fields.iter() {
        reply_field(ctx, Some(&hash), field, out)?;
        let Some((old_ms, _)) = hash.get(ctx, field)? else { continue };
        match change {
            Change::Until(at_ms) if at_ms <= ctx.due_ms => {
                hash.remove(ctx, field)?;
                ctx.happens(&[events::HDEL]);
            }
            Change::Until(at_ms) => {
                hash.set_time(ctx, &args[1], field, at_ms)?;
                ctx.happens(&[events::HEXPIRE]);
            }
            Change::Persist if old_ms != 0 => {
                hash.set_time(ctx, &args[1], field, 0)?;
                ctx.happens(&[events::HPERSIST]);
            }
            Change::Persist | Change::None => {}
        }
    }
    if word.is_some() {
        hash.mark_timed();
        hash.finish(ctx)?;
    }
    Ok(())
}

fn hgetdel(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let hash = Hash::find(ctx, &args[1])?;
    let fields = fields_at(args, 2, NOT_POSITIVE)?;
    out.array(fields.len());
    let Some(mut hash) = hash else {
        fields.iter().for_each(|_| out.nil());
        return Ok(());
    };
    for field in fields.iter() {
        reply_field(ctx, Some(&hash), field, out)?;
        hash.remove(ctx, field)?;
    }
    hash.finish(ctx)
}

/// On what HSETEX depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Conditions {
    /// The key must (not) be there.
    key: Option<bool>,
    /// The fields must all (not) be there.
    fields: Option<bool>,
}

/// What stands before the fields of HSETEX.
#[derive(Debug, Default)]
struct SetOptions {
    conditions: Conditions,
    keep: bool,
    at_ms: Option<u64>,
    /// Where the fields begin.
    pairs: usize,
}

impl SetOptions {
    fn parse(args: Args<'_>, now_ms: u64) -> Result<Self> {
        const ONE_WORD: Error = Error::err("ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified");
        const ONE_FIELDS: Error = Error::err("ERR Only one of FXX or FNX arguments can be specified");
        const ARITY: Error = Error::Arity(std::borrow::Cow::Borrowed("hsetex"));
        let mut read = SetOptions::default();
        let mut options = args.cursor(2);
        while !options.next_is(b"FIELDS") {
            let option = options.next().ok_or(ARITY)?;
            let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
            if is(b"FXX") || is(b"FNX") {
                if read.conditions.fields.replace(is(b"FXX")).is_some() {
                    return Err(ONE_FIELDS);
                }
            } else if is(b"XX") || is(b"NX") {
                if read.conditions.key.replace(is(b"XX")).is_some() {
                    return Err(Error::Syntax);
                }
            } else if let Some(&word) = WRITE_WORDS.iter().find(|word| is(word.text())) {
                if read.keep || read.at_ms.is_some() {
                    return Err(ONE_WORD);
                }
                match word {
                    Word::KeepTtl => read.keep = true,
                    word => {
                        let time = options.next().ok_or(ARITY)?;
                        read.at_ms = Some(field_time_ms(time, word, now_ms, "hsetex")?);
                    }
                }
            } else {
                return Err(Error::quoting("ERR unknown argument: ", option, usize::MAX, ""));
            }
        }
        if options.remaining() < 3 {
            return Err(ARITY);
        }
        let number =
            parse_i64(options.arg()?).and_then(|number| i32::try_from(number).ok()).filter(|number| *number > 0);
        let number = number.ok_or(Error::err("ERR invalid number of fields"))?;
        if options.remaining() as u64 != u64::from(number.unsigned_abs()) * 2 {
            return Err(ARITY);
        }
        read.pairs = options.position();
        Ok(read)
    }
}

/// Whether a condition on all of the fields holds.
fn fields_are(ctx: &mut Ctx, hash: Option<&Hash>, args: Args<'_>, from: usize, there: bool) -> Result<bool> {
    for at in (from..args.len()).step_by(2) {
        let found = hash.map(|hash| hash.get(ctx, &args[at])).transpose()?.flatten().is_some();
        if found != there {
            return Ok(false);
        }
    }
    Ok(true)
}

fn hsetex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = SetOptions::parse(args, ctx.now_ms)?;
    let hash = Hash::find(ctx, &args[1])?;
    let key_holds = options.conditions.key.is_none_or(|there| hash.is_some() == there);
    let holds = key_holds
        && match options.conditions.fields {
            Some(there) => fields_are(ctx, hash.as_ref(), args, options.pairs, there)?,
            None => true,
        };
    out.int(holds.into());
    if !holds {
        return Ok(());
    }
    let past = options.at_ms.is_some_and(|at_ms| at_ms <= ctx.due_ms);
    if past {
        ctx.happens(&[events::HSET, events::HDEL]);
    } else if options.at_ms.is_some() {
        ctx.happens(&[events::HSET, events::HEXPIRE]);
    }
    let mut hash = match hash {
        Some(hash) => hash,
        None if past => {
            ctx.tell_come_and_gone(&args[1], &[&events::HSET, &events::HDEL, &events::DEL]);
            return Ok(());
        }
        None => Hash::find_or_create(ctx, &args[1])?,
    };
    if past {
        hash.mark_timed();
    } else if options.at_ms.is_some() {
        hash.make_timed(ctx, &args[1])?;
    }
    let mut removed = false;
    for at in (options.pairs..args.len()).step_by(2) {
        if past {
            removed |= hash.remove(ctx, &args[at])?;
            continue;
        }
        let kept = match options.keep && hash.is_timed() {
            true => hash.get(ctx, &args[at])?.map_or(0, |(old_ms, _)| old_ms),
            false => 0,
        };
        hash.put(ctx, &args[at], &args[at + 1], options.at_ms.unwrap_or(kept))?;
    }
    if past && !removed {
        // Told as if the fields had come and gone.
        ctx.happens(&[]);
        ctx.tell(&events::HSET, &args[1]);
        ctx.tell(&events::HDEL, &args[1]);
    }
    hash.finish(ctx)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("hgetex", hgetex, -5, flags::WRITE | flags::FAST, Group::Hash)
        .tells(&events::HEXPIRE)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)])
        .help("8.0.0", "Returns fields of a hash and sets or takes away their times.")
        .syntax(
            "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] \
             FIELDS numfields field [field ...]",
            "O(N) where N is the number of fields, plus the size of the hash when its first field gets a time",
        ),
    Command::new("hsetex", hsetex, -6, flags::WRITE | flags::DENYOOM | flags::FAST, Group::Hash)
        .tells(&events::HSET)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("8.0.0", "Sets fields of a hash with their times, on a condition if so asked.")
        .syntax(
            "key [NX | XX] [FNX | FXX] \
             [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] \
             FIELDS numfields field value [field value ...]",
            "O(N) where N is the number of fields, plus the size of the hash when its first field gets a time",
        ),
    Command::new("hgetdel", hgetdel, -5, flags::WRITE | flags::FAST, Group::Hash)
        .tells(&events::HDEL)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE)])
        .help("8.0.0", "Returns fields of a hash and removes them.")
        .syntax("key FIELDS numfields field [field ...]", "O(N) where N is the number of fields"),
];
