//! Replies as Lua values, and Lua values as replies, as Redis converts them. Both ways keep lists of what is open and do not
//! call themselves, however deep a value is.

use crate::error::quotation;
use crate::handler::Reply;
use crate::lua::{Machine, Tab, Value};

/// Levels of a reply: as many as Redis's Lua stack holds.
const MOST_LEVELS: usize = 7995;

/// An aggregate of a reply that is being read.
struct Open {
    tab: Tab,
    kind: u8,
    /// Values that are still to come.
    left: usize,
    next: usize,
    /// The key of the pair at hand.
    key: Option<Value>,
    /// The table around it in RESP3: `{map = …}`, `{set = …}`.
    outer: Tab,
}

/// A reply as a Lua value, and the bytes of its strings. `None`: the machine's memory is used up.
pub(super) fn to_lua(machine: &mut Machine, reply: &[u8]) -> Option<(Value, usize)> {
    let mut open: Vec<Open> = Vec::new();
    let (mut at, mut strings) = (0, 0);
    loop {
        let (kind, line, after) = line_of(reply, at)?;
        at = after;
        let number = |line: &[u8]| std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok());
        let mut value = match kind {
            b'+' => wrapped(machine, "ok", line)?,
            b'-' => error_table(machine, line, true)?,
            b':' => Value::Number(number(line)? as f64),
            b'$' | b'=' => match usize::try_from(number(line)?) {
                Ok(len) => {
                    let text = reply.get(at..at + len)?;
                    at += len + 2;
                    if kind == b'$' {
                        strings += len;
                        machine.string(text)?
                    } else {
                        verbatim(machine, text)?
                    }
                }
                Err(_) => Value::Bool(false),
            },
            b'_' => Value::Nil,
            b'#' => Value::Bool(line == b"t"),
            b',' => {
                let number = std::str::from_utf8(line).ok().and_then(|text| text.parse::<f64>().ok())?;
                let (tab, name) = (machine.table(0, 1)?, machine.string(b"double")?);
                machine.set(tab, name, Value::Number(number))?;
                Value::Table(tab)
            }
            b'(' => wrapped(machine, "big_number", line)?,
            b'*' | b'%' | b'~' | b'>' => match usize::try_from(number(line)?) {
                Ok(count) => {
                    let tab =
                        if kind == b'*' || kind == b'>' { machine.table(count, 0) } else { machine.table(0, count) }?;
                    let outer = match kind {
                        b'%' => around(machine, "map", tab)?,
                        b'~' => around(machine, "set", tab)?,
                        _ => tab,
                    };
                    let left = if kind == b'%' { 2 * count } else { count };
                    open.push(Open { tab, kind, left, next: 1, key: None, outer });
                    if left > 0 {
                        continue;
                    }
                    Value::Table(open.pop()?.outer)
                }
                Err(_) => Value::Bool(false),
            },
            _ => return None,
        };
        // What is whole goes into what it is in, which may be whole by that.
        loop {
            let Some(top) = open.last_mut() else { return Some((value, strings)) };
            match (top.kind, top.key.take()) {
                (b'%', None) => top.key = Some(value),
                (b'%', Some(key)) => machine.set(top.tab, key, value)?,
                (b'~', _) => machine.set(top.tab, value, Value::Bool(true))?,
                _ => {
                    machine.set_index(top.tab, top.next, value)?;
                    top.next += 1;
                }
            }
            top.left -= 1;
            if top.left > 0 {
                break;
            }
            value = Value::Table(open.pop()?.outer);
        }
    }
}

/// Type, rest and end of the line that begins here.
fn line_of(reply: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = reply.get(at..)?;
    let end = memchr::memchr(b'\r', rest)?;
    Some((*rest.first()?, rest.get(1..end)?, at + end + 2))
}

/// `{name = text}`
fn wrapped(machine: &mut Machine, name: &str, text: &[u8]) -> Option<Value> {
    let (tab, name, text) = (machine.table(0, 1)?, machine.string(name.as_bytes())?, machine.string(text)?);
    machine.set(tab, name, text)?;
    Some(Value::Table(tab))
}

