//! What a script finds in the table `redis`, and what a library of functions does while it is loaded.

use std::sync::OnceLock;

use super::run::{Run, fail};
use crate::error::{Error, Result};
use crate::handler::Ctx;
use crate::handler::acl::check::Asked;
use crate::lua::{HostItem, HostItems, Machine, Value};
use crate::meter;
use crate::server::REDIS_VERSION;
use crate::util::sha1::sha1_hex;

/// A function of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Host {
    Call,
    Pcall,
    ErrorReply,
    StatusReply,
    Sha1hex,
    Log,
    SetResp,
    SetRepl,
    ReplicateCommands,
    Breakpoint,
    Debug,
    AclCheckCmd,
    RegisterFunction,
}

const FUNCTIONS: [(&str, Host); 13] = [
    ("call", Host::Call),
    ("pcall", Host::Pcall),
    ("error_reply", Host::ErrorReply),
    ("status_reply", Host::StatusReply),
    ("sha1hex", Host::Sha1hex),
    ("log", Host::Log),
    ("setresp", Host::SetResp),
    ("set_repl", Host::SetRepl),
    ("replicate_commands", Host::ReplicateCommands),
    ("breakpoint", Host::Breakpoint),
    ("debug", Host::Debug),
    ("acl_check_cmd", Host::AclCheckCmd),
    (REGISTER_FUNCTION, Host::RegisterFunction),
];

const REGISTER_FUNCTION: &str = "register_function";

/// What only scripts find, functions do not.
const OF_SCRIPTS: [&str; 3] = ["replicate_commands", "breakpoint", "debug"];

/// Who looks for the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A script.
    Script,
    /// A function.
    Function,
    /// The text of a library that is being loaded.
    Library,
}

impl Whose {
    fn finds(self, name: &str) -> bool {
        match self {
            Whose::Script => name != REGISTER_FUNCTION,
            Whose::Function => name != REGISTER_FUNCTION && !OF_SCRIPTS.contains(&name),
            Whose::Library => {
                name == REGISTER_FUNCTION
                    || name == "log"
                    || name.starts_with("LOG_")
                    || name.starts_with("REDIS_VERSION")
            }
        }
    }
}

const NUMBERS: [(&str, f64); 9] = [
    ("LOG_DEBUG", 0.0),
    ("LOG_VERBOSE", 1.0),
    ("LOG_NOTICE", 2.0),
    ("LOG_WARNING", 3.0),
    ("REPL_NONE", 0.0),
    ("REPL_AOF", 1.0),
    ("REPL_SLAVE", 2.0),
    ("REPL_REPLICA", 2.0),
    ("REPL_ALL", 3.0),
];

/// What is in the table.
pub(super) fn items(whose: Whose) -> HostItems {
    static ITEMS: OnceLock<[HostItems; 3]> = OnceLock::new();
    let make = |whose: Whose| {
        let functions = FUNCTIONS.iter().map(|(name, id)| (*name, HostItem::Function(*id as u16)));
        let numbers = NUMBERS.iter().map(|(name, number)| (*name, HostItem::Number(*number)));
        let parts = REDIS_VERSION.split('.').filter_map(|part| part.parse::<u32>().ok());
        let version = [
            ("REDIS_VERSION", HostItem::Text(REDIS_VERSION.as_bytes().into())),
            ("REDIS_VERSION_NUM", HostItem::Number(f64::from(parts.fold(0, |number, part| number << 8 | part)))),
        ];
        let all = functions.chain(numbers).chain(version).filter(|(name, _)| whose.finds(name));
        all.map(|(name, item)| (format!("redis.{name}"), item)).collect()
    };
    ITEMS.get_or_init(|| [Whose::Script, Whose::Function, Whose::Library].map(make))[whose as usize].clone()
}

/// The function that has this number.
pub(super) fn function(number: u16) -> Option<Host> {
    FUNCTIONS.iter().map(|(_, id)| *id).find(|id| *id as u16 == number)
}

/// Bytes of arguments beyond which nobody waits for what needs no key.
const LONG: usize = 64 << 10;

/// Does what the script has called, and answers it. The arguments are copied for that: a script may name a long string many times.
pub(super) fn call(run: &mut Run<'_>, ctx: &mut Ctx, function: u16) -> Result {
    let Some(function) = self::function(function) else {
        return Err(Error::err("ERR the script has called a function that there is not"));
    };
    let texts = run.machine.values().iter().filter_map(|value| run.machine.bytes_of(*value));
    let bytes = texts.map(<[u8]>::len).sum();
    meter::hold(bytes)?;
    meter::step(bytes / meter::STEP_BYTES)?;
    match function {
        Host::Call => run.command(ctx, false)?,
        Host::Pcall => run.command(ctx, true)?,
        Host::AclCheckCmd => acl_check_cmd(run, ctx)?,
        function if bytes > LONG => run.go_on(ctx, |run| alone(run, function))??,
        function => alone(run, function)?,
    }
    meter::release(bytes);
    Ok(())
}

