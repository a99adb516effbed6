//! Doorkeepers: who comes by once does not get in.
//!
//! A cache that takes whatever is asked for is emptied of what is asked for often by whoever goes through everything once,
//! and pays for each of its passers: room, an entry, another that must leave for it.

/// Keys that the doorkeeper has seen at least when it forgets them all.
const DOOR_KEYS: usize = 4096;
/// What it has of bits for each.
const DOOR_BITS: usize = 8;

/// Remembers, about, which keys came by of late.
pub struct Doorkeeper {
    bits: Box<[u64]>,
    seen: usize,
}

/// Bytes of a full table for each key that its doorkeeper sees before it forgets: about as many keys as come by while a
/// fourth of the table leaves.
const BYTES_OF_A_PASSER: usize = 512;

impl Doorkeeper {
    /// For a table that may hold so much.
    pub fn of_table(limit_bytes: usize) -> Self {
        Doorkeeper::new(limit_bytes / BYTES_OF_A_PASSER)
    }

    /// That forgets all once it has seen so many.
    pub fn new(keys: usize) -> Self {
        let keys = keys.max(DOOR_KEYS).next_power_of_two();
        Doorkeeper { bits: vec![0; keys * DOOR_BITS / 64].into(), seen: 0 }
    }

    /// Whether a key of this hash has come by before; it has from now on.
    pub fn knows(&mut self, hash: u32) -> bool {
        // Two bits of a word: of four strangers that would be taken for others by one of them, one is by both.
        let random = crate::util::splitmix::next(&mut u64::from(hash));
        let at = random as usize % self.bits.len();
        let both = 1 << (random >> 52 & 63) | 1 << (random >> 58);
        let known = self.bits[at] & both == both;
        self.bits[at] |= both;
        self.seen += usize::from(!known);
        if self.seen * DOOR_BITS == self.bits.len() * 64 {
            self.bits.fill(0);
            self.seen = 0;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who comes by a second time is known, unless so many others came between that all are forgotten; few are taken for
    /// others.
    #[test]
    fn who_came_by_is_known_for_a_while() {
        let mut door = Doorkeeper::new(0);
        let known = (0..4000).filter(|&hash| door.knows(hash)).count();
        assert!(known < 120, "{known} of 4000 strangers taken for others");
        let mut door = Doorkeeper::new(0);
        (0..1000).for_each(|hash| _ = door.knows(hash));
        assert!((0..1000).all(|hash| door.knows(hash)));
        // Also after it has forgotten all before.
        for _ in 0..3 {
            (1000..1000 + 2 * DOOR_KEYS as u32).for_each(|hash| _ = door.knows(hash));
            let known = (0..1000).filter(|&hash| door.knows(hash)).count();
            assert!(known < 800, "{known} of 1000 are known for ever");
        }
    }
}
