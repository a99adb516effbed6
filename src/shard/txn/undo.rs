//! The inverses of a transaction's changes: what a rollback plays back, last change first.
//!
//! The account of dirty bytes goes back with the changes: a command that fails costs nothing of the budget, and gives nothing
//! of it to others. What became dirty by it and stays so, an object whose elements were changed and are again as they were,
//! stays counted.
//!
//! A short value is kept in the write set's arena, a long one or a body is moved aside whole; a splice keeps only what
//! it covered.

use std::sync::Arc;

use super::claim::set_tail;
use super::{Found, Txn, dirty_share};
use crate::codec::{Extra, NsId};
use crate::shard::memory::garbage::Staged;
use crate::shard::memory::libraries::Libraries;
use crate::shard::memory::names::Names;
use crate::shard::memory::object::{Body, Kind, Object, raw_bytes, state};
use crate::shard::memory::overlay::{self, Entry, Key, Overlay};
use crate::shard::memory::reap::Reap;

/// The inverse of one change.
pub(super) enum Undo {
    /// Time, kind and state before; the value is another entry.
    Header { at: Found, kind: Kind, expire_ms: u64, state: u8 },
    /// A small value before, in the arena.
    Value { at: Found, from: usize, len: usize },
    /// A long value before, or one that was dropped.
    Moved { at: Found, bytes: Vec<u8> },
    /// Body before, and what was taken from the dirty bytes for it.
    Body { at: Found, body: Option<Box<Body>>, dirty_bytes: usize },
    /// Bytes that a splice covered (in the arena), and the value's length before.
    Splice { at: Found, offset: usize, from: usize, len: usize, old_len: usize },
    /// What a body's metadata says, before.
    Meta { at: Found, size: u64, extra: Extra, form: u8 },
    /// An element before.
    Element { at: Found, was: Entry },
    /// There was no such element.
    NoElement { at: Found, key: Key },
    /// Bytes of an element that a splice covered, and its length before.
    ElementSplice { at: Found, key: Key, offset: usize, from: usize, len: usize, old_len: usize, state: u8 },
    /// The key was not in the table.
    Created { at: Found },
    /// Keys of a namespace before.
    Count { at: u16, ns: NsId, count: i64 },
    /// A raw record before.
    Raw { at: u16, key: Vec<u8>, old: Option<Option<Vec<u8>>> },
    /// A big result was given its metadata.
    Staged { at: u16, staged: Staged },
    /// A core's names, and the counts of those that died.
    Names { at: u16, before: Box<NamesBefore> },
    /// A core's libraries of functions.
    Libraries { at: u16, before: Arc<Libraries> },
}

/// What a change of names did to a core.
pub(super) struct NamesBefore {
    pub(super) names: Arc<Names>,
    pub(super) counts: Vec<(NsId, i64)>,
    pub(super) reap: Option<Reap>,
}

