//! Whether a history could have come about one operation after the other: a search for such an order.
//!
//! An operation takes effect at one moment between its request and its reply. The search (Wing and Gong's, with Lowe's memory of
//! what was tried: "Testing for linearizability", 2017) takes of the operations that may be next, those that were asked for
//! before any that is left was answered, one after the other, and goes back where the model answers otherwise than the server
//! did. Requests of one connection keep their order, so that the set of those taken is a number for each client.
//!
//! Not every order needs to be tried. What answers as it did, and by that answer can never have changed anything, may as well be
//! next. And of those that may be next it is enough to take some with which nothing that may come before them has to do
//! (`Search::some`, a *stubborn set*): what others do on other keys meanwhile can follow in any order.
//!
//! **Waits.** One that finds nothing takes its place in the line at one moment, and is served at another, only as the first in the line
//! of a key that has elements. When it began to wait is not told by its reply, but of many it was seen that they waited (CLIENT
//! LIST): by then they had their place. One that leaves with nothing has found nothing before it was seen; how long it stood in
//! the line is its own affair, as its reply may have been long on the way. How soon they are served:
//!
//! | [`Service`] | |
//! |---|---|
//! | `AtOnce` | nothing happens between a change and the service of all whom it lets be served |
//! | `Soon` | others may: who made the change has not the shards of all its keys, or somebody goes through one of these in slices |
//!
//! Those behind one that is not served at once wait, too, whatever there is. Where that one is served in the end, it stands in the
//! line of the search; where it leaves with nothing, its place is not known, and who was seen to wait may have been behind it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::operations::{KEYS, Op, plain_name};
use super::sequential::{Command, Key, State, Token, ok, token_bulk};
use crate::common::resp::Value;
use crate::common::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    AtOnce,
    Soon,
}

/// An operation that was answered.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) op: Op,
    pub(crate) reply: Value,
    /// Nanoseconds: before its request was sent, after its reply was read.
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// By then it was seen to wait.
    pub(crate) waited: Option<u64>,
}

impl Done {
    /// Whether its place in a line counts.
    fn stands_in_line(&self) -> bool {
        !self.op.waits_for().is_empty() && !self.reply.is_nil()
    }

    /// Whether its reply tells that it changed nothing, if it did not.
    fn tells_of_change(&self) -> bool {
        self.op.tells_of_change() || (!self.op.waits_for().is_empty() && self.reply.is_nil())
    }
}

/// What each client did, in its order, and what there was before.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) start: State,
    pub(crate) clients: Vec<Vec<Done>>,
    pub(crate) service: Service,
}

#[derive(Debug)]
pub(crate) enum Verdict {
    /// With the state at the end.
    Linearizable(State),
    /// No order explains it: where the longest attempt ended.
    Refused(String),
    /// Given up.
    Undecided,
}

/// A first attempt that goes on for longer than this has lost its way.
const STEPS: usize = 2000;
const ATTEMPTS: u64 = 8;

/// Keys that an operation reads and writes, a bit each.
#[derive(Clone, Copy)]
struct Touches {
    reads: u16,
    writes: u16,
}

impl Touches {
    fn meets(self, other: Touches) -> bool {
        self.writes & (other.reads | other.writes) != 0 || other.writes & self.reads != 0
    }
}

/// How far an attempt has come. A client that waits stands between two operations: an odd number.
#[derive(Clone)]
struct Place {
    taken: Vec<u16>,
    state: State,
}

struct Search<'a> {
    history: &'a History,
    /// Of each operation of each client.
    touches: Vec<Vec<Touches>>,
    /// Leaves nothing out, for tests of what is left out otherwise.
    tries_all: bool,
}

