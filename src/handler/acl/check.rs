//! Whether a user may make a call: its command, its keys, its channels.
//!
//! A selector allows a call as a whole or not at all. Of those that do not, the one that came furthest tells why: command before
//! keys before channels, and of several keys the last.

use super::selector::{Selector, access};
use super::user::User;
use crate::error::{Error, Result};
use crate::handler::keys::access_of;
use crate::handler::row::key;
use crate::handler::table::Slot;
use crate::handler::{Args, Command, KeysAt, Table, flags};
use crate::meter;

/// Why a call is not allowed. In the order in which selectors look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// Its command.
    Command,
    /// The key at this argument.
    Key(usize),
    /// The channel at this argument.
    Channel(usize),
}

/// A call that is looked at.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Its row, that of the subcommand if it has one.
    pub row: &'static Command,
    /// The row's slot.
    pub slot: Slot,
    /// Its arguments, the name included.
    pub args: Args<'a>,
}

impl<'a> Asked<'a> {
    /// A call of a row of the table.
    pub fn new(table: &Table, row: &'static Command, args: Args<'a>) -> Self {
        Asked { row, slot: table.slot_of(row), args }
    }

    /// A container called with a word that it does not know answers that, whoever calls.
    fn is_unknown(&self) -> bool {
        !self.row.subcommands.is_empty() && self.args.len() > 1
    }

    /// Whether the user may make it.
    ///
    /// # Errors
    /// Those of the meter. The inner ones are why it may not.
    pub fn of(&self, user: &User) -> Result<Result<(), Denied>> {
        if user.unrestricted || self.is_unknown() {
            return Ok(Ok(()));
        }
        let mut keys = None;
        let mut worst = Denied::Command;
        for selector in &user.selectors {
            match self.by(selector, &mut keys)? {
                Ok(()) => return Ok(Ok(())),
                Err(denied) => worst = worst.max(denied),
            }
        }
        Ok(Err(worst))
    }

    /// Whether one of the user's selectors allows it, and to read every key besides.
    pub fn with_every_key(&self, user: &User) -> Result<bool> {
        let mut keys = None;
        for selector in user.selectors.iter().filter(|selector| selector.allows_every_key(access::READ)) {
            if self.by(selector, &mut keys)?.is_ok() {
                return Ok(true);
            }
        }
        Ok(user.unrestricted)
    }

    fn by(&self, selector: &Selector, keys: &mut Option<KeysAt>) -> Result<Result<(), Denied>> {
        let is_free = self.row.has(flags::NO_AUTH);
        if !is_free && !selector.allows_command(self.slot, self.args.get(1)) {
            return Ok(Err(Denied::Command));
        }
        if !selector.all_keys && !self.row.keys.is_empty() {
            for &(at, flags) in keys.get_or_insert_with(|| access_of(self.row, self.args)).iter() {
                meter::step(1 + selector.keys.len())?;
                if flags & key::NOT_KEY == 0 && !selector.allows_key(&self.args[at], needed(flags)) {
                    return Ok(Err(Denied::Key(at)));
                }
            }
        }
        if !selector.all_channels
            && let Some(channels) = self.row.channels
        {
            let last = if channels.many { self.args.len() } else { 2 };
            for at in 1..last.min(self.args.len()) {
                meter::step(1 + selector.channels.len())?;
                if !selector.allows_channel(&self.args[at], channels.are_patterns) {
                    return Ok(Err(Denied::Channel(at)));
                }
            }
        }
        Ok(Ok(()))
    }
}

/// What must be allowed for what a key spec says is done with a key.
fn needed(flags: u16) -> u8 {
    let read = flags & key::ACCESS != 0;
    let written = flags & (key::INSERT | key::DELETE | key::UPDATE) != 0;
    u8::from(read) * access::READ + u8::from(written) * access::WRITE
}

impl Denied {
    /// What a client is told, without a code word. ACL DRYRUN names what may not be touched.
    pub fn text(self, user: &User, table: &Table, asked: &Asked<'_>, named: bool) -> Vec<u8> {
        let object = self.object(table, asked);
        let (before, after): (&[u8], &[u8]) = match self {
            Denied::Command => (b" has no permissions to run the '", b"' command"),
            Denied::Key(_) if named => (b" has no permissions to access the '", b"' key"),
            Denied::Channel(_) if named => (b" has no permissions to access the '", b"' channel"),
            Denied::Key(_) => return b"No permissions to access a key".to_vec(),
            Denied::Channel(_) => return b"No permissions to access a channel".to_vec(),
        };
        [b"User ", &user.name[..], before, &object, after].concat()
    }

    /// What a client is told of a call that is not allowed.
    pub fn error(self, user: &User, table: &Table, asked: &Asked<'_>) -> Error {
        Error::Quoted([b"NOPERM ", &self.text(user, table, asked, false)[..]].concat().into())
    }

    /// What EXEC tells of a call that was allowed when it was queued.
    pub fn error_of_queued(self) -> Error {
        let reason = match self {
            Denied::Command => "no permission to execute the command or subcommand",
            Denied::Key(_) => "no permission to touch the specified keys",
            Denied::Channel(_) => "no permission to access one of the channels used as arguments",
        };
        let text = "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This \
                    command is no longer allowed for the following reason: ";
        Error::Text(format!("{text}{reason}").into())
    }

    /// What it is about: the command's full name, a key, a channel.
    pub fn object(self, table: &Table, asked: &Asked<'_>) -> Vec<u8> {
        match self {
            Denied::Command => table.slot_name(asked.slot).unwrap_or_default().into_bytes(),
            Denied::Key(at) | Denied::Channel(at) => asked.args.get(at).unwrap_or_default().to_vec(),
        }
    }
}
