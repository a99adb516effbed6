//! Who is kept waiting, and by whom.

use super::*;
use crate::command::run::posted::Place;
use crate::handler::After;
use crate::handler::session::Waiting;
use crate::shard::memory::blocked::{End, Waiter};

/// The command of a client that waits for a key, taken to be served.
fn take(client: &Client) -> (Arc<Waiter>, Box<Request>) {
    let Waiting::For(waiter, _) = std::mem::take(&mut *client.waiting.lock()) else { panic!("it waits") };
    let request = waiter.claim().and_then(|parked| parked.downcast().ok());
    (waiter, request.unwrap())
}

/// What has come of a key that a list was pushed to.
fn popped(key: &str) -> String {
    format!("*2 ${} {key} ${} for:{key} ", key.len(), key.len() + 4)
}

/// A waiter that is looked at anew for one of its keys, which nobody has changed, finds another of them at hand: what that holds is for
/// who has waited for it longer.
#[test]
fn who_is_looked_at_anew_leaves_to_others_what_is_theirs() {
    let mut world = World::new();
    let ([none, line], server) = (world.keys(), world.runner.server.clone());
    let [mut first, mut second] = [Peer::new(&server), Peer::new(&server)];
    let waits = first.begin(&words(&format!("BLPOP {line} 0")));
    let waits_behind = second.begin(&words(&format!("BLMPOP 0 2 {none} {line} LEFT")));
    {
        let mut core = world.engine().shards.at(0).core();
        let ns = core.names.id(b"0").unwrap();
        core.blocked.pause(ns, none.as_bytes(), true, None);
    }
    for (line, reply) in [
        ("MULTI".to_owned(), "+OK "),
        (format!("LPUSH {line} one"), "+QUEUED "),
        (format!("DEL {none}"), "+QUEUED "),
        ("EXEC".to_owned(), "*2 :1 :0 "),
    ] {
        assert_eq!(world.call(&line), reply);
    }
    // It was served by who has pushed.
    let served = waits.err().and_then(|mut finished| finished.try_recv().ok());
    assert_eq!(
        served.map(|finished| first.end(Ok(finished.reply))).as_deref(),
        Some(&*format!("*2 ${} {line} $3 one ", line.len()))
    );
    world.call(&format!("LPUSH {line} two"));
    assert_eq!(second.end(waits_behind), format!("*2 ${} {line} *1 $3 two ", line.len()));
}

/// What comes to the other key of one that is just being served is his as long as he may yet take it. He leaves that line later: its
/// shard is not at hand.
#[test]
fn who_stands_behind_one_that_is_served_from_another_shard_gets_what_he_leaves() {
    let mut world = World::new();
    let ([here, there], server) = (world.keys(), world.runner.server.clone());
    let [mut first, mut second] = [Peer::new(&server), Peer::new(&server)];
    let client = first.connect();
    let waits = first.begin(&words(&format!("BLPOP {here} {there} 0")));
    let mut waits_behind = second.begin(&words(&format!("BLPOP {there} 0"))).unwrap_err();
    let (_, request) = take(&client);
    for key in [&there, &here] {
        assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
    }
    assert!(waits_behind.try_recv().is_err(), "the first one may yet take it");
    drop(request.run_once(world.engine().lease(&[0]), Place::Served(None)));
    assert_eq!(first.end(waits), popped(&here));
    // Whoever has had the shard meanwhile has done what was left for it.
    drop(world.engine().lease(&[1]));
    let served = waits_behind.try_recv().ok().map(|finished| second.end(Ok(finished.reply)));
    assert_eq!(served, Some(popped(&there)));
}

/// It needs none of the shards of its other keys: of these it has seen that there is nothing.
#[test]
fn who_waits_for_several_keys_is_served_while_others_have_the_shard_of_another() {
    let mut world = World::new();
    let ([here, there], server) = (world.keys(), world.runner.server.clone());
    let mut first = Peer::new(&server);
    let mut waits = first.begin(&words(&format!("BLPOP {here} {there} 0"))).unwrap_err();
    let held = server.engine.shards.at(1).core();
    assert_eq!(world.call(&format!("RPUSH {here} for:{here}")), ":1 ");
    let served = waits.try_recv().ok();
    drop(held);
    assert_eq!(served.map(|finished| first.end(Ok(finished.reply))), Some(popped(&here)));
}

