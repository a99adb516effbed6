//! Filters of CLIENT LIST and CLIENT KILL: Redis's, and Valkey's where Redis has none.
//!
//! All filters must admit a connection. A filter given twice counts once, as it was given last.

use std::sync::atomic::Ordering;

use super::letters;
use crate::handler::session::Client;
use crate::handler::session::bits::CLOSING;
use crate::handler::{Error, Result, Server};
use crate::resp::args::Cursor;
use crate::util::num::parse_i64;

/// Whose filters are read; defaults and some texts differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    List,
    Kill,
}

#[derive(Debug, PartialEq, Eq)]
enum Test {
    /// In ascending order.
    Ids(Vec<u64>),
    /// `None`: one that there is not; else whether it is of subscribers.
    Class(Option<bool>),
    User(Vec<u8>),
    Addr(Vec<u8>),
    Laddr(Vec<u8>),
    Ip(Vec<u8>),
    Name(Vec<u8>),
    LibName(Vec<u8>),
    LibVer(Vec<u8>),
    Db(i64),
    Flags(Vec<u8>),
    Capa(bool),
    IdleS(u64),
    AgeS(u64),
}

/// What a connection must be like.
pub(super) struct Filter {
    /// Each with whether it must fail (`NOT-`).
    tests: Vec<(bool, Test)>,
    skip_me: bool,
}

/// Letters that `flags` of CLIENT LIST may show, in Redis or Valkey.
const LETTERS: &[u8] = b"bcdeirtuxABEIMNOPRSTU";

impl Filter {
    /// The old form of CLIENT KILL.
    pub(super) fn of_address(addr: &[u8]) -> Filter {
        Filter { tests: vec![(false, Test::Addr(addr.to_vec()))], skip_me: false }
    }

    /// Reads filters up to the end of the arguments.
    pub(super) fn parse(mut args: Cursor<'_>, of: Use, server: &Server) -> Result<Filter> {
        let mut filter = Filter { tests: Vec::new(), skip_me: of == Use::Kill };
        while let Some(word) = args.next() {
            let word = word.to_ascii_lowercase();
            let (not, name) = match word.strip_prefix(b"not-") {
                Some(name) => (true, name),
                None => (false, word.as_slice()),
            };
            if name == b"id" {
                let mut ids = if not { not_ids(&mut args)? } else { ids(&mut args, of)? };
                // A request may hold a million of them, and each is asked about for every connection.
                ids.sort_unstable();
                filter.add(not, Test::Ids(ids));
                continue;
            }
            let value = args.arg()?;
            match name {
                b"skipme" if !not && value.eq_ignore_ascii_case(b"yes") => filter.skip_me = true,
                b"skipme" if !not && value.eq_ignore_ascii_case(b"no") => filter.skip_me = false,
                b"maxage" if !not => filter.add(false, Test::AgeS(positive(value, "maxage")?)),
                b"idle" if !not => filter.add(false, Test::IdleS(positive(value, "idle")?)),
                name => filter.add(not, test(not, name, value, server)?),
            }
        }
        Ok(filter)
    }

    fn add(&mut self, not: bool, test: Test) {
        let kind = std::mem::discriminant(&test);
        self.tests.retain(|(n, t)| *n != not || std::mem::discriminant(t) != kind);
        self.tests.push((not, test));
    }

    /// Whether a connection passes; `me` is the id of the one that asks. One that was killed is gone for everybody, even
    /// if its thread has not noticed yet.
    pub(super) fn admits(&self, client: &Client, me: u64, now_ms: u64) -> bool {
        let killed = client.bits.load(Ordering::Relaxed) & CLOSING != 0;
        if killed || self.skip_me && client.id == me {
            return false;
        }
        self.tests.iter().all(|(not, test)| test.holds(client, now_ms) != *not)
    }
}

impl Test {
    fn holds(&self, client: &Client, now_ms: u64) -> bool {
        let passed_s = |since_ms: u64| now_ms.saturating_sub(since_ms) / 1000;
        match self {
            Test::Ids(ids) => ids.binary_search(&client.id).is_ok(),
            Test::Class(class) => *class == Some(client.subscribes()),
            Test::User(name) => *client.labels.lock().user == **name,
            Test::Addr(addr) => client.addr.as_bytes() == addr,
            Test::Laddr(addr) => client.laddr.as_bytes() == addr,
            Test::Ip(ip) => client.addr.rsplit_once(':').is_some_and(|(host, _)| {
                host.trim_start_matches('[').trim_end_matches(']').as_bytes() == ip.as_slice()
            }),
            Test::Name(name) => client.labels.lock().name == *name,
            Test::LibName(name) => client.labels.lock().lib_name == *name,
            Test::LibVer(version) => client.labels.lock().lib_ver == *version,
            Test::Db(db) => client.db.load(Ordering::Relaxed) == *db,
            Test::Flags(wanted) => {
                let letters = letters(client);
                wanted.iter().all(|letter| letters.as_bytes().contains(letter))
            }
            Test::Capa(any) => *any,
            Test::IdleS(least) => passed_s(client.active_ms.load(Ordering::Relaxed)) >= *least,
            Test::AgeS(least) => passed_s(client.since_ms) >= *least,
        }
    }
}

