//! One shard's partition, with nothing left in the log: every record, and what records say of each other.
//!
//! | records | what must hold |
//! |---|---|
//! | metadata | of this shard's keys, of a version that was given; elements, and the times' expiry records, are there |
//! | elements | metadata names their version, or it is garbage, or being built; and [`super::body`] |
//! | counted indexes | [`crate::shard::rank::verify`] |
//! | counts | the number of keys of each living namespace |
//! | garbage, dead namespaces | of no living version, of no namespace that has a name |
//! | names, libraries | in the first shard |
//!
//! What a server leaves and works off itself is no fault: records of dead namespaces and versions that are queued as such, and
//! expiry records of times that were changed, which a crash may leave and the sweep drops.
//!
//! Memory: one count a namespace, and one record.

use std::collections::BTreeMap;

use crate::codec::key::{self, DiskKey, KeyRange, decode_key, element_owner, garbage_of_owner, tag, tag_range};
use crate::codec::{CodecError, ExpiryKind, Kind, Meta, NamespaceMap, NsId, is_long_form, pack};
use crate::log::Lsn;
use crate::shard::rank;
use crate::shard::router::{Router, ShardId};
use crate::store::{Partition, StoreError};
use crate::util::pace::Pace;

use super::body::{Body, Verdict, group_of, is_stored_as};

/// What a fault is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Of {
    /// A key, by its stored form.
    Key(NsId, Vec<u8>),
    /// Elements of a version, by what their keys begin with.
    Owner(Vec<u8>),
    /// A record, by its whole key.
    Record(Vec<u8>),
    /// The count of a namespace: what it should be.
    Count(NsId, u64),
    /// The partition: it cannot be read to its end.
    Partition,
}

/// Something that is wrong in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) shard: ShardId,
    pub(super) of: Of,
    pub(super) what: String,
}

impl Fault {
    /// In the operator's words.
    pub(super) fn tell(&self, names: &NamespaceMap) -> String {
        let Fault { shard, of, what } = self;
        let named = |ns: NsId| match names.iter().find(|&(_, id)| id == ns) {
            Some((name, _)) => name.escape_ascii().to_string(),
            None => format!("#{ns}"),
        };
        let of = match of {
            Of::Key(ns, key) => format!("database {}, key \"{}\"", named(*ns), key.escape_ascii()),
            Of::Owner(owner) => match decode_key(&[&owner[..], &[1]].concat()) {
                Ok(DiskKey::Element { ns, key, version, .. }) => {
                    format!("database {}, key \"{}\", version {version}", named(ns), key.escape_ascii())
                }
                _ => format!("elements {}", owner.escape_ascii()),
            },
            Of::Record(record) => format!("record {}", record.escape_ascii()),
            Of::Count(ns, _) => format!("database {}", named(*ns)),
            Of::Partition => "partition".to_owned(),
        };
        format!("shard {shard}, {of}: {what}")
    }
}

/// What is known of the whole store.
pub(super) struct Known<'a> {
    pub(super) router: &'a Router,
    pub(super) names: &'a NamespaceMap,
    /// No version is higher.
    pub(super) highest: Lsn,
    /// The counts are known to be wrong: a loss was accepted.
    pub(super) is_uncounted: bool,
}

impl Known<'_> {
    fn is_live(&self, ns: NsId) -> bool {
        !self.names.is_dead(ns)
    }
}

/// Looks through a partition; how many records there are.
pub(super) fn walk(
    shard: ShardId,
    partition: &Partition,
    known: &Known<'_>,
    found: &mut dyn FnMut(Fault),
) -> Result<u64, StoreError> {
    let mut found = |of, what: String| found(Fault { shard, of, what });
    let mut walk = Walk { shard, partition, known, found: &mut found, counts: BTreeMap::new(), records: 0 };
    match walk.elements().and_then(|()| walk.metadata()).and_then(|()| walk.others()) {
        Ok(()) => walk.end(),
        Err(error @ (StoreError::Fjall { .. } | StoreError::Io { .. })) => {
            (walk.found)(Of::Partition, format!("it cannot be read to its end: {error}"));
        }
        Err(error) => return Err(error),
    }
    Ok(walk.records)
}

