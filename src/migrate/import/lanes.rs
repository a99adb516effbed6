//! Commands run side by side, those of one shard in their order: each lane is a thread that runs what changes keys of its
//! shards and nothing else. Whatever else there is runs between them, once they have done all that came before it.

use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::{Failure, FirstFailure, Place, Tally, files};
use crate::handler::{Args, Command, OwnedArgs, Server};
use crate::migrate::local::Local;
use crate::shard::router::ShardId;

/// A lane is given the commands of a shard once there are so many, or so many bytes of them.
const BATCH_COMMANDS: usize = 256;
pub(super) const BATCH_BYTES: usize = 64 << 10;
/// Batches that wait for a lane.
const WAITING: usize = 4;

/// A command, and from where in the file.
struct Call {
    command: &'static Command,
    args: Range<usize>,
    offset: u64,
}

/// Commands of one shard that run at the same time.
#[derive(Default)]
struct Batch {
    db: Arc<[u8]>,
    clock_ms: u64,
    args: OwnedArgs,
    calls: Vec<Call>,
}

enum Work {
    Batch(ShardId, Batch),
    /// Somebody waits until all before it is done.
    Fence(Sender<()>),
}

/// What all lanes share.
struct Shared<'a> {
    server: &'a Arc<Server>,
    part: &'a files::Part,
    failure: FirstFailure,
    tally: &'a Mutex<Tally>,
}

struct Lane {
    /// It may have something to do.
    is_busy: bool,
    to: Sender<Work>,
}

/// The lanes of a file.
pub(super) struct Lanes<'a> {
    lanes: Vec<Lane>,
    /// What is gathered for each shard.
    open: Vec<Batch>,
    db: Arc<[u8]>,
    shared: Arc<Shared<'a>>,
}

impl<'a> Lanes<'a> {
    /// Begins so many; what they have to tell goes to `tally`.
    pub(super) fn begin<'scope>(
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        server: &'a Arc<Server>,
        part: &'a files::Part,
        tally: &'a Mutex<Tally>,
    ) -> Self
    where
        'a: 'scope,
    {
        let shared = Arc::new(Shared { server, part, failure: FirstFailure::default(), tally });
        let begin = |_| {
            let (to, work) = crossbeam_channel::bounded(WAITING);
            let shared = shared.clone();
            scope.spawn(move || shared.work(&work));
            Lane { is_busy: false, to }
        };
        let lanes = (0..count).map(begin).collect();
        let mut open = Vec::new();
        open.resize_with(server.engine.shards.count(), Batch::default);
        Lanes { lanes, open, db: (*b"0").into(), shared }
    }

    /// What follows is of this database. Nothing is gathered: there was a [`Lanes::fence`].
    pub(super) fn turn_to(&mut self, db: &[u8]) {
        if *self.db != *db {
            self.db = db.into();
        }
    }

    /// Has a command run that is of this shard alone.
    ///
    /// # Errors
    /// Of one before it.
    pub(super) fn add(
        &mut self,
        (shard, command): (ShardId, &'static Command),
        args: Args<'_>,
        offset: u64,
        clock_ms: u64,
    ) -> Result<(), Failure> {
        let batch = &self.open[usize::from(shard)];
        if batch.clock_ms != clock_ms {
            self.send(shard);
        }
        let batch = &mut self.open[usize::from(shard)];
        if batch.calls.is_empty() {
            (batch.db, batch.clock_ms) = (self.db.clone(), clock_ms);
        }
        let args = batch.args.append(args);
        batch.calls.push(Call { command, args, offset });
        if batch.calls.len() >= BATCH_COMMANDS || batch.args.bytes() >= BATCH_BYTES {
            self.send(shard);
            return self.check();
        }
        Ok(())
    }

    fn send(&mut self, shard: ShardId) {
        let batch = std::mem::take(&mut self.open[usize::from(shard)]);
        if !batch.calls.is_empty() {
            let at = usize::from(shard) % self.lanes.len();
            let lane = &mut self.lanes[at];
            lane.is_busy = true;
            // It lives until there is nobody who sends.
            let _ = lane.to.send(Work::Batch(shard, batch));
        }
    }

    /// Waits until all is done that was given.
    ///
    /// # Errors
    /// Of what was done.
    pub(super) fn fence(&mut self) -> Result<(), Failure> {
        (0..self.open.len()).for_each(|shard| self.send(shard as ShardId));
        let (done, passed) = crossbeam_channel::bounded(self.lanes.len());
        for lane in &mut self.lanes {
            if std::mem::take(&mut lane.is_busy) {
                let _ = lane.to.send(Work::Fence(done.clone()));
            }
        }
        drop(done);
        while passed.recv().is_ok() {}
        self.check()
    }

    fn check(&self) -> Result<(), Failure> {
        if !self.shared.failure.has_happened() {
            return Ok(());
        }
        Err(self.shared.failure.take().unwrap_or_else(|| Failure("a command before has failed".to_owned())))
    }
}

impl Shared<'_> {
    fn work(&self, work: &Receiver<Work>) {
        let mut local = Local::new(self.server);
        for work in work {
            match work {
                Work::Batch(shard, batch) if !self.failure.has_happened() => self.run(&mut local, shard, &batch),
                Work::Batch(..) => {}
                Work::Fence(done) => _ = done.send(()),
            }
        }
    }

    fn run(&self, local: &mut Local, shard: ShardId, batch: &Batch) {
        local.select(&batch.db);
        let calls = batch.calls.iter().map(|call| (call.command, batch.args.some(call.args.clone())));
        let tell = |at: usize, reply: &[u8]| {
            if let Some(why) = why_not(reply) {
                let name = &batch.args.some(batch.calls[at].args.clone())[0];
                self.tally.lock().note(format!("{}: {why}", name.escape_ascii()), 1);
            }
        };
        if let Err((at, error)) = local.commands(shard, batch.clock_ms, calls, tell) {
            let place = Place { path: &self.part.path, offset: batch.calls[at].offset, db: b"", key: None };
            self.failure.set(place.failure(error.text()));
        }
        local.write_out();
    }
}

