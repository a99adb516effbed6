//! The slow ways of instructions: metamethods, coercions, errors with the names of variables.
//!
//! A metamethod that is a Lua function gets a frame whose results come back to [`finish`], which completes the instruction
//! that the calling frame stands at.

use super::call::{self, Next};
use super::code::{CONST_BIT, Ins, Op};
use super::exec;
use super::fault::Fault;
use super::heap::{Heap, Loaded};
use super::names;
use super::number;
use super::table::may_be_key;
use super::thread::Return;
use super::value::{Str, Tab, Value};
use super::vm::{Event, Exit, Vm};

/// So many tables and `__index` tables behind one another are looked through.
const MAX_CHAIN: usize = 100;
/// So many events have a bit in a metatable that lacks them.
const REMEMBERED: u8 = 8;

/// An entry of a metatable, by one of the machine's own strings. The first ones remember that they are not there.
fn event_of(heap: &mut Heap, meta: Tab, event: Event, name: Str) -> Value {
    let bit = event as u8;
    if bit < REMEMBERED && heap.table(meta).absent & 1 << bit != 0 {
        return Value::Nil;
    }
    let value = heap.get_str(meta, name);
    if bit < REMEMBERED && value.is_nil() {
        heap.table_mut(meta).absent |= 1 << bit;
    }
    value
}

/// A value's metamethod, or nil.
pub(super) fn metamethod_of(vm: &mut Vm, value: Value, event: Event) -> Value {
    let meta = match value {
        Value::Table(tab) => vm.heap.table(tab).meta(),
        Value::Str(_) => Some(vm.string_meta),
        _ => None,
    };
    match meta {
        Some(meta) => event_of(&mut vm.heap, meta, event, vm.events[event as usize]),
        None => Value::Nil,
    }
}

/// What indexing comes to.
pub(super) enum Found {
    Value(Value),
    /// This function is to be called with the object and the key.
    Call(Value, Value),
    /// This cannot be indexed: the object itself, if the flag is set, or an `__index` of it.
    Not(Value, bool),
}

/// `object[key]` with metamethods.
pub(super) fn index(vm: &mut Vm, object: Value, key: Value) -> Result<Found, Fault> {
    let mut object = object;
    for level in 0..MAX_CHAIN {
        let handler = if let Value::Table(tab) = object {
            let value = vm.heap.get(tab, key);
            if !value.is_nil() {
                return Ok(Found::Value(value));
            }
            let Some(meta) = vm.heap.table(tab).meta() else { return Ok(Found::Value(Value::Nil)) };
            let handler = event_of(&mut vm.heap, meta, Event::Index, vm.events[Event::Index as usize]);
            if handler.is_nil() {
                return Ok(Found::Value(Value::Nil));
            }
            handler
        } else {
            let handler = metamethod_of(vm, object, Event::Index);
            if handler.is_nil() {
                return Ok(Found::Not(object, level == 0));
            }
            handler
        };
        if handler.is_function() {
            return Ok(Found::Call(handler, object));
        }
        vm.heap.meter.work(1);
        object = handler;
    }
    Err(Fault::run("loop in gettable"))
}

/// Puts a function and its arguments behind the registers of the topmost frame and calls it.
fn call_meta(vm: &mut Vm, protos: &[Loaded], values: &[Value], want: i32, ret: Return) -> Result<Next, Fault> {
    let top = vm.th.frames.last().map_or(0, |frame| frame.top as usize);
    call_meta_at(vm, protos, top, values, want, ret)
}

fn call_meta_at(
    vm: &mut Vm,
    protos: &[Loaded],
    at: usize,
    values: &[Value],
    want: i32,
    ret: Return,
) -> Result<Next, Fault> {
    vm.th.reserve(at + values.len(), &mut vm.heap.meter)?;
    vm.th.stack[at..at + values.len()].copy_from_slice(values);
    Ok(match call::call(vm, protos, at, values.len() - 1, want, ret) {
        // A library function that has completed the instruction may have moved the frame on.
        Next::Done => Next::Again,
        next => next,
    })
}

/// Where a register of the current instruction is.
fn set_a(vm: &mut Vm, i: Ins, value: Value) {
    let base = vm.th.frames.last().map_or(0, |frame| frame.base as usize);
    vm.th.stack[base + i.a()] = value;
}

