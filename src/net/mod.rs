//! Sockets: listeners, network threads, connections.
//!
//! | file | owns |
//! |---|---|
//! | [`listen`] | listeners, admission (`maxclients`, protected mode), handing sockets to threads |
//! | [`worker`] | one thread: a current-thread runtime, its connections, the tick that commits and replies |
//! | [`connection`] | one connection: input, commands, replies |
//! | [`parked`] | a connection that waits |
//! | [`reads`] | reads of the store between two looks at the sockets |
//! | [`socket`] | what is asked of a client's socket |
//! | [`ahead`] | what a pipeline's commands will touch, fetched early |

pub mod ahead;
pub mod connection;
pub mod listen;
mod parked;
mod reads;
mod socket;
pub mod worker;
