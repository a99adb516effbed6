//! The search itself: histories of which it is known whether an order explains them.

use super::operations::{Chooser, KEYS, Op, plain_name};
use super::search::{Done, History, Service, Verdict, run, serve};
use super::sequential::{Command, Key, State, Token, ok, token_bulk};
use crate::common::resp::Value;
use crate::common::rng::{Rng, seed_from};

const S: [Key; 2] = [0, 1];
const Q: [Key; 2] = [3, 4];

fn done(op: Op, reply: Value, asked: u64, answered: u64) -> Done {
    Done { op, reply, asked, answered, waited: None }
}

fn one(command: Command, reply: Value, asked: u64, answered: u64) -> Done {
    done(Op::One(command), reply, asked, answered)
}

fn int(n: i64) -> Value {
    Value::Int(n)
}

fn served(key: Key, token: Token) -> Value {
    Value::Array(vec![plain_name(key), token_bulk(token)])
}

/// Both ways of the search say the same of a history, and of its parts.
fn check(service: Service, clients: &[Vec<Done>], explained: bool) {
    let start = State::new(KEYS, clients.len());
    let history = History { start, clients: clients.to_vec(), service };
    let found = |verdict: &Verdict| matches!(verdict, Verdict::Linearizable(_));
    let verdicts = [history.check(), history.check_all_orders()];
    let parts: Vec<Verdict> = history.parts().iter().map(History::check).collect();
    assert!(verdicts.iter().all(|verdict| found(verdict) == explained), "{service:?} {history:?} {verdicts:?}");
    assert_eq!(parts.iter().all(found), explained, "{service:?} {history:?} {parts:?}");
    let refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_));
    assert!(explained || verdicts.iter().all(refused), "{verdicts:?}");
}

fn explained(clients: &[Vec<Done>]) {
    check(Service::AtOnce, clients, true);
    check(Service::Soon, clients, true);
}

fn refused(clients: &[Vec<Done>]) {
    check(Service::AtOnce, clients, false);
    check(Service::Soon, clients, false);
}

#[test]
fn a_read_sees_what_was_answered_before_it_was_asked() {
    let set = one(Command::Set(S[0], 7), ok(), 10, 20);
    let get = |reply: Value, asked, answered| one(Command::Get(S[0]), reply, asked, answered);
    explained(&[vec![set.clone()], vec![get(token_bulk(7), 21, 30)]]);
    refused(&[vec![set.clone()], vec![get(Value::Nil, 21, 30)]]);
    // While it is being written, either; but never back.
    explained(&[vec![set.clone()], vec![get(Value::Nil, 11, 12), get(token_bulk(7), 13, 14)]]);
    refused(&[vec![set.clone()], vec![get(token_bulk(7), 11, 12), get(Value::Nil, 13, 14)]]);
    refused(&[vec![set], vec![get(token_bulk(7), 1, 9)]]);
}

#[test]
fn no_increment_is_lost() {
    let add = |sum, asked, answered| one(Command::Incr(S[0]), int(sum), asked, answered);
    explained(&[vec![add(2, 0, 10)], vec![add(1, 5, 15)]]);
    refused(&[vec![add(1, 0, 10)], vec![add(1, 5, 15)]]);
    refused(&[vec![add(2, 0, 10)], vec![add(1, 11, 15)]]);
    // Of three keys that have nothing to do with each other one is wrong.
    let other = |key, sum| one(Command::Incr(key), int(sum), 0, 10);
    refused(&[vec![add(1, 0, 10)], vec![other(S[1], 1)], vec![other(2, 2)]]);
}