/// `{name = tab}`
fn around(machine: &mut Machine, name: &str, tab: Tab) -> Option<Tab> {
    let (outer, name) = (machine.table(0, 1)?, machine.string(name.as_bytes())?);
    machine.set(outer, name, Value::Table(tab))?;
    Some(outer)
}

fn verbatim(machine: &mut Machine, text: &[u8]) -> Option<Value> {
    let (format, text) = (text.get(..3)?, text.get(4..)?);
    let inner = machine.table(0, 2)?;
    for (name, part) in [(b"string".as_slice(), text), (b"format", format)] {
        let (name, part) = (machine.string(name)?, machine.string(part)?);
        machine.set(inner, name, part)?;
    }
    around(machine, "verbatim_string", inner).map(Value::Table)
}

/// What `redis.pcall` answers for an error: its text. `counted`: the statistics have counted it by now.
pub(super) fn error_table(machine: &mut Machine, text: &[u8], counted: bool) -> Option<Value> {
    let tab = machine.table(0, 2)?;
    let (name, text) = (machine.string(b"err")?, machine.string(text)?);
    machine.set(tab, name, text)?;
    if !counted {
        return Some(Value::Table(tab));
    }
    let name = machine.string(b"ignore_error_stats_update")?;
    machine.set(tab, name, Value::Bool(true))?;
    Some(Value::Table(tab))
}

/// A Lua number as Redis casts it: what does not fit is the lowest integer, as the processor answers.
fn to_int(number: f64) -> i64 {
    if number.abs() < 9_223_372_036_854_775_808.0 { number as i64 } else { i64::MIN }
}

/// What is still to be written.
enum Todo {
    Value(Value),
    /// The elements of an array are being counted: so many so far.
    Count(Tab, usize),
    /// The elements from this one on, to the last.
    Elements(Tab, usize, usize),
    /// The pairs of a map or a set are being counted: the last key, and so many so far.
    CountPairs(Tab, Value, usize, Of),
    /// The pairs after this key.
    Pairs(Tab, Value, Of),
    /// What was open is whole.
    Close,
}

/// What is made of a table's pairs.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Map,
    Set,
}

/// Elements that are counted in the time of writing one.
const COUNTED_A_STEP: usize = 8;
/// Bytes that are copied in the time of a step of a script.
const BYTES_A_STEP: usize = 16;

/// A script's result on its way into a reply. It can stop after any value: what a table refers to many times is written as
/// often, so that little memory makes replies without end. Tables are counted first, for a header that is written later moves all
/// that follows it.
pub(super) struct Answer {
    todo: Vec<Todo>,
    levels: usize,
    /// The script has asked for RESP3.
    resp3: bool,
}

impl Answer {
    pub(super) fn new(value: Value, resp3: bool) -> Answer {
        Answer { todo: vec![Todo::Value(value)], levels: 0, resp3 }
    }

    /// Whether all is written.
    pub(super) fn is_whole(&self) -> bool {
        self.todo.is_empty()
    }

    /// Goes on for about so many steps; how many they were.
    pub(super) fn write(&mut self, machine: &mut Machine, most_steps: u64, out: &mut Reply) -> u64 {
        let (mut steps, before) = (0, out.len());
        loop {
            let taken = steps + (out.len() - before) / BYTES_A_STEP;
            if taken as u64 >= most_steps {
                return taken as u64;
            }
            let Some(next) = self.todo.pop() else { return taken as u64 };
            steps += 1;
            self.one(next, machine, out);
        }
    }

