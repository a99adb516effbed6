//! Calls, returns, coroutine switches and errors: everything that changes frames.
//!
//! A library function that calls another leaves a frame and a [`Cont`]; what it called is run by the loop of `exec.rs`, and
//! [`step`] hands the results on. So nothing here calls itself, however deep a script nests.

use super::code::Op;
use super::cont::{self, Cont};
use super::exec::{enter, place};
use super::fault::Fault;
use super::heap::Loaded;
use super::lib::NATIVES;
use super::meta;
use super::names;
use super::thread::{Frame, FrameKind, Return, Status};
use super::value::{Co, Fun, Value};
use super::vm::{Args, Event, Exit, Flow, Input, NativeFn, Vm};

/// What the loop over instructions does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Goes on with the next instruction of the same frame.
    Done,
    /// Goes on with the topmost frame.
    Again,
    Exit(Exit),
    /// Looks for someone who catches it.
    Fault(Fault),
}

/// Calls the value at `func` with the `n` values after it.
#[inline(always)]
pub(super) fn call(vm: &mut Vm, protos: &[Loaded], func: usize, n: usize, want: i32, ret: Return) -> Next {
    match vm.th.stack[func] {
        Value::Function(fun) => match enter(vm, protos, fun, func, n, want, ret) {
            Ok(()) => Next::Again,
            Err(fault) => Next::Fault(locate(vm, protos, fault)),
        },
        Value::Native(id) => native(vm, protos, NATIVES[id as usize].1, Args { base: func + 1, n }, (ret, want)),
        _ => call_other(vm, protos, func, n, want, ret),
    }
}

fn call_other(vm: &mut Vm, protos: &[Loaded], func: usize, n: usize, want: i32, ret: Return) -> Next {
    let args = Args { base: func + 1, n };
    match vm.th.stack[func] {
        Value::Bound(bound) => {
            let id = vm.heap.bounds.get(bound.0).native;
            native(vm, protos, NATIVES[id as usize].1, args, (ret, want))
        }
        Value::Host(id) => match push_native(vm, args, (ret, want), Cont::Host) {
            Ok(()) => {
                vm.results = (args.base, n);
                // The answer comes after the arguments.
                vm.th.top = args.base + n;
                Next::Exit(Exit::Host(id))
            }
            Err(fault) => Next::Fault(locate(vm, protos, fault)),
        },
        value => {
            let handler = meta::metamethod_of(vm, value, Event::Call);
            if !handler.is_function() {
                let fault = names::type_error_at(vm, protos, func, value, "call");
                return Next::Fault(locate(vm, protos, fault));
            }
            if let Err(fault) = vm.th.reserve(func + n + 2, &mut vm.heap.meter) {
                return Next::Fault(fault);
            }
            vm.th.stack.copy_within(func..func + 1 + n, func + 1);
            vm.th.stack[func] = handler;
            again(vm, protos, func, n + 1, want, ret)
        }
    }
}

/// A handler that is a function: what `call` does, without its inlining.
fn again(vm: &mut Vm, protos: &[Loaded], func: usize, n: usize, want: i32, ret: Return) -> Next {
    call(vm, protos, func, n, want, ret)
}

#[inline(always)]
fn native(vm: &mut Vm, protos: &[Loaded], function: NativeFn, args: Args, to: (Return, i32)) -> Next {
    if let Err(fault) = vm.th.reserve(args.base + args.n, &mut vm.heap.meter) {
        return Next::Fault(fault);
    }
    vm.th.top = args.base + args.n;
    match function(vm, args) {
        Ok(Flow::One(value)) if to == (Return::Place, 1) => {
            vm.th.stack[args.base - 1] = value;
            Next::Done
        }
        Ok(flow) => settle(vm, protos, flow, args, to),
        Err(fault) => native_failed(vm, protos, fault, args),
    }
}

fn native_failed(vm: &mut Vm, protos: &[Loaded], fault: Fault, args: Args) -> Next {
    // If the call is tried again, it finds its arguments where they were.
    vm.th.top = args.base + args.n;
    Next::Fault(native_fault(vm, protos, fault))
}

fn push_native(vm: &mut Vm, args: Args, to: (Return, i32), cont: Cont) -> Result<(), Fault> {
    vm.th.reserve_frame(&mut vm.heap.meter)?;
    vm.enter_level(to.0)?;
    let frame = Frame {
        kind: FrameKind::Native,
        ret: to.0,
        tails: 0,
        want: to.1,
        func: args.base as u32 - 1,
        base: args.base as u32,
        top: (args.base + args.n) as u32,
        pc: 0,
        fun: Fun(0),
        proto: 0,
    };
    vm.th.frames.push(frame);
    vm.th.conts.push(cont);
    Ok(())
}

