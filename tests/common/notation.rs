//! Replies as scripts write them.
//!
//! | written | RESP3 | RESP2 |
//! |---|---|---|
//! | `+OK`, `+"two words"` | simple string | = |
//! | `-ERR text` (to the end of the line), inside a collection `-"ERR text"` | error | = |
//! | `12` | integer | = |
//! | `"text\r\n\x00"` | bulk string | = |
//! | `nil`, `nil[]` | null | `$-1`, `*-1` |
//! | `[a, b]` | array | = |
//! | `{k: v}` | map | array, flat |
//! | `set[a, b]`, `push[a, b]` | set (in any order), push | array (a set's in any order) |
//! | `d:1.5`, `big:12`, `true`, `txt"text"` | double, big number, boolean, verbatim string | bulk, bulk, 1 or 0, bulk |
//!
//! What is not the same in every run:
//!
//! | written | matches |
//! |---|---|
//! | `sort[a, b]`, `sort{k: v}` | an array, a map in any order |
//! | `98..100` | an integer from 98 to 100 |
//! | `g"*text?"`, `-g"ERR *"` | a string, an error by glob (`*` and `?` only) |
//! | `*` | anything |
//! | `$name` | anything, kept for `${name}` in later commands |
//! | `(none)`, `closed` | no reply, the end of the connection |

use super::resp::Value;

/// The protocol a reply came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    Resp2,
    Resp3,
}

/// A reply expected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    NilArray,
    Array(Vec<Pattern>),
    Sorted(Vec<Pattern>),
    Set(Vec<Pattern>),
    Push(Vec<Pattern>),
    Map(Vec<(Pattern, Pattern)>),
    SortedMap(Vec<(Pattern, Pattern)>),
    Double(Vec<u8>),
    Big(Vec<u8>),
    Bool(bool),
    Verbatim(Vec<u8>, Vec<u8>),
    Range(i64, i64),
    Glob(Vec<u8>),
    ErrorGlob(Vec<u8>),
    Any,
    Capture(String),
    NoReply,
    Closed,
}

impl Pattern {
    /// Whether a reply is the expected one in its protocol; captures go to `keep`.
    pub(crate) fn matches(&self, value: &Value, proto: Proto, keep: &mut dyn FnMut(&str, &Value)) -> bool {
        let three = proto == Proto::Resp3;
        match (self, value) {
            (Pattern::Any, _) => true,
            (Pattern::Capture(name), _) => {
                keep(name, value);
                true
            }
            (Pattern::Simple(a), Value::Simple(b)) | (Pattern::Error(a), Value::Error(b)) => a == b,
            (Pattern::Bulk(a), Value::Bulk(b)) => a == b,
            (Pattern::Int(a), Value::Int(b)) => a == b,
            (Pattern::Range(low, high), Value::Int(n)) => low <= n && n <= high,
            (Pattern::Glob(glob), Value::Bulk(b) | Value::Simple(b) | Value::Verbatim(_, b)) => glob_matches(glob, b),
            (Pattern::ErrorGlob(glob), Value::Error(b)) => glob_matches(glob, b),
            (Pattern::Nil | Pattern::NilArray, Value::Null) => three,
            (Pattern::Nil, Value::Nil) | (Pattern::NilArray, Value::NilArray) => !three,
            (Pattern::Double(a), Value::Double(b)) | (Pattern::Big(a), Value::Big(b)) => three && a == b,
            (Pattern::Double(a) | Pattern::Big(a) | Pattern::Verbatim(_, a), Value::Bulk(b)) => !three && a == b,
            (Pattern::Verbatim(f, a), Value::Verbatim(g, b)) => three && f == g && a == b,
            (Pattern::Bool(a), Value::Bool(b)) => three && a == b,
            (Pattern::Bool(a), Value::Int(b)) => !three && i64::from(*a) == *b,
            (Pattern::Array(a), Value::Array(b)) => in_order(a, b, proto, keep),
            (Pattern::Push(a), Value::Push(b)) => three && in_order(a, b, proto, keep),
            (Pattern::Push(a), Value::Array(b)) => !three && in_order(a, b, proto, keep),
            (Pattern::Sorted(a), Value::Array(b)) => any_order(a, b, proto, keep),
            (Pattern::Set(a), Value::Set(b)) => three && any_order(a, b, proto, keep),
            (Pattern::Set(a), Value::Array(b)) => !three && any_order(a, b, proto, keep),
            (Pattern::Map(a), Value::Map(b)) => {
                let same = |((k, v), (x, y)): (&(Pattern, Pattern), &(Value, Value))| {
                    k.matches(x, proto, keep) && v.matches(y, proto, keep)
                };
                three && a.len() == b.len() && a.iter().zip(b).all(same)
            }
            (Pattern::SortedMap(a), Value::Map(b)) => three && pairs_in_any_order(a, b, proto, keep),
            (Pattern::SortedMap(a), Value::Array(b)) => {
                let pairs: Vec<(Value, Value)> = b.chunks_exact(2).map(|p| (p[0].clone(), p[1].clone())).collect();
                !three && b.len() % 2 == 0 && pairs_in_any_order(a, &pairs, proto, keep)
            }
            (Pattern::Map(a), Value::Array(b)) => {
                let flat: Vec<Pattern> = a.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect();
                !three && in_order(&flat, b, proto, keep)
            }
            _ => false,
        }
    }
}

