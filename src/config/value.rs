//! Values of directives: how they are read from words, how `CONFIG GET` shows them, how a file holds them.
//!
//! | kind | accepts | reads back as |
//! |---|---|---|
//! | [`Kind::Bool`] | `yes`, `no`, in any case | `yes`, `no` |
//! | [`Kind::Int`], [`Kind::Uint`] | a decimal without sign `+` or leading zeros | the same |
//! | [`Kind::Mem`], [`Kind::Umem`] | digits and `b k kb m mb g gb` (`k` = 1000, `kb` = 1024) | bytes |
//! | [`Kind::MemOrPercent`] | a memory value or `N%` | bytes or `N%` |
//! | [`Kind::Octal`] | octal digits | octal |
//! | [`Kind::Enum`] | one of the names, in any case | the name |
//! | [`Kind::Duration`] | `20us`, `5ms`, or bare microseconds | `20us`, `0` |
//! | [`Kind::Classes`] | letters | those that Redis shows |
//! | [`Kind::Text`], [`Kind::Words`] | what their function takes | what it makes of it |
//!
//! The texts of refusals equal Redis's. Redis tells unsigned numbers (`Uint`, `Umem`) apart: a negative one gets
//! another text.

use std::borrow::Cow;
use std::time::Duration;

use super::classes::Classes;
use crate::util::words::c_string;

/// Why a value is refused, as it stands after `CONFIG SET failed (…) - `.
pub type Reason = Cow<'static, str>;

/// What a directive takes. Bounds are inclusive.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Yes or no.
    Bool,
    /// A number that Redis keeps signed.
    Int(i64, i64),
    /// A number that Redis keeps unsigned.
    Uint(i64, i64),
    /// Bytes that Redis keeps signed.
    Mem(i64, i64),
    /// Bytes that Redis keeps unsigned.
    Umem(i64, i64),
    /// Bytes, or a percentage, which is held as a negative number.
    MemOrPercent,
    /// Permission bits, up to this number.
    Octal(i64),
    /// One of a few names.
    Enum(&'static [&'static str]),
    /// A span of time, in microseconds.
    Duration,
    /// Letters of [`Classes`], held as their bits.
    Classes,
    /// One word; the function checks it and puts it in the form that is read back.
    Text(fn(&[u8]) -> Result<Vec<u8>, Reason>),
    /// Several words; `CONFIG SET` gives them as one, separated by blanks.
    Words(fn(&Words<'_>) -> Result<Vec<u8>, Reason>),
}

/// What a function of [`Kind::Words`] sees.
#[derive(Debug)]
pub struct Words<'a> {
    /// The words after the directive's name.
    pub args: &'a [Vec<u8>],
    /// The value so far, as it is read back.
    pub current: &'a [u8],
    /// The directive stood already in the files being read, and adds to what it said there.
    pub again: bool,
}

/// The value of a directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of every kind that counts something; microseconds for durations.
    Int(i64),
    /// Of [`Kind::Enum`].
    Name(&'static str),
    /// Of [`Kind::Text`] and [`Kind::Words`].
    Text(Vec<u8>),
}

impl Kind {
    /// Reads `args`, the words after the directive's name. `current` and `again` as in [`Words`].
    ///
    /// # Errors
    /// The reason, in Redis's words.
    pub fn parse(self, args: &[Vec<u8>], current: &Value, again: bool) -> Result<Value, Reason> {
        if let Kind::Words(read) = self {
            let current = self.show(current);
            let split;
            let args = match args {
                [one] => {
                    split = split_blanks(one);
                    &split[..]
                }
                many => many,
            };
            return read(&Words { args, current: &current, again }).map(Value::Text);
        }
        let [arg] = args else { return Err("wrong number of arguments".into()) };
        let text = c_string(arg);
        match self {
            Kind::Bool if text.eq_ignore_ascii_case(b"yes") => Ok(Value::Bool(true)),
            Kind::Bool if text.eq_ignore_ascii_case(b"no") => Ok(Value::Bool(false)),
            Kind::Bool => Err("argument must be 'yes' or 'no'".into()),
            Kind::Int(min, max) => bounded(integer(arg)?, min, max, false).map(Value::Int),
            Kind::Uint(min, max) => bounded(integer(arg)?, min, max, true).map(Value::Int),
            Kind::Mem(min, max) => bounded(bytes(arg)?, min, max, false).map(Value::Int),
            Kind::Umem(min, max) => bounded(bytes(arg)?, min, max, true).map(Value::Int),
            Kind::MemOrPercent => memory_or_percent(arg).map(Value::Int),
            Kind::Octal(max) => octal(text, max).map(Value::Int),
            Kind::Enum(names) => name(text, names).map(Value::Name),
            Kind::Duration => duration(arg).map(Value::Int),
            Kind::Classes => Classes::parse(text).map(|classes| Value::Int(classes.bits().into())),
            Kind::Text(read) => read(arg).map(Value::Text),
            Kind::Words(_) => unreachable!("handled above"),
        }
    }

