//! What all containers of subcommands answer alike: to HELP, and to words that they do not know.

use super::{Args, Ctx, Error, Reply, Result};

/// A container called with a word that is none of its subcommands. Its row is `UNQUEUED`: such a call is never queued, it
/// spoils the transaction.
pub fn unknown_subcommand(ctx: &mut Ctx, args: Args<'_>, _out: &mut Reply) -> Result {
    if let Some(multi) = ctx.multi() {
        multi.aborted = true;
    }
    let container = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
    Err(Error::quoting("ERR unknown subcommand '", &args[1], 128, &format!("'. Try {container} HELP.")))
}

/// The reply of a HELP subcommand: `lines` framed by what Redis puts around every one.
pub fn help(out: &mut Reply, container: &str, lines: &[&str]) {
    out.array(lines.len() + 3);
    out.status(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    lines.iter().for_each(|line| out.status(line));
    out.status("HELP");
    out.status("    Print this help.");
}

/// A subcommand with words that it does not take.
pub fn wrong_subcommand(args: Args<'_>) -> Error {
    let container = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
    let before = "ERR unknown subcommand or wrong number of arguments for '";
    Error::quoting(before, &args[1], 128, &format!("'. Try {container} HELP."))
}
