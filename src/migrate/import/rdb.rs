//! dump.rdb into an engine: one thread finds where keys end, others put them.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Failure, FirstFailure, Place, Session, files};
use crate::error::{Error, Result as Ran};
use crate::handler::{OwnedArgs, Server};
use crate::migrate::local::Local;
use crate::rdb::file::{Bounds, FileError, Input, Item, Key, Part, Reader, decode, kind_of, may_expire_by_field};
use crate::rdb::{Field, RdbError, Value};
use crate::shard::router::ShardId;
use crate::types::dump::builder::Builder;
use crate::types::dump::scatter::scatter;
use crate::util::time::now_ms;

/// A batch of one shard is put when it has so many keys or bytes.
const BATCH_KEYS: usize = 128;
const BATCH_BYTES: usize = 64 << 10;

/// Memory that a value which is read as a whole may take.
const ROOM: usize = 256 << 20;

/// A key whose value lies in a batch.
struct Entry {
    key: Range<usize>,
    value: Range<usize>,
    tag: u8,
    expire_ms: u64,
    offset: u64,
}

/// Keys of one shard.
#[derive(Default)]
struct Batch {
    shard: ShardId,
    db: Arc<[u8]>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// What all threads share.
struct Shared<'a> {
    server: &'a Arc<Server>,
    path: &'a Path,
    version: u16,
    now_ms: u64,
    /// Keys, and fields, whose time has passed stay: commands that follow may be about them.
    keeps_expired: bool,
    /// What of keys that go straight to the store is in memory, and how much of it may be.
    gathered: Mutex<Gathered>,
    gathers: usize,
    /// Something of it has landed.
    landed: Condvar,
    put: AtomicU64,
    expired: AtomicU64,
    /// Collections without elements, which are no keys.
    empty: AtomicU64,
    failure: FirstFailure,
}

/// Bytes of memory that keys take on their way to the store.
struct Gathered {
    /// Of each shard, what waits to land.
    each: Vec<usize>,
    /// What is landing, of all.
    landing: usize,
}

impl Gathered {
    fn bytes(&self) -> usize {
        self.each.iter().sum::<usize>() + self.landing
    }

    /// The shard of which most waits.
    fn most(&self) -> usize {
        (0..self.each.len()).max_by_key(|&shard| self.each[shard]).unwrap_or_default()
    }
}

