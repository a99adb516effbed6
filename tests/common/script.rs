//! Scripts: commands and the replies expected of them, in plain text.
//!
//! ```text
//! == SET and GET               a section: an empty server, new connections
//! # a comment
//! > SET key "a value"          a command, quoted as in redis-cli
//! +OK                          its reply, see `notation`
//! b> GET key                   the same from a second connection, named b
//! "a value"
//! ?> TTL key                   asked again until the reply is the expected one
//! -1
//! b~> BLPOP list 0         sent; what follows comes once its client waits
//! b<                       what that connection is sent next
//! ["list", "a"]
//! raw> "GET key\r\n"           bytes as they are; every reply awaited is written below
//! "a value"
//! ```
//!
//! A reply that differs between the protocols beyond what its notation says has two forms, on lines that begin with `2: ` and `3: `.
//! `${name}` in a command is what `$name` captured, `${x*5}` is `xxxxx`, `${1..3:# m#}` is `1 m1 2 m2 3 m3 `: an argument that
//! begins so is as many as it has words. The last two may stand in replies: `[${1..300:"x#",} "end"]` is an array of 301.
//!
//! After a section's title:
//!
//! | marker | meaning |
//! |---|---|
//! | none, or `@redis` | proven by Redis 8.2 |
//! | `@valkey` | proven by Valkey 9.1: what Redis 8.2 does not know |
//! | `@both` | proven by both |
//! | `@tarn` | nobody else to ask: newer than 8.2 by its documentation, or Tarn's own |
//! | `@resp2`, `@resp3` | run in this protocol alone, for sections that change it themselves or are about it |
//! | `--directive value` | a server of its own, started so |

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::notation::{self, Pattern, Proto, show};
use super::resp::{Client, Gone, Value, encode};
use super::server::{Kind, Server};
use super::wait::{PATIENCE, until};

/// Directives every server of a script gets.
const DIRECTIVES: &[&str] = &["--enable-debug-command", "yes"];
/// How long a reply may take.
const REPLY_LIMIT: Duration = Duration::from_secs(20);
/// How long recording waits for more replies to raw bytes.
const RECORD_QUIET: Duration = Duration::from_millis(300);

/// Told of every entry: its answers, and the same as text if they are not the expected ones.
type Report<'a> = &'a mut dyn FnMut(&Entry, Proto, &[Answer], Option<String>);

/// A parsed file.
pub(crate) struct Script {
    path: PathBuf,
    lines: Vec<String>,
    sections: Vec<Section>,
}

struct Section {
    title: String,
    provers: Vec<Kind>,
    only: Option<Proto>,
    args: Vec<String>,
    entries: Vec<Entry>,
}

struct Entry {
    line: usize,
    connection: String,
    raw: bool,
    mode: Mode,
    args: Vec<Vec<u8>>,
    expected_lines: Range<usize>,
    expected: [Vec<Pattern>; 2],
}

/// What is done with a command.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Sent, and answered.
    Ask,
    /// The same, until the answer is as expected.
    Until,
    /// Sent. It has its client wait.
    Send,
    /// There is none: something is to come.
    Await,
}

/// What an entry was answered.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Reply(Value),
    None,
    Closed,
}

impl Script {
    /// Reads `tests/scripts/NAME.txt`; a file that cannot be understood fails the test.
    pub(crate) fn load(name: &str) -> Script {
        let path = folder().join(format!("{name}.txt"));
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let sections = sections(&lines).unwrap_or_else(|e| panic!("{}:{e}", path.display()));
        Script { path, lines, sections }
    }

    /// Whether a kind of server is to run any section.
    pub(crate) fn concerns(&self, kind: Kind) -> bool {
        self.sections.iter().any(|section| section.runs_on(kind))
    }

    /// Runs every section on Tarn, or on the server that proves it; what differs from the expectation comes back as one text.
    pub(crate) fn check(&self, kind: Kind) -> Result<(), String> {
        let mut found = Vec::new();
        self.run(kind, false, &mut |entry, proto, _, mismatch| {
            if let Some(text) = mismatch {
                let expected = self.lines[entry.expected_lines.clone()].join("\n");
                found.push((entry.line, format!("  expected of {proto:?}\n{expected}\n  got\n{text}")));
            }
        });
        if found.is_empty() {
            return Ok(());
        }
        let shown: Vec<String> = found
            .iter()
            .take(40)
            .map(|(line, text)| format!("{}:{}: {}\n{text}", self.path.display(), line + 1, self.lines[*line]))
            .collect();
        Err(format!("{} replies of {} differ:\n{}", found.len(), kind.title(), shown.join("\n")))
    }

