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

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::resp::{Client, Gone, Value, encode};
use common::rng::Rng;
use common::server::{Server, notice};

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

/// A connection that reads replies without keeping them: some are larger than what a test should hold.
struct Peer {
    stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
}

/// A reply's first line, and its length.
struct Skimmed {
    head: String,
    len: usize,
}

impl Peer {
    fn connect(server: &Server) -> Peer {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap_or_else(|e| panic!("{e}"));
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap_or_else(|e| panic!("{e}"));
        stream.set_nodelay(true).unwrap_or_else(|e| panic!("{e}"));
        Peer { stream, buf: Vec::new(), at: 0 }
    }

    /// Sends requests and skims so many replies; those that came before the connection was closed.
    fn run(&mut self, request: &[u8], replies: usize) -> Vec<Skimmed> {
        let mut stream = self.stream.try_clone().unwrap_or_else(|e| panic!("{e}"));
        std::thread::scope(|scope| {
            // A server that answers meanwhile must be read, else both wait for ever.
            scope.spawn(move || stream.write_all(request));
            (0..replies).map_while(|_| self.skim()).collect()
        })
    }

    /// The next reply; `None` if there will be none.
    fn skim(&mut self) -> Option<Skimmed> {
        let (mut left, mut head, mut len) = (1usize, String::new(), 0);
        while left > 0 {
            left -= 1;
            let line = self.line()?;
            len += line.len();
            let count = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse::<i64>().ok());
            let count = usize::try_from(count.unwrap_or(0)).unwrap_or(0);
            match line[0] {
                b'*' | b'~' | b'>' => left += count,
                b'%' => left += 2 * count,
                b'$' | b'=' if line[1] != b'-' => {
                    self.skip(count + 2)?;
                    len += count + 2;
                }
                _ => {}
            }
            if head.is_empty() {
                head = String::from_utf8_lossy(&line).into_owned();
            }
        }
        Some(Skimmed { head, len })
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buf[self.at..].windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buf[self.at..self.at + end].to_vec();
                self.at += end + 2;
                return Some(line);
            }
            self.fill()?;
        }
    }

    fn skip(&mut self, mut bytes: usize) -> Option<()> {
        loop {
            let here = bytes.min(self.buf.len() - self.at);
            self.at += here;
            bytes -= here;
            if bytes == 0 {
                return Some(());
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Option<()> {
        self.buf.drain(..self.at);
        self.at = 0;
        let mut chunk = vec![0; 1 << 16];
        match self.stream.read(&mut chunk) {
            Ok(n) if n > 0 => self.buf.extend_from_slice(&chunk[..n]),
            Ok(_) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no reply in two minutes"),
            Err(_) => return None,
        }
        Some(())
    }

    fn call(&mut self, command: &str) -> String {
        let args: Vec<&str> = command.split(' ').collect();
        let replies = self.run(&encode(&args), 1);
        replies.first().map_or_else(|| panic!("{command}: closed"), |reply| reply.head.clone())
    }
}

/// Clients on every network thread that PING again and again.
struct Bystanders {
    slowest_us: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Bystanders {
    fn start(server: &Server) -> Bystanders {
        let (slowest_us, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let threads = (0..4).map(|_| {
            let (mut client, slowest_us, stop) = (server.client(), slowest_us.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    assert_eq!(client.call("PING"), Value::Simple(b"PONG".to_vec()));
                    slowest_us.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(3));
                }
            })
        });
        let threads = threads.collect();
        Bystanders { slowest_us, stop, threads }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| assert!(thread.join().is_ok(), "a PING was not answered"));
    }
}

/// Begins a new measurement of the most memory the process has had.
fn reset_peak(pid: u32) {
    assert!(std::fs::write(format!("/proc/{pid}/clear_refs"), "5").is_ok());
}

/// The most memory since then, bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("the server has ended: {status}")) << 10
}

/// Processor time that each network thread has taken.
fn network_cpu(pid: u32) -> Vec<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read = |path: &std::path::Path, file: &str| std::fs::read_to_string(path.join(file)).unwrap_or_default();
    let network = tasks.filter(|task| read(&task.path(), "comm").starts_with("net-"));
    let nanos = network.map(|task| read(&task.path(), "schedstat").split(' ').next().and_then(|ns| ns.parse().ok()));
    nanos.map(|nanos| Duration::from_nanos(nanos.unwrap_or(0))).collect()
}

