//! `bit`: operations on 32 bits, results signed.

use super::super::fault::Fault;
use super::super::value::Value;
use super::super::vm::{Args, Flow, NativeFn, Vm};

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("bit.tobit", |vm, args| done(bits(vm, args, 0)?)),
    ("bit.bnot", |vm, args| done(!bits(vm, args, 0)?)),
    ("bit.band", |vm, args| fold(vm, args, |a, b| a & b)),
    ("bit.bor", |vm, args| fold(vm, args, |a, b| a | b)),
    ("bit.bxor", |vm, args| fold(vm, args, |a, b| a ^ b)),
    ("bit.lshift", |vm, args| shift(vm, args, |a, n| a << n)),
    ("bit.rshift", |vm, args| shift(vm, args, |a, n| a >> n)),
    ("bit.arshift", |vm, args| shift(vm, args, |a, n| (a as i32 >> n) as u32)),
    ("bit.rol", |vm, args| shift(vm, args, u32::rotate_left)),
    ("bit.ror", |vm, args| shift(vm, args, u32::rotate_right)),
    ("bit.bswap", |vm, args| done(bits(vm, args, 0)?.swap_bytes())),
    ("bit.tohex", tohex),
];

fn done(bits: u32) -> Result<Flow, Fault> {
    Ok(Flow::One(Value::Number(f64::from(bits as i32))))
}

/// The low 32 bits of a number rounded to an integer: those of the double after a number was added that shifts them there.
fn bits(vm: &mut Vm, args: Args, n: usize) -> Result<u32, Fault> {
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    Ok((vm.check_number(args, n)? + SHIFT).to_bits() as u32)
}

fn fold(vm: &mut Vm, args: Args, f: fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let mut value = bits(vm, args, 0)?;
    // As Redis, from the last: it shows in the error where several are no numbers.
    for n in (1..args.n).rev() {
        value = f(value, bits(vm, args, n)?);
    }
    vm.heap.meter.work(args.n / 8);
    done(value)
}

fn shift(vm: &mut Vm, args: Args, f: fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let value = bits(vm, args, 0)?;
    done(f(value, bits(vm, args, 1)? & 31))
}

fn tohex(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let value = bits(vm, args, 0)?;
    let n = if args.n < 2 { 8 } else { bits(vm, args, 1)? as i32 };
    let digits = n.unsigned_abs().min(8) as usize;
    let text = if n < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
    vm.heap.string(&text.as_bytes()[8 - digits..]).map(Flow::One)
}
