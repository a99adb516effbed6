//! Queues at full rate: a process adds jobs, another does them, and each notes what it asked and was answered in a file, which
//! no server can lose. Afterwards the notes are compared.
//!
//! A job's commands are the one that adds it, the one by which a worker gets it, and the one that tells it is done. Then
//!
//! | server | holds |
//! |---|---|
//! | lives | a job that is added is done once |
//! | is killed (`kill -9`) and started again on the same data and port | a job whose addition was answered is done, once |
//! | | but more often, for each kill while its addition or a delivery of it was under way, from the worker's getting it to the answer that it is done |
//!
//! Neither application forgets one of its commands that was not answered: it repeats it, or gives the job to a worker again. There
//! is one exception. Celery takes a task off its list by one command and notes that it has it by another: a task that a killed
//! server has handed out by an answer which nobody got is lost to Celery, on Redis as well. There is one worker, hence one such
//! task for each kill at most, and no worker was told that it is done.
//!
//! The log is synced before each answer while the server is killed. (Without, a kill takes no more: what was answered has been
//! written, and only the machine's end could lose it.) Memory is short, so that jobs which are done go to disk.
//!
//! `TARN_APPLICATIONS_SECONDS` is how long each run adds jobs (8).

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common::rng::Rng;
use crate::common::server::{Server, notice};
use crate::common::wait::{PATIENCE, until};

/// A queue: how its two processes are started, and where it keeps its jobs.
pub(crate) struct Application<'a> {
    pub(crate) name: &'static str,
    pub(crate) program: &'static str,
    /// The database of the keys that are there while a job is not done.
    pub(crate) database: u32,
    pub(crate) pending: &'a [&'a str],
    /// The database and the command that count the jobs that are done.
    pub(crate) done: (u32, &'static str),
    /// How many jobs the application itself may lose by a kill.
    pub(crate) lost_by_kill: usize,
}

/// Milliseconds of the clock that all processes share.
type Moment = u64;

fn now() -> Moment {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    now.as_millis() as Moment
}

/// From a request to its answer, if there was one.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Span {
    from: Moment,
    to: Option<Moment>,
}

impl Span {
    /// How often a server was killed meanwhile. A kill lasts until the server is there again: what is noted before then was
    /// answered before the kill.
    fn hits(self, kills: &[(Moment, Moment)]) -> usize {
        let hit = |&&(before, after): &&(Moment, Moment)| self.from <= after && self.to.is_none_or(|to| to >= before);
        kills.iter().filter(hit).count()
    }
}

/// What was noted of a job.
#[derive(Default, Debug)]
struct Job {
    addition: Option<Span>,
    added: bool,
    deliveries: HashMap<u64, Span>,
    runs: usize,
}

impl Job {
    fn note(&mut self, at: Moment, what: &str, delivery: u64) {
        match what {
            "add" => self.addition = Some(Span { from: at, to: None }),
            "added" | "refused" => {
                self.added = what == "added";
                self.addition.as_mut().expect("what is answered was asked").to = Some(at);
            }
            "got" => assert_eq!(self.deliveries.insert(delivery, Span { from: at, to: None }), None),
            "ran" => self.runs += 1,
            "done" => self.deliveries.get_mut(&delivery).expect("what is done was got").to = Some(at),
            _ => panic!("no such note: {what}"),
        }
    }

    /// How often it may have been done: an addition is repeated until it is answered, and so each time may be made twice.
    fn most_runs(&self, kills: &[(Moment, Moment)]) -> usize {
        let additions = self.addition.map_or(0, |addition| addition.hits(kills));
        1 + additions + self.deliveries.values().filter(|delivery| delivery.hits(kills) > 0).count()
    }
}

/// What came of all jobs.
#[derive(Default, Debug)]
struct Outcome {
    jobs: usize,
    runs: usize,
    /// Added, and never done.
    lost: Vec<usize>,
    /// Done more than once, as they may be and as they may not.
    doubled: usize,
    wrong: Vec<usize>,
}

fn compare(jobs: &[Job], kills: &[(Moment, Moment)]) -> Outcome {
    let mut outcome = Outcome::default();
    for (n, job) in jobs.iter().enumerate() {
        outcome.jobs += usize::from(job.added);
        outcome.runs += usize::from(job.runs > 0);
        if job.added && job.runs == 0 {
            outcome.lost.push(n);
        }
        if job.runs > job.most_runs(kills) {
            outcome.wrong.push(n);
        } else if job.runs > 1 {
            outcome.doubled += 1;
        }
    }
    outcome
}

