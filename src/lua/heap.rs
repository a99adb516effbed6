//! What a machine has allocated: strings, tables, functions, upvalues, coroutines, each kind in an arena of its own.

use super::code::Proto;
use super::fault::{Fault, Meter};
use super::strings::{BLACK, FREE, Strings, WHITE};
use super::table::Table;
use super::thread::Thread;
use super::value::{Bound, Co, Fun, Str, Tab, Value};
use std::sync::Arc;

/// Places of one kind, free ones reused.
#[derive(Debug)]
pub(super) struct Arena<T> {
    slots: Vec<T>,
    marks: Vec<u8>,
    free: Vec<u32>,
    /// Places below are never freed.
    fixed: usize,
}

impl<T: Default> Arena<T> {
    fn new() -> Arena<T> {
        Arena { slots: Vec::new(), marks: Vec::new(), free: Vec::new(), fixed: 0 }
    }

    pub(super) fn add(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = value;
                self.marks[at as usize] = WHITE;
                at
            }
            None => {
                self.slots.push(value);
                self.marks.push(WHITE);
                self.slots.len() as u32 - 1
            }
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, at: u32) -> &T {
        &self.slots[at as usize]
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.slots[at as usize]
    }

    /// Marks a place; whether it had no mark.
    pub(super) fn mark(&mut self, at: u32) -> bool {
        let mark = &mut self.marks[at as usize];
        let fresh = *mark == WHITE;
        *mark = BLACK;
        fresh
    }

    pub(super) fn is_marked(&self, at: u32) -> bool {
        (at as usize) < self.fixed || self.marks[at as usize] == BLACK
    }

    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn fix(&mut self) {
        self.fixed = self.slots.len();
    }

    pub(super) fn fixed(&self) -> u32 {
        self.fixed as u32
    }

    /// Frees what has no mark among up to `steps` places from `at` on; where to go on, if there is more.
    pub(super) fn sweep(&mut self, at: usize, steps: usize, mut freed: impl FnMut(T)) -> Option<usize> {
        let to = (at + steps).min(self.slots.len());
        for place in at..to {
            match self.marks[place] {
                BLACK => self.marks[place] = WHITE,
                WHITE if place >= self.fixed => {
                    self.marks[place] = FREE;
                    self.free.push(place as u32);
                    freed(std::mem::take(&mut self.slots[place]));
                }
                _ => {}
            }
        }
        (to < self.slots.len()).then_some(to)
    }
}

/// A function of a script: what it does, and its upvalues.
#[derive(Debug, Default)]
pub(super) struct Closure {
    /// The loaded function, by its place among the machine's functions.
    pub(super) proto: u32,
    pub(super) upvalues: Box<[u32]>,
}

/// A variable that outlives its block, or may.
#[derive(Clone, Copy, Debug)]
pub(super) enum Upvalue {
    /// It is still in its coroutine's stack.
    Open(Co, u32),
    Closed(Value),
}

impl Default for Upvalue {
    fn default() -> Upvalue {
        Upvalue::Closed(Value::Nil)
    }
}

/// A library function with values of its own.
#[derive(Debug)]
pub(super) struct BoundFn {
    pub(super) native: u16,
    pub(super) values: [Value; 3],
}

impl Default for BoundFn {
    fn default() -> BoundFn {
        BoundFn { native: 0, values: [Value::Nil; 3] }
    }
}

/// A compiled function in a machine: its constants are values here.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) proto: Arc<Proto>,
    pub(super) consts: Box<[Value]>,
    /// The functions in it.
    pub(super) children: Box<[u32]>,
    /// Bytes that were charged for it; 0 if the place is free.
    pub(super) charged: usize,
}

pub(super) const TABLE_BYTES: usize = size_of::<Table>() + 8;
pub(super) const CLOSURE_BYTES: usize = size_of::<Closure>() + 16;
pub(super) const UPVALUE_BYTES: usize = size_of::<Upvalue>() + 8;
pub(super) const BOUND_BYTES: usize = size_of::<BoundFn>() + 8;
pub(super) const THREAD_BYTES: usize = size_of::<Thread>() + 64;
pub(super) const LOADED_BYTES: usize = size_of::<Loaded>() + 32;

