//! ACL: users as operators see and change them.
//!
//! | file | owns |
//! |---|---|
//! | this one | the subcommands |
//! | [`change`] | those that change users, and cut their connections |
//! | [`file`] | users in a file: ACL files, `user` lines of the configuration |
//! | [`permit`] | the check of each call |
//!
//! The model is [`crate::handler::acl`].

mod change;
pub mod file;
pub mod permit;

use super::{help, unknown_subcommand, wrong_subcommand};
use crate::handler::acl::category::{CATEGORIES, categories_of, category};
use crate::handler::acl::check::Asked;
use crate::handler::acl::log::Entry;
use crate::handler::acl::selector::Selector;
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, flags};
use crate::meter;
use crate::util::num::parse_i64;
use crate::util::sys::random_bytes;

/// What describing a user takes, beside a visit of an element.
const STEPS_OF_A_USER: usize = 16;

fn whoami(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.bulk(&ctx.session().identity.user.name);
    Ok(())
}

fn users(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let users = ctx.server.acl.users();
    out.array(users.len());
    for name in users.keys() {
        meter::step(1)?;
        out.bulk(name);
    }
    Ok(())
}

fn list(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let users = ctx.server.acl.users();
    out.array(users.len());
    for user in users.values() {
        meter::step(STEPS_OF_A_USER)?;
        let line = user.line();
        meter::step_through(line.len())?;
        out.bulk(&line);
    }
    Ok(())
}

fn describe_selector(selector: &Selector, out: &mut Reply) {
    let parts = [
        ("commands", selector.describe_commands()),
        ("keys", selector.describe_keys()),
        ("channels", selector.describe_channels()),
    ];
    for (name, text) in parts {
        out.bulk(name.as_bytes());
        out.bulk(&text);
    }
}

fn getuser(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(user) = ctx.server.acl.user(&args[2]) else {
        out.nil();
        return Ok(());
    };
    out.map(6);
    out.bulk(b"flags");
    out.set(user.flags().count());
    user.flags().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    out.array(user.passwords.len());
    user.passwords.iter().for_each(|hash| out.bulk(hash));
    describe_selector(&user.selectors[0], out);
    out.bulk(b"selectors");
    out.array(user.selectors.len() - 1);
    for selector in &user.selectors[1..] {
        meter::step(STEPS_OF_A_USER)?;
        out.map(3);
        describe_selector(selector, out);
    }
    Ok(())
}

fn cat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return Err(wrong_subcommand(args));
    }
    let Some(name) = args.get(2) else {
        out.array(CATEGORIES.len());
        CATEGORIES.iter().for_each(|name| out.bulk(name.as_bytes()));
        return Ok(());
    };
    let Some(wanted) = category(name) else {
        return Err(Error::quoting("ERR Unknown category '", name, 128, "'"));
    };
    let table = ctx.server.table;
    let rows = table.rows().into_iter().flat_map(|row| std::iter::once(row).chain(row.subcommands));
    let slots = rows.filter(|row| categories_of(row).any(|of| of == wanted)).map(|row| table.slot_of(row));
    let names: Vec<_> = slots.filter_map(|slot| table.slot_name(slot)).collect();
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

fn genpass(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    const MOST_BITS: i64 = 4096;
    const WRONG: Error = Error::err(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
    );
    if args.len() > 3 {
        return Err(wrong_subcommand(args));
    }
    let bits = args.get(2).map_or(Ok(256), |bits| parse_i64(bits).ok_or(Error::NotInteger))?;
    if !(1..=MOST_BITS).contains(&bits) {
        return Err(WRONG);
    }
    let digits = (bits as usize).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    random_bytes(&mut bytes).map_err(|error| Error::Text(format!("ERR no random numbers: {error}").into()))?;
    let mut password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    password.truncate(digits);
    out.bulk(password.as_bytes());
    Ok(())
}

fn dryrun(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(user) = ctx.server.acl.user(&args[2]) else {
        return Err(Error::quoting("ERR User '", &args[2], usize::MAX, "' not found"));
    };
    let (table, call) = (ctx.server.table, args.slice(3));
    let no_such = || Error::quoting("ERR Command '", &call[0], usize::MAX, "' not found");
    let row =
        table.find(&call[0]).and_then(|(_, container)| container.resolve_known(call.get(1))).ok_or_else(no_such)?;
    let asked = Asked::new(table, row, call);
    if !row.accepts(call.len()) {
        return Err(Error::Arity(table.slot_name(asked.slot).unwrap_or_default().into()));
    }
    match asked.of(&user)? {
        Ok(()) => out.ok(),
        Err(denied) => out.bulk(&denied.text(&user, table, &asked, true)),
    }
    Ok(())
}

fn log(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    const USUAL: i64 = 10;
    if args.len() > 3 {
        return Err(wrong_subcommand(args));
    }
    let acl = &ctx.server.acl;
    if args.get(2).is_some_and(|word| word.eq_ignore_ascii_case(b"reset")) {
        acl.with_log(|log| log.clear());
        out.ok();
        return Ok(());
    }
    let most = args.get(2).map_or(Ok(USUAL), |count| parse_i64(count).ok_or(Error::NotInteger))?;
    let (most, now_ms) = (usize::try_from(most).unwrap_or(0), crate::util::time::now_ms());
    acl.with_log(|log| {
        let entries = log.newest(most);
        meter::foresee((entries.len() * STEPS_OF_A_USER) as u64)?;
        out.array(entries.len());
        for entry in entries {
            meter::step(STEPS_OF_A_USER)?;
            describe_entry(entry, now_ms, out);
        }
        Ok(())
    })
}

