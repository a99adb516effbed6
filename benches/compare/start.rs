//! From exec to the first reply: after a clean stop, and after `kill -9` with writes that only log or append-only file hold.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Options;
use crate::cold::fill;
use crate::common::resp::Value;
use crate::load;
use crate::server::{self, Program, Server};
use crate::table::{Section, Table, median, short, thousands};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_micros(500);
/// How long nothing is done before an end, so that an append-only file synced every second has it all.
const SYNCED: Duration = Duration::from_millis(1500);

/// Starts the server again: seconds to its first PONG, and to the value of a key.
fn start(server: &mut Server) -> Result<[f64; 2], String> {
    let key = load::key(0);
    let start = Instant::now();
    server.spawn()?;
    server.wait_until("PING", |reply| matches!(reply, Value::Simple(_)), PAUSE)?;
    let ping = start.elapsed();
    server.wait_until(
        &format!("GET {}", String::from_utf8_lossy(&key)),
        |reply| matches!(reply, Value::Bulk(_)),
        PAUSE,
    )?;
    Ok([ping, start.elapsed()].map(|took| took.as_secs_f64()))
}

fn measure(options: &Options, program: &Program, keys: u64, rounds: usize) -> Result<Vec<Vec<String>>, String> {
    eprintln!("{}: {}", program.name, program.words.join(" "));
    let mut server = Server::start(program, options)?;
    fill(&server, keys)?;
    let (mut killed, mut stopped) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round > 0 {
            fill(&server, keys / 4)?;
        }
        sleep(SYNCED);
        server.kill9();
        killed.push(start(&mut server)?);
        // Tarn takes a signal at the end of its replay for one during it, and leaves the log as it is.
        sleep(SYNCED);
        server.stop()?;
        stopped.push(start(&mut server)?);
    }
    let row = |how: &str, all: &[[f64; 2]]| {
        let of = |at: usize| short(median(all.iter().map(|took| took[at]).collect()));
        let longest = all.iter().map(|took| took[1]).fold(0.0, f64::max);
        vec![server.name.clone(), how.to_owned(), of(0), of(1), short(longest)]
    };
    Ok(vec![row("clean stop", &stopped), row("`kill -9`", &killed)])
}

pub(crate) fn run(options: &Options) -> Result<Vec<Section>, String> {
    let keys = options.start_keys.unwrap_or(options.pick(2_000_000, 100_000));
    let rounds = options.pick(3, 1);
    let mut table = Table::new(&["server", "after", "PING s", "GET s", "longest s"], 2);
    let mut told = Vec::new();
    for program in server::all(options)? {
        let rows = measure(options, &program, keys, rounds)?;
        told.push(format!("{} {} s after a clean stop, {} s after `kill -9`", program.name, rows[0][3], rows[1][3]));
        rows.into_iter().for_each(|row| table.push(row));
    }
    let text = format!(
        "{} keys of 100 bytes; seconds from exec until the first PING is answered, and the first GET of a key that is there, asked on \
         new connections every {} ms; medians of {rounds} rounds, and the longest GET. Before each `kill -9` but the first, which follows the \
         filling, a quarter of the keys is written again; before each end nothing is done for {} s.",
        thousands(keys as f64),
        PAUSE.as_secs_f64() * 1e3,
        SYNCED.as_secs_f64()
    );
    let short = format!("First GET with {} keys: {}.", thousands(keys as f64), told.join("; "));
    Ok(vec![Section { title: "Start".to_owned(), text, table, short: Some(short) }])
}
