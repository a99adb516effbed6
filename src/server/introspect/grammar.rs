//! The argument tree of COMMAND DOCS, read from the grammar in a row.
//!
//! | grammar | argument |
//! |---|---|
//! | `name`, `name:type` | one value; its type by its name, or as it stands there |
//! | `WORD` | a pure token; `""` is the empty one |
//! | `WORD name`, `WORD a b` | a value, or a block of values, with a token |
//! | `<a | b>` | one of these |
//! | `[…]` | the same, optional |
//! | `a [a …]`, `a b [a b …]` | a value, or a block of values, multiple |
//! | `WORD a [WORD a …]` | the same, with the token each time |
//!
//! A grammar that is none of this reads as far as it can be read: it is documentation.

/// Types of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Key,
    String,
    Integer,
    Double,
    UnixTime,
    Pattern,
    PureToken,
    OneOf,
    Block,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Kind::Key => "key",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Double => "double",
            Kind::UnixTime => "unix-time",
            Kind::Pattern => "pattern",
            Kind::PureToken => "pure-token",
            Kind::OneOf => "oneof",
            Kind::Block => "block",
        }
    }

    fn of(name: &str) -> Kind {
        match name {
            "key" | "key1" | "key2" | "keys" | "newkey" | "source" | "src" | "sourcekey" | "destination"
            | "destkey" | "dst" | "storekey" | "storedistkey" => Kind::Key,
            "pattern" | "match-pattern" | "by-pattern" | "get-pattern" => Kind::Pattern,
            "score" | "longitude" | "latitude" | "radius" | "width" | "height" => Kind::Double,
            "seconds" | "milliseconds" | "count" | "offset" | "start" | "stop" | "end" | "decrement" | "increment"
            | "index" | "cursor" | "numkeys" | "timeout" | "client-id" | "not-client-id" | "db" | "not-db"
            | "destination-db" | "protover" | "maxage" | "idle" | "limit" | "rank" | "len" | "bit" | "numreplicas"
            | "numlocal" | "version" | "port" | "min-match-len" | "index1" | "index2" | "numfields" | "bits"
            | "num-matches" | "ttl" | "frequency" | "ms" | "numids" | "entriesread" | "entries-added" | "weight" => {
                Kind::Integer
            }
            name if name.starts_with("unix-time") => Kind::UnixTime,
            _ => Kind::String,
        }
    }
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arg {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) token: Option<String>,
    pub(super) optional: bool,
    pub(super) multiple: bool,
    pub(super) multiple_token: bool,
    /// Of a block or of alternatives.
    pub(super) parts: Vec<Arg>,
}

impl Arg {
    fn value(word: &str) -> Arg {
        let (name, kind) = match word.split_once(':') {
            Some((name, "double")) => (name, Kind::Double),
            Some((name, "integer")) => (name, Kind::Integer),
            Some((name, _)) => (name, Kind::String),
            None => (word, Kind::of(word)),
        };
        Arg {
            name: name.to_owned(),
            kind,
            token: None,
            optional: false,
            multiple: false,
            multiple_token: false,
            parts: Vec::new(),
        }
    }

    fn token(word: &str) -> Arg {
        let (name, token) =
            if word == "\"\"" { ("empty-string".to_owned(), "") } else { (word.to_ascii_lowercase(), word) };
        Arg { kind: Kind::PureToken, token: Some(token.to_owned()), ..Arg::value(&name) }
    }

    fn group(kind: Kind, parts: Vec<Arg>) -> Arg {
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        let name = names.iter().take(3).copied().collect::<Vec<_>>().join("-");
        Arg { kind, parts, ..Arg::value(&name) }
    }

    /// One of several arguments as it is, several as a block.
    fn block(mut parts: Vec<Arg>) -> Option<Arg> {
        if parts.len() > 1 { Some(Arg::group(Kind::Block, parts)) } else { parts.pop() }
    }

    fn with_token(mut self, word: &str) -> Arg {
        if self.token.is_some() {
            // Two tokens in a row.
            return Arg::group(Kind::Block, vec![Arg::token(word), self]);
        }
        if self.kind == Kind::Block {
            self.name = word.to_ascii_lowercase();
        }
        self.token = Some(word.to_owned());
        self
    }
}

/// The arguments that a grammar describes.
pub(super) fn parse(syntax: &str) -> Vec<Arg> {
    let spaced: String =
        syntax.chars().flat_map(|c| if "[]<>|".contains(c) { vec![' ', c, ' '] } else { vec![c] }).collect();
    let words: Vec<&str> = spaced.split_whitespace().collect();
    Reader { words: &words, next: 0 }.sequence()
}

struct Reader<'a> {
    words: &'a [&'a str],
    next: usize,
}

fn is_token(word: &str) -> bool {
    !word.chars().any(|c| c.is_ascii_lowercase())
}

