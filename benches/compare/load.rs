//! Clients of our own: what redis-benchmark cannot do.
//!
//! | kind | a request is sent | its latency counts from |
//! |---|---|---|
//! | [`fill`] | as fast as the socket takes it | – |
//! | [`Load`] | when the one before it, or the pipeline, has been answered; with a rate not before its time | its sending |
//! | [`open_loop`] | when its time has come, whatever has been answered | the time at which it was due |
//!
//! Only the open loop tells what a client feels that does not wait for the server: in a closed one a server that stands still for a
//! second is asked once in that second (coordinated omission).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::common::rng::Rng;

/// How long a reply may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes written at once while a server is filled.
const WRITE: usize = 64 << 10;
/// For so long before its time a client looks at the clock, as a sleep may end late.
const SPIN: Duration = Duration::from_micros(60);

/// Appends one argument as a bulk string.
pub(crate) fn push(out: &mut Vec<u8>, arg: &[u8]) {
    let mut number = itoa::Buffer::new();
    out.push(b'$');
    out.extend_from_slice(number.format(arg.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(arg);
    out.extend_from_slice(b"\r\n");
}

/// Appends a command.
pub(crate) fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    let mut number = itoa::Buffer::new();
    out.push(b'*');
    out.extend_from_slice(number.format(args.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    args.iter().for_each(|arg| push(out, arg));
}

/// `key:000000000012`, as redis-benchmark names its keys.
pub(crate) fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = n;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Hexadecimal digits by chance, which LZ4 does not compress, the same for the same number.
pub(crate) fn value(n: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(n);
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        let bits = rng.next();
        out.extend((0..16).map(|at| b"0123456789abcdef"[(bits >> (4 * at)) as usize & 15]));
    }
    out.truncate(len);
    out
}

/// The reading half of a connection, which counts replies and looks at no more than their kind.
struct Replies {
    stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
    nils: u64,
}

impl Replies {
    fn more(&mut self) -> Result<(), String> {
        self.buf.drain(..self.at);
        self.at = 0;
        let old = self.buf.len();
        self.buf.resize(old + (64 << 10), 0);
        let read = self.stream.read(&mut self.buf[old..]).map_err(|e| format!("a client: {e}"))?;
        self.buf.truncate(old + read);
        if read == 0 { Err("a client: the server closed the connection".into()) } else { Ok(()) }
    }

    /// Reads so many replies; an error is one here too.
    fn skip(&mut self, count: u64) -> Result<(), String> {
        let mut left = count;
        while left > 0 {
            let Some(end) = memchr::memchr(b'\n', &self.buf[self.at..]).map(|at| self.at + at) else {
                self.more()?;
                continue;
            };
            let line = self.buf[self.at..end].trim_ascii_end();
            let number = || String::from_utf8_lossy(&line[1..]).parse::<i64>().unwrap_or(0);
            let mut next = end + 1;
            match line.first() {
                Some(b'-') => return Err(format!("a client: {}", String::from_utf8_lossy(line))),
                Some(b'$') if number() < 0 => self.nils += 1,
                Some(b'$') => {
                    next += number() as usize + 2;
                    if next > self.buf.len() {
                        self.more()?;
                        continue;
                    }
                }
                Some(b'*') => left += number().max(0) as u64,
                _ => {}
            }
            self.at = next;
            left -= 1;
        }
        Ok(())
    }
}

fn connect(port: u16) -> Result<(TcpStream, Replies), String> {
    let failed = |e: std::io::Error| format!("a client: {e}");
    let stream = TcpStream::connect(("127.0.0.1", port)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    let reading = stream.try_clone().map_err(failed)?;
    Ok((stream, Replies { stream: reading, buf: Vec::new(), at: 0, nils: 0 }))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    thread.join().unwrap_or_else(|_| Err("a client panicked".into()))
}

/// Sends commands over one connection as fast as it takes them: how long until the last was answered.
pub(crate) fn fill(port: u16, count: u64, mut each: impl FnMut(u64, &mut Vec<u8>)) -> Result<Duration, String> {
    let (mut stream, mut replies) = connect(port)?;
    let start = Instant::now();
    thread::scope(|scope| {
        let reader = scope.spawn(move || replies.skip(count));
        let mut out = Vec::with_capacity(2 * WRITE);
        let mut sent = Ok(());
        for n in 0..count {
            each(n, &mut out);
            if out.len() >= WRITE || n + 1 == count {
                sent = stream.write_all(&out).map_err(|e| format!("filling: {e}"));
                out.clear();
            }
            if sent.is_err() {
                break;
            }
        }
        // What the server said last tells more than that it no longer reads.
        if sent.is_err() {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        joined(reader).and(sent)
    })?;
    Ok(start.elapsed())
}

/// What a run of clients saw.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) nils: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
}

/// Latencies, once sorted asked for their shares.
#[derive(Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    /// The time within which this share of the requests was answered, in milliseconds; 1.0 for the longest.
    pub(crate) fn ms(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let at = (self.0.len() as f64 * share) as usize;
        self.0.get(at.min(last)).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
    }
}

impl From<Vec<Duration>> for Latencies {
    fn from(mut all: Vec<Duration>) -> Latencies {
        all.sort_unstable();
        Latencies(all)
    }
}

/// Clients in a closed loop.
pub(crate) struct Load<'a> {
    pub(crate) clients: u64,
    /// Commands of a pipeline.
    pub(crate) depth: u64,
    /// Replies to each of them; more than one where it is a transaction.
    pub(crate) replies: u64,
    /// Requests a second of all clients together at most.
    pub(crate) rate: Option<f64>,
    /// Appends a command; `false` when there is none left.
    pub(crate) command: &'a (dyn Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync),
}

impl Load<'_> {
    /// Runs for a time.
    pub(crate) fn run(&self, port: u16, time: Duration) -> Result<Outcome, String> {
        let end = Instant::now() + time;
        self.run_while(port, &|| Instant::now() < end)
    }

    /// Runs as long as asked to.
    pub(crate) fn run_while(&self, port: u16, goes_on: &(dyn Fn() -> bool + Sync)) -> Result<Outcome, String> {
        // Another choice of keys in every run: what the one before has read is in memory.
        static RUNS: AtomicU64 = AtomicU64::new(1);
        let seed = RUNS.fetch_add(1, Ordering::Relaxed) << 32;
        let connections = (0..self.clients).map(|_| connect(port)).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> = connections
                .into_iter()
                .enumerate()
                .map(|(n, connection)| scope.spawn(move || self.client(seed, n as u64, connection, start, goes_on)))
                .collect();
            let mut all = Outcome::default();
            let mut latencies = Vec::new();
            for thread in threads {
                let (requests, nils, times) = joined(thread)?;
                all.requests += requests;
                all.nils += nils;
                latencies.extend(times);
            }
            all.elapsed = start.elapsed();
            all.latencies = latencies.into();
            Ok(all)
        })
    }

    fn client(
        &self,
        seed: u64,
        n: u64,
        (mut stream, mut replies): (TcpStream, Replies),
        start: Instant,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<(u64, u64, Vec<Duration>), String> {
        let mut rng = Rng(seed + n);
        let (mut out, mut times, mut requests) = (Vec::new(), Vec::new(), 0);
        let every = self.rate.map(|rate| Duration::from_secs_f64((self.clients * self.depth) as f64 / rate));
        // The clients of a rate do not all begin at once.
        let mut due = start + every.unwrap_or_default().mul_f64(n as f64 / self.clients as f64);
        while goes_on() {
            if let Some(every) = every {
                sleep(due.saturating_duration_since(Instant::now()));
                due += every;
            }
            out.clear();
            let count = (0..self.depth).take_while(|_| (self.command)(&mut rng, &mut out)).count() as u64;
            if count == 0 {
                break;
            }
            let sent = Instant::now();
            stream.write_all(&out).map_err(|e| format!("a client: {e}"))?;
            replies.skip(count * self.replies)?;
            times.push(sent.elapsed());
            requests += count;
        }
        Ok((requests, replies.nils, times))
    }
}