    /// Writes the replies of the proving servers into the file, where they are not the ones expected.
    pub(crate) fn record(&self) {
        let mut seen: HashMap<usize, [Option<Vec<Answer>>; 2]> = HashMap::new();
        let mut wrong: HashMap<usize, Range<usize>> = HashMap::new();
        for kind in [Kind::Redis82, Kind::Valkey] {
            if kind.binary().is_none() || !self.concerns(kind) {
                continue;
            }
            self.run(kind, true, &mut |entry, proto, answers, mismatch| {
                seen.entry(entry.line).or_default()[proto as usize] = Some(answers.to_vec());
                if mismatch.is_some() {
                    wrong.insert(entry.line, entry.expected_lines.clone());
                }
            });
        }
        let mut out: Vec<String> = Vec::new();
        let mut at = 0;
        let mut places: Vec<(&usize, &Range<usize>)> = wrong.iter().collect();
        places.sort_by_key(|(line, _)| **line);
        for (entry, range) in places {
            out.extend_from_slice(&self.lines[at..range.start]);
            out.extend(written(&seen[entry], &self.lines[range.clone()]));
            at = range.end;
        }
        out.extend_from_slice(&self.lines[at..]);
        fs::write(&self.path, out.join("\n") + "\n").unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
    }

    /// Runs the sections of a kind of server; `first` leaves out those that another server proves before it.
    fn run(&self, kind: Kind, first: bool, report: Report) {
        let mut shared = None;
        for section in self.sections.iter().filter(|section| section.runs_on(kind)) {
            if first && section.provers.first() != Some(&kind) {
                continue;
            }
            let mut own = None;
            for proto in [Proto::Resp2, Proto::Resp3] {
                if section.only.is_some_and(|only| only != proto) {
                    continue;
                }
                let place = if section.args.is_empty() { &mut shared } else { &mut own };
                let server = place.get_or_insert_with(|| section.start(kind));
                section.run(server, proto, report);
            }
        }
    }
}

impl Section {
    fn runs_on(&self, kind: Kind) -> bool {
        kind.is_tarn() || self.provers.contains(&kind)
    }

    fn start(&self, kind: Kind) -> Server {
        let mut args = DIRECTIVES.to_vec();
        args.extend(self.args.iter().map(String::as_str));
        Server::start(kind, &args).unwrap_or_else(|| panic!("no {} here", kind.title()))
    }

    fn run(&self, server: &Server, proto: Proto, report: Report) {
        if self.args.is_empty() {
            let flushed = server.client().call("FLUSHALL");
            assert!(!flushed.is_error(), "FLUSHALL before \"{}\": {}", self.title, flushed.text());
        }
        let mut connections: HashMap<String, Client> = HashMap::new();
        let mut names: HashMap<String, Vec<u8>> = HashMap::new();
        for entry in &self.entries {
            let client =
                connections.entry(entry.connection.clone()).or_insert_with(|| connect(server, proto, &self.title));
            let start = Instant::now();
            if entry.mode == Mode::Send {
                let waiting = blocked_clients(server);
                assert!(client.send_raw(&encode(&entry.args(&names))).is_ok(), "line {}", entry.line + 1);
                until("a client more waits", || blocked_clients(server) == waiting + 1);
                continue;
            }
            loop {
                let answers = entry.ask(client, proto, &names);
                let mismatch = entry.judge(&answers, proto, &mut names);
                if entry.mode == Mode::Until && mismatch.is_some() && start.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                report(entry, proto, &answers, mismatch);
                if answers.last() == Some(&Answer::Closed) {
                    connections.remove(&entry.connection);
                }
                break;
            }
        }
    }
}

