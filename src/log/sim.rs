//! A disk in memory for tests: it fails, crashes and loses power on command. **A test tool**; public because the
//! tests of the whole engine run on it too.
//!
//! | | what becomes of it |
//! |---|---|
//! | written, not synced | survives [`SimIo::process_crash`]; at [`SimIo::power_loss`] each 4 KiB page of it is kept, torn or lost, on its own |
//! | synced | survives everything |
//! | a sync that failed | its pages stay unsafe whatever later syncs answer, until they are written again (as in Linux) |
//! | created, renamed, removed | each lost on its own at `power_loss` until the directory is synced |
//!
//! Every call that changes something, and every step, is counted as one operation. [`SimIo::crash_at`] ends the
//! "process" at one of them: it and all later calls fail with an error that [`is_crash`] knows; a write that meets
//! the crash is done by half. [`SimIo::at`] has something run at the next call of a kind, on the thread that makes it:
//! that forces any order of two threads' calls, and tells a test that waits for a call that it has come.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{File, Io};
use super::format::{FrameHeader, encode_segment_header, payload_check};
use crate::util::splitmix;

const PAGE: u64 = 4096;

/// Kinds of calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// [`File::write_at`].
    Write,
    /// [`File::read_at`].
    Read,
    /// [`File::sync_data`] and [`File::sync_all`].
    Sync,
    /// [`File::truncate`].
    Truncate,
    /// [`Io::create`].
    Create,
    /// [`Io::rename`].
    Rename,
    /// [`Io::remove`].
    Remove,
    /// [`Io::sync_dir`].
    SyncDir,
}

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing is done yet.
    Before(Op),
    /// It is done; the caller does not know yet.
    After(Op),
    /// The named step is reached.
    Step(&'static str),
}

type Hook = Box<dyn FnOnce() + Send>;

/// The simulated disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimIo {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    files: Vec<SimData>,
    /// The directory as the process sees it.
    names: BTreeMap<PathBuf, usize>,
    /// The directory as far as it is synced, and what was done to it since.
    safe_names: BTreeMap<PathBuf, usize>,
    renames: Vec<DirChange>,
    faults: BTreeMap<Op, Fault>,
    capacity_bytes: Option<u64>,
    operations: u64,
    crash_at: Option<u64>,
    crash_step: Option<(String, u64)>,
    crashed: bool,
    steps: Vec<&'static str>,
    step_fault: Option<(&'static str, i32)>,
    hooks: Vec<(Moment, Hook)>,
}

#[derive(Default, Clone)]
struct SimData {
    live: Vec<u8>,
    safe: Vec<u8>,
    changes: Vec<Change>,
}

#[derive(Clone)]
struct Change {
    kind: ChangeKind,
    /// A sync of it failed: no later one makes it safe.
    doomed: bool,
}

#[derive(Clone)]
enum ChangeKind {
    Write { offset: u64, bytes: Vec<u8> },
    Truncate(u64),
}

#[derive(Clone)]
struct DirChange {
    removed: Option<PathBuf>,
    added: Option<(PathBuf, usize)>,
}

#[derive(Clone, Copy)]
struct Fault {
    skip: u64,
    times: u64,
    errno: i32,
    /// Bytes a failing write still writes.
    keep: usize,
}

/// Whether an error is the simulated end of the process.
pub fn is_crash(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Crashed>())
}

#[derive(Debug)]
struct Crashed;

impl std::fmt::Display for Crashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulated process has ended")
    }
}

impl std::error::Error for Crashed {}

impl SimIo {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// After `skip` calls of that kind, the next `times` fail with the errno (`u64::MAX`: until [`SimIo::heal`]).
    pub fn fail(&self, op: Op, skip: u64, times: u64, errno: i32) {
        self.disk.lock().faults.insert(op, Fault { skip, times, errno, keep: 0 });
    }

    /// After `skip` writes the next one writes only `keep` bytes; the `times - 1` after it fail with the errno.
    pub fn fail_short(&self, skip: u64, times: u64, keep: usize, errno: i32) {
        self.disk.lock().faults.insert(Op::Write, Fault { skip, times, errno, keep });
    }

