//! A hash at hand: its fields, and what its metadata says of them.
//!
//! | encode-version | times | a write of a field | size in the metadata |
//! |---|---|---|---|
//! | 0 | none has been set yet | looks whether it was there | fields |
//! | 0 | in front of each value | reads the old time | fields, expired ones included |
//! | 1 (blind) | none | reads nothing | unknown |
//!
//! A blind hash of which a field is to get a time is counted and becomes an exact one: bounds of times make sense only
//! beside a number of fields.
//!
//! Invariants: a [`Hash`] that was changed is [`finish`](Hash::finish)ed, which removes it if it has become empty; what the
//! `form` says stays, as Redis does not convert back.

use smallvec::SmallVec;
use std::borrow::Cow;

use crate::codec::element::{self, Group, split_long_value, with_text};
use crate::codec::field::{Field, FieldTimes, push_timed, split_timed};
use crate::codec::is_long;
use crate::config::settings::Encodings;
use crate::handler::limits::{fit_one_by_one, may_touch};
use crate::handler::{Ctx, Found, Result};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::{Kind, Object};
use crate::shard::txn::build::{Build, Shape};
use crate::util::scale::Scaled;

/// What `OBJECT ENCODING` goes by, as it is stored.
mod form {
    pub(super) const LISTPACK: u8 = 0;
    pub(super) const HASHTABLE: u8 = 1;
    pub(super) const LISTPACKEX: u8 = 2;
}

/// Encode-version of hashes that are not counted.
const BLIND: u8 = 1;
/// Fields of a hash that get room for a time in place; with more of them the hash is written anew.
const CONVERT_IN_PLACE: Scaled<u64> = Scaled::new(1024);

type ElementKey = SmallVec<[u8; 64]>;

/// The name that OBJECT ENCODING has for a hash.
pub fn encoding(object: &Object) -> &'static str {
    match object.body.as_ref().map(|body| body.form) {
        Some(form::LISTPACK) => "listpack",
        Some(form::LISTPACKEX) => "listpackex",
        _ => "hashtable",
    }
}

/// The form of a hash of so many fields, the longest name or value of so many bytes, that is written whole.
pub fn form_of(size: u64, longest: usize, timed: bool, limits: &Encodings) -> u8 {
    let fits = size <= limits.hash_max_listpack_entries as u64 && longest <= limits.hash_max_listpack_value;
    match (fits, timed) {
        (false, _) => form::HASHTABLE,
        (true, false) => form::LISTPACK,
        (true, true) => form::LISTPACKEX,
    }
}

fn element_key(name: &[u8]) -> ElementKey {
    let mut key = ElementKey::new();
    element::hash_field(name, &mut key);
    key
}

/// The value proper of a field whose name is known.
fn proper<'v>(name: &[u8], value: &'v [u8]) -> Result<&'v [u8]> {
    if is_long(name) { Ok(split_long_value(value).map_err(unreadable)?.1) } else { Ok(value) }
}

/// Shows the value of one field of a key. Where it comes from disk, it is not kept for who may never ask for it again.
pub fn look_at<T>(ctx: &mut Ctx, key: &[u8], name: &[u8], visit: impl FnOnce(Option<&[u8]>) -> T) -> Result<T> {
    if let Some(hash) = ctx.in_passing(key, Kind::Hash)? {
        let value = hash.element(key, &element_key(name))?;
        return Ok(visit(value.as_deref().map(|value| proper(name, value)).transpose()?));
    }
    let value = match Hash::find(ctx, key)? {
        Some(hash) => hash.get(ctx, name)?,
        None => None,
    };
    Ok(visit(value.map(|(_, value)| value)))
}

/// A field's time, 0 for none, and its value.
pub type Timed<'v> = (u64, &'v [u8]);

/// A hash at hand.
#[derive(Debug)]
pub struct Hash {
    at: Found,
    blind: bool,
    times: Option<FieldTimes>,
    /// Physical fields; meaningless if blind.
    size: u64,
    /// Fields that have come or gone since it was found.
    delta: i64,
    form: u8,
    removed: bool,
}

