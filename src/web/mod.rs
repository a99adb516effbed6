//! Metrics and the status page, over HTTP on a port of their own (`metrics-port`): off by default, and on the loopback.
//!
//! | file | owns |
//! |---|---|
//! | this | the listeners, and how many are served at once |
//! | [`http`] | one request in, one response out, and the connection is closed |
//! | [`guard`] | who may ask: names of the host, origins, the password |
//! | [`metrics`] | `/metrics`: INFO's facts in Prometheus's form |
//! | [`status`] | `/status.json`: what the page shows |
//! | `page.html` | `/`: the page, all in one |
//!
//! All of it runs on a thread of its own. What is told is read at one moment, by the thread that has the shards, as for INFO; who asks often
//! waits for the answer to the one before.
//!
//! Invariants: a connection has [`http::MOST_BYTES`] and [`http::LIMIT`] for its request; no more than [`MOST`] are open, and one more
//! is closed at once; nothing that is asked changes anything but what is noted of wrong passwords.

mod guard;
mod http;
pub mod metrics;
mod status;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::config::settings::{BindAddr, BindHost};
use crate::handler::Server;

/// Connections at the same time.
const MOST: usize = 32;

/// The page.
const PAGE: &str = include_str!("page.html");

/// Listens, if there is a port to listen on, and serves until the process ends.
///
/// # Errors
/// An address that cannot be had.
pub fn serve(server: &Arc<Server>) -> io::Result<()> {
    let settings = server.config.settings();
    if settings.metrics_port == 0 {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listeners = {
        let _in_runtime = runtime.enter();
        let bound = settings.metrics_bind.iter().filter_map(|bind| listen(bind, settings.metrics_port).transpose());
        bound.collect::<io::Result<Vec<_>>>()?
    };
    for bind in &settings.metrics_bind {
        tracing::info!(address = %bind.host, port = settings.metrics_port, "metrics and status page over HTTP");
    }
    let (server, room) = (server.clone(), Arc::new(Semaphore::new(MOST)));
    crate::shard::engine::spawn("web".to_owned(), 0, move || {
        runtime.block_on(async {
            for listener in listeners {
                tokio::spawn(accept(server.clone(), listener, room.clone()));
            }
            std::future::pending::<()>().await;
        });
    });
    Ok(())
}

/// A listener at one of the addresses; `None` where the machine lacks one that it may lack.
fn listen(bind: &BindAddr, port: u16) -> io::Result<Option<tokio::net::TcpListener>> {
    let name = match &bind.host {
        BindHost::AnyV4 => "0.0.0.0",
        BindHost::AnyV6 => "::",
        BindHost::Named(name) => name,
    };
    let bound = std::net::TcpListener::bind((name, port)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    });
    match bound {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if bind.optional => {
            tracing::debug!(%error, name, "optional address left out");
            Ok(None)
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("could not bind {name}:{port} for metrics: {error}"))),
    }
}

async fn accept(server: Arc<Server>, listener: tokio::net::TcpListener, room: Arc<Semaphore>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Who is too much is closed here: there are few who ask, and they ask again.
                let Ok(place) = room.clone().try_acquire_owned() else { continue };
                let server = server.clone();
                tokio::spawn(async move {
                    // A peer that has left, or is too slow, is told nothing.
                    let _ = http::serve(stream, |request| answer(&server, peer, request)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// What is answered.
async fn answer(server: &Arc<Server>, peer: SocketAddr, request: http::Request) -> http::Response {
    if let Err(refusal) = guard::check(server, peer, &request) {
        return refusal;
    }
    match request.path() {
        "/metrics" => match read(server, metrics::write).await {
            Some(text) => http::Response::ok("text/plain; version=0.0.4; charset=utf-8", text),
            None => http::Response::unavailable(),
        },
        "/status.json" => match read(server, status::write).await {
            Some(text) => http::Response::ok("application/json", text),
            None => http::Response::unavailable(),
        },
        "/" => http::Response::page(PAGE),
        _ => http::Response::text(404, "Not Found", "there are /, /metrics and /status.json\n"),
    }
}

/// Has the facts written, where they are read.
async fn read(server: &Arc<Server>, write: fn(&crate::server::info::Facts<'_>) -> String) -> Option<String> {
    let (done, text) = tokio::sync::oneshot::channel();
    crate::server::info::Facts::collect(server, move |facts| _ = done.send(write(facts)));
    text.await.ok()
}
