//! What the commands of the histories do when nobody else is there: keys and their values, one command after the other.
//!
//! | value | held as | on the wire |
//! |---|---|---|
//! | string | a number, or none, and tokens | the number's digits, `a7` for token 7, padded with `~` |
//! | list | tokens | as above |
//! | hash | fields `f0`, `f1`, … | a string each |
//! | set | members `m0`, `m1`, … | |
//!
//! Some tokens are long on the wire, so that values of all sizes take part; here they are numbers, and what is recorded of replies
//! is without the padding. Only lengths tell of it, and are reckoned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crate::common::resp::Value;

pub(crate) type Key = usize;
/// What a client writes, told from what every other one writes.
pub(crate) type Token = u32;

/// A command that does not wait.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Get(Key),
    Set(Key, Token),
    SetNx(Key, Token),
    GetSet(Key, Token),
    GetDel(Key),
    Append(Key, Token),
    Incr(Key),
    MGet(Vec<Key>),
    MSet(Vec<(Key, Token)>),
    Del(Key),
    Exists(Key),
    Rename(Key, Key),
    Copy(Key, Key),
    CopyOver(Key, Key),
    LPush(Key, Vec<Token>),
    RPush(Key, Vec<Token>),
    LPop(Key),
    RPop(Key),
    LLen(Key),
    LRange(Key),
    LMove(Key, Key),
    HSet(Key, u8, Token),
    HIncrBy(Key, u8, i64),
    HGet(Key, u8),
    HDel(Key, u8),
    HGetAll(Key),
    SAdd(Key, u8),
    SRem(Key, u8),
    SPop(Key),
    SMove(Key, Key, u8),
    SMembers(Key),
}

/// A string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Text {
    number: Option<i64>,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kept {
    Text(Text),
    List(VecDeque<Token>),
    Hash(BTreeMap<u8, Text>),
    Set(BTreeSet<u8>),
}

/// What a client that watches knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    keys: Vec<Key>,
    pub(crate) broken: bool,
}

/// All that a reply may depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) keys: Vec<Option<Rc<Kept>>>,
    /// By client.
    pub(crate) watches: Vec<Option<Watch>>,
    /// Clients that wait, in the order in which they began to.
    pub(crate) line: Vec<usize>,
}

/// An error is told by its first word.
pub(crate) fn error(word: &str) -> Value {
    Value::Error(word.as_bytes().to_vec())
}

pub(crate) fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

/// How much longer than its name a token is on the wire.
fn padding(token: Token) -> usize {
    match token % 60 {
        0 => 70_000,
        1..=6 => 3000,
        _ => 0,
    }
}

/// The token as it is sent.
pub(crate) fn sent(token: Token) -> String {
    format!("a{token}{}", "~".repeat(padding(token)))
}

impl Text {
    fn of(token: Token) -> Text {
        Text { number: None, tokens: vec![token] }
    }

    fn bulk(&self) -> Value {
        let mut text = self.number.map(|number| number.to_string()).unwrap_or_default();
        self.tokens.iter().for_each(|token| text.push_str(&format!("a{token}")));
        Value::Bulk(text.into_bytes())
    }

    fn len(&self) -> i64 {
        let digits = self.number.map_or(0, |number| number.to_string().len());
        (digits + self.tokens.iter().map(|&token| format!("a{token}").len() + padding(token)).sum::<usize>()) as i64
    }

    fn add(&mut self, by: i64) -> Result<Value, Value> {
        if !self.tokens.is_empty() {
            return Err(error("ERR"));
        }
        let sum = self.number.unwrap_or(0) + by;
        self.number = Some(sum);
        Ok(Value::Int(sum))
    }
}

pub(crate) fn token_bulk(token: Token) -> Value {
    Text::of(token).bulk()
}

pub(crate) fn field(n: u8) -> String {
    format!("f{n}")
}

pub(crate) fn member(n: u8) -> String {
    format!("m{n}")
}

fn all_bulk(texts: impl Iterator<Item = String>) -> Value {
    Value::Array(texts.map(|text| Value::Bulk(text.into_bytes())).collect())
}