#[test]
fn a_transaction_is_seen_whole() {
    let both = |op: fn(Vec<Command>) -> Op| {
        done(op(vec![Command::Set(S[0], 1), Command::Set(S[1], 2)]), Value::Array(vec![ok(), ok()]), 0, 50)
    };
    let look = |a: Value, b: Value| one(Command::MGet(S.to_vec()), Value::Array(vec![a, b]), 10, 20);
    for op in [Op::Exec, Op::Script] {
        explained(&[vec![both(op)], vec![look(token_bulk(1), token_bulk(2))]]);
        explained(&[vec![both(op)], vec![look(Value::Nil, Value::Nil)]]);
        refused(&[vec![both(op)], vec![look(token_bulk(1), Value::Nil)]]);
    }
    // One after the other nothing is wrong with it.
    let [a, b] = [(0, 1), (1, 2)].map(|(key, token)| one(Command::Set(S[key], token), ok(), 0, 50));
    explained(&[vec![a], vec![b], vec![look(token_bulk(1), Value::Nil)]]);
    let renamed = one(Command::Rename(S[0], S[1]), ok(), 30, 40);
    let set = one(Command::Set(S[0], 5), ok(), 0, 1);
    let twice = one(Command::MGet(S.to_vec()), Value::Array(vec![token_bulk(5), token_bulk(5)]), 31, 39);
    refused(&[vec![set, renamed], vec![twice]]);
}

#[test]
fn a_watch_is_broken_by_a_change_and_by_nothing_else() {
    let watch = done(Op::Watch(vec![S[0]]), ok(), 0, 10);
    let exec = |reply: Value| done(Op::Exec(vec![Command::Set(S[1], 1)]), reply, 20, 30);
    let set = |asked, answered| one(Command::Set(S[0], 9), ok(), asked, answered);
    let ran = || Value::Array(vec![ok()]);
    explained(&[vec![watch.clone(), exec(ran())]]);
    refused(&[vec![watch.clone(), exec(Value::Nil)]]);
    refused(&[vec![watch.clone(), exec(ran())], vec![set(11, 19)]]);
    explained(&[vec![watch.clone(), exec(Value::Nil)], vec![set(11, 19)]]);
    for reply in [ran(), Value::Nil] {
        explained(&[vec![watch.clone(), exec(reply)], vec![set(5, 25)]]);
    }
}

#[test]
fn each_element_gets_to_one() {
    let push = one(Command::RPush(Q[0], vec![1, 2]), int(2), 10, 20);
    let pop = |token: Token| one(Command::LPop(Q[0]), token_bulk(token), 15, 25);
    let wait = |token: Token| done(Op::BlPop(vec![Q[0]], "1"), served(Q[0], token), 0, 26);
    explained(&[vec![push.clone()], vec![pop(2)], vec![wait(1)]]);
    refused(&[vec![push.clone()], vec![pop(1)], vec![wait(1)]]);
    // Both get the first one, one after the other, of two pushes.
    let again = one(Command::LPush(Q[0], vec![1]), int(1), 21, 25);
    explained(&[vec![push.clone(), again], vec![pop(2)], vec![wait(1)]]);
    let look = one(Command::LRange(Q[0]), Value::Array(vec![]), 30, 40);
    refused(&[vec![push, look], vec![wait(1)]]);
}

#[test]
fn who_waits_is_served_and_nobody_comes_in_between() {
    let push = one(Command::RPush(Q[0], vec![1]), int(1), 10, 20);
    let wait = |reply: Value, asked, answered| done(Op::BlPop(vec![Q[0]], "1"), reply, asked, answered);
    // It may have been asked for late, or have left early.
    explained(&[vec![push.clone()], vec![wait(Value::Nil, 0, 30)]]);
    refused(&[vec![push.clone()], vec![wait(Value::Nil, 21, 30)]]);
    explained(&[vec![push.clone()], vec![wait(served(Q[0], 1), 21, 30)]]);
    refused(&[vec![push.clone()], vec![wait(served(Q[0], 1), 0, 9)]]);
    // Of one that was seen in the line nobody sees the element, if it is served at once.
    let seen_at = |waited| Done { waited: Some(waited), ..wait(served(Q[0], 1), 0, 100) };
    let stolen = one(Command::LLen(Q[0]), int(1), 30, 40);
    check(Service::AtOnce, &[vec![push.clone(), stolen.clone()], vec![seen_at(35)]], true);
    check(Service::AtOnce, &[vec![push.clone(), stolen.clone()], vec![seen_at(9)]], false);
    check(Service::Soon, &[vec![push.clone(), stolen], vec![seen_at(9)]], true);
    // One that leaves found nothing before it was seen.
    let left = |asked, waited| Done { waited: Some(waited), ..wait(Value::Nil, asked, 100) };
    explained(&[vec![push.clone()], vec![left(5, 30)]]);
    refused(&[vec![push.clone()], vec![left(21, 30)]]);
    let pop = one(Command::LPop(Q[0]), token_bulk(1), 60, 70);
    explained(&[vec![push.clone(), pop.clone()], vec![left(21, 75)]]);
    refused(&[vec![push.clone(), pop], vec![left(21, 50)]]);
    let carry = done(Op::BlMove(Q[0], Q[1], "1"), token_bulk(1), 0, 100);
    let seen = |n| one(Command::LLen(Q[1]), int(n), 30, 40);
    explained(&[vec![push.clone(), seen(1)], vec![carry.clone()]]);
    explained(&[vec![push.clone(), seen(0)], vec![carry.clone()]]);
    refused(&[vec![push, seen(0), one(Command::LLen(Q[0]), int(0), 41, 50), seen(0)], vec![carry]]);
}