fn connect(server: &Server, proto: Proto, title: &str) -> Client {
    let mut client = server.client();
    client.set_timeout(REPLY_LIMIT);
    if proto == Proto::Resp3 {
        let hello = client.call("HELLO 3");
        assert!(!hello.is_error(), "HELLO 3 before \"{title}\": {}", hello.text());
    }
    client
}

impl Entry {
    /// What an argument stands for.
    fn arguments(&self, arg: &[u8], names: &HashMap<String, Vec<u8>>) -> Vec<Vec<u8>> {
        let text = substitute(arg, names);
        let many = !self.raw && arg.starts_with(b"${") && arg.windows(2).any(|w| w == b"..");
        if !many {
            return vec![text];
        }
        text.split(|&c| c == b' ').filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
    }

    fn args(&self, names: &HashMap<String, Vec<u8>>) -> Vec<Vec<u8>> {
        self.args.iter().flat_map(|arg| self.arguments(arg, names)).collect()
    }

    fn ask(&self, client: &mut Client, proto: Proto, names: &HashMap<String, Vec<u8>>) -> Vec<Answer> {
        let args = self.args(names);
        let bytes = match self.mode {
            Mode::Await => Vec::new(),
            _ if self.raw => args.concat(),
            _ => encode(&args),
        };
        if client.send_raw(&bytes).is_err() {
            return vec![Answer::Closed];
        }
        let expected = &self.expected[proto as usize];
        if expected.is_empty() {
            return self.explore(client);
        }
        let mut answers = Vec::new();
        for pattern in expected {
            if *pattern == Pattern::NoReply {
                answers.push(Answer::None);
                continue;
            }
            answers.push(match client.read() {
                Ok(value) => Answer::Reply(value),
                Err(Gone::Quiet) => Answer::None,
                Err(Gone::Closed) => Answer::Closed,
                Err(Gone::Garbage(what)) => panic!("line {}: {what}", self.line + 1),
            });
            if answers.last() == Some(&Answer::Closed) {
                break;
            }
        }
        answers
    }

    /// Nothing is expected yet: one reply, or for raw bytes all that comes.
    fn explore(&self, client: &mut Client) -> Vec<Answer> {
        client.set_timeout(if self.raw { RECORD_QUIET } else { REPLY_LIMIT });
        let mut answers = Vec::new();
        loop {
            match client.read() {
                Ok(value) => answers.push(Answer::Reply(value)),
                Err(Gone::Closed) => answers.push(Answer::Closed),
                Err(_) if answers.is_empty() => answers.push(Answer::None),
                Err(_) => break,
            }
            if !self.raw || !matches!(answers.last(), Some(Answer::Reply(_))) {
                break;
            }
        }
        client.set_timeout(REPLY_LIMIT);
        answers
    }

    /// The answers as text, if they are not the expected ones.
    fn judge(&self, answers: &[Answer], proto: Proto, names: &mut HashMap<String, Vec<u8>>) -> Option<String> {
        let expected = &self.expected[proto as usize];
        let mut keep = |name: &str, value: &Value| {
            let text = value.int().map_or_else(|| value.bytes().unwrap_or_default().to_vec(), |n| n.to_string().into());
            names.insert(name.to_owned(), text);
        };
        let good = expected.len() == answers.len()
            && expected.iter().zip(answers).all(|(pattern, answer)| match (pattern, answer) {
                (Pattern::NoReply, Answer::None) | (Pattern::Closed, Answer::Closed) => true,
                (pattern, Answer::Reply(value)) => pattern.matches(value, proto, &mut keep),
                _ => false,
            });
        (!good).then(|| answers.iter().map(|a| shown(a, "nil")).collect::<Vec<_>>().join("\n"))
    }
}

fn shown(answer: &Answer, nil: &str) -> String {
    match answer {
        Answer::Reply(value) => show(value, nil),
        Answer::None => "(none)".into(),
        Answer::Closed => "closed".into(),
    }
}

