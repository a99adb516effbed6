//! No input hurts the server: every command of the table with extremes among its arguments, and a list of the worst ones
//! known, on big and sparse values. Meanwhile others PING on every network thread, and the memory of the process is watched.
//!
//! | variable | says | default |
//! |---|---|---|
//! | `TARN_BAD_SIZE` | elements of the collections, arguments of the long commands | 8,000; 1,000,000 for a long run |
//! | `TARN_BAD_ROUNDS` | draws of arguments for each command | 2 |
//! | `TARN_BAD_SEED` | the seed of these | 1 |
//! | `TARN_BAD_ONLY` | only hand-written commands whose label contains this | |
//! | `TARN_BAD_SHOW` | if set, each command is printed before it is sent | |
//! | `TARN_BAD_PING_MS` | what the slowest PING may take; a time, so not asserted by default | |
//!
//! Asserted is what does not depend on the machine: memory, an answer or a closed connection with a reason, a server that
//! lives. Times are printed.

#[path = "../common/mod.rs"]
mod common;
mod draw;
mod peer;
mod stock;
mod watch;

use common::resp::{Client, Gone, Value, encode};
use common::rng::Rng;
use common::server::{Server, notice};
use draw::{drawn, rows};
use peer::Peer;
use stock::Stock;
use watch::Watch;

const MB: u64 = 1 << 20;
/// `--maxmemory` of the server under test, and what its memory may reach.
const BUDGET: u64 = 256 * MB;
const MOST_RESIDENT: u64 = BUDGET / 100 * 115 + 64 * MB;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
}

fn server() -> Server {
    Server::tarn(&["--maxmemory", "256mb", "--io-threads", "2"])
}

