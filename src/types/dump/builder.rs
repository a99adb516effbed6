//! A value on its way to a key, piece by piece: of any size, as memory stays bounded.
//!
//! Sets and hashes are exact whatever `set-encode-version` and `hash-encode-version` say: their elements are counted
//! anyway.

use smallvec::SmallVec;

use super::stream::StreamBuilder;
use crate::codec::element::{self, with_text};
use crate::codec::field::{FieldTimes, push_timed};
use crate::codec::{self, Extra, Score};
use crate::config::settings::Encodings;
use crate::error::Error;
use crate::handler::{Ctx, Found, Result};
use crate::rdb::Field;
use crate::rdb::file::Part;
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::shard::txn::CHUNK;
use crate::shard::txn::build::{Build, Shape};
use crate::types::hash::fields::form_of as hash_form;
use crate::types::set::form as set_form;
use crate::types::{list, zset};

type Key = SmallVec<[u8; 64]>;

/// A value on its way.
pub enum Builder {
    /// A string, in chunks however short it is.
    Text(Text),
    /// A list.
    List(list::Builder),
    /// A set.
    Set(Set),
    /// A sorted set.
    Zset(zset::store::Builder),
    /// A hash.
    Hash(Hash),
    /// A stream.
    Stream(StreamBuilder),
}

impl Builder {
    /// Begins with nothing, of so many elements if that is known; the key keeps what it holds until the end. `timed` if fields of
    /// a hash may have times.
    pub fn new(ctx: &mut Ctx, key: &[u8], kind: codec::Kind, timed: bool, count: Option<usize>) -> Result<Self> {
        let limits = ctx.settings().encodings;
        let build = |ctx: &Ctx| Build::new(&ctx.txn, ctx.ns(), key);
        Ok(match kind {
            codec::Kind::String => Builder::Text(Text { build: build(ctx)?, open: Vec::new(), chunks: 0 }),
            codec::Kind::List => Builder::List(list::Builder::new(ctx, key)?),
            codec::Kind::Set => {
                // Redis goes by the number of members before it looks at the first.
                let many = count.is_none_or(|count| count > limits.set_max_intset_entries);
                let form = if many { set_form::HASHTABLE } else { set_form::INTSET };
                Builder::Set(Set { build: build(ctx)?, form, size: 0, limits })
            }
            codec::Kind::Zset => Builder::Zset(zset::store::Builder::new(ctx, key)?),
            codec::Kind::Hash => Builder::Hash(Hash {
                build: build(ctx)?,
                timed,
                size: 0,
                longest: 0,
                times: FieldTimes::default(),
                proper: Vec::new(),
                limits,
            }),
            codec::Kind::Stream => Builder::Stream(StreamBuilder::new(build(ctx)?)),
        })
    }

    /// Adds a piece, which belongs to a value of this type.
    pub fn put(&mut self, part: Part) -> Result {
        match (self, part) {
            (Builder::Text(text), Part::Text(bytes)) => text.put(&bytes),
            (Builder::List(list), Part::Element(element)) => list.push(&element),
            (Builder::Set(set), Part::Member(member)) => set.put(&member),
            (Builder::Zset(zset), Part::Scored(member, score)) => {
                zset.put(&member, Score::new(score).map_err(unreadable)?)
            }
            (Builder::Hash(hash), Part::Field(field)) => hash.put(&field),
            (Builder::Stream(stream), part) => stream.put(part),
            _ => Err(Error::WrongType),
        }
    }

    /// Looks whether an element has come twice, for who cannot know; lists and streams have none that would.
    ///
    /// # Errors
    /// `Storage`: one has.
    pub fn check_distinct(&mut self) -> Result {
        match self {
            Builder::Set(set) => set.build.check_distinct(),
            Builder::Zset(zset) => zset.check_distinct(),
            Builder::Hash(hash) => hash.build.check_distinct(),
            Builder::Text(_) | Builder::List(_) | Builder::Stream(_) => Ok(()),
        }
    }

    /// Makes the key hold it, whatever it held before; `expire_ms` absolute, 0 for never. `None` for a collection without
    /// elements, which removes the key.
    pub fn finish(self, ctx: &mut Ctx, expire_ms: u64) -> Result<Option<Found>> {
        match self {
            Builder::Text(text) => text.finish(ctx, expire_ms),
            Builder::List(list) => list.finish_new(ctx, expire_ms),
            Builder::Set(Set { build, form, size, .. }) => {
                build.finish(&mut ctx.txn, Shape { form, expire_ms, ..Shape::new(Kind::Set, size) })
            }
            Builder::Zset(zset) => zset.finish_until(ctx, expire_ms).map(|(_, found)| found),
            Builder::Hash(hash) => hash.finish(ctx, expire_ms),
            Builder::Stream(stream) => stream.finish(ctx, expire_ms),
        }
    }
}

/// A string on its way.
pub struct Text {
    build: Build,
    open: Vec<u8>,
    chunks: u32,
}

impl Text {
    fn put(&mut self, bytes: &[u8]) -> Result {
        self.open.extend_from_slice(bytes);
        while self.open.len() >= CHUNK {
            let rest = self.open.split_off(CHUNK);
            let chunk = std::mem::replace(&mut self.open, rest);
            self.close(&chunk)?;
        }
        Ok(())
    }

    fn close(&mut self, chunk: &[u8]) -> Result {
        let mut key = Key::new();
        element::string_chunk(self.chunks, &mut key);
        self.chunks = self.chunks.checked_add(1).ok_or(Error::TooBig)?;
        self.build.put(&key, chunk)
    }

    fn finish(mut self, ctx: &mut Ctx, expire_ms: u64) -> Result<Option<Found>> {
        let last = std::mem::take(&mut self.open);
        let size = u64::from(self.chunks) * CHUNK as u64 + last.len() as u64;
        if !last.is_empty() {
            self.close(&last)?;
        }
        self.build.finish(&mut ctx.txn, Shape { expire_ms, ..Shape::new(Kind::String, size) })
    }
}

/// A set on its way.
pub struct Set {
    build: Build,
    form: u8,
    size: u64,
    limits: Encodings,
}

impl Set {
    fn put(&mut self, member: &[u8]) -> Result {
        self.form = set_form::grown(self.form, self.size, member, &self.limits);
        self.size += 1;
        let mut key = Key::new();
        element::set_member(member, &mut key);
        self.build.put(&key, &with_text(member, b""))
    }
}

/// A hash on its way.
pub struct Hash {
    build: Build,
    timed: bool,
    size: u64,
    longest: usize,
    times: FieldTimes,
    proper: Vec<u8>,
    limits: Encodings,
}

impl Hash {
    fn put(&mut self, Field { name, value, expire_ms }: &Field) -> Result {
        let mut key = Key::new();
        element::hash_field(name, &mut key);
        self.size += 1;
        self.longest = self.longest.max(name.len()).max(value.len());
        if self.timed {
            self.proper.clear();
            push_timed(*expire_ms, value, &mut self.proper);
            self.times.add(*expire_ms);
            self.build.put(&key, &with_text(name, &self.proper))
        } else {
            self.build.put(&key, &with_text(name, value))
        }
    }

    fn finish(mut self, ctx: &mut Ctx, expire_ms: u64) -> Result<Option<Found>> {
        let form = hash_form(self.size, self.longest, self.timed, &self.limits);
        self.times.settle(self.size);
        let extra = if self.timed { self.times.extra() } else { Extra::None };
        self.build.finish(&mut ctx.txn, Shape { form, extra, expire_ms, ..Shape::new(Kind::Hash, self.size) })
    }
}
