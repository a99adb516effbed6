//! Matching of Lua's patterns, without recursion: what Lua's matcher leaves to C's stack is a list of choices here.
//!
//! | choice | taken back when what follows does not match |
//! |---|---|
//! | `Jump` | the item after `?` is left out |
//! | `Fewer` | `*` and `+` give one character back |
//! | `More` | `-` takes one character more |
//! | `Open`, `Close` | the capture that was begun or ended is not |
//!
//! Every step is charged; a matcher whose fuel is used up goes on where it stopped.

use super::super::fault::{Fault, Meter};

/// Captures in a pattern.
pub(in super::super) const MAX_CAPTURES: usize = 32;

/// Where a capture ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum End {
    At(usize),
    /// `()`: the position itself is captured.
    Position,
    /// It has not ended yet.
    Open,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Jump { s: usize, p: usize },
    Fewer { s: usize, count: usize, p: usize },
    More { s: usize, item: usize, after: usize },
    Open,
    Close(usize),
}

/// How far a matcher has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Outcome {
    /// It matches up to here.
    Matched(usize),
    Failed,
    /// The fuel is used up.
    Interrupted,
}

#[derive(Debug)]
pub(in super::super) struct Matcher {
    pub(in super::super) captures: Vec<(usize, End)>,
    choices: Vec<Choice>,
    s: usize,
    p: usize,
    /// Characters of the repetition at hand that are counted already.
    counted: usize,
    /// Bytes that were charged for the choices.
    pub(in super::super) charged: usize,
}

const CHOICE_BYTES: usize = size_of::<Choice>();
/// Comparisons of a repetition before the fuel is looked at.
const COMPARED: usize = 16 << 10;

impl Matcher {
    pub(in super::super) fn new() -> Matcher {
        Matcher { captures: Vec::new(), choices: Vec::new(), s: 0, p: 0, counted: 0, charged: 0 }
    }

    /// Begins at a place of the subject and of the pattern.
    pub(in super::super) fn start(&mut self, s: usize, p: usize) {
        self.captures.clear();
        self.choices.clear();
        (self.s, self.p, self.counted) = (s, p, 0);
    }

    fn choose(&mut self, choice: Choice, meter: &mut Meter) -> Result<(), Fault> {
        if self.choices.len() == self.choices.capacity() {
            let more = self.choices.len().max(8);
            meter.take(more * CHOICE_BYTES)?;
            self.charged += more * CHOICE_BYTES;
            self.choices.reserve_exact(more);
        }
        self.choices.push(choice);
        Ok(())
    }

    /// Goes on until the pattern matches or cannot.
    pub(in super::super) fn run(
        &mut self,
        subject: &[u8],
        pattern: &[u8],
        meter: &mut Meter,
    ) -> Result<Outcome, Fault> {
        loop {
            if meter.fuel <= 0 {
                return Ok(Outcome::Interrupted);
            }
            meter.work(1);
            if self.p >= pattern.len() {
                return Ok(Outcome::Matched(self.s));
            }
            let goes_on = self.item(subject, pattern, meter)?;
            if !goes_on && !self.back(subject, pattern, meter)? {
                return Ok(Outcome::Failed);
            }
        }
    }

    /// One item of the pattern; false if it does not match.
    fn item(&mut self, subject: &[u8], pattern: &[u8], meter: &mut Meter) -> Result<bool, Fault> {
        let next = pattern.get(self.p + 1).copied();
        match pattern[self.p] {
            b'(' => {
                let position = next == Some(b')');
                if self.captures.len() >= MAX_CAPTURES {
                    return Err(Fault::lib("too many captures"));
                }
                self.captures.push((self.s, if position { End::Position } else { End::Open }));
                self.p += if position { 2 } else { 1 };
                self.choose(Choice::Open, meter)?;
                Ok(true)
            }
            b')' => {
                let open = self.captures.iter().rposition(|(_, end)| *end == End::Open);
                let at = open.ok_or_else(|| Fault::lib("invalid pattern capture"))?;
                self.captures[at].1 = End::At(self.s);
                self.p += 1;
                self.choose(Choice::Close(at), meter)?;
                Ok(true)
            }
            b'$' if next.is_none() => {
                self.p += 1;
                Ok(self.s == subject.len())
            }
            b'%' if next == Some(b'b') => self.balance(subject, pattern, meter),
            b'%' if next == Some(b'f') => self.frontier(subject, pattern, meter),
            b'%' if next.is_some_and(|b| b.is_ascii_digit()) => self.repeated_capture(subject, next, meter),
            _ => self.single(subject, pattern, meter),
        }
    }

