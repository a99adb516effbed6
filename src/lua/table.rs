//! Tables: an array part and a node part, laid out as Lua 5.1 lays them out, because `pairs` and `#` show the layout.
//!
//! | part | holds | grows |
//! |---|---|---|
//! | array | the values of keys 1..=len | at a rehash, to the largest power of two that is more than half used |
//! | nodes | everything else, a power of two of places, chained by their main position | at a rehash, when the free pointer, which only goes down, has met no free place |

use super::fault::{Fault, Meter};
use super::value::{Str, Value};

/// Arrays have no more than 2^26 places, node parts neither.
const MAX_BITS: usize = 26;
const NO_NEXT: u32 = u32::MAX;
pub(super) const VALUE_BYTES: usize = size_of::<Value>();
const NODE_BYTES: usize = size_of::<Node>();

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) key: Value,
    pub(super) value: Value,
    next: u32,
}

const EMPTY: Node = Node { key: Value::Nil, value: Value::Nil, next: NO_NEXT };

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) array: Vec<Value>,
    pub(super) nodes: Vec<Node>,
    /// Places from here on are taken.
    last_free: u32,
    /// The metatable's place plus one, 0 for none.
    meta: u32,
    /// Bit `n` is set if this table, as a metatable, is known to lack the event of string `n`.
    pub(super) absent: u8,
    pub(super) readonly: bool,
}

/// `next` met a key that is not in the table.
#[derive(Debug)]
pub(super) struct NoSuchKey;

/// Whether a table may have such a key.
pub(super) fn may_be_key(key: Value) -> Result<(), Fault> {
    match key {
        Value::Nil => Err(Fault::run("table index is nil")),
        Value::Number(n) if n.is_nan() => Err(Fault::run("table index is NaN")),
        _ => Ok(()),
    }
}

impl Table {
    /// A table with room for so many elements and pairs.
    pub(super) fn with_sizes(array: usize, nodes: usize, meter: &mut Meter) -> Result<Table, Fault> {
        let mut table = Table::default();
        if array > 0 || nodes > 0 {
            table.resize(array, nodes, meter)?;
        }
        Ok(table)
    }

    pub(super) fn meta(&self) -> Option<super::value::Tab> {
        self.meta.checked_sub(1).map(super::value::Tab)
    }

    pub(super) fn set_meta(&mut self, meta: Option<super::value::Tab>) {
        self.meta = meta.map_or(0, |tab| tab.0 + 1);
    }

    /// Bytes of both parts.
    pub(super) fn bytes(&self) -> usize {
        self.array.len() * VALUE_BYTES + self.nodes.len() * NODE_BYTES
    }

    pub(super) fn get(&self, key: Value, meter: &mut Meter) -> Value {
        match key {
            Value::Str(s) => self.get_str(s, meter),
            Value::Number(n) => self.get_num(n, meter),
            Value::Nil | Value::Dead => Value::Nil,
            _ => self.find(key, meter).map_or(Value::Nil, |at| self.nodes[at].value),
        }
    }

    #[inline(always)]
    pub(super) fn get_str(&self, key: Str, meter: &mut Meter) -> Value {
        match self.find_str(key, meter) {
            Some(at) => self.nodes[at].value,
            None => Value::Nil,
        }
    }

    #[inline(always)]
    fn find_str(&self, key: Str, meter: &mut Meter) -> Option<usize> {
        if self.nodes.is_empty() {
            return None;
        }
        let mut at = key.hash as usize & (self.nodes.len() - 1);
        loop {
            let node = &self.nodes[at];
            if let Value::Str(s) = node.key
                && s == key
            {
                return Some(at);
            }
            if node.next == NO_NEXT {
                return None;
            }
            // Keys that were made to collide are paid for.
            meter.fuel -= 1;
            at = node.next as usize;
        }
    }

    pub(super) fn get_num(&self, n: f64, meter: &mut Meter) -> Value {
        let k = n as i64;
        if k as f64 == n
            && let Some(value) = self.array.get((k as usize).wrapping_sub(1))
        {
            return *value;
        }
        self.find(Value::Number(n), meter).map_or(Value::Nil, |at| self.nodes[at].value)
    }

    pub(super) fn get_int(&self, n: i64, meter: &mut Meter) -> Value {
        match self.array.get((n as usize).wrapping_sub(1)) {
            Some(value) => *value,
            None => self.find(Value::Number(n as f64), meter).map_or(Value::Nil, |at| self.nodes[at].value),
        }
    }

    fn find(&self, key: Value, meter: &mut Meter) -> Option<usize> {
        if self.nodes.is_empty() {
            return None;
        }
        let mut at = self.main_position(key);
        loop {
            let node = &self.nodes[at];
            if node.key == key {
                return Some(at);
            }
            if node.next == NO_NEXT {
                return None;
            }
            meter.fuel -= 1;
            at = node.next as usize;
        }
    }