    fn one(&mut self, next: Todo, machine: &mut Machine, out: &mut Reply) {
        match next {
            Todo::Value(_) if self.levels >= MOST_LEVELS => out.error_text(b"ERR reached lua stack limit"),
            Todo::Value(value) => {
                if let Some(more) = write(machine, value, self.resp3, out) {
                    self.levels += 1;
                    self.todo.extend([Todo::Close, more]);
                }
            }
            Todo::Count(tab, before) => {
                let to = before + COUNTED_A_STEP;
                let count = (before..to).find(|at| machine.get_index(tab, at + 1) == Value::Nil);
                if let Some(count) = count {
                    out.array(count);
                }
                self.todo.push(count.map_or(Todo::Count(tab, to), |count| Todo::Elements(tab, 1, count)));
            }
            Todo::Elements(tab, at, last) if at <= last => {
                self.todo.extend([Todo::Elements(tab, at + 1, last), Todo::Value(machine.get_index(tab, at))]);
            }
            Todo::Elements(..) => {}
            Todo::CountPairs(tab, key, count, of) => match (machine.next(tab, key), of) {
                (Some((key, _)), _) => self.todo.push(Todo::CountPairs(tab, key, count + 1, of)),
                (None, Of::Map) => {
                    out.map(count);
                    self.todo.push(Todo::Pairs(tab, Value::Nil, of));
                }
                (None, Of::Set) => {
                    out.set(count);
                    self.todo.push(Todo::Pairs(tab, Value::Nil, of));
                }
            },
            Todo::Pairs(tab, key, of) => {
                if let Some((key, value)) = machine.next(tab, key) {
                    self.todo.push(Todo::Pairs(tab, key, of));
                    if of == Of::Map {
                        self.todo.push(Todo::Value(value));
                    }
                    self.todo.push(Todo::Value(key));
                }
            }
            Todo::Close => self.levels -= 1,
        }
    }
}

/// Writes a value, or answers what is to follow.
fn write(machine: &mut Machine, value: Value, resp3: bool, out: &mut Reply) -> Option<Todo> {
    match value {
        Value::Str(_) => out.bulk(machine.bytes_of(value).unwrap_or_default()),
        Value::Number(number) => out.int(to_int(number)),
        Value::Bool(true) if !resp3 => out.int(1),
        Value::Bool(false) if !resp3 => out.nil(),
        Value::Bool(bool) => out.boolean(bool),
        Value::Table(tab) => return write_table(machine, tab, out),
        _ => out.nil(),
    }
    None
}

fn write_table(machine: &mut Machine, tab: Tab, out: &mut Reply) -> Option<Todo> {
    let text = |machine: &mut Machine, tab: Tab, name: &str| {
        let value = machine.get_field(tab, name);
        machine.bytes_of(value).map(<[u8]>::to_vec)
    };
    if let Some(error) = text(machine, tab, "err") {
        out.error_text(quotation(&one_line(error), usize::MAX));
        return None;
    }
    if let Some(status) = text(machine, tab, "ok") {
        out.status(quotation(&one_line(status), usize::MAX));
        return None;
    }
    if let Value::Number(number) = machine.get_field(tab, "double") {
        out.double(number);
        return None;
    }
    for (name, of) in [("map", Of::Map), ("set", Of::Set)] {
        if let Value::Table(inner) = machine.get_field(tab, name) {
            return Some(Todo::CountPairs(inner, Value::Nil, 0, of));
        }
    }
    if let Some(number) = text(machine, tab, "big_number") {
        out.big_number(&one_line(number));
        return None;
    }
    if let Value::Table(inner) = machine.get_field(tab, "verbatim_string")
        && let (Some(format), Some(string)) = (text(machine, inner, "format"), text(machine, inner, "string"))
    {
        let mut padded = [b' '; 3];
        padded.iter_mut().zip(format).for_each(|(to, from)| *to = from);
        out.verbatim(&string, &padded);
        return None;
    }
    Some(Todo::Count(tab, 0))
}

/// A text without line ends.
pub(super) fn one_line(mut text: Vec<u8>) -> Vec<u8> {
    text.iter_mut().filter(|c| matches!(c, b'\r' | b'\n')).for_each(|c| *c = b' ');
    text
}
