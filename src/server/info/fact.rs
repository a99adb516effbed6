//! A fact about the server: a name, what kind of number it is, one sentence, and what reads it. INFO's text is written from
//! these rows, and so is whatever else tells of the server in numbers.
//!
//! | row | is |
//! |---|---|
//! | [`counter`] | a number that only grows, until CONFIG RESETSTAT or a restart |
//! | [`gauge`] | a number as it is now |
//! | [`text`] | no number |
//! | [`nothing`] | 0, always: what Redis counts and this server has no such thing for |
//! | [`Family`] | the same few facts about each of many: commands, databases, threads |

use std::fmt::{self, Display, Formatter};

use super::Facts;

/// What kind of number a fact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// None.
    Text,
    /// Always 0, as the server has no such thing.
    Nothing(Lack),
}

/// What the server does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Lack {
    Replication,
    Cluster,
    Modules,
    Fork,
    Defragmentation,
}

/// A fact's value; [`Display`] writes it as INFO does.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number.
    Count(u64),
    /// One that may be below zero.
    Signed(i64),
    /// One with so many decimals.
    Real(f64, usize),
    /// A part in percent.
    Percent(f64),
    /// Bytes, for people.
    Human(u64),
    /// Text.
    Text(String),
    /// The fact is not told now.
    Absent,
}

impl Value {
    /// Part of a whole.
    pub fn percent(part: u64, whole: u64) -> Value {
        Value::Percent(part as f64 * 100.0 / whole.max(1) as f64)
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Count(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            Value::Real(number, _) | Value::Percent(number) => Some(*number),
            Value::Human(_) | Value::Text(_) | Value::Absent => None,
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(number) => number.fmt(f),
            Value::Signed(number) => number.fmt(f),
            Value::Real(number, decimals) => write!(f, "{number:.decimals$}"),
            Value::Percent(part) => write!(f, "{part:.2}%"),
            Value::Human(bytes) => f.write_str(&human(*bytes)),
            Value::Text(text) => f.write_str(text),
            Value::Absent => Ok(()),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Count(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Value::Count(number as u64)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Value::Count(number.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Signed(number)
    }
}

impl From<bool> for Value {
    fn from(yes: bool) -> Self {
        Value::Count(yes.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

/// Bytes as Redis prints them for people.
fn human(bytes: u64) -> String {
    let bytes_f = bytes as f64;
    let in_units = |shift: u32, unit: char| format!("{:.2}{unit}", bytes_f / (1u64 << shift) as f64);
    match bytes.checked_ilog2().unwrap_or(0) {
        0..10 => format!("{bytes}B"),
        10..20 => in_units(10, 'K'),
        20..30 => in_units(20, 'M'),
        30..40 => in_units(30, 'G'),
        _ => in_units(40, 'T'),
    }
}

/// What reads a fact.
pub type Read = fn(&Facts<'_>) -> Value;

/// One fact.
#[derive(Debug, Clone, Copy)]
pub struct Fact {
    /// Its name in INFO.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// One sentence; none for texts.
    pub help: &'static str,
    /// What reads it.
    pub read: Read,
}

/// One of the facts that a [`Family`] has about each.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name within the line.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// One sentence.
    pub help: &'static str,
}

/// Is given each of a family: its name, and the values of the family's fields, in their order.
pub type Visit<'a> = &'a mut dyn FnMut(&str, &[Value]);

/// The same facts about each of many: a line each, `prefix`, its name, and `field=value` by commas.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// What stands before the name.
    pub prefix: &'static str,
    /// What the name is of: a command, a database, a thread.
    pub label: &'static str,
    /// What there is to know of each.
    pub fields: &'static [Field],
    /// Goes through all of them.
    pub each: fn(&Facts<'_>, Visit<'_>),
}

/// A line of INFO, or several.
#[derive(Debug, Clone, Copy)]
pub enum Entry {
    /// One fact.
    One(Fact),
    /// A line for each of many.
    Many(Family),
}

/// What only grows.
pub(super) const fn counter(name: &'static str, help: &'static str, read: Read) -> Entry {
    Entry::One(Fact { name, kind: Kind::Counter, help, read })
}

/// What goes up and down.
pub(super) const fn gauge(name: &'static str, help: &'static str, read: Read) -> Entry {
    Entry::One(Fact { name, kind: Kind::Gauge, help, read })
}

/// What is no number.
pub(super) const fn text(name: &'static str, read: Read) -> Entry {
    Entry::One(Fact { name, kind: Kind::Text, help: "", read })
}

/// What there is none of.
pub(super) const fn nothing(name: &'static str, lack: Lack) -> Entry {
    Entry::One(Fact { name, kind: Kind::Nothing(lack), help: "", read: |_| Value::Count(0) })
}

/// The same where INFO writes it with decimals.
pub(super) const fn nothing_real(name: &'static str, lack: Lack) -> Entry {
    Entry::One(Fact { name, kind: Kind::Nothing(lack), help: "", read: |_| Value::Real(0.0, 2) })
}

/// A field of a family that only grows.
pub(super) const fn grows(name: &'static str, help: &'static str) -> Field {
    Field { name, kind: Kind::Counter, help }
}

/// A field of a family that goes up and down.
pub(super) const fn moves(name: &'static str, help: &'static str) -> Field {
    Field { name, kind: Kind::Gauge, help }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (923_272, "901.63K"),
            (1 << 20, "1.00M"),
            (25_276_510_208, "23.54G"),
            (1 << 40, "1.00T"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
