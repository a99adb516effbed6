//! ACL LOG: what was not allowed, newest first. What is alike within a minute is one entry that counts.

use std::collections::VecDeque;
use std::sync::Arc;

/// Why something was not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of ACL LOG")]
pub enum Reason {
    Auth,
    Command,
    Key,
    Channel,
}

impl Reason {
    /// Redis's word.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
        }
    }
}

/// Where a call was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of ACL LOG")]
pub enum Context {
    Toplevel,
    Multi,
    Lua,
}

impl Context {
    /// Redis's word.
    pub fn word(self) -> &'static str {
        match self {
            Context::Toplevel => "toplevel",
            Context::Multi => "multi",
            Context::Lua => "lua",
        }
    }
}

/// Something that was not allowed.
#[derive(Debug, Clone)]
pub struct Denial {
    /// Why.
    pub reason: Reason,
    /// Where.
    pub context: Context,
    /// The command, key or channel; of a wrong password, the command that brought it.
    pub object: Box<[u8]>,
    /// Who.
    pub user: Arc<[u8]>,
    /// The connection, as CLIENT LIST shows it.
    pub client: Box<[u8]>,
}

/// Denials that are alike.
#[derive(Debug)]
pub struct Entry {
    /// The last one.
    pub denial: Denial,
    /// How many.
    pub count: u64,
    /// Number of the entry.
    pub id: u64,
    /// Time of the first, Unix ms.
    pub created_ms: u64,
    /// Time of the last.
    pub updated_ms: u64,
}

/// The log.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

/// Entries among which alike ones are looked for, and how long they are put together.
const NEWEST: usize = 10;
const ALIKE_MS: u64 = 60_000;
/// Bytes of a key, a name, or a connection's line that are kept.
const MOST_BYTES: usize = 1024;

impl Log {
    /// Adds one; no more than so many entries stay.
    pub fn add(&mut self, mut denial: Denial, now_ms: u64, most: usize) {
        if denial.object.len() > MOST_BYTES {
            denial.object = denial.object[..MOST_BYTES].into();
        }
        if denial.user.len() > MOST_BYTES {
            denial.user = denial.user[..MOST_BYTES].into();
        }
        if denial.client.len() > MOST_BYTES {
            denial.client = denial.client[..MOST_BYTES].into();
        }
        let is_alike = |entry: &Entry| {
            let old = &entry.denial;
            (old.reason, old.context) == (denial.reason, denial.context)
                && (&old.object, &old.user) == (&denial.object, &denial.user)
                && now_ms.saturating_sub(entry.updated_ms) <= ALIKE_MS
        };
        let entry = match self.entries.iter().take(NEWEST).position(is_alike).and_then(|at| self.entries.remove(at)) {
            Some(old) => Entry { denial, count: old.count + 1, updated_ms: now_ms, ..old },
            None => {
                let id = self.next_id;
                self.next_id += 1;
                Entry { denial, count: 1, id, created_ms: now_ms, updated_ms: now_ms }
            }
        };
        self.entries.push_front(entry);
        self.entries.truncate(most);
    }

    /// The newest of them.
    pub fn newest(&self, most: usize) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter().take(most)
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.entries = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(object: &[u8]) -> Denial {
        let (reason, context) = (Reason::Key, Context::Toplevel);
        Denial { reason, context, object: object.into(), user: (*b"u").into(), client: Box::default() }
    }

    #[test]
    fn what_is_alike_within_a_minute_counts_as_one() {
        let mut log = Log::default();
        log.add(denial(b"a"), 0, 128);
        log.add(denial(b"b"), 1, 128);
        log.add(denial(b"a"), ALIKE_MS, 128);
        let seen: Vec<_> = log.newest(9).map(|entry| (&entry.denial.object[..], entry.count, entry.id)).collect();
        assert_eq!(seen, [(&b"a"[..], 2, 0), (b"b", 1, 1)]);
        // The minute is that behind the last of them.
        log.add(denial(b"a"), 2 * ALIKE_MS, 128);
        log.add(denial(b"a"), 3 * ALIKE_MS + 1, 128);
        assert_eq!(log.newest(9).map(|entry| entry.count).collect::<Vec<_>>(), [1, 3, 1]);
    }

    #[test]
    fn what_differs_in_anything_but_its_client_is_not_alike() {
        let first = denial(b"a");
        let others = [
            Denial { user: (*b"v").into(), ..first.clone() },
            Denial { object: (*b"b").into(), ..first.clone() },
            Denial { reason: Reason::Channel, ..first.clone() },
            Denial { context: Context::Lua, ..first.clone() },
        ];
        let mut log = Log::default();
        log.add(first.clone(), 0, 128);
        others.into_iter().for_each(|other| log.add(other, 0, 128));
        assert_eq!(log.newest(9).map(|entry| entry.count).collect::<Vec<_>>(), [1; 5]);
        log.add(Denial { client: (*b"c").into(), ..first }, 0, 128);
        let seen: Vec<_> = log.newest(9).map(|entry| (&entry.denial.user[..], entry.count)).collect();
        assert_eq!(seen, [(&b"u"[..], 2), (b"u", 1), (b"u", 1), (b"u", 1), (b"v", 1)]);
    }

    #[test]
    fn it_is_bounded() {
        let mut log = Log::default();
        let long = |n: u64| Denial { client: [b'c'; 4096].into(), ..denial(&[n as u8; 4096]) };
        (0..100).for_each(|n| log.add(long(n), n, 3));
        assert_eq!(log.newest(9).len(), 3);
        let kept = |entry: &Entry| [entry.denial.object.len(), entry.denial.client.len()];
        assert!(log.newest(9).all(|entry| kept(entry) == [MOST_BYTES; 2]));
        log.add(denial(b"x"), 0, 0);
        assert_eq!(log.newest(9).len(), 0);
    }
}
