//! `coroutine`

use super::super::call::MAIN;
use super::super::cont::Cont;
use super::super::fault::{Fault, Meter};
use super::super::heap::THREAD_BYTES;
use super::super::thread::{Frame, FrameKind, MAX_C_LEVELS, Return, Status, Thread};
use super::super::value::{Co, Fun, Value};
use super::super::vm::{Args, Flow, NativeFn, Vm};

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("coroutine.create", create),
    ("coroutine.resume", resume),
    ("coroutine.running", running),
    ("coroutine.status", status),
    ("coroutine.wrap", wrap),
    ("(wrap)", wrapped),
    ("coroutine.yield", yield_values),
];

fn new_thread(vm: &mut Vm, args: Args) -> Result<Co, Fault> {
    let Value::Function(_) = vm.arg(args, 0) else {
        return Err(Fault::arg(1, "Lua function expected"));
    };
    vm.heap.meter.take(THREAD_BYTES)?;
    let mut thread = bottom(&mut vm.heap.meter)?;
    thread.stack[1] = vm.arg(args, 0);
    Ok(Co(vm.heap.threads.add(thread)))
}

/// A coroutine with nothing but its lowest frame; its function belongs at place 1.
pub(in super::super) fn bottom(meter: &mut Meter) -> Result<Thread, Fault> {
    let mut thread = Thread { top: 2, ..Default::default() };
    thread.reserve(2, meter)?;
    bottom_frame(&mut thread, meter)?;
    Ok(thread)
}

/// The lowest frame of a coroutine.
pub(in super::super) fn bottom_frame(thread: &mut Thread, meter: &mut Meter) -> Result<(), Fault> {
    let frame = Frame {
        kind: FrameKind::Native,
        ret: Return::Place,
        tails: 0,
        want: -1,
        func: 0,
        base: 1,
        top: 2,
        pc: 0,
        fun: Fun(0),
        proto: 0,
    };
    thread.reserve_frame(meter)?;
    thread.frames.push(frame);
    thread.conts.push(Cont::Base);
    Ok(())
}

fn create(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    Ok(Flow::One(Value::Thread(new_thread(vm, args)?)))
}

fn wrap(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let co = new_thread(vm, args)?;
    let values = [Value::Thread(co), Value::Nil, Value::Nil];
    vm.heap.new_bound(super::PLACES.wrap, values).map(Flow::One)
}

fn status_of(vm: &Vm, co: Co) -> Status {
    if co == vm.current { Status::Running } else { vm.heap.threads.get(co.0).status }
}

fn name_of(status: Status) -> &'static str {
    match status {
        Status::Suspended => "suspended",
        Status::Running => "running",
        Status::Normal => "normal",
        Status::Dead => "dead",
    }
}

/// Why a coroutine cannot go on, if it cannot.
fn obstacle(vm: &Vm, co: Co) -> Option<String> {
    match status_of(vm, co) {
        Status::Suspended if vm.th.levels >= MAX_C_LEVELS => Some("C stack overflow".into()),
        Status::Suspended => None,
        status => Some(format!("cannot resume {} coroutine", name_of(status))),
    }
}

fn check_thread(vm: &Vm, args: Args) -> Result<Co, Fault> {
    match vm.arg(args, 0) {
        Value::Thread(co) => Ok(co),
        _ => Err(Fault::arg(1, "coroutine expected")),
    }
}

fn resume(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let co = check_thread(vm, args)?;
    if let Some(text) = obstacle(vm, co) {
        let text = vm.heap.string(text.as_bytes())?;
        vm.push_all(&[Value::Bool(false), text])?;
        return Ok(Flow::Many(2));
    }
    Ok(Flow::Resume(co, args.n - 1, Cont::Resume(co, false)))
}

fn wrapped(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let Value::Bound(bound) = vm.th.stack[args.base - 1] else { return Ok(Flow::Nothing) };
    let Value::Thread(co) = vm.heap.bounds.get(bound.0).values[0] else { return Ok(Flow::Nothing) };
    match obstacle(vm, co) {
        Some(text) => Err(Fault::lib(text)),
        None => Ok(Flow::Resume(co, args.n, Cont::Resume(co, true))),
    }
}

fn yield_values(_: &mut Vm, args: Args) -> Result<Flow, Fault> {
    Ok(Flow::Yield(args.n))
}

fn running(vm: &mut Vm, _: Args) -> Result<Flow, Fault> {
    Ok(Flow::One(if vm.current == MAIN { Value::Nil } else { Value::Thread(vm.current) }))
}

fn status(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let co = check_thread(vm, args)?;
    let name = name_of(status_of(vm, co));
    vm.heap.string(name.as_bytes()).map(Flow::One)
}
