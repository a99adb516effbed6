//! A stream's records: entries in their order, then groups, then consumers, then pending entries.
//!
//! What groups and consumers say of pending entries comes before these. Both sides are summed up ([`Print`]) and compared at the
//! end: memory does not grow with consumers.

use crate::codec::element::{Element, Group, split_text};
use crate::codec::{CodecError, Extra, StreamId};
use crate::types::stream::record::{ConsumerRecord, GroupRecord, Nack, each_field};

use super::body::{Print, Verdict, is_stored_as};

/// The id under which the names stand that most entries share.
const NAMES: StreamId = StreamId { ms: 0, seq: 0 };

/// Two sums that must be one.
#[derive(Default)]
struct Balance {
    said: Print,
    found: Print,
}

/// What has come by of a stream.
#[derive(Default)]
pub(super) struct Tally {
    first: StreamId,
    last: StreamId,
    names: Vec<u8>,
    /// Id of the first entry found.
    head: Option<StreamId>,
    /// Consumers of each group, pending entries of each group, pending entries of each consumer, first pending entry of each group.
    consumers: Balance,
    pending: Balance,
    owned: Balance,
    oldest: Balance,
    /// The group whose pending entries come by. A group may have a name of no letters.
    group: Option<Vec<u8>>,
}

impl Tally {
    /// Of a stream of which the metadata says this.
    pub(super) fn new(extra: Extra) -> Tally {
        let (first, last) = match extra {
            Extra::Stream { first, last, .. } => (first, last),
            _ => (NAMES, NAMES),
        };
        Tally { first, last, ..Tally::default() }
    }

    /// The next element; how many entries it is.
    pub(super) fn element(&mut self, group: Group, stored: &[u8], value: &[u8]) -> Verdict<u64> {
        let whole = [&[group.tag()], stored].concat();
        let odd = |error: CodecError| format!("element {} cannot be read: {error}", whole.escape_ascii());
        match Element::decode(&whole).map_err(odd)? {
            Element::StreamElement(NAMES) => {
                self.names = value.to_vec();
                return Ok(0);
            }
            Element::StreamElement(id) => {
                each_field(value, &self.names, |_, _| {}).map_err(odd)?;
                if id < self.first || id > self.last {
                    return Err(format!("entry {}-{} lies outside the stream's ids", id.ms, id.seq));
                }
                self.head.get_or_insert(id);
                return Ok(1);
            }
            Element::StreamGroup(name) => {
                let (text, record) = split_text(name, value).map_err(odd)?;
                is_stored_as(text, name)?;
                let record = GroupRecord::decode(record).map_err(odd)?;
                self.consumers.said.add(record.consumers, &[name]);
                self.pending.said.add(record.pending, &[name]);
                self.oldest.said.add(u64::from(record.pending > 0), &[name, &record.oldest.to_bytes()]);
            }
            Element::StreamConsumer(of, name) => {
                let (text, record) = split_text(name, value).map_err(odd)?;
                is_stored_as(text, name)?;
                let record = ConsumerRecord::decode(record).map_err(odd)?;
                self.consumers.found.add(1, &[of]);
                self.owned.said.add(record.pending, &[of, name]);
            }
            Element::StreamPel(of, id) => {
                let nack = Nack::decode(value).map_err(odd)?;
                self.pending.found.add(1, &[of]);
                self.owned.found.add(1, &[of, &nack.consumer]);
                if self.group.as_deref() != Some(of) {
                    self.group = Some(of.to_vec());
                    self.oldest.found.add(1, &[of, &id.to_bytes()]);
                }
            }
            _ => return Err(format!("an element of group {} does not belong to its type", group.tag())),
        }
        Ok(0)
    }

    /// All elements have come by.
    pub(super) fn end(self, extra: Extra, size: u64) -> Verdict {
        if !matches!(extra, Extra::Stream { .. }) && size > 0 {
            return Err("a stream with entries and without ids".to_owned());
        }
        let head = self.head.unwrap_or(NAMES);
        if head != self.first {
            let StreamId { ms, seq } = self.first;
            return Err(format!("its first entry should be {ms}-{seq}, and is {}-{}", head.ms, head.seq));
        }
        for (balance, what) in [
            (self.consumers, "consumers of a group"),
            (self.pending, "pending entries of a group"),
            (self.owned, "pending entries of a consumer"),
            (self.oldest, "the oldest pending entry of a group"),
        ] {
            if balance.said != balance.found {
                return Err(format!("{what}: what is counted is not what is there"));
            }
        }
        Ok(())
    }
}
