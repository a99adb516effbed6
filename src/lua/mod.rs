//! Lua 5.1 as Redis has it: an interpreter that can be stopped after any instruction.
//!
//! A [`Chunk`] is a compiled script, shared by all machines. A [`Machine`] runs one script after the other, each for as many
//! steps as it is given, and comes back when they are used up, when the script calls a function of the host, and when it has
//! ended. Between two runs it may go to another thread, or be dropped.
//!
//! | file | owns |
//! |---|---|
//! | `machine` | what the host sees: start, run, answer, values |
//! | `compile/` | source text to instructions (`code`) |
//! | `exec`, `meta`, `call`, `cont` | instructions; their slow ways; calls, returns, errors; library functions that wait |
//! | `vm`, `thread` | the running state; a coroutine's stack and frames |
//! | `heap`, `strings`, `table`, `gc` | objects, their bytes, their end |
//! | `fault` | errors, and the meter of steps and bytes |
//! | `names` | variables and positions in error texts |
//! | `lib/` | the library: one file a table |
//! | `number` | numbers as C reads and prints them |
//!
//! Invariants:
//! - **No recursion that a script can drive.** Calls, metamethods, `pcall`, coroutines, comparators and callbacks are frames;
//!   patterns and the collector keep lists; the compiler and the serialisers have a depth.
//! - **Every step is charged**, in one meter (`fault`). What a single step may overdraw is bounded by the bytes there are.
//! - **Every byte is charged** before it is allocated. Beyond the limit a script ends with an error that it cannot catch.
//! - **No script changes what the next one finds**: the library's tables are read-only, also by `rawset` and `setmetatable`.

mod call;
mod code;
mod compile;
mod cont;
mod exec;
mod fault;
mod gc;
mod heap;
mod lib;
mod machine;
mod meta;
mod names;
mod number;
mod strings;
mod table;
mod thread;
mod value;
mod vm;

#[cfg(test)]
mod tests;

pub use code::Chunk;
pub use machine::{Failure, HostItem, HostItems, Limits, Machine, Outcome};
pub use value::{Tab, Value};