/// Others have their turn meanwhile, and nobody is passed over.
#[test]
fn many_who_wait_for_one_key_are_served_in_several_turns() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let waits: Vec<_> =
        (0..7).map(|_| Peer::new(&server).begin(&words(&format!("BLPOP {key} 0"))).unwrap_err()).collect();
    assert_eq!(world.call(&format!("RPUSH {key} 0 1 2 3 4 5 6 7")), ":8 ");
    for (n, finished) in waits.into_iter().enumerate() {
        let reply = world.end(finished.blocking_recv().map(|finished| finished.reply).map_err(|_| unreachable!()));
        assert_eq!(reply, format!("*2 ${} {key} $1 {n} ", key.len()));
    }
    assert_eq!(world.call(&format!("LRANGE {key} 0 -1")), "*1 $1 7 ");
}

/// Who has begun the wait itself looks for it anyway; told besides, it would look twice.
#[test]
fn who_begins_to_wait_elsewhere_is_told_and_who_begins_here_is_not() {
    let world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    for elsewhere in [false, true] {
        let mut peer = Peer::new(&server);
        let client = peer.connect();
        let held = elsewhere.then(|| server.engine.lease(&[0]));
        let _waits = peer.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
        drop(held);
        let told = pin!(client.news.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert_eq!(told, elsewhere);
    }
}

/// A reply of nothing, too, follows what it has seen there was.
#[test]
fn who_was_served_in_vain_waits_for_what_it_has_seen() {
    const SEEN: Lsn = 1 << 40;
    let world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let mut first = Peer::new(&server);
    let client = first.connect();
    let waits = first.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    let (waiter, request) = take(&client);
    request.wait_again(SEEN, false, &mut world.engine().lease(&[0]));
    assert!(waiter.end(End::Timeout));
    blocked::end_wait(&server, &waiter);
    assert_eq!(waits.blocking_recv().unwrap().need, SEEN);
}

/// Its time may be over while it is on its way.
#[test]
fn who_is_ended_on_the_way_to_be_served_leaves_what_has_come_to_those_behind() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let [mut first, mut second] = [Peer::new(&server), Peer::new(&server)];
    let client = first.connect();
    let waits = first.begin(&words(&format!("BLPOP {key} 0")));
    let mut waits_behind = second.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    let (waiter, request) = take(&client);
    assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
    assert!(!waiter.end(End::Timeout), "it is being served");
    let lease = request.run_once(world.engine().lease(&[0]), Place::Here);
    drop(blocked::serve(&server, lease));
    assert_eq!(first.end(waits), "*-1 ");
    let served = waits_behind.try_recv().ok().map(|finished| second.end(Ok(finished.reply)));
    assert_eq!(served, Some(popped(&key)));
}

/// Not only for what there was to be seen when it began to wait.
#[test]
fn the_reply_of_one_that_was_served_waits_for_what_it_has_written() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let waits = Peer::new(&server).begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
    assert_eq!(waits.blocking_recv().unwrap().need, world.engine().log.last());
}

/// What its user may do by then counts.
#[test]
fn who_may_no_longer_make_the_call_is_refused_when_it_would_be_served() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let mut first = Peer::new(&server);
    let waits = first.begin(&words(&format!("BLPOP {key} 0")));
    assert_eq!(world.call("ACL SETUSER default -blpop"), "+OK ");
    assert_eq!(world.call(&format!("RPUSH {key} one")), ":1 ");
    let reply = first.end(waits);
    assert!(reply.starts_with("-NOPERM"), "{reply}");
    assert_eq!(world.call(&format!("LRANGE {key} 0 -1")), "*1 $3 one ");
}

/// Its command has run elsewhere meanwhile, and has found nothing.
#[test]
fn nobody_waits_for_a_connection_that_has_gone() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let mut gone = Peer::new(&server);
    *gone.connect().waiting.lock() = Waiting::Never;
    let waits = gone.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    assert_eq!(world.call(&format!("RPUSH {key} one")), ":1 ");
    assert_eq!(world.call(&format!("LRANGE {key} 0 -1")), "*1 $3 one ");
    assert!(waits.blocking_recv().is_err(), "there is nothing to answer");
}

/// Who keeps others waiting for as long as one may is answered late: sent again and again, it would keep them waiting for ever.
#[test]
fn a_script_that_uses_up_its_hold_limit_is_answered_late() {
    let mut world = World::new();
    let [key, _] = world.keys();
    assert_eq!(world.call("CONFIG SET script-hold-limit 1"), "+OK ");
    let source = "redis.call('SET', KEYS[1], 1) while true do end";
    let args: OwnedArgs = ["EVAL", source, "1", &key].into_iter().map(str::as_bytes).collect();
    let begun = world.begin(&args);
    let reply = world.end(begun);
    assert!(reply.contains("script-hold-limit"), "{reply}");
    let after = std::mem::replace(&mut world.session.as_mut().unwrap().after, After::Nothing);
    assert_eq!(after, After::HoldMs(20));
    assert_eq!(world.call(&format!("EXISTS {key}")), ":0 ");
    assert_eq!(world.session.as_mut().unwrap().after, After::Nothing);
}