/// Does what a library function answered.
fn settle(vm: &mut Vm, protos: &[Loaded], flow: Flow, args: Args, to: (Return, i32)) -> Next {
    let func = args.base - 1;
    let (cont, input) = match flow {
        Flow::Nothing => return finish(vm, protos, to, func, func, 0),
        Flow::One(value) => {
            vm.th.stack[func] = value;
            return finish(vm, protos, to, func, func, 1);
        }
        Flow::Many(n) => return finish(vm, protos, to, func, vm.th.top - n, n),
        Flow::Call(cont, place, n) => (cont, Input::Call(place, n)),
        Flow::Step(cont) => (cont, Input::Step),
        Flow::Resume(co, n, cont) => {
            if let Err(fault) = push_native(vm, args, to, cont) {
                return Next::Fault(native_fault(vm, protos, fault));
            }
            return resume(vm, co, n);
        }
        Flow::Yield(n) => {
            if vm.current == MAIN || vm.th.levels > vm.th.base_levels || to.0 != Return::Place {
                let fault = Fault::run("attempt to yield across metamethod/C-call boundary");
                return Next::Fault(native_fault(vm, protos, fault));
            }
            if let Err(fault) = push_native(vm, args, to, Cont::Yielded) {
                return Next::Fault(native_fault(vm, protos, fault));
            }
            let from = vm.th.top - n;
            vm.th.status = Status::Suspended;
            return match back_to_parent(vm, from, n) {
                Ok(()) => Next::Again,
                Err(fault) => Next::Fault(fault),
            };
        }
        Flow::Load(chunk) => {
            return match push_native(vm, args, to, Cont::Loaded) {
                Ok(()) => Next::Exit(Exit::Load(chunk)),
                Err(fault) => Next::Fault(native_fault(vm, protos, fault)),
            };
        }
    };
    if let Err(fault) = push_native(vm, args, to, cont) {
        return Next::Fault(native_fault(vm, protos, fault));
    }
    vm.input = input;
    Next::Again
}

/// Hands results to whoever waits for them; no frame has to be taken away.
fn finish(vm: &mut Vm, protos: &[Loaded], to: (Return, i32), func: usize, from: usize, n: usize) -> Next {
    match to.0 {
        Return::Place => {
            place(vm, func, to.1, from, n);
            Next::Done
        }
        Return::Native => {
            place(vm, func, -1, from, n);
            vm.results = (func, n);
            vm.input = Input::Results;
            Next::Again
        }
        Return::Loop => {
            place(vm, func, to.1, from, n);
            meta::finish_loop(vm, protos, func)
        }
        Return::Meta | Return::MetaNot => {
            let value = if n > 0 { vm.th.stack[from] } else { Value::Nil };
            meta::finish(vm, protos, func, value, to.0 == Return::MetaNot)
        }
    }
}

/// A function whose frame is gone has returned.
pub(super) fn returned(vm: &mut Vm, protos: &[Loaded], frame: &Frame, from: usize, n: usize) -> Next {
    if frame.ret != Return::Place {
        vm.th.levels -= 1;
    }
    finish(vm, protos, (frame.ret, frame.want), frame.func as usize, from, n)
}

/// Calls in place of the running function, if it is a Lua function that is called.
pub(super) fn tail_call(vm: &mut Vm, protos: &[Loaded], func: usize, n: usize) -> Next {
    let mut n = n;
    if !vm.th.stack[func].is_function() {
        let handler = meta::metamethod_of(vm, vm.th.stack[func], Event::Call);
        if handler.is_function() {
            if let Err(fault) = vm.th.reserve(func + n + 2, &mut vm.heap.meter) {
                return Next::Fault(fault);
            }
            vm.th.stack.copy_within(func..func + 1 + n, func + 1);
            vm.th.stack[func] = handler;
            n += 1;
        }
    }
    let Value::Function(fun) = vm.th.stack[func] else {
        return call(vm, protos, func, n, -1, Return::Place);
    };
    let Some(frame) = vm.th.frames.last().copied() else { return Next::Again };
    if !vm.th.open.is_empty() {
        vm.close_upvalues(frame.base as usize);
    }
    let to = frame.func as usize;
    vm.heap.meter.work(n / 8);
    vm.th.stack.copy_within(func..func + 1 + n, to);
    vm.th.frames.pop();
    // The level of the frame is taken over as it is.
    if let Err(fault) = enter(vm, protos, fun, to, n, frame.want, Return::Place) {
        if matches!(fault, Fault::Memory) {
            // The arguments have moved: this cannot be tried again.
            return Next::Exit(Exit::Failed(fault));
        }
        vm.th.frames.push(frame);
        return Next::Fault(locate(vm, protos, fault));
    }
    if let Some(new) = vm.th.frames.last_mut() {
        new.ret = frame.ret;
        new.tails = frame.tails + 1;
    }
    Next::Again
}

