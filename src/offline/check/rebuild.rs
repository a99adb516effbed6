//! Elements of one body made to agree with each other; what its metadata is to say of them.
//!
//! What cannot be read goes. The records of a range are as they were when it began, whatever is written meanwhile.

use std::collections::BTreeMap;

use crate::codec::element::{self, Element, Group, split_text, with_text, zset_is_digested, zset_score_of};
use crate::codec::field::{Field, FieldTimes};
use crate::codec::key::{KeyRange, prefix_upper};
use crate::codec::{Extra, Kind, Meta, Score, StreamId};
use crate::shard::txn::CHUNK;
use crate::store::{Partition, StoreError, UserValue};
use crate::types::list::form;
use crate::types::stream::record::{ConsumerRecord, GroupRecord, Nack, each_field};
use crate::types::zset::value::{read_score, read_sort};

use super::body::is_stored_as;
use super::mend::Fixes;

/// Takes an element and its value.
type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'a;

/// The elements of a body: partition and what their keys begin with.
struct Elements<'a> {
    partition: &'a Partition,
    prefix: &'a [u8],
}

impl Elements<'_> {
    fn key(&self, element: &[u8]) -> Vec<u8> {
        [self.prefix, element].concat()
    }

    fn get(&self, element: &[u8]) -> Result<Option<UserValue>, StoreError> {
        self.partition.get(&self.key(element))
    }

    /// Those that begin so, without what the keys of all begin with.
    fn each(&self, begin: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let lower = self.key(begin);
        for item in self.partition.range(&lower, &prefix_upper(&lower))? {
            let (key, value) = item?;
            visit(&key[self.prefix.len()..], &value)?;
        }
        Ok(())
    }
}

/// Mends the elements of a body; its metadata thereafter, or `None` if there is none left of what must have some.
pub(super) fn elements(
    fixes: &mut Fixes<'_>,
    partition: &Partition,
    range: &KeyRange,
    mut meta: Meta,
) -> Result<Option<Meta>, StoreError> {
    let all = Elements { partition, prefix: &range.lower };
    drop_foreign(fixes, &all, meta.kind)?;
    let found = match meta.kind {
        Kind::String => chunks(fixes, &all, &mut meta)?,
        Kind::Hash => hash(fixes, &all, &mut meta)?,
        Kind::List => list(fixes, &all, &mut meta)?,
        Kind::Set => set(fixes, &all, &mut meta)?,
        Kind::Zset => zset(fixes, &all, &mut meta)?,
        Kind::Stream => stream(fixes, &all, &mut meta)?,
    };
    Ok(Some(meta).filter(|meta| found > 0 || matches!(meta.kind, Kind::String | Kind::Stream)))
}

/// Removes elements that do not belong to the type, or cannot be read as any.
fn drop_foreign(fixes: &mut Fixes<'_>, all: &Elements<'_>, kind: Kind) -> Result<(), StoreError> {
    use Group as G;
    let belongs = |group| match kind {
        Kind::String => matches!(group, G::StringChunk),
        Kind::Hash => matches!(group, G::HashField | G::Rank),
        Kind::List => matches!(group, G::ListElement),
        Kind::Set => matches!(group, G::SetMember | G::Rank),
        Kind::Zset => matches!(group, G::ZsetScore | G::ZsetSort | G::Rank),
        Kind::Stream => matches!(group, G::StreamElement | G::StreamGroup | G::StreamConsumer | G::StreamPel),
    };
    all.each(b"", &mut |element, _| {
        let is_right = Element::decode(element).is_ok() && Group::from_tag(element[0]).is_ok_and(belongs);
        if is_right { Ok(()) } else { fixes.set(all.key(element), None) }
    })
}

fn chunks(fixes: &mut Fixes<'_>, all: &Elements<'_>, meta: &mut Meta) -> Result<u64, StoreError> {
    all.each(&[Group::StringChunk.tag()], &mut |chunk, value| {
        let Ok(Element::StringChunk(number)) = Element::decode(chunk) else { return Ok(()) };
        let room = meta.size.saturating_sub(u64::from(number) * CHUNK as u64).min(CHUNK as u64) as usize;
        if value.len() > room {
            fixes.set(all.key(chunk), Some(value[..room].to_vec()).filter(|cut| !cut.is_empty()))?;
        }
        Ok(())
    })?;
    Ok(meta.size)
}

fn hash(fixes: &mut Fixes<'_>, all: &Elements<'_>, meta: &mut Meta) -> Result<u64, StoreError> {
    let is_timed = FieldTimes::of(&meta.extra).is_some();
    let (mut times, mut size) = (FieldTimes::default(), 0);
    all.each(&[Group::HashField.tag()], &mut |element, value| match Field::split(&element[1..], value, is_timed) {
        Ok(field) if is_stored_as(field.name, &element[1..]).is_ok() => {
            times.add(field.expire_ms);
            size += 1;
            Ok(())
        }
        _ => fixes.set(all.key(element), None),
    })?;
    times.settle(size);
    if is_timed {
        meta.extra = times.extra();
    }
    // Of one whose fields are not counted it stays 0.
    meta.size = if meta.encoding == 0 { size } else { meta.size };
    Ok(size)
}