fn in_order(patterns: &[Pattern], values: &[Value], proto: Proto, keep: &mut dyn FnMut(&str, &Value)) -> bool {
    patterns.len() == values.len() && patterns.iter().zip(values).all(|(p, v)| p.matches(v, proto, keep))
}

fn any_order(patterns: &[Pattern], values: &[Value], proto: Proto, keep: &mut dyn FnMut(&str, &Value)) -> bool {
    let mut left: Vec<&Value> = values.iter().collect();
    for pattern in patterns {
        let Some(at) = left.iter().position(|v| pattern.matches(v, proto, keep)) else { return false };
        left.swap_remove(at);
    }
    left.is_empty()
}

fn pairs_in_any_order(
    patterns: &[(Pattern, Pattern)],
    pairs: &[(Value, Value)],
    proto: Proto,
    keep: &mut dyn FnMut(&str, &Value),
) -> bool {
    let mut left: Vec<&(Value, Value)> = pairs.iter().collect();
    for (key, value) in patterns {
        let found = left.iter().position(|(k, v)| key.matches(k, proto, keep) && value.matches(v, proto, keep));
        let Some(at) = found else { return false };
        left.swap_remove(at);
    }
    left.is_empty()
}

fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    match glob.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob_matches(rest, &text[skip..])),
        Some((b'?', rest)) => !text.is_empty() && glob_matches(rest, &text[1..]),
        Some((c, rest)) => text.first() == Some(c) && glob_matches(rest, &text[1..]),
    }
}

