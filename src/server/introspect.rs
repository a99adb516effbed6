//! COMMAND: the table, told to clients.
//!
//! | file | owns |
//! |---|---|
//! | this one | the subcommands |
//! | [`describe`] | the reply of COMMAND INFO: flags, ACL categories, tips, key specs |
//! | [`docs`] | the reply of COMMAND DOCS |
//! | [`grammar`] | the argument tree of COMMAND DOCS, read from a row's syntax |

mod describe;
mod docs;
mod grammar;

use super::{help, unknown_subcommand};
use crate::handler::acl::category::{categories_of, category};
use crate::handler::keys::{access_of_known, keys_of};
use crate::handler::{Args, Begin, Command, Ctx, Error, Group, KeysAt, Reply, Result, Table, flags, key};
use crate::meter;
use crate::util::glob;
use describe::{key_flags, write_info};

/// A row and the container it belongs to, if it is a subcommand.
#[derive(Clone, Copy)]
struct Entry {
    container: Option<&'static Command>,
    row: &'static Command,
}

impl Entry {
    fn name(self) -> String {
        match self.container {
            Some(container) => format!("{}|{}", container.name, self.row.name),
            None => self.row.name.to_owned(),
        }
    }

    /// By full name, `client|kill` for a subcommand.
    fn find(table: &Table, name: &[u8]) -> Option<Entry> {
        table.find_full(name).map(|(row, container)| Entry { container, row })
    }

    /// All commands, each with its subcommands behind it.
    fn all(table: &Table) -> impl Iterator<Item = Entry> {
        commands(table).flat_map(|entry| std::iter::once(entry).chain(entry.subcommands()))
    }

    fn subcommands(self) -> impl Iterator<Item = Entry> {
        self.row.subcommands.iter().map(move |row| Entry { container: Some(self.row), row })
    }
}

fn commands(table: &Table) -> impl Iterator<Item = Entry> {
    table.rows().into_iter().map(|row| Entry { container: None, row })
}

fn list_all(table: &Table, out: &mut Reply) {
    out.array(table.rows().len());
    commands(table).for_each(|entry| write_info(entry, out));
}

fn command(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 1 {
        return unknown_subcommand(ctx, args, out);
    }
    list_all(ctx.server.table, out);
    Ok(())
}

fn count(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.server.table.rows().len() as i64);
    Ok(())
}

fn info(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() == 2 {
        list_all(ctx.server.table, out);
        return Ok(());
    }
    out.array(args.len() - 2);
    for name in args.iter().skip(2) {
        meter::step(STEPS_OF_A_ROW)?;
        match Entry::find(ctx.server.table, name) {
            Some(entry) => write_info(entry, out),
            None => out.nil(),
        }
    }
    Ok(())
}

fn docs(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let table = ctx.server.table;
    let mark = out.defer_map();
    let mut count = 0;
    let mut show = |entry: Entry| {
        meter::step(STEPS_OF_A_ROW)?;
        docs::write(entry, out);
        count += 1;
        Ok::<_, Error>(())
    };
    match args.len() {
        2 => commands(table).try_for_each(&mut show)?,
        _ => args.iter().skip(2).filter_map(|name| Entry::find(table, name)).try_for_each(&mut show)?,
    }
    out.set_len(mark, count);
    Ok(())
}

/// What describing a command takes, beside a visit of an element.
const STEPS_OF_A_ROW: usize = 64;