/// The worst that is known, one command a line; `N` stands for a number above any size.
const BAD: &str = "
SORT same BY spar*
SORT same BY spar* ALPHA
SORT same GET spar*
SORT same BY nosort GET spar* STORE sorted
SORT l BY w*
SORT l GET sparse
SORT l BY nosort GET sparse GET sparse2
SORT l BY sparse
SORT list ALPHA
SORT list LIMIT 0 10
SORT list ALPHA STORE sorted
SORT set BY w* ALPHA
SORT zset BY nosort GET # GET big
SMEMBERS set
SPOP set2 N
SRANDMEMBER set N
SRANDMEMBER set -1000000000
SRANDMEMBER set -9223372036854775807
HRANDFIELD hash -1000000000
HRANDFIELD hash -1000000000 WITHVALUES
HRANDFIELD hash N WITHVALUES
ZRANDMEMBER zset -1000000000 WITHSCORES
ZRANDMEMBER zset N WITHSCORES
HGETALL hash
HKEYS hash
HVALS hash
KEYS *
KEYS *a*b*c*d*e*f*g
SCAN 0 COUNT N
SCAN 0 COUNT N MATCH nothing
SSCAN set 0 COUNT N
SSCAN set 0 COUNT N MATCH *nothing*
HSCAN hash 0 COUNT N
ZSCAN zset 0 COUNT N
LRANGE list 0 -1
LPOS list nothing RANK -1 COUNT 0 MAXLEN 0
LINSERT list BEFORE nothing x
LREM list 0 nothing
LREM list 0 element:1
LINDEX list 500000
LTRIM list 1 -2
LMPOP 1 list LEFT COUNT N
RPOP list N
XRANGE stream - +
XREVRANGE stream + -
XREAD COUNT N STREAMS stream 0
XPENDING pending g - + N
XPENDING pending g IDLE 1 - + N c
XAUTOCLAIM pending g c2 0 - COUNT N
XAUTOCLAIM pending g c2 0 - COUNT N JUSTID
XINFO STREAM pending FULL COUNT 0
XREADGROUP GROUP g c COUNT N STREAMS pending 0
XTRIM stream MAXLEN 10
XDEL stream 1-1
ZRANGE zset 0 -1 WITHSCORES
ZRANGEBYSCORE zset -inf +inf WITHSCORES LIMIT 0 N
ZRANGEBYLEX zset - + LIMIT 100 N
ZRANGESTORE zdest zset 0 -1
ZUNION 2 zset zset2 WITHSCORES
ZUNIONSTORE zdest 2 zset zset2 WEIGHTS nan inf
ZUNIONSTORE zdest 2 zset zset2
ZINTER 2 zset zset2
ZINTERSTORE zdest 2 zset zset2
ZINTERCARD 2 zset zset2 LIMIT 0
ZDIFF 2 zset zset2
ZDIFFSTORE zdest 2 zset zset2
ZPOPMIN zset2 N
ZREMRANGEBYRANK zset2 0 -1
ZLEXCOUNT zset - +
SUNION set set2 ints
SUNIONSTORE dest set set2 ints
SINTER set set2
SINTERSTORE dest set set2
SINTERCARD 2 set set2
SDIFF set set2
SDIFFSTORE dest set set2
GET big
GET sparse
GETDEL sparse2
GETSET sparse2 x
GETEX sparse PERSIST
SET sparse2 x GET
GETRANGE sparse 0 -1
GETRANGE sparse 0 20000000
SUBSTR sparse 0 -1
STRLEN sparse
APPEND sparse x
SETRANGE sparse 1000 x
SETBIT sparse 4294967295 1
SETBIT small 4294967295 1
GETBIT sparse 4294967295
BITCOUNT sparse
BITCOUNT sparse 1 -2
BITPOS sparse 1
BITPOS sparse 0 1 -1 BIT
BITOP NOT bdest sparse
BITOP OR bdest sparse sparse2
BITOP AND bdest sparse big
BITFIELD sparse GET u63 4294967000 SET i64 #67108862 -1
LCS sparse sparse2
LCS big big LEN
LCS big big
LCS sparse small IDX MINMATCHLEN 0 WITHMATCHLEN
MGET sparse sparse sparse sparse
DUMP sparse
DUMP set
DUMP zset
DUMP hash
DUMP list
DUMP stream
DUMP pending
COPY set copied REPLACE
COPY sparse copied REPLACE
COPY zset copied REPLACE
COPY hash copied REPLACE
COPY list copied REPLACE
COPY pending copied REPLACE
RENAME copied other:copied
RENAME other:copied {x}copied
MOVE {x}copied 1
OBJECT ENCODING sparse
OBJECT FREQ set
MEMORY USAGE set SAMPLES 0
MEMORY USAGE zset SAMPLES N
DEBUG OBJECT set
PFCOUNT hll sparse
PFCOUNT hll hll
PFMERGE hdest hll
PFMERGE hdest sparse
GEOSEARCH geo FROMLONLAT 0 0 BYRADIUS 50000 km ASC WITHCOORD WITHDIST WITHHASH
GEOSEARCH geo FROMLONLAT 0 0 BYBOX 50000 50000 km DESC COUNT N
GEOSEARCHSTORE gdest geo FROMLONLAT 0 0 BYRADIUS 50000 km
GEORADIUS geo 0 0 50000 km COUNT N ANY
INCRBYFLOAT counter 1e308
INCRBYFLOAT counter 1e4932
SETRANGE counter 536870911 x
HSETNX hash f v
HEXPIRE hash 100000 FIELDS 1 field:1
HINCRBYFLOAT hash number 1e4932
COMMAND
COMMAND DOCS
COMMAND LIST FILTERBY PATTERN *a*b*c*d*e*f*
COMMAND LIST
CONFIG GET *
CLIENT LIST
INFO everything
LOLWUT VERSION 6 100000 100000
RANDOMKEY
DBSIZE
";

