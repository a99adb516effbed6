//! What one command may take, and where it may take it.
//!
//! | bound | from |
//! |---|---|
//! | bytes that a command holds: its reply, its log record, what it gathers on the way | an eighth of the budget, and the hard limit of `client-output-buffer-limit normal` |
//! | bytes of a reply | the same, and three quarters of `maxmemory-clients` |
//! | bytes of a request, and of what MULTI has queued | an eighth of the budget |
//! | bytes of one string | `proto-max-bulk-len` |
//! | steps on a network thread | [`meter::STEPS_HERE`] |
//!
//! What connections may have in their buffers is never less than [`SLACK`], so that whoever has set a limit too low can set it anew.
//!
//! The first and the last are charged where the work is done ([`crate::meter`]), so that no command can forget them. What is
//! here besides tells early what would be refused late: a command that knows how much it is going to do says so before it begins.

use std::sync::OnceLock;

use super::buffers::SLACK;
use super::{Ctx, Error, Result};
use crate::config::Settings;
use crate::config::budget::{Budget, Machine};
use crate::meter;
use crate::resp::Limits;

/// Share of the whole budget that commands may hold, each and all of them together.
const SHARE: u64 = 8;
/// However small the budget.
const LEAST_BYTES: u64 = 4 << 20;

static MACHINE: OnceLock<Machine> = OnceLock::new();

/// Bytes that a command may hold, its reply among them.
fn command_bytes(settings: &Settings) -> usize {
    match settings.client_output_buffer_limit.normal.hard_bytes {
        0 => request_bytes(settings),
        hard => request_bytes(settings).min(usize::try_from(hard.max(SLACK)).unwrap_or(usize::MAX)),
    }
}

/// Bytes of a request that a command may be given, and of a transaction's queue.
fn request_bytes(settings: &Settings) -> usize {
    let total = Budget::new(settings, MACHINE.get_or_init(Machine::read)).total_bytes;
    usize::try_from((total / SHARE).max(LEAST_BYTES)).unwrap_or(usize::MAX)
}

/// Bytes of a reply: a longer one could not be sent, its client would be evicted for it.
fn reply_bytes(settings: &Settings) -> usize {
    let clients = Budget::new(settings, MACHINE.get_or_init(Machine::read)).clients_bytes;
    command_bytes(settings).min(usize::try_from((clients / 4 * 3).max(SLACK)).unwrap_or(usize::MAX))
}

/// What one command may take, in bytes, as the directives have it.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// What it holds.
    pub command: usize,
    /// What it is given, and what MULTI queues.
    pub request: usize,
    /// Its reply.
    pub reply: usize,
}

impl Bounds {
    /// By these directives.
    pub fn of(settings: &Settings) -> Self {
        let (command, request) = (command_bytes(settings), request_bytes(settings));
        Bounds { command, request, reply: reply_bytes(settings) }
    }
}

/// What requests may contain: one that no command could hold is refused before it has arrived.
pub fn request_limits(settings: &Settings) -> Limits {
    Limits { max_bulk: settings.proto_max_bulk_len, max_request: request_bytes(settings), ..Limits::default() }
}

/// Asks for the shard's own thread where a command is to touch many elements.
///
/// # Errors
/// `Cold`, at once, if the command is to be run again there.
#[inline]
pub fn may_touch(elements: u64) -> Result {
    meter::foresee(elements)
}

/// The same where it will go through so many bytes.
///
/// # Errors
/// `Cold`.
#[inline]
pub fn may_go_through(bytes: usize) -> Result {
    meter::foresee((bytes / meter::STEP_BYTES) as u64)
}

/// Whether so many elements may change or go one by one, values of so many bytes together being written. What undoes that, its
/// log record and what was read of the store for it stay to the end of the command: one that could not hold them writes what is
/// left anew, for which it needs little memory whatever the size.
pub fn fit_one_by_one(elements: u64, bytes: u64) -> bool {
    /// What each takes beside its value: its name where that is not long, three times, and what these stand in.
    const HEADS: u64 = 288;
    /// The value as it was, as it is and as it is logged.
    const COPIES: u64 = 3;
    let needs = elements.saturating_mul(HEADS).saturating_add(bytes.saturating_mul(COPIES));
    needs <= meter::room() as u64 / 4 * 3
}

/// Longest string a client may build, bytes: no configuration allows more than a request can name.
pub fn max_len(ctx: &Ctx) -> u64 {
    (ctx.server.config.settings().proto_max_bulk_len as u64).min(u32::MAX.into())
}

/// Refuses a value of `len + more` bytes if that is above the limit.
///
/// # Errors
/// `TooBig`.
pub fn check_len(ctx: &Ctx, len: u64, more: u64) -> Result {
    /// No configuration allows less.
    const ALWAYS_ALLOWED: u64 = 1 << 20;
    match len.checked_add(more) {
        Some(total) if total <= ALWAYS_ALLOWED || total <= max_len(ctx) => Ok(()),
        _ => Err(Error::TooBig),
    }
}