impl Shared<'_> {
    /// Takes what has ended out of a value. False if nothing is left of it.
    fn trim(&self, value: &mut Value) -> bool {
        match value {
            Value::Hash(fields) if !self.keeps_expired => {
                fields.retain(|field| self.lives(field.expire_ms));
                !fields.is_empty()
            }
            _ => true,
        }
    }

    fn lives(&self, expire_ms: u64) -> bool {
        self.keeps_expired || expire_ms == 0 || expire_ms > self.now_ms
    }

    /// Puts batches as long as some come.
    fn work(&self, batches: &Receiver<Batch>) {
        let mut local = Local::new(self.server);
        for batch in batches {
            if !self.failure.has_happened()
                && let Err(failure) = self.put_batch(&mut local, &batch)
            {
                self.failure.set(failure);
            }
        }
    }

    fn put_batch(&self, local: &mut Local, batch: &Batch) -> Result<(), Failure> {
        let failure = |entry: &Entry, what: &dyn std::fmt::Display| {
            let key = Some(&batch.bytes[entry.key.clone()]);
            Place { path: self.path, offset: entry.offset, db: &batch.db, key }.failure(what)
        };
        let mut values = Vec::with_capacity(batch.entries.len());
        for entry in &batch.entries {
            match decode(entry.tag, self.version, &batch.bytes[entry.value.clone()], ROOM) {
                Ok(mut value) => {
                    if self.trim(&mut value) {
                        values.push((entry, value));
                    } else {
                        self.expired.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(RdbError::Empty) => _ = self.empty.fetch_add(1, Ordering::Relaxed),
                Err(error) => return Err(failure(entry, &error)),
            }
        }
        local.select(&batch.db);
        let mut at = 0;
        let count = values.len() as u64;
        let put = local.transact(&[batch.shard], self.now_ms, |ctx| {
            for (n, (entry, value)) in values.drain(..).enumerate() {
                at = n;
                scatter(ctx, &batch.bytes[entry.key.clone()], value, entry.expire_ms)?;
            }
            Ok(())
        });
        put.map_err(|error| failure(&batch.entries[at.min(batch.entries.len() - 1)], &error.text()))?;
        local.write_out();
        self.put.fetch_add(count, Ordering::Relaxed);
        self.gathered_more(batch.shard)
    }

    /// Something more of this shard may be in memory. If it is too much in all, the shard lands of which most is: so they come one
    /// after the other, while others read and put. Who finds three quarters of what may be there landing waits for it: what has come
    /// since would make small tables.
    fn gathered_more(&self, shard: ShardId) -> Result<(), Failure> {
        let engine = &self.server.engine;
        let mut gathered = self.gathered.lock();
        gathered.each[usize::from(shard)] = engine.gathered_bytes(shard);
        while gathered.bytes() > self.gathers {
            if gathered.landing > self.gathers / 4 * 3 {
                self.landed.wait(&mut gathered);
                continue;
            }
            let most = gathered.most();
            let bytes = std::mem::take(&mut gathered.each[most]);
            gathered.landing += bytes;
            let landed = MutexGuard::unlocked(&mut gathered, || self.land(most as ShardId));
            gathered.landing -= bytes;
            gathered.each[most] = engine.gathered_bytes(most as ShardId);
            self.landed.notify_all();
            landed?;
        }
        Ok(())
    }

    fn land(&self, shard: ShardId) -> Result<(), Failure> {
        let landed = self.server.engine.land(shard);
        landed.map_err(|error| Failure(format!("{}: {error}", self.path.display())))
    }

    /// Has all land that is still on its way, this thread that of every `stride`th shard.
    fn land_all(&self, first: usize, stride: usize) {
        for shard in (first..self.server.engine.shards.count()).step_by(stride) {
            if !self.failure.has_happened()
                && let Err(failure) = self.land(shard as ShardId)
            {
                self.failure.set(failure);
            }
        }
    }

    /// Puts a value that comes piece by piece. False if nothing is left of it.
    fn put_parts<R: std::io::Read>(
        &self,
        local: &mut Local,
        reader: &mut Reader<R>,
        key: &Key,
        shard: ShardId,
    ) -> Result<bool, FileOrError> {
        let Some(kind) = kind_of(key.tag, self.version) else {
            return Err(FileOrError::File(RdbError::UnknownType(key.tag).into()));
        };
        let (mut file_error, mut left) = (None, false);
        let put = local.transact(&[shard], self.now_ms, |ctx| {
            let mut builder = Builder::new(ctx, &key.key, kind, may_expire_by_field(key.tag), None)?;
            let mut refused = None;
            let read = reader.parts(key.tag, &mut |part| {
                if matches!(&part, Part::Field(Field { expire_ms, .. }) if !self.lives(*expire_ms)) {
                    return true;
                }
                left = true;
                refused = builder.put(part).err();
                refused.is_none()
            });
            if let Some(error) = refused {
                return Err(error);
            }
            if let Err(error) = read {
                file_error = Some(error);
                return Err(Error::Ended);
            }
            builder.check_distinct()?;
            builder.finish(ctx, key.expire_ms)?;
            Ok(())
        });
        local.write_out();
        match (put, file_error) {
            (_, Some(error)) => Err(FileOrError::File(error)),
            (put, None) => put.map(|()| left).map_err(FileOrError::Error),
        }
    }
}

/// Why a big value could not be put.
enum FileOrError {
    File(FileError),
    Error(Error),
}

impl std::fmt::Display for FileOrError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileOrError::File(error) => error.fmt(f),
            FileOrError::Error(error) => f.write_str(&error.text()),
        }
    }
}

/// What is gathered for each shard, and where it goes.
struct Batches {
    open: Vec<Batch>,
    db: Arc<[u8]>,
    to: Sender<Batch>,
}

impl Batches {
    fn add(&mut self, shard: ShardId, key: &Key, value: &[u8], offset: u64) {
        let batch = &mut self.open[usize::from(shard)];
        let from = batch.bytes.len();
        batch.bytes.extend_from_slice(&key.key);
        let middle = batch.bytes.len();
        batch.bytes.extend_from_slice(value);
        let (key, value) = ((from..middle, key), middle..batch.bytes.len());
        let (key, Key { expire_ms, tag, .. }) = key;
        batch.entries.push(Entry { key, value, tag: *tag, expire_ms: *expire_ms, offset });
        if batch.entries.len() >= BATCH_KEYS || batch.bytes.len() >= BATCH_BYTES {
            self.send(shard);
        }
    }

    fn send(&mut self, shard: ShardId) {
        let open = &mut self.open[usize::from(shard)];
        let (entries, bytes) = (open.entries.len(), open.bytes.len());
        let empty = Batch {
            shard,
            db: self.db.clone(),
            bytes: Vec::with_capacity(bytes),
            entries: Vec::with_capacity(entries),
        };
        let batch = std::mem::replace(open, empty);
        // Those who take them outlive this one.
        let _ = self.to.send(batch);
    }