/// Of two that wait, one of them for what the other one carries on.
#[test]
fn one_service_leads_to_the_next() {
    let push = one(Command::RPush(Q[0], vec![1]), int(1), 10, 20);
    let carry = done(Op::BlMove(Q[0], Q[1], "1"), token_bulk(1), 0, 100);
    let wait = |reply: Value| done(Op::BlPop(vec![Q[1]], "1"), reply, 0, 100);
    let look = |n| one(Command::LLen(Q[1]), int(n), 101, 110);
    explained(&[vec![push.clone(), look(0)], vec![carry.clone()], vec![wait(served(Q[1], 1))]]);
    refused(&[vec![push.clone(), look(1)], vec![carry.clone()], vec![wait(served(Q[1], 1))]]);
    explained(&[vec![push.clone(), look(1)], vec![carry.clone()], vec![wait(Value::Nil)]]);
    refused(&[vec![push, look(0)], vec![carry], vec![wait(Value::Nil)]]);
}

#[test]
fn who_was_seen_in_the_line_first_is_served_first() {
    let push = one(Command::RPush(Q[0], vec![1, 2]), int(2), 50, 60);
    let wait = |token, asked, waited| Done {
        waited: Some(waited),
        ..done(Op::BlPop(vec![Q[0]], "1"), served(Q[0], token), asked, 100)
    };
    explained(&[vec![push.clone()], vec![wait(1, 0, 10)], vec![wait(2, 11, 20)]]);
    refused(&[vec![push.clone()], vec![wait(2, 0, 10)], vec![wait(1, 11, 20)]]);
    explained(&[vec![push.clone()], vec![wait(2, 0, 12)], vec![wait(1, 11, 20)]]);
}

/// Only where all keys are in one shard is it known of which one somebody is served.
#[test]
fn who_waits_for_several_keys_is_served_with_what_is_at_hand() {
    let both = vec![Command::RPush(Q[0], vec![1]), Command::RPush(Q[1], vec![2])];
    let push = done(Op::Exec(both), Value::Array(vec![int(1), int(1)]), 10, 20);
    let wait = |key, token| done(Op::BlPop(Q.to_vec(), "1"), served(key, token), 0, 30);
    check(Service::AtOnce, &[vec![push.clone()], vec![wait(Q[0], 1)]], true);
    check(Service::Soon, &[vec![push.clone()], vec![wait(Q[0], 1)]], true);
    check(Service::AtOnce, &[vec![push.clone()], vec![wait(Q[1], 2)]], false);
    check(Service::Soon, &[vec![push], vec![wait(Q[1], 2)]], true);
}

/// Who stands behind one that is to be served, but has to wait for another of its keys, does not leave with nothing while there is
/// something for it.
#[test]
fn who_is_held_up_gets_what_is_left() {
    let push = one(Command::RPush(Q[0], vec![1]), int(1), 10, 20);
    let left = |keys: &[Key], asked, answered| done(Op::BlPop(keys.to_vec(), "1"), Value::Nil, asked, answered);
    refused(&[vec![push.clone()], vec![left(&Q, 0, 50)], vec![left(&Q[..1], 30, 40)]]);
    explained(&[vec![push], vec![left(&Q, 0, 50)], vec![left(&Q[..1], 19, 40)]]);
}