impl Search<'_> {
    fn current(&self, place: &Place, client: usize) -> Option<&Done> {
        self.history.clients[client].get(usize::from(place.taken[client] / 2))
    }

    /// What a client in the line waits with.
    fn waiting(&self, place: &Place, client: usize) -> &Done {
        &self.history.clients[client][usize::from(place.taken[client] / 2)]
    }

    /// Whether a client would be the first of those who wait for this key.
    fn is_first(&self, place: &Place, client: usize, key: Key) -> bool {
        let before = place.state.line.iter().take_while(|&&other| other != client);
        !before.into_iter().any(|&other| self.waiting(place, other).op.waits_for().contains(&key))
    }

    /// When a client's next step was done at the latest.
    fn bound(&self, place: &Place, client: usize, done: &Done) -> u64 {
        let waits = place.taken[client] % 2 == 1;
        done.waited.filter(|_| !waits).unwrap_or(done.answered)
    }

    /// The key by which a client is served, if it can be: it must be the first in the line of one that has elements.
    ///
    /// Then its command runs as if it had just come, and gets those of the key that it names first, as in Redis: also where others
    /// are before it in that one's line, who will hear of it only then. But one that waits for keys of several shards is served with
    /// what is at hand: whoever changes one of them does not look at the others.
    fn key_at_hand(&self, place: &Place, client: usize, done: &Done) -> Option<Key> {
        let keys = done.op.waits_for();
        let full = |key: &&Key| place.state.has_elements(**key);
        let open = |key: &&Key| full(key) && self.is_first(place, client, **key);
        let first = keys.iter().find(open)?;
        match self.history.service {
            Service::AtOnce => keys.iter().find(full),
            Service::Soon => {
                let named = |key: &&Key| done.reply.items().first() == Some(&plain_name(**key));
                Some(keys.iter().filter(full).find(named).unwrap_or(first))
            }
        }
        .copied()
    }

    /// The clients whose next step may be the next of all, those first that were answered first.
    fn steps(&self, place: &Place) -> Vec<usize> {
        let current = |client: usize| self.current(place, client);
        if self.history.service == Service::AtOnce {
            let mut due: Vec<usize> = place.state.line.clone();
            due.retain(|&client| self.key_at_hand(place, client, self.waiting(place, client)).is_some());
            if !due.is_empty() {
                return due;
            }
        }
        let all = (0..self.history.clients.len()).filter_map(|client| Some((client, current(client)?)));
        let bound = all.clone().map(|(client, done)| self.bound(place, client, done)).min().unwrap_or_default();
        let mut steps: Vec<(u64, usize)> = all
            .filter(|(_, done)| done.asked <= bound)
            .map(|(client, done)| (self.bound(place, client, done), client))
            .collect();
        steps.sort_unstable();
        let all = steps.into_iter().map(|(_, client)| client).collect();
        if self.tries_all { all } else { self.some(place, all) }
    }

    /// Of the clients whose steps may be next, some with which nothing has to do that those left out may do before.
    fn some(&self, place: &Place, all: Vec<usize>) -> Vec<usize> {
        let sets = all.iter().filter_map(|&first| self.closed(place, &all, first));
        let least = sets.min_by_key(Vec::len);
        least.unwrap_or(all)
    }

    /// The set that one begins: each who may do something before that has to do with one of the set belongs to it.
    fn closed(&self, place: &Place, all: &[usize], first: usize) -> Option<Vec<usize>> {
        let mut set = vec![first];
        let mut bound = u64::MAX;
        let mut at = 0;
        while at < set.len() {
            let (client, now) = (set[at], usize::from(place.taken[set[at]] / 2));
            let touches = self.touches[client][now];
            bound = bound.min(self.bound(place, client, &self.history.clients[client][now]));
            for other in 0..self.touches.len() {
                let begin = usize::from(place.taken[other] / 2);
                let later = self.history.clients[other][begin..].iter().zip(&self.touches[other][begin..]);
                let mut before = later.take_while(|(done, _)| done.asked <= bound);
                if !set.contains(&other) && before.any(|(_, theirs)| touches.meets(*theirs)) {
                    if !all.contains(&other) {
                        return None;
                    }
                    set.push(other);
                }
            }
            at += 1;
        }
        Some(set)
    }

    /// Whether one that comes to wait may have found somebody before it in the line who has left with nothing since.
    fn may_be_held_up(&self, client: usize, done: &Done) -> bool {
        let Some(seen) = done.waited.filter(|_| self.history.service == Service::Soon) else { return false };
        let in_its_way = |other: &Done| {
            let needs_more = other.op.keys().len() > 1 && other.reply.is_nil();
            let same_line = || other.op.waits_for().iter().any(|key| done.op.waits_for().contains(key));
            needs_more && same_line() && other.asked <= seen && other.answered >= done.asked
        };
        let all = self.history.clients.iter().enumerate();
        all.filter(|(other, _)| *other != client).any(|(_, theirs)| theirs.iter().any(in_its_way))
    }

    /// Where a client's next step leads, if the server's reply is what it would have been.
    fn step(&self, from: &Place, client: usize) -> Option<Place> {
        self.step_if(from, client, false)
    }

    /// The same of one that may have been held up: it takes its place in the line although there is something for it.
    fn step_aside(&self, from: &Place, client: usize) -> Option<Place> {
        let done = self.current(from, client)?;
        let comes = from.taken[client].is_multiple_of(2) && done.stands_in_line() && self.may_be_held_up(client, done);
        comes.then(|| self.step_if(from, client, true)).flatten()
    }

    fn step_if(&self, from: &Place, client: usize, held_up: bool) -> Option<Place> {
        let done = self.current(from, client)?;
        let mut place = from.clone();
        let waits = place.taken[client] % 2 == 1;
        if done.op.waits_for().is_empty() {
            let reply = run(&mut place.state, client, &done.op, &done.reply);
            place.taken[client] += 2;
            return (reply == done.reply).then_some(place);
        }
        if let Some(key) = self.key_at_hand(from, client, done).filter(|_| !held_up) {
            let reply = serve(&mut place.state, &done.op, key);
            place.state.line.retain(|&other| other != client);
            place.taken[client] += if waits { 1 } else { 2 };
            return (reply == done.reply).then_some(place);
        }
        if done.stands_in_line() {
            place.state.line.push(client);
            place.taken[client] += 1;
            return (!waits).then_some(place);
        }
        place.taken[client] += 2;
        Some(place)
    }

    /// The places that may be next, the best one last.
    fn next(&self, place: &Place) -> Vec<Place> {
        let mut next = Vec::new();
        for client in self.steps(place) {
            next.extend(self.step_aside(place, client));
            let Some(then) = self.step(place, client) else { continue };
            let pure = self.current(place, client).is_some_and(Done::tells_of_change);
            if pure && then.state == place.state && !self.tries_all {
                return vec![then];
            }
            next.push(then);
        }
        next.reverse();
        next
    }

    /// Tries so many steps; `order` decides, where several may be next, which is tried first.
    fn run(&self, steps: usize, mut order: Option<Rng>) -> Verdict {
        // Two hashes of one place are 128 bits: that two places share them does not happen.
        let (low, high) = (RandomState::new(), RandomState::new());
        let mut tried = HashSet::new();
        let clients = self.history.clients.len();
        let mut attempts = vec![Place { taken: vec![0; clients], state: self.history.start.clone() }];
        let mut farthest = attempts[0].clone();
        let far = |place: &Place| place.taken.iter().map(|&n| usize::from(n)).sum::<usize>();
        for _ in 0..steps {
            let Some(place) = attempts.pop() else { return Verdict::Refused(self.describe(&farthest)) };
            if far(&place) == 2 * self.history.count() {
                return Verdict::Linearizable(place.state);
            }
            let what = (&place.taken, &place.state);
            if tried.insert((low.hash_one(what), high.hash_one(what))) {
                let mut next = self.next(&place);
                if let Some(rng) = &mut order {
                    (1..next.len()).for_each(|n| next.swap(n, rng.below(n as u64 + 1) as usize));
                }
                attempts.append(&mut next);
                if far(&place) > far(&farthest) {
                    farthest = place;
                }
            }
        }
        Verdict::Undecided
    }

    /// Where an attempt ended: each client's operations around it, and the state.
    fn describe(&self, place: &Place) -> String {
        let mut text = format!("{:?}; it ended with {:?}\n", self.history.service, place.state);
        for (client, all) in self.history.clients.iter().enumerate() {
            let at = usize::from(place.taken[client] / 2);
            let waits = if place.taken[client] % 2 == 1 { " (waits)" } else { "" };
            text.push_str(&format!("client {client}{waits}, {at} of {}:\n", all.len()));
            for (n, done) in all.iter().enumerate().skip(at.saturating_sub(4)).take(8) {
                let mark = if n == at { "->" } else { "  " };
                let Done { op, reply, asked, answered, waited } = done;
                text.push_str(&format!("  {mark} {asked}..{answered} {waited:?} {op:?} {reply:?}\n"));
            }
        }
        text
    }
}

