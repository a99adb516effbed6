//! What the integration tests share: a RESP client, servers that end with their guard, and the script format.
//!
//! | module | owns |
//! |---|---|
//! | [`flood`] | a peer that sends without end |
//! | [`resp`] | reply values, their decoding and encoding, a blocking client |
//! | [`server`] | Tarn or a real server, started on a free port in a directory of its own, killed by its pid on drop |
//! | [`script`] | the files of `tests/scripts/`: commands and the replies expected of them |
//! | [`notation`] | replies as scripts write them: printing, parsing, matching |
//! | [`rng`] | a small seeded generator |
//! | [`tls`] | certificates, and a client that speaks TLS |
//! | [`tool`] | `tarn` with a subcommand, run to its end |
//! | [`wait`] | waiting for an event |

#![allow(dead_code, reason = "every test binary uses another part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a helper that fails must fail its test")]

pub(crate) mod flood;
pub(crate) mod notation;
pub(crate) mod resp;
pub(crate) mod rng;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod tool;
pub(crate) mod wait;
