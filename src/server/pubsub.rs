//! SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE and their opposites, PUBLISH, SPUBLISH, PUBSUB.

use super::acl::permit::permit_hearing;
use super::{help, unknown_subcommand};
use crate::handler::pubsub::{By, Name};
use crate::handler::{Args, Command, Ctx, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::actor::ShardSet;

/// The kinds that are counted together in what a subscriber is told.
fn counted_with(by: By) -> &'static [By] {
    if by == By::Shard { &[By::Shard] } else { &[By::Channel, By::Pattern] }
}

fn tell(ctx: &Ctx, by: By, word: &str, name: Option<&[u8]>, out: &mut Reply) {
    out.push(3);
    out.bulk(word.as_bytes());
    match name {
        Some(name) => out.bulk(name),
        None => out.nil(),
    }
    out.int(ctx.session().subscriptions(counted_with(by)) as i64);
}

fn subscribe_by(ctx: &mut Ctx, args: Args<'_>, by: By, word: &str, out: &mut Reply) -> Result {
    ctx.speaks();
    for name in args.iter().skip(1) {
        ctx.subscribe(by, name);
        tell(ctx, by, word, Some(name), out);
    }
    permit_hearing(ctx, args)
}

fn unsubscribe_by(ctx: &mut Ctx, args: Args<'_>, by: By, word: &str, out: &mut Reply) -> Result {
    ctx.speaks();
    let all: Vec<Name>;
    let names: Vec<&[u8]> = if args.len() > 1 {
        args.iter().skip(1).collect()
    } else {
        all = ctx.subscribed(by);
        all.iter().map(|name| &**name).collect()
    };
    if names.is_empty() {
        tell(ctx, by, word, None, out);
    }
    for name in names {
        ctx.unsubscribe(by, name);
        tell(ctx, by, word, Some(name), out);
    }
    Ok(())
}

fn subscribe(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    subscribe_by(ctx, args, By::Channel, "subscribe", out)
}

fn unsubscribe(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    unsubscribe_by(ctx, args, By::Channel, "unsubscribe", out)
}

fn psubscribe(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    subscribe_by(ctx, args, By::Pattern, "psubscribe", out)
}

fn punsubscribe(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    unsubscribe_by(ctx, args, By::Pattern, "punsubscribe", out)
}

fn ssubscribe(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    subscribe_by(ctx, args, By::Shard, "ssubscribe", out)
}

fn sunsubscribe(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    unsubscribe_by(ctx, args, By::Shard, "sunsubscribe", out)
}

/// Ends all subscriptions, and tells nobody.
pub fn unsubscribe_all(ctx: &mut Ctx) {
    for by in By::ALL {
        ctx.subscribed(by).iter().for_each(|name| ctx.unsubscribe(by, name));
    }
}

fn publish(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.publish(false, &args[1], &args[2]) as i64);
    Ok(())
}

fn spublish(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.publish(true, &args[1], &args[2]) as i64);
    Ok(())
}

fn list_channels(ctx: &Ctx, args: Args<'_>, by: By, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return Err(super::wrong_subcommand(args));
    }
    let names = ctx.server.hub.channels(by, args.get(2));
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name));
    Ok(())
}

fn count_subscribers(ctx: &Ctx, args: Args<'_>, by: By, out: &mut Reply) -> Result {
    out.array(2 * (args.len() - 2));
    for name in args.iter().skip(2) {
        out.bulk(name);
        out.int(ctx.server.hub.subscribers(by, name) as i64);
    }
    Ok(())
}

fn channels(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    list_channels(ctx, args, By::Channel, out)
}

fn shardchannels(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    list_channels(ctx, args, By::Shard, out)
}

fn numsub(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    count_subscribers(ctx, args, By::Channel, out)
}

fn shardnumsub(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    count_subscribers(ctx, args, By::Shard, out)
}

fn numpat(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.server.hub.count(By::Pattern) as i64);
    Ok(())
}

fn pubsub_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(
        out,
        "PUBSUB",
        &[
            "CHANNELS [<pattern>]",
            "    Lists the channels that have subscribers.",
            "NUMPAT",
            "    Counts the patterns that have subscribers.",
            "NUMSUB [<channel> ...]",
            "    Counts the subscribers of channels, those of patterns apart.",
            "SHARDCHANNELS [<pattern>]",
            "    Lists the channels of SPUBLISH that have subscribers.",
            "SHARDNUMSUB [<shardchannel> ...]",
            "    Counts the subscribers of channels of SPUBLISH.",
        ],
    );
    Ok(())
}

const SUBSCRIBES: u32 = flags::PUBSUB | flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::SUBSCRIBER;
const PUBLISHES: u32 = flags::PUBSUB | flags::LOADING | flags::STALE | flags::FAST | flags::MAY_WRITE;
const ASKS: u32 = flags::PUBSUB | flags::LOADING | flags::STALE;
const CHANNELS: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::NOT_KEY)];
const CHANNEL: &[KeySpec] = &[KeySpec::one(1, key::NOT_KEY)];
const PER_SUBSCRIPTION: &str = "O(N) where N is the number of channels or patterns.";

