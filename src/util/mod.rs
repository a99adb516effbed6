//! Numbers, globs, words and time as Redis reads and prints them. Depends on nothing else in the crate.
//!
//! | file | owns |
//! |---|---|
//! | [`alloc`] | the counted allocator |
//! | [`num`] | 64-bit integers and doubles: strict readers, the shortest-looking writer Redis uses |
//! | [`long_double`] | the 80-bit floats of INCRBYFLOAT and HINCRBYFLOAT |
//! | [`bell`] | a thread that sleeps until it is called |
//! | [`glob`] | patterns of KEYS, SCAN, PSUBSCRIBE, CONFIG GET |
//! | [`histogram`] | how long things took, by number |
//! | [`inbox`] | what other threads bring to one that serves many |
//! | [`pace`] | background work that lets go of its core now and then |
//! | [`progress`] | how far a piece of work is, for who waits at a terminal |
//! | [`path`] | the folder of a file, its replacement as a whole, whose it is |
//! | [`prefetch`] | memory into the cache before it is read |
//! | `scratch` | directories of unit tests |
//! | [`splitmix`] | numbers that follow from a seed |
//! | [`sys`] | scheduling of a thread, file limit, write-back of a file, shutdown of a socket |
//! | [`logging`] | the server's log: where to, how much |
//! | [`ticks`] | a clock that is cheap to read, for how long things take |
//! | [`words`] | words of a line, quoted or not |
//! | [`time`] | wall and monotonic clock |

pub mod alloc;
pub mod bell;
mod bignum;
mod decimal;
pub mod glob;
mod grisu;
pub mod histogram;
pub mod inbox;
pub mod logging;
pub mod long_double;
pub mod num;
pub mod pace;
pub mod path;
pub mod prefetch;
pub mod progress;
pub mod scale;
#[cfg(test)]
pub mod scratch;
pub mod sha1;
pub mod splitmix;
pub mod sys;
pub mod ticks;
pub mod time;
pub mod words;

/// The version of Redis that Tarn follows, as INFO, HELLO and files name it. Clients decide by it what to send.
pub const REDIS_VERSION: &str = "8.2.3";
