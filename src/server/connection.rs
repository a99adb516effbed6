//! The connection itself: handshake, authentication, PING.
//!
//! A connection begins as the user `default`, and has authenticated if that needs no password; it remains so when a password
//! is set later. Of a password nothing is kept but who has proven to be whom.

use super::REDIS_VERSION;
use super::acl::permit::deny_login;
use super::client::{check_label, set_name};
use crate::handler::acl::Identity;
use crate::handler::acl::user::DEFAULT;
use crate::handler::session::ReplyMode;
use crate::handler::{After, Args, Command, Ctx, Error, Group, Reply, Result, Session, flags};
use crate::meter;
use crate::util::num::parse_i64;

const WRONG_PASSWORD: Error = Error::err("WRONGPASS invalid username-password pair or user is disabled.");
const NO_PASSWORD: Error = Error::err(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration \
     is correct?",
);
const HELLO_NOAUTH: Error = Error::err(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
     option can be used to authenticate the client and select the RESP protocol version at the same time",
);

fn ping(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() <= 2 && out.proto() == 2 && ctx.session().hears() {
        // As messages look.
        out.array(2);
        out.bulk(b"pong");
        out.bulk(args.get(1).unwrap_or_default());
        return Ok(());
    }
    match args.len() {
        1 => out.status("PONG"),
        2 => out.bulk(&args[1]),
        _ => return Err(Error::Arity("ping".into())),
    }
    Ok(())
}

fn echo(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.bulk(&args[1]);
    Ok(())
}

/// The identity that name and password prove. A failure is noted.
fn prove(ctx: &mut Ctx, command: &[u8], name: &[u8], password: &[u8]) -> Result<Identity> {
    meter::step_through(password.len())?;
    match ctx.server.acl.authenticate(name, password) {
        Some(user) => Ok(Identity::of(user)),
        None => {
            deny_login(ctx, command, name);
            Err(WRONG_PASSWORD)
        }
    }
}

fn auth(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (user, password) = match args.len() {
        2 if !ctx.server.acl.asks_password() => return Err(NO_PASSWORD),
        2 => (DEFAULT, &args[1]),
        3 => (&args[1], &args[2]),
        _ => return Err(Error::Syntax),
    };
    let identity = prove(ctx, &args[0], user, password)?;
    ctx.alter().become_user(identity);
    out.ok();
    Ok(())
}

fn hello(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut proto = ctx.session().proto;
    if let Some(version) = args.get(1) {
        proto = match parse_i64(version) {
            None => return Err(Error::err("ERR Protocol version is not an integer or out of range")),
            Some(version @ 2..=3) => version as u8,
            Some(_) => return Err(Error::err("NOPROTO unsupported protocol version")),
        };
    }
    let (mut name, mut user) = (None, None);
    let mut options = args.cursor(2);
    while let Some(option) = options.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"auth" if options.remaining() >= 2 => user = Some((options.arg()?, options.arg()?)),
            b"setname" if options.remaining() >= 1 => {
                let given = options.arg()?;
                check_label(given, "Client names")?;
                name = Some(given);
            }
            _ => return Err(Error::quoting("ERR Syntax error in HELLO option '", option, usize::MAX, "'")),
        }
    }
    let identity = match user {
        Some((user, password)) => Some(prove(ctx, &args[0], user, password)?),
        None if !ctx.session().identity.authenticated => return Err(HELLO_NOAUTH),
        None => None,
    };
    let session = ctx.alter();
    if let Some(identity) = identity {
        session.become_user(identity);
    }
    if let Some(name) = name {
        set_name(session, name);
    }
    session.set_proto(proto);
    out.set_proto(proto);
    greet(session, out);
    Ok(())
}

fn greet(session: &Session, out: &mut Reply) {
    out.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.int(session.proto.into());
    out.bulk(b"id");
    out.int(session.id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
}

fn quit(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    ctx.alter().after = After::Close;
    out.ok();
    Ok(())
}

/// Everything as it was when the connection was made, but for its id.
fn reset(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let identity = Identity::new(&ctx.server.acl);
    ctx.end_multi();
    super::pubsub::unsubscribe_all(ctx);
    ctx.track_no_more();
    ctx.monitor_no_more();
    let session = ctx.alter();
    session.select(b"0");
    session.become_user(identity);
    if session.reply_mode != ReplyMode::Skip {
        // One without a reply stays so: who counts replies would take this one for another's.
        session.reply_mode = ReplyMode::On;
    }
    session.no_touch = false;
    session.no_evict = false;
    session.show();
    session.client.labels.lock().name.clear();
    session.set_proto(2);
    out.set_proto(2);
    out.status("RESET");
    Ok(())
}

const HANDSHAKE: u32 =
    flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::FAST | flags::NO_AUTH | flags::ALLOW_BUSY;

/// Options of HELLO that are looked at: each argument of a request may be asked about, and there can be a million.
const MOST_OPTIONS: usize = 16;

/// The user and the password; behind too many options everything, as nobody knows what it is.
fn hello_hides(args: Args<'_>, at: usize) -> bool {
    let mut option = 2;
    for _ in 0..MOST_OPTIONS {
        if option >= at {
            return false;
        }
        let is = |name: &[u8]| args[option].eq_ignore_ascii_case(name);
        let values = if is(b"auth") { 2 } else { usize::from(is(b"setname")) };
        if at <= option + values {
            return values == 2;
        }
        option += 1 + values;
    }
    true
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("ping", ping, -1, flags::FAST | flags::SUBSCRIBER, Group::Connection)
        .help("1.0.0", "Answers PONG, or the message given.")
        .syntax("[message]", "O(1)"),
    Command::new("echo", echo, 2, flags::LOADING | flags::STALE | flags::FAST, Group::Connection)
        .help("1.0.0", "Answers the message given.")
        .syntax("message", "O(1)"),
    Command::new("auth", auth, -2, HANDSHAKE, Group::Connection)
        .hides(|_, at| at > 0)
        .help("1.0.0", "Authenticates the connection.")
        .syntax("[username] password", "O(1)"),
    Command::new("hello", hello, -1, HANDSHAKE, Group::Connection)
        .hides(hello_hides)
        .help("6.0.0", "Chooses the protocol version, and authenticates and names the connection if asked to.")
        .syntax("[protover [AUTH username password] [SETNAME clientname]]", "O(1)"),
    Command::new("quit", quit, -1, HANDSHAKE | flags::UNQUEUED | flags::SUBSCRIBER, Group::Connection)
        .help("1.0.0", "Closes the connection.")
        .syntax("", "O(1)"),
    Command::new("reset", reset, 1, HANDSHAKE | flags::UNQUEUED | flags::SUBSCRIBER, Group::Connection)
        .help("6.2.0", "Brings the connection back to the state in which it began.")
        .syntax("", "O(1)"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::OwnedArgs;

    #[test]
    fn what_auth_is_given_is_hidden_however_many_options_there_are() {
        let hidden = |line: &str| -> Vec<usize> {
            let args: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
            (0..args.as_args().len()).filter(|at| hello_hides(args.as_args(), *at)).collect()
        };
        assert_eq!(hidden("HELLO 2 SETNAME auth AUTH u p SETNAME x"), [5, 6]);
        assert_eq!(hidden("HELLO 2 SETNAME setname AUTH auth auth"), [5, 6]);
        let many = "HELLO 2".to_owned() + &" SETNAME x".repeat(MOST_OPTIONS + 1) + " AUTH u p";
        let first = 2 + 2 * MOST_OPTIONS;
        assert_eq!(hidden(&many), (first..first + 5).collect::<Vec<_>>());
    }
}
