//! The command table and the way of a command through it.
//!
//! | file | owns |
//! |---|---|
//! | this one | all rows |
//! | [`run`] | checks before a command, its run under a lease, its commit |

pub mod run;

use std::sync::OnceLock;

use crate::config::{LoadError, Rename};
use crate::handler::{Command, Table};

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
    crate::server::migrate::COMMANDS,
    crate::server::monitor::COMMANDS,
    crate::server::pubsub::COMMANDS,
    crate::server::replicate::COMMANDS,
    crate::server::script::COMMANDS,
    crate::server::script::function::COMMANDS,
    crate::server::introspect::COMMANDS,
];

static TABLE: OnceLock<Table> = OnceLock::new();

/// The table of this binary, in which some commands may have other names.
pub fn table() -> &'static Table {
    TABLE.get_or_init(|| Table::new(FAMILIES))
}

/// The table with these names.
///
/// # Errors
/// The first rename that cannot be done.
pub fn renamed(renames: &[Rename]) -> Result<Table, LoadError> {
    let mut table = Table::new(FAMILIES);
    for rename in renames {
        table.rename(&rename.from, &rename.to).map_err(|why| rename.refused(why))?;
    }
    Ok(table)
}

/// Has [`table`] be this one. To be called before that is.
pub fn install(table: Table) {
    let already = TABLE.set(table).is_err();
    debug_assert!(!already, "the table is in use");
}