/// What was noted in these files, by the jobs' numbers.
fn read<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Vec<Job> {
    let mut jobs = Vec::new();
    let texts: Vec<String> = files.map(|file| fs::read_to_string(file).expect("notes")).collect();
    for line in texts.iter().flat_map(|text| text.lines()) {
        let words: Vec<&str> = line.split(' ').collect();
        let [at, what, n, ref rest @ ..] = words[..] else { continue };
        let n: usize = n.parse().expect("a job's number");
        if jobs.len() <= n {
            jobs.resize_with(n + 1, Job::default);
        }
        let delivery = rest.first().map_or(0, |number| number.parse().expect("a delivery's number"));
        jobs[n].note(at.parse().expect("a time"), what, delivery);
    }
    jobs
}

/// A process of the application.
struct Process {
    command: Command,
    child: Child,
    /// A file for each time it was started.
    notes: Vec<PathBuf>,
}

impl Process {
    fn start(mut command: Command, role: &str, server: &Server) -> Process {
        command.args([role, &server.port().to_string()]).current_dir(server.dir()).stdin(Stdio::piped());
        let first = server.dir().join(role);
        Process { child: begin(&mut command, &first), command, notes: vec![first] }
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a process").is_none()
    }

    /// Starts it again if it has ended, as whatever supervises it would: Celery's worker does not survive every loss of its server.
    fn keep(&mut self) {
        if !self.runs() {
            let next = self.notes[0].with_extension(self.notes.len().to_string());
            self.child = begin(&mut self.command, &next);
            self.notes.push(next);
        }
    }

    /// Tells it to end: what it has in hand it does before.
    fn end(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        self.await_end();
    }

    fn await_end(&mut self) {
        until("the application ends", || !self.runs());
        let status = self.child.wait().expect("a process");
        assert!(status.success(), "{status}");
    }
}

/// Where a process that has these notes tells what goes wrong.
fn complaints(notes: &Path) -> PathBuf {
    PathBuf::from(format!("{}.err", notes.display()))
}

/// Starts a process, and waits for its first note.
fn begin(command: &mut Command, notes: &Path) -> Child {
    let told = File::create(complaints(notes)).expect("a file for what it tells");
    command.env("TARN_NOTES", notes).stdout(Stdio::null()).stderr(told);
    let child = command.spawn().expect("the application");
    until("the application has begun", || fs::metadata(notes).is_ok_and(|notes| notes.len() > 0));
    child
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let told =
                self.notes.last().map(|notes| fs::read(complaints(notes)).unwrap_or_default()).unwrap_or_default();
            eprintln!("{}", String::from_utf8_lossy(&told[told.len().saturating_sub(8000)..]));
        }
    }
}