/// The library function on top of the frames goes on.
pub(super) fn step(vm: &mut Vm, protos: &[Loaded]) -> Next {
    let input = std::mem::replace(&mut vm.input, Input::Results);
    // One that was interrupted has to come further even with a single step, which it charges itself.
    vm.heap.meter.work(usize::from(input != Input::Step));
    if let Input::Call(func, n) = input {
        if let Err(fault) = vm.th.reserve(func + n + 1, &mut vm.heap.meter) {
            return Next::Fault(fault);
        }
        return call(vm, protos, func, n, -1, Return::Native);
    }
    let (Some(frame), Some(cont)) = (vm.th.frames.pop(), vm.th.conts.pop()) else { return Next::Again };
    if matches!(cont, Cont::Base) {
        return end_of_thread(vm);
    }
    if frame.ret != Return::Place {
        vm.th.levels -= 1;
    }
    let args = Args { base: frame.base as usize, n: (frame.top - frame.base) as usize };
    let loads = matches!(cont, Cont::Load(_));
    let flow = cont::step(vm, cont, args, input).or_else(|fault| match native_fault(vm, protos, fault) {
        // `load` answers with what it fails with.
        Fault::Value(value) if loads => cont::load_failed(vm, value),
        fault => Err(fault),
    });
    match flow {
        Ok(flow) => settle(vm, protos, flow, args, (frame.ret, frame.want)),
        Err(fault) => native_failed(vm, protos, fault, args),
    }
}

// Coroutines.

/// The coroutine that scripts begin in.
pub(super) const MAIN: Co = Co(0);

/// Goes on with another coroutine, to which the `n` values below the top are given.
fn resume(vm: &mut Vm, co: Co, n: usize) -> Next {
    let from = vm.th.top - n;
    let levels = vm.th.levels;
    let target = vm.heap.threads.get_mut(co.0);
    let to = target.top;
    if let Err(fault) = target.reserve(to + n, &mut vm.heap.meter) {
        return Next::Fault(fault);
    }
    target.stack[to..to + n].copy_from_slice(&vm.th.stack[from..from + n]);
    target.top = to + n;
    target.parent = vm.current;
    let fresh = matches!(target.conts.last(), Some(Cont::Base));
    // Its first function counts as a level, as soon as it is called.
    target.levels = if fresh { levels } else { levels + 1 };
    target.base_levels = levels + 1;
    target.status = Status::Running;
    vm.th.status = Status::Normal;
    switch(vm, co);
    if fresh {
        vm.input = Input::Call(1, n);
    } else {
        vm.input = Input::Results;
        vm.results = (to, n);
    }
    Next::Again
}

fn switch(vm: &mut Vm, to: Co) {
    let target = std::mem::take(vm.heap.threads.get_mut(to.0));
    *vm.heap.threads.get_mut(vm.current.0) = std::mem::replace(&mut vm.th, target);
    vm.current = to;
}

/// Goes on with the coroutine that resumed this one, giving it values.
fn back_to_parent(vm: &mut Vm, from: usize, n: usize) -> Result<(), Fault> {
    let parent = vm.th.parent;
    let target = vm.heap.threads.get_mut(parent.0);
    let to = target.top;
    target.reserve(to + n, &mut vm.heap.meter)?;
    target.stack[to..to + n].copy_from_slice(&vm.th.stack[from..from + n]);
    target.top = to + n;
    target.status = Status::Running;
    // What follows the values of a coroutine that rests is given to it when it goes on.
    vm.th.top = from;
    switch(vm, parent);
    vm.input = Input::Results;
    vm.results = (to, n);
    Ok(())
}

/// The first function of a coroutine has returned.
fn end_of_thread(vm: &mut Vm) -> Next {
    if vm.current == MAIN {
        return Next::Exit(Exit::Done);
    }
    let (from, n) = vm.results;
    let dead = vm.current;
    vm.th.status = Status::Dead;
    if let Err(fault) = back_to_parent(vm, from, n) {
        return Next::Fault(fault);
    }
    bury(vm, dead);
    Next::Again
}

/// A dead coroutine keeps nothing.
fn bury(vm: &mut Vm, co: Co) {
    let thread = vm.heap.threads.get_mut(co.0);
    let bytes = thread.bytes();
    *thread = super::thread::Thread { status: Status::Dead, ..Default::default() };
    vm.heap.meter.give(bytes);
}

