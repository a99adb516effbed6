//! The functions without a table, and `os.clock`.

use super::super::compile;
use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::meta::{self, READONLY};
use super::super::number;
use super::super::value::Value;
use super::super::vm::{Args, Event, Flow, NativeFn, Vm};

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("assert", assert),
    ("collectgarbage", collectgarbage),
    ("error", error),
    ("gcinfo", gcinfo),
    ("getmetatable", getmetatable),
    ("ipairs", ipairs),
    ("(ipairs)", ipairs_next),
    ("load", load),
    ("loadstring", loadstring),
    ("next", next),
    ("pairs", pairs),
    ("pcall", pcall),
    ("rawequal", rawequal),
    ("rawget", rawget),
    ("rawset", rawset),
    ("select", select),
    ("setmetatable", setmetatable),
    ("tonumber", tonumber),
    ("tostring", tostring),
    ("type", type_of),
    ("unpack", unpack),
    ("(undefined)", undefined),
    ("xpcall", xpcall),
    ("os.clock", clock),
];

/// Bytes that are copied in the time in which a byte of source is compiled.
const COPIED_A_SOURCE_BYTE: usize = 32;

/// Values that a library function of C could put on its stack.
pub(in super::super) const MAX_RESULTS: usize = 8000;

fn assert(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    vm.check_any(args, 0)?;
    if vm.arg(args, 0).truthy() {
        return Ok(Flow::Many(args.n));
    }
    let text = vm.opt_string(args, 1)?;
    Err(Fault::lib(text.map_or(&b"assertion failed!"[..], |s| vm.heap.bytes(s))))
}

fn collectgarbage(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let option = vm.opt_string(args, 0)?;
    vm.opt_i32(args, 1, 0)?;
    let option = option.map_or(&b"collect"[..], |s| vm.heap.bytes(s));
    match option {
        b"count" => Ok(Flow::One(Value::Number(vm.heap.meter.bytes as f64 / 1024.0))),
        b"step" => Ok(Flow::One(Value::Bool(false))),
        b"stop" | b"restart" | b"collect" | b"setpause" | b"setstepmul" => Ok(Flow::One(Value::Number(0.0))),
        _ => Err(Fault::arg(1, [b"invalid option '", option, b"'"].concat())),
    }
}

fn gcinfo(vm: &mut Vm, _: Args) -> Result<Flow, Fault> {
    Ok(Flow::One(Value::Number((vm.heap.meter.bytes / 1024) as f64)))
}

fn error(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let level = vm.opt_i32(args, 1, 1)?;
    Err(Fault::At(level.max(0) as usize, vm.arg(args, 0)))
}

fn getmetatable(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let value = vm.check_any(args, 0)?;
    let meta = match value {
        Value::Table(tab) => vm.heap.table(tab).meta(),
        Value::Str(_) => Some(vm.string_meta),
        _ => None,
    };
    let Some(meta) = meta else { return Ok(Flow::One(Value::Nil)) };
    let shown = vm.heap.get_str(meta, vm.events[Event::Metatable as usize]);
    Ok(Flow::One(if shown.is_nil() { Value::Table(meta) } else { shown }))
}

fn setmetatable(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let meta = vm.arg(args, 1);
    let tab = vm.check_table(args, 0)?;
    let new = match meta {
        Value::Table(meta) => Some(meta),
        Value::Nil if args.n > 1 => None,
        _ => return Err(Fault::arg(2, "nil or table expected")),
    };
    if let Some(old) = vm.heap.table(tab).meta()
        && !vm.heap.get_str(old, vm.events[Event::Metatable as usize]).is_nil()
    {
        return Err(Fault::lib("cannot change a protected metatable"));
    }
    if vm.heap.table(tab).readonly {
        return Err(Fault::run(READONLY));
    }
    vm.heap.table_mut(tab).set_meta(new);
    Ok(Flow::One(Value::Table(tab)))
}

