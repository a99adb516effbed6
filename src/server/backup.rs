//! BACKUP: copies of the running store in `backup-dir`.
//!
//! CREATE answers when the backup has begun. How far it is, BACKUP LIST and `INFO tarn` tell; it is a backup once LIST calls it whole.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::{help, unknown_subcommand};
use crate::backup::{self, BackupError};
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, flags};

fn refused(error: &BackupError) -> Error {
    Error::Text(format!("ERR {error}").into())
}

/// The folder of backups; only for who may wait for the disk.
fn folder(ctx: &mut Ctx) -> Result<PathBuf> {
    if !ctx.may_block() {
        return Err(Error::Cold);
    }
    ctx.settings().backup_dir.clone().ok_or(Error::err("ERR backup-dir is not set"))
}

fn create(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let folder = folder(ctx)?;
    let name = backup::valid_name(&args[2]).map_err(|error| refused(&error))?;
    ctx.server.engine.create_backup(&folder, name).map_err(|error| refused(&error))?;
    out.status("Backup started");
    Ok(())
}

fn delete(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let folder = folder(ctx)?;
    let name = backup::valid_name(&args[2]).map_err(|error| refused(&error))?;
    if ctx.server.engine.backups.running().is_some_and(|running| running.name == name) {
        return Err(Error::err("ERR that backup is being made"));
    }
    backup::delete(&folder, name).map_err(|error| refused(&error))?;
    out.ok();
    Ok(())
}

/// A line of LIST.
struct Line {
    name: String,
    status: String,
    time_s: u64,
    last_lsn: u64,
    size_bytes: u64,
    done_bytes: u64,
}

fn list(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let folder = folder(ctx)?;
    // First: one that ends meanwhile is found whole.
    let mut running = ctx.server.engine.backups.running();
    let mut found = backup::list(&folder).map_err(|error| refused(&error))?;
    if let Some(one) = &running {
        found.retain(|found| found.name != one.name || found.manifest.is_ok());
        if found.iter().any(|found| found.name == one.name) {
            running = None;
        }
    }
    let line = |found: backup::Found| match found.manifest {
        Ok(manifest) => Line {
            name: found.name,
            status: "whole".to_owned(),
            time_s: manifest.made_ms / 1000,
            last_lsn: manifest.last_lsn,
            size_bytes: manifest.size_bytes(),
            done_bytes: manifest.size_bytes(),
        },
        Err(error) => Line {
            name: found.name,
            status: format!("broken: {error}"),
            time_s: 0,
            last_lsn: 0,
            size_bytes: 0,
            done_bytes: 0,
        },
    };
    let mut lines: Vec<Line> = found.into_iter().map(line).collect();
    let backups = &ctx.server.engine.backups;
    lines.extend(running.map(|running| Line {
        name: running.name,
        status: "running".to_owned(),
        time_s: running.began_ms / 1000,
        last_lsn: 0,
        size_bytes: backups.total_bytes.load(Ordering::Relaxed),
        done_bytes: backups.done_bytes.load(Ordering::Relaxed),
    }));
    out.array(lines.len());
    for Line { name, status, time_s, last_lsn, size_bytes, done_bytes } in lines {
        out.map(6);
        for (field, text) in [("name", name), ("status", status)] {
            out.bulk(field.as_bytes());
            out.bulk(text.as_bytes());
        }
        for (field, number) in [("time", time_s), ("lsn", last_lsn), ("bytes", size_bytes), ("bytes-done", done_bytes)]
        {
            out.bulk(field.as_bytes());
            out.int(number as i64);
        }
    }
    Ok(())
}

const HELP: &[&str] = &[
    "CREATE <name>",
    "    Begin to make a backup of the running store in backup-dir.",
    "DELETE <name>",
    "    Remove a backup.",
    "LIST",
    "    The backups, and the one that is being made.",
];

fn backup_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(out, "BACKUP", HELP);
    Ok(())
}

const DISK: u32 = flags::ADMIN | flags::NOSCRIPT | flags::NO_ASYNC_LOADING | flags::NO_MULTI | flags::THREAD;

const SUBCOMMANDS: &[Command] = &[
    Command::new("create", create, 3, DISK, Group::Server)
        .help("8.2.0", "Begins to make a backup of the running store.")
        .syntax("name", "O(N) where N is the number of the store's files, in the background"),
    Command::new("delete", delete, 3, DISK, Group::Server)
        .help("8.2.0", "Removes a backup.")
        .syntax("name", "O(N) where N is the number of the backup's files"),
    Command::new("help", backup_help, 2, flags::LOADING | flags::STALE, Group::Server)
        .help("8.2.0", "Describes the subcommands of BACKUP.")
        .syntax("", "O(1)"),
    Command::new("list", list, 2, DISK, Group::Server)
        .help("8.2.0", "Returns the backups, and the one that is being made.")
        .syntax("", "O(N) where N is the number of files of all backups"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("backup", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
    .help("8.2.0", "Commands about backups.")
    .syntax("", "Depends on the subcommand")
    .subcommands(SUBCOMMANDS)];