fn list(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let table = ctx.server.table;
    let names: Vec<String> = if args.len() == 2 {
        Entry::all(table).map(Entry::name).collect()
    } else {
        let (5, true) = (args.len(), args[2].eq_ignore_ascii_case(b"filterby")) else { return Err(Error::Syntax) };
        let wanted = &args[4];
        match args[3].to_ascii_lowercase().as_slice() {
            // There are no modules.
            b"module" => Vec::new(),
            b"aclcat" => Entry::all(table).filter(|entry| is_in(*entry, wanted)).map(Entry::name).collect(),
            b"pattern" => Entry::all(table)
                .map(Entry::name)
                .filter(|name| glob::matches_nocase(wanted, name.as_bytes()))
                .collect(),
            _ => return Err(Error::Syntax),
        }
    };
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

fn is_in(entry: Entry, name: &[u8]) -> bool {
    category(name).is_some_and(|wanted| categories_of(entry.row).any(|of| of == wanted))
}

/// A call among the arguments of GETKEYS: its row, and its keys with the flags of each.
fn keys_of_call(table: &Table, args: Args<'_>) -> Result<Vec<(usize, u16)>> {
    const INVALID: Error = Error::err("ERR Invalid command specified");
    let (_, container) = table.find(&args[0]).ok_or(INVALID)?;
    let row = container.resolve(args.get(1));
    if std::ptr::eq(row, container) && !container.subcommands.is_empty() && args.len() > 1 && container.arity < -1 {
        return Err(INVALID);
    }
    // Channels have shards, as keys have, and are none.
    if row.keys.iter().all(|spec| spec.flags & key::NOT_KEY != 0) {
        return Err(Error::err("ERR The command has no key arguments"));
    }
    if !row.accepts(args.len()) {
        return Err(Error::err("ERR Invalid number of arguments specified for command"));
    }
    meter::hold(2 * args.len() * size_of::<(usize, u16)>())?;
    // A key that may be left out is one that Redis misses here.
    let lacks_one = row.named.is_none()
        && row.keys.iter().any(|spec| matches!(spec.begin, Begin::Index(index) if index >= args.len()));
    let found = if lacks_one { KeysAt::new() } else { keys_of(row, args).unwrap_or_default() };
    if found.is_empty() && !row.has(flags::NO_MANDATORY_KEYS) {
        return Err(Error::err("ERR Invalid arguments specified for command"));
    }
    Ok(access_of_known(row, args, found).to_vec())
}

fn getkeys(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let call = args.slice(2);
    let keys = keys_of_call(ctx.server.table, call)?;
    out.array(keys.len());
    keys.iter().for_each(|&(at, _)| out.bulk(&call[at]));
    Ok(())
}

fn getkeysandflags(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let call = args.slice(2);
    let keys = keys_of_call(ctx.server.table, call)?;
    out.array(keys.len());
    for (at, flags) in keys {
        out.array(2);
        out.bulk(&call[at]);
        let names: Vec<_> = key_flags(flags).collect();
        out.set(names.len());
        names.iter().for_each(|name| out.status(name));
    }
    Ok(())
}

fn command_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "(no subcommand)",
        "    What INFO answers, of all commands.",
        "COUNT",
        "    Number of commands.",
        "DOCS [<command> ...]",
        "    Summaries and arguments of commands.",
        "GETKEYS <command> [<argument> ...]",
        "    The keys among the arguments.",
        "GETKEYSANDFLAGS <command> [<argument> ...]",
        "    The keys among the arguments, and what the command does to them.",
        "INFO [<command> ...]",
        "    Arity, flags and keys of commands.",
        "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
        "    Names of commands.",
    ];
    help(out, "COMMAND", &lines);
    Ok(())
}

const QUIET: u32 = flags::LOADING | flags::STALE | flags::CONNECTION;

const fn sub(name: &'static str, run: crate::handler::Run, arity: i32) -> Command {
    Command::new(name, run, arity, QUIET, Group::Server)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("command", command, -1, QUIET, Group::Server)
    .help("2.8.13", "Describes all commands.")
    .syntax("", "O(N) where N is the number of commands")
    .subcommands(&[
        sub("count", count, 2).help("2.8.13", "Returns the number of commands.").syntax("", "O(1)"),
        sub("docs", docs, -2)
            .help("7.0.0", "Returns summaries and arguments of commands.")
            .syntax("[command-name [command-name ...]]", "O(N) where N is the number of commands asked for"),
        sub("getkeys", getkeys, -3)
            .help("2.8.13", "Returns the keys of a call.")
            .syntax("command [arg [arg ...]]", "O(N) where N is the number of arguments"),
        sub("getkeysandflags", getkeysandflags, -3)
            .help("7.0.0", "Returns the keys of a call and what it does to them.")
            .syntax("command [arg [arg ...]]", "O(N) where N is the number of arguments"),
        sub("help", command_help, 2).help("5.0.0", "Describes the subcommands of COMMAND.").syntax("", "O(1)"),
        sub("info", info, -2)
            .help("2.8.13", "Describes commands.")
            .syntax("[command-name [command-name ...]]", "O(N) where N is the number of commands asked for"),
        sub("list", list, -2).help("7.0.0", "Returns the names of commands.").syntax(
            "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
            "O(N) where N is the number of commands",
        ),
    ])];
