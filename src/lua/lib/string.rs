//! `string`, but for patterns and `format`.

use super::super::fault::Fault;
use super::super::value::Value;
use super::super::vm::{Args, Flow, NativeFn, Vm};
use super::base::MAX_RESULTS;

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("string.byte", byte),
    ("string.char", char),
    ("string.dump", dump),
    ("string.len", len),
    ("string.lower", |vm, args| map(vm, args, <[u8]>::to_ascii_lowercase)),
    ("string.rep", rep),
    ("string.reverse", |vm, args| map(vm, args, |bytes| bytes.iter().rev().copied().collect())),
    ("string.sub", sub),
    ("string.upper", |vm, args| map(vm, args, <[u8]>::to_ascii_uppercase)),
];

fn len(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let s = vm.check_string(args, 0)?;
    Ok(Flow::One(Value::Number(vm.heap.bytes(s).len() as f64)))
}

/// A position counted from the end, if it is negative, as one from the beginning; 0 if it lies before that.
fn from_start(position: i64, len: usize) -> i64 {
    if position < 0 { position.saturating_add(len as i64 + 1).max(0) } else { position }
}

/// The bytes from `first` to `last`, as far as they exist.
fn range(first: i64, last: i64, len: usize) -> std::ops::Range<usize> {
    let (first, last) = (from_start(first, len).max(1) as usize, from_start(last, len).min(len as i64) as usize);
    if first > last { 0..0 } else { first - 1..last }
}

fn sub(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let s = vm.check_string(args, 0)?;
    let first = vm.check_int(args, 1)?;
    let last = vm.opt_int(args, 2, -1)?;
    let bytes = vm.heap.strings.get(s);
    let range = range(first, last, bytes.len());
    if range.len() == bytes.len() {
        return Ok(Flow::One(Value::Str(s)));
    }
    if range.len() > 4096 {
        vm.heap.meter.room(range.len())?;
    }
    let piece = bytes[range].to_vec();
    vm.owned(piece).map(Flow::One)
}

fn map(vm: &mut Vm, args: Args, f: fn(&[u8]) -> Vec<u8>) -> Result<Flow, Fault> {
    let s = vm.check_string(args, 0)?;
    vm.heap.meter.room(vm.heap.bytes(s).len())?;
    let bytes = f(vm.heap.bytes(s));
    vm.owned(bytes).map(Flow::One)
}

fn rep(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let s = vm.check_string(args, 0)?;
    let n = vm.check_i32(args, 1)?.max(0) as usize;
    let total = vm.heap.bytes(s).len().saturating_mul(n);
    vm.check_length(total)?;
    let bytes = if total == 0 { Vec::new() } else { vm.heap.bytes(s).repeat(n) };
    vm.owned(bytes).map(Flow::One)
}

fn byte(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let s = vm.check_string(args, 0)?;
    let first = vm.opt_int(args, 1, 1)?;
    let len = vm.heap.bytes(s).len();
    let first = from_start(first, len);
    let last = vm.opt_int(args, 2, first)?;
    let range = range(first, last, len);
    if range.len() + args.n > MAX_RESULTS {
        return Err(Fault::lib("stack overflow (string slice too long)"));
    }
    if range.len() == 1 {
        return Ok(Flow::One(Value::Number(f64::from(vm.heap.bytes(s)[range.start]))));
    }
    let n = range.len();
    for at in range {
        let byte = vm.heap.bytes(s)[at];
        vm.push(Value::Number(f64::from(byte)))?;
    }
    vm.heap.meter.work(n);
    Ok(Flow::Many(n))
}

fn char(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let mut bytes = Vec::with_capacity(args.n);
    for n in 0..args.n {
        let code = vm.check_i32(args, n)?;
        bytes.push(u8::try_from(code).map_err(|_| Fault::arg(n + 1, "invalid value"))?);
    }
    vm.heap.meter.work(args.n / 4);
    vm.owned(bytes).map(Flow::One)
}

/// There is no bytecode to be had.
fn dump(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    vm.check_function(args, 0)?;
    Err(Fault::lib("unable to dump given function"))
}
