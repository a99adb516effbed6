//! `cmsgpack`: MessagePack as Redis's library writes and reads it.

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::value::{Tab, Value};
use super::super::vm::{Args, Flow, NativeFn, Vm};
use super::base::MAX_RESULTS;

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("cmsgpack.pack", pack),
    ("cmsgpack.unpack", unpack),
    ("cmsgpack.unpack_one", unpack_one),
    ("cmsgpack.unpack_limit", unpack_limit),
];

/// 2^63, the first double beyond 64-bit integers.
const LIMIT: f64 = 9_223_372_036_854_775_808.0;
/// Tables that are nested deeper are written as nil.
const MAX_NESTING: usize = 16;
/// Tables in tables that are read; Redis stops where C's stack of values ends.
const MAX_DEPTH: usize = 2600;

/// A table that is being written.
#[derive(Debug)]
enum Level {
    Array {
        table: Tab,
        at: i64,
        length: i64,
    },
    /// The value of a key that was just written waits.
    Map {
        table: Tab,
        key: Value,
        value: Option<Value>,
    },
}

/// Arguments that are being written, one after the other.
#[derive(Debug, Default)]
pub(in super::super) struct Packer {
    /// How many arguments were begun.
    begun: usize,
    levels: Vec<Level>,
    out: Vec<u8>,
    /// Bytes that were charged for `out`.
    pub(in super::super) charged: usize,
}

fn pack(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    if args.n == 0 {
        return Err(Fault::arg(0, "MessagePack pack needs input."));
    }
    Packer::default().run(vm, args)
}

impl Packer {
    pub(in super::super) fn values(&self) -> Vec<Value> {
        let values = self.levels.iter().flat_map(|level| match level {
            Level::Array { table, .. } => [Value::Table(*table), Value::Nil, Value::Nil],
            Level::Map { table, key, value } => [Value::Table(*table), *key, value.unwrap_or(Value::Nil)],
        });
        values.collect()
    }

    /// Goes on until all is written or the fuel is used up.
    pub(in super::super) fn run(mut self, vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
        loop {
            if vm.heap.meter.fuel <= 0 {
                return Ok(Flow::Step(Cont::Pack(Box::new(self))));
            }
            match self
                .step(vm, args)
                .and_then(|more| vm.charge_output(self.out.len(), &mut self.charged).map(|()| more))
            {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    vm.heap.meter.give(self.charged);
                    return Err(fault);
                }
            }
        }
        vm.heap.meter.give(self.charged);
        vm.owned(self.out).map(Flow::One)
    }

    /// Writes one value; false if there is none left.
    fn step(&mut self, vm: &mut Vm, args: Args) -> Result<bool, Fault> {
        let value = match self.levels.last_mut() {
            None if self.begun == args.n => return Ok(false),
            None => {
                self.begun += 1;
                vm.arg(args, self.begun - 1)
            }
            Some(Level::Array { table, at, length }) => {
                if at == length {
                    self.levels.pop();
                    return Ok(true);
                }
                *at += 1;
                vm.heap.get_int(*table, *at)
            }
            Some(Level::Map { table, key, value }) => {
                if let Some(value) = value.take() {
                    value
                } else if let Ok(Some(pair)) = vm.heap.tables.get(table.0).next(*key, &mut vm.heap.meter) {
                    *key = pair.0;
                    *value = Some(pair.1);
                    pair.0
                } else {
                    self.levels.pop();
                    return Ok(true);
                }
            }
        };
        match value {
            Value::Table(table) if self.levels.len() < MAX_NESTING => {
                let level = open(vm, table, &mut self.out)?;
                self.levels.push(level);
            }
            other => scalar(vm, other, &mut self.out)?,
        }
        Ok(true)
    }
}

fn open(vm: &mut Vm, table: Tab, out: &mut Vec<u8>) -> Result<Level, Fault> {
    let (mut count, mut max, mut is_array) = (0usize, 0.0f64, true);
    let mut key = Value::Nil;
    while let Ok(Some((name, _))) = vm.heap.tables.get(table.0).next(key, &mut vm.heap.meter) {
        vm.heap.meter.work(1);
        match name {
            Value::Number(n) if n > 0.0 && n == f64::from(n as i32) => max = max.max(n),
            _ => is_array = false,
        }
        count += 1;
        key = name;
    }
    if is_array && max == count as f64 {
        let length = vm.heap.border(table);
        header(length, (0x90, 15), [0, 0xdc, 0xdd], out);
        Ok(Level::Array { table, at: 0, length: length as i64 })
    } else {
        header(count, (0x80, 15), [0, 0xde, 0xdf], out);
        Ok(Level::Map { table, key: Value::Nil, value: None })
    }
}