/// A value of the wanted kind, made where there is none.
macro_rules! value_of {
    ($name:ident, $look:ident, $kind:ident, $inner:ty) => {
        fn $name(&mut self, key: Key) -> Result<&mut $inner, Value> {
            let kept = self.keys[key].get_or_insert_with(|| Rc::new(Kept::$kind(Default::default())));
            match Rc::make_mut(kept) {
                Kept::$kind(inner) => Ok(inner),
                _ => Err(error("WRONGTYPE")),
            }
        }

        fn $look(&self, key: Key) -> Result<Option<&$inner>, Value> {
            match self.keys[key].as_deref() {
                None => Ok(None),
                Some(Kept::$kind(inner)) => Ok(Some(inner)),
                Some(_) => Err(error("WRONGTYPE")),
            }
        }
    };
}

impl State {
    pub(crate) fn new(keys: usize, clients: usize) -> State {
        State { keys: vec![None; keys], watches: vec![None; clients], line: Vec::new() }
    }

    value_of!(text, look_text, Text, Text);
    value_of!(list, look_list, List, VecDeque<Token>);
    value_of!(hash, look_hash, Hash, BTreeMap<u8, Text>);
    value_of!(set, look_set, Set, BTreeSet<u8>);

    pub(crate) fn watch(&mut self, client: usize, keys: &[Key]) {
        let watch = self.watches[client].get_or_insert(Watch { keys: Vec::new(), broken: false });
        watch.keys.extend(keys);
    }

    /// A change, which those who watch hear of; what holds nothing any more is not there.
    fn touch(&mut self, key: Key) {
        let empty = match self.keys[key].as_deref() {
            Some(Kept::List(list)) => list.is_empty(),
            Some(Kept::Hash(hash)) => hash.is_empty(),
            Some(Kept::Set(set)) => set.is_empty(),
            Some(Kept::Text(_)) | None => false,
        };
        if empty {
            self.keys[key] = None;
        }
        for watch in self.watches.iter_mut().flatten() {
            watch.broken |= watch.keys.contains(&key);
        }
    }

    fn put(&mut self, key: Key, kept: Option<Rc<Kept>>) {
        self.keys[key] = kept;
        self.touch(key);
    }

    fn set_token(&mut self, key: Key, token: Token) {
        self.put(key, Some(Rc::new(Kept::Text(Text::of(token)))));
    }

    /// Whether somebody who waits for this list could be served.
    pub(crate) fn has_elements(&self, key: Key) -> bool {
        matches!(self.look_list(key), Ok(Some(_)))
    }

    pub(crate) fn pop(&mut self, key: Key, left: bool) -> Result<Option<Token>, Value> {
        if self.look_list(key)?.is_none() {
            return Ok(None);
        }
        let list = self.list(key)?;
        let token = if left { list.pop_front() } else { list.pop_back() };
        self.touch(key);
        Ok(token)
    }

    fn push(&mut self, key: Key, tokens: &[Token], left: bool) -> Result<Value, Value> {
        let list = self.list(key)?;
        for &token in tokens {
            if left { list.push_front(token) } else { list.push_back(token) }
        }
        let len = list.len() as i64;
        self.touch(key);
        Ok(Value::Int(len))
    }

    /// From the left of one to the right of the other.
    pub(crate) fn carry(&mut self, from: Key, to: Key) -> Result<Value, Value> {
        if self.look_list(from)?.is_none() {
            return Ok(Value::Nil);
        }
        self.look_list(to)?;
        let Some(token) = self.pop(from, true)? else { return Ok(Value::Nil) };
        self.push(to, &[token], false)?;
        Ok(token_bulk(token))
    }