    /// The named step fails with the errno until told otherwise; the process goes on.
    pub fn fail_step(&self, fault: Option<(&'static str, i32)>) {
        self.disk.lock().step_fault = fault;
    }

    /// Runs something, once, on the thread that comes to that moment next. It may use the disk.
    pub fn at(&self, moment: Moment, run: impl FnOnce() + Send + 'static) {
        self.disk.lock().hooks.push((moment, Box::new(run)));
    }

    fn reach(&self, moment: Moment) {
        let hook = {
            let hooks = &mut self.disk.lock().hooks;
            hooks.iter().position(|(at, _)| *at == moment).map(|at| hooks.remove(at).1)
        };
        if let Some(hook) = hook {
            hook();
        }
    }

    /// One call, with what is to run before and after it.
    fn call<R>(&self, op: Op, run: impl FnOnce(&mut Disk) -> R) -> R {
        self.reach(Moment::Before(op));
        let result = run(&mut self.disk.lock());
        self.reach(Moment::After(op));
        result
    }

    /// Ends all injected failures. A crash stays.
    pub fn heal(&self) {
        let mut disk = self.disk.lock();
        disk.faults.clear();
        disk.step_fault = None;
        disk.capacity_bytes = None;
    }

    /// Limits the bytes in all files: writes beyond it are short, then `ENOSPC`.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.disk.lock().capacity_bytes = capacity_bytes;
    }

    /// Ends the process at the n-th operation from now (0: the next).
    pub fn crash_at(&self, n: u64) {
        let mut disk = self.disk.lock();
        disk.crash_at = Some(disk.operations + n);
    }

    /// Ends the process when the named step is reached for the n-th time from now (0: the first).
    pub fn crash_at_step(&self, name: &str, n: u64) {
        self.disk.lock().crash_step = Some((name.to_owned(), n));
    }

    /// Whether the process has ended.
    pub fn is_crashed(&self) -> bool {
        self.disk.lock().crashed
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.disk.lock().operations
    }

    /// The steps reached so far, in order.
    pub fn steps(&self) -> Vec<&'static str> {
        self.disk.lock().steps.clone()
    }

    /// The disk as the next process finds it when only the process ended.
    pub fn process_crash(&self) -> SimIo {
        let disk = self.disk.lock();
        let next = Disk {
            files: disk.files.clone(),
            names: disk.names.clone(),
            safe_names: disk.safe_names.clone(),
            renames: disk.renames.clone(),
            ..Disk::default()
        };
        SimIo { disk: Arc::new(Mutex::new(next)) }
    }

    /// The disk as the next process finds it after a power loss; the seed decides what of the unsynced is left.
    pub fn power_loss(&self, seed: u64) -> SimIo {
        let mut rng = Rng(seed);
        let disk = self.disk.lock();
        let files = disk.files.iter().map(|file| file.after_power_loss(&mut rng)).collect();
        let mut names = disk.safe_names.clone();
        let kept = rng.odds();
        for change in disk.renames.iter().filter(|_| rng.chance(kept)) {
            change.apply(&mut names);
        }
        let next = Disk { files, safe_names: names.clone(), names, ..Disk::default() };
        SimIo { disk: Arc::new(Mutex::new(next)) }
    }

    /// The contents of a file, if it is there.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let disk = self.disk.lock();
        disk.names.get(path).map(|&id| disk.files[id].live.clone())
    }

    /// Puts a file on the disk, synced.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut disk = self.disk.lock();
        let id = disk.files.len();
        disk.files.push(SimData { live: bytes.to_vec(), safe: bytes.to_vec(), changes: Vec::new() });
        disk.names.insert(path.to_owned(), id);
        disk.safe_names.insert(path.to_owned(), id);
    }
}