/// What is done without the store.
fn alone(run: &mut Run<'_>, function: Host) -> Result {
    let args = run.machine.values().to_vec();
    match function {
        // They have a function of their own.
        Host::Call | Host::Pcall | Host::AclCheckCmd => {}
        Host::ErrorReply => return reply_table(run, &args, "err"),
        Host::StatusReply => return reply_table(run, &args, "ok"),
        Host::Sha1hex => {
            let mut text = Vec::new();
            let [value] = args[..] else { return run.fail(b"ERR wrong number of arguments", false) };
            run.machine.write_text(value, &mut text);
            let hex = run.machine.string(&sha1_hex(&text)).ok_or(Error::TooMuch)?;
            run.machine.answer(&[hex]);
        }
        Host::Log => return log(&mut run.machine, &args),
        Host::RegisterFunction => {
            return run.fail(b"ERR redis.register_function can only be called on FUNCTION LOAD command", false);
        }
        Host::SetResp => {
            let [value] = args[..] else { return run.fail(b"ERR redis.setresp() requires one argument.", false) };
            match value {
                Value::Number(2.0) => run.resp = 2,
                Value::Number(3.0) => run.resp = 3,
                _ => return run.fail(b"ERR RESP version must be 2 or 3.", false),
            }
            run.machine.answer(&[]);
        }
        Host::SetRepl => {
            let [value] = args[..] else { return run.fail(b"ERR redis.set_repl() requires one argument.", false) };
            if !matches!(value, Value::Number(0.0..=3.0)) {
                return run
                    .fail(b"ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.", false);
            }
            run.machine.answer(&[]);
        }
        Host::ReplicateCommands => run.machine.answer(&[Value::Bool(true)]),
        Host::Breakpoint => run.machine.answer(&[Value::Bool(false)]),
        Host::Debug => run.machine.answer(&[]),
    }
    Ok(())
}

/// `redis.acl_check_cmd`
fn acl_check_cmd(run: &mut Run<'_>, ctx: &mut Ctx) -> Result {
    let call = match run.call_args() {
        Ok(call) => call,
        Err(text) => return run.fail(text, false),
    };
    let call = call.as_args();
    let row = ctx.server.table.find(&call[0]).and_then(|(_, container)| container.resolve_known(call.get(1)));
    let Some(row) = row else {
        return run.fail(b"ERR Invalid command passed to redis.acl_check_cmd()", false);
    };
    let asked = Asked::new(ctx.server.table, row, call);
    let may = ctx.restricted().map_or(Ok(true), |user| asked.of(&user).map(|may| may.is_ok()))?;
    run.machine.answer(&[Value::Bool(may)]);
    Ok(())
}

/// `{err = text}` or `{ok = text}`.
fn reply_table(run: &mut Run<'_>, args: &[Value], name: &str) -> Result {
    let text = match args {
        [value @ Value::Str(_)] => run.machine.bytes_of(*value).map(<[u8]>::to_vec),
        _ => None,
    };
    let (name, text) = match text {
        None => ("err", b"ERR wrong number or type of arguments".to_vec()),
        Some(text) if name == "err" => (name, coded(text)),
        Some(text) => (name, text),
    };
    let machine = &mut run.machine;
    let table = (|| {
        let tab = machine.table(0, 1)?;
        let (name, text) = (machine.string(name.as_bytes())?, machine.string(&text)?);
        machine.set(tab, name, text)?;
        Some(Value::Table(tab))
    })();
    let table = table.ok_or(Error::TooMuch)?;
    run.machine.answer(&[table]);
    Ok(())
}

/// An error text with a code word: the first of its words if there are several, else `ERR`.
fn coded(text: Vec<u8>) -> Vec<u8> {
    match text.strip_prefix(b"-") {
        Some(rest) => rest.to_vec(),
        None if text.contains(&b' ') => text,
        None => [b"ERR ", &text[..]].concat(),
    }
}

/// `redis.log`
pub(super) fn log(machine: &mut Machine, args: &[Value]) -> Result {
    let [level, texts @ ..] = args else {
        return fail(machine, b"ERR redis.log() requires two arguments or more.");
    };
    if texts.is_empty() {
        return fail(machine, b"ERR redis.log() requires two arguments or more.");
    }
    let Value::Number(level) = *level else {
        return fail(machine, b"ERR First argument must be a number (log level).");
    };
    if !(0.0..4.0).contains(&level) {
        return fail(machine, b"ERR Invalid log level.");
    }
    let mut text = Vec::new();
    for (n, value) in texts.iter().enumerate() {
        if n > 0 {
            text.push(b' ');
        }
        match machine.bytes_of(*value) {
            Some(bytes) => text.extend_from_slice(&bytes[..bytes.len().min(MOST_LOGGED)]),
            None => _ = machine.write_text(*value, &mut text),
        }
        if text.len() >= MOST_LOGGED {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text[..text.len().min(MOST_LOGGED)]);
    match level as u8 {
        0 => tracing::debug!(%text, "a script says"),
        1 | 2 => tracing::info!(%text, "a script says"),
        _ => tracing::warn!(%text, "a script says"),
    }
    machine.answer(&[]);
    Ok(())
}

/// Bytes of a script's text that are logged.
const MOST_LOGGED: usize = 1024;
