//! A user: who may authenticate as it, and what it may then do. Immutable once it is among the users: a change is another one
//! in its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use super::selector::Selector;
use crate::handler::Table;

/// SHA-256 of a password, as 64 hexadecimal digits.
pub type Hash = [u8; 64];

/// The hash of a password.
pub fn hash(password: &[u8]) -> Hash {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 64];
    for (to, byte) in hex.chunks_exact_mut(2).zip(Sha256::digest(password)) {
        to.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    hex
}

/// The user of connections that have not named one.
pub const DEFAULT: &[u8] = b"default";

/// A user.
#[derive(Clone)]
pub struct User {
    /// Tells it from one of the same name that was there before and was removed.
    pub id: u64,
    /// Its name.
    pub name: Arc<[u8]>,
    /// One may authenticate as it.
    pub enabled: bool,
    /// Any password is right.
    pub nopass: bool,
    /// `sanitize-payload`: kept and shown, as every payload is checked here.
    pub sanitize: bool,
    /// Passwords that are right.
    pub passwords: Vec<Hash>,
    /// A call is allowed if one of them allows it. The first is that of rules without parentheses.
    pub selectors: Vec<Selector>,
    /// Every call is.
    pub unrestricted: bool,
}

impl std::fmt::Debug for User {
    /// Without passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "User({})", String::from_utf8_lossy(&self.name))
    }
}

impl User {
    /// One who may do nothing, but perhaps with all channels.
    pub fn new(table: &Table, name: &[u8], all_channels: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        User {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            enabled: false,
            nopass: false,
            sanitize: true,
            passwords: Vec::new(),
            selectors: vec![Selector::new(table, all_channels)],
            unrestricted: false,
        }
    }

    /// The default user, as it is before anything is said of it.
    pub fn new_default(table: &Table) -> Self {
        let mut user = User::new(table, DEFAULT, true);
        (user.enabled, user.nopass) = (true, true);
        user.selectors[0].all_keys = true;
        user.selectors[0].set_all(true);
        user
    }

    /// Makes a password the only one, or with an empty one has any be right.
    pub fn set_password(&mut self, password: &[u8]) {
        self.nopass = password.is_empty();
        self.passwords.clear();
        if !password.is_empty() {
            self.passwords.push(hash(password));
        }
    }

    /// Whether one may authenticate with a password of this hash. Takes the same time wherever hashes differ.
    pub(super) fn admits(&self, hash: &Hash) -> bool {
        let is = |own: &Hash| own.iter().zip(hash).fold(0, |sum, (a, b)| sum | a ^ b) == 0;
        self.enabled && (self.nopass || self.passwords.iter().fold(false, |found, own| found | is(own)))
    }

    /// What ACL GETUSER calls its flags.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        let state = if self.enabled { "on" } else { "off" };
        let payloads = if self.sanitize { "sanitize-payload" } else { "skip-sanitize-payload" };
        [Some(state), self.nopass.then_some("nopass"), Some(payloads)].into_iter().flatten()
    }

    /// All of it, as the rules of ACL SETUSER that make it.
    pub fn describe(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = self.flags().map(Into::into).collect();
        words.extend(self.passwords.iter().map(|hash| [b"#", &hash[..]].concat()));
        words.push(self.selectors[0].describe());
        words.extend(self.selectors[1..].iter().map(|selector| [b"(", &selector.describe()[..], b")"].concat()));
        words.join(&b' ')
    }

    /// The same as a line of an ACL file.
    pub fn line(&self) -> Vec<u8> {
        [b"user ", &self.name[..], b" ", &self.describe()].concat()
    }

    /// Whether one of its selectors allows a channel, or a pattern of channels.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.selectors.iter().any(|selector| selector.allows_channel(channel, is_pattern))
    }
}