/// The error that a reply is.
pub(super) fn why_not(reply: &[u8]) -> Option<String> {
    let error = reply.strip_prefix(b"-")?;
    Some(String::from_utf8_lossy(error).trim().to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::aof::time_of_claim;
    use super::super::tests::{server, session};
    use super::*;
    use crate::rdb::file::Input;
    use crate::util::splitmix;

    const KEYS: u64 = 12;

    /// Commands whose outcome tells in which order they ran, and when: in two databases, of one key and of two, in transactions,
    /// and some that fail.
    fn commands(count: u64) -> Vec<Vec<String>> {
        let (mut state, mut all) = (7, Vec::new());
        for n in 0..count {
            let mut pick = |of: u64| splitmix::next(&mut state) % of;
            let (a, b, what) = (format!("k{}", pick(KEYS)), format!("k{}", pick(KEYS)), pick(40));
            let append = |key: &str| vec!["APPEND".to_owned(), key.to_owned(), format!("{n},")];
            match what {
                0 => all.push(vec!["SELECT".into(), pick(2).to_string()]),
                1 => all.push(vec!["RENAME".into(), a, b]),
                2 => all.extend([vec!["MULTI".into()], append(&a), append(&b), vec!["EXEC".into()]]),
                3 => all.push(vec!["RPUSH".into(), a, n.to_string()]),
                4 => all.push(vec!["DEL".into(), a]),
                // There is no such group; but the time that it tells is one.
                5 => all.push(["XCLAIM", "x", "g", "c", "0", "1-1", "TIME", &n.to_string()].map(str::to_owned).into()),
                6 => all.push(["EXPIRE", &a, "1000"].map(str::to_owned).into()),
                _ => all.push(append(&a)),
            }
        }
        all
    }

    /// What each key holds.
    fn contents(server: &Arc<Server>) -> Vec<Vec<u8>> {
        let mut local = Local::new(server);
        let mut found = Vec::new();
        for db in [b"0", b"1"] {
            local.select(db);
            for key in 0..KEYS {
                for ask in [&b"GET"[..], b"PEXPIRETIME"] {
                    let args: OwnedArgs = [ask, format!("k{key}").as_bytes()].into_iter().collect();
                    found.push(local.command(args.as_args(), 1).unwrap().as_slice().to_vec());
                }
            }
        }
        found
    }

    /// Gathered is less than a batch for each shard, and so many batches wait for a lane; nothing of either after a fence.
    #[test]
    fn what_lanes_hold_is_bounded() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, tally) = (server(dir.path()), Mutex::new(Tally::default()));
        let part =
            files::Part { path: "file.aof".into(), kind: files::Kind::Aof, bytes: 0, may_be_cut: false, goes_on: true };
        let local = Local::new(&server);
        std::thread::scope(|scope| {
            let mut lanes = Lanes::begin(scope, 2, &server, &part, &tally);
            for n in 0..5000 {
                let value = vec![b'v'; if n % 50 == 0 { BATCH_BYTES / 3 } else { 10 }];
                let args: OwnedArgs = [&b"SET"[..], format!("k{}", n % 20).as_bytes(), &value].into_iter().collect();
                let lane = local.lane_of(args.as_args()).unwrap();
                lanes.add(lane, args.as_args(), n, 1).unwrap();
                let open = &lanes.open;
                assert!(open.iter().all(|of| of.calls.len() < BATCH_COMMANDS && of.args.bytes() < BATCH_BYTES));
            }
            assert!(lanes.lanes.iter().all(|lane| lane.to.capacity() == Some(WAITING)));
            lanes.fence().unwrap();
            assert!(lanes.open.iter().all(|of| of.calls.is_empty() && of.args.memory_bytes() == 0));
            assert!(lanes.lanes.iter().all(|lane| lane.to.is_empty() && !lane.is_busy));
        });
    }

    #[test]
    fn commands_of_a_key_run_in_their_order() {
        let [dir, other] = [(); 2].map(|()| crate::util::scratch::tempdir().unwrap());
        let [side_by_side, one_by_one] = [server(dir.path()), server(other.path())];
        let commands = commands(20_000);
        let mut text = String::new();
        let mut local = Local::new(&one_by_one);
        let (mut failed, mut clock_ms) = (0, 1);
        for command in &commands {
            text += &format!("*{}\r\n", command.len());
            command.iter().for_each(|arg| text += &format!("${}\r\n{arg}\r\n", arg.len()));
            let args: OwnedArgs = command.iter().map(|arg| arg.as_bytes()).collect();
            clock_ms = clock_ms.max(time_of_claim(args.as_args()));
            failed += u64::from(why_not(local.command(args.as_args(), clock_ms).unwrap().as_slice()).is_some());
        }
        let mut session = session(&side_by_side);
        let part =
            files::Part { path: "file.aof".into(), kind: files::Kind::Aof, bytes: 0, may_be_cut: false, goes_on: true };
        session.read_commands(&part, Input::new(text.as_bytes())).unwrap();
        assert_eq!(contents(&side_by_side), contents(&one_by_one));
        assert!(failed > 0, "some fail");
        assert_eq!(session.tally.notes.values().sum::<u64>(), failed);
        assert_eq!(session.tally.commands, commands.len() as u64);
        assert_eq!(side_by_side.engine.log.written(), side_by_side.engine.log.last(), "nothing is left to be written");
    }
}