/// The keys that bad commands are sent for: name, type, and how to fill them.
struct Stock {
    size: usize,
}

const KEYS: [(&str, &str); 18] = [
    ("small", "string"),
    ("big", "string"),
    ("sparse", "string"),
    ("sparse2", "string"),
    ("counter", "string"),
    ("hll", "string"),
    ("set", "set"),
    ("set2", "set"),
    ("ints", "set"),
    ("zset", "zset"),
    ("zset2", "zset"),
    ("hash", "hash"),
    ("list", "list"),
    ("same", "list"),
    ("l", "list"),
    ("stream", "stream"),
    ("geo", "zset"),
    ("pending", "stream"),
];

impl Stock {
    /// Fills anew what bad commands have destroyed.
    fn tend(&self, peer: &mut Peer) {
        let asked: Vec<u8> = KEYS.iter().flat_map(|(key, _)| encode(&["TYPE", key])).collect();
        let types = peer.run(&asked, KEYS.len());
        for ((key, kind), is) in KEYS.iter().zip(types) {
            if is.head[1..] != **kind {
                peer.call(&format!("DEL {key}"));
                self.fill(peer, key);
            }
        }
    }

    fn fill(&self, peer: &mut Peer, key: &str) {
        match key {
            "small" => _ = peer.call("SET small text"),
            "counter" => _ = peer.call("SET counter 1"),
            "big" => _ = peer.run(&encode(&["SET", "big", &"v".repeat(self.size * 8)]), 1),
            "sparse" | "sparse2" => _ = peer.call(&format!("SETRANGE {key} 536870900 end")),
            "hll" => self.add(peer, &["PFADD", key], 1, |i| vec![format!("e{i}")]),
            "set" => self.add(peer, &["SADD", key], 1, |i| vec![format!("member:{i}")]),
            "set2" => self.add(peer, &["SADD", key], 1, |i| vec![format!("member:{}", 2 * i)]),
            "ints" => self.add(peer, &["SADD", key], 1, |i| vec![i.to_string()]),
            "zset" => self.add(peer, &["ZADD", key], 1, |i| vec![i.to_string(), format!("member:{i}")]),
            "zset2" => self.add(peer, &["ZADD", key], 1, |i| vec![i.to_string(), format!("member:{}", 2 * i)]),
            "hash" => self.add(peer, &["HSET", key], 1, |i| vec![format!("field:{i}"), format!("value:{i}")]),
            "list" => self.add(peer, &["RPUSH", key], 1, |i| vec![format!("element:{i}")]),
            "l" => self.add(peer, &["RPUSH", key], self.size.div_ceil(300), |i| vec![i.to_string()]),
            "same" => self.add(peer, &["RPUSH", key], self.size.div_ceil(300), |_| vec!["se".to_owned()]),
            "geo" => self.add(peer, &["GEOADD", key], 1, |i| {
                vec![format!("{}.5", i % 179), format!("{}.5", i % 85), format!("place:{i}")]
            }),
            _ => self.fill_stream(peer, key),
        }
    }

    /// Sends what `args` says of each element, 1000 a command; every `step`th only.
    fn add(&self, peer: &mut Peer, begin: &[&str], step: usize, args: impl Fn(usize) -> Vec<String>) {
        let elements: Vec<usize> = (0..self.size).step_by(step).collect();
        for some in elements.chunks(1000) {
            let mut command: Vec<String> = begin.iter().map(|arg| (*arg).to_owned()).collect();
            command.extend(some.iter().flat_map(|i| args(*i)));
            let reply = peer.run(&encode(&command), 1);
            assert!(reply.first().is_some_and(|reply| !reply.head.starts_with('-')), "{begin:?}");
        }
    }

    fn fill_stream(&self, peer: &mut Peer, key: &str) {
        for from in (0..self.size).step_by(1000) {
            let many: Vec<u8> =
                (from..from + 1000).flat_map(|i| encode(&["XADD", key, &format!("{}-1", i + 1), "f", "v"])).collect();
            peer.run(&many, 1000);
        }
        if key == "pending" {
            peer.call("XGROUP CREATE pending g 0");
            while peer.run(&encode(&["XREADGROUP", "GROUP", "g", "c", "COUNT", "1000", "STREAMS", key, ">"]), 1)[0].len
                > 10
            {}
        }
    }
}

