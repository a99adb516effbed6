//! Collection of garbage: mark and sweep, in slices.
//!
//! | phase | what a slice does | ends when |
//! |---|---|---|
//! | mark | takes objects from the list of those that are reached and marks what they refer to | the list is empty |
//! | sweep | frees what has no mark, kind by kind | all arenas are through |
//!
//! The script stands still from the first slice to the last, so no assignment has to be watched; but a slice costs the fuel
//! of the run it is made in, and the next run goes on with it. Weak tables keep what they refer to.

use super::heap::Upvalue;
use super::heap::{BOUND_BYTES, CLOSURE_BYTES, Heap, Loaded, TABLE_BYTES, THREAD_BYTES, UPVALUE_BYTES};
use super::thread::{FrameKind, Thread};
use super::value::{Tab, Value};
use super::vm::Vm;

/// The compiled functions of a machine, in an arena of their own.
#[derive(Debug, Default)]
pub(super) struct Protos {
    pub(super) slots: Vec<Loaded>,
    marks: Vec<bool>,
    free: Vec<u32>,
}

impl Protos {
    pub(super) fn add(&mut self, loaded: Loaded) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = loaded;
                at
            }
            None => {
                self.slots.push(loaded);
                self.marks.push(false);
                self.slots.len() as u32 - 1
            }
        }
    }
}

/// What is reached and not yet looked through.
#[derive(Clone, Copy, Debug)]
enum Gray {
    /// A table, from this entry on.
    Table(Tab, usize),
    Closure(u32),
    Bound(u32),
    Thread(u32),
    Proto(u32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Mark,
    /// Which kind, from which place on.
    Sweep(usize, usize),
    Done,
}

/// A collection that is under way.
#[derive(Debug)]
pub(super) struct Collection {
    gray: Vec<Gray>,
    /// Tables with entries whose value is nil: their keys may be gone.
    removed: Vec<Tab>,
    phase: Phase,
}

/// So many entries are looked through for one step of fuel.
const ENTRIES_A_STEP: usize = 4;
/// So many entries at most are looked through before the fuel is looked at.
const SLICE: usize = 4096;

impl Collection {
    /// Begins: what the machine itself refers to is reached.
    pub(super) fn start(vm: &mut Vm, protos: &mut Protos, roots: &[Value], loaded: &[u32]) -> Collection {
        let mut this = Collection { gray: Vec::new(), removed: Vec::new(), phase: Phase::Mark };
        for value in roots {
            this.reach(&mut vm.heap, *value);
        }
        this.reach(&mut vm.heap, Value::Table(vm.globals));
        this.reach(&mut vm.heap, Value::Table(vm.string_meta));
        this.reach(&mut vm.heap, Value::Thread(vm.current));
        this.reach(&mut vm.heap, Value::Thread(super::call::MAIN));
        for at in 0..vm.heap.tables.fixed() {
            this.reach(&mut vm.heap, Value::Table(Tab(at)));
        }
        this.thread(&mut vm.heap, &mut vm.th);
        for proto in loaded {
            this.proto(protos, *proto);
        }
        this
    }

    fn reach(&mut self, heap: &mut Heap, value: Value) {
        match value {
            Value::Str(s) => heap.strings.mark(s),
            Value::Table(tab) if heap.tables.mark(tab.0) => self.gray.push(Gray::Table(tab, 0)),
            Value::Function(fun) if heap.closures.mark(fun.0) => self.gray.push(Gray::Closure(fun.0)),
            Value::Bound(bound) if heap.bounds.mark(bound.0) => self.gray.push(Gray::Bound(bound.0)),
            Value::Thread(co) if heap.threads.mark(co.0) => self.gray.push(Gray::Thread(co.0)),
            _ => {}
        }
    }

    fn proto(&mut self, protos: &mut Protos, at: u32) {
        if !std::mem::replace(&mut protos.marks[at as usize], true) {
            self.gray.push(Gray::Proto(at));
        }
    }

    /// The stack of a coroutine up to what is in use; what lies above is forgotten.
    fn thread(&mut self, heap: &mut Heap, thread: &mut Thread) -> usize {
        let registers = thread.frames.last().map_or(0, |frame| frame.top as usize);
        let used = thread.top.max(registers).min(thread.stack.len());
        for at in 0..used {
            self.reach(heap, thread.stack[at]);
        }
        thread.stack[used..].fill(Value::Nil);
        for frame in thread.frames.iter().filter(|frame| frame.kind == FrameKind::Lua) {
            self.reach(heap, Value::Function(frame.fun));
        }
        for (_, upvalue) in &thread.open {
            heap.upvalues.mark(*upvalue);
        }
        for cont in &thread.conts {
            cont.values(|value| self.reach(heap, value));
        }
        if thread.parent.0 != 0 {
            self.reach(heap, Value::Thread(thread.parent));
        }
        thread.stack.len() / 4 + thread.frames.len()
    }

    /// Goes on while there is fuel; whether it is done.
    pub(super) fn run(&mut self, vm: &mut Vm, protos: &mut Protos) -> bool {
        while vm.heap.meter.left() > 0 {
            match self.phase {
                Phase::Mark => match self.gray.pop() {
                    Some(gray) => {
                        let entries = self.scan(vm, protos, gray);
                        vm.heap.meter.work(1 + entries / ENTRIES_A_STEP);
                    }
                    None => {
                        self.forget_keys(&mut vm.heap);
                        self.phase = Phase::Sweep(0, 0);
                    }
                },
                Phase::Sweep(kind, at) => {
                    vm.heap.meter.work(SLICE / ENTRIES_A_STEP / 4);
                    self.phase = match sweep(&mut vm.heap, protos, kind, at) {
                        Some(next) => Phase::Sweep(kind, next),
                        None if kind < 6 => Phase::Sweep(kind + 1, 0),
                        None => Phase::Done,
                    };
                }
                Phase::Done => return true,
            }
        }
        self.phase == Phase::Done
    }

