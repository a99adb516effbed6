//! What error texts say about a place in a script: chunk and line, and the name of the variable in a register.
//!
//! A register's name is found as Lua 5.1 finds it: a local variable's, or what the last instruction that set the register
//! read. That walks the function from its beginning, and is charged so.

use super::call::is_call;
use super::code::{CONST_BIT, Const, Op, Proto};
use super::compile::display_name;
use super::fault::Fault;
use super::heap::Loaded;
use super::thread::{Frame, FrameKind};
use super::value::Value;
use super::vm::Vm;

/// So long, with a zero byte, are names of chunks in texts of errors that arise when they run.
const SHOWN_NAME: usize = 60;

/// `chunk:line: ` of the function at a level, 1 being the topmost frame; nothing if it is no Lua function.
pub(super) fn position(vm: &Vm, protos: &[Loaded], level: usize) -> Vec<u8> {
    let mut left = level as i64 - 1;
    for frame in vm.th.frames.iter().rev() {
        if left < 0 {
            break;
        }
        if left == 0 {
            if frame.kind != FrameKind::Lua {
                break;
            }
            let proto = &protos[frame.proto as usize].proto;
            let mut text = display_name(&proto.source, SHOWN_NAME);
            text.extend_from_slice(format!(":{}: ", proto.line((frame.pc as usize).saturating_sub(1))).as_bytes());
            return text;
        }
        left -= 1 + i64::from(frame.tails);
    }
    Vec::new()
}

/// The topmost frame, if it is a Lua function's, and its current instruction.
fn current<'a>(vm: &Vm, protos: &'a [Loaded]) -> Option<(Frame, &'a Proto, usize)> {
    let frame = *vm.th.frames.last()?;
    if frame.kind != FrameKind::Lua || frame.pc == 0 {
        return None;
    }
    Some((frame, &*protos[frame.proto as usize].proto, frame.pc as usize - 1))
}

/// `attempt to … local 'x' (a nil value)` for a value in a register of the topmost frame.
pub(super) fn type_error(vm: &mut Vm, protos: &[Loaded], register: Option<usize>, value: Value, what: &str) -> Fault {
    let kind = value.type_name();
    let named = match (register, current(vm, protos)) {
        (Some(register), Some((_, proto, pc))) => {
            vm.heap.meter.work(pc / 8);
            name_of(proto, pc, register)
        }
        _ => None,
    };
    let mut text = format!("attempt to {what} ").into_bytes();
    match named {
        Some((which, name)) => {
            text.extend_from_slice(which.as_bytes());
            text.extend_from_slice(b" '");
            text.extend_from_slice(c_string(&name));
            text.extend_from_slice(format!("' (a {kind} value)").as_bytes());
        }
        None => text.extend_from_slice(format!("a {kind} value").as_bytes()),
    }
    Fault::run(text)
}

/// The same for a place in the stack.
pub(super) fn type_error_at(vm: &mut Vm, protos: &[Loaded], place: usize, value: Value, what: &str) -> Fault {
    let register = vm.th.frames.last().and_then(|frame| place.checked_sub(frame.base as usize));
    type_error(vm, protos, register.filter(|r| *r < 256), value, what)
}

fn c_string(text: &[u8]) -> &[u8] {
    &text[..memchr::memchr(0, text).unwrap_or(text.len())]
}

/// `bad argument #n to 'name' (text)`
pub(super) fn bad_argument(vm: &mut Vm, protos: &[Loaded], n: usize, text: &[u8]) -> Vec<u8> {
    let mut n = n;
    let mut name = None;
    if let Some((_, proto, pc)) = current(vm, protos)
        && is_call(proto.code[pc].op())
    {
        vm.heap.meter.work(pc / 8);
        name = name_of(proto, pc, proto.code[pc].a());
    }
    let mut out = Vec::new();
    if let Some(("method", name)) = &name {
        n -= 1;
        if n == 0 {
            out.extend_from_slice(b"calling '");
            out.extend_from_slice(c_string(name));
            out.extend_from_slice(b"' on bad self (");
            out.extend_from_slice(text);
            out.push(b')');
            return out;
        }
    }
    out.extend_from_slice(format!("bad argument #{n} to '").as_bytes());
    out.extend_from_slice(name.as_ref().map_or(b"?", |(_, name)| c_string(name)));
    out.extend_from_slice(b"' (");
    out.extend_from_slice(text);
    out.push(b')');
    out
}

/// What kind of variable a register holds at an instruction, and its name.
fn name_of(proto: &Proto, pc: usize, register: usize) -> Option<(&'static str, Vec<u8>)> {
    let mut register = register;
    loop {
        if let Some(name) = proto.local_name(register + 1, pc) {
            return Some(("local", name.to_vec()));
        }
        let setter = proto.code[find_setter(proto, pc, register)?];
        let constant = |x: usize| match proto.consts.get(x.wrapping_sub(CONST_BIT as usize)) {
            Some(Const::Str(s)) => s.to_vec(),
            _ => b"?".to_vec(),
        };
        return match setter.op() {
            Op::GetGlobal => match proto.consts.get(setter.bx()) {
                Some(Const::Str(s)) => Some(("global", s.to_vec())),
                _ => None,
            },
            Op::Move if setter.b() < setter.a() => {
                register = setter.b();
                continue;
            }
            Op::GetTable => Some(("field", constant(setter.c()))),
            Op::GetUpval => {
                let name = proto.upvalues.get(setter.b()).map_or(b"?".to_vec(), |name| name.to_vec());
                Some(("upvalue", name))
            }
            Op::Method => Some(("method", constant(setter.c()))),
            _ => None,
        };
    }
}

/// The last instruction before `end` that sets a register.
fn find_setter(proto: &Proto, end: usize, register: usize) -> Option<usize> {
    let mut last = None;
    let mut pc = 0;
    while pc < end {
        let i = proto.code[pc];
        let a = i.a();
        if i.sets_a() && a == register {
            last = Some(pc);
        }
        match i.op() {
            Op::LoadNil if a <= register && register <= i.b() => last = Some(pc),
            Op::TForLoop if register >= a + 2 => last = Some(pc),
            Op::Method if register == a + 1 => last = Some(pc),
            Op::Call | Op::TailCall if register >= a => last = Some(pc),
            Op::Jmp | Op::ForLoop | Op::ForPrep => {
                let target = (pc as i32 + 1 + i.sbx()) as usize;
                // A jump forward that does not pass the instruction in question is taken.
                if pc < target && target <= end {
                    pc = target - 1;
                }
            }
            Op::SetList if i.c() == 0 => pc += 1,
            Op::Closure => {
                pc += closure_upvalues(proto, pc);
            }
            _ => {}
        }
        pc += 1;
    }
    last
}

/// How many pseudo instructions follow a closure: they name its upvalues.
fn closure_upvalues(proto: &Proto, pc: usize) -> usize {
    proto.closure_upvalues.get(proto.code[pc].bx()).map_or(0, |n| *n as usize)
}
