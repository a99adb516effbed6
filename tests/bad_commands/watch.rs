//! What bad commands do to others: PINGs that wait, memory, time on the network threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::peer::Peer;
use super::{MB, MOST_RESIDENT};
use crate::common::resp::{Value, encode};
use crate::common::server::{Server, notice};

/// What is run while everything is watched.
pub(crate) struct Watch {
    pub(crate) server: Server,
    bystanders: Bystanders,
    pub(crate) peer: Peer,
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
    pub(crate) fn new(server: Server) -> Watch {
        let (bystanders, peer) = (Bystanders::start(&server), Peer::connect(&server));
        Watch { server, bystanders, peer, seen: Vec::new() }
    }

    fn pid(&self) -> u32 {
        self.server.pid().unwrap_or_else(|| panic!("the server runs"))
    }

    /// Runs requests that are answered by so many replies and notes what it did to others.
    pub(crate) fn run(&mut self, label: &str, request: &[u8], replies: usize) {
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

    pub(crate) fn one<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.run(&label_of(args), &encode(args), 1);
    }

    /// The same where nothing waits.
    pub(crate) fn one_in_multi<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let request = [encode(&["MULTI"]), encode(args), encode(&["EXEC"])].concat();
        self.run(&format!("MULTI {} EXEC", label_of(args)), &request, 3);
    }

    pub(crate) fn end(mut self) {
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

fn label_of<A: AsRef<[u8]>>(args: &[A]) -> String {
    let label: Vec<String> = args.iter().take(8).map(|arg| shown(arg.as_ref())).collect();
    let more = if args.len() > 8 { format!(" … {} arguments", args.len()) } else { String::new() };
    format!("{}{more}", label.join(" "))
}

fn shown(arg: &[u8]) -> String {
    arg.iter().take(24).copied().flat_map(std::ascii::escape_default).map(char::from).collect()
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