    fn single(&mut self, subject: &[u8], pattern: &[u8], meter: &mut Meter) -> Result<bool, Fault> {
        let (item, after) = (self.p, class_end(pattern, self.p)?);
        // Long sets are looked through for each character.
        let cost = (after - item) / 4;
        meter.work(cost);
        let hit = self.s < subject.len() && matches(subject[self.s], pattern, item, after);
        match pattern.get(after) {
            Some(b'?') => {
                if hit {
                    self.choose(Choice::Jump { s: self.s, p: after + 1 }, meter)?;
                    self.s += 1;
                }
                self.p = after + 1;
                Ok(true)
            }
            Some(b'*') => self.longest(subject, pattern, (item, after), 0, meter),
            Some(b'+') if hit => self.longest(subject, pattern, (item, after), 1, meter),
            Some(b'+') => Ok(false),
            Some(b'-') => {
                self.choose(Choice::More { s: self.s, item, after }, meter)?;
                self.p = after + 1;
                Ok(true)
            }
            _ => {
                self.s += usize::from(hit);
                self.p = after;
                Ok(hit)
            }
        }
    }

    /// As many as there are; at least `least`, which is known to be there. Where there are many, the item is come back to.
    fn longest(
        &mut self,
        subject: &[u8],
        pattern: &[u8],
        (item, after): (usize, usize),
        least: usize,
        meter: &mut Meter,
    ) -> Result<bool, Fault> {
        let from = self.s + least;
        let most = 1 + COMPARED / (after - item);
        let piece = subject[from + self.counted..].iter().take(most);
        let more = piece.take_while(|byte| matches(**byte, pattern, item, after)).count();
        meter.work((more + 1) * (1 + (after - item) / 4) / 4);
        self.counted += more;
        if more == most {
            return Ok(true);
        }
        let count = std::mem::take(&mut self.counted);
        if count > 0 {
            self.choose(Choice::Fewer { s: from, count, p: after + 1 }, meter)?;
        }
        self.s = from + count;
        self.p = after + 1;
        Ok(true)
    }

