//! Commands without a type.
pub mod admin;
pub mod client;
pub mod config;
pub mod connection;
pub mod database;
pub mod expire;
pub mod info;
pub mod introspect;
pub mod keyspace;
pub mod scan;
pub mod transaction;
