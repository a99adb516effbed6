//! Hot requests beside cold ones: what a client whose keys are in memory feels of those whose keys are on disk.
//!
//! The hot client is an open loop ([`crate::load::open_loop`]). The cold ones, but for the one that copies, have a rate too, so that a core stays free: what is measured is
//! the server's waiting for the disk and for itself, not the machine's lack of cores. A machine that is shared is another every few seconds, so the rows take turns, and
//! what is told of one is the median of its turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::Options;
use crate::cold;
use crate::common::rng::Rng;
use crate::load::{self, Load, OpenOutcome, Outcome};
use crate::server::{self, Server};
use crate::table::{Section, Table, median, rounded, short, thousands};

/// Keys that the hot client asks for.
const HOT: u64 = 1000;
/// Keys of the others where they ask for such as are in memory.
const WARM: u64 = 10_000;
/// The set that is copied, and for comparison one that is small enough to be in memory, and large enough to be copied in slices as well.
const BIG: &[u8] = b"big";
const SMALL: &[u8] = b"small";
const SMALL_MEMBERS: u64 = 100_000;
/// Turns of each row unless told otherwise.
const ROUNDS: usize = 5;
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

impl Beside {
    /// Keys of a request, or elements.
    fn keys(&self, options: &Options) -> u64 {
        match self.work {
            Work::Nothing | Work::Get => 1,
            Work::Mget | Work::Exec => cold::MANY,
            Work::Copy if self.cold => members(options),
            Work::Copy => SMALL_MEMBERS,
        }
    }
}

const fn beside(title: &'static str, work: Work, cold: bool, dropped: bool) -> Beside {
    Beside { title, work, cold, dropped }
}

const ROWS: [Beside; 12] = [
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
    beside("one client's COPYs of a small set", Work::Copy, false, false),
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
    let from = if beside.cold { BIG } else { SMALL };
    let copy = |_: &mut Rng, out: &mut Vec<u8>| {
        load::command(out, &[b"COPY", from, b"copy", b"REPLACE"]);
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
            let rate = (beside.work != Work::Copy).then(|| options.background / beside.keys(options) as f64);
            let load = Load { clients: beside.work.clients(), depth: 1, replies, rate, command };
            let others = scope.spawn(move || load.run_while(server.port, &|| goes_on.load(Ordering::Relaxed)));
            sleep(AHEAD);
            others
        });
        let seen = load::open_loop(server.port, options.rate, options.seconds(), &hot);
        goes_on.store(false, Ordering::Relaxed);
        let others = others.map(|others| others.join().unwrap_or_else(|_| Err("a client panicked".into())));
        Ok((seen?, others.transpose()?.unwrap_or_default()))
    })
    .map_err(|e: String| format!("{}: {e}", server.name))
}

/// The columns of a row that are numbers.
const FIGURES: [&str; 8] =
    ["keys a second", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "late p99 ms", "late p99.9 ms", "server's cores"];

/// One turn of a row; nothing where the page cache cannot be dropped.
fn turn(options: &Options, server: &Server, beside: &Beside) -> Result<Option<[f64; FIGURES.len()]>, String> {
    server.rest();
    if beside.dropped {
        if !server::drop_caches(options) {
            return Ok(None);
        }
    } else if beside.cold {
        server.warm();
    }
    // Twice, as what is asked for once does not stay.
    load::fill(server.port, 2 * HOT, |n, out| load::command(out, &[b"GET", format!("hot:{}", n % HOT).as_bytes()]))?;
    if !beside.cold && beside.work != Work::Nothing {
        load::fill(server.port, 2 * WARM, |n, out| load::command(out, &[b"GET", &load::key(n % WARM)]))?;
        load::fill(server.port, 2, |_, out| load::command(out, &[b"SMEMBERS", SMALL]))?;
    }
    let (start, cpu) = (Instant::now(), server.cpu_us());
    let (seen, others) = measure(options, server, beside)?;
    let cores = (server.cpu_us() - cpu) / start.elapsed().as_secs_f64() / 1e6;
    let beside_keys = (others.requests * beside.keys(options)) as f64;
    let latencies = [0.5, 0.99, 0.999, 1.0].map(|share| seen.latencies.ms(share));
    Ok(Some([
        beside_keys / others.elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
        latencies[0],
        latencies[1],
        latencies[2],
        latencies[3],
        seen.late.ms(0.99),
        seen.late.ms(0.999),
        cores,
    ]))
}

