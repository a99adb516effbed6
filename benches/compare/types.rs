//! Memory and disk by type: a fresh server for each kind of object, filled by one connection, asked for its resident memory, saved, and
//! looked at again.

use std::thread::sleep;
use std::time::Duration;

use crate::Options;
use crate::load::{self, value};
use crate::server::{self, Program, Server, on_disk};
use crate::table::{Section, Table, thousands};

/// How long after the last reply memory is looked at.
const SETTLE: Duration = Duration::from_millis(300);
/// Elements in one command while a big collection is filled.
const PER_COMMAND: u64 = 20;
/// All elements in one.
const ALL: u64 = u64::MAX;

/// A kind of object.
struct Shape {
    title: &'static str,
    command: &'static str,
    /// Elements of an object; `ALL` in one big one.
    per: u64,
    /// Elements of a command.
    batch: u64,
    /// There are so many times fewer of them.
    fewer: u64,
    /// The arguments of an element.
    element: fn(u64) -> Vec<Vec<u8>>,
}

fn field(n: u64) -> Vec<Vec<u8>> {
    vec![format!("field:{n}").into(), value(n, 10)]
}

fn member(n: u64) -> Vec<Vec<u8>> {
    vec![format!("member:{n}").into()]
}

fn scored(n: u64) -> Vec<Vec<u8>> {
    vec![(n * 2_654_435_761 % 1_000_000_007).to_string().into(), format!("member:{n}").into()]
}

fn item(n: u64) -> Vec<Vec<u8>> {
    vec![value(n, 20)]
}

fn entry(n: u64) -> Vec<Vec<u8>> {
    vec!["*".into(), "field".into(), value(n, 20)]
}

const fn string(title: &'static str, fewer: u64, element: fn(u64) -> Vec<Vec<u8>>) -> Shape {
    Shape { title, command: "SET", per: 1, batch: 1, fewer, element }
}

const fn small(title: &'static str, command: &'static str, per: u64, element: fn(u64) -> Vec<Vec<u8>>) -> Shape {
    Shape { title, command, per, batch: per, fewer: 1, element }
}

const fn big(title: &'static str, command: &'static str, element: fn(u64) -> Vec<Vec<u8>>) -> Shape {
    Shape { title, command, per: ALL, batch: PER_COMMAND, fewer: 1, element }
}

const SHAPES: [Shape; 13] = [
    string("strings of 8 bytes", 1, |n| vec![value(n, 8)]),
    string("strings of 100 bytes", 1, |n| vec![value(n, 100)]),
    string("strings of 1,000 bytes", 5, |n| vec![value(n, 1000)]),
    small("hashes of 5 fields", "HSET", 5, field),
    big("one hash", "HSET", field),
    small("sets of 10 members", "SADD", 10, member),
    big("one set", "SADD", member),
    small("sorted sets of 10 members", "ZADD", 10, scored),
    big("one sorted set", "ZADD", scored),
    small("lists of 20 elements", "RPUSH", 20, item),
    big("one list", "RPUSH", item),
    Shape { title: "streams of 10 entries", command: "XADD", per: 10, batch: 1, fewer: 1, element: entry },
    Shape { title: "one stream", command: "XADD", per: ALL, batch: 1, fewer: 1, element: entry },
];

/// Bytes of all elements of a kind.
#[derive(Default)]
struct Sizes {
    /// Keys and arguments as sent.
    sent: f64,
    loaded: f64,
    saved: f64,
    disk: f64,
}

/// Fills a fresh server.
fn measure(options: &Options, program: &Program, shape: &Shape, count: u64) -> Result<Sizes, String> {
    let server = Server::start(program, options)?;
    let (memory, disk) = (server.resident(), on_disk(&server.saved()));
    let mut sent = 0;
    load::fill(server.port, count / shape.batch, |n, out| {
        let first = n * shape.batch;
        let key = load::key(first / shape.per);
        let elements: Vec<Vec<u8>> = (first..first + shape.batch).flat_map(shape.element).collect();
        let mut args: Vec<&[u8]> = vec![shape.command.as_bytes(), &key];
        args.extend(elements.iter().map(Vec::as_slice));
        let keys = if first.is_multiple_of(shape.per) { key.len() } else { 0 };
        sent += keys + elements.iter().map(Vec::len).sum::<usize>();
        load::command(out, &args);
    })
    .map_err(|e| format!("{}: {}: {e}", server.name, shape.title))?;
    sleep(SETTLE);
    let loaded = server.resident() - memory;
    server.save()?;
    let saved = server.resident() - memory;
    Ok(Sizes { sent: sent as f64, loaded, saved, disk: on_disk(&server.saved()) - disk })
}

pub(crate) fn run(options: &Options) -> Result<Vec<Section>, String> {
    let programs = server::all(options)?;
    let elements = options.elements.unwrap_or(options.pick(500_000, 50_000));
    let column = |of: &str| programs.iter().map(move |program| format!("{}{of}", program.name)).collect::<Vec<_>>();
    let mut heads = ["", "elements", "sent"].map(|name| vec![name.to_owned()]).concat();
    heads.extend(column(""));
    let mut memory = Table { head: heads.clone(), words: 1, rows: Vec::new() };
    memory.head.extend(server::tarn(options).map(|tarn| format!("{}, saved", tarn.name)));
    let mut disk = Table { head: heads, words: 1, rows: Vec::new() };
    let mut told = Vec::new();
    for shape in &SHAPES {
        let count = elements / shape.fewer;
        let sizes: Vec<Sizes> =
            programs.iter().map(|program| measure(options, program, shape, count)).collect::<Result<_, _>>()?;
        let each = |bytes: f64| thousands(bytes.max(0.0) / count as f64);
        let head = [shape.title.to_owned(), thousands(count as f64), each(sizes[0].sent)];
        let row = |get: fn(&Sizes) -> f64| head.iter().cloned().chain(sizes.iter().map(move |of| each(get(of))));
        let mut in_memory: Vec<String> = row(|of| of.loaded).collect();
        in_memory.extend(programs[0].tarn.then(|| each(sizes[0].saved)));
        memory.push(in_memory);
        disk.push(row(|of| of.disk).collect());
        if matches!(shape.title, "strings of 100 bytes" | "hashes of 5 fields" | "one sorted set") {
            let of = |get: fn(&Sizes) -> f64| each(sizes.last().map_or(0.0, get));
            told.push(format!(
                "{} {} ({} {}) and {}",
                shape.title,
                each(sizes[0].loaded),
                programs[programs.len() - 1].name,
                of(|sizes| sizes.loaded),
                each(sizes[0].disk)
            ));
        }
    }
    let text = "Bytes of resident memory per element – a key, a field, a member, an item, an entry –, what the empty server takes \
         subtracted; each kind alone on a fresh server that has memory for all of it, filled by one connection, keys of 16 bytes. Buffers that grow with the first load and not with the data are in it. \
         *Sent*: bytes of keys and arguments per element. *Saved*: after a SAVE, when nothing is left to be flushed.";
    let disk_text = "Bytes on disk per element, of the same servers after a SAVE: Tarn's `store/` when it has settled, a rival's \
         `dump.rdb`. Values are hexadecimal digits by chance, which LZ4 does not compress.";
    let short = format!("Bytes an element takes in memory, and on disk: {}.", told.join("; "));
    let section = |title: &str, text: &str, table, short| {
        let (title, text) = (title.to_owned(), text.to_owned());
        Section { title, text, table, short }
    };
    Ok(vec![section("Memory by type", text, memory, Some(short)), section("Disk by type", disk_text, disk, None)])
}