/// The kind of something and its size: in one byte, or after a byte for 1, 2 or 4 bytes.
fn header(size: usize, (fixed, most): (u8, usize), [one, two, four]: [u8; 3], out: &mut Vec<u8>) {
    if size <= most {
        out.push(fixed | size as u8);
    } else if one != 0 && size <= 0xff {
        out.extend_from_slice(&[one, size as u8]);
    } else if size <= 0xffff {
        out.push(two);
        out.extend_from_slice(&(size as u16).to_be_bytes());
    } else {
        out.push(four);
        out.extend_from_slice(&(size as u32).to_be_bytes());
    }
}

fn scalar(vm: &mut Vm, value: Value, out: &mut Vec<u8>) -> Result<(), Fault> {
    match value {
        Value::Bool(b) => out.push(if b { 0xc3 } else { 0xc2 }),
        Value::Str(s) => {
            let length = vm.heap.bytes(s).len();
            vm.check_length(out.len() + length)?;
            vm.heap.meter.copy(length);
            header(length, (0xa0, 31), [0xd9, 0xda, 0xdb], out);
            out.extend_from_slice(vm.heap.bytes(s));
        }
        Value::Number(n) if n.floor() == n && (-LIMIT..LIMIT).contains(&n) => integer(n as i64, out),
        Value::Number(n) => {
            let short = n as f32;
            if f64::from(short) == n {
                out.push(0xca);
                out.extend_from_slice(&short.to_be_bytes());
            } else {
                out.push(0xcb);
                out.extend_from_slice(&n.to_be_bytes());
            }
        }
        _ => out.push(0xc0),
    }
    Ok(())
}

fn integer(n: i64, out: &mut Vec<u8>) {
    let bytes = n.to_be_bytes();
    let (mark, size) = match n {
        -32..=127 => (None, 1),
        128..=0xff => (Some(0xcc), 1),
        0x100..=0xffff => (Some(0xcd), 2),
        0x1_0000..=0xffff_ffff => (Some(0xce), 4),
        0x1_0000_0000.. => (Some(0xcf), 8),
        -128..=-33 => (Some(0xd0), 1),
        -32_768..=-129 => (Some(0xd1), 2),
        -2_147_483_648..=-32_769 => (Some(0xd2), 4),
        _ => (Some(0xd3), 8),
    };
    out.extend(mark);
    out.extend_from_slice(&bytes[8 - size..]);
}

// Reading.

fn unpack(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    read_all(vm, args, 0, 0)
}

fn unpack_one(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let offset = vm.opt_i32(args, 1, 0)?;
    read_all(vm, args, 1, offset)
}

fn unpack_limit(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let limit = vm.check_i32(args, 1)?;
    let offset = vm.opt_i32(args, 2, 0)?;
    read_all(vm, args, limit, offset)
}

