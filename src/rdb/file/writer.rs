//! dump.rdb on its way out: the frame, and values piece by piece. What goes out is in order, and only its checksum is kept.

use std::io::{self, Write};

use crc_fast::Digest;

use super::opcode;
use crate::codec::StreamId;
use crate::rdb::length::{push_len, push_raw, push_string};
use crate::rdb::stream::{StreamForm, push_counters, write_group};
use crate::rdb::stream_block;
use crate::rdb::{Counters, Dialect, Entry, Field, Group, crc64};

/// Bytes that are gathered before they are written.
const GATHERED: usize = 64 << 10;

/// For which servers a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Redis 7.0: fields have no times, and it is not known when consumers were active.
    Redis70,
    /// Redis 7.4 to 8.x.
    Redis82,
    /// Valkey 9.
    Valkey9,
}

impl For {
    /// All of them, by name.
    pub const ALL: [(&'static str, For); 3] =
        [("redis-7.0", For::Redis70), ("redis-8.2", For::Redis82), ("valkey-9", For::Valkey9)];

    const fn head(self) -> &'static [u8; 9] {
        match self {
            For::Redis70 => b"REDIS0010",
            For::Redis82 => b"REDIS0012",
            For::Valkey9 => b"VALKEY080",
        }
    }

    /// Whether fields of hashes have times there.
    pub const fn has_field_times(self) -> bool {
        !matches!(self, For::Redis70)
    }

    const fn dialect(self) -> Dialect {
        match self {
            For::Valkey9 => Dialect::Valkey,
            For::Redis70 | For::Redis82 => Dialect::Redis,
        }
    }

    const fn stream_form(self) -> StreamForm {
        match self {
            For::Redis70 => StreamForm::Listpacks2,
            For::Redis82 | For::Valkey9 => StreamForm::Listpacks3,
        }
    }
}

/// A file that is being written.
pub struct Writer<W> {
    to: W,
    target: For,
    out: Vec<u8>,
    sum: Digest,
}

impl<W: Write> Writer<W> {
    /// Begins.
    pub fn new(to: W, target: For) -> Self {
        Writer { to, target, out: target.head().to_vec(), sum: crc64::begin() }
    }

    /// For which servers it is.
    pub const fn target(&self) -> For {
        self.target
    }

    fn pass(&mut self) -> io::Result<()> {
        if self.out.len() >= GATHERED { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sum.update(&self.out);
        self.to.write_all(&self.out)?;
        self.out.clear();
        self.out.shrink_to(2 * GATHERED);
        Ok(())
    }

    /// Something about the server that writes it.
    pub fn aux(&mut self, name: &str, value: &str) {
        self.out.push(opcode::AUX);
        push_string(name.as_bytes(), &mut self.out);
        push_string(value.as_bytes(), &mut self.out);
    }

    /// The code of a library of functions.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.out.push(opcode::FUNCTION);
        push_raw(code, &mut self.out);
        self.pass()
    }

    /// The keys that follow are of this database.
    pub fn database(&mut self, number: u64) {
        self.out.push(opcode::SELECT_DB);
        push_len(number, &mut self.out);
    }

    fn key(&mut self, key: &[u8], expire_ms: u64, tag: u8) {
        if expire_ms != 0 {
            self.out.push(opcode::EXPIRE_MS);
            self.out.extend_from_slice(&expire_ms.to_le_bytes());
        }
        self.out.push(tag);
        push_string(key, &mut self.out);
    }

    /// A key with a short string.
    pub fn string(&mut self, key: &[u8], expire_ms: u64, value: &[u8]) -> io::Result<()> {
        self.key(key, expire_ms, 0);
        push_string(value, &mut self.out);
        self.pass()
    }

    /// Begins a key with a string of so many bytes, which follow.
    pub fn begin_text(&mut self, key: &[u8], expire_ms: u64, len: u64) {
        self.key(key, expire_ms, 0);
        push_len(len, &mut self.out);
    }

    /// The next bytes of it.
    pub fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.extend_from_slice(bytes);
        self.pass()
    }

    /// Begins a list.
    pub fn begin_list(&mut self, key: &[u8], expire_ms: u64, len: u64) {
        self.key(key, expire_ms, 1);
        push_len(len, &mut self.out);
    }

