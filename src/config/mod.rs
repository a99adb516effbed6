//! Directives: their table, their file, `CONFIG GET/SET/REWRITE`, and the settings that the server reads.
//!
//! | file | owns |
//! |---|---|
//! | [`table`] | one row per directive: kind, default, when it can change, what it does |
//! | [`value`] | kinds: how words become values and values words |
//! | [`classes`] | letters of keyspace events |
//! | `special` | directives that need a function of their own |
//! | [`load`] | file, `include`, standard input, command line |
//! | [`settings`] | the typed snapshot |
//! | [`tls`] | what is said about TLS |
//! | [`budget`] | what is automatic: shards, threads, the division of memory |
//! | `rewrite` | `CONFIG REWRITE` |
//! | [`template`] | the text of `tarn.conf`, the tables in docs/configuration.md and COMPAT.md |
//!
//! Life of a value: words → [`value::Kind::parse`] → [`value::Value`] in the store → [`settings::Settings`].
//!
//! Invariants:
//! - A value in the store has passed its kind's check, so that making [`settings::Settings`] of it cannot fail.
//! - `CONFIG SET` changes all it names or nothing, and readers see all of it or nothing.
//! - A file that `CONFIG REWRITE` wrote reads back as the values the server had.

pub mod budget;
pub mod classes;
pub mod load;
mod rewrite;
pub mod settings;
mod special;
mod store;
pub mod table;
pub mod template;
pub mod tls;
pub mod value;

pub use load::{Line, LoadError, Rename, Source};
pub use settings::Settings;
pub use store::{Config, Refusal};