/// Arguments of a script that were made to collide take long to tell apart: not on a network thread.
#[test]
fn arguments_that_collide_are_told_apart_elsewhere() {
    const COUNT: usize = 600;
    let mut world = World::new();
    let mut call = |texts: &mut dyn Iterator<Item = String>| {
        let mut args: OwnedArgs = ["EVAL", "return #ARGV", "0"].into_iter().map(str::as_bytes).collect();
        texts.take(COUNT).for_each(|text| args.push(text.as_bytes()));
        let begun = world.begin(&args);
        let was_here = begun.is_ok();
        assert_eq!(world.end(begun), format!(":{COUNT} "));
        was_here
    };
    // As the strings of Lua are hashed.
    let hash = |text: &str| {
        text.bytes()
            .rev()
            .fold(text.len() as u32, |h, byte| h ^ (h << 5).wrapping_add(h >> 2).wrapping_add(byte.into()))
    };
    assert!(call(&mut (0..).map(|n: u32| format!("{n:08}"))));
    assert!(!call(&mut (0..).map(|n: u32| format!("{n:08}")).filter(|text| hash(text) % 1024 == 0)));
}

/// Whoever takes a channel away between the check of a call and its run has not seen the connection among those who hear it.
#[test]
fn who_begins_to_hear_a_channel_is_judged_once_more() {
    let world = World::new();
    let server = world.runner.server.clone();
    let args = words("SUBSCRIBE c");
    let (id, command) = table().find(b"subscribe").unwrap();
    let call =
        Call { command: (id, command), args: args.as_args(), hash: 0, spotted: &[], now_ms: 1, request_bytes: 0 };
    for (rule, reply) in [("allchannels", "*3"), ("resetchannels", "-NOPERM")] {
        let mut other = Peer::new(&server);
        assert_eq!(other.call(&format!("ACL SETUSER default {rule}")), "+OK ");
        let (mut set, mut effects, mut out) = (WriteSet::default(), Effects::default(), Reply::new(2));
        let _running = meter::begin(Allowance::here(1 << 20));
        let place = (1 << 20, false, Rests::Never, Served::No);
        let mut session = Peer::new(&server).session.unwrap();
        let (buffers, mut lease) = ((&mut set, &mut effects), Lease::default());
        _ = under_lease(&server, &mut session, command, call, &mut lease, buffers, &mut out, place);
        assert!(out.as_slice().starts_with(reply.as_bytes()), "{rule}");
        assert_eq!(server.hub.subscribers(By::Channel, b"c"), u64::from(rule == "allchannels"));
    }
}

/// CLIENT CACHING is about the next command, which may be one that is refused as it comes.
#[test]
fn a_command_that_is_refused_for_now_ends_what_was_said_of_it() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    world.session.as_mut().unwrap().set_proto(3);
    assert_eq!(world.call("CLIENT TRACKING ON OPTOUT"), "+OK ");
    assert_eq!(world.call("CLIENT CACHING NO"), "+OK ");
    server.engine.gate.fetch_or(gate::LOADING, Ordering::Relaxed);
    assert!(world.call("GET k").starts_with("-LOADING "));
    server.engine.gate.fetch_and(!gate::LOADING, Ordering::Relaxed);
    assert_eq!(world.call("GET k"), "$-1 ");
    assert_eq!(server.engine.trackers.counts()[1], 1);
}

/// As long as it is not known what there is nobody sees it change; what needs no keys is answered.
#[test]
fn no_key_is_watched_before_the_data_is_there() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    server.engine.gate.fetch_or(gate::LOADING, Ordering::Relaxed);
    for (line, reply) in [("PING", "+PONG "), ("UNWATCH", "+OK "), ("MULTI", "+OK "), ("DISCARD", "+OK ")] {
        assert_eq!(world.call(line), reply, "{line}");
    }
    assert!(world.call("WATCH k").starts_with("-LOADING "));
    server.engine.gate.fetch_and(!gate::LOADING, Ordering::Relaxed);
    assert_eq!(world.call("WATCH k"), "+OK ");
}