impl History {
    pub(crate) fn count(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }

    pub(crate) fn check(&self) -> Verdict {
        self.check_by(ATTEMPTS)
    }

    /// An attempt that has begun badly may go on for very long, where another order of trying finds the way at once: so they are
    /// many, each longer than the one before.
    pub(crate) fn check_by(&self, attempts: u64) -> Verdict {
        let search = self.search(false);
        let verdicts = (0..attempts).map(|n| search.run(STEPS << n, (n > 0).then_some(Rng(n))));
        verdicts.into_iter().find(|verdict| !matches!(verdict, Verdict::Undecided)).unwrap_or(Verdict::Undecided)
    }

    /// The same with nothing left out.
    pub(crate) fn check_all_orders(&self) -> Verdict {
        self.search(true).run(STEPS << ATTEMPTS, None)
    }

    fn search(&self, tries_all: bool) -> Search<'_> {
        Search { history: self, touches: self.clients.iter().map(|all| touches(all)).collect(), tries_all }
    }

    /// A history for each group of keys that no operation leads out of: far fewer orders are possible in each.
    pub(crate) fn parts(&self) -> Vec<History> {
        let mut group: Vec<Key> = (0..KEYS).collect();
        let find = |group: &[Key], mut key: Key| {
            while group[key] != key {
                key = group[key];
            }
            key
        };
        for all in &self.clients {
            let mut watched: Vec<Key> = Vec::new();
            for done in all {
                let mut keys = done.op.keys();
                match done.op {
                    Op::Watch(_) => watched.extend(&keys),
                    Op::Exec(_) => keys.append(&mut watched),
                    _ => {}
                }
                for pair in keys.windows(2).chain(watched.windows(2)) {
                    let [a, b] = [find(&group, pair[0]), find(&group, pair[1])];
                    group[a] = b;
                }
            }
        }
        let roots: Vec<Key> = (0..KEYS).map(|key| find(&group, key)).collect();
        let part = |root: Key| History {
            clients: self
                .clients
                .iter()
                .map(|all| all.iter().filter(|done| roots[done.op.keys()[0]] == root).cloned().collect())
                .collect(),
            ..self.clone()
        };
        (0..KEYS).filter(|&key| roots[key] == key).map(part).filter(|part| part.count() > 0).collect()
    }
}

