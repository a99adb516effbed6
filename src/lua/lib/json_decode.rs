//! `cjson.decode`, token by token, so that it can stop where the fuel is used up and go on.

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::number;
use super::super::value::{Str, Tab, Value};
use super::super::vm::{Args, Flow, Vm};
use super::cjson::{Config, MAX_DEPTH, config};

/// What a token is, and its place in the text.
#[derive(Clone, Copy, Debug)]
enum Token {
    Value(Value),
    /// One of `{}[],:`
    Mark(u8),
    End,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    Value,
    /// A value, or the end of the array that has just begun.
    ValueOrEnd,
    /// A key, or the end of the object that has just begun.
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    TheEnd,
}

/// A text that is being read.
#[derive(Debug)]
pub(in super::super) struct Decoder {
    config: Config,
    text: Str,
    at: usize,
    expect: Expect,
    /// The tables around what comes next: an array's last index, or an object's last key.
    open: Vec<(Tab, Place)>,
    result: Value,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Index(i64),
    Key(Value),
}

pub(super) fn decode(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    if args.n != 1 {
        return Err(Fault::arg(1, "expected 1 argument"));
    }
    let text = vm.check_string(args, 0)?;
    let bytes = vm.heap.bytes(text);
    if bytes.len() >= 2 && (bytes[0] == 0 || bytes[1] == 0) {
        return Err(Fault::lib("JSON parser does not support UTF-16 or UTF-32"));
    }
    let config = config(vm, args);
    Decoder { config, text, at: 0, expect: Expect::Value, open: Vec::new(), result: Value::Nil }.run(vm)
}

impl Decoder {
    pub(in super::super) fn values(&self) -> Vec<Value> {
        let mut values = vec![Value::Str(self.text), self.result];
        for (table, place) in &self.open {
            values.push(Value::Table(*table));
            if let Place::Key(key) = place {
                values.push(*key);
            }
        }
        values
    }

    /// Goes on until all is read or the fuel is used up.
    pub(in super::super) fn run(mut self, vm: &mut Vm) -> Result<Flow, Fault> {
        loop {
            if vm.heap.meter.fuel <= 0 {
                return Ok(Flow::Step(Cont::Decode(Box::new(self))));
            }
            let from = self.at;
            let (token, start) = self.token(vm)?;
            vm.heap.meter.work(2 + (self.at - from) / 16);
            if let Some(value) = self.take(vm, token, start)? {
                return Ok(Flow::One(value));
            }
        }
    }

    fn unexpected(&self, expected: &str, token: Token, start: usize) -> Fault {
        let found = match token {
            Token::Value(Value::Str(_)) => "T_STRING",
            Token::Value(Value::Number(_)) => "T_NUMBER",
            Token::Value(Value::Bool(_)) => "T_BOOLEAN",
            Token::Value(_) => "T_NULL",
            Token::Mark(b'{') => "T_OBJ_BEGIN",
            Token::Mark(b'}') => "T_OBJ_END",
            Token::Mark(b'[') => "T_ARR_BEGIN",
            Token::Mark(b']') => "T_ARR_END",
            Token::Mark(b':') => "T_COLON",
            Token::Mark(_) => "T_COMMA",
            Token::End => "T_END",
        };
        wrong(expected, found, start)
    }