/// All turns of all rows on one server, and of each row and figure the median; `None` where a row was left out.
fn turns(options: &Options, server: &Server, rounds: usize) -> Result<Vec<Option<[f64; FIGURES.len()]>>, String> {
    let mut seen = vec![Vec::new(); ROWS.len()];
    for round in 1..=rounds {
        eprintln!("{}, round {round} of {rounds}", server.name);
        for (beside, seen) in ROWS.iter().zip(&mut seen) {
            seen.extend(turn(options, server, beside)?);
        }
    }
    let medians = |seen: Vec<[f64; FIGURES.len()]>| {
        (!seen.is_empty()).then(|| std::array::from_fn(|n| median(seen.iter().map(|figures| figures[n]).collect())))
    };
    Ok(seen.into_iter().map(medians).collect())
}

pub(crate) fn run(options: &Options) -> Result<Vec<Section>, String> {
    let mut table =
        Table::new(&[&["beside", "server", "page cache"], &FIGURES[..], &["over hot, p50 and p99"]].concat(), 3);
    let programs = cold::programs(options)?;
    let rounds = options.rounds.unwrap_or(options.pick(ROUNDS, 1));
    let (mut told, mut left_out) = (Vec::new(), false);
    for program in &programs {
        let (server, _) = cold::filled(options, program)?;
        load::fill(server.port, HOT, |n, out| load::command(out, &[b"SET", format!("hot:{n}").as_bytes(), b"x"]))?;
        for (set, members) in [(BIG, members(options)), (SMALL, SMALL_MEMBERS)] {
            load::fill(server.port, members, |n, out| load::command(out, &[b"SADD", set, &load::key(n)]))?;
        }
        server.save()?;
        // The row of the same work on hot keys is the one above.
        let mut over = [f64::NAN; 2];
        for (beside, figures) in ROWS.iter().zip(turns(options, &server, rounds)?) {
            let Some(figures) = figures else {
                left_out = true;
                continue;
            };
            let [keys, p50, p99, p999, ..] = figures;
            if !beside.cold {
                over = [p50, p99];
            }
            let ratios =
                if beside.cold { format!("{:.2} and {:.2}", p50 / over[0], p99 / over[1]) } else { String::new() };
            if program.tarn {
                let cache = if beside.dropped { ", the page cache dropped" } else { "" };
                told.push(format!("{} and {} beside {}{cache}", short(p99), short(p999), beside.title));
            }
            let words = [
                beside.title.to_owned(),
                if programs.len() > 1 { server.name.clone() } else { String::new() },
                if beside.dropped { "dropped" } else { "warm" }.to_owned(),
                if beside.work != Work::Nothing { rounded(keys) } else { String::new() },
            ];
            let figures = figures[1..].iter().map(|&figure| short(figure));
            table.push(words.into_iter().chain(figures).chain([ratios]).collect());
        }
    }
    let text = format!(
        "GETs of {} keys in memory over one connection, {} a second, each sent when its time has come, whatever has been answered by then, \
         its latency counted from that time on (an open loop, so no coordinated omission), for {} s a turn; each row has {rounds}, one after the other, \
         and of each figure the median is told; a turn begins when the server has done what was left of the one before; beside it, on the data and \
         with the budget of the cold tables ({} keys, `--maxmemory {}`), clients that ask for {} keys a second, at which a core \
         stays free: by chance of all there are, cold, or of {} that are in memory, for comparison; or one that copies a set of {} members, one COPY after the other, \
         or, for comparison, one of {}, in memory. *Late*: by how much the client itself sent after the time: that share of the latency is the machine's. *Over hot*: \
         p50 and p99 over those beside the same work on hot keys.{}",
        thousands(HOT as f64),
        thousands(options.rate),
        options.seconds().as_secs_f64(),
        thousands(options.cold_keys() as f64),
        options.cold_memory(),
        thousands(options.background),
        thousands(WARM as f64),
        thousands(members(options) as f64),
        thousands(SMALL_MEMBERS as f64),
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