fn ipairs(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    vm.push_all(&[Value::Native(super::PLACES.ipairs), Value::Table(tab), Value::Number(0.0)])?;
    Ok(Flow::Many(3))
}

fn ipairs_next(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let at = vm.check_i32(args, 1)?.wrapping_add(1);
    let tab = vm.check_table(args, 0)?;
    let value = vm.heap.get_int(tab, i64::from(at));
    if value.is_nil() {
        return Ok(Flow::Nothing);
    }
    vm.push_all(&[Value::Number(f64::from(at)), value])?;
    Ok(Flow::Many(2))
}

fn pairs(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    vm.push_all(&[Value::Native(super::PLACES.next), Value::Table(tab), Value::Nil])?;
    Ok(Flow::Many(3))
}

fn next(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    let key = vm.arg(args, 1);
    match vm.heap.tables.get(tab.0).next(key, &mut vm.heap.meter) {
        Ok(Some((key, value))) => {
            vm.push_all(&[key, value])?;
            Ok(Flow::Many(2))
        }
        Ok(None) => Ok(Flow::One(Value::Nil)),
        Err(_) => Err(Fault::run("invalid key to 'next'")),
    }
}

fn pcall(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    if args.n == 0 {
        // Redis's own `pcall` then calls the result that it has prepared.
        let text = vm.heap.string(b"attempt to call a boolean value")?;
        vm.push_all(&[Value::Bool(false), text])?;
        return Ok(Flow::Many(2));
    }
    Ok(Flow::Call(Cont::Pcall, args.base, args.n - 1))
}

fn xpcall(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    vm.check_any(args, 1)?;
    let (function, handler) = (vm.arg(args, 0), vm.arg(args, 1));
    let at = vm.th.top;
    vm.push(function)?;
    Ok(Flow::Call(Cont::Xpcall(handler), at, 0))
}

fn rawequal(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let (a, b) = (vm.check_any(args, 0)?, vm.check_any(args, 1)?);
    Ok(Flow::One(Value::Bool(a == b)))
}

fn rawget(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    let key = vm.check_any(args, 1)?;
    Ok(Flow::One(vm.heap.get(tab, key)))
}

fn rawset(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    let (key, value) = (vm.check_any(args, 1)?, vm.check_any(args, 2)?);
    set_checked(vm, tab, key, value)?;
    Ok(Flow::One(Value::Table(tab)))
}

/// Assigns without metamethods, unless the table is read-only.
pub(in super::super) fn set_checked(
    vm: &mut Vm,
    tab: super::super::value::Tab,
    key: Value,
    value: Value,
) -> Result<(), Fault> {
    if vm.heap.table(tab).readonly {
        return Err(Fault::run(READONLY));
    }
    vm.heap.raw_set(tab, key, value)
}

fn select(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    if let Value::Str(s) = vm.arg(args, 0)
        && vm.heap.bytes(s).first() == Some(&b'#')
    {
        return Ok(Flow::One(Value::Number((args.n - 1) as f64)));
    }
    let n = i64::from(vm.check_i32(args, 0)?);
    let count = args.n as i64;
    let from = if n < 0 { count + n } else { n.min(count) };
    if from < 1 {
        return Err(Fault::arg(1, "index out of range"));
    }
    Ok(Flow::Many((count - from) as usize))
}

fn tonumber(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let base = vm.opt_i32(args, 1, 10)?;
    if base == 10 {
        let value = vm.check_any(args, 0)?;
        return Ok(Flow::One(vm.number_of(value).map_or(Value::Nil, Value::Number)));
    }
    let s = vm.check_string(args, 0)?;
    if !(2..=36).contains(&base) {
        return Err(Fault::arg(2, "base out of range"));
    }
    vm.heap.meter.read(vm.heap.strings.get(s).len());
    let bytes = vm.heap.bytes(s);
    let text = &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())];
    Ok(Flow::One(parse_in_base(text, base as u32).map_or(Value::Nil, Value::Number)))
}