fn length() -> Duration {
    let seconds = std::env::var("TARN_APPLICATIONS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(8))
}

/// Kills the server and starts it again until the time is over; applications take some seconds to come back each time.
fn kill_again_and_again(server: &mut Server, worker: &mut Process) -> Vec<(Moment, Moment)> {
    let (began, mut rng, mut kills) = (Instant::now(), Rng(now()), Vec::new());
    let mut next = Duration::from_millis(500 + rng.below(1500));
    while kills.is_empty() || began.elapsed() < length() {
        worker.keep();
        std::thread::sleep(Duration::from_millis(1 + rng.below(20)));
        if began.elapsed() >= next {
            let before = now();
            server.restart_after_kill();
            kills.push((before, now()));
            next = began.elapsed() + Duration::from_millis(2500 + rng.below(3500));
        }
    }
    kills
}

/// Waits until no job is left, and the worker has ended. One that does nothing any more since its server was killed is ended and
/// started again, as whoever supervises it would.
fn drain(application: &Application<'_>, server: &Server, worker: &mut Process, killed: bool) {
    let mut client = server.client();
    client.call(&format!("SELECT {}", application.database));
    let exists = format!("EXISTS {}", application.pending.join(" "));
    let (mut empty, mut done, mut progress, mut silent) = (0, 0, Instant::now(), 0);
    while empty < 10 {
        worker.keep();
        empty = if client.call(&exists).int() == Some(0) { empty + 1 } else { 0 };
        let length = worker.notes.last().and_then(|notes| fs::metadata(notes).ok()).map_or(0, |notes| notes.len());
        if length != done {
            (done, progress) = (length, Instant::now());
        }
        if killed && silent < 3 && progress.elapsed() > PATIENCE / 4 {
            let clients = client.call("CLIENT LIST").text();
            eprintln!("{}: jobs are left, the worker is started again; clients:\n{clients}", application.name);
            let _ = worker.child.kill();
            (silent, progress) = (silent + 1, Instant::now());
        }
        assert!(progress.elapsed() < PATIENCE, "{}: jobs are left, and nobody does them", application.name);
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.end();
    assert_eq!(client.call(&exists).int(), Some(0), "{}: the worker has left jobs", application.name);
}

/// Runs an application, with a server that is killed or with one that lives.
pub(crate) fn at_full_rate(application: &Application<'_>, command: impl Fn() -> Command, killed: bool) {
    let command = || {
        let mut command = command();
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications").join(application.program));
        if killed {
            command.env("TARN_KILLED", "yes");
        }
        command
    };
    let (name, fsync) = (application.name, if killed { "always" } else { "everysec" });
    let mut server = Server::tarn(&["--maxmemory", "32mb", "--appendfsync", fsync]);
    let mut worker = Process::start(command(), "work", &server);
    let mut adder = Process::start(command(), "add", &server);
    let kills = if killed {
        kill_again_and_again(&mut server, &mut worker)
    } else {
        std::thread::sleep(length());
        Vec::new()
    };
    drop(adder.child.stdin.take());
    adder.await_end();
    drain(application, &server, &mut worker, killed);

    let jobs = read(adder.notes.iter().chain(&worker.notes));
    let restarts = worker.notes.len() - 1;
    assert!(restarts <= kills.len(), "{name}: the worker ends, though the server does not");
    judge(application, &server, &jobs, &kills);
}

/// Whether all has come as it must.
fn judge(application: &Application<'_>, server: &Server, jobs: &[Job], kills: &[(Moment, Moment)]) {
    let name = application.name;
    let outcome = compare(jobs, kills);
    let mut client = server.client();
    client.call(&format!("SELECT {}", application.done.0));
    let kept = client.call(application.done.1).int().expect("a number") as usize;
    let (lost, doubled) = (outcome.lost.len(), outcome.doubled);
    let (added, killed) = (outcome.jobs, kills.len());
    notice(&format!("{name}: {added} jobs, {killed} kills, {lost} lost, {doubled} done again"));

    assert!(added > 0, "{name} has added nothing");
    let told =
        |numbers: &[usize]| numbers.iter().take(20).map(|&n| format!("{n}: {:?}\n", jobs[n])).collect::<String>();
    assert!(outcome.wrong.is_empty(), "{name}: done too often, kills at {kills:?}\n{}", told(&outcome.wrong));
    // One that is lost when it is handed out again has been done, but has no result.
    let lost_or_unknown = lost + outcome.runs.saturating_sub(kept);
    let unanswered = outcome.lost.iter().all(|&n| jobs[n].deliveries.values().all(|delivery| delivery.to.is_none()));
    assert!(
        lost_or_unknown <= application.lost_by_kill * killed && unanswered,
        "{name}: lost, and {kept} results of {}; kills at {kills:?}\n{}",
        outcome.runs,
        told(&outcome.lost)
    );
    if kills.is_empty() {
        assert_eq!((added, kept), (jobs.len(), jobs.len()), "{name}: additions answered, and results kept");
    }
}

#[test]
fn the_comparison_finds_what_is_lost_and_doubled() {
    let jobs = |notes: &[(Moment, &str, u64)]| {
        let mut job = Job::default();
        notes.iter().for_each(|&(at, what, delivery)| job.note(at, what, delivery));
        vec![job]
    };
    let once = [(10, "add", 0), (11, "added", 0), (12, "got", 0), (14, "ran", 0), (15, "done", 0)];
    let again = [(20, "got", 1), (21, "ran", 1), (22, "done", 1)];
    let outcome = compare(&jobs(&once), &[]);
    assert_eq!((outcome.jobs, outcome.runs, outcome.doubled), (1, 1, 0));
    assert_eq!(compare(&jobs(&once[..2]), &[]).lost, [0]);
    assert!(compare(&jobs(&once[..1]), &[]).lost.is_empty(), "an addition that was not answered");
    let twice = jobs(&[&once[..], &again[..]].concat());
    for (kill, allowed) in [((10, 10), true), ((13, 13), true), ((16, 19), false), ((1, 9), false)] {
        let outcome = compare(&twice, &[kill]);
        assert_eq!((outcome.doubled, outcome.wrong.is_empty()), (usize::from(allowed), allowed), "{kill:?}");
    }
    let slow =
        jobs(&[(10, "add", 0), (50, "added", 0), (51, "got", 0), (52, "ran", 0), (53, "ran", 0), (54, "ran", 0)]);
    assert!(compare(&slow, &[(20, 21), (30, 31)]).wrong.is_empty(), "an addition that was repeated twice");
    assert_eq!(compare(&slow, &[(20, 21)]).wrong, [0]);
    let unanswered = jobs(&[&once[..4], &again[..]].concat());
    assert!(compare(&unanswered, &[(17, 18)]).wrong.is_empty(), "its end was never answered");
    assert_eq!(compare(&unanswered, &[]).wrong, [0]);
}