/// A reply that comes from elsewhere waits for its connection, which may have other things to do first.
#[test]
fn a_reply_from_elsewhere_that_is_too_much_with_the_others_closes_the_largest() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    world.call(&format!("SET {key} {}", "v".repeat(200_000)));
    let client = world.connect();
    // No descriptor of a test is a client's.
    client.leave();
    server.clients.lock().insert(client.id, client.clone());
    server.buffers.set_limit(100_000);
    let held = server.engine.shards.at(0).core();
    let begun = world.begin(&words(&format!("GET {key}")));
    assert!(begun.is_err(), "the shard is taken");
    let is_killed = || client.bits.load(Ordering::Relaxed) & bits::CLOSING != 0;
    assert!(!is_killed());
    drop(held);
    assert!(is_killed());
}

/// Who waits for long names has them in the shards' lines, too.
#[test]
fn a_wait_that_is_too_much_with_the_others_closes_the_largest() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let client = world.connect();
    // No descriptor of a test is a client's.
    client.leave();
    server.clients.lock().insert(client.id, client.clone());
    server.buffers.set_limit(100_000);
    let begun = world.begin(&words(&format!("BLPOP {} 0", "k".repeat(200_000))));
    assert!(begun.is_err(), "it waits");
    let is_killed = || client.bits.load(Ordering::Relaxed) & bits::CLOSING != 0;
    while client.waits_for().is_none() && !is_killed() {
        std::thread::yield_now();
    }
    // Whoever has it wait has its shards.
    drop(server.engine.lease(&[0, 1]));
    assert!(is_killed());
}

/// The keys of a shard stand together, however they were named.
#[test]
fn who_names_keys_of_several_shards_in_any_order_is_served_for_each() {
    let mut world = World::new();
    let ([here, there], server) = (world.keys(), world.runner.server.clone());
    for key in [&here, &there] {
        let mut first = Peer::new(&server);
        let mut waits = first.begin(&words(&format!("BLPOP {there} {here} {there} 0"))).unwrap_err();
        assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
        let served = waits.try_recv().ok().map(|finished| first.end(Ok(finished.reply)));
        assert_eq!(served, Some(popped(key)));
        assert!(server.engine.lease(&[0, 1]).iter().all(|core| core.blocked.is_empty()));
    }
}

/// Its connection has yet to hear of it.
#[test]
fn the_wait_of_one_that_was_served_cannot_be_ended() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let mut first = Peer::new(&server);
    let client = first.connect();
    // No descriptor of a test is a client's.
    client.leave();
    server.clients.lock().insert(client.id, client.clone());
    let waits = first.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
    assert_eq!(world.call(&format!("CLIENT UNBLOCK {}", client.id)), ":0 ");
    assert_eq!(first.end(Err(waits)), popped(&key));
}

/// What has come while it was being served is still for it, and not for who stands behind it.
#[test]
fn who_is_served_again_keeps_its_place() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let [mut first, mut second] = [Peer::new(&server), Peer::new(&server)];
    let client = first.connect();
    let waits = first.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    let mut waits_behind = second.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    let (_, request) = take(&client);
    assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
    let mut lease = world.engine().lease(&[0]);
    request.wait_again(0, true, &mut lease);
    drop(blocked::serve(&server, lease));
    assert!(waits_behind.try_recv().is_err());
    assert_eq!(first.end(Err(waits)), popped(&key));
}

/// However many others find nothing either, and in however many turns.
#[test]
fn whom_a_change_brings_nothing_runs_once_for_it() {
    const COUNT: u64 = 8;
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let read = words(&format!("XREAD BLOCK 0 STREAMS {key} 100-0"));
    let _waits: Vec<_> = (0..COUNT).map(|_| Peer::new(&server).begin(&read).unwrap_err()).collect();
    let runs = || server.engine.lease(&[0])[0].commands;
    let before = runs();
    assert_eq!(world.call(&format!("XADD {key} 1-1 f v")), "$3 1-1 ");
    while server.engine.lease(&[0])[0].blocked.is_due() {
        assert!(runs() - before <= 1 + COUNT);
    }
    assert_eq!(runs() - before, 1 + COUNT);
}

/// A reply may lie for long before it is taken.
#[test]
fn a_long_reply_from_elsewhere_takes_no_more_than_it_has() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    world.call(&format!("SET {key} {}", "v".repeat(700_000)));
    let held = server.engine.shards.at(0).core();
    let finished = world.begin(&words(&format!("MGET {key} {key} {key}"))).unwrap_err();
    drop(held);
    let reply = finished.blocking_recv().unwrap().reply;
    assert!(reply.capacity() < reply.as_slice().len() * 9 / 8, "{} bytes", reply.capacity());
}