    /// Sends what there is; what follows is of this database.
    fn turn_to(&mut self, db: &[u8]) {
        self.db = db.into();
        for shard in 0..self.open.len() {
            if !self.open[shard].entries.is_empty() {
                self.send(shard as ShardId);
            }
            self.open[shard] = Batch { shard: shard as ShardId, db: self.db.clone(), ..Batch::default() };
        }
    }
}

impl Session {
    /// Reads a file that begins as dump.rdb does, and the commands that may follow.
    pub(super) fn read_rdb(&mut self, part: &files::Part) -> Result<(), Failure> {
        let place = |offset| Place { path: &part.path, offset, db: b"", key: None };
        let file = File::open(&part.path).map_err(|error| place(0).failure(error))?;
        let reader = Reader::new(Input::new(file), Bounds::default()).map_err(|error| place(0).failure(error))?;
        let (mut input, is_base) = self.load(part, reader)?;
        let at_end = input.is_at_end().map_err(|error| place(input.offset()).failure(error))?;
        if at_end {
            return Ok(());
        }
        if is_base {
            return self.read_commands(part, input);
        }
        let what = format!("{}: bytes behind the end of the file were left alone", part.path.display());
        self.tally.note(what, 1);
        Ok(())
    }

    /// Reads all keys; also whether commands may follow.
    fn load(&mut self, part: &files::Part, mut reader: Reader<File>) -> Result<(Input<File>, bool), Failure> {
        // What says that keys of the past are to stay comes before the first key.
        let (mut is_base, mut first) = (part.goes_on, None);
        while first.is_none() {
            let offset = reader.offset();
            let item = reader.next_item().map_err(|error| {
                Place { path: &part.path, offset: reader.offset().max(offset), db: b"0", key: None }.failure(error)
            })?;
            match item {
                Item::Aux(name, value) => {
                    is_base |= matches!(&name[..], b"aof-base" | b"aof-preamble") && value == b"1";
                    if name == b"ctime" {
                        self.set_clock(&value);
                    }
                }
                item => first = Some((offset, item)),
            }
        }
        is_base |= !part.may_be_cut;
        let shared = Shared {
            server: &self.server.clone(),
            path: &part.path,
            version: reader.version(),
            now_ms: now_ms(),
            keeps_expired: is_base,
            gathered: Mutex::new(Gathered { each: vec![0; self.server.engine.shards.count()], landing: 0 }),
            landed: Condvar::new(),
            gathers: self.server.engine.dirty_budget.load(Ordering::Relaxed) as usize / 2,
            put: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            empty: AtomicU64::new(0),
            failure: FirstFailure::default(),
        };
        // While some wait for the disk, with what lands, others go on.
        let (engine, workers) = (&shared.server.engine, 2 * crate::shard::engine::cores());
        // What is read first finds nothing that it could overwrite.
        engine.go_straight(std::mem::take(&mut self.is_empty));
        let (to, from) = crossbeam_channel::bounded(2 * workers);
        let read = std::thread::scope(|scope| {
            for _ in 0..workers {
                let (from, shared) = (from.clone(), &shared);
                scope.spawn(move || shared.work(&from));
            }
            let mut batches = Batches { open: Vec::new(), db: (*b"0").into(), to };
            batches.open.resize_with(shared.server.engine.shards.count(), Batch::default);
            batches.turn_to(b"0");
            let read = self.items(&mut reader, &shared, &mut batches, first);
            batches.turn_to(b"0");
            read
        });
        std::thread::scope(|scope| {
            let shared = &shared;
            (0..workers).for_each(|first| _ = scope.spawn(move || shared.land_all(first, workers)));
        });
        engine.go_straight(false);
        self.tally.keys += shared.put.load(Ordering::Relaxed);
        self.tally.expired += shared.expired.load(Ordering::Relaxed);
        match shared.empty.load(Ordering::Relaxed) {
            0 => {}
            count => self.tally.note("key without elements, left out".to_owned(), count),
        }
        match shared.failure.take() {
            Some(failure) => Err(failure),
            None => read.map(|()| (reader.into_input(), is_base)),
        }
    }

