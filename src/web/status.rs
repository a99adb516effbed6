//! What the status page shows, as JSON: INFO's facts under INFO's names, the shards, the busiest clients.
//!
//! ```text
//! {"now_ms": …, "facts": {name: value}, "families": {prefix: {name: {field: value}}},
//!  "shards": [[objects, dirty, look-ups, last commit, late ms]], "slow": [{at_s, us, args, addr, name}],
//!  "clients": [{…}], "clients_shown_of": …}
//! ```
//!
//! Whoever asks is the default user: `slow` is null where that may not call SLOWLOG GET, `clients` where it may not call CLIENT LIST.
//!
//! Names of clients, of databases and whatever else clients have a hand in are texts in it, and never markup.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::guard::may_call;
use crate::handler::observe::{Entry as Slow, Kind};
use crate::handler::session::Client;
use crate::server::info::fact::{Entry, Value};
use crate::server::info::{Facts, SECTIONS};

/// Clients that are told of: those that have sent most commands.
const CLIENTS: usize = 50;
/// The latest entries of the slow log that are told of.
const SLOW: usize = 20;

/// All of it.
pub(super) fn write(facts: &Facts<'_>) -> String {
    let mut out = format!("{{\"now_ms\":{},\"facts\":{{", facts.now_ms());
    for entry in SECTIONS.iter().flat_map(|section| section.entries) {
        if let Entry::One(fact) = entry
            && let value @ (Value::Count(_) | Value::Signed(_) | Value::Real(..) | Value::Percent(_) | Value::Text(_)) =
                (fact.read)(facts)
        {
            member(&mut out, fact.name, &value);
        }
    }
    out.push_str("},\"families\":{");
    for family in SECTIONS.iter().flat_map(|section| section.entries).filter_map(|entry| match entry {
        Entry::Many(family) => Some(family),
        Entry::One(_) => None,
    }) {
        comma(&mut out);
        let _ = write!(out, "{}:{{", quoted(family.prefix));
        (family.each)(facts, &mut |of, values| {
            comma(&mut out);
            let _ = write!(out, "{}:{{", quoted(of));
            for (n, value) in values.iter().enumerate() {
                match (family.fields.get(n), value) {
                    (Some(field), value) => member(&mut out, field.name, value),
                    // `p99=12.5`, or a text on its own.
                    (None, Value::Text(text)) => match text.split_once('=') {
                        Some((name, number)) if name.starts_with('p') && number.parse::<f64>().is_ok() => {
                            comma(&mut out);
                            let _ = write!(out, "{}:{number}", quoted(name));
                        }
                        _ => member(&mut out, "is", value),
                    },
                    (None, value) => member(&mut out, "is", value),
                }
            }
            out.push('}');
        });
        out.push('}');
    }
    out.push_str("},\"shards\":[");
    for shard in facts.each_shard() {
        comma(&mut out);
        let _ =
            write!(out, "[{},{},{},{},{}]", shard.objects, shard.dirty, shard.lookups, shard.last_lsn, shard.late_ms);
    }
    out.push_str("],\"slow\":");
    let slow = facts.server().observer.latest(Kind::Slow, SLOW);
    list(&mut out, may_call(facts.server(), b"slowlog", b"get"), slow.iter(), |out, entry| write_slow(out, entry));
    let _ = write!(out, ",\"clients_shown_of\":{},\"clients\":", facts.clients().len());
    let clients = busiest(facts.clients());
    list(&mut out, may_call(facts.server(), b"client", b"list"), clients.into_iter(), |out, client| {
        write_client(out, client, facts);
    });
    out.push('}');
    out
}

/// A list, or null for who may not know it.
fn list<T>(out: &mut String, may_know: bool, items: impl Iterator<Item = T>, write: impl Fn(&mut String, T)) {
    if !may_know {
        return out.push_str("null");
    }
    out.push('[');
    for item in items {
        comma(out);
        write(out, item);
    }
    out.push(']');
}