    /// What a command answers; `seen` is what it did answer, and decides only where chance does.
    pub(crate) fn run(&mut self, command: &Command, seen: &Value) -> Value {
        let reply = match command {
            Command::LPush(..) | Command::RPush(..) | Command::LPop(_) | Command::RPop(_) => self.list_command(command),
            Command::LLen(_) | Command::LRange(_) | Command::LMove(..) => self.list_command(command),
            Command::HSet(..) | Command::HIncrBy(..) | Command::HGet(..) => self.hash_command(command),
            Command::HDel(..) | Command::HGetAll(_) => self.hash_command(command),
            Command::SAdd(..) | Command::SRem(..) | Command::SPop(_) => self.set_command(command, seen),
            Command::SMove(..) | Command::SMembers(_) => self.set_command(command, seen),
            Command::Del(_) | Command::Exists(_) | Command::Rename(..) => self.key_command(command),
            Command::Copy(..) | Command::CopyOver(..) => self.key_command(command),
            _ => self.string_command(command),
        };
        reply.unwrap_or_else(|error| error)
    }

    fn bulk(&self, key: Key) -> Result<Value, Value> {
        Ok(self.look_text(key)?.map_or(Value::Nil, Text::bulk))
    }

    fn string_command(&mut self, command: &Command) -> Result<Value, Value> {
        match command {
            Command::Get(key) => self.bulk(*key),
            Command::Set(key, token) => {
                self.set_token(*key, *token);
                Ok(ok())
            }
            Command::SetNx(key, token) => {
                let free = self.keys[*key].is_none();
                if free {
                    self.set_token(*key, *token);
                }
                Ok(Value::Int(i64::from(free)))
            }
            Command::GetSet(key, token) => {
                let had = self.bulk(*key)?;
                self.set_token(*key, *token);
                Ok(had)
            }
            Command::GetDel(key) => {
                let had = self.bulk(*key)?;
                if !had.is_nil() {
                    self.put(*key, None);
                }
                Ok(had)
            }
            Command::Append(key, token) => {
                let text = self.text(*key)?;
                text.tokens.push(*token);
                let len = text.len();
                self.touch(*key);
                Ok(Value::Int(len))
            }
            Command::Incr(key) => {
                let sum = self.text(*key)?.add(1)?;
                self.touch(*key);
                Ok(sum)
            }
            Command::MGet(keys) => {
                Ok(Value::Array(keys.iter().map(|&key| self.bulk(key).unwrap_or(Value::Nil)).collect()))
            }
            Command::MSet(pairs) => {
                pairs.iter().for_each(|&(key, token)| self.set_token(key, token));
                Ok(ok())
            }
            other => unreachable!("{other:?} is no command of strings"),
        }
    }

    /// Each gets what the other one holds, or nothing.
    pub(crate) fn swap(&mut self, a: Key, b: Key) -> Value {
        let (had, other) = (self.keys[a].clone(), self.keys[b].clone());
        let replies = [a, b].map(|key| self.bulk(key));
        if replies.iter().any(Result::is_err) {
            return error("WRONGTYPE");
        }
        for (key, kept) in [(a, other), (b, had)] {
            if self.keys[key].is_some() || kept.is_some() {
                self.put(key, kept);
            }
        }
        Value::Array(replies.into_iter().flatten().collect())
    }

    fn key_command(&mut self, command: &Command) -> Result<Value, Value> {
        match *command {
            Command::Del(key) => {
                let there = self.keys[key].is_some();
                if there {
                    self.put(key, None);
                }
                Ok(Value::Int(i64::from(there)))
            }
            Command::Exists(key) => Ok(Value::Int(i64::from(self.keys[key].is_some()))),
            Command::Rename(from, to) => {
                let Some(kept) = self.keys[from].take() else { return Err(error("ERR")) };
                self.touch(from);
                self.put(to, Some(kept));
                Ok(ok())
            }
            Command::Copy(from, to) | Command::CopyOver(from, to) => {
                let over = matches!(command, Command::CopyOver(..));
                let copies = self.keys[from].is_some() && (over || self.keys[to].is_none());
                if copies {
                    self.put(to, self.keys[from].clone());
                }
                Ok(Value::Int(i64::from(copies)))
            }
            ref other => unreachable!("{other:?} is no command of keys"),
        }
    }