/// What is run while everything is watched.
struct Watch {
    server: Server,
    bystanders: Bystanders,
    peer: Peer,
    seen: Vec<Seen>,
}

/// What a bad command did.
struct Seen {
    label: String,
    ping: Duration,
    /// Processor time of the network thread that took most: what a PING waits for on a machine with nothing else to do.
    network: Duration,
    memory: u64,
    took: Duration,
    reply: String,
}

impl Seen {
    fn show(&self) {
        let Seen { label, ping, network, memory, took, reply } = self;
        let memory = memory / MB;
        notice(&format!("PING {ping:>8.1?} network {network:>8.1?} {memory:>4} MB {took:>8.1?}  {label}  ->  {reply}"));
    }
}

impl Watch {
    fn new(server: Server) -> Watch {
        let (bystanders, peer) = (Bystanders::start(&server), Peer::connect(&server));
        Watch { server, bystanders, peer, seen: Vec::new() }
    }

    fn pid(&self) -> u32 {
        self.server.pid().unwrap_or_else(|| panic!("the server runs"))
    }

    /// Runs requests that are answered by so many replies and notes what it did to others.
    fn run(&mut self, label: &str, request: &[u8], replies: usize) {
        if std::env::var_os("TARN_BAD_SHOW").is_some() {
            notice(label);
        }
        reset_peak(self.pid());
        self.bystanders.slowest_us.store(0, Ordering::Relaxed);
        let (before, began) = (network_cpu(self.pid()), Instant::now());
        let got = self.peer.run(request, replies);
        let took = began.elapsed();
        let network = network_cpu(self.pid()).into_iter().zip(before).map(|(after, before)| after - before).max();
        let reply = got.last().map_or(String::new(), |reply| reply.head.chars().take(60).collect());
        if self.peer.run(&encode(&["PING"]), 1).is_empty() {
            // A client that is closed is told why first.
            assert!(reply.starts_with('-'), "{label}: closed without a reason\n{}", self.server.output());
            self.peer = Peer::connect(&self.server);
        }
        std::thread::sleep(Duration::from_millis(5));
        let ping = Duration::from_micros(self.bystanders.slowest_us.load(Ordering::Relaxed));
        let memory = peak_bytes(self.pid());
        let (label, network) = (label.chars().take(90).collect::<String>(), network.unwrap_or_default());
        self.seen.push(Seen { label: label.clone(), ping, network, memory, took, reply });
        assert!(memory <= MOST_RESIDENT, "{label}: {} MB", memory / MB);
    }

    fn one<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let label: Vec<String> = args.iter().take(8).map(|arg| shown(arg.as_ref())).collect();
        let more = if args.len() > 8 { format!(" … {} arguments", args.len()) } else { String::new() };
        self.run(&format!("{}{more}", label.join(" ")), &encode(args), 1);
    }

    fn end(mut self) {
        self.seen.sort_by_key(|seen| std::cmp::Reverse(seen.ping));
        notice("slowest PING:");
        self.seen.iter().take(20).for_each(Seen::show);
        let slowest = self.seen.first().map_or(Duration::ZERO, |seen| seen.ping);
        self.seen.sort_by_key(|seen| std::cmp::Reverse(seen.network));
        notice("most time on a network thread:");
        self.seen.iter().take(40).for_each(Seen::show);
        self.seen.sort_by_key(|seen| std::cmp::Reverse(seen.memory));
        notice("most memory:");
        self.seen.iter().take(20).for_each(Seen::show);
        self.bystanders.end();
        assert!(!self.server.output().contains("panicked"), "{}", self.server.output());
        if let Ok(most_ms) = std::env::var("TARN_BAD_PING_MS") {
            let most_ms = most_ms.parse().unwrap_or_else(|_| panic!("TARN_BAD_PING_MS: a number"));
            assert!(slowest <= Duration::from_millis(most_ms), "a PING took {slowest:?}");
        }
    }
}

