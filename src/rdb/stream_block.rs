//! A block of a stream's entries: a listpack whose key is the id of the first entry that it ever had.
//!
//! First comes what the entries share: `entries`, `deleted entries`, `count` of fields, their names, 0. Then each entry:
//!
//! | part | |
//! |---|---|
//! | `flags` | 1: deleted; 2: its fields are those shared |
//! | `ms`, `seq` | from the key's, the second modulo 2⁶⁴ |
//! | `count` of fields; names and values in turn | without flag 2 |
//! | values | with flag 2 |
//! | number of elements from `flags` on, without this one | |

use bytes::Bytes;

use super::length::Room;
use super::listpack::{Builder, Listpack};
use super::{Entry, RdbError};
use crate::codec::StreamId;

const CORRUPT: RdbError = RdbError::Corrupt("block of a stream");

const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;

/// The limits of a block, as Redis sets them unless told otherwise. The bytes of the entry that passes are within.
pub(super) const ENTRIES_MAX: usize = 100;
pub(super) const BYTES_MAX: usize = 4096;

/// Appends a block's entries to those before it.
pub(super) fn read(key: StreamId, bytes: &[u8], entries: &mut Vec<Entry>, room: &mut Room) -> Result<(), RdbError> {
    let mut listpack = Listpack::new(bytes)?;
    let (said_alive, said_deleted) = (listpack.int()?, listpack.int()?);
    let mut shared = Vec::new();
    for _ in 0..read_count(&mut listpack)? {
        shared.push(Bytes::from(listpack.element()?.into_string(room)?));
    }
    if listpack.int()? != 0 {
        return Err(CORRUPT);
    }
    let (mut alive, mut deleted) = (0, 0);
    let mut last = entries.last().map(|entry| entry.id);
    while let Some(flags) = listpack.next()? {
        let flags = flags.as_int().ok_or(CORRUPT)?;
        let entry = read_entry(flags, key, &shared, &mut listpack, room)?;
        if last.is_some_and(|last| last >= entry.id) || entry.id == StreamId::default() {
            return Err(CORRUPT);
        }
        last = Some(entry.id);
        if flags & DELETED == 0 {
            alive += 1;
            entries.push(entry);
        } else {
            deleted += 1;
        }
    }
    if (said_alive, said_deleted) == (alive, deleted) { Ok(()) } else { Err(CORRUPT) }
}

fn read_count(listpack: &mut Listpack<'_>) -> Result<u64, RdbError> {
    u64::try_from(listpack.int()?).map_err(|_| CORRUPT)
}

fn read_entry(
    flags: i64,
    key: StreamId,
    shared: &[Bytes],
    listpack: &mut Listpack<'_>,
    room: &mut Room,
) -> Result<Entry, RdbError> {
    let ms = key.ms.wrapping_add(listpack.int()?.cast_unsigned());
    let seq = key.seq.wrapping_add(listpack.int()?.cast_unsigned());
    let mut fields = Vec::with_capacity(if flags & SAME_FIELDS == 0 { 1 } else { shared.len() });
    let elements = if flags & SAME_FIELDS == 0 {
        for _ in 0..read_count(listpack)? {
            let name = Bytes::from(listpack.element()?.into_string(room)?);
            fields.push((name, listpack.element()?.into_string(room)?));
        }
        4 + 2 * fields.len()
    } else {
        for name in shared {
            // The name is shared, but it is told of here too.
            room.take(0)?;
            fields.push((name.clone(), listpack.element()?.into_string(room)?));
        }
        3 + fields.len()
    };
    if read_count(listpack)? != elements as u64 || fields.is_empty() {
        return Err(CORRUPT);
    }
    Ok(Entry { id: StreamId { ms, seq }, fields })
}

/// Entries in runs, none empty, each of which makes a block.
pub(super) fn blocks(entries: &[Entry]) -> Vec<&[Entry]> {
    let mut blocks = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let goes_on = bytes < BYTES_MAX;
            bytes += entry.fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            goes_on
        };
        let len = rest.iter().take(ENTRIES_MAX).take_while(fits).count();
        let (block, behind) = rest.split_at(len);
        blocks.push(block);
        rest = behind;
    }
    blocks
}

/// The listpack of entries, which must be some; the first one's id is the key, its fields are those shared.
pub(super) fn write(entries: &[Entry]) -> Vec<u8> {
    let first = &entries[0];
    let mut listpack = Builder::new();
    listpack.push_int(entries.len() as i64);
    listpack.push_int(0);
    listpack.push_int(first.fields.len() as i64);
    first.fields.iter().for_each(|(name, _)| listpack.push(name));
    listpack.push_int(0);
    for entry in entries {
        let names = entry.fields.iter().map(|(name, _)| name);
        let same = names.eq(first.fields.iter().map(|(name, _)| name));
        listpack.push_int(if same { SAME_FIELDS } else { 0 });
        listpack.push_int(entry.id.ms.wrapping_sub(first.id.ms).cast_signed());
        listpack.push_int(entry.id.seq.wrapping_sub(first.id.seq).cast_signed());
        if same {
            entry.fields.iter().for_each(|(_, value)| listpack.push(value));
            listpack.push_int(3 + entry.fields.len() as i64);
        } else {
            listpack.push_int(entry.fields.len() as i64);
            for (name, value) in &entry.fields {
                listpack.push(name);
                listpack.push(value);
            }
            listpack.push_int(4 + 2 * entry.fields.len() as i64);
        }
    }
    listpack.finish()
}
