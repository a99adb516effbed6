//! The inverses of a transaction's changes: what a rollback plays back, last change first.
//!
//! A short value is kept in the write set's arena, a long one or a body is moved aside whole; a splice keeps only what
//! it covered.

use std::sync::Arc;

use super::{Found, Txn, set_tail};
use crate::codec::{Extra, NsId};
use crate::shard::build::Staged;
use crate::shard::names::Names;
use crate::shard::object::{Body, Kind, state};
use crate::shard::overlay::{self, Entry, Key, Overlay};
use crate::shard::table::Index;

/// The inverse of one change.
pub(super) enum Undo {
    /// Time, kind and state before; the value is another entry.
    Header { at: Found, kind: Kind, expire_ms: u64, state: u8 },
    /// A small value before, in the arena.
    Value { at: Found, from: usize, len: usize },
    /// A long value before, or one that was dropped.
    Moved { at: Found, bytes: Vec<u8> },
    /// Body before.
    Body { at: Found, body: Option<Box<Body>> },
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
    Count { at: u16, ns: NsId, count: u64 },
    /// A raw record before.
    Raw { at: u16, key: Vec<u8>, old: Option<Option<Vec<u8>>> },
    /// A big result was given its metadata.
    Staged { at: u16, staged: Staged },
    /// A core's names, and the counts of those that died.
    Names { at: u16, before: Box<NamesBefore> },
}

/// What a change of names did to a core.
pub(super) struct NamesBefore {
    pub(super) names: Arc<Names>,
    pub(super) counts: Vec<(NsId, u64)>,
    pub(super) reap_from: Option<Index>,
}

impl Txn<'_, '_> {
    pub(super) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Header { at, kind, expire_ms, state } => {
                let core = &mut *self.lease[at.at as usize];
                core.set_expire(at.index, expire_ms);
                let object = core.table.at_mut(at.index);
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
                let core = &mut *self.lease[at.at as usize];
                let object = core.table.at_mut(at.index);
                let before = object.mem_bytes();
                set_tail(&mut object.bytes, object.key_len as usize, &self.set.arena[from..from + len]);
                core.table_bytes = core.table_bytes + object.mem_bytes() - before;
                self.set.arena.truncate(from);
            }
            Undo::Moved { at, bytes } => {
                let core = &mut *self.lease[at.at as usize];
                let object = core.table.at_mut(at.index);
                let before = object.mem_bytes();
                object.bytes = bytes;
                core.table_bytes = core.table_bytes + object.mem_bytes() - before;
            }
            Undo::Body { at, body } => {
                let core = &mut *self.lease[at.at as usize];
                let object = core.table.at_mut(at.index);
                let before = object.mem_bytes();
                object.body = body;
                core.table_bytes = core.table_bytes + object.mem_bytes() - before;
            }
            Undo::Splice { at, offset, from, len, old_len } => {
                let core = &mut *self.lease[at.at as usize];
                let object = core.table.at_mut(at.index);
                let before = object.mem_bytes();
                let start = object.key_len as usize;
                uncover(&mut object.bytes, start, offset, &self.set.arena[from..from + len], old_len);
                core.table_bytes = core.table_bytes + object.mem_bytes() - before;
                self.set.arena.truncate(from);
            }
            Undo::Meta { at, size, extra, form } => {
                if let Some(body) = &mut self.object_mut(at).body {
                    (body.size, body.extra, body.form) = (size, extra, form);
                }
            }
            Undo::Created { at } => {
                self.lease[at.at as usize].discard(at.index);
            }
            Undo::Count { at, ns, count } => {
                self.lease[at as usize].set_count(ns, count);
            }
            Undo::Raw { at, key, old } => {
                self.lease[at as usize].replace_raw(key, old);
            }
            Undo::Staged { at, staged } => self.lease[at as usize].staged.lock().push(staged),
            Undo::Names { at, before } => {
                let core = &mut *self.lease[at as usize];
                core.names = before.names;
                core.reap_from = before.reap_from;
                core.dirty_counts.extend(before.counts.iter().map(|&(ns, _)| ns));
                core.counts.extend(before.counts);
                core.order = None;
            }
            undo @ (Undo::Element { .. } | Undo::NoElement { .. } | Undo::ElementSplice { .. }) => {
                self.undo_element(undo)
            }
        }
    }

    fn undo_element(&mut self, undo: Undo) {
        match undo {
            Undo::Element { at, was } => self.change_overlay(at, |overlay| drop(overlay.insert(was))),
            Undo::NoElement { at, key } => self.change_overlay(at, |overlay| drop(overlay.remove(&key))),
            Undo::ElementSplice { at, key, offset, from, len, old_len, state } => {
                let covered = self.set.arena.split_off(from);
                let uncover = |element: &mut Entry| {
                    element.resize_value(old_len);
                    if let Some(value) = element.value_mut() {
                        let offset = offset.min(old_len);
                        value[offset..offset + len].copy_from_slice(&covered[..len]);
                    }
                    element.state = state | element.state & overlay::state::IN_FLIGHT;
                };
                self.change_overlay(at, |overlay| _ = overlay.update(&key, uncover));
            }
            _ => unreachable!("only element inverses come here"),
        }
    }

    fn change_overlay(&mut self, at: Found, change: impl FnOnce(&mut Overlay)) {
        let core = &mut *self.lease[at.at as usize];
        let Some(body) = &mut core.table.at_mut(at.index).body else { return };
        let before = body.overlay.bytes();
        change(&mut body.overlay);
        core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
    }
}

/// Brings back what a splice covered.
fn uncover(bytes: &mut Vec<u8>, start: usize, offset: usize, covered: &[u8], old_len: usize) {
    bytes.truncate(start + old_len);
    let offset = start + offset.min(old_len);
    bytes[offset..offset + covered.len()].copy_from_slice(covered);
}
