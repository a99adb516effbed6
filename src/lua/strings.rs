//! All strings of a machine, each once. The hash is that of Redis's Lua 5.1, seeded by the length and, unlike plain
//! Lua's, over all bytes, because the order of `pairs` follows from it. That goes byte by byte: long strings, which are hardly keys
//! of tables, have another one.

use super::fault::{Fault, Meter};
use super::value::Str;

/// What a string costs beside its bytes.
const OVERHEAD: usize = 48;
/// Bytes whose hashing costs as much as an instruction.
const HASHED_A_STEP: usize = 8;
const NONE: u32 = u32::MAX;
/// Strings that a slice of a sweep passes, more or less: those that were made to collide stand in its way.
const PASSED: usize = 32 << 10;

#[derive(Debug, Default)]
struct Slot {
    data: Box<[u8]>,
    hash: u32,
    /// The next string of the same bucket.
    next: u32,
}

/// The interned strings.
#[derive(Debug)]
pub(super) struct Strings {
    slots: Vec<Slot>,
    marks: Vec<u8>,
    free: Vec<u32>,
    buckets: Vec<u32>,
    count: usize,
    /// Strings below this place are the library's and stay.
    fixed: usize,
}

/// States of a place in an arena.
pub(super) const FREE: u8 = 0;
pub(super) const WHITE: u8 = 1;
pub(super) const BLACK: u8 = 2;

/// Longer strings are hashed in another way.
const LONG: usize = 4096;

pub(super) fn hash(bytes: &[u8]) -> u32 {
    if bytes.len() > LONG {
        return xxhash_rust::xxh3::xxh3_64(bytes) as u32;
    }
    let seed = bytes.len() as u32;
    bytes.iter().rev().fold(seed, |h, byte| h ^ (h << 5).wrapping_add(h >> 2).wrapping_add(u32::from(*byte)))
}

fn charged_hash(bytes: &[u8], meter: &mut Meter) -> u32 {
    match bytes.len() {
        short @ ..=LONG => meter.work(short / HASHED_A_STEP),
        long => meter.copy(long),
    }
    hash(bytes)
}

impl Strings {
    pub(super) fn new() -> Strings {
        let buckets = vec![NONE; 1024];
        Strings { slots: Vec::new(), marks: Vec::new(), free: Vec::new(), buckets, count: 0, fixed: 0 }
    }

    pub(super) fn get(&self, s: Str) -> &[u8] {
        &self.slots[s.id as usize].data
    }

    pub(super) fn intern(&mut self, bytes: &[u8], meter: &mut Meter) -> Result<Str, Fault> {
        meter.room(bytes.len())?;
        let hash = charged_hash(bytes, meter);
        match self.find(bytes, hash, meter) {
            Some(found) => Ok(found),
            None => self.add(bytes.into(), hash, meter),
        }
    }

    /// Interns bytes that were already gathered, without copying them again.
    pub(super) fn intern_owned(&mut self, bytes: Vec<u8>, meter: &mut Meter) -> Result<Str, Fault> {
        let hash = charged_hash(&bytes, meter);
        match self.find(&bytes, hash, meter) {
            Some(found) => Ok(found),
            None => self.add(bytes.into_boxed_slice(), hash, meter),
        }
    }

    fn find(&self, bytes: &[u8], hash: u32, meter: &mut Meter) -> Option<Str> {
        let mut at = self.buckets[hash as usize & (self.buckets.len() - 1)];
        while at != NONE {
            // Strings that were made to collide are paid for.
            meter.fuel -= 1;
            let slot = &self.slots[at as usize];
            if slot.hash == hash && slot.data.len() == bytes.len() {
                meter.copy(bytes.len());
                if *slot.data == *bytes {
                    return Some(Str { id: at, hash });
                }
            }
            at = slot.next;
        }
        None
    }

    fn add(&mut self, data: Box<[u8]>, hash: u32, meter: &mut Meter) -> Result<Str, Fault> {
        meter.take(data.len() + OVERHEAD)?;
        if self.count >= self.buckets.len() {
            self.widen(meter);
        }
        self.count += 1;
        let bucket = hash as usize & (self.buckets.len() - 1);
        let slot = Slot { data, hash, next: self.buckets[bucket] };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                self.marks[id as usize] = WHITE;
                id
            }
            None => {
                self.slots.push(slot);
                self.marks.push(WHITE);
                self.slots.len() as u32 - 1
            }
        };
        self.buckets[bucket] = id;
        Ok(Str { id, hash })
    }

    fn widen(&mut self, meter: &mut Meter) {
        let len = self.buckets.len() * 2;
        meter.work(len / 8);
        self.buckets = vec![NONE; len];
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if self.marks[id] != FREE {
                let bucket = slot.hash as usize & (len - 1);
                slot.next = self.buckets[bucket];
                self.buckets[bucket] = id as u32;
            }
        }
    }

    /// All strings so far are never collected.
    pub(super) fn fix(&mut self) {
        self.fixed = self.slots.len();
    }

    pub(super) fn mark(&mut self, s: Str) {
        self.marks[s.id as usize] = BLACK;
    }

    pub(super) fn is_marked(&self, s: Str) -> bool {
        (s.id as usize) < self.fixed || self.marks[s.id as usize] == BLACK
    }

    /// Frees what is not marked among up to `steps` places from `at` on; the place to go on from, if there is one.
    pub(super) fn sweep(&mut self, at: usize, steps: usize, meter: &mut Meter) -> Option<usize> {
        let from = at.max(self.fixed);
        let to = (from + steps).min(self.slots.len());
        let mut passed = 0;
        for id in from..to {
            match self.marks[id] {
                BLACK => self.marks[id] = WHITE,
                WHITE => passed += self.release(id, meter),
                _ => {}
            }
            if passed > PASSED {
                meter.work(passed);
                return Some(id + 1).filter(|next| *next < self.slots.len());
            }
        }
        (to < self.slots.len()).then_some(to)
    }

    /// Frees a string; how many others of its bucket it had to pass.
    fn release(&mut self, id: usize, meter: &mut Meter) -> usize {
        let mut passed = 0;
        let slot = std::mem::take(&mut self.slots[id]);
        let bucket = slot.hash as usize & (self.buckets.len() - 1);
        let mut at = self.buckets[bucket];
        if at == id as u32 {
            self.buckets[bucket] = slot.next;
        } else {
            while self.slots[at as usize].next != id as u32 {
                at = self.slots[at as usize].next;
                passed += 1;
            }
            self.slots[at as usize].next = slot.next;
        }
        meter.give(slot.data.len() + OVERHEAD);
        self.count -= 1;
        self.marks[id] = FREE;
        self.free.push(id as u32);
        passed
    }
}