    fn items(
        &mut self,
        reader: &mut Reader<File>,
        shared: &Shared<'_>,
        batches: &mut Batches,
        mut first: Option<(u64, Item)>,
    ) -> Result<(), Failure> {
        let mut count = 0u64;
        loop {
            let db = batches.db.clone();
            let place = |offset, key| Place { path: shared.path, offset, db: &db, key };
            let (offset, item) = match first.take() {
                Some(first) => first,
                None => {
                    let offset = reader.offset();
                    (offset, reader.next_item().map_err(|error| place(reader.offset(), None).failure(error))?)
                }
            };
            match item {
                Item::End => return Ok(()),
                Item::Aux(..) | Item::Sizes(_) => {}
                Item::Database(n) => {
                    let name = n.to_string();
                    if !self.local.select(name.as_bytes()) {
                        let hint =
                            format!("database {n} is not among `databases`: --databases {}", n.saturating_add(1));
                        return Err(place(offset, None).failure(hint));
                    }
                    batches.turn_to(name.as_bytes());
                }
                Item::Function(code) => self.load_function(&code).map_err(|why| place(offset, None).failure(why))?,
                Item::ModuleAux(module) => self.tally.note(format!("data of module {module} beside keys, left out"), 1),
                Item::ModuleValue(_, module) if self.skip_modules => {
                    self.tally.note(format!("key with a value of module {module}, left out"), 1);
                }
                Item::ModuleValue(key, module) => {
                    let what = format!("its value is one of module {module}: --skip-modules leaves such keys out");
                    return Err(place(offset, Some(&key)).failure(what));
                }
                Item::Key(key) => self.key(reader, shared, batches, &key, offset)?,
            }
            if shared.failure.has_happened() {
                return Ok(());
            }
            count += 1;
            if count.is_multiple_of(256) {
                let keys = self.tally.keys + shared.put.load(Ordering::Relaxed);
                self.progress.tell(self.done_bytes + reader.offset(), keys);
            }
        }
    }