impl Txn<'_, '_> {
    pub(super) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Header { at, kind, expire_ms, state } => {
                let core = &mut *self.lease[at.at as usize];
                core.set_expire(at.index, expire_ms);
                let object = core.table.at_mut(at.index);
                if state & state::DIRTY == 0 {
                    core.dirty_bytes = core.dirty_bytes.saturating_sub(object.dirty_bytes());
                }
                object.kind = kind;
                object.state = state | object.state & (state::QUEUED | state::IN_FLIGHT);
                let stored = object.state & state::STORED != 0;
                match kind {
                    Kind::Absent => core.order_remove(at.index),
                    _ if !stored => core.order_insert(at.index),
                    _ => {}
                }
            }
            Undo::Value { at, from, len } => {
                self.change_object(at, |object, arena| {
                    set_tail(&mut object.bytes, object.key_len as usize, &arena[from..from + len]);
                });
                self.set.arena.truncate(from);
            }
            Undo::Moved { at, bytes } => self.change_object(at, |object, _| object.bytes = bytes),
            Undo::Body { at, body, dirty_bytes } => {
                let mut made = None;
                self.change_object(at, |object, _| made = std::mem::replace(&mut object.body, body));
                let core = &mut *self.lease[at.at as usize];
                core.dirty_bytes =
                    (core.dirty_bytes + dirty_bytes).saturating_sub(made.as_deref().map_or(0, dirty_share));
            }
            Undo::Splice { at, offset, from, len, old_len } => {
                self.change_object(at, |object, arena| {
                    let start = object.key_len as usize;
                    uncover(&mut object.bytes, start, offset, &arena[from..from + len], old_len);
                });
                self.set.arena.truncate(from);
            }
            Undo::Meta { at, size, extra, form } => {
                if let Some(body) = &mut self.object_mut(at).body {
                    (body.size, body.extra, body.form) = (size, extra, form);
                }
            }
            Undo::Created { at } => self.lease[at.at as usize].discard_uncounted(at.index),
            Undo::Count { at, ns, count } => {
                self.lease[at as usize].set_count(ns, count);
            }
            Undo::Raw { at, key, old } => {
                let core = &mut self.lease[at as usize];
                let bytes = core.raw.get(&key).map_or(0, |value| raw_bytes(&key, value.as_deref()));
                core.dirty_bytes = core.dirty_bytes.saturating_sub(bytes);
                core.replace_raw(key, old);
            }
            Undo::Staged { at, staged } => self.lease[at as usize].staged.lock().push((staged, std::sync::Weak::new())),
            Undo::Names { at, before } => {
                let core = &mut *self.lease[at as usize];
                core.names = before.names;
                core.reap = before.reap;
                core.dirty_counts.extend(before.counts.iter().map(|&(ns, _)| ns));
                core.counts.extend(before.counts);
                core.drop_order();
            }
            Undo::Libraries { at, before } => self.lease[at as usize].libraries = before,
            undo @ (Undo::Element { .. } | Undo::NoElement { .. } | Undo::ElementSplice { .. }) => {
                self.undo_element(undo)
            }
        }
    }

    /// Changes an object's value or body.
    fn change_object(&mut self, at: Found, change: impl FnOnce(&mut Object, &[u8])) {
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let (before, dirty) = (object.mem_bytes(), object.dirty_bytes());
        change(object, &self.set.arena);
        core.table_bytes = core.table_bytes + object.mem_bytes() - before;
        core.dirty_bytes = (core.dirty_bytes + object.dirty_bytes()).saturating_sub(dirty);
    }

    fn undo_element(&mut self, undo: Undo) {
        match undo {
            Undo::Element { at, was } => {
                let again = was.dirty_bytes();
                self.change_overlay(at, |overlay| (again, overlay.insert(was).map_or(0, |made| made.dirty_bytes())));
            }
            Undo::NoElement { at, key } => {
                self.change_overlay(at, |overlay| (0, overlay.remove(&key).map_or(0, |made| made.dirty_bytes())));
            }
            Undo::ElementSplice { at, key, offset, from, len, old_len, state } => {
                let covered = self.set.arena.split_off(from);
                let uncover = |element: &mut Entry| {
                    let before = element.dirty_bytes();
                    element.resize_value(old_len);
                    if let Some(value) = element.value_mut() {
                        let offset = offset.min(old_len);
                        value[offset..offset + len].copy_from_slice(&covered[..len]);
                    }
                    element.state = state | element.state & overlay::state::IN_FLIGHT;
                    (element.dirty_bytes(), before)
                };
                self.change_overlay(at, |overlay| overlay.update(&key, uncover).unwrap_or_default());
            }
            _ => unreachable!("only element inverses come here"),
        }
    }

    /// Changes an object's elements; `change` answers how many bytes are dirty again, and how many no longer are.
    fn change_overlay(&mut self, at: Found, change: impl FnOnce(&mut Overlay) -> (usize, usize)) {
        let core = &mut *self.lease[at.at as usize];
        let Some(body) = &mut core.table.at_mut(at.index).body else { return };
        let before = body.overlay.bytes();
        let (more, less) = change(&mut body.overlay);
        core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
        core.dirty_bytes = (core.dirty_bytes + more).saturating_sub(less);
    }
}

/// Brings back what a splice covered.
fn uncover(bytes: &mut Vec<u8>, start: usize, offset: usize, covered: &[u8], old_len: usize) {
    bytes.truncate(start + old_len);
    let offset = start + offset.min(old_len);
    bytes[offset..offset + covered.len()].copy_from_slice(covered);
}