/// What each operation of a client reads and writes: one that waits in vain only reads; EXEC reads what was watched, too.
fn touches(all: &[Done]) -> Vec<Touches> {
    let bits = |keys: &[Key]| keys.iter().fold(0, |bits, key| bits | 1 << key);
    let mut watched = 0;
    let of = |done: &Done| {
        let keys = bits(&done.op.keys());
        let mut touches =
            if done.op.writes() { Touches { reads: 0, writes: keys } } else { Touches { reads: keys, writes: 0 } };
        match done.op {
            Op::Watch(_) => watched |= keys,
            Op::Exec(_) => touches.reads |= std::mem::take(&mut watched),
            _ => {}
        }
        touches
    };
    all.iter().map(of).collect()
}

/// What an operation answers that does not wait. What was `seen` decides where chance does.
pub(crate) fn run(state: &mut State, client: usize, op: &Op, seen: &Value) -> Value {
    let all = |state: &mut State, commands: &[Command]| {
        let seen = |n: usize| seen.items().get(n).unwrap_or(&Value::Nil);
        Value::Array(commands.iter().enumerate().map(|(n, command)| state.run(command, seen(n))).collect())
    };
    match op {
        Op::One(command) => state.run(command, seen),
        Op::Watch(keys) => {
            state.watch(client, keys);
            ok()
        }
        Op::Exec(_) if state.watches[client].take().is_some_and(|watch| watch.broken) => Value::Nil,
        Op::Exec(commands) | Op::Script(commands) => all(state, commands),
        Op::Swap(a, b) => state.swap(*a, *b),
        Op::BlPop(..) | Op::BlMove(..) => unreachable!("it waits"),
    }
}

/// What one that waits answers when this key has something for it.
pub(crate) fn serve(state: &mut State, op: &Op, key: Key) -> Value {
    let popped = |token: Option<Token>| token.map_or(Value::Nil, token_bulk);
    match op {
        Op::BlMove(from, to, _) => state.carry(*from, *to),
        _ => state.pop(key, true).map(|token| Value::Array(vec![plain_name(key), popped(token)])),
    }
    .unwrap_or_else(|error| error)
}