/// The lines that expect these answers: one form if both protocols agree on it, else two. An array that `before` wrote as
/// `sort[…]`, alone or as the second part of a SCAN's reply, stays one.
fn written(answers: &[Option<Vec<Answer>>; 2], before: &[String]) -> Vec<String> {
    let before = before.first().map_or("", String::as_str);
    let form = |answers: &[Answer], nil: &str| {
        let text = answers.iter().map(|a| shown(a, nil));
        if before.starts_with("sort[") {
            return text.map(|t| format!("sort{t}")).collect();
        }
        if before.starts_with("[\"0\", sort[") {
            return text.map(|t| t.replacen(", [", ", sort[", 1)).collect();
        }
        text.collect::<Vec<_>>()
    };
    let fits = |lines: &[String]| {
        let Ok(patterns) = notation::parse(&lines.join("\n")) else { return false };
        [Proto::Resp2, Proto::Resp3].into_iter().all(|proto| {
            let Some(answers) = &answers[proto as usize] else { return true };
            patterns.len() == answers.len()
                && patterns.iter().zip(answers).all(|(pattern, answer)| match answer {
                    Answer::Reply(value) => pattern.matches(value, proto, &mut |_, _| {}),
                    Answer::None => *pattern == Pattern::NoReply,
                    Answer::Closed => *pattern == Pattern::Closed,
                })
        })
    };
    let richest = answers[1].as_ref().or(answers[0].as_ref());
    let forms = richest.map(|a| ["nil", "nil[]"].map(|nil| form(a, nil))).unwrap_or_default();
    if let Some(lines) = forms.into_iter().find(|lines| fits(lines)) {
        return lines.iter().flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    }
    let mut out = Vec::new();
    for (number, answers) in [("2", &answers[0]), ("3", &answers[1])] {
        for text in form(answers.as_deref().unwrap_or_default(), "nil") {
            out.extend(format!("{number}: {text}").lines().map(str::to_owned));
        }
    }
    out
}

/// `${name}`, `${x*5}` and `${1..5:x#}` put in.
fn substitute(arg: &[u8], names: &HashMap<String, Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = arg;
    while let Some(start) = rest.windows(2).position(|w| w == b"${") {
        let Some(len) = rest[start..].iter().position(|b| *b == b'}') else { break };
        out.extend_from_slice(&rest[..start]);
        let inside = String::from_utf8_lossy(&rest[start + 2..start + len]).into_owned();
        match (inside.split_once(':'), inside.split_once('*')) {
            (Some((range, text)), _) => {
                let ends = range.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
                let (from, to): (u64, u64) = ends.unwrap_or_else(|| panic!("no range in {inside:?}"));
                for n in from..=to {
                    out.extend(text.replace('#', &n.to_string()).bytes());
                    out.extend((!text.ends_with('\n')).then_some(b' '));
                }
            }
            (None, Some((text, times))) => {
                let times = times.parse().unwrap_or_else(|_| panic!("no count in {inside:?}"));
                out.extend_from_slice(text.repeat(times).as_bytes());
            }
            (None, None) => out.extend_from_slice(names.get(&inside).map_or(b"?".as_slice(), Vec::as_slice)),
        }
        rest = &rest[start + len + 1..];
    }
    out.extend_from_slice(rest);
    out
}

/// Where the scripts are.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

fn sections(lines: &[String]) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = &lines[at];
        if let Some(header) = line.strip_prefix("== ") {
            sections.push(section(header, at)?);
        } else if let Some((connection, mode, command)) = command_line(line) {
            let end = (at + 1..lines.len()).find(|i| ends_reply(&lines[*i])).unwrap_or(lines.len());
            let section = sections.last_mut().ok_or_else(|| format!("{}: a command before any section", at + 1))?;
            let args = split(command).ok_or_else(|| format!("{}: quotes", at + 1))?;
            let expected = expectations(&lines[at + 1..end]).map_err(|e| format!("{}: {e}", at + 1))?;
            let (raw, connection) = (connection == "raw", connection.to_owned());
            section.entries.push(Entry {
                line: at,
                connection,
                raw,
                mode,
                args,
                expected_lines: at + 1..end,
                expected,
            });
            at = end;
            continue;
        } else if !line.is_empty() && !line.starts_with('#') {
            return Err(format!("{}: neither command, section nor comment", at + 1));
        }
        at += 1;
    }
    Ok(sections)
}

fn ends_reply(line: &str) -> bool {
    line.is_empty() || line.starts_with('#') || line.starts_with("== ") || command_line(line).is_some()
}

