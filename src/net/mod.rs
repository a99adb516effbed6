//! Sockets: listeners, network threads, connections.
//!
//! | file | owns |
//! |---|---|
//! | [`listen`] | listeners, admission (`maxclients`, protected mode), handing sockets to threads |
//! | [`worker`] | one thread: a current-thread runtime, its connections, the tick that commits and replies |
//! | [`connection`] | one connection: input, look-ahead, replies |

pub mod connection;
pub mod listen;
pub mod worker;
