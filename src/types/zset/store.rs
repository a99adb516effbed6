//! Sorted sets that are written whole: the results of ZRANGESTORE, ZUNIONSTORE and their kin.

use crate::codec::{Score, element};
use crate::handler::{Ctx, Found, Result};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};

use super::value::{form_of, score_key, sort_key, with_score};

/// A sorted set on its way to a key, of any size: memory stays bounded.
pub struct Builder {
    build: Build,
    encoding: u8,
    size: u64,
    longest: usize,
}

impl Builder {
    /// Begins with nothing; the key keeps what it holds until [`Builder::finish`].
    pub fn new(ctx: &Ctx, key: &[u8]) -> Result<Self> {
        Builder::with_encoding(ctx, key, ctx.server.config.settings().zset_encode_version)
    }

    /// The same with an encode-version of its own.
    pub fn with_encoding(ctx: &Ctx, key: &[u8], encoding: u8) -> Result<Self> {
        Ok(Builder { build: Build::new(&ctx.txn, ctx.ns(), key)?, encoding, size: 0, longest: 0 })
    }

    /// Adds a member, which was not added before. In any order.
    pub fn put(&mut self, member: &[u8], score: Score) -> Result {
        let build = &mut self.build;
        let key = score_key(self.encoding, member);
        with_score(self.encoding, member, score, |value| build.put(&key, value))?;
        build.put(&sort_key(score, member), &element::with_text(member, b""))?;
        self.size += 1;
        self.longest = self.longest.max(member.len());
        Ok(())
    }

    /// Looks whether a member was added twice.
    ///
    /// # Errors
    /// `Storage`: one was.
    pub fn check_distinct(&mut self) -> Result {
        self.build.check_distinct()
    }

    /// Makes the key hold what was added, without a time; nothing added removes it. The number of members.
    pub fn finish(self, ctx: &mut Ctx) -> Result<u64> {
        self.finish_until(ctx, 0).map(|(size, _)| size)
    }

    /// The same until `expire_ms`, absolute, 0 for ever; also where it is.
    pub fn finish_until(self, ctx: &mut Ctx, expire_ms: u64) -> Result<(u64, Option<Found>)> {
        let form = form_of(ctx, self.size, self.longest);
        let shape = Shape { encoding: self.encoding, form, expire_ms, ..Shape::new(Kind::Zset, self.size) };
        let found = self.build.finish(&mut ctx.txn, shape)?;
        Ok((self.size, found))
    }

    /// The same with this form and time.
    pub fn finish_as(self, ctx: &mut Ctx, form: u8, expire_ms: u64) -> Result<u64> {
        let shape = Shape { encoding: self.encoding, form, expire_ms, ..Shape::new(Kind::Zset, self.size) };
        let found: Option<Found> = self.build.finish(&mut ctx.txn, shape)?;
        debug_assert_eq!(found.is_none(), self.size == 0);
        Ok(self.size)
    }
}