    fn expected(&self) -> &'static str {
        match (self.expect, self.open.last()) {
            (Expect::Value | Expect::ValueOrEnd, _) => "value",
            (Expect::Key | Expect::KeyOrEnd, _) => "object key string",
            (Expect::Colon, _) => "colon",
            (Expect::CommaOrEnd, Some((_, Place::Index(_)))) => "comma or array end",
            (Expect::CommaOrEnd, _) => "comma or object end",
            (Expect::TheEnd, _) => "the end",
        }
    }

    /// Takes a token where it belongs; the result, once it is complete.
    fn take(&mut self, vm: &mut Vm, token: Token, start: usize) -> Result<Option<Value>, Fault> {
        match (self.expect, token) {
            (Expect::TheEnd, Token::End) => return Ok(Some(self.result)),
            (Expect::Value | Expect::ValueOrEnd, Token::Value(value)) => self.put(vm, value)?,
            (Expect::Value | Expect::ValueOrEnd, Token::Mark(mark @ (b'{' | b'['))) => {
                let depth = self.open.len() as i32 + 1;
                if depth > self.config.decode_max_depth.min(MAX_DEPTH) {
                    return Err(Fault::lib(format!(
                        "Found too many nested data structures ({depth}) at character {}",
                        start + 1
                    )));
                }
                let table = vm.heap.new_table(0, 0)?;
                let is_array = mark == b'[';
                self.open.push((table, if is_array { Place::Index(0) } else { Place::Key(Value::Nil) }));
                self.expect = if is_array { Expect::ValueOrEnd } else { Expect::KeyOrEnd };
            }
            (Expect::ValueOrEnd, Token::Mark(b']')) | (Expect::KeyOrEnd, Token::Mark(b'}')) => self.close(vm)?,
            (Expect::Key | Expect::KeyOrEnd, Token::Value(key @ Value::Str(_))) => {
                if let Some(last) = self.open.last_mut() {
                    last.1 = Place::Key(key);
                }
                self.expect = Expect::Colon;
            }
            (Expect::Colon, Token::Mark(b':')) => self.expect = Expect::Value,
            (Expect::CommaOrEnd, Token::Mark(mark)) => {
                let is_array = matches!(self.open.last(), Some((_, Place::Index(_))));
                match mark {
                    b',' => self.expect = if is_array { Expect::Value } else { Expect::Key },
                    b']' if is_array => self.close(vm)?,
                    b'}' if !is_array => self.close(vm)?,
                    _ => return Err(self.unexpected(self.expected(), token, start)),
                }
            }
            _ => return Err(self.unexpected(self.expected(), token, start)),
        }
        Ok(None)
    }

    fn close(&mut self, vm: &mut Vm) -> Result<(), Fault> {
        match self.open.pop() {
            Some((table, _)) => self.put(vm, Value::Table(table)),
            None => Ok(()),
        }
    }

    /// A complete value goes into the table around it.
    fn put(&mut self, vm: &mut Vm, value: Value) -> Result<(), Fault> {
        self.expect = Expect::CommaOrEnd;
        match self.open.last_mut() {
            None => {
                self.result = value;
                self.expect = Expect::TheEnd;
            }
            Some((table, Place::Index(at))) => {
                *at += 1;
                vm.heap.raw_set_int(*table, *at, value)?;
            }
            Some((table, Place::Key(key))) => vm.heap.raw_set(*table, *key, value)?,
        }
        Ok(())
    }

    /// The next token, and where it begins.
    fn token(&mut self, vm: &mut Vm) -> Result<(Token, usize), Fault> {
        let text = vm.heap.strings.get(self.text);
        self.at += text[self.at..].iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')).count();
        let start = self.at;
        let rest = &text[start..];
        let token = match rest.first() {
            None | Some(0) => Token::End,
            Some(mark @ (b'{' | b'}' | b'[' | b']' | b',' | b':')) => {
                self.at += 1;
                Token::Mark(*mark)
            }
            Some(b'"') => {
                let (string, length) = read_string(rest, |offset, what| wrong(self.expected(), what, start + offset))?;
                self.at += length;
                Token::Value(vm.heap.owned(string)?)
            }
            Some(b'-' | b'0'..=b'9') => {
                if !self.config.decode_invalid && is_invalid_number(rest) {
                    return Err(wrong(self.expected(), "invalid number", start));
                }
                self.number(rest, start)?
            }
            _ if rest.starts_with(b"true") => self.word(4, Value::Bool(true)),
            _ if rest.starts_with(b"false") => self.word(5, Value::Bool(false)),
            _ if rest.starts_with(b"null") => self.word(4, Value::Null),
            _ if self.config.decode_invalid && is_invalid_number(rest) => self.number(rest, start)?,
            _ => return Err(wrong(self.expected(), "invalid token", start)),
        };
        Ok((token, start))
    }

    fn word(&mut self, length: usize, value: Value) -> Token {
        self.at += length;
        Token::Value(value)
    }

    fn number(&mut self, rest: &[u8], start: usize) -> Result<Token, Fault> {
        // No number that matters is longer, and the text may go on for megabytes.
        let (n, after) = number::read(rest).ok_or_else(|| wrong(self.expected(), "invalid number", start))?;
        self.at += rest.len() - after.len();
        Ok(Token::Value(Value::Number(n)))
    }
}

fn wrong(expected: &str, found: &str, start: usize) -> Fault {
    Fault::lib(format!("Expected {expected} but found {found} at character {}", start + 1))
}

/// What C reads as a number and JSON does not have: hexadecimal, leading zeros, infinity, not-a-number.
fn is_invalid_number(text: &[u8]) -> bool {
    let rest = match text.first() {
        Some(b'+') => return true,
        Some(b'-') => &text[1..],
        _ => text,
    };
    match rest.first() {
        Some(b'0') => matches!(rest.get(1), Some(b'x' | b'X' | b'0'..=b'9')),
        Some(byte) if *byte <= b'9' => false,
        _ => {
            let begins = |word: &[u8]| rest.len() >= 3 && rest[..3].eq_ignore_ascii_case(word);
            begins(b"inf") || begins(b"nan")
        }
    }
}

/// A string literal: its bytes, and how long it is in the text.
fn read_string(text: &[u8], wrong: impl Fn(usize, &str) -> Fault) -> Result<(Vec<u8>, usize), Fault> {
    let mut out = Vec::new();
    let mut at = 1;
    loop {
        let rest = &text[at..];
        let plain = memchr::memchr3(b'"', b'\\', 0, rest).unwrap_or(rest.len());
        out.extend_from_slice(&rest[..plain]);
        at += plain;
        match text.get(at) {
            Some(b'"') => return Ok((out, at + 1)),
            Some(b'\\') => {}
            _ => return Err(wrong(at, "unexpected end of string")),
        }
        let meant = match text.get(at + 1) {
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let (point, length) =
                    read_unicode(&text[at..]).ok_or_else(|| wrong(at, "invalid unicode escape code"))?;
                write_utf8(point, &mut out);
                at += length;
                continue;
            }
            _ => return Err(wrong(at, "invalid escape code")),
        };
        out.push(meant);
        at += 2;
    }
}

/// `\u` with four digits, or two of these that make one code point.
fn read_unicode(text: &[u8]) -> Option<(u32, usize)> {
    let unit = |from: usize| {
        let digits = text.get(from..from + 4)?;
        digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + (*digit as char).to_digit(16)?))
    };
    let first = unit(2)?;
    if first & 0xf800 != 0xd800 {
        return Some((first, 6));
    }
    // The second half of a pair does not come first, and the first not alone.
    if first & 0x400 != 0 || text.get(6..8) != Some(b"\\u") {
        return None;
    }
    let second = unit(8)?;
    if second & 0xfc00 != 0xdc00 {
        return None;
    }
    Some((((first & 0x3ff) << 10 | (second & 0x3ff)) + 0x10000, 12))
}

fn write_utf8(point: u32, out: &mut Vec<u8>) {
    let mut bytes = [0; 4];
    if let Some(c) = char::from_u32(point) {
        out.extend_from_slice(c.encode_utf8(&mut bytes).as_bytes());
    }
}