fn set(fixes: &mut Fixes<'_>, all: &Elements<'_>, meta: &mut Meta) -> Result<u64, StoreError> {
    let mut size = 0;
    all.each(&[Group::SetMember.tag()], &mut |element, value| match split_text(&element[1..], value) {
        Ok((member, rest)) if is_stored_as(member, &element[1..]).is_ok() => {
            size += 1;
            let whole = with_text(member, b"").into_owned();
            if rest.is_empty() { Ok(()) } else { fixes.set(all.key(element), Some(whole)) }
        }
        _ => fixes.set(all.key(element), None),
    })?;
    meta.size = if meta.encoding == 0 { size } else { meta.size };
    Ok(size)
}

/// Closes the gaps: elements come one after the other from the head on.
fn list(fixes: &mut Fixes<'_>, all: &Elements<'_>, meta: &mut Meta) -> Result<u64, StoreError> {
    let (mut head, mut next, mut bytes) = (None, 0, 0);
    all.each(&[Group::ListElement.tag()], &mut |element, value| {
        let Ok(Element::ListElement(index)) = Element::decode(element) else { return Ok(()) };
        if head.is_none() {
            (head, next) = (Some(index), index);
        }
        if index != next {
            let mut moved = Vec::new();
            element::list_element(next, &mut moved);
            fixes.set(all.key(&moved), Some(value.to_vec()))?;
            fixes.set(all.key(element), None)?;
        }
        (next, bytes) = (next + 1, bytes + form::entry_bytes(value));
        Ok(())
    })?;
    let head = head.unwrap_or(0);
    meta.extra = Extra::List { head, tail: next, bytes };
    meta.size = next.abs_diff(head);
    Ok(meta.size)
}

/// A member's own record says its score; where only the order knows the member, that does.
fn zset(fixes: &mut Fixes<'_>, all: &Elements<'_>, meta: &mut Meta) -> Result<u64, StoreError> {
    let (encoding, mut size) = (meta.encoding, 0);
    all.each(&[Group::ZsetScore.tag()], &mut |element, value| {
        let text = split_text(&element[1..], value).map(|(text, _)| text);
        let (Ok(score), Ok(member)) = (read_score(element, value), text) else {
            return fixes.set(all.key(element), None);
        };
        let mut own = Vec::new();
        zset_score_of(encoding, member, &mut own);
        if own == element {
            size += 1;
            if is_sorted_by(all, score, member)? {
                return Ok(());
            }
            let mut sort = Vec::new();
            element::zset_sort(score, member, &mut sort);
            return fixes.set(all.key(&sort), Some(with_text(member, b"").into_owned()));
        }
        // The name stands in the order alone, or it is not this member's record.
        match digested(all, encoding, score, element)? {
            true => size += 1,
            false => fixes.set(all.key(element), None)?,
        }
        Ok(())
    })?;
    all.each(&[Group::ZsetSort.tag()], &mut |element, value| {
        let Ok((score, member)) = read_sort(element, value) else { return fixes.set(all.key(element), None) };
        if is_stored_as(member, &element[9..]).is_err() {
            return fixes.set(all.key(element), None);
        }
        let mut own = Vec::new();
        zset_score_of(encoding, member, &mut own);
        let digested = zset_is_digested(encoding, member);
        match all.get(&own)?.map(|value| read_score(&own, &value)) {
            Some(Ok(same)) if same == score => Ok(()),
            Some(Ok(other)) if !digested || is_sorted_by(all, other, member)? => fixes.set(all.key(element), None),
            _ => {
                size += 1;
                let bytes = score.to_bytes();
                let value = if digested { bytes.to_vec() } else { with_text(member, &bytes).into_owned() };
                fixes.set(all.key(&own), Some(value))
            }
        }
    })?;
    meta.size = size;
    Ok(size)
}

fn is_sorted_by(all: &Elements<'_>, score: Score, member: &[u8]) -> Result<bool, StoreError> {
    let mut sort = Vec::new();
    element::zset_sort(score, member, &mut sort);
    Ok(all.get(&sort)?.is_some())
}

/// Whether a member of this score has its own record here, whose key tells its digest only.
fn digested(all: &Elements<'_>, encoding: u8, score: Score, own: &[u8]) -> Result<bool, StoreError> {
    let (mut begin, mut found) = (Vec::new(), false);
    element::zset_sort(score, b"", &mut begin);
    all.each(&begin, &mut |element, value| {
        if let Ok((_, member)) = read_sort(element, value) {
            let mut name = Vec::new();
            zset_score_of(encoding, member, &mut name);
            found |= name == own;
        }
        Ok(())
    })?;
    Ok(found)
}

