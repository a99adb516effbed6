//! ACL categories: sets of commands, told from their rows.

use crate::handler::row::{Command, Group, flags};

/// All of them, in the order in which Redis lists them, without `@`.
pub const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Which of [`CATEGORIES`] this is, in any case.
pub fn category(name: &[u8]) -> Option<usize> {
    CATEGORIES.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(name))
}

/// The categories of a row, by their places in [`CATEGORIES`].
pub fn categories_of(row: &Command) -> impl Iterator<Item = usize> {
    let has = |bits: u32| row.has(bits);
    // A container only leads to its subcommands. COMMAND itself is a command, too.
    let group = row.subcommands.is_empty().then_some(row.group);
    let in_group = |of: Group| group == Some(of);
    let administrative = has(flags::ADMIN) || has(flags::ADMINISTRATION);
    let scripting = row.group == Group::Scripting;
    let is: [bool; CATEGORIES.len()] = [
        has(flags::KEYSPACE),
        has(flags::READONLY) && !scripting,
        has(flags::WRITE),
        in_group(Group::Set) || has(flags::SORTS),
        in_group(Group::SortedSet) || has(flags::SORTS),
        in_group(Group::List) || has(flags::SORTS),
        in_group(Group::Hash),
        in_group(Group::String),
        in_group(Group::Bitmap),
        in_group(Group::HyperLogLog),
        in_group(Group::Geo),
        in_group(Group::Stream),
        has(flags::PUBSUB),
        administrative,
        has(flags::FAST),
        !has(flags::FAST),
        has(flags::BLOCKING),
        administrative || has(flags::DANGEROUS),
        in_group(Group::Connection) || has(flags::CONNECTION),
        in_group(Group::Transactions),
        in_group(Group::Scripting),
    ];
    (0..is.len()).filter(move |at| is[*at])
}