/// Who is being served where another of its keys is held may leave with nothing; those behind it wait for that, and were seen to.
#[test]
fn who_comes_behind_one_that_is_held_up_waits_beside_what_there_is() {
    let push = one(Command::RPush(Q[0], vec![1]), int(1), 10, 20);
    let look = one(Command::LLen(Q[0]), int(1), 40, 45);
    let carry = |from: Key, answered| done(Op::BlMove(from, Q[1], "1"), Value::Nil, 0, answered);
    let pop = Done { waited: Some(35), ..done(Op::BlPop(vec![Q[0]], "1"), served(Q[0], 1), 30, 60) };
    let others = vec![push, look];
    check(Service::Soon, &[others.clone(), vec![carry(Q[0], 50)], vec![pop.clone()]], true);
    check(Service::AtOnce, &[others.clone(), vec![carry(Q[0], 50)], vec![pop.clone()]], false);
    // It stands in another line, had left before, or needs nothing else.
    refused(&[others.clone(), vec![carry(Q[1], 50)], vec![pop.clone()]]);
    refused(&[others.clone(), vec![carry(Q[0], 29)], vec![pop.clone()]]);
    refused(&[others, vec![done(Op::BlPop(vec![Q[0]], "1"), Value::Nil, 0, 50)], vec![pop]]);
}

/// That a copy would change nothing now is no reason to take it now: it answers the same when it does.
#[test]
fn a_copy_is_not_taken_too_early() {
    let [set, again] = [(5, 0), (9, 30)].map(|(token, asked)| one(Command::Set(S[0], token), ok(), asked, asked + 9));
    let copy = |asked, answered| one(Command::CopyOver(S[0], S[1]), int(1), asked, answered);
    let read = one(Command::Get(S[1]), token_bulk(9), 110, 120);
    explained(&[vec![set, copy(10, 19), again, read], vec![copy(20, 100)]]);
}

/// A history as clients could have made it: each operation ran at some moment between its request and its reply.
fn imagined(rng: &mut Rng, clients: usize, each: usize) -> History {
    let mut all: Vec<Vec<Done>> = Vec::new();
    let mut moments = Vec::new();
    for client in 0..clients {
        let token = client as Token * 1000;
        let mut chooser = Chooser { rng: Rng(rng.next()), token, single: false };
        let ops: Vec<Op> = std::iter::repeat_with(|| chooser.next()).flatten().flatten().take(each).collect();
        let mut now = 0;
        let mut wait = || {
            now += rng.below(30);
            now
        };
        let done = |(n, op): (usize, Op)| {
            let (asked, moment, answered) = (wait(), wait(), wait());
            moments.push((moment, client, n));
            done(op, Value::Nil, asked, answered)
        };
        all.push(ops.into_iter().enumerate().map(done).collect());
    }
    moments.sort_unstable();
    let start = State::new(KEYS, clients);
    let mut state = start.clone();
    for (_, client, n) in moments {
        let Done { op, reply, .. } = &mut all[client][n];
        let full = op.waits_for().iter().copied().find(|&key| state.has_elements(key));
        *reply = match full {
            Some(key) => serve(&mut state, op, key),
            None if op.waits_for().is_empty() => run(&mut state, client, op, &Value::Nil),
            None => Value::Nil,
        };
    }
    History { start, clients: all, service: Service::AtOnce }
}

#[test]
fn what_is_not_tried_changes_no_verdict() {
    let seed = seed_from("TARN_HISTORIES_KNOWN_SEED");
    let (mut rng, mut refused) = (Rng(seed), 0);
    for n in 0..1000 {
        let mut history = imagined(&mut rng, 3, 6);
        assert!(matches!(history.check(), Verdict::Linearizable(_)), "seed {seed}, {n}: {history:?}");
        // One of them is told what another one was.
        let [from, to] = [0, 1].map(|_| (rng.below(3) as usize, rng.below(6) as usize));
        history.clients[to.0][to.1].reply = history.clients[from.0][from.1].reply.clone();
        let kinds = [history.check(), history.check_all_orders()].map(|verdict| match verdict {
            Verdict::Linearizable(_) => true,
            Verdict::Refused(_) => false,
            Verdict::Undecided => panic!("seed {seed}, {n}: undecided"),
        });
        assert_eq!(kinds[0], kinds[1], "seed {seed}, {n}: {history:?}");
        refused += usize::from(!kinds[0]);
    }
    assert!((100..900).contains(&refused), "seed {seed}: {refused} of them refused");
}
