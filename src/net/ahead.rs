//! The look-ahead: what the commands of a pipeline will touch, fetched before the first of them runs.
//!
//! | fetched | by |
//! |---|---|
//! | slots and objects of keys | [`Slots::prefetch`](crate::shard::memory::table::Slots::prefetch) and its kin |
//! | keys that only the store may have | [`Reads`], all of them at once |
//! | elements of collections | [`crate::shard::memory::ahead`], as the rows of the commands say |
//!
//! Every step is taken for all commands before the next is for any, so that their cache misses overlap. What is found
//! may have changed when the commands run: what is kept of a key is its hash, its shard, and where its object lay, to be fetched again.

use std::ops::Range;

use smallvec::SmallVec;

use crate::codec::NsId;
use crate::handler::keys::keys_of;
use crate::handler::table::Id;
use crate::handler::{Args, Command, Route, flags};
use crate::resp::Span;
use crate::shard::actor::Guard;
use crate::shard::engine::Engine;
use crate::shard::memory::ahead::{self, Cores, Look, Wanted};
use crate::shard::memory::core::Core;
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::{Lines, table_hash};
use crate::shard::router::ShardId;
use crate::shard::txn::{Hint, Spotted};

/// Commands parsed ahead.
pub(super) const AHEAD: usize = 32;
/// Keys prefetched at once: what the first-level cache holds of their lines.
const MOST_TARGETS: usize = 192;
const _: () = assert!(MOST_TARGETS < u8::MAX as usize, "a target's place fits a byte");
/// Arguments of a command whose keys are looked for: of a million, finding them would take longer than it spares.
const MOST_ARGS: usize = 1024;
/// Spans kept room for: a request of a million arguments must not pin its memory to the thread.
const KEPT_SPANS: usize = 16 << 10;

/// A command as it was parsed.
pub(super) struct Parsed {
    /// Its first span.
    pub(super) first: u32,
    /// Number of its spans.
    pub(super) count: u32,
    /// Where it ends in the input.
    pub(super) end: usize,
    /// Id and row of a command that is known.
    pub(super) command: Option<(Id, &'static Command)>,
    /// Of its only key; 0 if it was not looked at.
    hash: u64,
    /// Where its keys stand among those that were looked at, if all were.
    keys: Range<u8>,
}

impl Parsed {
    /// One that nobody has looked at.
    pub(super) fn new(spans: Range<u32>, end: usize, command: Option<(Id, &'static Command)>) -> Self {
        Parsed { first: spans.start, count: spans.end - spans.start, end, command, hash: 0, keys: 0..0 }
    }
}

/// Where a key ahead will be looked for.
struct Target {
    shard: ShardId,
    /// The next one of this shard, plus one; 0 for none.
    next: u8,
    /// The command may write it.
    written: bool,
    hash: u32,
    key: Span,
    index: Option<u32>,
    /// What it holds does not matter.
    overwritten: bool,
    /// Elements of it may be on disk only.
    cold: bool,
    /// What the first command that names it looks for, and the argument that tells its name.
    look: Option<(&'static Look, Span)>,
}

impl Target {
    /// Whether only the store may have it, and its command asks what it holds.
    fn is_missed(&self) -> bool {
        self.cold && self.index.is_none() && !self.overwritten
    }