impl Reader<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let is = self.peek() == Some(word);
        self.next += usize::from(is);
        is
    }

    /// Arguments up to the end of the group.
    fn sequence(&mut self) -> Vec<Arg> {
        let mut args: Vec<Arg> = Vec::new();
        while let Some(word) = self.words.get(self.next).copied() {
            match word {
                "]" | ">" | "|" => break,
                "..." => self.next += 1,
                "[" if self.repeats() => {
                    let count = self.skip_repetition();
                    make_multiple(&mut args, count);
                }
                "[" => {
                    self.next += 1;
                    args.extend(self.alternatives("]").map(|arg| Arg { optional: true, ..arg }));
                }
                "<" => {
                    self.next += 1;
                    args.extend(self.alternatives(">"));
                }
                word => {
                    self.next += 1;
                    args.push(if is_token(word) { self.after_token(word) } else { Arg::value(word) });
                }
            }
        }
        args
    }

    /// What follows a token belongs to it: a group, or values up to the next token or option.
    fn after_token(&mut self, token: &str) -> Arg {
        if self.take("<") {
            return match self.alternatives(">") {
                Some(arg) => arg.with_token(token),
                None => Arg::token(token),
            };
        }
        let mut values: Vec<Arg> = Vec::new();
        while let Some(word) = self.peek() {
            if word == "[" && self.repeats() {
                if self.words.get(self.next + 1) == Some(&token) {
                    self.skip_repetition();
                    let arg = Arg::block(values).map_or_else(|| Arg::token(token), |arg| arg.with_token(token));
                    return Arg { multiple: true, multiple_token: true, ..arg };
                }
                let count = self.skip_repetition();
                make_multiple(&mut values, count);
            } else if is_token(word) {
                break;
            } else {
                values.push(Arg::value(word));
                self.next += 1;
            }
        }
        Arg::block(values).map_or_else(|| Arg::token(token), |arg| arg.with_token(token))
    }

    /// One argument that stands for what is between here and the closing bracket.
    fn alternatives(&mut self, close: &str) -> Option<Arg> {
        let mut choices = Vec::new();
        loop {
            choices.extend(Arg::block(self.sequence()));
            if !self.take("|") {
                break;
            }
        }
        self.take(close);
        if choices.len() > 1 { Some(Arg::group(Kind::OneOf, choices)) } else { choices.pop() }
    }

    /// Whether the bracket at hand only says that what stands before it may be repeated.
    fn repeats(&self) -> bool {
        let rest = &self.words[self.next..];
        let before = &self.words[..self.next];
        let Some(dots) = rest.iter().position(|word| *word == "...") else { return false };
        rest.get(dots + 1) == Some(&"]") && before.ends_with(&rest[1..dots])
    }

    /// Goes behind such a bracket; how many words it repeats.
    fn skip_repetition(&mut self) -> usize {
        let begin = self.next + 1;
        while self.words.get(self.next).is_some_and(|word| *word != "...") {
            self.next += 1;
        }
        let count = self.next - begin;
        self.next += 2;
        count
    }
}

/// Makes the last `count` arguments one that may be given again and again.
fn make_multiple(args: &mut Vec<Arg>, count: usize) {
    let from = args.len().saturating_sub(count);
    if let Some(arg) = Arg::block(args.split_off(from)) {
        args.push(Arg { multiple: true, ..arg });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as text: `name`, `:type` unless string, `=TOKEN`, `?` optional, `*` multiple, `**` with the token.
    fn show(args: &[Arg]) -> String {
        let one = |arg: &Arg| {
            let mut text = arg.name.clone();
            if arg.kind != Kind::String {
                text += &format!(":{}", arg.kind.name());
            }
            if let Some(token) = &arg.token {
                text += &format!("={token}");
            }
            text += if arg.optional { "?" } else { "" };
            text += match (arg.multiple, arg.multiple_token) {
                (true, true) => "**",
                (true, false) => "*",
                _ => "",
            };
            if !arg.parts.is_empty() {
                text += &format!("({})", show(&arg.parts));
            }
            text
        };
        args.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn grammars() {
        for (syntax, tree) in [
            ("", ""),
            ("key [key ...]", "key:key*"),
            ("key value [key value ...]", "key-value:block*(key:key value)"),
            ("[message]", "message?"),
            ("[section [section ...]]", "section?*"),
            ("<ON | OFF>", "on-off:oneof(on:pure-token=ON off:pure-token=OFF)"),
            ("a:double b:integer start:string", "a:double b:integer start"),
            ("<key | \"\">", "key-empty-string:oneof(key:key empty-string:pure-token=)"),
            ("timeout [WRITE | ALL]", "timeout:integer write-all:oneof?(write:pure-token=WRITE all:pure-token=ALL)"),
            (
                "key [EX seconds | PERSIST] [GET]",
                "key:key seconds-persist:oneof?(seconds:integer=EX persist:pure-token=PERSIST) get:pure-token=GET?",
            ),
            (
                "[AUTH username password] [SETNAME clientname]",
                "auth:block=AUTH?(username password) clientname=SETNAME?",
            ),
            ("[PREFIX prefix [PREFIX prefix ...]] [BCAST]", "prefix=PREFIX?** bcast:pure-token=BCAST?"),
            ("[ID client-id [client-id ...]]", "client-id:integer=ID?*"),
            (
                "[FILTERBY <MODULE module-name | PATTERN pattern>]",
                "module-name-pattern:oneof=FILTERBY?(module-name=MODULE pattern:pattern=PATTERN)",
            ),
            (
                "key [start [end [BYTE | BIT]]]",
                "key:key start-end-byte-bit:block?(start:integer end-byte-bit:block?(end:integer \
                 byte-bit:oneof?(byte:pure-token=BYTE bit:pure-token=BIT)))",
            ),
            (
                "<host port | NO ONE>",
                "host-port-no-one:oneof(host-port:block(host port:integer) \
                 no-one:block(no:pure-token=NO one:pure-token=ONE))",
            ),
            ("STREAMS key [key ...] id [id ...]", "streams:block=STREAMS(key:key* id*)"),
        ] {
            assert_eq!(show(&parse(syntax)), tree, "{syntax}");
        }
    }
}
