//! The command table and the way of a command through it.
//!
//! | file | owns |
//! |---|---|
//! | this one | all rows, look-up by name |
//! | [`keys`] | keys among the arguments, their shards |
//! | [`run`] | checks before a command, its run under a lease, its commit |

pub mod keys;
pub mod run;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::handler::Command;

/// Every family's rows.
const FAMILIES: &[&[Command]] = &[
    crate::types::bitmap::bits::COMMANDS,
    crate::types::bitmap::count::COMMANDS,
    crate::types::bitmap::field::COMMANDS,
    crate::types::bitmap::op::COMMANDS,
    crate::types::dump::command::COMMANDS,
    crate::types::geo::command::COMMANDS,
    crate::types::geo::find::COMMANDS,
    crate::types::hash::basic::COMMANDS,
    crate::types::hash::expiry::COMMANDS,
    crate::types::hash::getset::COMMANDS,
    crate::types::hash::number::COMMANDS,
    crate::types::hash::pick::COMMANDS,
    crate::types::hyperloglog::command::COMMANDS,
    crate::types::hyperloglog::debug::COMMANDS,
    crate::types::list::edit::COMMANDS,
    crate::types::list::ends::COMMANDS,
    crate::types::list::read::COMMANDS,
    crate::types::set::algebra::COMMANDS,
    crate::types::set::member::COMMANDS,
    crate::types::set::pick::COMMANDS,
    crate::types::sort::COMMANDS,
    crate::types::stream::add::COMMANDS,
    crate::types::stream::claim::COMMANDS,
    crate::types::stream::info::COMMANDS,
    crate::types::stream::pending::COMMANDS,
    crate::types::stream::range::COMMANDS,
    crate::types::stream::read::COMMANDS,
    crate::types::stream::remove::COMMANDS,
    crate::types::stream::xgroup::COMMANDS,
    crate::types::string::condition::COMMANDS,
    crate::types::string::edit::COMMANDS,
    crate::types::string::get::COMMANDS,
    crate::types::string::lcs::COMMANDS,
    crate::types::string::many::COMMANDS,
    crate::types::string::number::COMMANDS,
    crate::types::string::set::COMMANDS,
    crate::types::zset::add::COMMANDS,
    crate::types::zset::combine::COMMANDS,
    crate::types::zset::pick::COMMANDS,
    crate::types::zset::range::COMMANDS,
    crate::types::zset::read::COMMANDS,
    crate::types::zset::remove::COMMANDS,
    crate::server::keyspace::COMMANDS,
    crate::server::expire::COMMANDS,
    crate::server::scan::COMMANDS,
    crate::server::database::COMMANDS,
    crate::server::transaction::COMMANDS,
    crate::server::connection::COMMANDS,
    crate::server::client::COMMANDS,
    crate::server::info::COMMANDS,
    crate::server::config::COMMANDS,
    crate::server::admin::COMMANDS,
    crate::server::debug::COMMANDS,
    crate::server::memory::COMMANDS,
    crate::server::monitor::COMMANDS,
    crate::server::introspect::COMMANDS,
];

/// A command's place in the table.
pub type Id = u16;

/// A place of its own for every command and subcommand; counters are kept by it. A command's is its id.
pub type Slot = u32;

/// All commands by name.
pub struct Table {
    rows: Vec<&'static Command>,
    /// By id, the slot of a container's first subcommand.
    first_sub: Vec<Slot>,
    slots: usize,
    /// By the row's address.
    by_row: HashMap<usize, Slot, foldhash::fast::RandomState>,
    by_name: HashMap<&'static [u8], Id, foldhash::fast::RandomState>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let rows: Vec<&'static Command> = FAMILIES.iter().flat_map(|family| family.iter()).collect();
    let by_name = rows.iter().enumerate().map(|(id, row)| (row.name.as_bytes(), id as Id)).collect();
    let mut slots = rows.len();
    let mut first_sub = Vec::with_capacity(rows.len());
    for row in &rows {
        first_sub.push(slots as Slot);
        slots += row.subcommands.len();
    }
    let own = rows.iter().enumerate().map(|(id, row)| (address(row), id as Slot));
    let subs = rows.iter().zip(&first_sub).flat_map(|(row, &first)| row.subcommands.iter().map(address).zip(first..));
    let by_row = own.chain(subs).collect();
    Table { rows, first_sub, slots, by_row, by_name }
});

fn address(row: &Command) -> usize {
    std::ptr::from_ref(row).addr()
}

/// The table of this binary.
pub fn table() -> &'static Table {
    &TABLE
}

/// No command's name is longer.
const LONGEST_NAME: usize = 32;

impl Table {
    /// A command by name, in any case.
    pub fn find(&self, name: &[u8]) -> Option<(Id, &'static Command)> {
        let mut lower = [0; LONGEST_NAME];
        let lower = lower.get_mut(..name.len())?;
        for (to, from) in lower.iter_mut().zip(name) {
            *to = from.to_ascii_lowercase();
        }
        let id = *self.by_name.get(&*lower)?;
        Some((id, self.rows[id as usize]))
    }

    /// The slot of a command, or of the subcommand of it that [`resolve`] found.
    #[inline]
    pub fn slot(&self, id: Id, row: &Command) -> Slot {
        if std::ptr::eq(self.rows[id as usize], row) { id.into() } else { self.sub_slot(id, row) }
    }

    #[cold]
    fn sub_slot(&self, id: Id, row: &Command) -> Slot {
        let subcommands = self.rows[id as usize].subcommands;
        let at = subcommands.iter().position(|sub| std::ptr::eq(sub, row));
        at.map_or(id.into(), |at| self.first_sub[id as usize] + at as Slot)
    }

    /// The slot of a row of this table.
    pub fn slot_of(&self, row: &'static Command) -> Option<Slot> {
        self.by_row.get(&address(row)).copied()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Full name (`client|kill`) of what has this slot.
    pub fn slot_name(&self, slot: Slot) -> Option<String> {
        if let Some(row) = self.rows.get(slot as usize) {
            return Some(row.name.to_owned());
        }
        let id = self.first_sub.partition_point(|&first| first <= slot).checked_sub(1)?;
        let sub = self.rows[id].subcommands.get((slot - self.first_sub[id]) as usize)?;
        Some(format!("{}|{}", self.rows[id].name, sub.name))
    }

    /// All rows, by id.
    pub fn rows(&self) -> &[&'static Command] {
        &self.rows
    }
}

/// The row that decides about a call: the subcommand's where there is one.
pub fn resolve(command: &'static Command, sub: Option<&[u8]>) -> &'static Command {
    let Some(sub) = sub.filter(|_| !command.subcommands.is_empty()) else { return command };
    command.subcommands.iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(sub)).unwrap_or(command)
}