/// Small records that cannot be read, which keep a server from starting.
pub(super) fn unreadable(partition: &Partition) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut all = Vec::new();
    for (lower, upper) in small_ranges() {
        for item in partition.range(&lower, &upper)? {
            let (record, value) = item?;
            let is_read = match decode_key(&record) {
                Ok(DiskKey::Count { .. }) => key::decode_count(&value).is_ok(),
                other => other.is_ok(),
            };
            all.extend((!is_read).then(|| record.to_vec()));
        }
    }
    Ok(all)
}

/// Everything but elements and metadata.
fn small_ranges() -> [(Vec<u8>, Vec<u8>); 3] {
    let (elements, metadata) = (tag_range(tag::ELEMENT), tag_range(tag::META));
    [(vec![0], elements.lower), (elements.upper, metadata.lower), (metadata.upper, vec![0xff; 16])]
}

struct Walk<'a> {
    shard: ShardId,
    partition: &'a Partition,
    known: &'a Known<'a>,
    found: &'a mut dyn FnMut(Of, String),
    /// Of each living namespace: keys found, and keys counted.
    counts: BTreeMap<NsId, (u64, u64)>,
    records: u64,
}

/// The collection whose elements come by.
struct Current {
    owner: Vec<u8>,
    of: Of,
    /// `None` where nothing is asked of the elements, or something was found to be wrong.
    body: Option<Body>,
}

/// What is wrong with packed elements.
struct Odd(String);

impl From<CodecError> for Odd {
    fn from(error: CodecError) -> Odd {
        Odd(format!("its elements cannot be read: {error}"))
    }
}

/// A collection whose elements stand behind its metadata.
fn packed(meta: Meta, elements: &[u8]) -> Verdict {
    let (mut body, mut last) = (Body::new(meta), Vec::new());
    let read = pack::each(&meta, elements, |key, value| {
        if pack::stands(key) && last.as_slice() >= key {
            return Err(Odd(format!("element {} is out of order", key.escape_ascii())));
        }
        body.element(group_of(key).map_err(Odd)?, key, value).map_err(Odd)?;
        if pack::stands(key) {
            last = key.to_vec();
        }
        Ok(())
    });
    read.map_err(|Odd(what)| what)?;
    if body.is_indexed { Err("it has a counted index in its metadata".to_owned()) } else { body.end() }
}