/// Killed while it waits to be served, for the sake of a key that somebody goes through.
#[test]
fn who_is_killed_on_the_way_to_be_served_stands_in_nobodys_way() {
    let mut world = World::new();
    let ([from, to], server) = (world.keys(), world.runner.server.clone());
    let [mut first, mut second] = [Peer::new(&server), Peer::new(&server)];
    let client = first.connect();
    let waits = first.begin(&words(&format!("BLMOVE {from} {to} LEFT LEFT 0"))).unwrap_err();
    let mut waits_behind = second.begin(&words(&format!("BLPOP {from} 0"))).unwrap_err();
    world.hold(&to, false);
    assert_eq!(world.call(&format!("RPUSH {from} for:{from}")), ":1 ");
    world.await_waiter();
    client.kill();
    assert_eq!(world.let_go(&to), 1);
    assert!(waits.blocking_recv().is_err(), "there is nothing to answer");
    // Whoever has had the shards meanwhile has done what was left for them.
    drop(server.engine.lease(&[0, 1]));
    let served = waits_behind.try_recv().ok().map(|finished| second.end(Ok(finished.reply)));
    assert_eq!(served, Some(popped(&from)));
}

/// Also where it is one of a transaction's commands that has failed, and the transaction has not.
#[test]
fn a_transaction_with_a_script_that_uses_up_its_hold_limit_is_answered_late() {
    let mut world = World::new();
    let [key, _] = world.keys();
    assert_eq!(world.call("CONFIG SET script-hold-limit 1"), "+OK ");
    assert_eq!(world.call("MULTI"), "+OK ");
    let source = "redis.call('SET', KEYS[1], 1) while true do end";
    let begun = world.begin(&["EVAL", source, "1", &key].into_iter().map(str::as_bytes).collect());
    assert_eq!(world.end(begun), "+QUEUED ");
    let reply = world.call("EXEC");
    assert!(reply.starts_with("*1 -") && reply.contains("script-hold-limit"), "{reply}");
    assert_eq!(world.session.as_ref().unwrap().after, After::HoldMs(20));
}

/// It runs later, with all of its shards: what has come is not for those behind it before.
#[test]
fn who_needs_another_shard_to_be_served_keeps_those_behind_him() {
    let mut world = World::new();
    let ([from, to], server) = (world.keys(), world.runner.server.clone());
    let [mut first, mut second] = [Peer::new(&server), Peer::new(&server)];
    let waits = first.begin(&words(&format!("BLMOVE {from} {to} LEFT LEFT 0"))).unwrap_err();
    let mut waits_behind = second.begin(&words(&format!("BLPOP {from} 0"))).unwrap_err();
    let held = server.engine.shards.at(1).core();
    assert_eq!(world.call(&format!("RPUSH {from} one")), ":1 ");
    assert!(waits_behind.try_recv().is_err());
    drop(held);
    assert_eq!(first.end(Err(waits)), "$3 one ");
    assert_eq!(world.call(&format!("RPUSH {from} two")), ":1 ");
    assert_eq!(second.end(Err(waits_behind)), format!("*2 ${} {from} $3 two ", from.len()));
}

/// It may write, whether it has or not.
#[test]
fn a_script_goes_on_when_its_client_has_left_and_ends_when_it_is_killed() {
    let mut world = World::new();
    let [key, _] = world.keys();
    let source = "for n = 1, 300000 do end redis.call('SET', KEYS[1], 1)";
    let args: OwnedArgs = ["EVAL", source, "1", &key].into_iter().map(str::as_bytes).collect();
    for (bit, is_there) in [(bits::CLOSING, ":0 "), (bits::GONE, ":1 ")] {
        world.connect().set_bit(bit, true);
        let begun = world.begin(&args);
        world.end(begun);
        world.connect();
        assert_eq!(world.call(&format!("EXISTS {key}")), is_there);
    }
}

/// It has nothing for them.
#[test]
fn a_key_of_another_kind_wakes_nobody() {
    let mut world = World::new();
    let ([key, _], server) = (world.keys(), world.runner.server.clone());
    let mut other = Peer::new(&server);
    let waits = other.begin(&words(&format!("BLPOP {key} 0"))).unwrap_err();
    let runs = || server.engine.lease(&[0])[0].commands;
    let before = runs();
    assert_eq!(world.call(&format!("SADD {key} m")), ":1 ");
    assert_eq!(runs() - before, 1);
    assert_eq!(world.call(&format!("DEL {key}")), ":1 ");
    assert_eq!(world.call(&format!("RPUSH {key} for:{key}")), ":1 ");
    assert_eq!(other.end(Err(waits)), popped(&key));
}
