//! The same few facts about each command, each kind of error, each database.

use super::Facts;
use super::fact::{Entry, Family, Field, Value, grows, moves};

const OF_A_COMMAND: &[Field] = &[
    grows("calls", "Calls that have run."),
    grows("usec", "Microseconds that they ran, what they waited for left out."),
    moves("usec_per_call", "Microseconds that a call ran, on average."),
    grows("rejected_calls", "Calls that were refused before they ran."),
    grows("failed_calls", "Calls that ran and failed."),
];

pub(super) const COMMANDSTATS: &[Entry] = &[Entry::Many(Family {
    prefix: "cmdstat_",
    label: "command",
    fields: OF_A_COMMAND,
    each: |f, visit| {
        for (slot, &[calls, rejected, failed, ran_ns]) in f.totals.calls.iter().enumerate() {
            if calls + rejected + failed > 0
                && let Some(name) = f.server.table.slot_name(slot as u32)
            {
                let per_call = Value::Real(ran_ns as f64 / 1000.0 / calls.max(1) as f64, 2);
                visit(&name, &[calls.into(), (ran_ns / 1000).into(), per_call, rejected.into(), failed.into()]);
            }
        }
    },
})];

pub(super) const ERRORSTATS: &[Entry] = &[Entry::Many(Family {
    prefix: "errorstat_",
    label: "error",
    fields: &[grows("count", "Replies with this error.")],
    each: |f, visit| {
        for (code, count) in f.totals.error_codes.iter().filter(|(_, count)| **count > 0) {
            visit(code, &[(*count).into()]);
        }
    },
})];

const OF_A_DATABASE: &[Field] = &[
    moves("keys", "Keys of the database."),
    moves("expires", "Keys in memory that have a time."),
    moves("avg_ttl", "Milliseconds that these have left, on average."),
    moves("subexpiry", "Hashes in memory of which fields have a time."),
];

/// Numbered databases. `expires` and `subexpiry` leave out keys that are on disk only.
pub(super) const KEYSPACE: &[Entry] = &[Entry::Many(Family {
    prefix: "db",
    label: "db",
    fields: OF_A_DATABASE,
    each: |f, visit| {
        for (number, keys) in numbered(f) {
            visit(&number.to_string(), &[keys.all, keys.timed, keys.ttl_ms, keys.with_fields].map(Value::Count));
        }
    },
})];

fn numbered<'f>(facts: &'f Facts<'_>) -> Vec<(u64, &'f super::Keys)> {
    let number = |name: &[u8]| crate::util::num::parse_u64(name);
    let mut databases: Vec<_> = facts.keys.iter().filter_map(|(name, keys)| Some((number(name)?, keys))).collect();
    databases.sort_unstable_by_key(|(number, _)| *number);
    databases
}
