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
    crate::types::string::set::COMMANDS,
    crate::types::string::get::COMMANDS,
    crate::types::string::many::COMMANDS,
    crate::types::string::edit::COMMANDS,
    crate::types::string::number::COMMANDS,
    crate::types::string::condition::COMMANDS,
    crate::types::string::lcs::COMMANDS,
    crate::types::bitmap::bits::COMMANDS,
    crate::types::bitmap::count::COMMANDS,
    crate::types::bitmap::op::COMMANDS,
    crate::types::bitmap::field::COMMANDS,
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
    crate::server::introspect::COMMANDS,
];

/// A command's place in the table; counters are kept by it.
pub type Id = u16;

/// All commands by name.
pub struct Table {
    rows: Vec<&'static Command>,
    by_name: HashMap<&'static [u8], Id, foldhash::fast::RandomState>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let rows: Vec<&'static Command> = FAMILIES.iter().flat_map(|family| family.iter()).collect();
    let by_name = rows.iter().enumerate().map(|(id, row)| (row.name.as_bytes(), id as Id)).collect();
    Table { rows, by_name }
});

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