    fn main_position(&self, key: Value) -> usize {
        let size = self.nodes.len();
        // What is no power of two spreads numbers and addresses better.
        let odd = |n: u32| n as usize % ((size - 1) | 1);
        match key {
            Value::Str(s) => s.hash as usize & (size - 1),
            Value::Bool(b) => usize::from(b) & (size - 1),
            Value::Number(0.0) => 0,
            Value::Number(n) => {
                let bits = n.to_bits();
                odd((bits as u32).wrapping_add((bits >> 32) as u32))
            }
            Value::Table(tab) => odd(tab.0.wrapping_mul(96)),
            Value::Function(fun) => odd(fun.0.wrapping_mul(64)),
            Value::Bound(bound) => odd(bound.0.wrapping_mul(72)),
            Value::Thread(co) => odd(co.0.wrapping_mul(208)),
            Value::Native(n) | Value::Host(n) => odd(u32::from(n).wrapping_mul(40)),
            Value::Nil | Value::Null | Value::Dead => 0,
        }
    }

    /// The place of an existing key's value.
    pub(super) fn slot(&mut self, key: Value, meter: &mut Meter) -> Option<&mut Value> {
        if let Value::Number(n) = key {
            let k = n as i64;
            if k as f64 == n && (k as usize).wrapping_sub(1) < self.array.len() {
                return self.array.get_mut(k as usize - 1);
            }
        }
        let at = match key {
            Value::Str(s) => self.find_str(s, meter)?,
            Value::Nil | Value::Dead => return None,
            _ => self.find(key, meter)?,
        };
        Some(&mut self.nodes[at].value)
    }

    /// Assigns without metamethods. A key that is nil or not a number is refused.
    pub(super) fn set(&mut self, key: Value, value: Value, meter: &mut Meter) -> Result<(), Fault> {
        self.absent = 0;
        if let Some(slot) = self.slot(key, meter) {
            *slot = value;
            return Ok(());
        }
        may_be_key(key)?;
        self.add(key, value, meter)
    }

    pub(super) fn set_int(&mut self, n: i64, value: Value, meter: &mut Meter) -> Result<(), Fault> {
        match self.array.get_mut((n as usize).wrapping_sub(1)) {
            Some(slot) => *slot = value,
            None => self.set(Value::Number(n as f64), value, meter)?,
        }
        Ok(())
    }

    /// A key that is not there. Lua enters it even if the value is nil, which may rehash.
    fn add(&mut self, key: Value, value: Value, meter: &mut Meter) -> Result<(), Fault> {
        if self.nodes.is_empty() {
            return self.add_after_rehash(key, value, meter);
        }
        let mut main = self.main_position(key);
        if !self.nodes[main].value.is_nil() {
            let Some(free) = self.free_position() else {
                return self.add_after_rehash(key, value, meter);
            };
            let mut other = self.main_position(self.nodes[main].key);
            if other != main {
                // The one in the way is not at its own main position: it moves to the free place.
                while self.nodes[other].next as usize != main {
                    other = self.nodes[other].next as usize;
                }
                self.nodes[other].next = free as u32;
                self.nodes[free] = self.nodes[main];
                self.nodes[main].next = NO_NEXT;
            } else {
                self.nodes[free].next = self.nodes[main].next;
                self.nodes[main].next = free as u32;
                main = free;
            }
        }
        self.nodes[main].key = key;
        self.nodes[main].value = value;
        Ok(())
    }

    fn free_position(&mut self) -> Option<usize> {
        while self.last_free > 0 {
            self.last_free -= 1;
            if self.nodes[self.last_free as usize].key.is_nil() {
                return Some(self.last_free as usize);
            }
        }
        None
    }

    fn add_after_rehash(&mut self, key: Value, value: Value, meter: &mut Meter) -> Result<(), Fault> {
        self.rehash(key, meter)?;
        match self.slot(key, meter) {
            Some(slot) => *slot = value,
            None => self.add(key, value, meter)?,
        }
        Ok(())
    }

    fn rehash(&mut self, extra: Value, meter: &mut Meter) -> Result<(), Fault> {
        // nums[i]: how many keys there are in (2^(i-1), 2^i].
        let mut nums = [0usize; MAX_BITS + 1];
        let mut total = 0;
        for (at, value) in self.array.iter().enumerate() {
            if !value.is_nil() {
                nums[ceil_log2(at + 1)] += 1;
                total += 1;
            }
        }
        let mut integers = total;
        let keys = self.nodes.iter().filter(|node| !node.value.is_nil()).map(|node| node.key);
        for key in keys.chain([extra]) {
            total += 1;
            if let Some(k) = array_key(key) {
                nums[ceil_log2(k)] += 1;
                integers += 1;
            }
        }
        meter.work((self.array.len() + self.nodes.len()) / 8);
        let (size, used) = best_array(&nums, integers);
        self.resize(size, total - used, meter)
    }

