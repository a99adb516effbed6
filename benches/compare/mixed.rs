//! Hot requests beside cold ones: what a client whose keys are in memory feels of those whose keys are on disk.
//!
//! The hot client is an open loop ([`crate::load::open_loop`]). The cold ones, but for the one that copies, have a rate too, so that a core stays free: what is measured is
//! the server's waiting for the disk and for itself, not the machine's lack of cores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::Options;
use crate::cold;
use crate::common::rng::Rng;
use crate::load::{self, Load, OpenOutcome, Outcome};
use crate::server::{self, Server};
use crate::table::{Section, Table, rounded, short, thousands};

/// Keys that the hot client asks for.
const HOT: u64 = 1000;
/// Keys of the others where they ask for such as are in memory.
const WARM: u64 = 10_000;
/// The set that is copied.
const BIG: &[u8] = b"big";
/// How long the others run before the hot client begins.
const AHEAD: Duration = Duration::from_millis(300);

/// Members of the set that is copied.
fn members(options: &Options) -> u64 {
    options.cold_keys() / 2
}

fn hot(rng: &mut Rng, out: &mut Vec<u8>) -> bool {
    load::command(out, &[b"GET", format!("hot:{}", rng.below(HOT)).as_bytes()]);
    true
}

/// What the clients beside the hot one do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    Get,
    /// MGET of [`cold::MANY`].
    Mget,
    /// EXEC of [`cold::MANY`] GETs.
    Exec,
    /// One client copies a large set, again and again.
    Copy,
}

impl Work {
    fn clients(self) -> u64 {
        match self {
            Work::Nothing => 0,
            Work::Get | Work::Mget | Work::Exec => 50,
            Work::Copy => 1,
        }
    }

    /// Keys of a request, or elements.
    fn keys(self, options: &Options) -> u64 {
        match self {
            Work::Nothing | Work::Get => 1,
            Work::Mget | Work::Exec => cold::MANY,
            Work::Copy => members(options),
        }
    }
}

/// Clients beside the hot one.
struct Beside {
    title: &'static str,
    work: Work,
    /// Their keys are on disk; else in memory, for comparison.
    cold: bool,
    /// The page cache is dropped before.
    dropped: bool,
}

const fn beside(title: &'static str, work: Work, cold: bool, dropped: bool) -> Beside {
    Beside { title, work, cold, dropped }
}

const ROWS: [Beside; 11] = [
    beside("nobody", Work::Nothing, false, false),
    beside("50 clients' hot GETs", Work::Get, false, false),
    beside("50 clients' cold GETs", Work::Get, true, false),
    beside("50 clients' cold GETs", Work::Get, true, true),
    beside("50 clients' hot MGETs of 10", Work::Mget, false, false),
    beside("50 clients' cold MGETs of 10", Work::Mget, true, false),
    beside("50 clients' cold MGETs of 10", Work::Mget, true, true),
    beside("50 clients' EXECs of 10 hot GETs", Work::Exec, false, false),
    beside("50 clients' EXECs of 10 cold GETs", Work::Exec, true, false),
    beside("50 clients' EXECs of 10 cold GETs", Work::Exec, true, true),
    beside("one client's COPYs of a large set", Work::Copy, true, false),
];

/// Both at a time.
fn measure(options: &Options, server: &Server, beside: &Beside) -> Result<(OpenOutcome, Outcome), String> {
    let keys = if beside.cold { cold::asked(options) } else { WARM };
    let (get, mget) = (cold::get(keys), cold::mget(keys));
    let exec = |rng: &mut Rng, out: &mut Vec<u8>| {
        load::command(out, &[b"MULTI"]);
        (0..cold::MANY).for_each(|_| _ = get(rng, out));
        load::command(out, &[b"EXEC"]);
        true
    };
    let copy = |_: &mut Rng, out: &mut Vec<u8>| {
        load::command(out, &[b"COPY", BIG, b"copy", b"REPLACE"]);
        true
    };
    let command: &(dyn Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync) = match beside.work {
        Work::Nothing | Work::Get => &get,
        Work::Mget => &mget,
        Work::Exec => &exec,
        Work::Copy => &copy,
    };
    let replies = if beside.work == Work::Exec { cold::MANY + 2 } else { 1 };
    let goes_on = &AtomicBool::new(true);
    thread::scope(|scope| {
        let others = (beside.work != Work::Nothing).then(|| {
            let rate = (beside.work != Work::Copy).then(|| options.background / beside.work.keys(options) as f64);
            let load = Load { clients: beside.work.clients(), depth: 1, replies, rate, command };
            let others = scope.spawn(move || load.run_while(server.port, &|| goes_on.load(Ordering::Relaxed)));
            sleep(AHEAD);
            others
        });
        let seen = load::open_loop(server.port, options.rate, options.seconds() * 2, &hot);
        goes_on.store(false, Ordering::Relaxed);
        let others = others.map(|others| others.join().unwrap_or_else(|_| Err("a client panicked".into())));
        Ok((seen?, others.transpose()?.unwrap_or_default()))
    })
    .map_err(|e: String| format!("{}: {e}", server.name))
}