impl Disk {
    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other(Crashed)) } else { Ok(()) }
    }

    /// Counts an operation; an error ends it here.
    fn operate(&mut self) -> io::Result<()> {
        self.alive()?;
        self.crashed = self.crash_at == Some(self.operations);
        self.operations += 1;
        self.alive()
    }

    /// The fault that strikes this call, if one does.
    fn strike(&mut self, op: Op) -> Option<Fault> {
        let fault = self.faults.get_mut(&op)?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        if fault.times == 0 {
            return None;
        }
        let struck = *fault;
        fault.times -= u64::from(fault.times != u64::MAX);
        fault.keep = 0;
        Some(struck)
    }

    fn call(&mut self, op: Op) -> io::Result<()> {
        self.operate()?;
        match self.strike(op) {
            Some(fault) => Err(io::Error::from_raw_os_error(fault.errno)),
            None => Ok(()),
        }
    }

    fn id(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change_dir(&mut self, change: DirChange) {
        change.apply(&mut self.names);
        self.renames.push(change);
    }

    fn write(&mut self, id: usize, buf: &[u8], offset: u64) -> io::Result<usize> {
        if let Err(crash) = self.operate() {
            if self.crash_at.take().is_some() {
                self.files[id].write(&buf[..buf.len() / 2], offset);
            }
            return Err(crash);
        }
        let mut room = usize::MAX;
        let mut errno = libc::ENOSPC;
        if let Some(fault) = self.strike(Op::Write) {
            (room, errno) = (fault.keep, fault.errno);
        } else if let Some(capacity_bytes) = self.capacity_bytes {
            let used = self.names.values().map(|&id| self.files[id].live.len() as u64).sum();
            let own = self.files[id].live.len() as u64;
            room = (capacity_bytes.saturating_sub(used) + own.saturating_sub(offset)) as usize;
        }
        let taken = buf.len().min(room);
        if taken == 0 && !buf.is_empty() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.files[id].write(&buf[..taken], offset);
        Ok(taken)
    }

    fn sync(&mut self, id: usize) -> io::Result<()> {
        let result = self.call(Op::Sync);
        if result.as_ref().is_err_and(is_crash) {
            return result;
        }
        let file = &mut self.files[id];
        if result.is_err() {
            file.doom();
            return result;
        }
        // Writing to a page again makes all of it dirty again, the doomed bytes too.
        let rewritten: BTreeSet<u64> = file.changes.iter().filter(|c| !c.doomed).flat_map(|c| c.kind.pages()).collect();
        for change in std::mem::take(&mut file.changes) {
            if change.doomed && change.kind.pages().any(|page| !rewritten.contains(&page)) {
                file.changes.push(change);
            } else {
                change.kind.apply(&mut file.safe);
            }
        }
        Ok(())
    }
}

impl DirChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        if let Some(path) = &self.removed {
            names.remove(path);
        }
        if let Some((path, id)) = &self.added {
            names.insert(path.clone(), *id);
        }
    }
}

impl SimData {
    fn change(&mut self, kind: ChangeKind) {
        kind.apply(&mut self.live);
        self.changes.push(Change { kind, doomed: false });
    }

    fn write(&mut self, bytes: &[u8], offset: u64) {
        self.change(ChangeKind::Write { offset, bytes: bytes.to_vec() });
    }

    /// A sync of what is not safe failed: its pages count as clean and no later sync writes them. Lengths are in
    /// the file system's journal and do come through.
    fn doom(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            let ChangeKind::Write { offset, bytes } = &change.kind else {
                self.changes.push(change);
                continue;
            };
            for (position, range) in pages(*offset, bytes.len()) {
                let kind = ChangeKind::Write { offset: position, bytes: bytes[range].to_vec() };
                self.changes.push(Change { kind, doomed: true });
            }
        }
    }

    fn after_power_loss(&self, rng: &mut Rng) -> SimData {
        let mut safe = self.safe.clone();
        let kept = rng.odds();
        for change in &self.changes {
            match &change.kind {
                ChangeKind::Truncate(_) if rng.chance(kept) => change.kind.apply(&mut safe),
                ChangeKind::Truncate(_) => {}
                ChangeKind::Write { offset, bytes } => lose_pages(&mut safe, *offset, bytes, kept, rng),
            }
        }
        SimData { live: safe.clone(), safe, changes: Vec::new() }
    }
}

/// The pages of a write: where each piece goes and which bytes it is.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset + at as u64;
        let end = len.min(at + (PAGE - position % PAGE) as usize);
        let range = at..end;
        at = end;
        (!range.is_empty()).then_some((position, range))
    })
}

/// Writes what is left of one write: its pages one by one, some of them torn.
fn lose_pages(safe: &mut Vec<u8>, offset: u64, bytes: &[u8], kept: u64, rng: &mut Rng) {
    for (position, range) in pages(offset, bytes.len()) {
        let size_bytes = range.len();
        if rng.chance(kept) {
            let torn = if rng.chance(10) { rng.below(size_bytes as u64) as usize } else { size_bytes };
            write_at(safe, &bytes[range][..torn], position);
        } else if rng.chance(50) && safe.len() < position as usize + size_bytes {
            // The length reached the disk, the page did not.
            safe.resize(position as usize + size_bytes, 0);
        }
    }
}

impl ChangeKind {
    /// The pages it writes to.
    fn pages(&self) -> impl Iterator<Item = u64> {
        let (offset, len) = match self {
            ChangeKind::Truncate(_) => (0, 0),
            ChangeKind::Write { offset, bytes } => (*offset, bytes.len()),
        };
        pages(offset, len).map(|(position, _)| position / PAGE)
    }

    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            ChangeKind::Truncate(size_bytes) => file.resize(*size_bytes as usize, 0),
            ChangeKind::Write { offset, bytes } => write_at(file, bytes, *offset),
        }
    }
}