    /// Begins a set.
    pub fn begin_set(&mut self, key: &[u8], expire_ms: u64, len: u64) {
        self.key(key, expire_ms, 2);
        push_len(len, &mut self.out);
    }

    /// The next element of a list, or member of a set.
    pub fn element(&mut self, element: &[u8]) -> io::Result<()> {
        push_string(element, &mut self.out);
        self.pass()
    }

    /// Begins a sorted set.
    pub fn begin_zset(&mut self, key: &[u8], expire_ms: u64, len: u64) {
        self.key(key, expire_ms, 5);
        push_len(len, &mut self.out);
    }

    /// The next member of it.
    pub fn scored(&mut self, member: &[u8], score: f64) -> io::Result<()> {
        push_string(member, &mut self.out);
        self.out.extend_from_slice(&score.to_bits().to_le_bytes());
        self.pass()
    }

    /// Begins a hash; `least_ms` is the least time of its fields, 0 if none of them has one.
    pub fn begin_hash(&mut self, key: &[u8], expire_ms: u64, len: u64, least_ms: u64) {
        let timed = least_ms != 0;
        match (timed, self.target.dialect()) {
            (false, _) => self.key(key, expire_ms, 4),
            (true, Dialect::Valkey) => self.key(key, expire_ms, 22),
            (true, Dialect::Redis) => {
                self.key(key, expire_ms, 24);
                self.out.extend_from_slice(&least_ms.to_le_bytes());
            }
        }
        push_len(len, &mut self.out);
    }

    /// The next field of it.
    pub fn field(&mut self, field: &Field, least_ms: u64) -> io::Result<()> {
        match (least_ms != 0, self.target.dialect()) {
            (false, _) => {
                push_string(&field.name, &mut self.out);
                push_string(&field.value, &mut self.out);
            }
            (true, Dialect::Valkey) => crate::rdb::hash::push_valkey_field(field, &mut self.out),
            (true, Dialect::Redis) => crate::rdb::hash::push_timed_field(field, least_ms, &mut self.out),
        }
        self.pass()
    }

    /// Begins a stream whose entries make so many blocks.
    pub fn begin_stream(&mut self, key: &[u8], expire_ms: u64, blocks: u64) {
        let tag = self.target.stream_form().tag();
        self.key(key, expire_ms, tag);
        push_len(blocks, &mut self.out);
    }

    /// The next block of its entries, as [`Blocks`] divides them.
    pub fn block(&mut self, entries: &[Entry]) -> io::Result<()> {
        push_raw(&entries[0].id.to_bytes(), &mut self.out);
        push_raw(&stream_block::write(entries), &mut self.out);
        self.pass()
    }

    /// Behind the blocks: so many entries, of which this is the first; what is known of it; how many groups follow.
    pub fn counters(&mut self, len: u64, first_id: StreamId, counters: &Counters, groups: u64) -> io::Result<()> {
        push_counters((len, first_id), counters, self.target.stream_form(), &mut self.out);
        push_len(groups, &mut self.out);
        self.pass()
    }

    /// The next consumer group.
    pub fn group(&mut self, group: &Group) -> io::Result<()> {
        write_group(group, self.target.stream_form(), &mut self.out);
        self.pass()
    }

    /// Ends it.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.push(opcode::END);
        self.flush()?;
        self.to.write_all(&self.sum.finalize().to_le_bytes())?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Divides entries into blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    open: Vec<Entry>,
    bytes: usize,
}

impl Blocks {
    /// Adds an entry; the block that is full without it.
    pub fn push(&mut self, entry: Entry) -> Option<Vec<Entry>> {
        let full = self.open.len() >= stream_block::ENTRIES_MAX || self.bytes >= stream_block::BYTES_MAX;
        let block = full.then(|| self.close()).flatten();
        self.bytes += entry.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        self.open.push(entry);
        block
    }

    /// The last block, if there is one.
    pub fn close(&mut self) -> Option<Vec<Entry>> {
        self.bytes = 0;
        let block = std::mem::take(&mut self.open);
        (!block.is_empty()).then_some(block)
    }
}