fn section(header: &str, line: usize) -> Result<Section, String> {
    let (title, args) = header.split_once(" --").map_or((header, String::new()), |(t, a)| (t, format!("--{a}")));
    let mut words: Vec<&str> = title.split(' ').collect();
    let mut only = None;
    let mut provers = vec![Kind::Redis82];
    while let Some(marker) = words.last().and_then(|word| word.strip_prefix('@')) {
        match marker {
            "redis" => {}
            "valkey" => provers = vec![Kind::Valkey],
            "both" => provers = vec![Kind::Redis82, Kind::Valkey],
            "tarn" => provers = vec![],
            "resp2" => only = Some(Proto::Resp2),
            "resp3" => only = Some(Proto::Resp3),
            _ => return Err(format!("{}: marker @{marker}", line + 1)),
        }
        words.pop();
    }
    let args = split(&args).ok_or_else(|| format!("{}: quotes", line + 1))?;
    let args = args.into_iter().map(|a| String::from_utf8_lossy(&a).into_owned()).collect();
    Ok(Section { title: words.join(" "), provers, only, args, entries: Vec::new() })
}

/// Connection, what is done with it, and the command of a line that is one.
fn command_line(line: &str) -> Option<(&str, Mode, &str)> {
    let (head, mode, command) = match line.strip_suffix('<') {
        Some(name) => (name, Mode::Await, ""),
        None => {
            let (head, command) = line.split_once("> ")?;
            let modes = [('?', Mode::Until), ('~', Mode::Send)];
            let mode = modes.iter().find_map(|(mark, mode)| Some((head.strip_suffix(*mark)?, *mode)));
            let (name, mode) = mode.unwrap_or((head, Mode::Ask));
            (name, mode, command)
        }
    };
    head.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()).then_some((head, mode, command))
}

/// Clients that wait for a key.
fn blocked_clients(server: &Server) -> i64 {
    let info = server.client().call("INFO clients");
    let text = String::from_utf8_lossy(info.bytes().unwrap_or_default()).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("blocked_clients:")?.parse().ok());
    line.unwrap_or_else(|| panic!("INFO tells no blocked_clients"))
}

/// The replies expected in RESP2 and in RESP3.
fn expectations(lines: &[String]) -> Result<[Vec<Pattern>; 2], String> {
    let mut texts = [String::new(), String::new()];
    let mut to = [true, true];
    for line in lines {
        let mut rest = line.as_str();
        for (prefix, target) in [("2: ", [true, false]), ("3: ", [false, true])] {
            if let Some(text) = rest.strip_prefix(prefix) {
                (to, rest) = (target, text);
                break;
            }
        }
        for (text, wanted) in texts.iter_mut().zip(to) {
            if wanted {
                text.push_str(rest);
                text.push('\n');
            }
        }
    }
    let parse = |text: &str| {
        let full = substitute(text.as_bytes(), &HashMap::new());
        notation::parse(&String::from_utf8_lossy(&full))
    };
    Ok([parse(&texts[0])?, parse(&texts[1])?])
}

/// Splits a command line as redis-cli does; `None` for unbalanced quotes.
pub(crate) fn split(line: &str) -> Option<Vec<Vec<u8>>> {
    let mut rest = line.as_bytes();
    let mut args = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        let Some(&first) = rest.first() else { return Some(args) };
        let mut arg = Vec::new();
        if first == b'"' || first == b'\'' {
            rest = &rest[1..];
            loop {
                match rest {
                    [] => return None,
                    [q, tail @ ..] if *q == first => {
                        rest = tail;
                        break;
                    }
                    [b'\\', b'\'', tail @ ..] if first == b'\'' => {
                        arg.push(b'\'');
                        rest = tail;
                    }
                    [b'\\', ..] if first == b'"' => {
                        let (byte, used) = notation::unescape(rest);
                        arg.push(byte);
                        rest = &rest[used..];
                    }
                    [b, tail @ ..] => {
                        arg.push(*b);
                        rest = tail;
                    }
                }
            }
            if rest.first().is_some_and(|b| *b != b' ') {
                return None;
            }
        } else {
            let end = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
            arg.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        args.push(arg);
    }
}