    /// `value` as `CONFIG GET` shows it.
    pub fn show(self, value: &Value) -> Vec<u8> {
        match (self, value) {
            (_, Value::Bool(yes)) => if *yes { "yes" } else { "no" }.into(),
            (Kind::Octal(_), Value::Int(n)) => format!("{n:o}").into(),
            (Kind::MemOrPercent, Value::Int(n)) if *n < 0 => format!("{}%", n.unsigned_abs()).into(),
            (Kind::Duration, Value::Int(n)) if *n > 0 => show_duration(*n).into(),
            (Kind::Classes, Value::Int(bits)) => Classes::from_bits(*bits as u32).show(false),
            (_, Value::Int(n)) => n.to_string().into(),
            (_, Value::Name(name)) => (*name).into(),
            (_, Value::Text(text)) => text.clone(),
        }
    }

    /// `value` as a configuration file holds it: sizes in the biggest unit, words quoted where they must be.
    pub fn write(self, value: &Value) -> Vec<u8> {
        match (self, value) {
            (Kind::Mem(..) | Kind::Umem(..) | Kind::MemOrPercent, Value::Int(n)) if *n > 0 => show_bytes(*n).into(),
            (Kind::Words(_), Value::Text(text)) if !text.is_empty() => text.clone(),
            (Kind::Classes, Value::Int(bits)) => {
                crate::util::words::quote(&Classes::from_bits(*bits as u32).show(true))
            }
            (_, Value::Text(text)) => crate::util::words::as_word(text),
            _ => self.show(value),
        }
    }
}

/// The parts of `text` between single blanks; none of an empty one.
fn split_blanks(text: &[u8]) -> Vec<Vec<u8>> {
    if text.is_empty() { Vec::new() } else { text.split(|&c| c == b' ').map(<[u8]>::to_vec).collect() }
}

/// A decimal as Redis's `string2ll` takes it: no `+`, no leading zeros, no blanks, no `-0`.
///
/// # Errors
/// Redis's text for anything else.
pub fn integer(arg: &[u8]) -> Result<i64, Reason> {
    let digits = arg.strip_prefix(b"-").unwrap_or(arg);
    let plain = match digits {
        b"0" => arg.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let parsed = if plain { std::str::from_utf8(arg).ok().and_then(|text| text.parse().ok()) } else { None };
    parsed.ok_or(Cow::Borrowed("argument couldn't be parsed into an integer"))
}

/// A memory value: digits and a unit, in any case. As in Redis an empty text is 0 and what passes 64 bits turns
/// negative, which the bounds refuse.
///
/// # Errors
/// Redis's text for anything else.
pub fn bytes(arg: &[u8]) -> Result<i64, Reason> {
    memory(arg).ok_or(Cow::Borrowed("argument must be a memory value"))
}

fn memory(arg: &[u8]) -> Option<i64> {
    let arg = c_string(arg);
    let digits = arg.iter().take_while(|c| c.is_ascii_digit()).count();
    let (number, unit) = arg.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let number = number.iter().fold(0u64, |sum, c| sum.saturating_mul(10).saturating_add(u64::from(c - b'0')));
    Some(number.saturating_mul(factor).cast_signed())
}

fn memory_or_percent(arg: &[u8]) -> Result<i64, Reason> {
    let refused = || Cow::Borrowed("argument must be a memory or percent value");
    let value = match (memory(arg), arg.strip_suffix(b"%")) {
        (Some(bytes), _) => bytes,
        (None, Some(percent)) if !percent.is_empty() && percent.iter().all(u8::is_ascii_digit) => {
            memory(percent).ok_or_else(refused)?.checked_neg().unwrap_or(i64::MIN)
        }
        _ => return Err(refused()),
    };
    if value < -100 { Err("percentage argument must be less or equal to 100".into()) } else { Ok(value) }
}

fn octal(arg: &[u8], max: i64) -> Result<i64, Reason> {
    let parsed = std::str::from_utf8(arg).ok().and_then(|text| i64::from_str_radix(text, 8).ok());
    match parsed {
        None => Err("argument couldn't be parsed as an octal number".into()),
        Some(n) if n < 0 => Err("argument must be greater or equal to 0".into()),
        Some(n) if n > max => Err(format!("argument must be between 0 and {max:o} inclusive").into()),
        Some(n) => Ok(n),
    }
}

/// `value` if it lies within its bounds.
///
/// # Errors
/// Redis's text that names the bounds, or, for a negative number where none can be, the text for that.
pub fn bounded(value: i64, min: i64, max: i64, unsigned: bool) -> Result<i64, Reason> {
    if unsigned && value < 0 {
        Err("argument must be greater or equal to 0".into())
    } else if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(format!("argument must be between {min} and {max} inclusive").into())
    }
}