/// Reads every reply written in `text`.
pub(crate) fn parse(text: &str) -> Result<Vec<Pattern>, String> {
    let mut reader = Reader { text: text.as_bytes(), at: 0 };
    let mut all = Vec::new();
    loop {
        reader.blanks();
        if reader.at == reader.text.len() {
            return Ok(all);
        }
        all.push(reader.top()?);
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &[u8] {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        while matches!(self.rest().first(), Some(b' ' | b'\n' | b'\t')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn fail<T>(&self, what: &str) -> Result<T, String> {
        let line = self.rest().split(|b| *b == b'\n').next().unwrap_or_default();
        Err(format!("{what} at {:?}", String::from_utf8_lossy(line)))
    }

    /// A reply of its own: only here an error runs to the end of its line.
    fn top(&mut self) -> Result<Pattern, String> {
        if self.take("(none)") {
            return Ok(Pattern::NoReply);
        }
        if self.take("closed") {
            return Ok(Pattern::Closed);
        }
        if let [b'-', first, ..] = self.rest()
            && first.is_ascii_uppercase()
        {
            let line = self.rest().split(|b| *b == b'\n').next().unwrap_or_default().to_vec();
            self.at += line.len();
            return Ok(Pattern::Error(line[1..].to_vec()));
        }
        self.value()
    }

    fn value(&mut self) -> Result<Pattern, String> {
        if self.take("-g\"") {
            return Ok(Pattern::ErrorGlob(self.quoted()?));
        }
        if self.take("-\"") {
            return Ok(Pattern::Error(self.quoted()?));
        }
        if self.take("g\"") {
            return Ok(Pattern::Glob(self.quoted()?));
        }
        if self.take("+\"") {
            return Ok(Pattern::Simple(self.quoted()?));
        }
        if self.take("+") {
            return Ok(Pattern::Simple(self.word().to_vec()));
        }
        if self.take("\"") {
            return Ok(Pattern::Bulk(self.quoted()?));
        }
        for (open, make) in [("set[", Pattern::Set as fn(Vec<Pattern>) -> Pattern), ("push[", Pattern::Push)]
            .into_iter()
            .chain([("sort[", Pattern::Sorted as fn(Vec<Pattern>) -> Pattern), ("[", Pattern::Array)])
        {
            if self.take(open) {
                return Ok(make(self.items()?));
            }
        }
        if self.take("sort{") {
            return Ok(Pattern::SortedMap(self.pairs()?));
        }
        if self.take("{") {
            return Ok(Pattern::Map(self.pairs()?));
        }
        if self.take("*") {
            return Ok(Pattern::Any);
        }
        if self.take("$") {
            return Ok(Pattern::Capture(String::from_utf8_lossy(self.word()).into_owned()));
        }
        if self.rest().get(3) == Some(&b'"') && self.rest()[..3].iter().all(u8::is_ascii_lowercase) {
            let format = self.rest()[..3].to_vec();
            self.at += 4;
            return Ok(Pattern::Verbatim(format, self.quoted()?));
        }
        self.bare()
    }

    fn bare(&mut self) -> Result<Pattern, String> {
        let start = self.at;
        let word = String::from_utf8_lossy(self.word()).into_owned();
        if let Some(text) = word.strip_prefix("d:") {
            return Ok(Pattern::Double(text.into()));
        }
        if let Some(text) = word.strip_prefix("big:") {
            return Ok(Pattern::Big(text.into()));
        }
        if let Some((low, high)) = word.split_once("..")
            && let (Ok(low), Ok(high)) = (low.parse(), high.parse())
        {
            return Ok(Pattern::Range(low, high));
        }
        match word.as_str() {
            "true" => return Ok(Pattern::Bool(true)),
            "false" => return Ok(Pattern::Bool(false)),
            "nil" if self.take("[]") => return Ok(Pattern::NilArray),
            "nil" => return Ok(Pattern::Nil),
            _ => {}
        }
        if let Ok(n) = word.parse() {
            return Ok(Pattern::Int(n));
        }
        self.at = start;
        self.fail("no reply notation")
    }

    /// A bare word, up to a blank or what separates items.
    fn word(&mut self) -> &[u8] {
        let start = self.at;
        while let Some(b) = self.text.get(self.at)
            && !b" \n\t,[]{}".contains(b)
        {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// The rest of a quoted string, its opening quote taken.
    fn quoted(&mut self) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        loop {
            match self.rest() {
                [b'"', ..] => {
                    self.at += 1;
                    return Ok(out);
                }
                [b'\\', ..] => {
                    let (byte, used) = unescape(self.rest());
                    out.push(byte);
                    self.at += used;
                }
                [b, ..] => {
                    out.push(*b);
                    self.at += 1;
                }
                [] => return self.fail("string without its closing quote"),
            }
        }
    }

    fn items(&mut self) -> Result<Vec<Pattern>, String> {
        let mut items = Vec::new();
        loop {
            self.blanks();
            if self.take("]") {
                return Ok(items);
            }
            items.push(self.value()?);
            self.blanks();
            if !self.take(",") && self.rest().first() != Some(&b']') {
                return self.fail("comma or ] expected");
            }
        }
    }

    fn pairs(&mut self) -> Result<Vec<(Pattern, Pattern)>, String> {
        let mut pairs = Vec::new();
        loop {
            self.blanks();
            if self.take("}") {
                return Ok(pairs);
            }
            let key = self.value()?;
            self.blanks();
            if !self.take(":") {
                return self.fail("colon expected");
            }
            self.blanks();
            pairs.push((key, self.value()?));
            self.blanks();
            if !self.take(",") && self.rest().first() != Some(&b'}') {
                return self.fail("comma or } expected");
            }
        }
    }
}

/// The byte an escape stands for, and the length of the escape: those of redis-cli.
pub(crate) fn unescape(text: &[u8]) -> (u8, usize) {
    match text {
        [b'\\', b'x', a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
            let digit = |c: u8| (c as char).to_digit(16).map_or(0, |d| d as u8);
            (digit(*a) << 4 | digit(*b), 4)
        }
        [b'\\', c, ..] => (
            match c {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 8,
                b'a' => 7,
                other => *other,
            },
            2,
        ),
        _ => (b'\\', 1),
    }
}

/// A string in quotes, as redis-cli prints it.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for &b in bytes {
        match b {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            7 => out.push_str("\\a"),
            8 => out.push_str("\\b"),
            0x20..=0x7e => out.push(b as char),
            _ => out.push_str(&format!("\\x{b:02x}")),
        }
    }
    out.push('"');
    out
}

/// A reply as a script writes it; `nil` is what a null is called (`nil` or `nil[]`).
pub(crate) fn show(value: &Value, nil: &str) -> String {
    match value {
        Value::Error(text) if text.first().is_some_and(u8::is_ascii_uppercase) && !text.contains(&b'\n') => {
            format!("-{}", String::from_utf8_lossy(text))
        }
        _ => show_inside(value, nil, 0),
    }
}

fn show_inside(value: &Value, nil: &str, indent: usize) -> String {
    let list = |open: &str, items: &[Value]| {
        let texts = items.iter().map(|item| show_inside(item, nil, indent + 2)).collect();
        wrap(open, texts, "]", indent)
    };
    match value {
        Value::Simple(text) if text.iter().all(|b| b.is_ascii_alphanumeric()) => {
            format!("+{}", String::from_utf8_lossy(text))
        }
        Value::Simple(text) => format!("+{}", quote(text)),
        Value::Error(text) => format!("-{}", quote(text)),
        Value::Int(n) => n.to_string(),
        Value::Bulk(text) => quote(text),
        Value::Nil => "nil".into(),
        Value::NilArray => "nil[]".into(),
        Value::Null => nil.into(),
        Value::Array(items) => list("[", items),
        Value::Set(items) => list("set[", items),
        Value::Push(items) => list("push[", items),
        Value::Map(pairs) => {
            let pair = |(k, v): &(Value, Value)| {
                format!("{}: {}", show_inside(k, nil, indent + 2), show_inside(v, nil, indent + 2))
            };
            wrap("{", pairs.iter().map(pair).collect(), "}", indent)
        }
        Value::Double(text) => format!("d:{}", String::from_utf8_lossy(text)),
        Value::Big(text) => format!("big:{}", String::from_utf8_lossy(text)),
        Value::Bool(b) => b.to_string(),
        Value::Verbatim(format, text) => format!("{}{}", String::from_utf8_lossy(format), quote(text)),
    }
}

/// On one line if it fits, else an item a line.
fn wrap(open: &str, items: Vec<String>, close: &str, indent: usize) -> String {
    let one = format!("{open}{}{close}", items.join(", "));
    if one.len() + indent <= 110 && !one.contains('\n') {
        return one;
    }
    let pad = " ".repeat(indent + 2);
    let body: Vec<String> = items.iter().map(|item| format!("{pad}{item}")).collect();
    format!("{open}\n{}\n{}{close}", body.join(",\n"), " ".repeat(indent))
}