/// All of a machine's objects.
#[derive(Debug)]
pub(super) struct Heap {
    pub(super) meter: Meter,
    pub(super) strings: Strings,
    pub(super) tables: Arena<Table>,
    pub(super) closures: Arena<Closure>,
    pub(super) upvalues: Arena<Upvalue>,
    pub(super) bounds: Arena<BoundFn>,
    pub(super) threads: Arena<Thread>,
}

impl Heap {
    pub(super) fn new(max_bytes: usize) -> Heap {
        Heap {
            meter: Meter::new(max_bytes),
            strings: Strings::new(),
            tables: Arena::new(),
            closures: Arena::new(),
            upvalues: Arena::new(),
            bounds: Arena::new(),
            threads: Arena::new(),
        }
    }

    pub(super) fn string(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        Ok(Value::Str(self.strings.intern(bytes, &mut self.meter)?))
    }

    pub(super) fn owned(&mut self, bytes: Vec<u8>) -> Result<Value, Fault> {
        Ok(Value::Str(self.strings.intern_owned(bytes, &mut self.meter)?))
    }

    pub(super) fn bytes(&self, s: Str) -> &[u8] {
        self.strings.get(s)
    }

    #[inline(always)]
    pub(super) fn table(&self, tab: Tab) -> &Table {
        self.tables.get(tab.0)
    }

    #[inline(always)]
    pub(super) fn table_mut(&mut self, tab: Tab) -> &mut Table {
        self.tables.get_mut(tab.0)
    }

    pub(super) fn new_table(&mut self, array: usize, nodes: usize) -> Result<Tab, Fault> {
        self.meter.take(TABLE_BYTES)?;
        let table = Table::with_sizes(array, nodes, &mut self.meter)?;
        Ok(Tab(self.tables.add(table)))
    }

    /// Assigns without metamethods; whether the table may be written is the caller's to know.
    pub(super) fn raw_set(&mut self, tab: Tab, key: Value, value: Value) -> Result<(), Fault> {
        self.tables.get_mut(tab.0).set(key, value, &mut self.meter)
    }

    pub(super) fn raw_set_int(&mut self, tab: Tab, n: i64, value: Value) -> Result<(), Fault> {
        let table = self.tables.get_mut(tab.0);
        table.set_int(n, value, &mut self.meter)
    }

    /// Reads without metamethods.
    #[inline(always)]
    pub(super) fn get(&mut self, tab: Tab, key: Value) -> Value {
        self.tables.get(tab.0).get(key, &mut self.meter)
    }

    #[inline(always)]
    pub(super) fn get_str(&mut self, tab: Tab, key: Str) -> Value {
        self.tables.get(tab.0).get_str(key, &mut self.meter)
    }

    pub(super) fn get_int(&mut self, tab: Tab, n: i64) -> Value {
        self.tables.get(tab.0).get_int(n, &mut self.meter)
    }

    /// What `#` answers for a table.
    pub(super) fn border(&mut self, tab: Tab) -> usize {
        self.tables.get(tab.0).len(&mut self.meter)
    }

    pub(super) fn new_closure(&mut self, proto: u32, upvalues: Box<[u32]>) -> Result<Fun, Fault> {
        self.meter.take(CLOSURE_BYTES + upvalues.len() * 4)?;
        Ok(Fun(self.closures.add(Closure { proto, upvalues })))
    }

    pub(super) fn new_upvalue(&mut self, upvalue: Upvalue) -> Result<u32, Fault> {
        self.meter.take(UPVALUE_BYTES)?;
        Ok(self.upvalues.add(upvalue))
    }

    pub(super) fn new_bound(&mut self, native: u16, values: [Value; 3]) -> Result<Value, Fault> {
        self.meter.take(BOUND_BYTES)?;
        Ok(Value::Bound(Bound(self.bounds.add(BoundFn { native, values }))))
    }
}