/// What the open loop saw: the latencies, and by how much its own client was late to send.
pub(crate) struct OpenOutcome {
    pub(crate) latencies: Latencies,
    pub(crate) late: Latencies,
}

/// Sends requests over one connection at a fixed rate, each at its time, whatever has been answered by then.
pub(crate) fn open_loop(
    port: u16,
    rate: f64,
    time: Duration,
    command: &(dyn Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync),
) -> Result<OpenOutcome, String> {
    let (mut stream, mut replies) = connect(port)?;
    let count = (rate * time.as_secs_f64()) as u64;
    let start = Instant::now() + Duration::from_millis(10);
    let due = move |n: u64| start + Duration::from_secs_f64(n as f64 / rate);
    // A reader that fails ends the sender.
    let failed = &AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut times = Vec::new();
            for n in 0..count {
                replies.skip(1).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                times.push(due(n).elapsed());
            }
            Ok(times)
        });
        let (mut rng, mut out, mut late) = (Rng(0), Vec::new(), Vec::new());
        let mut sent = Ok(());
        for n in 0..count {
            out.clear();
            command(&mut rng, &mut out);
            sleep(due(n).saturating_duration_since(Instant::now()).saturating_sub(SPIN));
            while Instant::now() < due(n) {
                std::hint::spin_loop();
            }
            late.push(due(n).elapsed());
            sent = stream.write_all(&out).map_err(|e| format!("the open loop: {e}"));
            if sent.is_err() || failed.load(Ordering::Relaxed) {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                break;
            }
        }
        let latencies = joined(reader).and_then(|times| sent.map(|()| times))?;
        Ok(OpenOutcome { latencies: latencies.into(), late: late.into() })
    })
}
