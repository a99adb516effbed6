//! Strings of many chunks.

use super::*;
use crate::codec::key::{tag, tag_range};
use crate::store::Partition;

/// Bytes of a chunk.
const CHUNK: usize = 16 << 10;

impl World {
    /// A string of so many bytes by chance, with a hole of four chunks in its middle where `sparse`.
    fn add_string(&mut self, rng: &mut Rng, key: &str, len: usize, sparse: bool) {
        self.call(&format!("DEL {key}"));
        for from in (0..len).step_by(CHUNK / 2) {
            let hole = sparse && (len / 2..len / 2 + 4 * CHUNK).contains(&from);
            if !hole {
                let part: String =
                    (0..(CHUNK / 2).min(len - from)).map(|_| (b'!' + rng.below(90) as u8) as char).collect();
                self.call(&format!("SETRANGE {key} {from} {part}"));
            }
        }
    }
}

#[test]
fn a_string_in_slices_is_read_as_at_once() {
    let (mut world, mut rng) = (World::new(), Rng(3));
    let len = 11 * CHUNK + 77;
    world.add_string(&mut rng, "whole", len, false);
    world.add_string(&mut rng, "sparse", len, true);
    world.call("SET short value");
    let end = len as i64 - CHUNK as i64;
    for (line, rests) in [
        ("GET whole".to_owned(), true),
        ("GET sparse".to_owned(), true),
        (format!("GETRANGE whole 5 {end}"), true),
        (format!("SUBSTR sparse 77 {end}"), true),
        ("GETRANGE whole 0 20000".to_owned(), false),
        ("BITCOUNT whole".to_owned(), true),
        ("BITCOUNT sparse 3 -3".to_owned(), true),
        ("BITCOUNT short".to_owned(), false),
        ("BITPOS whole 1 100000 -1 BIT".to_owned(), false),
        ("BITPOS sparse 0".to_owned(), false),
        ("DUMP whole".to_owned(), true),
        ("LCS short whole".to_owned(), true),
        ("LCS sparse short LEN".to_owned(), true),
    ] {
        assert_eq!(world.check(&line) > 0, rests, "{line}");
    }
    // What there is not is looked for to the end.
    world.call(&format!("SETBIT zeros {} 0", len * 8));
    for from in (0..len).step_by(2 * CHUNK) {
        // A chunk that is there, and holds nothing.
        world.call(&format!("SETBIT zeros {} 1", from * 8));
        world.call(&format!("SETBIT zeros {} 0", from * 8));
    }
    assert!(world.check("BITPOS zeros 1") > 0);
}

#[test]
fn strings_in_slices_are_combined_as_at_once() {
    let (mut world, mut rng) = (World::new(), Rng(4));
    world.add_string(&mut rng, "whole", 11 * CHUNK + 77, false);
    world.add_string(&mut rng, "sparse", 13 * CHUNK, true);
    world.add_string(&mut rng, "ten", 10 * CHUNK, false);
    world.call("SET short value");
    world.call("SETRANGE zeros 150000 x");
    world.call(&format!("SETBIT zeros {} 0", 150_000 * 8));
    for held in ["", "SET dest before PX 1000000", "SADD dest m", "COPY whole dest REPLACE", "PEXPIRE dest 1000000"] {
        if !held.is_empty() {
            world.call("DEL dest");
            world.call("SET dest x");
            world.call(held);
        }
        for (line, rests) in [
            ("BITOP AND dest whole sparse", true),
            ("BITOP OR dest whole sparse ten short", true),
            ("BITOP XOR dest whole whole", true),
            ("BITOP NOT dest sparse", true),
            ("BITOP NOT dest zeros", true),
            ("BITOP DIFF dest whole sparse ten", true),
            ("BITOP ONE dest none whole short", true),
            ("BITOP AND dest short none", false),
            ("BITOP OR dest short", false),
            ("BITOP OR dest none", false),
            ("BITOP NOT dest set", false),
        ] {
            assert_eq!(world.check(line) > 0, rests, "{line}");
        }
    }
    // The result takes the place of a source.
    world.call("COPY whole dsource");
    assert!(world.check("BITOP NOT dsource dsource") > 0);
    assert!(world.check("BITOP XOR dsource dsource sparse") > 0);
}

/// Others have the shard meanwhile, and may read the string.
#[test]
fn who_goes_through_a_string_holds_its_key_only() {
    let (mut world, mut rng) = (World::new(), Rng(5));
    world.add_string(&mut rng, "whole", 12 * CHUNK, false);
    let expected = world.call("BITCOUNT whole");
    let seen = Rc::new(RefCell::new(0));
    let counter = seen.clone();
    let between: Between = Rc::new(RefCell::new(move |peer: &mut Peer| {
        *counter.borrow_mut() += 1;
        assert_eq!(peer.call("STRLEN whole"), format!(":{} ", 12 * CHUNK));
        assert_eq!(peer.call("SET other x"), "+OK ");
    }));
    assert_eq!(world.run("BITCOUNT whole", Some(between.clone())), expected);
    assert_eq!(*seen.borrow(), 5, "after each two of twelve chunks");
    assert_eq!(world.run("BITOP NOT dest whole", Some(between)), format!(":{} ", 12 * CHUNK));
}

/// What is made of a slice goes to fjall while others have the shard: when the rest begins it is not there yet.
#[test]
fn what_is_combined_is_brought_to_the_disk_without_the_shard() {
    let (mut world, mut rng) = (World::new(), Rng(6));
    world.add_string(&mut rng, "whole", 12 * CHUNK, false);
    let server = world.runner.server.clone();
    let stored = move || {
        let range = tag_range(tag::ELEMENT);
        let of = |partition: &Arc<Partition>| partition.range(&range.lower, &range.upper).unwrap().count();
        server.engine.store.partitions().iter().map(of).sum::<usize>()
    };
    let (before, seen) = (stored(), Rc::new(RefCell::new(Vec::new())));
    let noted = seen.clone();
    let between: Between = Rc::new(RefCell::new(move |_: &mut Peer| noted.borrow_mut().push(stored() - before)));
    world.run("BITOP NOT dest whole", Some(between));
    assert_eq!(seen.borrow()[..5], [0, 2, 4, 6, 8], "two of twelve chunks a slice");
}