    /// Marks what an object refers to; how many entries that were.
    fn scan(&mut self, vm: &mut Vm, protos: &mut Protos, gray: Gray) -> usize {
        match gray {
            Gray::Table(tab, from) => self.table(&mut vm.heap, tab, from),
            Gray::Closure(at) => {
                let closure = vm.heap.closures.get(at);
                let proto = closure.proto;
                let count = closure.upvalues.len();
                for n in 0..count {
                    let upvalue = vm.heap.closures.get(at).upvalues[n];
                    if vm.heap.upvalues.mark(upvalue) {
                        match *vm.heap.upvalues.get(upvalue) {
                            Upvalue::Closed(value) => self.reach(&mut vm.heap, value),
                            // The stack it is in may be that of a coroutine nobody else refers to.
                            Upvalue::Open(co, _) => self.reach(&mut vm.heap, Value::Thread(co)),
                        }
                    }
                }
                self.proto(protos, proto);
                count
            }
            Gray::Bound(at) => {
                for value in vm.heap.bounds.get(at).values {
                    self.reach(&mut vm.heap, value);
                }
                3
            }
            Gray::Thread(at) => {
                let mut thread = std::mem::take(vm.heap.threads.get_mut(at));
                let entries = self.thread(&mut vm.heap, &mut thread);
                *vm.heap.threads.get_mut(at) = thread;
                entries
            }
            Gray::Proto(at) => {
                let count = protos.slots[at as usize].consts.len();
                for n in 0..count {
                    self.reach(&mut vm.heap, protos.slots[at as usize].consts[n]);
                }
                for n in 0..protos.slots[at as usize].children.len() {
                    let child = protos.slots[at as usize].children[n];
                    self.proto(protos, child);
                }
                count
            }
        }
    }

    fn table(&mut self, heap: &mut Heap, tab: Tab, from: usize) -> usize {
        let table = heap.table(tab);
        let (array, total) = (table.array.len(), table.array.len() + table.nodes.len());
        let meta = table.meta();
        if from == 0
            && let Some(meta) = meta
        {
            self.reach(heap, Value::Table(meta));
        }
        let to = (from + SLICE).min(total);
        let mut removed = false;
        for at in from..to {
            if at < array {
                let value = heap.table(tab).array[at];
                self.reach(heap, value);
            } else {
                let node = heap.table(tab).nodes[at - array];
                if node.value.is_nil() {
                    removed |= !node.key.is_nil();
                } else {
                    self.reach(heap, node.key);
                    self.reach(heap, node.value);
                }
            }
        }
        if removed && self.removed.last() != Some(&tab) {
            self.removed.push(tab);
        }
        if to < total {
            self.gray.push(Gray::Table(tab, to));
        }
        to - from
    }

    /// Keys of removed entries whose objects go away: nothing may be taken for them later.
    fn forget_keys(&mut self, heap: &mut Heap) {
        for tab in std::mem::take(&mut self.removed) {
            for at in 0..heap.table(tab).nodes.len() {
                let node = heap.table(tab).nodes[at];
                let kept = match node.key {
                    Value::Str(s) => heap.strings.is_marked(s),
                    Value::Table(key) => heap.tables.is_marked(key.0),
                    Value::Function(fun) => heap.closures.is_marked(fun.0),
                    Value::Bound(bound) => heap.bounds.is_marked(bound.0),
                    Value::Thread(co) => heap.threads.is_marked(co.0),
                    _ => true,
                };
                if !kept {
                    heap.table_mut(tab).nodes[at].key = Value::Dead;
                }
            }
            heap.meter.work(heap.table(tab).nodes.len() / ENTRIES_A_STEP);
        }
    }
}

/// Frees what has no mark among some places of one kind; where to go on, if there are more.
fn sweep(heap: &mut Heap, protos: &mut Protos, kind: usize, at: usize) -> Option<usize> {
    let meter = &mut heap.meter;
    match kind {
        0 => heap.strings.sweep(at, SLICE, meter),
        1 => heap.tables.sweep(at, SLICE, |table| meter.give(TABLE_BYTES + table.bytes())),
        2 => heap.closures.sweep(at, SLICE, |closure| meter.give(CLOSURE_BYTES + closure.upvalues.len() * 4)),
        3 => heap.upvalues.sweep(at, SLICE, |_| meter.give(UPVALUE_BYTES)),
        4 => heap.bounds.sweep(at, SLICE, |_| meter.give(BOUND_BYTES)),
        5 => heap.threads.sweep(at, SLICE, |thread| meter.give(THREAD_BYTES + thread.bytes())),
        _ => sweep_protos(heap, protos, at),
    }
}

fn sweep_protos(heap: &mut Heap, protos: &mut Protos, at: usize) -> Option<usize> {
    let to = (at + SLICE).min(protos.slots.len());
    for place in at..to {
        let kept = std::mem::replace(&mut protos.marks[place], false);
        let slot = &mut protos.slots[place];
        if !kept && slot.charged > 0 {
            heap.meter.give(slot.charged);
            *slot = Loaded::default();
            protos.free.push(place as u32);
        }
    }
    (to < protos.slots.len()).then_some(to)
}