pub(super) fn get_table(vm: &mut Vm, protos: &[Loaded], i: Ins, object: Value, key: Value) -> Result<Next, Fault> {
    match index(vm, object, key)? {
        Found::Value(value) => {
            set_a(vm, i, value);
            Ok(Next::Done)
        }
        Found::Call(handler, object) => call_meta(vm, protos, &[handler, object, key], 1, Return::Meta),
        Found::Not(value, itself) => {
            let register = itself.then_some(i.b());
            Err(names::type_error(vm, protos, register, value, "index"))
        }
    }
}

pub(super) fn get_global(vm: &mut Vm, protos: &[Loaded], i: Ins, name: Str) -> Result<Next, Fault> {
    match index(vm, Value::Table(vm.globals), Value::Str(name))? {
        Found::Value(value) => {
            set_a(vm, i, value);
            Ok(Next::Done)
        }
        Found::Call(handler, object) => call_meta(vm, protos, &[handler, object, Value::Str(name)], 1, Return::Meta),
        Found::Not(value, _) => Err(names::type_error(vm, protos, None, value, "index")),
    }
}

pub(super) const READONLY: &str = "Attempt to modify a readonly table";

/// `object[key] = value` with metamethods.
pub(super) fn set_table(
    vm: &mut Vm,
    protos: &[Loaded],
    object: Value,
    key: Value,
    value: Value,
    register: Option<usize>,
) -> Result<Next, Fault> {
    let mut target = object;
    for level in 0..MAX_CHAIN {
        let handler = if let Value::Table(tab) = target {
            let table = vm.heap.tables.get_mut(tab.0);
            if table.readonly {
                return Err(Fault::run(READONLY));
            }
            let meta = table.meta();
            let present = meta.is_some() && !table.get(key, &mut vm.heap.meter).is_nil();
            let handler = match meta {
                Some(meta) if !present => {
                    event_of(&mut vm.heap, meta, Event::NewIndex, vm.events[Event::NewIndex as usize])
                }
                _ => Value::Nil,
            };
            if handler.is_nil() {
                vm.heap.raw_set(tab, key, value)?;
                return Ok(Next::Done);
            }
            // Before anybody is asked.
            may_be_key(key)?;
            handler
        } else {
            let handler = metamethod_of(vm, target, Event::NewIndex);
            if handler.is_nil() {
                let register = register.filter(|_| level == 0);
                return Err(names::type_error(vm, protos, register, target, "index"));
            }
            handler
        };
        if handler.is_function() {
            return call_meta(vm, protos, &[handler, target, key, value], 0, Return::Meta);
        }
        vm.heap.meter.work(1);
        target = handler;
    }
    Err(Fault::run("loop in settable"))
}

pub(super) fn arith(
    vm: &mut Vm,
    protos: &[Loaded],
    i: Ins,
    event: Event,
    left: Value,
    right: Value,
) -> Result<Next, Fault> {
    if let (Some(x), Some(y)) = (vm.number_of(left), vm.number_of(right)) {
        let n = if event == Event::Unm { -x } else { exec::arith(i.op(), x, y) };
        set_a(vm, i, Value::Number(n));
        return Ok(Next::Done);
    }
    let mut handler = metamethod_of(vm, left, event);
    if handler.is_nil() {
        handler = metamethod_of(vm, right, event);
    }
    if !handler.is_nil() {
        return call_meta(vm, protos, &[handler, left, right], 1, Return::Meta);
    }
    let (operand, value) = if vm.number_of(left).is_none() { (i.b(), left) } else { (i.c(), right) };
    let register = (operand < CONST_BIT as usize).then_some(operand);
    Err(names::type_error(vm, protos, register, value, "perform arithmetic on"))
}

pub(super) fn len(vm: &mut Vm, protos: &[Loaded], i: Ins, value: Value) -> Result<Next, Fault> {
    let handler = metamethod_of(vm, value, Event::Len);
    if handler.is_nil() {
        return Err(names::type_error(vm, protos, Some(i.b()), value, "get length of"));
    }
    call_meta(vm, protos, &[handler, value, Value::Nil], 1, Return::Meta)
}

/// The event's function if both values have the same one.
fn common_handler(vm: &mut Vm, left: Value, right: Value, event: Event) -> Value {
    let handler = metamethod_of(vm, left, event);
    if handler.is_nil() || metamethod_of(vm, right, event) != handler { Value::Nil } else { handler }
}

/// Two tables that are not the same.
pub(super) fn equal(vm: &mut Vm, protos: &[Loaded], i: Ins, left: Value, right: Value) -> Result<Next, Fault> {
    let handler = common_handler(vm, left, right, Event::Eq);
    if handler.is_nil() {
        branch(vm, protos, i, false);
        return Ok(Next::Done);
    }
    call_meta(vm, protos, &[handler, left, right], 1, Return::Meta)
}

