//! Keys that go straight to fjall ([`crate::shard::memory::straight`]): which do.

use super::Txn;
use super::build::{self, Shape};
use crate::codec::{Extra, Meta, NsId};
use crate::error::Result;
use crate::meter;
use crate::shard::memory::core::storage;
use crate::shard::memory::object::Kind;
use crate::shard::memory::records::Records;
use crate::shard::memory::straight::VERSION;
use crate::shard::memory::table::table_hash;
use crate::shard::rank;

const TWICE: &str = "the key comes twice";

impl Shape {
    /// Its metadata, if it goes straight.
    fn straight(&self) -> Option<Meta> {
        let counted = self.kind.counted_group().is_some() && (self.encoding == 0 || self.kind == Kind::Zset);
        let indexed = counted && self.size > rank::SMALL;
        if indexed || self.kind == Kind::Stream || matches!(self.extra, Extra::Hash { .. }) {
            return None;
        }
        let meta = Meta { expire_ms: self.expire_ms, ..Meta::new(self.kind.stored()?) };
        if self.kind == Kind::String && self.size == 0 {
            // A small one is its value.
            return Some(meta);
        }
        let Shape { encoding, form, size, extra, .. } = *self;
        Some(Meta { version: VERSION, encoding, form, size, extra, ..meta })
    }
}

impl Txn<'_, '_> {
    /// Puts a new key that holds a small string where it goes straight; false if it does not.
    ///
    /// # Errors
    /// `Storage`: there is such a key.
    pub fn put_string_straight(&mut self, ns: NsId, key: &[u8], text: &[u8], expire_ms: u64) -> Result<bool> {
        let shape = Shape { expire_ms, ..Shape::new(Kind::String, 0) };
        self.put_straight(ns, key, &shape, text, &mut Records::default())
    }

    /// Puts a new key, with its value or elements in any order, where it goes straight; false if it does not.
    ///
    /// # Errors
    /// `Storage`: there is such a key, or an element comes twice.
    pub(super) fn put_straight(
        &mut self,
        ns: NsId,
        key: &[u8],
        shape: &Shape,
        value: &[u8],
        elements: &mut Records,
    ) -> Result<bool> {
        let (hash, at) = self.place(key)?;
        if self.lease[at as usize].straight.is_none() {
            return Ok(false);
        }
        let Some(meta) = shape.straight() else { return Ok(false) };
        meter::step_through(value.len())?;
        let (_, _, index) = self.raw_find(ns, key)?;
        if index.is_some() {
            return Err(storage(key, TWICE));
        }
        if elements.sort_distinct().is_some() {
            return Err(storage(key, build::TWICE));
        }
        let core = &mut *self.lease[at as usize];
        core.add_key(table_hash(hash, ns), ns, key);
        if let Some(straight) = &mut core.straight {
            straight.put(ns, key, &meta, value, elements);
        }
        Ok(true)
    }
}
