//! Operations, which are what must seem to happen at one moment: commands, transactions, scripts, waits; how they are sent,
//! and which a client chooses.

use super::sequential::{Command, Key, Token, field, member, sent};
use crate::common::resp::Value;
use crate::common::rng::Rng;

/// What a client does and has a reply to.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    One(Command),
    Watch(Vec<Key>),
    Exec(Vec<Command>),
    /// The same within a script.
    Script(Vec<Command>),
    /// A script that reads two strings and writes each under the other's key.
    Swap(Key, Key),
    BlPop(Vec<Key>, Wait),
    BlMove(Key, Key, Wait),
}

/// For how long, as the command has it: in seconds.
pub(crate) type Wait = &'static str;

const STRINGS: [Key; 3] = [0, 1, 2];
/// The first two are mostly empty, and waited for.
const LISTS: [Key; 4] = [3, 4, 5, 6];
const HASHES: [Key; 2] = [7, 8];
const SETS: [Key; 2] = [9, 10];
const NAMES: [&str; 11] = ["s0", "s1", "s2", "q0", "q1", "l0", "l1", "h0", "h1", "t0", "t1"];
pub(crate) const KEYS: usize = NAMES.len();

/// What the keys' names begin with: where it is a `{tag}`, all of them are in one shard.
#[derive(Clone, Copy)]
pub(crate) struct Prefix(pub(crate) &'static str);

impl Prefix {
    fn name(self, key: Key) -> String {
        format!("{}{}", self.0, NAMES[key])
    }
}

/// Runs the commands that its arguments are, each after its number of words.
const SCRIPT: &str = "local at, out = 1, {} \
                      while ARGV[at] do \
                          local count, words = tonumber(ARGV[at]), {} \
                          for n = 1, count do words[n] = ARGV[at + n] end \
                          out[#out + 1] = redis.pcall(unpack(words)) \
                          at = at + count + 1 \
                      end \
                      return out";

const SWAP: &str = "local a, b = redis.call('get', KEYS[1]), redis.call('get', KEYS[2]) \
                    local function put(key, value) \
                        if value then redis.call('set', key, value) else redis.call('del', key) end \
                    end \
                    put(KEYS[1], b) put(KEYS[2], a) return {a, b}";

fn words(command: &Command, prefix: Prefix) -> Vec<String> {
    let name = |key: &Key| prefix.name(*key);
    let with = |verb: &str, rest: Vec<String>| [vec![verb.to_owned()], rest].concat();
    match command {
        Command::Get(k) => with("GET", vec![name(k)]),
        Command::Set(k, token) => with("SET", vec![name(k), sent(*token)]),
        Command::SetNx(k, token) => with("SETNX", vec![name(k), sent(*token)]),
        Command::GetSet(k, token) => with("GETSET", vec![name(k), sent(*token)]),
        Command::GetDel(k) => with("GETDEL", vec![name(k)]),
        Command::Append(k, token) => with("APPEND", vec![name(k), sent(*token)]),
        Command::Incr(k) => with("INCR", vec![name(k)]),
        Command::MGet(keys) => with("MGET", keys.iter().map(name).collect()),
        Command::MSet(pairs) => with("MSET", pairs.iter().flat_map(|(key, token)| [name(key), sent(*token)]).collect()),
        Command::Del(k) => with("DEL", vec![name(k)]),
        Command::Exists(k) => with("EXISTS", vec![name(k)]),
        Command::Rename(from, to) => with("RENAME", vec![name(from), name(to)]),
        Command::Copy(from, to) => with("COPY", vec![name(from), name(to)]),
        Command::CopyOver(from, to) => with("COPY", vec![name(from), name(to), "REPLACE".to_owned()]),
        Command::LPush(k, tokens) => with("LPUSH", [vec![name(k)], tokens.iter().map(|&t| sent(t)).collect()].concat()),
        Command::RPush(k, tokens) => with("RPUSH", [vec![name(k)], tokens.iter().map(|&t| sent(t)).collect()].concat()),
        Command::LPop(k) => with("LPOP", vec![name(k)]),
        Command::RPop(k) => with("RPOP", vec![name(k)]),
        Command::LLen(k) => with("LLEN", vec![name(k)]),
        Command::LRange(k) => with("LRANGE", vec![name(k), "0".to_owned(), "-1".to_owned()]),
        Command::LMove(from, to) => with("LMOVE", vec![name(from), name(to), "LEFT".to_owned(), "RIGHT".to_owned()]),
        Command::HSet(k, f, token) => with("HSET", vec![name(k), field(*f), sent(*token)]),
        Command::HIncrBy(k, f, by) => with("HINCRBY", vec![name(k), field(*f), by.to_string()]),
        Command::HGet(k, f) => with("HGET", vec![name(k), field(*f)]),
        Command::HDel(k, f) => with("HDEL", vec![name(k), field(*f)]),
        Command::HGetAll(k) => with("HGETALL", vec![name(k)]),
        Command::SAdd(k, m) => with("SADD", vec![name(k), member(*m)]),
        Command::SRem(k, m) => with("SREM", vec![name(k), member(*m)]),
        Command::SPop(k) => with("SPOP", vec![name(k)]),
        Command::SMove(from, to, m) => with("SMOVE", vec![name(from), name(to), member(*m)]),
        Command::SMembers(k) => with("SMEMBERS", vec![name(k)]),
    }
}

impl Command {
    pub(crate) fn keys(&self) -> Vec<Key> {
        match self {
            Command::MGet(keys) => keys.clone(),
            Command::MSet(pairs) => pairs.iter().map(|(key, _)| *key).collect(),
            Command::Rename(a, b) | Command::Copy(a, b) | Command::CopyOver(a, b) => vec![*a, *b],
            Command::LMove(a, b) | Command::SMove(a, b, _) => vec![*a, *b],
            Command::Get(k) | Command::Set(k, _) | Command::SetNx(k, _) | Command::GetSet(k, _) => vec![*k],
            Command::GetDel(k) | Command::Append(k, _) | Command::Incr(k) | Command::Del(k) => vec![*k],
            Command::Exists(k) | Command::LPush(k, _) | Command::RPush(k, _) | Command::LPop(k) => vec![*k],
            Command::RPop(k) | Command::LLen(k) | Command::LRange(k) | Command::HSet(k, ..) => vec![*k],
            Command::HIncrBy(k, ..) | Command::HGet(k, _) | Command::HDel(k, _) | Command::HGetAll(k) => vec![*k],
            Command::SAdd(k, _) | Command::SRem(k, _) | Command::SPop(k) | Command::SMembers(k) => vec![*k],
        }
    }
}

impl Command {
    /// Whether it could change something.
    fn writes(&self) -> bool {
        !matches!(
            self,
            Command::Get(_)
                | Command::MGet(_)
                | Command::Exists(_)
                | Command::LLen(_)
                | Command::LRange(_)
                | Command::HGet(..)
                | Command::HGetAll(_)
                | Command::SMembers(_)
        )
    }
}

impl Op {
    pub(crate) fn writes(&self) -> bool {
        match self {
            Op::One(command) => command.writes(),
            Op::Watch(_) => false,
            Op::Exec(commands) | Op::Script(commands) => commands.iter().any(Command::writes),
            Op::Swap(..) | Op::BlPop(..) | Op::BlMove(..) => true,
        }
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        match self {
            Op::One(command) => command.keys(),
            Op::Watch(keys) | Op::BlPop(keys, _) => keys.clone(),
            Op::Exec(commands) | Op::Script(commands) => commands.iter().flat_map(Command::keys).collect(),
            Op::Swap(a, b) | Op::BlMove(a, b, _) => vec![*a, *b],
        }
    }

    /// Whether its reply tells that it changed nothing, if it did not.
    pub(crate) fn tells_of_change(&self) -> bool {
        let Op::One(command) = self else { return !self.writes() };
        match command {
            Command::Del(_) | Command::GetDel(_) | Command::SetNx(..) | Command::LPop(_) | Command::RPop(_) => true,
            Command::HDel(..) | Command::SAdd(..) | Command::SRem(..) | Command::SPop(_) => true,
            command => !command.writes(),
        }
    }

    /// Keys that it waits for where it finds nothing.
    pub(crate) fn waits_for(&self) -> &[Key] {
        match self {
            Op::BlPop(keys, _) => keys,
            Op::BlMove(from, ..) => std::slice::from_ref(from),
            _ => &[],
        }
    }

    /// The requests; the reply to the last one is the operation's.
    pub(crate) fn requests(&self, prefix: Prefix) -> Vec<Vec<String>> {
        let name = |key: &Key| prefix.name(*key);
        let script = |text: &str, keys: Vec<Key>, rest: Vec<String>| {
            let count = keys.len().to_string();
            vec![[vec!["EVAL".to_owned(), text.to_owned(), count], keys.iter().map(name).collect(), rest].concat()]
        };
        match self {
            Op::One(command) => vec![words(command, prefix)],
            Op::Watch(keys) => vec![[vec!["WATCH".to_owned()], keys.iter().map(name).collect()].concat()],
            Op::Exec(commands) => {
                let queue = commands.iter().map(|command| words(command, prefix));
                let ends = |word: &str| std::iter::once(vec![word.to_owned()]);
                ends("MULTI").chain(queue).chain(ends("EXEC")).collect()
            }
            Op::Script(commands) => {
                let all = commands.iter().map(|command| words(command, prefix));
                let rest = all.flat_map(|words| [vec![words.len().to_string()], words].concat()).collect();
                script(SCRIPT, self.keys(), rest)
            }
            Op::Swap(..) => script(SWAP, self.keys(), Vec::new()),
            Op::BlPop(keys, wait) => {
                vec![[vec!["BLPOP".to_owned()], keys.iter().map(name).collect(), vec![(*wait).to_owned()]].concat()]
            }
            Op::BlMove(from, to, wait) => {
                vec![["BLMOVE", &name(from), &name(to), "LEFT", "RIGHT", wait].map(str::to_owned).to_vec()]
            }
        }
    }
}

/// A reply as the model has it: without padding and prefix, errors by their first word, one nil.
pub(crate) fn plain(reply: Value, prefix: Prefix) -> Value {
    match reply {
        Value::Bulk(mut bytes) => {
            bytes.retain(|&byte| byte != b'~');
            match bytes.strip_prefix(prefix.0.as_bytes()) {
                Some(rest) => Value::Bulk(rest.to_vec()),
                None => Value::Bulk(bytes),
            }
        }
        Value::Error(text) => Value::Error(text.split(|&byte| byte == b' ').next().unwrap_or_default().to_vec()),
        Value::NilArray => Value::Nil,
        Value::Array(items) => Value::Array(items.into_iter().map(|item| plain(item, prefix)).collect()),
        other => other,
    }
}

/// The name of a key as [`plain`] leaves it.
pub(crate) fn plain_name(key: Key) -> Value {
    Value::Bulk(NAMES[key].as_bytes().to_vec())
}

/// Commands that tell all there is.
pub(crate) fn look_at_all() -> Vec<Op> {
    let all = STRINGS.map(Command::Get).into_iter().chain(LISTS.map(Command::LRange));
    all.chain(HASHES.map(Command::HGetAll)).chain(SETS.map(Command::SMembers)).map(Op::One).collect()
}

pub(crate) fn remove_all() -> Vec<Op> {
    (0..KEYS).map(|key| Op::One(Command::Del(key))).collect()
}

/// What a client chooses from.
pub(crate) struct Chooser {
    pub(crate) rng: Rng,
    /// The token it writes next: no two write the same.
    pub(crate) token: Token,
    /// Of one key each.
    pub(crate) single: bool,
}

impl Chooser {
    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.below(from.len() as u64) as usize]
    }

    fn two(&mut self, from: &[Key]) -> (Key, Key) {
        let first = self.rng.below(from.len() as u64) as usize;
        let second = 1 + self.rng.below(from.len() as u64 - 1) as usize;
        (from[first], from[(first + second) % from.len()])
    }

    fn new_token(&mut self) -> Token {
        self.token += 1;
        self.token
    }

    fn tokens(&mut self) -> Vec<Token> {
        let count = [1, 1, 1, 2, 3][self.rng.below(5) as usize];
        (0..count).map(|_| self.new_token()).collect()
    }

    /// Some operations that are sent at once, or one.
    pub(crate) fn next(&mut self) -> Vec<Vec<Op>> {
        let several = self.rng.below(20);
        match several {
            // No more than one of them waits: whoever sees the client wait knows with what.
            0..=2 => {
                let mut ops: Vec<Op> = (0..1 + self.rng.below(4)).map(|_| Op::One(self.command())).collect();
                ops.insert(self.rng.below(ops.len() as u64 + 1) as usize, self.op());
                vec![ops]
            }
            3..=4 if !self.single => {
                let keys: Vec<Key> = (0..1 + self.rng.below(2)).map(|_| self.of(&STRINGS)).collect();
                let look = keys.iter().map(|&key| Op::One(Command::Get(key))).collect();
                let mut commands = vec![Command::Set(keys[0], self.new_token())];
                commands.extend((0..self.rng.below(2)).map(|_| self.command()));
                vec![vec![Op::Watch(keys)], look, vec![Op::Exec(commands)]]
            }
            _ => vec![vec![self.op()]],
        }
    }

    fn op(&mut self) -> Op {
        let waits = ["0.001", "0.004", "0.015"];
        match self.rng.below(20) {
            0..=1 => Op::BlPop(vec![self.of(&LISTS[..2])], self.of(&waits)),
            2 if !self.single => Op::BlPop(LISTS[..2].to_vec(), self.of(&waits)),
            3 if !self.single => Op::BlMove(self.of(&LISTS[..2]), self.of(&LISTS), self.of(&waits)),
            4 if !self.single => Op::Exec((0..2 + self.rng.below(2)).map(|_| self.command()).collect()),
            5 if !self.single => Op::Script((0..2).map(|_| self.command()).collect()),
            6 if !self.single => {
                let (a, b) = self.two(&STRINGS);
                Op::Swap(a, b)
            }
            _ => Op::One(self.command()),
        }
    }

    fn command(&mut self) -> Command {
        match self.rng.below(if self.single { 20 } else { 25 }) {
            0..=4 => self.string_command(),
            5..=13 => self.list_command(),
            14..=16 => self.hash_command(),
            17..=19 => self.set_command(),
            _ => self.command_of_two(),
        }
    }

    fn string_command(&mut self) -> Command {
        let key = self.of(&STRINGS);
        match self.rng.below(13) {
            0..=3 => Command::Get(key),
            4..=5 => Command::Set(key, self.new_token()),
            6 => Command::SetNx(key, self.new_token()),
            7 => Command::GetSet(key, self.new_token()),
            8 => Command::GetDel(key),
            9 => Command::Append(key, self.new_token()),
            10 => Command::Del(key),
            _ => Command::Incr(key),
        }
    }

    fn list_command(&mut self) -> Command {
        if self.rng.below(3) < 2 {
            // More is popped than pushed, waits included.
            let key = self.of(&LISTS[..2]);
            return match self.rng.below(10) {
                0..=1 => Command::RPush(key, self.tokens()),
                2..=3 => Command::LPush(key, self.tokens()),
                4..=6 => Command::LPop(key),
                7 => Command::RPop(key),
                8 => Command::LLen(key),
                _ => Command::LRange(key),
            };
        }
        let key = self.of(&LISTS[2..]);
        match self.rng.below(16) {
            0..=4 => Command::RPush(key, self.tokens()),
            5..=6 => Command::LPush(key, self.tokens()),
            7..=9 => Command::LPop(key),
            10..=11 => Command::RPop(key),
            12 => Command::LRange(key),
            13 => {
                if self.rng.one_in(4) {
                    Command::Del(key)
                } else {
                    Command::Exists(key)
                }
            }
            _ => Command::LLen(key),
        }
    }

    fn hash_command(&mut self) -> Command {
        let (key, field) = (self.of(&HASHES), self.rng.below(4) as u8);
        match self.rng.below(8) {
            0..=1 => Command::HSet(key, field, self.new_token()),
            2..=3 => Command::HIncrBy(key, field, 1 + self.rng.below(5) as i64),
            4 => Command::HDel(key, field),
            5 => Command::HGetAll(key),
            _ => Command::HGet(key, field),
        }
    }

    fn set_command(&mut self) -> Command {
        let (key, member) = (self.of(&SETS), self.rng.below(6) as u8);
        match self.rng.below(7) {
            0..=2 => Command::SAdd(key, member),
            3 => Command::SRem(key, member),
            4..=5 => Command::SPop(key),
            _ => Command::SMembers(key),
        }
    }

    fn command_of_two(&mut self) -> Command {
        match self.rng.below(10) {
            0 => Command::MGet(STRINGS.to_vec()),
            1 => {
                let (a, b) = self.two(&STRINGS);
                Command::MSet(vec![(a, self.new_token()), (b, self.new_token())])
            }
            2..=3 => Command::LMove(self.of(&LISTS), self.of(&LISTS)),
            4 => Command::SMove(SETS[0], SETS[1], self.rng.below(6) as u8),
            how => {
                let group: &[Key] = [&STRINGS[..], &LISTS, &HASHES, &SETS][self.rng.below(4) as usize];
                let (from, to) = self.two(group);
                match how {
                    5..=6 => Command::Rename(from, to),
                    7..=8 => Command::CopyOver(from, to),
                    _ => Command::Copy(from, to),
                }
            }
        }
    }
}