pub(super) fn compare(vm: &mut Vm, protos: &[Loaded], i: Ins, left: Value, right: Value) -> Result<Next, Fault> {
    let order = match i.op() {
        Op::Lt => less(vm, left, right)?,
        _ => less_equal(vm, left, right)?,
    };
    match order {
        Order::Known(hit) => {
            branch(vm, protos, i, hit);
            Ok(Next::Done)
        }
        Order::Call(handler, false) => call_meta(vm, protos, &[handler, left, right], 1, Return::Meta),
        Order::Call(handler, true) => call_meta(vm, protos, &[handler, right, left], 1, Return::MetaNot),
    }
}

/// What a comparison comes to.
pub(super) enum Order {
    Known(bool),
    /// This function decides; if the flag is set, with the operands swapped and the answer negated.
    Call(Value, bool),
}

/// `left < right`
pub(super) fn less(vm: &mut Vm, left: Value, right: Value) -> Result<Order, Fault> {
    match (left, right) {
        (Value::Number(x), Value::Number(y)) => Ok(Order::Known(x < y)),
        (Value::Str(x), Value::Str(y)) => Ok(Order::Known(compare_strings(vm, x, y).is_lt())),
        _ if std::mem::discriminant(&left) != std::mem::discriminant(&right) && !both_functions(left, right) => {
            Err(order_error(left, right))
        }
        _ => match common_handler(vm, left, right, Event::Lt) {
            Value::Nil => Err(order_error(left, right)),
            handler => Ok(Order::Call(handler, false)),
        },
    }
}

fn less_equal(vm: &mut Vm, left: Value, right: Value) -> Result<Order, Fault> {
    match (left, right) {
        (Value::Number(x), Value::Number(y)) => Ok(Order::Known(x <= y)),
        (Value::Str(x), Value::Str(y)) => Ok(Order::Known(compare_strings(vm, x, y).is_le())),
        (Value::Table(_), Value::Table(_)) => {
            let handler = common_handler(vm, left, right, Event::Le);
            if !handler.is_nil() {
                return Ok(Order::Call(handler, false));
            }
            match common_handler(vm, right, left, Event::Lt) {
                Value::Nil => Err(order_error(left, right)),
                handler => Ok(Order::Call(handler, true)),
            }
        }
        _ => Err(order_error(left, right)),
    }
}

fn both_functions(left: Value, right: Value) -> bool {
    left.is_function() && right.is_function()
}

fn compare_strings(vm: &mut Vm, left: Str, right: Str) -> std::cmp::Ordering {
    let (a, b) = (vm.heap.strings.get(left), vm.heap.strings.get(right));
    vm.heap.meter.copy(a.len().min(b.len()));
    a.cmp(b)
}

fn order_error(left: Value, right: Value) -> Fault {
    let (a, b) = (left.type_name(), right.type_name());
    // Lua compares the third letters of the types' names.
    if a.as_bytes()[2] == b.as_bytes()[2] {
        Fault::run(format!("attempt to compare two {a} values"))
    } else {
        Fault::run(format!("attempt to compare {a} with {b}"))
    }
}

/// A comparison's outcome: the jump after it is taken if that is the wanted one.
fn branch(vm: &mut Vm, protos: &[Loaded], i: Ins, hit: bool) {
    let Some(frame) = vm.th.frames.last_mut() else { return };
    let mut pc = frame.pc as i32 + 1;
    if hit == (i.a() != 0) {
        pc += protos[frame.proto as usize].proto.code[frame.pc as usize].sbx();
    }
    frame.pc = pc as u32;
}

/// Concatenates registers B to `last`, from the right; the result is in register B, and in A.
pub(super) fn concat(vm: &mut Vm, protos: &[Loaded], i: Ins, last: usize) -> Result<Next, Fault> {
    let base = vm.th.frames.last().map_or(0, |frame| frame.base as usize);
    let first = i.b();
    let mut last = last;
    while last > first {
        let (left, right) = (vm.th.stack[base + last - 1], vm.th.stack[base + last]);
        let texts = |value: Value| matches!(value, Value::Str(_) | Value::Number(_));
        if !texts(left) || !texts(right) {
            let mut handler = metamethod_of(vm, left, Event::Concat);
            if handler.is_nil() {
                handler = metamethod_of(vm, right, Event::Concat);
            }
            if handler.is_nil() {
                let (register, value) = if texts(left) { (last, right) } else { (last - 1, left) };
                return Err(names::type_error(vm, protos, Some(register), value, "concatenate"));
            }
            // Where the function lies tells `finish` how far the instruction has come.
            let at = base + last + 1;
            return call_meta_at(vm, protos, at, &[handler, left, right], 1, Return::Meta);
        }
        let mut from = last - 1;
        while from > first && texts(vm.th.stack[base + from - 1]) {
            from -= 1;
        }
        let text = join(vm, base + from, base + last)?;
        vm.th.stack[base + from] = text;
        last = from;
    }
    let value = vm.th.stack[base + first];
    set_a(vm, i, value);
    Ok(Next::Done)
}