fn describe_entry(entry: &Entry, now_ms: u64, out: &mut Reply) {
    let denial = &entry.denial;
    out.map(10);
    out.bulk(b"count");
    out.int(entry.count as i64);
    let texts = [
        ("reason", denial.reason.word().as_bytes()),
        ("context", denial.context.word().as_bytes()),
        ("object", &denial.object),
        ("username", &denial.user),
    ];
    for (name, text) in texts {
        out.bulk(name.as_bytes());
        out.bulk(text);
    }
    out.bulk(b"age-seconds");
    out.double(now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0);
    out.bulk(b"client-info");
    out.bulk(&denial.client);
    let numbers =
        [("entry-id", entry.id), ("timestamp-created", entry.created_ms), ("timestamp-last-updated", entry.updated_ms)];
    for (name, number) in numbers {
        out.bulk(name.as_bytes());
        out.int(number as i64);
    }
}

fn acl_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "CAT [<category>]",
        "    The categories of commands, or the commands of one.",
        "DELUSER <user> [<user> ...]",
        "    Removes users, and closes their connections.",
        "DRYRUN <user> <command> [<argument> ...]",
        "    Whether a user may make a call, which is not made.",
        "GENPASS [<bits>]",
        "    A random password, of 256 bits if not told otherwise.",
        "GETUSER <user>",
        "    What a user may do.",
        "LIST",
        "    All users, as lines of a configuration file.",
        "LOAD",
        "    Reads the ACL file again: all of it, or nothing changes.",
        "LOG [<count> | RESET]",
        "    What was not allowed, newest first; or forgets it.",
        "SAVE",
        "    Writes all users into the ACL file.",
        "SETUSER <user> [<rule> ...]",
        "    Makes or changes a user.",
        "USERS",
        "    The names of all users.",
        "WHOAMI",
        "    The name of the connection's user.",
    ];
    help(out, "ACL", &lines);
    Ok(())
}

const QUIET: u32 = flags::LOADING | flags::STALE;
const ADMIN: u32 = flags::ADMIN | flags::NOSCRIPT | QUIET;

const fn sub(name: &'static str, run: crate::handler::Run, arity: i32, flags: u32) -> Command {
    Command::new(name, run, arity, flags | flags::ONCE, Group::Server)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[sub("acl", unknown_subcommand, -2, flags::UNQUEUED)
    .help("6.0.0", "Commands about users.")
    .syntax("", "Depends on the subcommand")
    .subcommands(&[
        sub("cat", cat, -2, QUIET | flags::NOSCRIPT)
            .help("6.0.0", "Returns the categories of commands, or the commands of one.")
            .syntax("[category]", "O(N) where N is the number of commands"),
        sub("deluser", change::deluser, -3, ADMIN | flags::THREAD)
            .hides(|_, at| at > 1)
            .help("6.0.0", "Removes users, and closes their connections.")
            .syntax("username [username ...]", "O(N) where N is the number of connections"),
        sub("dryrun", dryrun, -4, ADMIN)
            .help("7.0.0", "Returns whether a user may make a call.")
            .syntax("username command [arg [arg ...]]", "O(N) where N is the number of the user's rules"),
        sub("genpass", genpass, -2, QUIET | flags::NOSCRIPT)
            .help("6.0.0", "Returns a random password.")
            .syntax("[bits]", "O(1)"),
        sub("getuser", getuser, 3, ADMIN)
            .hides(|_, at| at > 1)
            .help("6.0.0", "Returns what a user may do.")
            .syntax("username", "O(N) where N is the number of the user's rules"),
        sub("help", acl_help, 2, QUIET).help("6.0.0", "Describes the subcommands of ACL.").syntax("", "O(1)"),
        sub("list", list, 2, ADMIN)
            .help("6.0.0", "Returns all users, as lines of a configuration file.")
            .syntax("", "O(N) where N is the number of users"),
        sub("load", change::load, 2, ADMIN | flags::THREAD)
            .help("6.0.0", "Reads the ACL file again.")
            .syntax("", "O(N) where N is the number of users and connections"),
        sub("log", log, -2, ADMIN)
            .help("6.0.0", "Returns what was not allowed, or forgets it.")
            .syntax("[count | RESET]", "O(N) where N is the number of entries shown"),
        sub("save", change::save, 2, ADMIN | flags::THREAD)
            .help("6.0.0", "Writes all users into the ACL file.")
            .syntax("", "O(N) where N is the number of users"),
        sub("setuser", change::setuser, -3, ADMIN | flags::THREAD)
            .hides(|_, at| at > 1)
            .help("6.0.0", "Makes or changes a user.")
            .syntax("username [rule [rule ...]]", "O(N) where N is the number of rules"),
        sub("users", users, 2, ADMIN)
            .help("6.0.0", "Returns the names of all users.")
            .syntax("", "O(N) where N is the number of users"),
        sub("whoami", whoami, 2, QUIET | flags::NOSCRIPT)
            .help("6.0.0", "Returns the name of the connection's user.")
            .syntax("", "O(1)"),
    ])];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::acl::log::{Context, Denial, Reason};

    #[test]
    fn an_entry_tells_when_it_came_for_the_first_and_for_the_last_time() {
        let denial = Denial {
            reason: Reason::Auth,
            context: Context::Toplevel,
            object: b"AUTH"[..].into(),
            user: b"u"[..].into(),
            client: b"id=1"[..].into(),
        };
        let mut out = Reply::new(2);
        describe_entry(&Entry { denial, count: 3, id: 7, created_ms: 1000, updated_ms: 4000 }, 4500, &mut out);
        let text = String::from_utf8_lossy(out.as_slice()).replace("\r\n", " ");
        for part in ["count :3 ", "age-seconds $3 0.5 ", "created :1000 ", "last-updated :4000 "] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