    fn key(
        &mut self,
        reader: &mut Reader<File>,
        shared: &Shared<'_>,
        batches: &mut Batches,
        key: &Key,
        offset: u64,
    ) -> Result<(), Failure> {
        let db = batches.db.clone();
        let place = |offset| Place { path: shared.path, offset, db: &db, key: Some(&key.key) };
        let shard = shared.server.engine.router.shard_of(&key.key);
        let lives = shared.lives(key.expire_ms);
        match reader.whole(key.tag) {
            Ok(Some(value)) if lives => {
                batches.add(shard, key, value, offset);
                return Ok(());
            }
            Ok(Some(_)) => {
                shared.expired.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Ok(None) => {}
            Err(error) => return Err(place(reader.offset()).failure(error)),
        }
        if !lives {
            shared.expired.fetch_add(1, Ordering::Relaxed);
            return match reader.parts(key.tag, &mut |_| true) {
                Ok(()) | Err(FileError::Value(RdbError::Empty)) => Ok(()),
                Err(error) => Err(place(reader.offset()).failure(error)),
            };
        }
        match shared.put_parts(&mut self.local, reader, key, shard) {
            Err(FileOrError::File(FileError::Value(RdbError::Empty))) => {
                _ = shared.empty.fetch_add(1, Ordering::Relaxed)
            }
            Ok(true) => _ = shared.put.fetch_add(1, Ordering::Relaxed),
            Ok(false) => _ = shared.expired.fetch_add(1, Ordering::Relaxed),
            Err(error) => return Err(place(reader.offset()).failure(error)),
        }
        // Of what is built piece by piece the smaller has come to no table and to no store yet.
        shared.gathered_more(shard)
    }

    /// Loads a library of functions; one that cannot be loaded is told of, and left out.
    fn load_function(&mut self, code: &[u8]) -> Ran<(), String> {
        let args: OwnedArgs = [&b"FUNCTION"[..], b"LOAD", b"REPLACE", code].into_iter().collect();
        let reply = self.local.command(args.as_args(), now_ms()).map_err(|error| error.text().into_owned())?;
        self.local.write_out();
        if reply.as_slice().starts_with(b"-") {
            let name = code.split(|&byte| byte == b'\n').next().unwrap_or_default().escape_ascii().to_string();
            let why = String::from_utf8_lossy(&reply.as_slice()[1..]).trim().to_owned();
            self.tally.note(format!("library of functions '{name}', left out: {why}"), 1);
        } else {
            self.tally.functions += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::tests::{server, session};
    use super::*;
    use crate::rdb::file::writer::{For, Writer};

    const SHARDS: u16 = 4;

    /// What is read into it may take this much memory before it lands.
    fn shared<'a>(server: &'a Arc<Server>, path: &'a Path, gathers: usize) -> Shared<'a> {
        Shared {
            server,
            path,
            version: 10,
            now_ms: 1,
            keeps_expired: true,
            gathered: Mutex::new(Gathered { each: vec![0; SHARDS.into()], landing: 0 }),
            gathers,
            landed: Condvar::new(),
            put: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            empty: AtomicU64::new(0),
            failure: FirstFailure::default(),
        }
    }

    fn gathered(server: &Server) -> Vec<usize> {
        (0..SHARDS).map(|shard| server.engine.gathered_bytes(shard)).collect()
    }

    /// A batch of one string.
    fn batch(server: &Server, key: &[u8]) -> Batch {
        let shard = server.engine.router.shard_of(key);
        let bytes = [key, b"\x05value"].concat();
        let (key, value) = (0..key.len(), key.len()..bytes.len());
        Batch { shard, db: (*b"0").into(), bytes, entries: vec![Entry { key, value, tag: 0, expire_ms: 0, offset: 0 }] }
    }

    /// One shard lands at a time, that of which most is gathered; what is gathered in all stays within its bound.
    #[test]
    fn shards_land_one_after_the_other() {
        const KEYS: u32 = 400;
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        server.engine.go_straight(true);
        let shared = shared(&server, dir.path(), 4000);
        let mut local = Local::new(&server);
        let (mut landed, mut most) = (0, 0);
        for n in 0..KEYS {
            let before = gathered(&server);
            let batch = batch(&server, n.to_string().as_bytes());
            shared.put_batch(&mut local, &batch).unwrap_or_else(|failure| panic!("{failure}"));
            let after = gathered(&server);
            let gone: Vec<usize> = (0..after.len()).filter(|&at| after[at] < before[at]).collect();
            assert!(after.iter().sum::<usize>() <= shared.gathers && gone.len() <= 1, "{before:?} {after:?}");
            most = most.max(after.iter().sum());
            if let Some(&at) = gone.first() {
                landed += 1;
                assert!(
                    after[at] == 0 && before.iter().all(|other| *other <= before[at] + 100),
                    "{before:?} {after:?}"
                );
            }
        }
        assert!(landed > 4 && most > shared.gathers / 2, "{landed} landed, {most} bytes at most");
        assert_eq!(shared.gathered.lock().landing, 0);
        shared.land_all(0, 1);
        assert_eq!(gathered(&server), [0; 4]);
        server.engine.go_straight(false);
        assert_eq!(super::super::count(&server.engine), u64::from(KEYS));
    }

    /// Who would have more land while all of what there may be is landing waits until it has landed.
    #[test]
    fn what_is_landing_counts() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        server.engine.go_straight(true);
        let shared = shared(&server, dir.path(), 4000);
        shared.gathered.lock().landing = 4000;
        let batch = batch(&server, b"key");
        let waits = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let put = scope.spawn(|| {
                let put = shared.put_batch(&mut Local::new(&server), &batch).map_err(|failure| failure.to_string());
                assert!(!waits.load(Ordering::SeqCst), "it has not waited");
                put
            });
            while gathered(&server).iter().all(|&bytes| bytes == 0) {
                std::thread::yield_now();
            }
            let mut now = shared.gathered.lock();
            waits.store(false, Ordering::SeqCst);
            now.landing = 0;
            drop(now);
            shared.landed.notify_all();
            assert_eq!(put.join().unwrap(), Ok(()));
        });
        assert!(gathered(&server).iter().sum::<usize>() > 0, "there is room for it");
    }

    /// Values that are read piece by piece count as well.
    #[test]
    fn what_comes_piece_by_piece_stays_within_the_bound() {
        const KEYS: usize = 100;
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        server.engine.go_straight(true);
        let path = dir.path().join("dump.rdb");
        let mut writer = Writer::new(File::create(&path).unwrap(), For::Redis70);
        (0..KEYS).for_each(|n| writer.string(n.to_string().as_bytes(), 0, &[b'v'; 500]).unwrap());
        writer.finish().unwrap();
        let bounds = Bounds { whole: 100, ..Bounds::default() };
        let mut reader = Reader::new(Input::new(File::open(&path).unwrap()), bounds).unwrap();
        let shared = shared(&server, &path, 4000);
        let (to, batches) = crossbeam_channel::bounded(1);
        let mut none = Batches { open: Vec::new(), db: (*b"0").into(), to };
        let (mut session, mut most) = (session(&server), 0);
        while let Item::Key(key) = reader.next_item().unwrap() {
            session.key(&mut reader, &shared, &mut none, &key, 0).unwrap_or_else(|failure| panic!("{failure}"));
            let bytes = gathered(&server).iter().sum();
            assert!(bytes <= shared.gathers, "{bytes}");
            most = most.max(bytes);
        }
        assert!(batches.is_empty() && most > shared.gathers / 2, "{most}");
        assert_eq!(shared.put.load(Ordering::Relaxed), KEYS as u64);
    }
}