fn write_at(file: &mut Vec<u8>, bytes: &[u8], offset: u64) {
    let end = offset as usize + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(bytes);
}

impl Io for SimIo {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        self.disk.lock().alive()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let id = self.call(Op::Create, |disk| {
            disk.call(Op::Create)?;
            if let Ok(id) = disk.id(path) {
                disk.files[id].change(ChangeKind::Truncate(0));
                return io::Result::Ok(id);
            }
            disk.files.push(SimData::default());
            let id = disk.files.len() - 1;
            disk.change_dir(DirChange { removed: None, added: Some((path.to_owned(), id)) });
            Ok(id)
        })?;
        Ok(Arc::new(SimFile { io: self.clone(), id }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let disk = self.disk.lock();
        disk.alive()?;
        Ok(Arc::new(SimFile { io: self.clone(), id: disk.id(path)? }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk.lock();
        disk.alive()?;
        let inside = disk.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Op::Rename, |disk| {
            disk.call(Op::Rename)?;
            let id = disk.id(from)?;
            disk.change_dir(DirChange { removed: Some(from.to_owned()), added: Some((to.to_owned(), id)) });
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Remove, |disk| {
            disk.call(Op::Remove)?;
            disk.id(path)?;
            disk.change_dir(DirChange { removed: Some(path.to_owned()), added: None });
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let inside = |change: &DirChange| {
            let path = change.removed.as_ref().or(change.added.as_ref().map(|(path, _)| path));
            path.and_then(|path| path.parent()) == Some(dir)
        };
        self.call(Op::SyncDir, |disk| {
            disk.call(Op::SyncDir)?;
            for change in std::mem::take(&mut disk.renames) {
                if inside(&change) { change.apply(&mut disk.safe_names) } else { disk.renames.push(change) }
            }
            Ok(())
        })
    }

    fn step(&self, name: &'static str) -> io::Result<()> {
        self.reach(Moment::Step(name));
        let mut disk = self.disk.lock();
        disk.operate()?;
        if let Some((_, errno)) = disk.step_fault.filter(|(failing, _)| *failing == name) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        disk.steps.push(name);
        if let Some((wanted, n)) = &mut disk.crash_step
            && wanted == name
        {
            if *n == 0 {
                disk.crashed = true;
            } else {
                *n -= 1;
            }
        }
        disk.alive()
    }
}

struct SimFile {
    io: SimIo,
    id: usize,
}

impl File for SimFile {
    fn size_bytes(&self) -> io::Result<u64> {
        let disk = self.io.disk.lock();
        disk.alive()?;
        Ok(disk.files[self.id].live.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.io.call(Op::Read, |disk| {
            disk.alive()?;
            if let Some(fault) = disk.strike(Op::Read) {
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
            let live = &disk.files[self.id].live;
            let start = live.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
            let taken = buf.len().min(live.len() - start);
            buf[..taken].copy_from_slice(&live[start..start + taken]);
            Ok(taken)
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.io.call(Op::Write, |disk| disk.write(self.id, buf, offset))
    }

    fn truncate(&self, size_bytes: u64) -> io::Result<()> {
        self.io.call(Op::Truncate, |disk| {
            disk.call(Op::Truncate)?;
            disk.files[self.id].change(ChangeKind::Truncate(size_bytes));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.io.call(Op::Sync, |disk| disk.sync(self.id))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.io.call(Op::Sync, |disk| disk.sync(self.id))
    }
}

/// The bytes of a segment with one frame around `payload`, checksums right: for tests and fuzzing of the decoder.
/// `None` for counts that no header may have.
pub fn segment_of(payload: &[u8], count: u32) -> Option<Vec<u8>> {
    const SALT: u64 = 7;
    let check = payload_check(payload, SALT);
    let header = FrameHeader { count, size_bytes: payload.len() as u64, first: 1, synced: 0, check }.encode(SALT);
    FrameHeader::decode(&header, SALT)?;
    Some([&encode_segment_header(0, SALT)[..], &header, payload].concat())
}

/// A small generator for reproducible tests.
#[derive(Debug, Clone)]
pub struct Rng(
    /// The state; any seed will do.
    pub u64,
);

impl Rng {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Extremes are as likely as all between.
    fn odds(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => 100,
            2 => 95,
            _ => self.below(101),
        }
    }
}