/// The texts of a range of places, in one string.
fn join(vm: &mut Vm, from: usize, to: usize) -> Result<Value, Fault> {
    let mut total = 0;
    for value in &vm.th.stack[from..=to] {
        total += if let Value::Str(s) = value { vm.heap.strings.get(*s).len() } else { 24 };
    }
    if total > vm.max_string {
        return Err(Fault::run("string length overflow"));
    }
    // Twice: the gathered bytes are the string, but an equal one may be there.
    vm.heap.meter.room(total)?;
    let mut bytes = Vec::with_capacity(total);
    for value in &vm.th.stack[from..=to] {
        match value {
            Value::Str(s) => bytes.extend_from_slice(vm.heap.strings.get(*s)),
            Value::Number(n) => number::print(*n, &mut bytes),
            _ => {}
        }
    }
    vm.heap.owned(bytes)
}

/// A metamethod has returned: the instruction that needed it is completed.
pub(super) fn finish(vm: &mut Vm, protos: &[Loaded], func: usize, value: Value, negate: bool) -> Next {
    let Some(frame) = vm.th.frames.last().copied() else { return Next::Again };
    let i = protos[frame.proto as usize].proto.code[frame.pc as usize - 1];
    match i.op() {
        Op::Eq | Op::Lt | Op::Le => branch(vm, protos, i, value.truthy() != negate),
        Op::SetTable | Op::SetGlobal => {}
        Op::Concat => {
            let last = func - 1 - frame.base as usize;
            vm.th.stack[frame.base as usize + last - 1] = value;
            return match concat(vm, protos, i, last - 1) {
                Ok(next) => next,
                // Some operands are joined already: this cannot be tried again.
                Err(Fault::Memory) => Next::Exit(Exit::Failed(Fault::Memory)),
                Err(fault) => Next::Fault(call::locate(vm, protos, fault)),
            };
        }
        _ => set_a(vm, i, value),
    }
    Next::Done
}

/// The iterator of a `for … in` has returned its values, the first of which is at `first`.
pub(super) fn finish_loop(vm: &mut Vm, protos: &[Loaded], first: usize) -> Next {
    let value = vm.th.stack[first];
    let Some(frame) = vm.th.frames.last_mut() else { return Next::Again };
    if value.is_nil() {
        frame.pc += 1;
    } else {
        vm.th.stack[first - 1] = value;
        let jump = protos[frame.proto as usize].proto.code[frame.pc as usize].sbx();
        frame.pc = (frame.pc as i32 + 1 + jump) as u32;
    }
    Next::Done
}

/// Checks the three numbers of a loop at `at`, and takes one step back.
pub(super) fn for_prepare(vm: &mut Vm, at: usize) -> Result<(), Fault> {
    let mut numbers = [0.0; 3];
    for (n, what) in ["initial value", "limit", "step"].into_iter().enumerate() {
        let number = vm.number_of(vm.th.stack[at + n]);
        numbers[n] = number.ok_or_else(|| Fault::run(format!("'for' {what} must be a number")))?;
        vm.th.stack[at + n] = Value::Number(numbers[n]);
    }
    vm.th.stack[at] = Value::Number(numbers[0] - numbers[2]);
    Ok(())
}

/// The values after a table in the stack become its elements, from `done + 1` on.
pub(super) fn set_list(vm: &mut Vm, at: usize, n: usize, done: usize) -> Result<(), Fault> {
    let Value::Table(tab) = vm.th.stack[at] else { return Ok(()) };
    let table = vm.heap.tables.get_mut(tab.0);
    table.grow_array(done + n, &mut vm.heap.meter)?;
    vm.heap.meter.work(n / 8);
    for offset in 0..n {
        table.set_int((done + offset + 1) as i64, vm.th.stack[at + 1 + offset], &mut vm.heap.meter)?;
    }
    Ok(())
}
