//! The loop over instructions.
//!
//! A Lua function called by a Lua function is a frame, not a call in Rust; so are metamethods and whatever library
//! functions call (`call.rs`). Every instruction costs one step, charged at the head of the loop.

use super::call::{self, Next};
use super::code::{CONST_BIT, Ins, Op};
use super::compile::{FIELDS_PER_FLUSH, from_float_byte, modulo};
use super::fault::Fault;
use super::heap::{Loaded, Upvalue};
use super::meta;
use super::thread::{Frame, FrameKind, Return, WINDOW};
use super::value::Value;
use super::vm::{Event, Exit, Retried, Vm};

/// The registers of a function. Every base has `WINDOW` places after it, so operands need no check.
#[inline(always)]
pub(super) fn window(stack: &mut [Value], base: usize) -> &mut [Value; WINDOW] {
    match stack[base..].first_chunk_mut() {
        Some(window) => window,
        None => unreachable!("a frame's registers lie within the stack"),
    }
}

/// Runs until something other than an instruction has to be done.
pub(super) fn run(vm: &mut Vm, protos: &[Loaded]) -> Exit {
    loop {
        let next = match vm.th.frames.last() {
            Some(frame) if frame.kind == FrameKind::Lua => instructions(vm, protos),
            Some(_) if vm.heap.meter.fuel <= 0 => Next::Exit(fuel_exit(vm)),
            Some(_) => call::step(vm, protos),
            None => return Exit::Done,
        };
        match next {
            Next::Again | Next::Done => {}
            Next::Exit(exit) => return exit,
            Next::Fault(Fault::Memory) if try_again(vm) => return Exit::Collect,
            Next::Fault(fault) => {
                if let Err(exit) = call::unwind(vm, protos, fault) {
                    return exit;
                }
            }
        }
    }
}

/// Where the bytes are used up, garbage may be the reason: the instruction is run again after a collection, once. Until it
/// fails for want of bytes an instruction, or a library function called by it, changes nothing that is seen.
fn try_again(vm: &mut Vm) -> bool {
    let place = (vm.current, vm.th.frames.len());
    if vm.heap.meter.wants_more.get() {
        return false;
    }
    let Some(frame) = vm.th.frames.last_mut() else { return false };
    if frame.kind != FrameKind::Lua || frame.pc == 0 {
        return false;
    }
    let place = (place.0, place.1, frame.pc);
    // Next to nothing was allocated since the last try: there is no garbage to speak of.
    const LITTLE: usize = 4096;
    // A function that always fills all there is would be tried for ever.
    const MAX_TRIES: u8 = 4;
    let tries = vm.retried.map_or(0, |last| last.tries);
    if tries >= MAX_TRIES
        || vm.retried.is_some_and(|last| last.place == place && vm.heap.meter.bytes <= last.bytes + LITTLE)
    {
        return false;
    }
    frame.pc -= 1;
    vm.retried = Some(Retried { place, bytes: vm.heap.meter.bytes, tries: tries + 1 });
    true
}

fn fuel_exit(vm: &mut Vm) -> Exit {
    if vm.heap.meter.resume() { Exit::Collect } else { Exit::Fuel }
}

