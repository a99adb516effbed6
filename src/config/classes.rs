//! Classes of keyspace events: `notify-keyspace-events`.
//!
//! | letters | what |
//! |---|---|
//! | `K`, `E` | where events are published: `__keyspace@db__:key`, `__keyevent@db__:event` |
//! | `g $ l s h z t` | commands of any type, strings, lists, sets, hashes, sorted sets, streams |
//! | `x e d` | expired, evicted, of modules (these never happen) |
//! | `m n o c` | looked up in vain, new, overwritten, of another type than before |
//! | `A` | `g$lshzxetd` |

use super::value::Reason;

/// A set of classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classes(u32);

/// The letters, in the order in which Redis shows them. A letter's place is its bit.
const LETTERS: &[u8] = b"g$lshzxetdnocKEm";
const ALL: &[u8] = b"g$lshzxetd";

#[expect(missing_docs, reason = "the table above has them")]
impl Classes {
    pub const GENERIC: Classes = Classes::of(b'g');
    pub const STRING: Classes = Classes::of(b'$');
    pub const LIST: Classes = Classes::of(b'l');
    pub const SET: Classes = Classes::of(b's');
    pub const HASH: Classes = Classes::of(b'h');
    pub const SORTED_SET: Classes = Classes::of(b'z');
    pub const STREAM: Classes = Classes::of(b't');
    pub const EXPIRED: Classes = Classes::of(b'x');
    pub const EVICTED: Classes = Classes::of(b'e');
    pub const MISS: Classes = Classes::of(b'm');
    pub const NEW: Classes = Classes::of(b'n');
    pub const OVERWRITTEN: Classes = Classes::of(b'o');
    pub const TYPE_CHANGED: Classes = Classes::of(b'c');
    pub const KEYSPACE: Classes = Classes::of(b'K');
    pub const KEYEVENT: Classes = Classes::of(b'E');
    /// What can be told of a key only by who knows what there was before.
    pub const OF_BEFORE: Classes = Classes(Self::NEW.0 | Self::OVERWRITTEN.0 | Self::TYPE_CHANGED.0 | Self::EXPIRED.0);
}

impl Classes {
    const fn of(letter: u8) -> Classes {
        let mut at = 0;
        while LETTERS[at] != letter {
            at += 1;
        }
        Classes(1 << at)
    }

    /// As a number, which [`Classes::from_bits`] takes back.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// See [`Classes::bits`].
    pub const fn from_bits(bits: u32) -> Classes {
        Classes(bits & ((1 << LETTERS.len()) - 1))
    }

    /// Whether any of these is among them.
    #[inline]
    pub const fn has(self, any: Classes) -> bool {
        self.0 & any.0 != 0
    }

    /// Whether anything is published at all: a place to publish it is needed.
    pub const fn tell_something(self) -> bool {
        self.has(Classes(Self::KEYSPACE.0 | Self::KEYEVENT.0))
    }

    /// Reads letters.
    ///
    /// # Errors
    /// In Redis's words.
    pub fn parse(letters: &[u8]) -> Result<Classes, Reason> {
        let bit = |letter: &u8| LETTERS.iter().position(|known| known == letter).map(|at| 1 << at);
        let all = || ALL.iter().filter_map(bit).sum();
        letters
            .iter()
            .map(|letter| if *letter == b'A' { Some(all()) } else { bit(letter) })
            .try_fold(0, |bits, more| Some(bits | more?))
            .map(Classes)
            // Redis's text lacks two of the letters that it takes.
            .ok_or_else(|| "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".into())
    }

    /// As `CONFIG GET` shows them: `n`, `o` and `c` only where not all others are there, as Redis does; with `whole` always.
    pub fn show(self, whole: bool) -> Vec<u8> {
        let has = |letter: &u8| self.has(Classes::of(*letter));
        let all = ALL.iter().all(has);
        let shows = |letter: &&u8| match letter {
            letter if ALL.contains(letter) => !all,
            b'n' | b'o' | b'c' => whole || !all,
            _ => true,
        };
        let begin = if all { &b"A"[..] } else { b"" };
        begin.iter().chain(LETTERS.iter().filter(shows).filter(|letter| has(letter))).copied().collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn classes_read_back_as_redis_shows_them() {
        for (letters, shown, whole) in [
            ("", "", ""),
            ("EAnmoc", "AEm", "AnocEm"),
            ("Eon", "noE", "noE"),
            ("Kgoc", "gocK", "gocK"),
            ("Alon", "A", "Ano"),
            ("Egm", "gEm", "gEm"),
            ("g$lshzxetdKE", "AKE", "AKE"),
        ] {
            let classes = Classes::parse(letters.as_bytes()).unwrap();
            assert_eq!((classes.show(false), classes.show(true)), (shown.into(), whole.into()), "{letters}");
            assert_eq!(Classes::parse(&classes.show(true)).unwrap(), classes);
            assert_eq!(Classes::from_bits(classes.bits()), classes);
        }
        assert!(Classes::parse(b"Eq").is_err());
        assert!(!Classes::parse(b"Ag").unwrap().tell_something());
    }
}