/// Reads up to `limit` values, or all of them if neither limit nor offset is given.
fn read_all(vm: &mut Vm, args: Args, limit: i32, offset: i32) -> Result<Flow, Fault> {
    let data = vm.check_string(args, 0)?;
    let data = vm.heap.bytes(data).to_vec();
    let all = limit == 0 && offset == 0;
    if offset < 0 || limit < 0 {
        let length = data.len();
        let text = format!("Invalid request to unpack with offset of {offset} and limit of {length}.");
        return Err(Fault::lib(text));
    }
    if offset as usize > data.len() {
        let length = data.len();
        return Err(Fault::lib(format!("Start offset {offset} greater than input length {length}.")));
    }
    let mut reader = Reader { data: &data, at: offset as usize };
    let limit = if all { usize::MAX } else { limit as usize };
    let from = vm.th.top;
    if !all {
        vm.push(Value::Nil)?;
    }
    let mut n = 0;
    while reader.at < data.len() && n < limit {
        if n + args.n >= MAX_RESULTS - 1 {
            return Err(Fault::lib(
                "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)",
            ));
        }
        let value = reader.value(vm)?;
        vm.push(value)?;
        n += 1;
    }
    if !all {
        let next = if reader.at == data.len() { -1.0 } else { reader.at as f64 };
        vm.th.stack[from] = Value::Number(next);
        n += 1;
    }
    Ok(Flow::Many(n))
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

/// A table that is being read.
struct Open {
    table: Tab,
    /// Values that are still to come, keys of maps included.
    left: u64,
    is_map: bool,
    at: i64,
    key: Value,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Fault> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.data.len());
        let end = end.ok_or_else(|| Fault::lib("Missing bytes in input."))?;
        let bytes = &self.data[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn unsigned(&mut self, n: usize) -> Result<u64, Fault> {
        Ok(self.take(n)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn signed(&mut self, n: usize) -> Result<f64, Fault> {
        let unused = 64 - 8 * n;
        Ok(((self.unsigned(n)? << unused) as i64 >> unused) as f64)
    }

    fn value(&mut self, vm: &mut Vm) -> Result<Value, Fault> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            vm.heap.meter.work(2);
            let mut value = match self.item(vm)? {
                Item::Value(value) => value,
                Item::Table(left, is_map) => {
                    if open.len() >= MAX_DEPTH {
                        return Err(Fault::lib("stack overflow (in function mp_decode_to_lua_array)"));
                    }
                    let table = vm.heap.new_table(0, 0)?;
                    if left > 0 {
                        open.push(Open { table, left, is_map, at: 0, key: Value::Nil });
                        continue;
                    }
                    Value::Table(table)
                }
            };
            // What is complete goes into the table around it, which may be complete then.
            loop {
                let Some(last) = open.last_mut() else { return Ok(value) };
                last.put(vm, value)?;
                if last.left > 0 {
                    break;
                }
                value = Value::Table(last.table);
                open.pop();
            }
        }
    }

    fn item(&mut self, vm: &mut Vm) -> Result<Item, Fault> {
        let mark = self.unsigned(1)? as u8;
        let number = |n: f64| Ok(Item::Value(Value::Number(n)));
        let length = match mark {
            0x00..=0x7f => return number(f64::from(mark)),
            0xe0..=0xff => return number(f64::from(mark as i8)),
            0xc0 => return Ok(Item::Value(Value::Nil)),
            0xc2 | 0xc3 => return Ok(Item::Value(Value::Bool(mark == 0xc3))),
            0xca => return number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => return number(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xce => return number(self.unsigned(1 << (mark - 0xcc))? as f64),
            // The upper half is negative: Redis makes an integer of Lua 5.1 of it, which has a sign.
            0xcf => return number(self.unsigned(8)? as i64 as f64),
            0xd0..=0xd3 => return number(self.signed(1 << (mark - 0xd0))?),
            0x80..=0x8f => return Ok(Item::Table(u64::from(mark & 15) * 2, true)),
            0x90..=0x9f => return Ok(Item::Table(u64::from(mark & 15), false)),
            0xdc | 0xdd => return Ok(Item::Table(self.unsigned(2 << (mark - 0xdc))?, false)),
            0xde | 0xdf => return Ok(Item::Table(self.unsigned(2 << (mark - 0xde))? * 2, true)),
            0xa0..=0xbf => u64::from(mark & 31),
            0xd9..=0xdb => self.unsigned(1 << (mark - 0xd9))?,
            _ => return Err(Fault::lib("Bad data format in input.")),
        };
        let text = self.take(length as usize)?;
        vm.heap.string(text).map(Item::Value)
    }
}

impl Open {
    /// The next element, or key, or value of a key.
    fn put(&mut self, vm: &mut Vm, value: Value) -> Result<(), Fault> {
        self.left -= 1;
        if !self.is_map {
            self.at += 1;
            return vm.heap.raw_set_int(self.table, self.at, value);
        }
        if self.left % 2 == 1 {
            self.key = value;
            return Ok(());
        }
        vm.heap.raw_set(self.table, self.key, value)
    }
}

/// What a mark in the input begins.
enum Item {
    Value(Value),
    /// A table of so many values, keys included; whether it is a map.
    Table(u64, bool),
}
