//! Keys among a command's arguments, by its key specs, and their shards.

use super::{Args, Begin, Command, Find, KeySpec, KeysAt, Route, Server, Session, flags, key};
use crate::shard::actor::ShardSet;
use crate::shard::router::ShardId;
use crate::shard::txn::{Hint, Hints, Spotted};
use crate::util::num::parse_i64;

/// All keys of a call, in the order of the specs: what routing, COMMAND GETKEYS and the look-ahead go by. `None` if the
/// arguments do not fit the specs.
pub fn keys_of(command: &Command, args: Args<'_>) -> Option<KeysAt> {
    if let Some(named) = command.named {
        let mut keys = named(args).0;
        // Nobody has counted the arguments yet.
        keys.retain(|&mut (at, _)| at < args.len());
        return Some(keys);
    }
    let mut keys = KeysAt::new();
    for spec in command.keys {
        keys_of_spec(spec, args, command.has(flags::NO_MANDATORY_KEYS), &mut keys)?;
    }
    Some(keys)
}

/// The keys of a call, each with what this call does with it. None if the arguments do not fit the specs: a call that fails.
pub fn access_of(command: &Command, args: Args<'_>) -> KeysAt {
    access_of_known(command, args, keys_of(command, args).unwrap_or_default())
}

/// The same, of keys that are known.
pub fn access_of_known(command: &Command, args: Args<'_>, mut keys: KeysAt) -> KeysAt {
    for (_, flags) in keys.iter_mut().filter(|(_, flags)| flags & key::VARIABLE_FLAGS != 0) {
        *flags = command.access.map_or(*flags & !key::VARIABLE_FLAGS, |access| access(args));
    }
    keys
}

/// Whether a call may look at other keys besides.
pub fn has_others(command: &Command, args: Args<'_>) -> bool {
    command.named.is_some_and(|named| named(args).1)
}

/// The shards of a call, in their order; `None` for all. The hashes of its keys, and which of these shards has each, are left in `hints`.
pub fn shards_of(
    server: &Server,
    session: &Session,
    command: &Command,
    args: Args<'_>,
    hints: &mut Hints,
) -> Option<ShardSet> {
    let router = &server.engine.router;
    let mut shards = ShardSet::new();
    let mut add = |key: &[u8]| {
        let hash = router.hash(key);
        let shard = router.shard(hash, key);
        hints.push(Hint::new(key, hash, shard));
        insert(&mut shards, shard);
    };
    match command.route {
        Route::None => {}
        Route::One(at) => args.get(at).into_iter().for_each(add),
        Route::Keys if has_others(command, args) => return None,
        Route::Keys => {
            let keys = keys_of(command, args).unwrap_or_default();
            keys.iter().for_each(|&(at, _)| add(&args[at]));
        }
        Route::All => return None,
        Route::By(by) => {
            shards = by(server, session, args)?;
            shards.sort_unstable();
            shards.dedup();
        }
    }
    foresee(&shards, hints);
    Some(shards)
}

/// The same of keys that a look-ahead has found. They are fetched again, as they may have left the processor's cache since.
pub fn shards_of_spotted(command: &Command, keys: &[Spotted], hints: &mut Hints) -> ShardSet {
    let mut shards = ShardSet::new();
    let written = command.has(flags::WRITE);
    hints.extend(keys.iter().map(|key| key.prefetch(written)));
    hints.iter().for_each(|hint| insert(&mut shards, hint.shard));
    foresee(&shards, hints);
    shards
}

#[inline]
fn insert(shards: &mut ShardSet, shard: ShardId) {
    if let Err(at) = shards.binary_search(&shard) {
        shards.insert(at, shard);
    }
}

/// Notes of each key where its shard stands among these: before they are leased, when nobody waits for them.
fn foresee(shards: &[ShardId], hints: &mut Hints) {
    for hint in hints {
        hint.foreseen = shards.binary_search(&hint.shard).unwrap_or_default() as u16;
    }
}

fn keys_of_spec(spec: &KeySpec, args: Args<'_>, may_be_none: bool, keys: &mut KeysAt) -> Option<()> {
    let begin = match spec.begin {
        Begin::Index(index) => index,
        Begin::Keyword(word, from) => match find_keyword(args, word, from) {
            Some(at) => at + 1,
            None => return Some(()),
        },
        Begin::Unknown => return Some(()),
    };
    if begin >= args.len() {
        // An optional key that was left out.
        return Some(());
    }
    let (first, last, step) = match spec.find {
        Find::Range { last, step, limit } => {
            let end = args.len() as isize - 1;
            let mut last = if last >= 0 { begin as isize + last } else { end + 1 + last };
            if limit > 1 {
                last = begin as isize + (end + 1 - begin as isize) / limit as isize - 1;
            }
            (begin, last, step)
        }
        Find::KeyNum { num, first, step } => {
            let count = parse_i64(args.get(begin + num)?)?;
            if count == 0 && may_be_none {
                return Some(());
            }
            let first = begin + first;
            if count < 1 || count as usize > args.len() || first + (count as usize - 1) * step >= args.len() {
                return None;
            }
            (first, (first + (count as usize - 1) * step) as isize, step)
        }
        Find::Unknown => return Some(()),
    };
    if last >= args.len() as isize {
        return None;
    }
    keys.extend((first as isize..=last).step_by(step.max(1)).map(|i| (i as usize, spec.flags)));
    Some(())
}

fn find_keyword(args: Args<'_>, word: &str, from: isize) -> Option<usize> {
    let is = |i: &usize| args.get(*i).is_some_and(|a| a.eq_ignore_ascii_case(word.as_bytes()));
    if from >= 0 {
        (from as usize..args.len()).find(is)
    } else {
        (0..(args.len() as isize + from + 1).max(0) as usize).rev().find(is)
    }
}
