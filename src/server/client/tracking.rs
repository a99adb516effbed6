//! CLIENT TRACKING and its kin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::on_or_off;
use crate::handler::session::{Client, bits};
use crate::handler::tracking::{Mode, Tracking};
use crate::handler::{Args, Ctx, Error, Reply, Result};

/// What CLIENT TRACKING is given.
#[derive(Default)]
struct Options {
    redirect: Option<Arc<Client>>,
    broadcast: bool,
    optin: bool,
    optout: bool,
    noloop: bool,
    prefixes: Vec<Box<[u8]>>,
}

impl Options {
    fn parse(ctx: &Ctx, args: Args<'_>) -> Result<Options> {
        let mut options = Options::default();
        let mut words = args.cursor(3);
        while !words.is_empty() {
            if words.remaining() >= 2 && words.next_is(b"REDIRECT") {
                if options.redirect.is_some() {
                    return Err(Error::err("ERR A client can only redirect to a single other client"));
                }
                let id = words.int()?;
                let client = u64::try_from(id).ok().and_then(|id| ctx.server.clients.lock().get(&id).cloned());
                options.redirect =
                    Some(client.ok_or(Error::err("ERR The client ID you want redirect to does not exist"))?);
            } else if words.next_is(b"BCAST") {
                options.broadcast = true;
            } else if words.next_is(b"OPTIN") {
                options.optin = true;
            } else if words.next_is(b"OPTOUT") {
                options.optout = true;
            } else if words.next_is(b"NOLOOP") {
                options.noloop = true;
            } else if words.remaining() >= 2 && words.next_is(b"PREFIX") {
                options.prefixes.push(words.arg()?.into());
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }

    /// The mode, if it goes together with what there is.
    fn mode(&self, now: Option<&Tracking>) -> Result<Mode> {
        if !self.broadcast && !self.prefixes.is_empty() {
            return Err(Error::err("ERR PREFIX option requires BCAST mode to be enabled"));
        }
        if now.is_some_and(|now| (now.mode == Mode::Broadcast) != self.broadcast) {
            return Err(Error::err(
                "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling \
                 it with a different mode.",
            ));
        }
        if self.broadcast && (self.optin || self.optout) {
            return Err(Error::err("ERR OPTIN and OPTOUT are not compatible with BCAST"));
        }
        if self.optin && self.optout {
            return Err(Error::err("ERR You can't specify both OPTIN mode and OPTOUT mode"));
        }
        let was = now.map(|now| now.mode);
        if self.optin && was == Some(Mode::OptOut) || self.optout && was == Some(Mode::OptIn) {
            return Err(Error::err(
                "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling \
                 it with a different mode.",
            ));
        }
        Ok(match (self.broadcast, self.optin, self.optout) {
            (true, ..) => Mode::Broadcast,
            (_, true, _) => Mode::OptIn,
            (_, _, true) => Mode::OptOut,
            _ => Mode::Read,
        })
    }

    /// None of the prefixes may begin as another one does.
    fn check_prefixes(&self, now: Option<&Tracking>) -> Result {
        let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
        let refuse = |prefix: &[u8], other: &[u8], which: &[u8]| {
            let parts = [
                b"ERR Prefix '",
                prefix,
                b"' overlaps with ",
                which,
                b" prefix '",
                other,
                b"'. Prefixes for a single client must not overlap.",
            ];
            Err(Error::Quoted(parts.concat().into()))
        };
        for (at, prefix) in self.prefixes.iter().enumerate() {
            let there = now.map_or(&[][..], |now| &now.prefixes);
            if let Some(other) = there.iter().find(|other| overlap(prefix, other)) {
                return refuse(prefix, other, b"an existing");
            }
            if let Some(other) = self.prefixes[at + 1..].iter().find(|other| overlap(prefix, other)) {
                return refuse(prefix, other, b"another provided");
            }
        }
        Ok(())
    }
}

pub(super) fn tracking(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::parse(ctx, args)?;
    if on_or_off(&args[2])? {
        let now = ctx.session().tracking.as_deref();
        let mode = options.mode(now)?;
        if mode == Mode::Broadcast {
            options.check_prefixes(now)?;
        }
        let mut prefixes = options.prefixes;
        // Without any it is told of all keys, whatever beginnings it has asked for before.
        if mode == Mode::Broadcast && prefixes.is_empty() {
            prefixes.push(Box::default());
        }
        ctx.track(mode, options.noloop, options.redirect, prefixes);
    } else {
        ctx.track_no_more();
    }
    out.ok();
    Ok(())
}

pub(super) fn caching(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mode = ctx.session().tracking.as_ref().map(|tracking| tracking.mode);
    let (yes, no) = (args[2].eq_ignore_ascii_case(b"yes"), args[2].eq_ignore_ascii_case(b"no"));
    match mode {
        Some(Mode::OptIn) if no => {
            return Err(Error::err("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."));
        }
        Some(Mode::OptOut) if yes => {
            return Err(Error::err("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."));
        }
        Some(Mode::OptIn | Mode::OptOut) if yes || no => ctx.caching(true),
        Some(Mode::OptIn | Mode::OptOut) => return Err(Error::Syntax),
        _ => {
            return Err(Error::err(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
                 enabled",
            ));
        }
    }
    out.ok();
    Ok(())
}

/// The id of who gets the notices; 0 for the connection itself, −1 if there are none.
pub(super) fn redirect_of(client: &Client) -> i64 {
    match client.bits.load(Ordering::Relaxed) & bits::TRACKING {
        0 => -1,
        _ => client.redirect.load(Ordering::Relaxed) as i64,
    }
}

pub(super) fn getredir(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(redirect_of(&ctx.session().client));
    Ok(())
}

pub(super) fn trackinginfo(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let session = ctx.session();
    let tracking = session.tracking.as_deref();
    let mut words = vec![if tracking.is_some() { "on" } else { "off" }];
    if let Some(tracking) = tracking {
        match tracking.mode {
            Mode::Read => {}
            Mode::Broadcast => words.push("bcast"),
            Mode::OptIn => words.push("optin"),
            Mode::OptOut => words.push("optout"),
        }
        if tracking.caching {
            words.push(if tracking.mode == Mode::OptIn { "caching-yes" } else { "caching-no" });
        }
        if tracking.is_noloop() {
            words.push("noloop");
        }
        if session.client.bits.load(Ordering::Relaxed) & bits::BROKEN_REDIRECT != 0 {
            words.push("broken_redirect");
        }
    }
    out.map(3);
    out.bulk(b"flags");
    out.set(words.len());
    words.iter().for_each(|word| out.bulk(word.as_bytes()));
    out.bulk(b"redirect");
    out.int(redirect_of(&session.client));
    out.bulk(b"prefixes");
    let prefixes = tracking.map_or(&[][..], |tracking| &tracking.prefixes);
    let mut sorted: Vec<&[u8]> = prefixes.iter().map(|prefix| &prefix[..]).collect();
    sorted.sort_unstable();
    out.array(sorted.len());
    sorted.iter().for_each(|prefix| out.bulk(prefix));
    Ok(())
}