/// Commands with as many arguments as there are elements: what they begin with, and what is repeated.
const LONG: &[(&[&str], &[&str])] = &[
    (&["MSET"], &["key:#", "value"]),
    (&["MGET"], &["key:#"]),
    (&["MGET"], &["sparse"]),
    (&["MGET"], &["small"]),
    (&["EXISTS"], &["key:#"]),
    (&["TOUCH"], &["key:#"]),
    (&["DEL"], &["key:#"]),
    (&["MSETNX"], &["other:#", "value"]),
    (&["UNLINK"], &["other:#"]),
    (&["SADD", "many"], &["m:#"]),
    (&["SMISMEMBER", "many"], &["m:#"]),
    (&["SREM", "many"], &["m:#"]),
    (&["ZADD", "zmany"], &["#", "m:#"]),
    (&["ZMSCORE", "zmany"], &["m:#"]),
    (&["ZREM", "zmany"], &["m:#"]),
    (&["HSET", "hmany"], &["f:#", "v"]),
    (&["HMGET", "hmany"], &["f:#"]),
    (&["HMGET", "hash"], &["field:1"]),
    (&["HDEL", "hmany"], &["f:#"]),
    (&["RPUSH", "lmany"], &["e:#"]),
    (&["LPUSH", "lmany"], &["e:#"]),
    (&["PFADD", "pmany"], &["e:#"]),
    (&["PFCOUNT", "hll"], &["none:#"]),
    (&["PFMERGE", "pdest", "hll"], &["none:#"]),
    (&["SUNION", "set"], &["none:#"]),
    (&["SUNIONSTORE", "sdest"], &["small:#"]),
    (&["SINTER", "set"], &["none:#"]),
    (&["SDIFF", "set"], &["none:#"]),
    (&["BITOP", "OR", "bdest"], &["none:#"]),
    (&["BITFIELD", "big"], &["GET", "u8", "#"]),
    (&["BITFIELD", "bf"], &["SET", "u8", "##", "1"]),
    (&["GEOPOS", "geo"], &["place:#"]),
    (&["XADD", "xmany", "*"], &["f", "v"]),
    (&["XDEL", "pending"], &["#-1"]),
    (&["XACK", "pending", "g"], &["#-1"]),
    (&["XCLAIM", "pending", "g", "c3", "0"], &["#-1"]),
    (&["COMMAND", "DOCS"], &["get"]),
    (&["COMMAND", "INFO"], &["get"]),
    (&["COMMAND", "GETKEYS", "MGET"], &["key:#"]),
    (&["CLIENT", "LIST", "ID"], &["#"]),
    (&["CONFIG", "GET"], &["*"]),
    (&["INFO"], &["all"]),
    (&["SORT", "l"], &["GET", "#"]),
    (&["SORT", "l", "BY", "nosort"], &["GET", "sparse"]),
    (&["NOSUCHCOMMAND"], &["argument:#"]),
    (&["GET"], &["argument:#"]),
];

fn long_command(begin: &[&str], repeated: &[&str], size: usize) -> Vec<String> {
    let mut args: Vec<String> = begin.iter().map(|arg| (*arg).to_owned()).collect();
    // No request may have more arguments than a million and 48,576.
    let count = (size / repeated.len()).max(1);
    args.extend((1..=count).flat_map(|i| repeated.iter().map(move |arg| arg.replace('#', &i.to_string()))));
    args
}

/// Bytes of an element that a request of many commands is made of.
fn pipeline(begin: &[&str], repeated: &[&str], count: usize, end: &[&str]) -> Vec<u8> {
    [encode(begin), encode(repeated).repeat(count), encode(end)].concat()
}

#[test]
fn the_worst_known_commands_keep_memory_and_others_within_bounds() {
    let size = usize::try_from(number("TARN_BAD_SIZE", 8_000)).unwrap_or(usize::MAX);
    let only = std::env::var("TARN_BAD_ONLY").unwrap_or_default();
    let stock = Stock { size };
    let mut watch = Watch::new(server());
    stock.tend(&mut watch.peer);
    for line in BAD.lines().filter(|line| !line.is_empty() && line.contains(&only)) {
        let args: Vec<String> =
            line.split(' ').map(|arg| if arg == "N" { (10 * size).to_string() } else { arg.to_owned() }).collect();
        watch.one(&args);
        stock.tend(&mut watch.peer);
    }
    for (begin, repeated) in LONG.iter().filter(|(begin, _)| begin.join(" ").contains(&only)) {
        watch.one(&long_command(begin, repeated, size));
        stock.tend(&mut watch.peer);
    }
    // What fails after a long look is not asked for a hundred thousand times.
    let (many, some) = (size / 10, (size / 10).min(50));
    let queues: [(usize, &[&str]); 5] = [
        (many, &["GET", "small"]),
        (many, &["SET", "small", "text"]),
        (some, &["SMEMBERS", "set"]),
        (some, &["GET", "big"]),
        (many.min(1000), &["INFO"]),
    ];
    for (many, queued) in queues {
        let label = format!("MULTI {many} {} EXEC", queued.join(" "));
        if label.contains(&only) {
            watch.run(&label, &pipeline(&["MULTI"], queued, many, &["EXEC"]), many + 2);
            stock.tend(&mut watch.peer);
        }
    }
    for piped in [&["GET", "big"][..], &["SMEMBERS", "set"], &["XRANGE", "stream", "-", "+"]] {
        let label = format!("pipeline of 50 {}", piped.join(" "));
        if label.contains(&only) {
            watch.run(&label, &pipeline(&["PING"], piped, 50, &["PING"]), 52);
        }
    }
    for bytes in [30 * MB, 40 * MB, 200 * MB, 500 * MB] {
        let label = format!("SET of {} MB", bytes / MB);
        if label.contains(&only) {
            let mut request = format!("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n${bytes}\r\n").into_bytes();
            request.resize(request.len() + bytes as usize, b'v');
            request.extend_from_slice(b"\r\n");
            watch.run(&label, &request, 1);
        }
    }
    watch.end();
}