    fn list_command(&mut self, command: &Command) -> Result<Value, Value> {
        match command {
            Command::LPush(key, tokens) => self.push(*key, tokens, true),
            Command::RPush(key, tokens) => self.push(*key, tokens, false),
            Command::LPop(key) => Ok(self.pop(*key, true)?.map_or(Value::Nil, token_bulk)),
            Command::RPop(key) => Ok(self.pop(*key, false)?.map_or(Value::Nil, token_bulk)),
            Command::LLen(key) => Ok(Value::Int(self.look_list(*key)?.map_or(0, |list| list.len() as i64))),
            Command::LRange(key) => {
                let list = self.look_list(*key)?;
                Ok(Value::Array(list.into_iter().flatten().map(|&token| token_bulk(token)).collect()))
            }
            Command::LMove(from, to) => self.carry(*from, *to),
            other => unreachable!("{other:?} is no command of lists"),
        }
    }

    fn hash_command(&mut self, command: &Command) -> Result<Value, Value> {
        match *command {
            Command::HSet(key, field, token) => {
                let new = self.hash(key)?.insert(field, Text::of(token)).is_none();
                self.touch(key);
                Ok(Value::Int(i64::from(new)))
            }
            Command::HIncrBy(key, field, by) => {
                let there = self.look_hash(key)?.and_then(|hash| hash.get(&field));
                let mut text = there.cloned().unwrap_or_default();
                let sum = text.add(by)?;
                self.hash(key)?.insert(field, text);
                self.touch(key);
                Ok(sum)
            }
            Command::HGet(key, field) => {
                let text = self.look_hash(key)?.and_then(|hash| hash.get(&field));
                Ok(text.map_or(Value::Nil, Text::bulk))
            }
            Command::HDel(key, field) => {
                let there = self.look_hash(key)?.is_some_and(|hash| hash.contains_key(&field));
                if there {
                    self.hash(key)?.remove(&field);
                    self.touch(key);
                }
                Ok(Value::Int(i64::from(there)))
            }
            Command::HGetAll(key) => {
                let all = self.look_hash(key)?.into_iter().flatten();
                let pairs = all.flat_map(|(&name, text)| [Value::Bulk(field(name).into_bytes()), text.bulk()]);
                Ok(Value::Array(pairs.collect()))
            }
            ref other => unreachable!("{other:?} is no command of hashes"),
        }
    }

    fn has_member(&self, key: Key, member: u8) -> Result<bool, Value> {
        Ok(self.look_set(key)?.is_some_and(|set| set.contains(&member)))
    }

    fn take_member(&mut self, key: Key, member: u8) -> Result<bool, Value> {
        let there = self.has_member(key, member)?;
        if there {
            self.set(key)?.remove(&member);
            self.touch(key);
        }
        Ok(there)
    }

    fn set_command(&mut self, command: &Command, seen: &Value) -> Result<Value, Value> {
        match *command {
            Command::SAdd(key, member) => {
                let new = self.set(key)?.insert(member);
                if new {
                    self.touch(key);
                }
                Ok(Value::Int(i64::from(new)))
            }
            Command::SRem(key, member) => Ok(Value::Int(i64::from(self.take_member(key, member)?))),
            Command::SPop(key) => {
                let Some(set) = self.look_set(key)? else { return Ok(Value::Nil) };
                // Which one it takes is its own affair, as long as it was there.
                let Some(&first) = set.iter().next() else { return Ok(Value::Nil) };
                let taken = set.iter().copied().find(|&n| seen.text() == member(n)).unwrap_or(first);
                self.take_member(key, taken)?;
                Ok(Value::Bulk(member(taken).into_bytes()))
            }
            Command::SMove(from, to, member) => {
                let there = self.has_member(from, member)?;
                self.look_set(to)?;
                if there && from != to {
                    self.take_member(from, member)?;
                    self.set(to)?.insert(member);
                    self.touch(to);
                }
                Ok(Value::Int(i64::from(there)))
            }
            Command::SMembers(key) => Ok(all_bulk(self.look_set(key)?.into_iter().flatten().map(|&n| member(n)))),
            ref other => unreachable!("{other:?} is no command of sets"),
        }
    }
}
