//! A selector: one set of rules by which a call may be allowed, with what these rules come to.
//!
//! Commands are a bit each, by their [`Slot`]. What ACL LIST shows of them are the rules as they were given, as Redis shows
//! them: a rule takes the place of an earlier one for the same command or category, and of those for its subcommands.

use std::collections::BTreeMap;

use super::category::categories_of;
use crate::handler::Command;
use crate::handler::table::{Slot, Table};
use crate::util::glob;

/// What may be done with keys; bits of a pattern's `access`.
pub mod access {
    /// Their values may be read.
    pub const READ: u8 = 1;
    /// They may be changed, made and removed.
    pub const WRITE: u8 = 2;
    /// Both.
    pub const ALL: u8 = READ | WRITE;
}

/// Keys, and what may be done with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyPattern {
    pub(super) access: u8,
    pub(super) pattern: Box<[u8]>,
}

/// One set of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// Allowed commands, a bit for each slot.
    commands: Box<[u64]>,
    /// Whether commands that there are not yet would be.
    others: bool,
    /// First arguments with which a command is allowed that is not.
    first_args: BTreeMap<Slot, Vec<Box<[u8]>>>,
    /// Rules since all commands were allowed or forbidden: whether they allow, and what.
    rules: Vec<(bool, Box<[u8]>)>,
    pub(super) all_keys: bool,
    pub(super) keys: Vec<KeyPattern>,
    pub(super) all_channels: bool,
    pub(super) channels: Vec<Box<[u8]>>,
}

impl Selector {
    /// Nothing is allowed, but perhaps all channels.
    pub(super) fn new(table: &Table, all_channels: bool) -> Self {
        Selector {
            commands: vec![0; table.slots().div_ceil(64)].into(),
            others: false,
            first_args: BTreeMap::new(),
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
        }
    }

    /// Whether a command is among those allowed, whatever its arguments.
    #[inline]
    fn has(&self, slot: Slot) -> bool {
        self.commands.get(slot as usize / 64).is_some_and(|bits| bits >> (slot % 64) & 1 == 1)
    }

    /// Allows all commands, or none.
    pub(super) fn set_all(&mut self, allow: bool) {
        self.commands.fill(if allow { u64::MAX } else { 0 });
        self.others = allow;
        self.first_args.clear();
        self.rules.clear();
    }

    /// Allows or forbids a command with its subcommands, or one subcommand.
    pub(super) fn set_command(&mut self, table: &Table, row: &Command, allow: bool) {
        self.set_bits(table, row, allow);
        let slot = table.slot_of(row);
        self.add_rule(table.slot_name(slot).unwrap_or_default().into_bytes(), allow);
    }

    fn set_bits(&mut self, table: &Table, row: &Command, allow: bool) {
        self.first_args.remove(&table.slot_of(row));
        for row in std::iter::once(row).chain(row.subcommands) {
            let slot = table.slot_of(row);
            let Some(bits) = self.commands.get_mut(slot as usize / 64) else { continue };
            *bits = *bits & !(1 << (slot % 64)) | u64::from(allow) << (slot % 64);
        }
    }

    /// Allows or forbids all commands of a category.
    pub(super) fn set_category(&mut self, table: &Table, category: usize, allow: bool) {
        for row in table.rows().iter().flat_map(|row| std::iter::once(*row).chain(row.subcommands)) {
            if categories_of(row).any(|of| of == category) {
                self.set_bits(table, row, allow);
            }
        }
        let name = super::category::CATEGORIES[category];
        self.add_rule(format!("@{name}").into_bytes(), allow);
    }

    /// Allows a command with this first argument; `rule` is both.
    pub(super) fn allow_first_arg(&mut self, slot: Slot, arg: &[u8], rule: &[u8]) {
        let args = self.first_args.entry(slot).or_default();
        if !args.iter().any(|known| known.eq_ignore_ascii_case(arg)) {
            args.push(arg.into());
        }
        self.add_rule(rule.to_ascii_lowercase(), true);
    }

    fn add_rule(&mut self, rule: Vec<u8>, allow: bool) {
        self.rules.retain(|(_, old)| {
            let of_same = old.strip_prefix(&rule[..]).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"|"));
            !of_same
        });
        self.rules.push((allow, rule.into()));
    }

    /// What adding one more rule has to go through.
    pub(super) fn len(&self) -> usize {
        self.rules.len() + self.keys.len() + self.channels.len()
    }

    /// Whether it allows every call there can be.
    pub(super) fn allows_all(&self, table: &Table) -> bool {
        self.all_keys && self.all_channels && (0..table.slots()).all(|slot| self.has(slot as Slot))
    }

    /// Whether a command is allowed with its first argument.
    pub fn allows_command(&self, slot: Slot, first_arg: Option<&[u8]>) -> bool {
        let with = |arg: &[u8]| {
            let args = self.first_args.get(&slot);
            args.is_some_and(|args| args.iter().any(|known| known.eq_ignore_ascii_case(arg)))
        };
        self.has(slot) || first_arg.is_some_and(with)
    }

    /// Whether all of this may be done with a key.
    pub(super) fn allows_key(&self, key: &[u8], access: u8) -> bool {
        let allows = |at: &KeyPattern| at.access & access == access && glob::matches(&at.pattern, key);
        self.all_keys || self.keys.iter().any(allows)
    }

    /// Whether all of this may be done with every key.
    pub(super) fn allows_every_key(&self, access: u8) -> bool {
        self.all_keys || self.keys.iter().any(|at| at.access & access == access && &*at.pattern == b"*")
    }

    /// Whether a channel may be heard and published to, or a pattern of channels be heard: which must be one of its own.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let allows = |own: &[u8]| if is_pattern { own == channel } else { glob::matches(own, channel) };
        self.all_channels || self.channels.iter().any(|own| allows(own))
    }

    /// `+@all -get`
    pub fn describe_commands(&self) -> Vec<u8> {
        let mut text = if self.others { b"+@all".to_vec() } else { b"-@all".to_vec() };
        for (allow, rule) in &self.rules {
            text.extend_from_slice(if *allow { b" +" } else { b" -" });
            text.extend_from_slice(rule);
        }
        text
    }

    /// `~a %R~b`
    pub fn describe_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let prefix = |access| match access {
            access::READ => &b"%R~"[..],
            access::WRITE => b"%W~",
            _ => b"~",
        };
        let patterns = self.keys.iter().map(|at| [prefix(at.access), &at.pattern].concat());
        patterns.collect::<Vec<_>>().join(&b' ')
    }

    /// `&a &b`
    pub fn describe_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|channel| [b"&", &channel[..]].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// All of it, as a rule of ACL SETUSER.
    pub(super) fn describe(&self) -> Vec<u8> {
        let channels = self.describe_channels();
        let reset = if self.all_channels { &b""[..] } else { b"resetchannels" };
        let parts = [self.describe_keys(), reset.to_vec(), channels, self.describe_commands()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b' ')
    }
}