/// The name among `names` that `arg` is, in any case.
///
/// # Errors
/// Redis's text that lists the names.
pub fn name(arg: &[u8], names: &'static [&'static str]) -> Result<&'static str, Reason> {
    let found = names.iter().find(|name| name.as_bytes().eq_ignore_ascii_case(arg));
    found.copied().ok_or_else(|| format!("argument(s) must be one of the following: {}", names.join(", ")).into())
}

fn duration(arg: &[u8]) -> Result<i64, Reason> {
    if let Ok(micros) = integer(arg) {
        return bounded(micros, 0, i64::MAX, true);
    }
    let text = std::str::from_utf8(arg).ok();
    let span = text.and_then(|text| humantime::parse_duration(text).ok());
    span.and_then(|span| span.as_micros().try_into().ok())
        .ok_or(Cow::Borrowed("argument must be a duration, as 20us or 5ms"))
}

fn show_duration(micros: i64) -> String {
    humantime::format_duration(Duration::from_micros(micros.unsigned_abs())).to_string().replace(' ', "")
}

fn show_bytes(n: i64) -> String {
    match n {
        _ if n % (1 << 30) == 0 => format!("{}gb", n >> 30),
        _ if n % (1 << 20) == 0 => format!("{}mb", n >> 20),
        _ if n % (1 << 10) == 0 => format!("{}kb", n >> 10),
        _ => n.to_string(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn read(kind: Kind, arg: &str) -> Result<String, String> {
        let value = kind.parse(&[arg.into()], &Value::Int(0), false).map_err(|reason| reason.to_string())?;
        // What a file holds reads back as the same value.
        let words = crate::util::words::split(&kind.write(&value)).unwrap();
        assert_eq!(kind.parse(&words, &Value::Int(0), false), Ok(value.clone()));
        Ok(String::from_utf8(kind.show(&value)).unwrap())
    }

    #[test]
    fn memory_units() {
        for (arg, n) in [("1", "1"), ("2k", "2000"), ("2KB", "2048"), ("3m", "3000000"), ("64Mb", "67108864")] {
            assert_eq!(read(Kind::Umem(0, i64::MAX), arg), Ok(n.into()));
        }
        assert_eq!(read(Kind::Umem(0, i64::MAX), "2gb"), Ok("2147483648".into()));
        assert_eq!(
            read(Kind::Umem(0, i64::MAX), "99999999999gb").unwrap_err(),
            "argument must be greater or equal to 0"
        );
        assert_eq!(read(Kind::Mem(1, 9), "10").unwrap_err(), "argument must be between 1 and 9 inclusive");
        assert_eq!(read(Kind::Mem(1, 9), "x").unwrap_err(), "argument must be a memory value");
    }

    #[test]
    fn durations() {
        assert_eq!(read(Kind::Duration, "20us"), Ok("20us".into()));
        assert_eq!(read(Kind::Duration, "1500"), Ok("1ms500us".into()));
        assert_eq!(read(Kind::Duration, "0"), Ok("0".into()));
        assert_eq!(read(Kind::Duration, "soon").unwrap_err(), "argument must be a duration, as 20us or 5ms");
        assert_eq!(read(Kind::Duration, "-1").unwrap_err(), "argument must be greater or equal to 0");
    }

    #[test]
    fn octals() {
        assert_eq!(read(Kind::Octal(0o777), "700"), Ok("700".into()));
        assert_eq!(read(Kind::Octal(0o777), "7777").unwrap_err(), "argument must be between 0 and 777 inclusive");
        assert_eq!(read(Kind::Octal(0o777), "9").unwrap_err(), "argument couldn't be parsed as an octal number");
        assert_eq!(read(Kind::Octal(0o777), "-1").unwrap_err(), "argument must be greater or equal to 0");
    }

    #[test]
    fn one_word_only() {
        let two = ["1".into(), "2".into()];
        assert_eq!(Kind::Bool.parse(&two, &Value::Int(0), false).unwrap_err(), "wrong number of arguments");
        assert_eq!(Kind::Bool.parse(&[], &Value::Int(0), false).unwrap_err(), "wrong number of arguments");
    }
}