#[test]
fn every_command_with_extremes_among_its_arguments_keeps_within_bounds() {
    let size = usize::try_from(number("TARN_BAD_SIZE", 8_000)).unwrap_or(usize::MAX);
    let (seed, rounds) = (number("TARN_BAD_SEED", 1), number("TARN_BAD_ROUNDS", 2));
    notice(&format!("TARN_BAD_SEED={seed} TARN_BAD_ROUNDS={rounds}"));
    let stock = Stock { size };
    let mut watch = Watch::new(server());
    let (rows, mut rng) = (rows(&watch.server), Rng(seed));
    assert!(rows.len() > 200, "{}", rows.len());
    for _ in 0..rounds {
        for row in &rows {
            stock.tend(&mut watch.peer);
            let args = drawn(row, &mut rng);
            if row.waits {
                watch.one_in_multi(&args);
            } else {
                watch.one(&args);
            }
        }
    }
    watch.end();
}

/// Sends a command that would look through a set four thousand times, and returns once it has begun.
fn begin_a_long_command(server: &Server) -> (Client, i64) {
    let mut client = server.client();
    for (key, prefix) in [("{t}from", "m"), ("{t}other", "x")] {
        let members: Vec<String> = (0..8000).map(|i| format!("{prefix}{i}")).collect();
        let sadd: Vec<&str> = ["SADD", key].into_iter().chain(members.iter().map(String::as_str)).collect();
        assert_eq!(client.try_call(&sadd).ok(), Some(Value::Int(8000)));
    }
    let id = client.call("CLIENT ID").int().unwrap_or_else(|| panic!("an id"));
    let command = [&["SDIFFSTORE", "{t}to", "{t}from"][..], &["{t}other"; 8000]].concat();
    assert!(client.send_raw(&encode(&command)).is_ok());
    let mut other = server.client();
    while !other.call(&format!("CLIENT LIST ID {id}")).text().contains("cmd=sdiffstore") {
        std::thread::yield_now();
    }
    (client, id)
}

/// Too long for a network thread, wherever the copy's shard and the original's are.
#[test]
fn a_big_set_is_copied_whole_to_any_shard() {
    let (server, size) = (server(), 150_000);
    let mut peer = Peer::connect(&server);
    Stock { size }.fill(&mut peer, "set");
    for copy in ["a", "b", "c", "d", "e"] {
        assert_eq!(peer.call(&format!("COPY set {copy}")), ":1");
        assert_eq!(peer.call(&format!("SCARD {copy}")), format!(":{size}"));
        assert_eq!(peer.call(&format!("SDIFFSTORE left set {copy}")), ":0");
    }
}

#[test]
fn a_kill_ends_a_running_command_and_undoes_it() {
    let server = server();
    let (mut victim, id) = begin_a_long_command(&server);
    let mut other = server.client();
    assert_eq!(other.call(&format!("CLIENT KILL ID {id}")), Value::Int(1));
    // Waits for the shard that the command has.
    assert_eq!(other.call("EXISTS {t}to"), Value::Int(0));
    assert!(matches!(victim.read(), Err(Gone::Closed)));
    assert_eq!(other.call("SCARD {t}from"), Value::Int(8000));
}

#[test]
fn a_shutdown_ends_a_running_command_and_undoes_it() {
    let mut server = server();
    let (_client, _) = begin_a_long_command(&server);
    assert_eq!(server.stop(), Some(0), "{}", server.output());
    server.spawn();
    server.wait_ready();
    let mut client = server.client();
    assert_eq!(client.call("EXISTS {t}to {t}from {t}other"), Value::Int(2));
    assert_eq!(client.call("SCARD {t}from"), Value::Int(8000));
}
