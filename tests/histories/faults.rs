//! Whether the search would see a fault: histories that a server has made, changed as faults would change them.
//!
//! Not every such change is one that clients could tell: what nobody looked at afterwards may as well not have been written.

use std::fmt;

use super::operations::Op;
use super::search::{Done, History, Verdict};
use super::sequential::Command;
use crate::common::resp::Value;
use crate::common::rng::{Rng, seed_from};
use crate::common::server::{Kind, Server};

#[derive(Clone, Copy)]
enum Fault {
    /// Two elements that were popped of one list, or two strings that were read, change places.
    RepliesChange,
    /// A write that was answered did not happen.
    WriteIsLost,
    /// A number is one too high.
    NumberIsOff,
    /// What was popped is popped by somebody else, too.
    PoppedTwice,
    /// A string is read as it was before the round.
    StaleRead,
    /// A transaction's first command has no effect.
    TornTransaction,
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::RepliesChange, "replies change places"),
    (Fault::WriteIsLost, "a write is lost"),
    (Fault::NumberIsOff, "a number is off"),
    (Fault::PoppedTwice, "popped twice"),
    (Fault::StaleRead, "a stale read"),
    (Fault::TornTransaction, "a torn transaction"),
];

/// Where an operation stands: client and number.
type At = (usize, usize);

fn find(history: &History, wanted: impl Fn(&Done) -> bool) -> Vec<At> {
    let of = |(client, all): (usize, &Vec<Done>)| -> Vec<At> {
        all.iter().enumerate().filter(|(_, done)| wanted(done)).map(|(n, _)| (client, n)).collect()
    };
    history.clients.iter().enumerate().flat_map(of).collect()
}

fn choose(rng: &mut Rng, from: &[At]) -> Option<At> {
    (!from.is_empty()).then(|| from[rng.below(from.len() as u64) as usize])
}

/// The list that a pop with something to answer has popped of, and nothing else.
fn popped(done: &Done) -> Option<usize> {
    match done.op {
        Op::One(Command::LPop(key) | Command::RPop(key)) if !done.reply.is_nil() => Some(key),
        _ => None,
    }
}

fn read(done: &Done) -> Option<usize> {
    match done.op {
        Op::One(Command::Get(key)) => Some(key),
        _ => None,
    }
}

/// Two operations of which the function says the same, with different replies.
fn pair(history: &History, rng: &mut Rng, kind: fn(&Done) -> Option<usize>) -> Option<[At; 2]> {
    let all = find(history, |done| kind(done).is_some());
    let first = choose(rng, &all)?;
    let of = |(client, n): At| &history.clients[client][n];
    let mut others = all.clone();
    others.retain(|&other| kind(of(other)) == kind(of(first)) && of(other).reply != of(first).reply);
    Some([first, choose(rng, &others)?])
}

fn writes(done: &Done) -> bool {
    let Op::One(command) = &done.op else { return false };
    matches!(command, Command::Set(..) | Command::RPush(..) | Command::LPush(..) | Command::Incr(_) | Command::HSet(..))
        && !done.reply.is_error()
}

impl Fault {
    /// The history with this fault in it; `None` where there is no place for it.
    fn put_into(self, history: &History, rng: &mut Rng) -> Option<History> {
        let mut changed = history.clone();
        match self {
            Fault::RepliesChange => {
                let kind = if rng.one_in(2) { popped } else { read };
                let [(a, n), (b, m)] = pair(history, rng, kind)?;
                changed.clients[a][n].reply = history.clients[b][m].reply.clone();
                changed.clients[b][m].reply = history.clients[a][n].reply.clone();
            }
            Fault::WriteIsLost => {
                let (client, n) = choose(rng, &find(history, writes))?;
                changed.clients[client].remove(n);
            }
            Fault::NumberIsOff => {
                let (client, n) = choose(rng, &find(history, |done| done.reply.int().is_some()))?;
                let number = history.clients[client][n].reply.int()?;
                changed.clients[client][n].reply = Value::Int(number + 1);
            }
            Fault::PoppedTwice => {
                let [(a, n), (b, m)] = pair(history, rng, popped)?;
                changed.clients[b][m].reply = history.clients[a][n].reply.clone();
            }
            Fault::StaleRead => {
                let reads = find(history, |done| read(done).is_some());
                let (client, n) = choose(rng, &reads)?;
                let key = read(&history.clients[client][n])?;
                let before = history.start.clone().run(&Command::Get(key), &Value::Nil);
                if before == history.clients[client][n].reply {
                    return None;
                }
                changed.clients[client][n].reply = before;
            }
            Fault::TornTransaction => {
                let torn = |done: &Done| match &done.op {
                    Op::Exec(commands) | Op::Script(commands) => {
                        matches!(commands[0], Command::Set(..) | Command::RPush(..) | Command::Incr(_))
                            && commands.len() > 1
                            && done.reply.items().len() > 1
                            && !done.reply.items()[0].is_error()
                    }
                    _ => false,
                };
                let (client, n) = choose(rng, &find(history, torn))?;
                let done = &mut changed.clients[client][n];
                let (Op::Exec(commands) | Op::Script(commands)) = &mut done.op else { return None };
                commands.remove(0);
                done.reply = Value::Array(done.reply.items()[1..].to_vec());
            }
        }
        Some(changed)
    }
}

/// How often a fault was put in, and how often it was seen.
#[derive(Default, Clone, Copy)]
struct Seen {
    put: usize,
    refused: usize,
    undecided: usize,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} seen, {} undecided", self.refused, self.put, self.undecided)
    }
}

impl Seen {
    fn look_at(&mut self, history: &History) {
        self.put += 1;
        let verdicts: Vec<Verdict> = history.parts().iter().map(|part| part.check_by(3)).collect();
        if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Refused(_))) {
            self.refused += 1;
        } else if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Undecided)) {
            self.undecided += 1;
        }
    }
}

#[test]
fn most_faults_would_be_seen() {
    let seed = seed_from("TARN_HISTORIES_FAULTS_SEED");
    let server = Server::built(Kind::Tarn, &crate::SMALL);
    let (mut rng, mut seen, mut number) = (Rng(seed), [Seen::default(); FAULTS.len()], 0);
    crate::rounds(&server, Kind::Tarn, seed, |history| {
        for ((fault, _), seen) in FAULTS.iter().zip(&mut seen) {
            if let Some(history) = fault.put_into(history, &mut rng) {
                seen.look_at(&history);
            }
        }
        number += 1;
        number < 24
    });
    let mut all = Seen::default();
    for ((_, name), seen) in FAULTS.iter().zip(seen) {
        crate::notice(&format!("{name}: {seen}"));
        assert!(4 * seen.refused > seen.put, "seed {seed}: {name}: {seen}");
        all.put += seen.put;
        all.refused += seen.refused;
        all.undecided += seen.undecided;
    }
    assert!(3 * all.refused >= 2 * all.put, "seed {seed}: {all}");
}
