//! Who may ask. A browser that some other site has led here is refused, whatever it knows; and where the default user has a password, so
//! is everybody who does not.
//!
//! | header | must be |
//! |---|---|
//! | `Host` | given once: an address, `localhost`, or a name among `metrics-hosts`. Any other name could be one that a stranger's DNS has led here |
//! | `Origin` | if any, `http://` and what `Host` says |
//! | `Sec-Fetch-Site` | if any, `same-origin`, or `none` |
//! | `Authorization` | `Basic` with `default` and its password, if it has one |
//!
//! Whoever asks is the default user: where that may not call INFO, nobody is told anything.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::http::{Request, Response};
use crate::handler::Server;
use crate::handler::acl::log::{Context, Denial, Reason};
use crate::handler::acl::user::DEFAULT;

/// Whether a request is answered. A wrong password is noted, as a client's is.
pub(super) fn check(server: &Server, peer: SocketAddr, request: &Request) -> Result<(), Response> {
    let settings = server.config.settings();
    if !is_from_here(request, &settings.metrics_hosts) {
        return Err(Response::text(403, "Forbidden", "this name or origin is not among metrics-hosts\n"));
    }
    if !may_call(server, b"info", b"") {
        return Err(Response::text(403, "Forbidden", "the default user may not call INFO\n"));
    }
    if server.acl.is_open() {
        return Ok(());
    }
    let Some((user, password)) = credentials(request) else { return Err(Response::unauthorized()) };
    if user != DEFAULT || server.acl.authenticate(&user, &password).is_none() {
        let client = format!("addr={peer}").into_bytes().into();
        let (reason, context) = (Reason::Auth, Context::Toplevel);
        let denial = Denial { reason, context, object: b"http"[..].into(), user: user.into(), client };
        server.acl.deny(denial, settings.acllog_max_len);
        return Err(Response::unauthorized());
    }
    Ok(())
}

/// Whether the default user may call a command; `sub` is empty where it has no subcommands.
pub(super) fn may_call(server: &Server, name: &[u8], sub: &[u8]) -> bool {
    let (Some((_, row)), Some(default)) = (server.table.find(name), server.acl.user(DEFAULT)) else { return false };
    let slot = server.table.slot_of(row.resolve(Some(sub)));
    default.selectors.iter().any(|one| one.allows_command(slot, None))
}

/// Whether host and origin are this server's own.
fn is_from_here(request: &Request, names: &[String]) -> bool {
    let mut hosts = request.header("host");
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let (name, _) = split_port(host);
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let is_named = || name.eq_ignore_ascii_case("localhost") || names.iter().any(|one| one.eq_ignore_ascii_case(name));
    let origin = format!("http://{host}");
    (is_address || is_named())
        && request.header("origin").all(|given| given.eq_ignore_ascii_case(&origin))
        && request.header("sec-fetch-site").all(|site| matches!(site, "same-origin" | "none"))
}

/// Name and port of a host.
fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|c| c.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']')) =>
        {
            (name, port)
        }
        _ => (host, ""),
    }
}

/// User and password of a request.
fn credentials(request: &Request) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut given = request.header("authorization");
    let (Some(one), None) = (given.next(), given.next()) else { return None };
    let (scheme, coded) = one.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = STANDARD.decode(coded.trim()).ok()?;
    let colon = text.iter().position(|&c| c == b':')?;
    Some((text[..colon].to_vec(), text[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::super::http::tests::request;
    use super::*;

    #[test]
    fn hosts_and_origins() {
        let ask = |headers: &str| {
            is_from_here(&request(&format!("GET / HTTP/1.1\r\n{headers}\r\n\r\n")), &["db.example".into()])
        };
        for good in [
            "Host: 127.0.0.1:9121",
            "Host: localhost",
            "Host: LocalHost:80",
            "Host: [::1]:9121",
            "Host: [::1]",
            "Host: ::1",
            "Host: 10.1.2.3",
            "Host: db.example:9121",
            "Host: localhost:1\r\nOrigin: http://localhost:1\r\nSec-Fetch-Site: same-origin",
        ] {
            assert!(ask(good), "{good}");
        }
        for bad in [
            "Accept: */*",
            "Host: evil.example",
            "Host: localhost.evil.example",
            "Host: 127.0.0.1.evil.example",
            "Host: localhost\r\nHost: localhost",
            "Host: localhost:1\r\nOrigin: http://evil.example",
            "Host: localhost:1\r\nOrigin: http://localhost:2",
            "Host: localhost:1\r\nOrigin: null",
            "Host: localhost\r\nSec-Fetch-Site: cross-site",
            "Host: localhost:1\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: same-origin",
        ] {
            assert!(!ask(bad), "{bad}");
        }
    }

    #[test]
    fn passwords() {
        let given = |header: &str| credentials(&request(&format!("GET / HTTP/1.1\r\n{header}\r\n\r\n")));
        let pair = |user: &str, password: &str| Some((user.as_bytes().to_vec(), password.as_bytes().to_vec()));
        assert_eq!(given("Authorization: Basic ZGVmYXVsdDphOmI="), pair("default", "a:b"));
        assert_eq!(given("authorization: bAsIc   Og=="), pair("", ""));
        for bad in [
            "X: y",
            "Authorization: Basic",
            "Authorization: Basic !",
            "Authorization: Bearer Og==",
            "Authorization: Basic YQ==",
        ] {
            assert_eq!(given(bad), None, "{bad}");
        }
    }
}