impl Walk<'_> {
    fn elements(&mut self) -> Result<(), StoreError> {
        let range = tag_range(tag::ELEMENT);
        let (mut current, mut pace) = (None::<Current>, Pace::new());
        for item in self.partition.range(&range.lower, &range.upper)? {
            let (record, value) = item?;
            (self.records, _) = (self.records + 1, pace.step());
            let Some(owner) = element_owner(&record).filter(|_| decode_key(&record).is_ok()) else {
                (self.found)(Of::Record(record.to_vec()), "it cannot be read".to_owned());
                continue;
            };
            if current.as_ref().is_none_or(|current| current.owner != owner) {
                self.end_of(current.take())?;
                current = Some(self.begin(owner, &record)?);
            }
            let Some(Current { body, of, .. }) = &mut current else { continue };
            let element = &record[owner.len()..];
            let verdict = body.as_mut().map(|body| group_of(element).and_then(|g| body.element(g, element, &value)));
            if let Some(Err(what)) = verdict {
                (self.found)(of.clone(), what);
                *body = None;
            }
        }
        self.end_of(current)
    }

    fn begin(&mut self, owner: &[u8], record: &[u8]) -> Result<Current, StoreError> {
        let DiskKey::Element { ns, key, version, .. } = decode_key(record)? else {
            return Ok(Current { owner: owner.to_vec(), of: Of::Record(record.to_vec()), body: None });
        };
        let mut current = Current { owner: owner.to_vec(), of: Of::Key(ns, key.to_vec()), body: None };
        if !self.is_asked_of(ns, record) {
            return Ok(current);
        }
        let mut meta_key = Vec::new();
        key::meta_key_of_stored(ns, key, &mut meta_key);
        let named = match self.partition.get(&meta_key)? {
            // What cannot be decoded is found with the metadata.
            Some(value) => match Meta::decode(&value) {
                Ok((meta, ..)) => Some(meta),
                Err(_) => return Ok(current),
            },
            None => None,
        };
        match named {
            Some(meta) if meta.version == version && meta.packed => {
                (self.found)(current.of.clone(), "elements of a version that has them in its metadata".to_owned());
            }
            Some(meta) if meta.version == version => current.body = Some(Body::new(meta)),
            _ if self.is_queued(owner)? => {}
            _ => {
                let what = "elements of a version that no metadata names, and nothing is to remove".to_owned();
                (self.found)(Of::Owner(owner.to_vec()), what);
            }
        }
        Ok(current)
    }

    /// Whether a version is garbage, or being built.
    fn is_queued(&self, owner: &[u8]) -> Result<bool, StoreError> {
        let mut garbage = Vec::new();
        garbage_of_owner(owner, &mut garbage);
        let pending = [&[tag::PENDING], &garbage[1..]].concat();
        Ok(self.partition.get(&garbage)?.is_some() || self.partition.get(&pending)?.is_some())
    }

    fn end_of(&mut self, current: Option<Current>) -> Result<(), StoreError> {
        let Some(Current { owner, of, body: Some(body) }) = current else { return Ok(()) };
        let counted = body.counted_group().filter(|_| body.is_indexed);
        let verdict = match (body.end(), counted) {
            (Ok(()), Some(group)) => match rank::verify(self.partition, &owner, group) {
                Err(StoreError::Codec(error)) => Err(format!("its counted index: {error}")),
                other => other.map(Ok)?,
            },
            (verdict, _) => verdict,
        };
        if let Err(what) = verdict {
            (self.found)(of, what);
        }
        Ok(())
    }

    fn metadata(&mut self) -> Result<(), StoreError> {
        let range = tag_range(tag::META);
        let mut pace = Pace::new();
        for item in self.partition.range(&range.lower, &range.upper)? {
            let (record, value) = item?;
            (self.records, _) = (self.records + 1, pace.step());
            let Ok(DiskKey::Meta { ns, key }) = decode_key(&record) else {
                (self.found)(Of::Record(record.to_vec()), "it cannot be read".to_owned());
                continue;
            };
            if !self.is_asked_of(ns, &record) {
                continue;
            }
            self.counts.entry(ns).or_default().0 += 1;
            if let Err(what) = self.key(ns, key, &value)? {
                (self.found)(Of::Key(ns, key.to_vec()), what);
            }
        }
        Ok(())
    }

    fn key(&self, ns: NsId, stored: &[u8], value: &[u8]) -> Result<Verdict, StoreError> {
        let (meta, long_key, inline) = match Meta::decode(value) {
            Ok(parts) => parts,
            Err(error) => return Ok(Err(format!("its metadata cannot be read: {error}"))),
        };
        let key = long_key.unwrap_or(stored);
        if is_long_form(stored) != long_key.is_some() || is_stored_as(key, stored).is_err() {
            return Ok(Err("its metadata is that of another key".to_owned()));
        }
        let shard = self.known.router.shard_of(key);
        if shard != self.shard {
            return Ok(Err(format!("it belongs to shard {shard}")));
        }
        if meta.version > self.known.highest {
            let Known { highest, .. } = self.known;
            return Ok(Err(format!("its version is {}, but none above {highest} was ever given", meta.version)));
        }
        if meta.has_version() && !meta.packed && !inline.is_empty() {
            return Ok(Err("it has a value beside its elements".to_owned()));
        }
        if let Some(time) = self.unlisted_time(ns, key, &meta)? {
            return Ok(Err(format!("the expiry index does not have its time {time}")));
        }
        if meta.packed {
            return Ok(packed(meta, inline));
        }
        let may_be_empty = matches!(meta.kind, Kind::String) || matches!(meta.kind, Kind::Stream) && meta.size == 0;
        if !meta.has_version() || may_be_empty {
            return Ok(Ok(()));
        }
        let KeyRange { lower, upper } = key::element_range(ns, key, meta.version);
        let first = self.partition.range(&lower, &upper)?.next().transpose()?;
        let (size, version) = (meta.size, meta.version);
        Ok(first.map(|_| ()).ok_or_else(|| format!("its size is {size}, but version {version} has no elements")))
    }

    /// A time of a key, or of its fields, that the expiry index lacks.
    fn unlisted_time(&self, ns: NsId, key: &[u8], meta: &Meta) -> Result<Option<u64>, StoreError> {
        let times = [(meta.expire_ms, ExpiryKind::Key), (meta.extra.fields_due_ms(), ExpiryKind::Field)];
        for (at_ms, kind) in times.into_iter().filter(|&(at_ms, _)| at_ms != 0) {
            let mut record = Vec::new();
            key::expiry_key(at_ms, kind, ns, key, &mut record);
            if self.partition.get(&record)?.is_none() {
                return Ok(Some(at_ms));
            }
        }
        Ok(None)
    }

    /// Everything but elements and metadata.
    fn others(&mut self) -> Result<(), StoreError> {
        let mut pace = Pace::new();
        for (lower, upper) in small_ranges() {
            for item in self.partition.range(&lower, &upper)? {
                let (record, value) = item?;
                (self.records, _) = (self.records + 1, pace.step());
                if let Err(what) = self.other(&record, &value)? {
                    (self.found)(Of::Record(record.to_vec()), what);
                }
            }
        }
        Ok(())
    }

    fn other(&mut self, record: &[u8], value: &[u8]) -> Result<Verdict, StoreError> {
        let wrong = |what: &str| Ok(Err(what.to_owned()));
        match decode_key(record) {
            Err(error) => wrong(&format!("it cannot be read: {error}")),
            Ok(DiskKey::Count { ns }) => match key::decode_count(value) {
                _ if !self.is_asked_of(ns, record) => Ok(Ok(())),
                Ok(count) => {
                    self.counts.entry(ns).or_default().1 = count;
                    Ok(Ok(()))
                }
                Err(error) => wrong(&format!("it cannot be read: {error}")),
            },
            Ok(DiskKey::Expiry { ns, .. } | DiskKey::Pending { ns, .. }) => {
                self.is_asked_of(ns, record);
                Ok(Ok(()))
            }
            Ok(DiskKey::Garbage { ns, key, version }) => {
                let mut meta_key = Vec::new();
                key::meta_key_of_stored(ns, key, &mut meta_key);
                let meta = self.partition.get(&meta_key)?;
                let lives = meta.is_some_and(|value| Meta::decode(&value).is_ok_and(|(m, ..)| m.version == version));
                let is_asked = self.is_asked_of(ns, record);
                if lives && is_asked { wrong("the version lives that it calls garbage") } else { Ok(Ok(())) }
            }
            Ok(DiskKey::DeadNs { ns }) if self.known.is_live(ns) => wrong("the database lives that it calls dead"),
            Ok(DiskKey::Names | DiskKey::Library { .. }) if self.shard != 0 => wrong("it belongs to shard 0"),
            Ok(DiskKey::Names) => match NamespaceMap::decode(value) {
                Ok(_) => Ok(Ok(())),
                Err(error) => wrong(&format!("it cannot be read: {error}")),
            },
            Ok(_) => Ok(Ok(())),
        }
    }

    /// Whether a namespace lives; one that was never there is a fault.
    fn is_asked_of(&mut self, ns: NsId, record: &[u8]) -> bool {
        if !self.known.names.was_given(ns) {
            (self.found)(Of::Record(record.to_vec()), format!("there has never been a database #{ns}"));
        }
        self.known.is_live(ns)
    }

    fn end(&mut self) {
        for (&ns, &(keys, counted)) in self.counts.iter().filter(|_| !self.known.is_uncounted) {
            if keys != counted {
                (self.found)(Of::Count(ns, keys), format!("{counted} keys are counted, but there are {keys}"));
            }
        }
    }
}