const NO_ID: &str = "ERR client-id should be greater than 0";

/// One id, and those that follow it.
fn ids(args: &mut Cursor<'_>, of: Use) -> Result<Vec<u64>> {
    let invalid = match of {
        Use::List => "ERR Invalid client ID",
        Use::Kill => NO_ID,
    };
    let mut ids = Vec::new();
    let mut next = Some(args.arg()?);
    while let Some(arg) = next {
        let id = parse_i64(arg).ok_or(Error::err(invalid))?;
        if of == Use::Kill && id < 1 {
            return Err(Error::err(invalid));
        }
        ids.push(id.max(0) as u64);
        // What is no number is the next filter. LIST takes a last word for an id in any case.
        next = args.peek().filter(|arg| parse_i64(arg).is_some() || of == Use::List && args.remaining() == 1);
        if next.is_some() {
            args.next();
        }
    }
    // There may be a million of them, and as many clients to compare with.
    ids.sort_unstable();
    Ok(ids)
}

/// The ids of NOT-ID: the numbers that follow, be there none.
fn not_ids(args: &mut Cursor<'_>) -> Result<Vec<u64>> {
    args.peek().ok_or(Error::Syntax)?;
    let mut ids = Vec::new();
    while let Some(id) = args.peek().and_then(parse_i64) {
        args.next();
        ids.push(u64::try_from(id).ok().filter(|id| *id > 0).ok_or(Error::err(NO_ID))?);
    }
    ids.sort_unstable();
    Ok(ids)
}

fn test(not: bool, name: &[u8], value: &[u8], server: &Server) -> Result<Test> {
    let db_word = if not { "NOT-DB" } else { "DB" };
    let unknown = |what: &str| {
        let filter = if not { format!("NOT-{}", what.to_ascii_uppercase()) } else { "provided".to_owned() };
        Error::quoting(&format!("ERR Unknown {what} found in the {filter} filter: "), value, usize::MAX, "")
    };
    let value_owned = value.to_vec();
    Ok(match name {
        b"type" => match value.to_ascii_lowercase().as_slice() {
            b"normal" => Test::Class(Some(false)),
            b"pubsub" => Test::Class(Some(true)),
            b"master" | b"primary" | b"slave" | b"replica" => Test::Class(None),
            _ => return Err(Error::quoting("ERR Unknown client type '", value, usize::MAX, "'")),
        },
        b"user" if server.acl.user(value).is_some() => Test::User(value_owned),
        b"user" => return Err(Error::quoting("ERR No such user '", value, usize::MAX, "'")),
        b"addr" => Test::Addr(value_owned),
        b"laddr" => Test::Laddr(value_owned),
        b"ip" => Test::Ip(value_owned),
        b"name" => Test::Name(value_owned),
        b"lib-name" => Test::LibName(value_owned),
        b"lib-ver" => Test::LibVer(value_owned),
        b"db" => {
            let not_a_number = || Error::Text(format!("ERR {db_word} is not an integer or out of range").into());
            let db = parse_i64(value).ok_or_else(not_a_number)?;
            let last = i64::from(server.config.settings().databases) - 1;
            if !(0..=last).contains(&db) {
                return Err(Error::Text(format!("ERR {db_word} number should be between 0 and {last}").into()));
            }
            Test::Db(db)
        }
        b"flags" if value.iter().all(|letter| LETTERS.contains(letter)) => Test::Flags(value_owned),
        b"flags" => return Err(unknown("flags")),
        b"capa" if value.iter().all(|letter| *letter == b'r') => Test::Capa(value.is_empty()),
        b"capa" => return Err(unknown("capa")),
        _ => return Err(Error::Syntax),
    })
}

fn positive(value: &[u8], what: &str) -> Result<u64> {
    let Some(number) = parse_i64(value) else {
        return Err(Error::Text(format!("ERR {what} is not an integer or out of range").into()));
    };
    u64::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| Error::Text(format!("ERR {what} should be greater than 0").into()))
}