    /// Gives both parts new sizes; what is in them finds its place anew.
    pub(super) fn resize(&mut self, array: usize, nodes: usize, meter: &mut Meter) -> Result<(), Fault> {
        let nodes = if nodes == 0 { 0 } else { 1 << ceil_log2(nodes) };
        if nodes > 1 << MAX_BITS {
            return Err(Fault::run("table overflow"));
        }
        let before = self.bytes();
        let after = array.saturating_mul(VALUE_BYTES).saturating_add(nodes * NODE_BYTES);
        meter.take(after)?;
        meter.give(before);
        let old_nodes = std::mem::replace(&mut self.nodes, vec![EMPTY; nodes]);
        self.last_free = nodes as u32;
        let vanishing = if array < self.array.len() { self.array.split_off(array) } else { Vec::new() };
        if array != self.array.len() || !vanishing.is_empty() {
            self.array.reserve_exact(array - self.array.len());
            self.array.resize(array, Value::Nil);
            self.array.shrink_to_fit();
        }
        for (at, value) in vanishing.into_iter().enumerate() {
            if !value.is_nil() {
                self.set(Value::Number((array + at + 1) as f64), value, meter)?;
            }
        }
        for node in old_nodes.iter().rev() {
            if !node.value.is_nil() {
                self.set(node.key, node.value, meter)?;
            }
        }
        Ok(())
    }

    /// Makes the array part at least so long.
    pub(super) fn grow_array(&mut self, array: usize, meter: &mut Meter) -> Result<(), Fault> {
        if array > self.array.len() { self.resize(array, self.nodes.len(), meter) } else { Ok(()) }
    }

    /// A border, found as Lua 5.1 finds it.
    pub(super) fn len(&self, meter: &mut Meter) -> usize {
        let array = self.array.len();
        if array > 0 && self.array[array - 1].is_nil() {
            let (mut low, mut high) = (0, array);
            while high - low > 1 {
                let middle = (low + high) / 2;
                if self.array[middle - 1].is_nil() { high = middle } else { low = middle }
            }
            return low;
        }
        if self.nodes.is_empty() { array } else { self.unbound_search(array, meter) }
    }

    fn unbound_search(&self, array: usize, meter: &mut Meter) -> usize {
        let (mut low, mut high) = (array, array + 1);
        while !self.get_int(high as i64, meter).is_nil() {
            low = high;
            high *= 2;
            if high > i32::MAX as usize - 2 {
                // A table made to mislead the doubling: one by one, as far as there are entries at all.
                let mut at = 1;
                while !self.get_int(at, meter).is_nil() {
                    at += 1;
                }
                meter.work(at as usize);
                return at as usize - 1;
            }
        }
        while high - low > 1 {
            let middle = (low + high) / 2;
            if self.get_int(middle as i64, meter).is_nil() { high = middle } else { low = middle }
        }
        low
    }

    /// The place after a key, in the order of `next`: `Ok(None)` at the end.
    pub(super) fn next(&self, key: Value, meter: &mut Meter) -> Result<Option<(Value, Value)>, NoSuchKey> {
        let from = match key {
            Value::Nil => 0,
            _ => match array_key(key).filter(|k| *k <= self.array.len()) {
                Some(k) => k,
                None => self.array.len() + self.find(key, meter).ok_or(NoSuchKey)? + 1,
            },
        };
        self.next_from(from, meter)
    }

    fn next_from(&self, from: usize, meter: &mut Meter) -> Result<Option<(Value, Value)>, NoSuchKey> {
        for at in from..self.array.len() {
            if !self.array[at].is_nil() {
                meter.work((at - from) / 8);
                return Ok(Some((Value::Number((at + 1) as f64), self.array[at])));
            }
        }
        let first = from.saturating_sub(self.array.len());
        for (steps, node) in self.nodes[first.min(self.nodes.len())..].iter().enumerate() {
            if !node.value.is_nil() {
                meter.work(steps / 8);
                return Ok(Some((node.key, node.value)));
            }
        }
        meter.work((self.array.len().saturating_sub(from) + self.nodes.len()) / 8);
        Ok(None)
    }
}

/// The key as a place in an array part, from 1 on.
fn array_key(key: Value) -> Option<usize> {
    let Value::Number(n) = key else { return None };
    let k = n as i64;
    (k as f64 == n && (1..=1 << MAX_BITS).contains(&k)).then_some(k as usize)
}

pub(super) fn ceil_log2(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

/// The largest size of which more than half would be used, and how many keys go there.
fn best_array(nums: &[usize; MAX_BITS + 1], integers: usize) -> (usize, usize) {
    let (mut sum, mut used, mut size) = (0, 0, 0);
    for (bits, count) in nums.iter().enumerate() {
        let places = 1usize << bits;
        if places / 2 >= integers {
            break;
        }
        if *count > 0 {
            sum += count;
            if sum > places / 2 {
                size = places;
                used = sum;
            }
        }
        if sum == integers {
            break;
        }
    }
    (size, used)
}