fn stream(fixes: &mut Fixes<'_>, all: &Elements<'_>, meta: &mut Meta) -> Result<u64, StoreError> {
    let (mut last, max_deleted, mut added) = match meta.extra {
        Extra::Stream { last, max_deleted, entries_added, .. } => (last, max_deleted, entries_added),
        _ => (StreamId::default(), StreamId::default(), 0),
    };
    let (mut first, mut size, mut names) = (None, 0, Vec::new());
    all.each(&[Group::StreamElement.tag()], &mut |element, value| {
        let Ok(Element::StreamElement(id)) = Element::decode(element) else { return Ok(()) };
        if id == StreamId::default() {
            names = value.to_vec();
            return Ok(());
        }
        if each_field(value, &names, |_, _| {}).is_err() {
            return fixes.set(all.key(element), None);
        }
        first.get_or_insert(id);
        (last, size) = (last.max(id), size + 1);
        Ok(())
    })?;
    added = added.max(size);
    meta.size = size;
    meta.extra = Extra::Stream { first: first.unwrap_or_default(), last, max_deleted, entries_added: added };
    groups(fixes, all)?;
    Ok(size)
}

/// Consumer groups, by their records; consumers and pending entries of others go.
fn groups(fixes: &mut Fixes<'_>, all: &Elements<'_>) -> Result<(), StoreError> {
    all.each(&[Group::StreamGroup.tag()], &mut |element, value| {
        let text = split_text(&element[1..], value).ok().filter(|(name, _)| is_stored_as(name, &element[1..]).is_ok());
        let record = text.and_then(|(name, record)| Some((name, GroupRecord::decode(record).ok()?)));
        let Some((name, record)) = record else { return fixes.set(all.key(element), None) };
        let mended = group(fixes, all, &element[1..], record)?;
        let mut encoded = Vec::new();
        mended.encode(&mut encoded);
        fixes.set(all.key(element), Some(with_text(name, &encoded).into_owned()))
    })?;
    let mut lost = |element: &[u8], of: &[u8]| {
        let mut group = vec![Group::StreamGroup.tag()];
        group.extend_from_slice(of);
        if all.get(&group)?.is_some() { Ok(()) } else { fixes.set(all.key(element), None) }
    };
    for tag in [Group::StreamConsumer.tag(), Group::StreamPel.tag()] {
        all.each(&[tag], &mut |element, _| match Element::decode(element) {
            Ok(Element::StreamConsumer(of, _) | Element::StreamPel(of, _)) => lost(element, of),
            _ => Ok(()),
        })?;
    }
    Ok(())
}

/// The consumers and pending entries of one group; what its record is to say of them. Remembers its consumers.
fn group(
    fixes: &mut Fixes<'_>,
    all: &Elements<'_>,
    name: &[u8],
    mut record: GroupRecord,
) -> Result<GroupRecord, StoreError> {
    let sized = |tag: Group| [&[tag.tag()], &(name.len() as u16).to_be_bytes()[..], name].concat();
    let mut consumers: BTreeMap<Vec<u8>, (Vec<u8>, ConsumerRecord)> = BTreeMap::new();
    let head = sized(Group::StreamConsumer);
    all.each(&head, &mut |element, value| {
        let stored = &element[head.len()..];
        let text = split_text(stored, value).ok().filter(|(name, _)| is_stored_as(name, stored).is_ok());
        match text.and_then(|(name, record)| Some((name.to_vec(), ConsumerRecord::decode(record).ok()?))) {
            Some((name, record)) => {
                consumers.insert(stored.to_vec(), (name, ConsumerRecord { pending: 0, ..record }));
                Ok(())
            }
            None => fixes.set(all.key(element), None),
        }
    })?;
    (record.pending, record.consumers) = (0, consumers.len() as u64);
    let mut oldest = None;
    all.each(&sized(Group::StreamPel), &mut |element, value| {
        let id = element.last_chunk().map(|id| StreamId::from_bytes(*id));
        let owner = Nack::decode(value).ok().and_then(|nack| consumers.get_mut(&nack.consumer[..]));
        let (Some(id), Some((_, consumer))) = (id, owner) else { return fixes.set(all.key(element), None) };
        // No pending entry of it comes before the first of all.
        consumer.oldest = if consumer.pending == 0 { id } else { consumer.oldest };
        (consumer.pending, record.pending) = (consumer.pending + 1, record.pending + 1);
        oldest.get_or_insert(id);
        Ok(())
    })?;
    record.oldest = oldest.unwrap_or(record.oldest);
    for (stored, (name, consumer)) in &consumers {
        let mut encoded = Vec::new();
        consumer.encode(&mut encoded);
        fixes.set(all.key(&[&head[..], stored].concat()), Some(with_text(name, &encoded).into_owned()))?;
    }
    Ok(record)
}