impl Hash {
    fn new(ctx: &Ctx, at: Found) -> Self {
        let body = ctx.body(at);
        Hash {
            at,
            blind: body.encoding == BLIND,
            times: FieldTimes::of(&body.extra),
            size: body.size,
            delta: 0,
            form: body.form,
            removed: false,
        }
    }

    /// The hash of a key, if it is there.
    #[inline]
    pub fn find(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Self>> {
        Ok(ctx.lookup_kind(key, Kind::Hash)?.map(|at| Hash::new(ctx, at)))
    }

    /// The hash of a key, a new one if it is not there.
    #[inline]
    pub fn find_or_create(ctx: &mut Ctx, key: &[u8]) -> Result<Self> {
        match ctx.lookup_kind(key, Kind::Hash)? {
            Some(at) => Ok(Hash::new(ctx, at)),
            None => Self::create(ctx, key),
        }
    }

    fn create(ctx: &mut Ctx, key: &[u8]) -> Result<Self> {
        let (ns, encoding) = (ctx.ns(), ctx.settings().hash_encode_version);
        let at = ctx.txn.create(ns, key, Kind::Hash, encoding)?;
        let mut hash = Hash::new(ctx, at);
        if hash.blind {
            // Nobody counts its fields, so nobody would notice when it passes the limit.
            hash.form = form::HASHTABLE;
        }
        Ok(hash)
    }

    /// Where it is.
    pub const fn found(&self) -> Found {
        self.at
    }

    /// Whether its values carry times.
    pub const fn is_timed(&self) -> bool {
        self.times.is_some()
    }

    /// Whether Redis would keep it in one piece.
    pub const fn is_compact(&self) -> bool {
        self.form != form::HASHTABLE
    }

    /// Fields that are in the way of who goes through them, expired ones included; an upper bound where not counted.
    pub fn breadth(&self, ctx: &Ctx) -> u64 {
        let overlay = &ctx.body(self.at).overlay;
        match self.blind {
            true if overlay.complete => overlay.len() as u64,
            true => u64::MAX,
            false => self.size,
        }
    }

    /// A live field.
    #[inline]
    pub fn get<'c>(&self, ctx: &'c mut Ctx, name: &[u8]) -> Result<Option<Timed<'c>>> {
        let due_ms = ctx.due_ms;
        Ok(self
            .get_physical(ctx, &element_key(name), name)?
            .filter(|(expire_ms, _)| *expire_ms == 0 || *expire_ms > due_ms))
    }

    /// A field that may have expired.
    #[inline]
    fn get_physical<'c>(&self, ctx: &'c mut Ctx, key: &[u8], name: &[u8]) -> Result<Option<Timed<'c>>> {
        let Some(value) = ctx.txn.element(self.at, key)? else { return Ok(None) };
        let value = proper(name, value)?;
        if self.times.is_none() { Ok(Some((0, value))) } else { split_timed(value).map(Some).map_err(unreadable) }
    }

    /// Sets a field; whether it was there. A time needs a hash that has room for times ([`Hash::make_timed`]).
    #[inline]
    pub fn put(&mut self, ctx: &mut Ctx, name: &[u8], value: &[u8], expire_ms: u64) -> Result<bool> {
        let key = element_key(name);
        if self.is_compact() && name.len().max(value.len()) > ctx.settings().encodings.hash_max_listpack_value {
            self.form = form::HASHTABLE;
        }
        if self.times.is_some() {
            return self.put_timed(ctx, &key, name, value, expire_ms);
        }
        debug_assert_eq!(expire_ms, 0, "a time has its room");
        let value = with_text(name, value);
        if self.blind {
            ctx.txn.put_element_blind(self.at, &key, &value);
            return Ok(false);
        }
        let existed = ctx.txn.put_element(self.at, &key, &value)?;
        self.count(i64::from(!existed));
        Ok(existed)
    }

    fn put_timed(&mut self, ctx: &mut Ctx, key: &[u8], name: &[u8], value: &[u8], expire_ms: u64) -> Result<bool> {
        let old = self.get_physical(ctx, key, name)?.map(|(old_ms, _)| old_ms);
        let mut timed = SmallVec::<[u8; 128]>::new();
        push_timed(expire_ms, value, &mut timed);
        ctx.txn.put_element(self.at, key, &with_text(name, &timed))?;
        self.count(i64::from(old.is_none()));
        if let Some(times) = &mut self.times {
            old.into_iter().for_each(|old_ms| times.remove(old_ms));
            times.add(expire_ms);
        }
        Ok(old.is_some_and(|old_ms| old_ms == 0 || old_ms > ctx.due_ms))
    }

    /// Gives a live field another time, 0 for none.
    pub fn set_time(&mut self, ctx: &mut Ctx, key: &[u8], name: &[u8], expire_ms: u64) -> Result {
        self.make_timed(ctx, key)?;
        let Some(value) = self.get(ctx, name)?.map(|(_, value)| value.to_vec()) else { return Ok(()) };
        self.put_timed(ctx, &element_key(name), name, &value, expire_ms)?;
        Ok(())
    }

    /// Removes a field; whether it was there. One that has expired goes, too, but was not there.
    pub fn remove(&mut self, ctx: &mut Ctx, name: &[u8]) -> Result<bool> {
        let key = element_key(name);
        let Some(mut times) = self.times else {
            let existed = ctx.txn.remove_element(self.at, &key)?;
            self.removed |= existed;
            self.count(-i64::from(existed));
            return Ok(existed);
        };
        let Some((old_ms, _)) = self.get_physical(ctx, &key, name)? else { return Ok(false) };
        ctx.txn.remove_element(self.at, &key)?;
        self.count(-1);
        times.remove(old_ms);
        self.times = Some(times);
        Ok(old_ms == 0 || old_ms > ctx.due_ms)
    }

    fn count(&mut self, delta: i64) {
        self.delta += delta;
        self.size = self.size.saturating_add_signed(delta);
    }

    /// Ends the changes: metadata, or the end of a hash that has become empty.
    pub fn finish(mut self, ctx: &mut Ctx) -> Result {
        let at = self.at;
        if self.blind {
            if self.removed && ctx.txn.group(at, Group::HashField)?.next().transpose()?.is_none() {
                ctx.txn.delete_found(at);
            } else {
                ctx.txn.set_form(at, self.form);
            }
            return Ok(());
        }
        if self.size == 0 {
            ctx.txn.delete_found(at);
            return Ok(());
        }
        if self.is_compact() && self.delta > 0 && self.size > ctx.settings().encodings.hash_max_listpack_entries as u64
        {
            self.form = form::HASHTABLE;
        }
        ctx.txn.add_size(at, self.delta);
        ctx.txn.set_form(at, self.form);
        if let Some(mut times) = self.times {
            times.settle(self.size);
            ctx.txn.set_extra(at, times.extra());
        }
        Ok(())
    }

    /// Has OBJECT ENCODING tell that fields may have times, as Redis does once somebody has asked for one.
    pub const fn mark_timed(&mut self) {
        if self.form == form::LISTPACK {
            self.form = form::LISTPACKEX;
        }
    }

    /// Gives every value room for a time, unless it has it. Before any other change.
    pub fn make_timed(&mut self, ctx: &mut Ctx, key: &[u8]) -> Result {
        self.mark_timed();
        if self.times.is_some() {
            return Ok(());
        }
        debug_assert_eq!(self.delta, 0, "a hash is converted before it is changed");
        if self.blind || self.size > CONVERT_IN_PLACE.get() || !self.convert_in_place(ctx)? {
            self.rewrite(ctx, key)?;
        }
        self.times = Some(FieldTimes { persist: self.size, ..FieldTimes::default() });
        Ok(())
    }

    /// False, with nothing done, if the command cannot hold that.
    fn convert_in_place(&mut self, ctx: &mut Ctx) -> Result<bool> {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for element in ctx.txn.group(self.at, Group::HashField)? {
            let (key, value) = element?;
            bytes += value.len() as u64;
            keys.push(ElementKey::from_slice(&key));
        }
        if !fit_one_by_one(keys.len() as u64, bytes) {
            return Ok(false);
        }
        for key in keys {
            let plain = ctx.txn.element(self.at, &key)?;
            if let Some(timed) = plain.map(|value| timed_value(&key, value)).transpose()? {
                ctx.txn.put_element(self.at, &key, &timed)?;
            }
        }
        Ok(true)
    }

    fn rewrite(&mut self, ctx: &mut Ctx, key: &[u8]) -> Result {
        may_touch(self.breadth(ctx))?;
        let (ns, expire_ms) = (ctx.ns(), ctx.object(self.at).expire_ms);
        let mut build = Build::new(&ctx.txn, ns, key)?;
        let mut size = 0;
        ctx.txn.group_in_slices(self.at, Group::HashField, |stored, value| {
            size += 1;
            build.put(stored, &timed_value(stored, value)?)
        })?;
        let times = FieldTimes { persist: size, ..FieldTimes::default() };
        let shape = Shape { form: self.form, extra: times.extra(), expire_ms, ..Shape::new(Kind::Hash, size) };
        let built = match build.finish(&mut ctx.txn, shape)? {
            Some(at) => at,
            None => ctx.txn.create(ns, key, Kind::Hash, 0)?,
        };
        *self = Hash { at: built, blind: false, size, ..*self };
        Ok(())
    }

    /// Hands a field to `visit`, unless it has expired.
    fn pass(
        timed: bool,
        due_ms: u64,
        mut visit: impl FnMut(Field<'_>) -> Result,
    ) -> impl FnMut(&[u8], &[u8]) -> Result {
        move |stored, value| {
            let field = Field::split(&stored[1..], value, timed).map_err(unreadable)?;
            if field.is_live(due_ms) { visit(field) } else { Ok(()) }
        }
    }

    /// Visits the live fields in order, until `visit` fails.
    pub fn each(&self, ctx: &Ctx, visit: impl FnMut(Field<'_>) -> Result) -> Result {
        let mut elements = ctx.txn.group(self.at, Group::HashField)?;
        elements.each(u64::MAX, Hash::pass(self.is_timed(), ctx.due_ms, visit)).map(drop)
    }

    /// The same, of a big hash in slices, between which the command rests.
    pub fn each_in_slices(&self, ctx: &mut Ctx, visit: impl FnMut(Field<'_>) -> Result) -> Result {
        let pass = Hash::pass(self.is_timed(), ctx.due_ms, visit);
        ctx.txn.group_in_slices(self.at, Group::HashField, pass)
    }

    /// Number of live fields. Rests where many are to be counted.
    pub fn len(&self, ctx: &mut Ctx) -> Result<u64> {
        if let Some(len) = self.known_len(ctx) {
            return Ok(len);
        }
        may_touch(self.breadth(ctx))?;
        let mut len = 0;
        self.each_in_slices(ctx, |_| {
            len += 1;
            Ok(())
        })?;
        Ok(len)
    }

    /// Number of live fields where it is known without going through them.
    pub fn known_len(&self, ctx: &Ctx) -> Option<u64> {
        match &self.times {
            None if self.blind => {
                let overlay = &ctx.body(self.at).overlay;
                overlay.complete.then(|| overlay.sums().live)
            }
            None => Some(self.size),
            Some(times) if times.none_past(self.size, ctx.due_ms) => Some(self.size),
            Some(times) if times.are_past(ctx.due_ms) => Some(0),
            Some(_) => None,
        }
    }
}

/// The value of a field as it is in a hash without times, with room for one.
fn timed_value(stored: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    let field = Field::split(&stored[1..], value, false).map_err(unreadable)?;
    let mut timed = Vec::with_capacity(value.len() + 8);
    push_timed(0, field.value, &mut timed);
    Ok(match with_text(field.name, &timed) {
        Cow::Borrowed(_) => timed,
        Cow::Owned(whole) => whole,
    })
}
