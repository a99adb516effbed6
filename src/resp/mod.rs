//! The protocol: requests in, replies out. Knows bytes, not commands.
//!
//! | file | owns |
//! |---|---|
//! | [`parser`] | an incremental parser of requests, inline ones included, with Redis's limits and error texts |
//! | [`args`] | a request's arguments: a view of the query buffer, an owned copy, a cursor for options |
//! | [`reply`] | the writer of replies, in RESP2 or RESP3 |
//!
//! A request is never copied on its way to a command: the parser answers with [`Span`]s of the query buffer, and
//! [`Args`] is that buffer plus its spans.

pub mod args;
pub mod parser;
pub mod reply;

pub use args::{Args, Cursor, OwnedArgs};
pub use parser::{Limits, Parser, ProtocolError, Span};
pub use reply::{Mark, Reply};
