//! Replies as Lua values, and Lua values as replies, as Redis converts them. Both ways keep lists of what is open and do not
//! call themselves, however deep a value is.

use crate::handler::Reply;
use crate::lua::{Machine, Tab, Value};
use crate::resp::reply::Mark;

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

/// A reply as a Lua value. `None`: the machine's memory is used up.
pub(super) fn to_lua(machine: &mut Machine, reply: &[u8]) -> Option<Value> {
    let mut open: Vec<Open> = Vec::new();
    let mut at = 0;
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
                    if kind == b'$' { machine.string(text)? } else { verbatim(machine, text)? }
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
            let Some(top) = open.last_mut() else { return Some(value) };
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
    /// The elements from this one on; the header, and how many there were.
    Elements(Tab, usize, Mark, usize),
    /// The pairs after this key; the header, how many there were, and whether values are written, too.
    Pairs(Tab, Value, Mark, usize, bool),
    /// What was open is whole.
    Close,
}

/// A script's result as a reply. `resp3`: the script has asked for RESP3.
pub(super) fn to_reply(machine: &mut Machine, value: Value, resp3: bool, out: &mut Reply) {
    let mut todo = vec![Todo::Value(value)];
    let mut levels = 0;
    while let Some(next) = todo.pop() {
        match next {
            Todo::Value(_) if levels >= MOST_LEVELS => out.error_text(b"ERR reached lua stack limit"),
            Todo::Value(value) => {
                if let Some(more) = write(machine, value, resp3, out) {
                    levels += 1;
                    todo.push(Todo::Close);
                    todo.push(more);
                }
            }
            Todo::Elements(tab, at, mark, count) => match machine.get_index(tab, at) {
                Value::Nil => out.set_len(mark, count),
                value => {
                    todo.push(Todo::Elements(tab, at + 1, mark, count + 1));
                    todo.push(Todo::Value(value));
                }
            },
            Todo::Pairs(tab, key, mark, count, with_values) => match machine.next(tab, key) {
                None => out.set_len(mark, count),
                Some((key, value)) => {
                    todo.push(Todo::Pairs(tab, key, mark, count + 1, with_values));
                    if with_values {
                        todo.push(Todo::Value(value));
                    }
                    todo.push(Todo::Value(key));
                }
            },
            Todo::Close => levels -= 1,
        }
    }
}

/// Writes a value, or its header: then what is to follow.
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
        out.error_text(&one_line(error));
        return None;
    }
    if let Some(status) = text(machine, tab, "ok") {
        out.status(&String::from_utf8_lossy(&one_line(status)));
        return None;
    }
    if let Value::Number(number) = machine.get_field(tab, "double") {
        out.double(number);
        return None;
    }
    for (name, with_values) in [("map", true), ("set", false)] {
        if let Value::Table(inner) = machine.get_field(tab, name) {
            let mark = if with_values { out.defer_map() } else { out.defer_set() };
            return Some(Todo::Pairs(inner, Value::Nil, mark, 0, with_values));
        }
    }
    if let Some(number) = text(machine, tab, "big_number") {
        out.big_number(&String::from_utf8_lossy(&one_line(number)));
        return None;
    }
    if let Value::Table(inner) = machine.get_field(tab, "verbatim_string")
        && let (Some(format), Some(string)) = (text(machine, inner, "format"), text(machine, inner, "string"))
    {
        let mut padded = [b' '; 3];
        padded.iter_mut().zip(format).for_each(|(to, from)| *to = from);
        out.verbatim(&string, &String::from_utf8_lossy(&padded));
        return None;
    }
    Some(Todo::Elements(tab, 1, out.defer_array(), 0))
}

/// A text without line ends.
pub(super) fn one_line(mut text: Vec<u8>) -> Vec<u8> {
    text.iter_mut().filter(|c| matches!(c, b'\r' | b'\n')).for_each(|c| *c = b' ');
    text
}