    /// Whether its command goes through elements that no argument names, and some may be on disk only.
    fn wants_elements(&self) -> bool {
        self.cold && self.index.is_some() && self.look.is_some_and(|(look, _)| !look.names())
    }
}

/// What a command will look for in a collection: its target, the row's word, and the command's spans.
type Looks = SmallVec<[(usize, &'static Look, Range<u32>); AHEAD]>;
/// Elements that are wanted of a collection for one command.
const MOST_ELEMENTS: usize = 32;

/// Commands parsed and not yet run.
#[derive(Default)]
pub struct Ahead {
    pub(super) spans: Vec<Span>,
    pub(super) calls: Vec<Parsed>,
    targets: Vec<Target>,
    /// What is known of each target, for the command that it belongs to.
    spotted: Vec<Spotted>,
    by_shard: ByShard,
    /// Lines that were unquoted where they stand, as they were, and where.
    pub(super) lines: Vec<(usize, Vec<u8>)>,
}

impl Ahead {
    /// Puts the lines from `done` on back as they came, since they will be parsed again.
    #[cold]
    pub(super) fn requote(&self, input: &mut [u8], done: usize) {
        for (at, line) in self.lines.iter().filter(|(at, _)| *at >= done) {
            input[*at..at + line.len()].copy_from_slice(line);
        }
    }

    /// Gives back what an unusual request took.
    pub(super) fn give_back(&mut self) {
        if self.spans.capacity() > KEPT_SPANS {
            self.spans = Vec::new();
        }
        if !self.lines.is_empty() {
            self.lines = Vec::new();
        }
    }

    /// Hashes the keys of the commands ahead and prefetches what they will touch. What only the store may have is wanted
    /// of `reads`, if `wants` says so.
    pub(super) fn look(&mut self, engine: &Engine, ns: NsId, input: &[u8], (reads, wants): (&mut Reads, bool)) {
        let looks = self.aim(engine, ns, input);
        let Ahead { targets, spotted, spans, by_shard, .. } = self;
        for target in &*targets {
            engine.shards.at(target.shard).slots().prefetch(target.hash);
        }
        by_shard.sort(engine.shards.count(), targets);
        by_shard.shards.iter().for_each(|&shard| engine.shards.at(shard).prefetch());
        by_shard.each(engine, targets, |core, target, _| {
            target.index = core.table.prefetch_object(target.hash, target.written);
            target.cold = core.store_is_cold;
            if wants && target.is_missed() {
                core.membership.prefetch(target.hash);
                core.cold.prefetch(target.hash);
            }
        });
        by_shard.each(engine, targets, |core, target, at| match target.index {
            Some(index) if core.table.is_used(index) => {
                let lines = core.table.lines_of(index);
                lines.prefetch_bytes(target.written);
                spotted[at].lines = lines;
            }
            None if wants && target.is_missed() => {
                let text = |span: Span| &input[span.0 as usize..span.1 as usize];
                let next = target.look.map(|(look, span)| (look, text(span)));
                core.want(target.hash, ns, text(target.key), next, reads);
            }
            _ => {}
        });
        if wants && targets.iter().any(Target::wants_elements) {
            by_shard.each(engine, targets, |core, target, _| {
                if let (true, Some((look, _)), Some(index)) = (target.wants_elements(), target.look, target.index) {
                    ahead::want(core, Wanted { index, look: *look, text: b"", score: None }, reads);
                }
            });
        }
        if looks.is_empty() {
            return;
        }
        let mut cores = OneAtATime { engine, held: None };
        let target = |at: usize| targets.get(at).and_then(|target| Some((target.shard, target.index?)));
        let text = |span: Span| &input[span.0 as usize..span.1 as usize];
        // What one command looks for is not worth a look ahead.
        if looks.len() > 1 {
            let wanted = looks.iter().filter_map(|(at, look, args)| {
                let arg = |arg| text(spans[args.start as usize + arg]);
                let (shard, index) = target(*at)?;
                let (text, score) = (arg(look.arg), look.score_arg().map(arg));
                Some((shard, Wanted { index, look: **look, text, score }))
            });
            ahead::fetch(&mut cores, wanted, reads);
        }
        if wants {
            let is_cold = |at: usize| targets.get(at).is_some_and(|target| target.cold);
            for (at, look, args) in looks.iter().filter(|(at, look, _)| look.names() && is_cold(*at)) {
                let Some((shard, index)) = target(*at) else { continue };
                let Some(core) = cores.of(shard) else { continue };
                for arg in look.args(args.len()).take(MOST_ELEMENTS) {
                    let text = text(spans[args.start as usize + arg]);
                    ahead::want(core, Wanted { index, look: **look, text, score: None }, reads);
                }
            }
        }
    }

    /// What the command of a call is told: the hash of its only key, or what is known of all of its keys.
    #[inline]
    pub(super) fn known_of(&self, call: &Parsed) -> (u64, &[Spotted]) {
        (call.hash, &self.spotted[call.keys.start as usize..call.keys.end as usize])
    }

    /// Hashes the keys and finds out what will be looked for.
    fn aim(&mut self, engine: &Engine, ns: NsId, input: &[u8]) -> Looks {
        let Ahead { spans, calls, targets, spotted, .. } = self;
        targets.clear();
        spotted.clear();
        let mut looks = Looks::new();
        let mut add = |span: Span, command: &Command, args: usize, look: Option<(&'static Look, Span)>| {
            let overwritten = (command.overwrites)(args);
            let key = &input[span.0 as usize..span.1 as usize];
            let hash = engine.router.hash(key);
            let shard = engine.router.shard(hash, key);
            let written = command.has(flags::WRITE);
            let target = Target {
                shard,
                hash: table_hash(hash, ns),
                key: span,
                index: None,
                overwritten,
                cold: false,
                look,
                next: 0,
                written,
            };
            let is_last =
                |last: &Target| (last.shard, last.hash, last.overwritten) == (target.shard, target.hash, overwritten);
            // A pipeline often stays with one key; of a command of several all are told.
            if !matches!(command.route, Route::One(_)) || !targets.last().is_some_and(is_last) {
                targets.push(target);
                let hint = Hint::new(key, hash, shard);
                spotted.push(Spotted { hint, lines: Lines::NONE });
            }
            (hash, targets.len() - 1)
        };
        let mut is_full = false;
        for call in calls {
            let args = call.first..call.first + call.count;
            let spans = &spans[args.start as usize..args.end as usize];
            match call.command {
                Some((_, command @ Command { route: Route::One(at), look, .. })) if *at < spans.len() => {
                    let look = look.as_ref().filter(|look| look.arg < spans.len());
                    let first = look.map(|look| (look, spans[look.arg]));
                    let (hash, target) = add(spans[*at], command, spans.len(), first);
                    call.hash = hash;
                    looks.extend(look.map(|look| (target, look, args)));
                }
                Some((_, command @ Command { route: Route::Keys, .. })) if spans.len() <= MOST_ARGS => {
                    let keys = keys_of(command, Args::new(input, spans)).unwrap_or_default();
                    let (mut begin, mut end) = (0, 0);
                    for (at, _) in &keys {
                        // Their commands hash them.
                        if is_full {
                            break;
                        }
                        let (_, target) = add(spans[*at], command, spans.len(), None);
                        begin = if end == 0 { target } else { begin };
                        end = target + 1;
                        is_full = end >= MOST_TARGETS;
                    }
                    // Where a name leads to others they are not among its keys.
                    if end <= MOST_TARGETS && end - begin == keys.len() && command.named.is_none() {
                        call.keys = begin as u8..end as u8;
                    }
                }
                _ => {}
            }
        }
        targets.truncate(MOST_TARGETS);
        spotted.truncate(MOST_TARGETS);
        looks
    }
}

/// Keeps an inline request that the parser will unquote where it stands.
#[cold]
pub(super) fn keep_quoted(input: &[u8], at: usize, lines: &mut Vec<(usize, Vec<u8>)>) {
    if let Some(end) = memchr::memchr(b'\n', input)
        && memchr::memchr2(b'"', b'\'', &input[..end]).is_some()
    {
        lines.push((at, input[..end].to_vec()));
    }
}

/// Targets by their shard: each core is taken once for all of its own.
#[derive(Default)]
struct ByShard {
    /// The first target of each shard, plus one; 0 for none.
    first: Vec<u8>,
    /// The shards that have any.
    shards: Vec<ShardId>,
}

impl ByShard {
    fn sort(&mut self, shards: usize, targets: &mut [Target]) {
        let ByShard { first, shards: some } = self;
        first.resize(shards, 0);
        some.drain(..).for_each(|shard| first[shard as usize] = 0);
        for (at, target) in targets.iter_mut().enumerate().rev() {
            let first = &mut first[target.shard as usize];
            if *first == 0 {
                some.push(target.shard);
            }
            target.next = std::mem::replace(first, at as u8 + 1);
        }
    }

    /// Does something with every target, by its number. Where somebody has the core, it is tried once more after the others.
    #[inline]
    fn each(&self, engine: &Engine, targets: &mut [Target], mut run: impl FnMut(&Core, &mut Target, usize)) {
        let mut each_of = |shard: ShardId| {
            let Some(core) = engine.shards.at(shard).try_core() else { return false };
            let mut next = self.first[shard as usize];
            while next > 0 {
                let at = next as usize - 1;
                let target = &mut targets[at];
                run(&core, target, at);
                next = target.next;
            }
            true
        };
        let taken: SmallVec<[ShardId; 16]> = self.shards.iter().copied().filter(|&shard| !each_of(shard)).collect();
        for shard in taken {
            each_of(shard);
        }
    }
}

/// Cores that the look-ahead reads, one at a time; a neighbour of the same shard finds it at hand.
struct OneAtATime<'e> {
    engine: &'e Engine,
    held: Option<(ShardId, Option<Guard<'e>>)>,
}

impl Cores for OneAtATime<'_> {
    #[inline]
    fn of(&mut self, shard: ShardId) -> Option<&Core> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != shard) {
            self.held = None;
            self.held = Some((shard, self.engine.shards.at(shard).try_core()));
        }
        self.held.as_ref()?.1.as_deref()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::command::table;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::util::splitmix;

    /// The input that such a request comes in, behind what there is, and its spans.
    fn push(words: &[Vec<u8>], input: &mut Vec<u8>, ahead: &mut Ahead) {
        let first = ahead.spans.len() as u32;
        for word in words {
            ahead.spans.push((input.len() as u32, (input.len() + word.len()) as u32));
            input.extend_from_slice(word);
        }
        let command = table().find(&words[0]);
        ahead.calls.push(Parsed::new(first..ahead.spans.len() as u32, input.len(), command));
    }

    /// What a command is told of its keys is what it would find out itself, of all of them or of none: whatever stands before it
    /// in the pipeline, and however many there are.
    #[test]
    fn a_command_is_told_of_its_own_keys() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 4);
        let ns = engine.first_names().id(b"0").unwrap();
        let names: [&[u8]; 6] = [b"a", b"b", b"", b"{tag}c", b"{tag}d", b"a key of which there is more"];
        let there = &names[..5];
        engine
            .transact(&engine.all_shards(), 1, |txn| {
                there.iter().try_for_each(|key| txn.put_string(ns, key, key, 0).map(drop))
            })
            .unwrap();
        let mut state = 0;
        let mut random = |below: usize| splitmix::next(&mut state) as usize % below;
        let (mut ahead, mut told, mut untold, mut found) = (Ahead::default(), 0, 0, 0);
        for _ in 0..300 {
            let mut input = Vec::new();
            ahead.spans.clear();
            ahead.calls.clear();
            for _ in 0..=random(AHEAD) {
                let many = [0, 1, 2, 10, 191, 192, 193][random(7).min(random(7))];
                let keys: Vec<Vec<u8>> = (0..many).map(|_| names[random(names.len())].to_vec()).collect();
                let words: Vec<Vec<u8>> = match random(6) {
                    0 => vec![b"GET".to_vec(), names[random(names.len())].to_vec()],
                    1 => vec![b"PING".to_vec()],
                    2 => [b"MGET".to_vec()].into_iter().chain(keys).collect(),
                    3 => [b"MSET".to_vec()]
                        .into_iter()
                        .chain(keys.into_iter().flat_map(|key| [key, b"v".to_vec()]))
                        .collect(),
                    4 => [b"SINTERCARD".to_vec(), keys.len().to_string().into()].into_iter().chain(keys).collect(),
                    _ => [b"SORT".to_vec()].into_iter().chain(keys).collect(),
                };
                push(&words, &mut input, &mut ahead);
            }
            ahead.look(&engine, ns, &input, (&mut Reads::default(), true));
            assert!(ahead.targets.capacity().max(ahead.spotted.capacity()) <= 2 * MOST_TARGETS, "of thousands of keys");
            for call in &ahead.calls {
                let spans = &ahead.spans[call.first as usize..(call.first + call.count) as usize];
                let (args, (_, command)) = (Args::new(&input, spans), call.command.unwrap());
                let (hash, spotted) = ahead.known_of(call);
                if let Route::One(at) = command.route {
                    assert!(hash == engine.router.hash(&args[at]) && spotted.is_empty());
                    continue;
                }
                let keys = keys_of(command, args).unwrap_or_default();
                if spotted.is_empty() {
                    untold += usize::from(!keys.is_empty());
                    continue;
                }
                told += 1;
                assert!(command.named.is_none() && spotted.len() == keys.len());
                for (spotted, (at, _)) in spotted.iter().zip(keys) {
                    let (hint, key) = (spotted.hint, &args[at]);
                    assert_eq!(hint.key_at, key.as_ptr() as usize);
                    assert_eq!((hint.hash, hint.shard), (engine.router.hash(key), engine.router.shard_of(key)));
                    // A timer may have had the shard.
                    assert!(spotted.lines.is_none() || there.contains(&key));
                    found += usize::from(!spotted.lines.is_none());
                }
            }
        }
        assert!(told > 500 && untold > 500 && found > told, "{told} {untold} {found}");
    }
}