macro_rules! filters {
    ($types:literal) => {
        concat!(
            "[ID client-id [client-id ...]] [TYPE <",
            $types,
            ">] [USER username] [ADDR addr] [LADDR laddr] [SKIPME <YES | NO>] [MAXAGE maxage] [NAME name] [IDLE idle] \
             [FLAGS flags] [LIB-NAME lib-name] [LIB-VER lib-ver] [DB db] [CAPA capa] [IP ip] [NOT-TYPE <",
            $types,
            ">] [NOT-ID not-client-id [not-client-id ...]] [NOT-USER not-username] [NOT-ADDR not-addr] \
             [NOT-LADDR not-laddr] [NOT-NAME not-name] [NOT-FLAGS not-flags] [NOT-LIB-NAME not-lib-name] \
             [NOT-LIB-VER not-lib-ver] [NOT-DB not-db] [NOT-CAPA not-capa] [NOT-IP not-ip]"
        )
    };
}

/// Grammar of CLIENT LIST.
pub(super) const LIST_SYNTAX: &str = filters!("NORMAL | MASTER | REPLICA | PUBSUB");
/// Grammar of CLIENT KILL.
pub(super) const KILL_SYNTAX: &str =
    concat!("<old-format | <", filters!("NORMAL | MASTER | SLAVE | REPLICA | PUBSUB"), ">>");

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn client(id: u64) -> Client {
        let client =
            Client { id, addr: "[::1]:5".into(), laddr: "[::1]:6".into(), since_ms: 1000, ..Client::default() };
        client.multi.store(-1, Ordering::Relaxed);
        client.labels.lock().name = b"n".to_vec();
        client
    }

    fn admits(tests: Vec<(bool, Test)>) -> bool {
        Filter { tests, skip_me: false }.admits(&client(7), 8, 11_500)
    }

    #[test]
    fn tests_hold_or_not() {
        assert!(admits(vec![]));
        assert!(admits(vec![(false, Test::Ids(vec![6, 7])), (true, Test::Ids(vec![8]))]));
        assert!(!admits(vec![(true, Test::Ids(vec![7]))]));
        let killed = client(7);
        killed.bits.store(CLOSING, Ordering::Relaxed);
        assert!(!Filter { tests: vec![], skip_me: false }.admits(&killed, 8, 11_500), "its thread has not noticed yet");
        assert!(admits(vec![(false, Test::Ip(b"::1".to_vec())), (false, Test::Addr(b"[::1]:5".to_vec()))]));
        assert!(!admits(vec![(false, Test::Laddr(b"[::1]:5".to_vec()))]));
        assert!(admits(vec![(false, Test::AgeS(10))]) && !admits(vec![(false, Test::AgeS(11))]));
        assert!(
            admits(vec![(false, Test::Flags(b"N".to_vec()))]) && !admits(vec![(false, Test::Flags(b"x".to_vec()))])
        );
        assert!(admits(vec![(false, Test::Name(b"n".to_vec()))]) && admits(vec![(true, Test::LibName(b"x".to_vec()))]));
        let active = client(7);
        active.active_ms.store(9_000, Ordering::Relaxed);
        let holds = [2, 3].map(|least| Test::IdleS(least).holds(&active, 11_500));
        assert_eq!(holds, [true, false], "it is idle since its last command, however old it is");
    }

    #[test]
    fn the_last_of_two_equal_filters_counts() {
        let mut filter = Filter { tests: vec![], skip_me: true };
        filter.add(false, Test::Ids(vec![1]));
        filter.add(true, Test::Ids(vec![2]));
        filter.add(false, Test::Ids(vec![7]));
        assert!(filter.admits(&client(7), 8, 0) && !filter.admits(&client(7), 7, 0));
        // One of what must be and one of what must not be are not equal: both count, whichever comes first.
        for nots in [[false, true], [true, false]] {
            let mut filter = Filter { tests: vec![], skip_me: false };
            nots.into_iter().for_each(|not| filter.add(not, Test::Ids(if not { vec![7] } else { vec![6, 7] })));
            assert_eq!([6, 7, 9].map(|id| filter.admits(&client(id), 8, 0)), [true, false, false], "{nots:?}");
        }
    }

    #[test]
    fn ids_end_at_the_next_word() {
        let args: crate::resp::OwnedArgs = [&b"1"[..], b"2", b"name", b"x"].into_iter().collect();
        let mut cursor = args.as_args().cursor(0);
        assert_eq!(ids(&mut cursor, Use::List).unwrap(), [1, 2]);
        assert_eq!(cursor.peek(), Some(&b"name"[..]));
        let args: crate::resp::OwnedArgs = [&b"1"[..], b"x"].into_iter().collect();
        assert_eq!(ids(&mut args.as_args().cursor(0), Use::List), Err(Error::err("ERR Invalid client ID")));
        assert_eq!(ids(&mut args.as_args().cursor(0), Use::Kill).unwrap(), [1]);
    }
}
