//! TLS: what the server speaks it with, made of the directives, and put in the place of what it was while connections live.
//!
//! | file | owns |
//! |---|---|
//! | this | the agreement in force, and counters |
//! | [`agreement`] | directives and files → rustls's configuration |
//! | [`sessions`] | sessions that clients may take up again |
//!
//! Every connection keeps the configuration that it began with. Sessions belong to one of them: what was agreed under an
//! authority that is no longer believed cannot be taken up.

pub mod agreement;
mod sessions;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;
use rustls::ServerConfig;

/// What new connections are spoken to with, and how many there were.
#[derive(Debug, Default)]
pub struct Tls {
    agreement: RwLock<Option<Arc<ServerConfig>>>,
    /// Connections that are open.
    pub clients: AtomicU64,
    /// Handshakes under way.
    pub shaking: AtomicU64,
    /// Handshakes that came to a connection.
    pub shaken: AtomicU64,
    /// Of these, those that took an earlier session up.
    pub resumed: AtomicU64,
    /// Handshakes that failed.
    pub failed: AtomicU64,
    /// Handshakes that took too long, or were the oldest of too many.
    pub given_up: AtomicU64,
}

impl Tls {
    /// What new connections are spoken to with; `None` where there is no TLS.
    pub fn agreement(&self) -> Option<Arc<ServerConfig>> {
        self.agreement.read().clone()
    }

    /// From now on it is this.
    pub fn agree(&self, agreement: Arc<ServerConfig>) {
        *self.agreement.write() = Some(agreement);
    }
}