/// As `strtoul` reads: the sign turns an unsigned number round.
fn parse_in_base(text: &[u8], base: u32) -> Option<f64> {
    let mut rest = text.trim_ascii_start();
    while let Some(0x0b) = rest.first() {
        rest = rest[1..].trim_ascii_start();
    }
    let negative = rest.first() == Some(&b'-');
    if matches!(rest.first(), Some(b'-' | b'+')) {
        rest = &rest[1..];
    }
    let digit = |b: Option<&u8>| b.and_then(|b| (*b as char).to_digit(base));
    if base == 16 && rest.len() > 2 && rest[0] == b'0' && matches!(rest[1], b'x' | b'X') && digit(rest.get(2)).is_some()
    {
        rest = &rest[2..];
    }
    digit(rest.first())?;
    let (mut value, mut overflow) = (0u64, false);
    while let Some(d) = digit(rest.first()) {
        match value.checked_mul(u64::from(base)).and_then(|v| v.checked_add(u64::from(d))) {
            Some(sum) => value = sum,
            None => overflow = true,
        }
        rest = &rest[1..];
    }
    if !rest.iter().all(|b| number::is_space(*b)) {
        return None;
    }
    Some(match (overflow, negative) {
        (true, _) => u64::MAX as f64,
        (_, true) => value.wrapping_neg() as f64,
        _ => value as f64,
    })
}

fn tostring(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let value = vm.check_any(args, 0)?;
    if let Value::Table(_) = value {
        let handler = meta::metamethod_of(vm, value, Event::ToString);
        if !handler.is_nil() {
            let at = vm.th.top;
            vm.push_all(&[handler, value])?;
            return Ok(Flow::Call(Cont::ToString, at, 1));
        }
    }
    text_of(vm, value).map(Flow::One)
}

/// What a value's `__tostring` answered is the result, whatever it is.
pub(in super::super) fn tostring_done(vm: &mut Vm, results: Args) -> Result<Flow, Fault> {
    Ok(Flow::One(vm.arg(results, 0)))
}

/// A value as `tostring` prints it. Addresses are made up from places in the heap.
pub(in super::super) fn text_of(vm: &mut Vm, value: Value) -> Result<Value, Fault> {
    let address = |kind: u64, at: u32| 0x7f00_0000_0000 + (kind << 36) + u64::from(at) * 64;
    let at = match value {
        Value::Str(_) => return Ok(value),
        Value::Number(n) => {
            let mut text = Vec::new();
            number::print(n, &mut text);
            return vm.owned(text);
        }
        Value::Nil | Value::Dead => return vm.heap.string(b"nil"),
        Value::Bool(b) => return vm.heap.string(if b { b"true" } else { b"false" }),
        Value::Null => return vm.heap.string(b"userdata: (nil)"),
        Value::Table(tab) => address(1, tab.0),
        Value::Function(fun) => address(2, fun.0),
        Value::Bound(bound) => address(3, bound.0),
        Value::Native(n) | Value::Host(n) => address(4, u32::from(n)),
        Value::Thread(co) => address(5, co.0),
    };
    vm.owned(format!("{}: {at:#x}", value.type_name()).into_bytes())
}

fn type_of(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let name = vm.check_any(args, 0)?.type_name();
    vm.heap.string(name.as_bytes()).map(Flow::One)
}

/// Reading a global that is not there is an error.
fn undefined(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    match vm.arg(args, 1) {
        Value::Str(_) | Value::Number(_) => {
            let name = vm.check_string(args, 1)?;
            let name = vm.heap.bytes(name);
            let name = &name[..memchr::memchr(0, name).unwrap_or(name.len())];
            let text = [b"Script attempted to access nonexistent global variable '", name, b"'"].concat();
            Err(Fault::lib(text))
        }
        _ => Err(Fault::lib("Second argument to luaProtectedTableError must be a string or number")),
    }
}