// Errors.

/// Looks for the library function that catches an error. `Err` if nobody does.
pub(super) fn unwind(vm: &mut Vm, protos: &[Loaded], fault: Fault) -> Result<(), Exit> {
    // Raising and catching takes some instructions' time.
    vm.heap.meter.work(10);
    let fault = locate(vm, protos, fault);
    let Fault::Value(value) = fault else { return Err(Exit::Failed(fault)) };
    let origin = vm.th.frames.last().filter(|f| f.kind == FrameKind::Lua).map(|f| (f.proto, f.pc));
    while let Some(frame) = vm.th.frames.pop() {
        if frame.ret != Return::Place {
            vm.th.levels -= 1;
        }
        if frame.kind == FrameKind::Lua {
            continue;
        }
        let Some(cont) = vm.th.conts.pop() else { continue };
        let base = frame.base as usize;
        let args = Args { base, n: 0 };
        let flow = match cont {
            Cont::Pcall => {
                vm.close_upvalues(base);
                vm.th.top = base;
                cont::caught(vm, value)
            }
            Cont::Xpcall(handler) => {
                vm.close_upvalues(base);
                vm.th.top = base;
                cont::handle(vm, handler, value)
            }
            Cont::Load(_) => {
                vm.close_upvalues(base);
                vm.th.top = base;
                cont::load_failed(vm, value)
            }
            Cont::Handler => {
                vm.th.top = base;
                cont::handler_failed(vm)
            }
            Cont::Base if vm.current == MAIN => {
                vm.origin = origin;
                return Err(Exit::Failed(Fault::Value(value)));
            }
            Cont::Base => return thread_failed(vm, value).map_err(Exit::Failed),
            other => {
                vm.heap.meter.give(other.bytes());
                continue;
            }
        };
        let next = match flow {
            Ok(flow) => settle(vm, protos, flow, args, (frame.ret, frame.want)),
            Err(fault) => Next::Fault(fault),
        };
        return match next {
            Next::Done | Next::Again => Ok(()),
            Next::Exit(exit) => Err(exit),
            // Only what cannot be caught, or a level too much, fails here: it goes on outwards.
            Next::Fault(fault) => Err(Exit::Failed(fault)),
        };
    }
    Err(Exit::Failed(Fault::Value(value)))
}

fn thread_failed(vm: &mut Vm, value: Value) -> Result<(), Fault> {
    vm.close_upvalues(0);
    let dead = vm.current;
    vm.th.status = Status::Dead;
    vm.th.stack[0] = value;
    back_to_parent(vm, 0, 1)?;
    bury(vm, dead);
    vm.input = Input::Failed;
    Ok(())
}

/// Makes a fault of a Lua function's instruction the value that is raised, with the position before it.
pub(super) fn locate(vm: &mut Vm, protos: &[Loaded], fault: Fault) -> Fault {
    match fault {
        Fault::Run(text) => raise_text(vm, names::position(vm, protos, 1), &text),
        fault => native_fault(vm, protos, fault),
    }
}

/// The same for a library function, whose caller is the topmost frame.
fn native_fault(vm: &mut Vm, protos: &[Loaded], fault: Fault) -> Fault {
    match fault {
        Fault::Value(_) | Fault::Memory => fault,
        Fault::Run(text) => raise_text(vm, Vec::new(), &text),
        Fault::Lib(text) => raise_text(vm, names::position(vm, protos, 1), &text),
        Fault::At(level, Value::Number(n)) if level > 0 => {
            let mut text = Vec::new();
            super::number::print(n, &mut text);
            raise_text(vm, names::position(vm, protos, level), &text)
        }
        Fault::At(level, value) => match value {
            Value::Str(s) if level > 0 => {
                let text = vm.heap.bytes(s).to_vec();
                raise_text(vm, names::position(vm, protos, level), &text)
            }
            value => Fault::Value(value),
        },
        Fault::Arg(n, text) => {
            let text = names::bad_argument(vm, protos, n, &text);
            raise_text(vm, names::position(vm, protos, 1), &text)
        }
    }
}

fn raise_text(vm: &mut Vm, mut position: Vec<u8>, text: &[u8]) -> Fault {
    position.extend_from_slice(text);
    match vm.owned(position) {
        Ok(value) => Fault::Value(value),
        Err(_) => Fault::Memory,
    }
}

/// Whether the running frame's instruction is one of these, for the names of functions.
pub(super) fn is_call(op: Op) -> bool {
    matches!(op, Op::Call | Op::TailCall | Op::TForLoop)
}
