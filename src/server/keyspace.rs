//! keyspace

use crate::handler::Command;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[];