fn unpack(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    let from = vm.opt_i32(args, 1, 1)?;
    let to = if vm.arg(args, 2).is_nil() { vm.heap.border(tab) as i32 } else { vm.check_i32(args, 2)? };
    if from > to {
        return Ok(Flow::Nothing);
    }
    let n = (i64::from(to) - i64::from(from) + 1) as usize;
    if n + args.n > MAX_RESULTS {
        return Err(Fault::lib("too many results to unpack"));
    }
    vm.heap.meter.work(n);
    vm.th.reserve(vm.th.top + n, &mut vm.heap.meter)?;
    for at in from..=to {
        let value = vm.heap.get_int(tab, i64::from(at));
        vm.push(value)?;
    }
    Ok(Flow::Many(n))
}

/// Processor time is not told, only how long the machine has been there.
fn clock(vm: &mut Vm, _: Args) -> Result<Flow, Fault> {
    Ok(Flow::One(Value::Number(vm.started.elapsed().as_secs_f64())))
}

// Chunks.

fn loadstring(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let source = vm.check_string(args, 0)?;
    let name = vm.opt_string(args, 1)?.unwrap_or(source);
    vm.heap.meter.copy(vm.heap.bytes(source).len() + vm.heap.bytes(name).len());
    let (source, name) = (vm.heap.bytes(source).to_vec(), vm.heap.bytes(name).to_vec());
    compile_chunk(vm, &source, &name)
}

/// The chunk's function, or nil and why there is none. Bytecode is taken for text, and fails at its first byte.
fn compile_chunk(vm: &mut Vm, source: &[u8], name: &[u8]) -> Result<Flow, Fault> {
    let name = &name[..memchr::memchr(0, name).unwrap_or(name.len())];
    let failed = |vm: &mut Vm, text: &[u8]| {
        let text = vm.heap.string(text)?;
        vm.push_all(&[Value::Nil, text])?;
        Ok(Flow::Many(2))
    };
    if source.len() > vm.max_source {
        return failed(vm, b"source text too long");
    }
    // Compiling takes some instructions' time for each byte.
    vm.heap.meter.work(200 + source.len());
    vm.heap.meter.at_once(source.len().saturating_mul(COPIED_A_SOURCE_BYTE))?;
    vm.heap.meter.room(source.len().saturating_mul(4))?;
    match compile::compile(source, name, vm.th.levels as usize) {
        Ok(chunk) => Ok(Flow::Load(chunk)),
        Err(text) => failed(vm, &text),
    }
}

/// What `load` has gathered.
#[derive(Debug)]
pub(in super::super) struct Load {
    reader: Value,
    name: Vec<u8>,
    source: Vec<u8>,
}

fn load(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let reader = vm.check_function(args, 0)?;
    let name = vm.opt_string(args, 1)?;
    vm.heap.meter.copy(name.map_or(0, |s| vm.heap.bytes(s).len()));
    let name = name.map_or(b"=(load)".to_vec(), |s| vm.heap.bytes(s).to_vec());
    Box::new(Load { reader, name, source: Vec::new() }).ask(vm)
}

impl Load {
    pub(in super::super) fn values(&self) -> [Value; 1] {
        [self.reader]
    }

    fn ask(self: Box<Load>, vm: &mut Vm) -> Result<Flow, Fault> {
        let at = vm.th.top;
        vm.push(self.reader)?;
        Ok(Flow::Call(Cont::Load(self), at, 0))
    }

    pub(in super::super) fn step(mut self: Box<Load>, vm: &mut Vm, results: Args) -> Result<Flow, Fault> {
        let piece = match vm.arg(results, 0) {
            Value::Nil => Vec::new(),
            Value::Str(s) => vm.heap.bytes(s).to_vec(),
            Value::Number(n) => {
                let mut text = Vec::new();
                number::print(n, &mut text);
                text
            }
            _ => return Err(Fault::lib("reader function must return a string")),
        };
        vm.th.top = results.base;
        if piece.is_empty() || self.source.len() > vm.max_source {
            return compile_chunk(vm, &self.source, &self.name);
        }
        vm.heap.meter.copy(piece.len());
        self.source.extend_from_slice(&piece);
        self.ask(vm)
    }
}