/// A command of the slow log, with as much of its arguments as SLOWLOG GET tells.
fn write_slow(out: &mut String, entry: &Slow) {
    let text = |bytes: &[u8]| quoted(&String::from_utf8_lossy(bytes));
    let _ = write!(out, "{{\"at_s\":{},\"us\":{},\"args\":[", entry.at_s, entry.value);
    for arg in &entry.what.args {
        comma(out);
        out.push_str(&text(arg));
    }
    let _ = write!(out, "],\"addr\":{},\"name\":{}}}", quoted(&entry.what.addr), text(&entry.what.name));
}

fn busiest(clients: &[Arc<Client>]) -> Vec<&Client> {
    let mut all: Vec<(u64, &Client)> =
        clients.iter().map(|client| (client.totals[0].load(Ordering::Relaxed), &**client)).collect();
    if all.len() > CLIENTS {
        all.select_nth_unstable_by_key(CLIENTS, |(commands, _)| std::cmp::Reverse(*commands));
        all.truncate(CLIENTS);
    }
    all.sort_unstable_by_key(|(commands, client)| (std::cmp::Reverse(*commands), client.id));
    all.into_iter().map(|(_, client)| client).collect()
}

fn write_client(out: &mut String, client: &Client, facts: &Facts<'_>) {
    let command = client.command.load(Ordering::Relaxed);
    let command = facts.server().table.slot_name(command).map(|name| name.to_string()).unwrap_or_default();
    let name = String::from_utf8_lossy(&client.labels.lock().name).into_owned();
    let [commands, bytes_in, bytes_out] = [0, 1, 2].map(|n| client.totals[n].load(Ordering::Relaxed));
    let idle_ms = facts.now_ms().saturating_sub(client.active_ms.load(Ordering::Relaxed));
    let _ = write!(
        out,
        "{{\"id\":{},\"addr\":{},\"name\":{},\"command\":{},\"commands\":{commands},\"in\":{bytes_in},\"out\":{bytes_out},\
        \"memory\":{},\"idle_ms\":{idle_ms},\"age_ms\":{}}}",
        client.id,
        quoted(&client.addr),
        quoted(&name),
        quoted(&command),
        client.memory_bytes(),
        facts.now_ms().saturating_sub(client.since_ms),
    );
}

fn comma(out: &mut String) {
    if !out.ends_with(['{', '[']) {
        out.push(',');
    }
}

fn member(out: &mut String, name: &str, value: &Value) {
    comma(out);
    let _ = match value {
        Value::Percent(number) => write!(out, "{}:{number:.2}", quoted(name)),
        Value::Count(_) | Value::Signed(_) | Value::Real(..) => write!(out, "{}:{value}", quoted(name)),
        Value::Human(_) | Value::Text(_) | Value::Absent => {
            write!(out, "{}:{}", quoted(name), quoted(&value.to_string()))
        }
    };
}

/// A text in JSON, in which nothing ends a script or an attribute either.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '<' | '>' | '&' | '\'' | '\u{2028}' | '\u{2029}' => _ = write!(out, "\\u{:04x}", c as u32),
            c if c < ' ' || c == '\u{7f}' => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_texts() {
        assert_eq!(quoted("a\"b\\c\n</script>"), r#""a\"b\\c\u000a\u003c/script\u003e""#);
        let mut out = String::from("{");
        member(&mut out, "a", &Value::Count(1));
        member(&mut out, "b", &Value::Percent(12.345));
        member(&mut out, "c", &"x".into());
        assert_eq!(out, r#"{"a":1,"b":12.35,"c":"x""#);
    }

    #[test]
    fn of_many_clients_the_busiest_are_told_of() {
        let client = |id: u64| {
            let client = Client { id, ..Client::default() };
            // Every other one has sent as many as the one before.
            client.totals[0].store(id / 2, Ordering::Relaxed);
            Arc::new(client)
        };
        let clients: Vec<_> = (0..2 * CLIENTS as u64).map(client).collect();
        let told: Vec<u64> = busiest(&clients).iter().map(|client| client.id).collect();
        let expected = (CLIENTS as u64 / 2..CLIENTS as u64).rev().flat_map(|commands| [2 * commands, 2 * commands + 1]);
        assert_eq!(told, expected.collect::<Vec<_>>());
    }
}