    fn balance(&mut self, subject: &[u8], pattern: &[u8], meter: &mut Meter) -> Result<bool, Fault> {
        let (Some(open), Some(close)) = (pattern.get(self.p + 2), pattern.get(self.p + 3)) else {
            return Err(Fault::lib("unbalanced pattern"));
        };
        if subject.get(self.s) != Some(open) {
            return Ok(false);
        }
        let mut depth = 1usize;
        for (offset, byte) in subject[self.s + 1..].iter().enumerate() {
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    meter.work(offset / 4);
                    self.s += offset + 2;
                    self.p += 4;
                    return Ok(true);
                }
            } else if byte == open {
                depth += 1;
            }
        }
        meter.work((subject.len() - self.s) / 4);
        Ok(false)
    }

    fn frontier(&mut self, subject: &[u8], pattern: &[u8], meter: &mut Meter) -> Result<bool, Fault> {
        let set = self.p + 2;
        if pattern.get(set) != Some(&b'[') {
            return Err(Fault::lib("missing '[' after '%f' in pattern"));
        }
        let after = class_end(pattern, set)?;
        meter.work((after - set) / 2);
        let before = if self.s == 0 { 0 } else { subject[self.s - 1] };
        let here = subject.get(self.s).copied().unwrap_or(0);
        self.p = after;
        Ok(!in_set(before, pattern, set, after - 1) && in_set(here, pattern, set, after - 1))
    }

    fn repeated_capture(&mut self, subject: &[u8], digit: Option<u8>, meter: &mut Meter) -> Result<bool, Fault> {
        let at = digit.and_then(|digit| usize::from(digit).checked_sub(usize::from(b'1')));
        let capture = at.and_then(|at| self.captures.get(at)).copied();
        let Some((from, end)) = capture.filter(|(_, end)| *end != End::Open) else {
            return Err(Fault::lib("invalid capture index"));
        };
        // A captured position never repeats: its length is no length.
        let End::At(to) = end else { return Ok(false) };
        meter.copy(to - from);
        let hit = subject[self.s..].starts_with(&subject[from..to]);
        if hit {
            self.s += to - from;
            self.p += 2;
        }
        Ok(hit)
    }

    /// Goes back to the last choice that has another way; false if there is none.
    fn back(&mut self, subject: &[u8], pattern: &[u8], meter: &mut Meter) -> Result<bool, Fault> {
        while let Some(choice) = self.choices.pop() {
            meter.work(1);
            match choice {
                Choice::Open => {
                    self.captures.pop();
                }
                Choice::Close(at) => self.captures[at].1 = End::Open,
                Choice::Jump { s, p } => {
                    (self.s, self.p) = (s, p);
                    return Ok(true);
                }
                Choice::Fewer { s, count, p } => {
                    if count > 1 {
                        self.choices.push(Choice::Fewer { s, count: count - 1, p });
                    }
                    (self.s, self.p) = (s + count - 1, p);
                    return Ok(true);
                }
                Choice::More { s, item, after } => {
                    meter.work((after - item) / 4);
                    if s < subject.len() && matches(subject[s], pattern, item, after) {
                        self.choices.push(Choice::More { s: s + 1, item, after });
                        (self.s, self.p) = (s + 1, after + 1);
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }
}

/// Where the single-character class at `p` ends.
fn class_end(pattern: &[u8], p: usize) -> Result<usize, Fault> {
    match pattern[p] {
        b'%' if p + 1 >= pattern.len() => Err(Fault::lib("malformed pattern (ends with '%')")),
        b'%' => Ok(p + 2),
        b'[' => {
            let mut at = p + 1;
            if pattern.get(at) == Some(&b'^') {
                at += 1;
            }
            // The first character of a set may be the closing bracket.
            loop {
                match pattern.get(at) {
                    None => return Err(Fault::lib("malformed pattern (missing ']')")),
                    Some(b'%') if at + 1 < pattern.len() => at += 2,
                    Some(_) => at += 1,
                }
                if pattern.get(at) == Some(&b']') {
                    return Ok(at + 1);
                }
            }
        }
        _ => Ok(p + 1),
    }
}

fn matches(byte: u8, pattern: &[u8], item: usize, after: usize) -> bool {
    match pattern[item] {
        b'.' => true,
        b'%' => in_class(byte, pattern[item + 1]),
        b'[' => in_set(byte, pattern, item, after - 1),
        literal => literal == byte,
    }
}

/// `%a` and the like; what is no letter of a class is meant itself.
fn in_class(byte: u8, class: u8) -> bool {
    let hit = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => super::super::number::is_space(byte),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    hit != class.is_ascii_uppercase()
}

/// Whether the set from `[` at `from` to `]` at `end` has a character.
fn in_set(byte: u8, pattern: &[u8], from: usize, end: usize) -> bool {
    let negated = pattern.get(from + 1) == Some(&b'^');
    let mut at = from + 1 + usize::from(negated);
    while at < end {
        if pattern[at] == b'%' && at + 1 < pattern.len() {
            at += 1;
            if in_class(byte, pattern[at]) {
                return !negated;
            }
        } else if pattern[at + 1] == b'-' && at + 2 < end {
            if (pattern[at]..=pattern[at + 2]).contains(&byte) {
                return !negated;
            }
            at += 2;
        } else if pattern[at] == byte {
            return !negated;
        }
        at += 1;
    }
    negated
}
