//! The reply of COMMAND DOCS: a map of each command's name to what stands in its row.

use super::Entry;
use super::grammar::{self, Arg, Kind};
use crate::handler::{Group, Reply};

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Generic => "generic",
        Group::String => "string",
        Group::List => "list",
        Group::Set => "set",
        Group::SortedSet => "sorted-set",
        Group::Hash => "hash",
        Group::PubSub => "pubsub",
        Group::Transactions => "transactions",
        Group::Connection => "connection",
        Group::Server => "server",
        Group::Scripting => "scripting",
        Group::HyperLogLog => "hyperloglog",
        Group::Cluster => "cluster",
        Group::Geo => "geo",
        Group::Stream => "stream",
        Group::Bitmap => "bitmap",
        Group::Module => "module",
    }
}

/// Since when a command should not be used any more, and what should be.
fn deprecation(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        "getset" => ("6.2.0", "`SET` with the `!GET` argument"),
        "setex" => ("2.6.12", "`SET` with the `EX` argument"),
        "psetex" => ("2.6.12", "`SET` with the `PX` argument"),
        "setnx" => ("2.6.12", "`SET` with the `NX` argument"),
        "substr" => ("2.0.0", "`GETRANGE`"),
        "quit" => ("7.2.0", "just closing the connection"),
        "slaveof" => ("5.0.0", "`REPLICAOF`"),
        "cluster|slots" => ("7.0.0", "`CLUSTER SHARDS`"),
        "hmset" => ("4.0.0", "`HSET` with multiple field-value pairs"),
        "rpoplpush" => ("6.2.0", "`LMOVE` with the `RIGHT` and `LEFT` arguments"),
        "brpoplpush" => ("6.2.0", "`BLMOVE` with the `RIGHT` and `LEFT` arguments"),
        "zrangebylex" => ("6.2.0", "`ZRANGE` with the `BYLEX` argument"),
        "zrangebyscore" => ("6.2.0", "`ZRANGE` with the `BYSCORE` argument"),
        "zrevrange" => ("6.2.0", "`ZRANGE` with the `REV` argument"),
        "zrevrangebylex" => ("6.2.0", "`ZRANGE` with the `REV` and `BYLEX` arguments"),
        "zrevrangebyscore" => ("6.2.0", "`ZRANGE` with the `REV` and `BYSCORE` arguments"),
        "georadius" => ("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` argument"),
        "georadius_ro" => ("6.2.0", "`GEOSEARCH` with the `BYRADIUS` argument"),
        "georadiusbymember" => {
            ("6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with the `BYRADIUS` and `FROMMEMBER` arguments")
        }
        "georadiusbymember_ro" => ("6.2.0", "`GEOSEARCH` with the `BYRADIUS` and `FROMMEMBER` arguments"),
        _ => return None,
    })
}

/// Whether it is for servers, and those who look into them.
fn is_internal(name: &str) -> bool {
    matches!(name, "debug" | "pfdebug" | "pfselftest" | "replconf" | "restore-asking")
}

/// A name and its map.
pub(super) fn write(entry: Entry, out: &mut Reply) {
    let row = entry.row;
    let name = entry.name();
    let deprecation = deprecation(&name);
    let args = grammar::parse(row.syntax);
    debug_assert_eq!(args.is_empty(), row.syntax.is_empty(), "the grammar reads: {name}");
    let fields = 4
        + 3 * usize::from(deprecation.is_some())
        + usize::from(is_internal(&name))
        + usize::from(!args.is_empty())
        + usize::from(!row.subcommands.is_empty());
    out.bulk(name.as_bytes());
    out.map(fields);
    write_text(out, "summary", row.summary);
    write_text(out, "since", row.since);
    write_text(out, "group", group_name(row.group));
    write_text(out, "complexity", row.complexity);
    if let Some((since, by)) = deprecation {
        out.bulk(b"doc_flags");
        out.set(1);
        out.status("deprecated");
        write_text(out, "deprecated_since", since);
        write_text(out, "replaced_by", by);
    }
    if is_internal(&name) {
        out.bulk(b"doc_flags");
        out.set(1);
        out.status("syscmd");
    }
    if !args.is_empty() {
        out.bulk(b"arguments");
        write_args(&args, row.keys.len(), &mut 0, out);
    }
    if !row.subcommands.is_empty() {
        out.bulk(b"subcommands");
        out.map(row.subcommands.len());
        entry.subcommands().for_each(|sub| write(sub, out));
    }
}

fn write_text(out: &mut Reply, name: &str, text: &str) {
    out.bulk(name.as_bytes());
    out.bulk(text.as_bytes());
}

/// `next_spec` is the key spec of the next argument that is a key; the last spec serves all further ones.
fn write_args(args: &[Arg], specs: usize, next_spec: &mut usize, out: &mut Reply) {
    out.array(args.len());
    for arg in args {
        write_arg(arg, specs, next_spec, out);
    }
}

fn write_arg(arg: &Arg, specs: usize, next_spec: &mut usize, out: &mut Reply) {
    let is_key = arg.kind == Kind::Key && specs > 0;
    let is_group = !arg.parts.is_empty();
    let flags = [(arg.optional, "optional"), (arg.multiple, "multiple"), (arg.multiple_token, "multiple_token")];
    let flags: Vec<_> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    let fields = 2
        + usize::from(!is_group) * 2
        + usize::from(is_key)
        + usize::from(arg.token.is_some())
        + usize::from(!flags.is_empty());
    out.map(if is_group { fields + 1 } else { fields - 1 });
    write_text(out, "name", &arg.name);
    write_text(out, "type", arg.kind.name());
    if !is_group {
        write_text(out, "display_text", &arg.name);
    }
    if is_key {
        out.bulk(b"key_spec_index");
        out.int((*next_spec).min(specs - 1) as i64);
        *next_spec += 1;
    }
    if let Some(token) = &arg.token {
        write_text(out, "token", token);
    }
    if !flags.is_empty() {
        out.bulk(b"flags");
        out.set(flags.len());
        flags.iter().for_each(|name| out.status(name));
    }
    if is_group {
        out.bulk(b"arguments");
        write_args(&arg.parts, specs, next_spec, out);
    }
}