fn shown(arg: &[u8]) -> String {
    arg.iter().take(24).copied().flat_map(std::ascii::escape_default).map(char::from).collect()
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

/// Not sent: what ends, stops or rewires the server or the connection, which is what it is for.
const UNFIT: [&str; 20] = [
    "shutdown",
    "debug",
    "monitor",
    "flushall",
    "flushdb",
    "swapdb",
    "quit",
    "reset",
    "wait",
    "waitaof",
    "select",
    "multi",
    "exec",
    "auth",
    "save",
    "bgsave",
    "bgrewriteaof",
    "lastsave",
    "hello",
    "failover",
];
const UNFIT_SUBCOMMANDS: [&str; 9] =
    ["kill", "pause", "reply", "set", "rewrite", "resetstat", "no-evict", "no-touch", "setname"];

const WORDS: [&str; 84] = [
    "",
    "0",
    "1",
    "-1",
    "2",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775806",
    "1000000000",
    "-1000000000",
    "2147483647",
    "2147483648",
    "4294967295",
    "-2147483648",
    "536870911",
    "18446744073709551615",
    "1.7976931348623157e308",
    "5e-324",
    "1e4932",
    "nan",
    "inf",
    "-inf",
    "+inf",
    "-0",
    "*",
    "+",
    "-",
    "$",
    ">",
    "0-0",
    "1-1",
    "18446744073709551615-18446744073709551615",
    "(1",
    "[a",
    "(",
    "[",
    "#",
    "w*",
    "*->*",
    "COUNT",
    "LIMIT",
    "WITHSCORES",
    "WITHVALUES",
    "MATCH",
    "STORE",
    "BY",
    "GET",
    "WEIGHTS",
    "AGGREGATE",
    "MAX",
    "IDX",
    "LEN",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "JUSTID",
    "IDLE",
    "FORCE",
    "STREAMS",
    "GROUP",
    "g",
    "c",
    "MAXLEN",
    "MINID",
    "~",
    "=",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "EX",
    "PX",
    "KEEPTTL",
    "NX",
    "XX",
    "GT",
    "CH",
    "INCR",
    "REV",
    "BYSCORE",
    "BYLEX",
    "FIELDS",
    "FROMLONLAT",
    "BYRADIUS",
    "km",
    "REPLACE",
];

/// A command of the table: its name, with that of a subcommand, and the first, last and step of its keys.
struct Row {
    name: Vec<String>,
    arity: i64,
    keys: (i64, i64, i64),
}

fn rows(server: &Server) -> Vec<Row> {
    let row = |value: &Value, name: Vec<String>| {
        let number = |at: usize| value.items()[at].int().unwrap_or(0);
        Row { name, arity: number(1), keys: (number(3), number(4), number(5)) }
    };
    let mut rows = Vec::new();
    for value in server.client().call("COMMAND").items() {
        let name = value.items()[0].text();
        let subcommands = value.items()[9].items();
        if UNFIT.contains(&name.as_str()) {
            continue;
        }
        if subcommands.is_empty() {
            rows.push(row(value, vec![name.clone()]));
        }
        for sub in subcommands {
            let full = sub.items()[0].text();
            let last = full.split('|').next_back().unwrap_or_default().to_owned();
            if !UNFIT_SUBCOMMANDS.contains(&last.as_str()) {
                rows.push(row(sub, vec![name.clone(), last]));
            }
        }
    }
    rows
}

fn drawn(row: &Row, rng: &mut Rng) -> Vec<String> {
    let least = usize::try_from(row.arity.unsigned_abs()).unwrap_or(1);
    let count = if row.arity < 0 { least + rng.below(6) as usize } else { least };
    let mut args = row.name.clone();
    while args.len() < count {
        let (first, last, step) = row.keys;
        let at = args.len() as i64;
        let is_key = first > 0 && at >= first && (last < 0 || at <= last) && (at - first) % step.max(1) == 0;
        let is_key = if is_key { !rng.one_in(20) } else { rng.one_in(6) };
        args.push(match is_key {
            true => KEYS[rng.below(KEYS.len() as u64) as usize].0.to_owned(),
            false if rng.one_in(30) => "x".repeat(100_000),
            false => WORDS[rng.below(WORDS.len() as u64) as usize].to_owned(),
        });
    }
    args
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
            watch.one(&drawn(row, &mut rng));
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
