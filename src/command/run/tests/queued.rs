//! What a long EXEC lacks is read before it runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;

use super::guests::{AtLook, at_looks};
use super::*;
use crate::shard::actor::Job;

/// More than a network thread begins, and than is looked at and read at a time.
const MANY: usize = 1200;

impl World {
    /// [`MANY`] keys on disk: more than is kept of what was read for a command.
    fn many_on_disk(&mut self) {
        let value = "v".repeat(3000);
        for n in 0..MANY {
            let line = if n % 2 == 0 { format!("SET k{n} {value}") } else { format!("HSET k{n} f v") };
            assert!(!self.call(&line).starts_with('-'));
        }
        self.rest();
    }

    /// Queues a look at each of them.
    fn queue(&mut self) {
        assert_eq!(self.call("MULTI"), "+OK ");
        for n in 0..MANY {
            let line = if n % 2 == 0 { format!("APPEND k{n} x") } else { format!("HEXISTS k{n} f") };
            assert_eq!(self.call(&line), "+QUEUED ");
        }
    }

    /// How long commands of the first shard's thread had waited, each time one of them looked for guests.
    fn waits_at_looks(&self) -> mpsc::Receiver<u64> {
        let (told, waits) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let job: Job = Box::new(move |lease| {
            let look: AtLook = Rc::new(RefCell::new(move || _ = told.send(latency::waited_here())));
            at_looks(&look);
            _ = done.send(());
            lease
        });
        self.engine().post_blocking([0][..].into(), job);
        is_done.recv().unwrap();
        waits
    }
}

#[test]
fn a_long_exec_holds_its_shards_for_no_disk() {
    let mut world = World::new();
    world.many_on_disk();
    world.queue();
    let waits = world.waits_at_looks();
    let reply = world.call("EXEC");
    assert!(reply.starts_with(&format!("*{MANY} :3001 :1 :3001 :1 ")), "{reply:.100}");
    let waits: Vec<u64> = waits.try_iter().collect();
    assert_eq!(waits.len(), MANY, "it is run once");
    assert_eq!(waits[0], waits[MANY - 1], "what it waits for while it runs");
}

/// While it is read others have the shards.
#[test]
fn what_a_long_exec_lacks_is_read_while_others_have_its_shards() {
    let mut world = World::new();
    world.many_on_disk();
    world.queue();
    let server = world.runner.server.clone();
    let go = world.hold_up_readers();
    let exec = world.begin(&words("EXEC")).unwrap_err();
    world.await_readers_work();
    let mut other = Peer::new(&server);
    assert_eq!(other.call("SET k0 changed"), "+OK ");
    drop(go);
    let reply = world.end(Err(exec));
    assert!(reply.starts_with(&format!("*{MANY} :8 :1 :3001 ")), "{reply:.100}");
}

/// What it has not written, and has in memory, is not read.
#[test]
fn a_long_exec_of_what_is_in_memory_reads_nothing() {
    let mut world = World::new();
    world.queue();
    let go = world.hold_up_readers();
    let reply = world.call("EXEC");
    drop(go);
    assert!(reply.starts_with(&format!("*{MANY} :1 :0 :1 :0 ")), "{reply:.100}");
}