pub(crate) fn run(options: &Options) -> Result<Vec<Section>, String> {
    let head = [
        "beside",
        "server",
        "page cache",
        "keys a second",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "late p99 ms",
        "late p99.9 ms",
        "server's cores",
    ];
    let mut table = Table::new(&head, 3);
    let programs = cold::programs(options)?;
    let (mut told, mut left_out) = (Vec::new(), false);
    for program in &programs {
        let (server, _) = cold::filled(options, program)?;
        load::fill(server.port, HOT, |n, out| load::command(out, &[b"SET", format!("hot:{n}").as_bytes(), b"x"]))?;
        load::fill(server.port, members(options), |n, out| load::command(out, &[b"SADD", BIG, &load::key(n)]))?;
        server.save()?;
        server.warm();
        for beside in &ROWS {
            if beside.dropped && !server::drop_caches(options) {
                left_out = true;
                continue;
            }
            // Twice, as what is asked for once does not stay.
            load::fill(server.port, 2 * HOT, |n, out| {
                load::command(out, &[b"GET", format!("hot:{}", n % HOT).as_bytes()]);
            })?;
            if !beside.cold {
                load::fill(server.port, 2 * WARM, |n, out| load::command(out, &[b"GET", &load::key(n % WARM)]))?;
            }
            let (start, cpu) = (Instant::now(), server.cpu_us());
            let (seen, others) = measure(options, &server, beside)?;
            let cores = (server.cpu_us() - cpu) / start.elapsed().as_secs_f64() / 1e6;
            let cold = (others.requests * beside.work.keys(options)) as f64
                / others.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
            let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| short(seen.latencies.ms(share)));
            if program.tarn {
                let cache = if beside.dropped { ", the page cache dropped" } else { "" };
                told.push(format!("{p99} and {p999} beside {}{cache}", beside.title));
            }
            table.push(vec![
                beside.title.to_owned(),
                if programs.len() > 1 { server.name.clone() } else { String::new() },
                if beside.dropped { "dropped" } else { "warm" }.to_owned(),
                if beside.work != Work::Nothing { rounded(cold) } else { String::new() },
                p50,
                p99,
                p999,
                max,
                short(seen.late.ms(0.99)),
                short(seen.late.ms(0.999)),
                format!("{cores:.2}"),
            ]);
        }
    }
    let text = format!(
        "GETs of {} keys in memory over one connection, {} a second, each sent when its time has come, whatever has been answered by then, \
         its latency counted from that time on (an open loop, so no coordinated omission), for {} s a row; beside it, on the data and \
         with the budget of the cold tables ({} keys, `--maxmemory {}`), clients that ask for {} keys a second, at which a core \
         stays free: by chance of all there are, cold, or of {} that are in memory, for comparison; or one that copies a set of {} members, one COPY after the other. *Late*: by how much the client itself sent after the time: that share of the latency is the machine's.{}",
        thousands(HOT as f64),
        thousands(options.rate),
        (options.seconds() * 2).as_secs_f64(),
        thousands(options.cold_keys() as f64),
        options.cold_memory(),
        thousands(options.background),
        thousands(WARM as f64),
        thousands(members(options) as f64),
        if left_out {
            " The rows with the page cache dropped are left out: that takes root, and no `--keep-caches`."
        } else {
            ""
        }
    );
    let short = format!("Hot GETs of an open loop, p99 and p99.9 in ms: {}.", told.join("; "));
    let short = (!told.is_empty()).then_some(short);
    Ok(vec![Section { title: "Hot beside cold".to_owned(), text, table: table.dense(), short }])
}