const SUBCOMMANDS: &[Command] = &[
    Command::new("channels", channels, -2, ASKS, Group::PubSub)
        .help("2.8.0", "Lists the channels that have subscribers.")
        .syntax("[pattern]", "O(N) where N is the number of channels that have subscribers"),
    Command::new("help", pubsub_help, 2, flags::LOADING | flags::STALE, Group::PubSub)
        .help("6.2.0", "Lists the subcommands.")
        .syntax("", "O(1)"),
    Command::new("numpat", numpat, 2, ASKS, Group::PubSub)
        .help("2.8.0", "Counts the patterns that have subscribers.")
        .syntax("", "O(1)"),
    Command::new("numsub", numsub, -2, ASKS, Group::PubSub)
        .help("2.8.0", "Counts the subscribers of channels.")
        .syntax("[channel [channel ...]]", "O(N) where N is the number of channels given"),
    Command::new("shardchannels", shardchannels, -2, ASKS, Group::PubSub)
        .help("7.0.0", "Lists the channels of SPUBLISH that have subscribers.")
        .syntax("[pattern]", "O(N) where N is the number of channels that have subscribers"),
    Command::new("shardnumsub", shardnumsub, -2, ASKS, Group::PubSub)
        .help("7.0.0", "Counts the subscribers of channels of SPUBLISH.")
        .syntax("[shardchannel [shardchannel ...]]", "O(N) where N is the number of channels given"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("subscribe", subscribe, -2, SUBSCRIBES, Group::PubSub)
        .channels(true, false)
        .help("2.0.0", "Has the connection hear what is published to channels.")
        .syntax("channel [channel ...]", PER_SUBSCRIPTION),
    Command::new("unsubscribe", unsubscribe, -1, SUBSCRIBES, Group::PubSub)
        .help("2.0.0", "Has the connection no longer hear channels, or any.")
        .syntax("[channel [channel ...]]", PER_SUBSCRIPTION),
    Command::new("psubscribe", psubscribe, -2, SUBSCRIBES, Group::PubSub)
        .channels(true, true)
        .help("2.0.0", "Has the connection hear what is published to channels that match patterns.")
        .syntax("pattern [pattern ...]", PER_SUBSCRIPTION),
    Command::new("punsubscribe", punsubscribe, -1, SUBSCRIBES, Group::PubSub)
        .help("2.0.0", "Has the connection no longer hear what matches patterns, or any.")
        .syntax("[pattern [pattern ...]]", PER_SUBSCRIPTION),
    Command::new("ssubscribe", ssubscribe, -2, SUBSCRIBES, Group::PubSub)
        .channels(true, false)
        .keys(CHANNELS)
        .route_by(|_, _, _| Some(ShardSet::new()))
        .help("7.0.0", "Has the connection hear what is published to channels by SPUBLISH.")
        .syntax("shardchannel [shardchannel ...]", PER_SUBSCRIPTION),
    Command::new("sunsubscribe", sunsubscribe, -1, SUBSCRIBES, Group::PubSub)
        .keys(CHANNELS)
        .route_by(|_, _, _| Some(ShardSet::new()))
        .help("7.0.0", "Has the connection no longer hear channels of SPUBLISH, or any.")
        .syntax("[shardchannel [shardchannel ...]]", PER_SUBSCRIPTION),
    Command::new("publish", publish, 3, PUBLISHES, Group::PubSub)
        .channels(false, false)
        .help("2.0.0", "Sends a message to a channel.")
        .syntax("channel message", "O(N+M) where N is the number of subscribers and M that of patterns."),
    Command::new("spublish", spublish, 3, PUBLISHES, Group::PubSub)
        .channels(false, false)
        .keys(CHANNEL)
        .route_by(|_, _, _| Some(ShardSet::new()))
        .help("7.0.0", "Sends a message to a channel of SSUBSCRIBE.")
        .syntax("shardchannel message", "O(N) where N is the number of subscribers."),
    Command::new("pubsub", unknown_subcommand, -2, flags::UNQUEUED, Group::PubSub)
        .help("2.8.0", "Tells about channels and their subscribers.")
        .syntax("", "Depends on the subcommand")
        .subcommands(SUBCOMMANDS),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::acl::Identity;
    use crate::handler::acl::rules::Rules;
    use crate::handler::acl::user::User;
    use crate::handler::session::Client;
    use crate::handler::{Effects, OwnedArgs, Server, Session, Table};
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::txn::{Txn, WriteSet};

    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(&[COMMANDS]));

    /// Who took the right away has looked at those who hear the channel before this one did.
    #[test]
    fn who_may_hear_a_channel_no_more_when_he_has_just_begun_is_refused() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = Server::new(engine(dir.path(), 1), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let rules = Rules { table: &TABLE, all_channels: false };
        let mut user = User::new(&TABLE, b"u", false);
        for rule in [&b"+subscribe"[..], b"&a", b"&b"] {
            assert!(rules.apply(&mut user, rule).unwrap().is_ok());
        }
        assert!(server.acl.put(None, user));
        let client = Arc::new(Client { messages: server.hub.messages(), ..Client::default() });
        let mut session = Session::new(client, server.engine.first_names(), &server.acl);
        session.become_user(Identity::of(server.acl.user(b"u").unwrap()));
        let mut hear = |channel: &[u8]| {
            // What it may do is looked up as the call comes; the change comes behind that.
            assert!(session.look_up(&server));
            if channel == b"b" {
                let old = server.acl.user(b"u").unwrap();
                let mut new = User::clone(&old);
                assert!(rules.apply(&mut new, b"resetchannels").unwrap().is_ok());
                assert!(server.acl.put(Some(&old), new));
            }
            let (mut set, mut effects) = (WriteSet::default(), Effects::default());
            let mut lease = server.engine.lease(&[]);
            let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, true);
            let mut ctx = Ctx::new(txn, &mut session, &mut effects, &server);
            let args: OwnedArgs = [&b"SUBSCRIBE"[..], channel].into_iter().collect();
            subscribe(&mut ctx, args.as_args(), &mut Reply::new(2)).map_err(|error| error.text().into_owned())
        };
        assert_eq!(hear(b"a"), Ok(()));
        assert_eq!(hear(b"b"), Err("NOPERM No permissions to access a channel".to_owned()));
    }
}
