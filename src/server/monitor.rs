//! MONITOR.

use crate::handler::{Args, Command, Ctx, Group, Reply, Result, flags};

fn monitor(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    // Whoever is shown them already gets no reply, as from Redis.
    if ctx.monitor()? {
        out.ok();
    }
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new(
    "monitor",
    monitor,
    1,
    flags::ADMIN | flags::LOADING | flags::NOSCRIPT | flags::STALE,
    Group::Server,
)
.help("1.0.0", "Shows the connection every command that the server runs.")
.syntax("", "")];