/// Arithmetic of two numbers.
#[inline(always)]
pub(super) fn arith(op: Op, a: f64, b: f64) -> f64 {
    match op {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::Mul => a * b,
        Op::Div => a / b,
        Op::Mod => modulo(a, b),
        _ => a.powf(b),
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each instruction, in one loop")]
fn instructions(vm: &mut Vm, protos: &[Loaded]) -> Next {
    'frame: loop {
        let Some(frame) = vm.th.frames.last() else { return Next::Again };
        if frame.kind != FrameKind::Lua {
            return Next::Again;
        }
        let base = frame.base as usize;
        let fun = frame.fun;
        let loaded = &protos[frame.proto as usize];
        let code = &loaded.proto.code[..];
        let k = &loaded.consts[..];
        let mut pc = frame.pc as usize;

        macro_rules! save {
            () => {
                if let Some(frame) = vm.th.frames.last_mut() {
                    frame.pc = pc as u32;
                }
            };
        }
        macro_rules! attempt {
            ($e:expr) => {
                match $e {
                    Ok(value) => value,
                    Err(fault) => {
                        save!();
                        return Next::Fault(call::locate(vm, protos, fault));
                    }
                }
            };
        }
        // Slow ways: the instruction is done, or a metamethod runs in a new frame.
        macro_rules! slow {
            ($e:expr) => {{
                save!();
                match $e {
                    Ok(Next::Done) => {}
                    Ok(Next::Again) => continue 'frame,
                    Ok(other) => return other,
                    Err(fault) => return Next::Fault(call::locate(vm, protos, fault)),
                }
            }};
        }
        macro_rules! regs {
            () => {
                window(&mut vm.th.stack, base)
            };
        }
        macro_rules! rk {
            ($w:expr, $x:expr) => {
                if $x & CONST_BIT as usize != 0 { k[$x & 255] } else { $w[$x & 255] }
            };
        }
        macro_rules! arithmetic {
            ($i:expr, $op:expr, $event:expr) => {{
                let w = regs!();
                let (b, c) = ($i.b(), $i.c());
                let (left, right) = (rk!(w, b), rk!(w, c));
                if let (Value::Number(x), Value::Number(y)) = (left, right) {
                    w[$i.a()] = Value::Number(arith($op, x, y));
                } else {
                    slow!(meta::arith(vm, protos, $i, $event, left, right));
                }
            }};
        }

        loop {
            if vm.heap.meter.fuel <= 0 {
                save!();
                return Next::Exit(fuel_exit(vm));
            }
            vm.heap.meter.fuel -= 1;
            let i = code[pc];
            pc += 1;
            match i.op() {
                Op::Move => {
                    let w = regs!();
                    w[i.a()] = w[i.b() & 255];
                }
                Op::LoadK => regs!()[i.a()] = k[i.bx()],
                Op::LoadBool => {
                    regs!()[i.a()] = Value::Bool(i.b() != 0);
                    pc += usize::from(i.c() != 0);
                }
                Op::LoadNil => regs!()[i.a()..=i.b() & 255].fill(Value::Nil),
                Op::GetUpval => {
                    let upvalue = vm.heap.closures.get(fun.0).upvalues[i.b()];
                    let value = match *vm.heap.upvalues.get(upvalue) {
                        Upvalue::Closed(value) => value,
                        Upvalue::Open(co, place) if co == vm.current => vm.th.stack[place as usize],
                        Upvalue::Open(co, place) => vm.heap.threads.get(co.0).stack[place as usize],
                    };
                    regs!()[i.a()] = value;
                }
                Op::SetUpval => {
                    let upvalue = vm.heap.closures.get(fun.0).upvalues[i.b()];
                    let value = regs!()[i.a()];
                    match vm.heap.upvalues.get_mut(upvalue) {
                        Upvalue::Closed(slot) => *slot = value,
                        Upvalue::Open(co, place) if *co == vm.current => vm.th.stack[*place as usize] = value,
                        Upvalue::Open(co, place) => vm.heap.threads.get_mut(co.0).stack[*place as usize] = value,
                    }
                }
                Op::GetGlobal => {
                    let Value::Str(name) = k[i.bx()] else { unreachable!("a global's name is a string") };
                    let value = vm.heap.get_str(vm.globals, name);
                    if value.is_nil() {
                        slow!(meta::get_global(vm, protos, i, name));
                    } else {
                        regs!()[i.a()] = value;
                    }
                }
                Op::GetTable => {
                    let w = regs!();
                    let (object, c) = (w[i.b() & 255], i.c());
                    let key = rk!(w, c);
                    if let Value::Table(tab) = object {
                        let value = vm.heap.get(tab, key);
                        if !value.is_nil() {
                            regs!()[i.a()] = value;
                            continue;
                        }
                    }
                    slow!(meta::get_table(vm, protos, i, object, key));
                }
                Op::SetGlobal => {
                    let (name, value) = (k[i.bx()], regs!()[i.a()]);
                    slow!(meta::set_table(vm, protos, Value::Table(vm.globals), name, value, None));
                }
                Op::SetTable => {
                    let (b, c) = (i.b(), i.c());
                    let w = regs!();
                    let (object, key, value) = (w[i.a()], rk!(w, b), rk!(w, c));
                    if let Value::Table(tab) = object {
                        let table = vm.heap.tables.get_mut(tab.0);
                        if !table.readonly
                            && let Some(slot) = table.slot(key, &mut vm.heap.meter)
                            && !slot.is_nil()
                        {
                            *slot = value;
                            // Only what is added or removed can change which metamethods a table lacks.
                            if value.is_nil() {
                                table.absent = 0;
                            }
                            continue;
                        }
                    }
                    slow!(meta::set_table(vm, protos, object, key, value, Some(i.a())));
                }
                Op::NewTable => {
                    let tab = attempt!(vm.heap.new_table(from_float_byte(i.b()), from_float_byte(i.c())));
                    regs!()[i.a()] = Value::Table(tab);
                }
                Op::Method => {
                    let w = regs!();
                    let (object, c) = (w[i.b() & 255], i.c());
                    let key = rk!(w, c);
                    w[(i.a() + 1) & 255] = object;
                    if let Value::Table(tab) = object {
                        let value = vm.heap.get(tab, key);
                        if !value.is_nil() {
                            regs!()[i.a()] = value;
                            continue;
                        }
                    }
                    slow!(meta::get_table(vm, protos, i, object, key));
                }
                Op::Add => arithmetic!(i, Op::Add, Event::Add),
                Op::Sub => arithmetic!(i, Op::Sub, Event::Sub),
                Op::Mul => arithmetic!(i, Op::Mul, Event::Mul),
                Op::Div => arithmetic!(i, Op::Div, Event::Div),
                Op::Mod => arithmetic!(i, Op::Mod, Event::Mod),
                Op::Pow => arithmetic!(i, Op::Pow, Event::Pow),
                Op::Unm => {
                    let w = regs!();
                    let value = w[i.b() & 255];
                    if let Value::Number(n) = value {
                        w[i.a()] = Value::Number(-n);
                    } else {
                        slow!(meta::arith(vm, protos, i, Event::Unm, value, value));
                    }
                }
                Op::Not => {
                    let w = regs!();
                    w[i.a()] = Value::Bool(!w[i.b() & 255].truthy());
                }
                Op::Len => {
                    let w = regs!();
                    let value = w[i.b() & 255];
                    match value {
                        Value::Table(tab) => {
                            let border = vm.heap.border(tab);
                            regs!()[i.a()] = Value::Number(border as f64);
                        }
                        Value::Str(s) => w[i.a()] = Value::Number(vm.heap.bytes(s).len() as f64),
                        _ => slow!(meta::len(vm, protos, i, value)),
                    }
                }
                Op::Concat => slow!(meta::concat(vm, protos, i, i.c())),
                Op::Jmp => pc = (pc as i32 + i.sbx()) as usize,
                Op::Eq => {
                    let (b, c) = (i.b(), i.c());
                    let w = regs!();
                    let (left, right) = (rk!(w, b), rk!(w, c));
                    let equal = left == right;
                    if !equal && matches!((left, right), (Value::Table(_), Value::Table(_))) {
                        slow!(meta::equal(vm, protos, i, left, right));
                        let Some(frame) = vm.th.frames.last() else { return Next::Again };
                        pc = frame.pc as usize;
                    } else if equal == (i.a() != 0) {
                        pc = (pc as i32 + 1 + code[pc].sbx()) as usize;
                    } else {
                        pc += 1;
                    }
                }
                Op::Lt | Op::Le => {
                    let (b, c) = (i.b(), i.c());
                    let w = regs!();
                    let (left, right) = (rk!(w, b), rk!(w, c));
                    if let (Value::Number(x), Value::Number(y)) = (left, right) {
                        let hit = if i.op() == Op::Lt { x < y } else { x <= y };
                        if hit == (i.a() != 0) {
                            pc = (pc as i32 + 1 + code[pc].sbx()) as usize;
                        } else {
                            pc += 1;
                        }
                    } else {
                        slow!(meta::compare(vm, protos, i, left, right));
                        let Some(frame) = vm.th.frames.last() else { return Next::Again };
                        pc = frame.pc as usize;
                    }
                }
                Op::Test => {
                    if regs!()[i.a()].truthy() == (i.c() != 0) {
                        pc = (pc as i32 + 1 + code[pc].sbx()) as usize;
                    } else {
                        pc += 1;
                    }
                }
                Op::TestSet => {
                    let w = regs!();
                    let value = w[i.b() & 255];
                    if value.truthy() == (i.c() != 0) {
                        w[i.a()] = value;
                        pc = (pc as i32 + 1 + code[pc].sbx()) as usize;
                    } else {
                        pc += 1;
                    }
                }
                Op::Call => {
                    save!();
                    let func = base + i.a();
                    let n = if i.b() != 0 { i.b() - 1 } else { vm.th.top - func - 1 };
                    let want = i.c() as i32 - 1;
                    match call::call(vm, protos, func, n, want, Return::Place) {
                        Next::Done => continue,
                        Next::Again => continue 'frame,
                        other => return other,
                    }
                }
                Op::TailCall => {
                    save!();
                    let func = base + i.a();
                    let n = if i.b() != 0 { i.b() - 1 } else { vm.th.top - func - 1 };
                    match call::tail_call(vm, protos, func, n) {
                        Next::Done | Next::Again => continue 'frame,
                        other => return other,
                    }
                }
                Op::Return => {
                    let from = base + i.a();
                    let n = if i.b() != 0 { i.b() - 1 } else { vm.th.top - from };
                    if !vm.th.open.is_empty() {
                        vm.close_upvalues(base);
                    }
                    let Some(frame) = vm.th.frames.pop() else { return Next::Again };
                    if frame.ret == Return::Place {
                        place(vm, frame.func as usize, frame.want, from, n);
                        continue 'frame;
                    }
                    match call::returned(vm, protos, &frame, from, n) {
                        Next::Done | Next::Again => continue 'frame,
                        other => return other,
                    }
                }
                Op::ForLoop => {
                    let w = regs!();
                    let a = i.a();
                    if let (Value::Number(index), Value::Number(limit), Value::Number(step)) =
                        (w[a], w[(a + 1) & 255], w[(a + 2) & 255])
                    {
                        let index = index + step;
                        if if step > 0.0 { index <= limit } else { limit <= index } {
                            pc = (pc as i32 + i.sbx()) as usize;
                            w[a] = Value::Number(index);
                            w[(a + 3) & 255] = Value::Number(index);
                        }
                    }
                }
                Op::ForPrep => {
                    attempt!(meta::for_prepare(vm, base + i.a()));
                    pc = (pc as i32 + i.sbx()) as usize;
                }
                Op::TForLoop => {
                    save!();
                    let a = base + i.a();
                    let want = i.c() as i32;
                    vm.th.stack.copy_within(a..a + 3, a + 3);
                    match call::call(vm, protos, a + 3, 2, want, Return::Loop) {
                        Next::Done | Next::Again => continue 'frame,
                        other => return other,
                    }
                }
                Op::SetList => {
                    let wide = i.c() == 0;
                    let batch = if wide { code[pc].0 as usize } else { i.c() };
                    let first = base + i.a();
                    let n = if i.b() != 0 { i.b() } else { vm.th.top - first - 1 };
                    attempt!(meta::set_list(vm, first, n, (batch - 1) * FIELDS_PER_FLUSH));
                    pc += usize::from(wide);
                }
                Op::Close => vm.close_upvalues(base + i.a()),
                Op::Closure => {
                    let child = loaded.children[i.bx()];
                    let count = protos[child as usize].proto.upvalues.len();
                    let sources = &code[pc..pc + count];
                    let closure = attempt!(closure(vm, child, fun.0, base, sources));
                    pc += count;
                    regs!()[i.a()] = closure;
                }
                Op::Vararg => {
                    let want = i.b() as i32 - 1;
                    attempt!(varargs(vm, loaded.proto.params as usize, base, base + i.a(), want));
                }
            }
        }
    }
}

/// Moves results to where they belong. All of them (`want` -1) end at the coroutine's top.
#[inline(always)]
pub(super) fn place(vm: &mut Vm, to: usize, want: i32, from: usize, n: usize) {
    if want == 1 {
        vm.th.stack[to] = if n > 0 { vm.th.stack[from] } else { Value::Nil };
        return;
    }
    let wanted = if want < 0 { n } else { want as usize };
    let copied = n.min(wanted);
    vm.heap.meter.work(copied / 8);
    vm.th.stack.copy_within(from..from + copied, to);
    vm.th.stack[to + copied..to + wanted].fill(Value::Nil);
    if want < 0 {
        vm.th.top = to + n;
    }
}

fn closure(vm: &mut Vm, proto: u32, outer: u32, base: usize, sources: &[Ins]) -> Result<Value, Fault> {
    let mut upvalues = Vec::with_capacity(sources.len());
    for source in sources {
        upvalues.push(match source.op() {
            Op::GetUpval => vm.heap.closures.get(outer).upvalues[source.b()],
            _ => find_upvalue(vm, (base + source.b()) as u32)?,
        });
    }
    Ok(Value::Function(vm.heap.new_closure(proto, upvalues.into_boxed_slice())?))
}

/// The upvalue of a place in the stack; functions that share a variable share it.
fn find_upvalue(vm: &mut Vm, place: u32) -> Result<u32, Fault> {
    let at = vm.th.open.partition_point(|(open, _)| *open < place);
    if let Some((found, upvalue)) = vm.th.open.get(at)
        && *found == place
    {
        return Ok(*upvalue);
    }
    let upvalue = vm.heap.new_upvalue(Upvalue::Open(vm.current, place))?;
    vm.th.open.insert(at, (place, upvalue));
    Ok(upvalue)
}

fn varargs(vm: &mut Vm, params: usize, base: usize, to: usize, want: i32) -> Result<(), Fault> {
    let func = vm.th.frames.last().map_or(0, |frame| frame.func as usize);
    // Extra arguments lie between the function and its registers, after the place of the fixed ones.
    let first = func + 1 + params;
    let n = base.saturating_sub(first);
    if want < 0 {
        vm.th.reserve(to + n, &mut vm.heap.meter)?;
    }
    place_varargs(vm, to, want, first, n);
    Ok(())
}

fn place_varargs(vm: &mut Vm, to: usize, want: i32, from: usize, n: usize) {
    let wanted = if want < 0 { n } else { want as usize };
    let copied = n.min(wanted);
    vm.heap.meter.work(copied / 8);
    vm.th.stack.copy_within(from..from + copied, to);
    vm.th.stack[to + copied..to + wanted].fill(Value::Nil);
    if want < 0 {
        vm.th.top = to + n;
    }
}

/// The frame of a Lua function whose arguments follow it in the stack.
#[inline(always)]
pub(super) fn enter(
    vm: &mut Vm,
    protos: &[Loaded],
    fun: super::value::Fun,
    func: usize,
    n: usize,
    want: i32,
    ret: Return,
) -> Result<(), Fault> {
    let index = vm.heap.closures.get(fun.0).proto;
    let proto = &protos[index as usize].proto;
    let params = proto.params as usize;
    let mut base = func + 1;
    vm.th.reserve(base + n + params + proto.max_stack as usize, &mut vm.heap.meter)?;
    vm.th.reserve_frame(&mut vm.heap.meter)?;
    if ret != Return::Place {
        vm.enter_level(ret)?;
    }
    if proto.is_vararg {
        base = match vararg_base(vm, proto, func, n) {
            Ok(base) => base,
            Err(fault) => {
                vm.th.levels -= u32::from(ret != Return::Place);
                return Err(fault);
            }
        };
    } else if n < params {
        vm.th.stack[base + n..base + params].fill(Value::Nil);
    }
    let frame = Frame {
        kind: FrameKind::Lua,
        ret,
        tails: 0,
        want,
        func: func as u32,
        base: base as u32,
        top: base as u32 + u32::from(proto.max_stack),
        pc: 0,
        fun,
        proto: index,
    };
    vm.th.frames.push(frame);
    Ok(())
}

/// Moves the fixed arguments behind the extra ones, and makes the table `arg` where the function may use it.
fn vararg_base(vm: &mut Vm, proto: &super::code::Proto, func: usize, n: usize) -> Result<usize, Fault> {
    let params = proto.params as usize;
    let first = func + 1;
    let extra = n.saturating_sub(params);
    let mut arg = Value::Nil;
    // First what may fail.
    if proto.needs_arg {
        let tab = vm.heap.new_table(extra, 1)?;
        for at in 0..extra {
            vm.heap.raw_set_int(tab, at as i64 + 1, vm.th.stack[first + params + at])?;
        }
        let count = Value::Str(vm.event(Event::N));
        vm.heap.raw_set(tab, count, Value::Number(extra as f64))?;
        arg = Value::Table(tab);
    }
    if n < params {
        vm.th.stack[first + n..first + params].fill(Value::Nil);
    }
    let base = first + params + extra;
    vm.heap.meter.work((params + extra) / 8);
    for at in 0..params {
        vm.th.stack[base + at] = std::mem::replace(&mut vm.th.stack[first + at], Value::Nil);
    }
    // A chunk has `...`, but no `arg`.
    if proto.line_defined > 0 {
        vm.th.stack[base + params] = arg;
    }
    Ok(base)
}
