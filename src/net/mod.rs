//! Sockets: listeners, network threads, connections.
//!
//! | file | owns |
//! |---|---|
//! | [`listeners`] | what is listened on, and anew after CONFIG SET |
//! | [`listen`] | admission (`maxclients`, protected mode), handing sockets to threads |
//! | [`worker`] | one thread: a current-thread runtime, its connections, the tick that commits and replies |
//! | [`connection`] | one connection: input, commands, replies |
//! | [`state`] | its buffers |
//! | [`linger`] | whether a thread looks on for a little before it sleeps |
//! | [`parked`] | a connection that waits |
//! | [`pushes`] | what a connection is sent without having asked |
//! | [`reads`] | reads of the store between two looks at the sockets |
//! | [`subscribers`] | who of a thread has subscribed to what, and how messages get there |
//! | [`socket`] | what is asked of a client's socket |
//! | [`secure`] | the same where TLS is spoken |
//! | [`handshake`] | how that begins |
//! | [`ahead`] | what a pipeline's commands will touch, fetched early |

pub mod ahead;
pub mod connection;
mod handshake;
mod linger;
pub mod listen;
pub mod listeners;
mod parked;
mod pushes;
mod reads;
mod secure;
mod socket;
mod state;
mod subscribers;
pub mod worker;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

/// Awaits that the tasks have had a turn that are ready by now; sockets are not looked at.
async fn ready_ones_first() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Has the task come again behind others, and behind those whose sockets have something by now. One that only woke itself would run
/// dozens of times before the runtime looks at the sockets.
fn behind_others(cx: &mut Context<'_>) {
    // The first poll defers the task.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}
