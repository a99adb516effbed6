//! `cjson`: settings, and writing. Reading is in `json_decode`.
//!
//! A table is written as an array if all its keys are positive integers and there is one; too sparse ones are refused.
//! Tables in tables are a list of levels, so that writing can stop where the fuel is used up and go on.

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::number;
use super::super::value::{Tab, Value};
use super::super::vm::{Args, Flow, NativeFn, Vm};
use super::json_decode::decode;

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("cjson.encode", encode),
    ("cjson.decode", decode),
    ("cjson.new", new),
    ("cjson.encode_sparse_array", encode_sparse_array),
    ("cjson.encode_max_depth", |vm, args| integer_setting(vm, args, 1, i32::MAX, |c| &mut c.encode_max_depth)),
    ("cjson.decode_max_depth", |vm, args| integer_setting(vm, args, 1, i32::MAX, |c| &mut c.decode_max_depth)),
    ("cjson.encode_number_precision", |vm, args| integer_setting(vm, args, 1, 14, |c| &mut c.precision)),
    ("cjson.encode_keep_buffer", |vm, args| {
        at_most(args, 1)?;
        switch(vm, args, 0, |c| &mut c.keep_buffer).map(Flow::One)
    }),
    ("cjson.encode_invalid_numbers", encode_invalid_numbers),
    ("cjson.decode_invalid_numbers", |vm, args| {
        at_most(args, 1)?;
        switch(vm, args, 0, |c| &mut c.decode_invalid).map(Flow::One)
    }),
];

/// The settings of one `cjson`: the library's own, or one of `cjson.new`.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Config {
    sparse_convert: bool,
    sparse_ratio: i32,
    sparse_safe: i32,
    encode_max_depth: i32,
    pub(super) decode_max_depth: i32,
    /// 0: refused, 1: as C prints them, 2: null
    encode_invalid: u8,
    pub(super) decode_invalid: bool,
    keep_buffer: bool,
    precision: i32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_max_depth: 1000,
            decode_max_depth: 1000,
            encode_invalid: 0,
            decode_invalid: true,
            keep_buffer: true,
            precision: 14,
        }
    }
}

/// Tables in tables beyond which C has no place for values, whatever is set.
pub(super) const MAX_DEPTH: i32 = 2600;

/// Which settings the function that runs belongs to.
fn config_place(vm: &Vm, args: Args) -> usize {
    match vm.th.stack[args.base - 1] {
        Value::Bound(bound) => match vm.heap.bounds.get(bound.0).values[0] {
            Value::Number(place) => place as usize,
            _ => 0,
        },
        _ => 0,
    }
}

pub(super) fn config(vm: &Vm, args: Args) -> Config {
    vm.configs.get(config_place(vm, args)).copied().unwrap_or_default()
}

fn config_mut(vm: &mut Vm, args: Args) -> &mut Config {
    let place = config_place(vm, args);
    if place >= vm.configs.len() {
        vm.configs.resize(place + 1, Config::default());
    }
    &mut vm.configs[place]
}

fn new(vm: &mut Vm, _: Args) -> Result<Flow, Fault> {
    vm.heap.meter.take(size_of::<Config>())?;
    let place = vm.configs.len().max(1);
    vm.configs.resize(place + 1, Config::default());
    let tab = vm.heap.new_table(0, 16)?;
    for (name, _) in FUNCTIONS {
        let native = super::place_of(name);
        let values = [Value::Number(place as f64), Value::Nil, Value::Nil];
        let function = vm.heap.new_bound(native, values)?;
        let key = vm.heap.string(name.trim_start_matches("cjson.").as_bytes())?;
        vm.heap.raw_set(tab, key, function)?;
    }
    for (name, text) in [("_NAME", "cjson"), ("_VERSION", "2.1.0")] {
        let (key, text) = (vm.heap.string(name.as_bytes())?, vm.heap.string(text.as_bytes())?);
        vm.heap.raw_set(tab, key, text)?;
    }
    let null = vm.heap.string(b"null")?;
    vm.heap.raw_set(tab, null, Value::Null)?;
    Ok(Flow::One(Value::Table(tab)))
}

// Settings: without an argument they are only told.

fn at_most(args: Args, n: usize) -> Result<(), Fault> {
    if args.n > n { Err(Fault::arg(n + 1, "found too many arguments")) } else { Ok(()) }
}

fn integer(
    vm: &mut Vm,
    args: Args,
    n: usize,
    (least, most): (i32, i32),
    field: fn(&mut Config) -> &mut i32,
) -> Result<Value, Fault> {
    if !vm.arg(args, n).is_nil() {
        let value = vm.check_i32(args, n)?;
        if !(least..=most).contains(&value) {
            return Err(Fault::arg(1, format!("expected integer between {least} and {most}")));
        }
        *field(config_mut(vm, args)) = value;
    }
    Ok(Value::Number(f64::from(*field(config_mut(vm, args)))))
}

fn integer_setting(
    vm: &mut Vm,
    args: Args,
    least: i32,
    most: i32,
    field: fn(&mut Config) -> &mut i32,
) -> Result<Flow, Fault> {
    at_most(args, 1)?;
    integer(vm, args, 0, (least, most), field).map(Flow::One)
}

fn switch(vm: &mut Vm, args: Args, n: usize, field: fn(&mut Config) -> &mut bool) -> Result<Value, Fault> {
    match vm.arg(args, n) {
        Value::Nil => {}
        Value::Bool(b) => *field(config_mut(vm, args)) = b,
        _ => {
            let word = option(vm, args, n, &["off", "on"])?;
            *field(config_mut(vm, args)) = word == 1;
        }
    }
    Ok(Value::Bool(*field(config_mut(vm, args))))
}

fn option(vm: &mut Vm, args: Args, n: usize, words: &[&str]) -> Result<usize, Fault> {
    let s = vm.check_string(args, n)?;
    let text = vm.heap.bytes(s);
    let found = words.iter().position(|word| word.as_bytes() == text);
    found.ok_or_else(|| Fault::arg(n + 1, [b"invalid option '", text, b"'"].concat()))
}

fn encode_invalid_numbers(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    at_most(args, 1)?;
    match vm.arg(args, 0) {
        Value::Nil => {}
        Value::Bool(b) => config_mut(vm, args).encode_invalid = u8::from(b),
        _ => {
            let word = option(vm, args, 0, &["off", "on", "null"])?;
            config_mut(vm, args).encode_invalid = word as u8;
        }
    }
    match config(vm, args).encode_invalid {
        2 => vm.heap.string(b"null").map(Flow::One),
        state => Ok(Flow::One(Value::Bool(state == 1))),
    }
}

fn encode_sparse_array(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    at_most(args, 3)?;
    let convert = switch(vm, args, 0, |c| &mut c.sparse_convert)?;
    let ratio = integer(vm, args, 1, (0, i32::MAX), |c| &mut c.sparse_ratio)?;
    let safe = integer(vm, args, 2, (0, i32::MAX), |c| &mut c.sparse_safe)?;
    vm.push_all(&[convert, ratio, safe])?;
    Ok(Flow::Many(3))
}

// Writing.

/// A table that is being written.
#[derive(Debug)]
enum Level {
    /// Its kind is being found out: the last key seen, the number of keys, and the largest.
    Count {
        table: Tab,
        key: Value,
        items: f64,
        max: f64,
    },
    Array {
        table: Tab,
        at: i64,
        length: i64,
    },
    Object {
        table: Tab,
        key: Value,
    },
}

/// A value that is being written.
#[derive(Debug)]
pub(in super::super) struct Encoder {
    config: Config,
    levels: Vec<Level>,
    out: Vec<u8>,
    /// Bytes that were charged for `out`.
    pub(in super::super) charged: usize,
}

fn encode(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    if args.n != 1 {
        return Err(Fault::arg(1, "expected 1 argument"));
    }
    let mut encoder = Encoder { config: config(vm, args), levels: Vec::new(), out: Vec::new(), charged: 0 };
    match encoder.value(vm, vm.arg(args, 0)) {
        Ok(()) => encoder.run(vm),
        Err(fault) => Err(fault),
    }
}

fn refused(value: Value, reason: &str) -> Fault {
    Fault::lib(format!("Cannot serialise {}: {reason}", value.type_name()))
}

impl Encoder {
    pub(in super::super) fn values(&self) -> Vec<Value> {
        let keys = self.levels.iter().flat_map(|level| match level {
            Level::Count { table, key, .. } | Level::Object { table, key } => [Value::Table(*table), *key],
            Level::Array { table, .. } => [Value::Table(*table), Value::Nil],
        });
        keys.collect()
    }

    /// Goes on until all is written or the fuel is used up.
    pub(in super::super) fn run(mut self, vm: &mut Vm) -> Result<Flow, Fault> {
        while let Some(level) = self.levels.pop() {
            if vm.heap.meter.fuel <= 0 {
                self.levels.push(level);
                return Ok(Flow::Step(Cont::Encode(Box::new(self))));
            }
            if let Err(fault) = self.level(vm, level).and_then(|()| vm.charge_output(self.out.len(), &mut self.charged))
            {
                vm.heap.meter.give(self.charged);
                return Err(fault);
            }
        }
        vm.heap.meter.give(self.charged);
        vm.owned(self.out).map(Flow::One)
    }

    fn value(&mut self, vm: &mut Vm, value: Value) -> Result<(), Fault> {
        match value {
            Value::Nil | Value::Null => self.out.extend_from_slice(b"null"),
            Value::Bool(b) => self.out.extend_from_slice(if b { b"true" } else { b"false" }),
            Value::Number(n) => self.number(n)?,
            Value::Str(s) => {
                vm.check_length(self.out.len() + vm.heap.bytes(s).len())?;
                vm.heap.meter.copy(vm.heap.bytes(s).len() * 4);
                write_string(vm.heap.bytes(s), &mut self.out);
            }
            Value::Table(table) => {
                let depth = self.levels.len() as i32 + 1;
                if depth > self.config.encode_max_depth.min(MAX_DEPTH) {
                    return Err(Fault::lib(format!("Cannot serialise, excessive nesting ({depth})")));
                }
                self.levels.push(Level::Count { table, key: Value::Nil, items: 0.0, max: 0.0 });
            }
            other => return Err(refused(other, "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, n: f64) -> Result<(), Fault> {
        if !n.is_finite() {
            match self.config.encode_invalid {
                0 => return Err(refused(Value::Number(n), "must not be NaN or Inf")),
                2 => {
                    self.out.extend_from_slice(b"null");
                    return Ok(());
                }
                // Without the sign that C prints for the not-a-number of a division.
                _ if n.is_nan() => {
                    self.out.extend_from_slice(b"nan");
                    return Ok(());
                }
                _ => {}
            }
        }
        if self.config.precision == 14 {
            number::print(n, &mut self.out);
        } else {
            number::general(n, self.config.precision as usize, false, false, &mut self.out);
        }
        Ok(())
    }

    /// One entry of a table.
    fn level(&mut self, vm: &mut Vm, level: Level) -> Result<(), Fault> {
        match level {
            Level::Count { table, key, items, max } => self.count(vm, table, key, (items, max)),
            Level::Array { table, at, length } if at < length => {
                if at > 0 {
                    self.out.push(b',');
                }
                self.levels.push(Level::Array { table, at: at + 1, length });
                let value = vm.heap.get_int(table, at + 1);
                self.value(vm, value)
            }
            Level::Array { .. } => {
                self.out.push(b']');
                Ok(())
            }
            Level::Object { table, key } => self.pair(vm, table, key),
        }
    }

    /// Looks at some keys of a table, to find out whether it is an array.
    fn count(&mut self, vm: &mut Vm, table: Tab, key: Value, (items, max): (f64, f64)) -> Result<(), Fault> {
        let (mut key, mut items, mut max) = (key, items, max);
        for _ in 0..64 {
            match vm.heap.tables.get(table.0).next(key, &mut vm.heap.meter) {
                Ok(Some((name, _))) => {
                    vm.heap.meter.work(1);
                    let Value::Number(n) = name else { return self.object(table) };
                    if n.floor() != n || n < 1.0 {
                        return self.object(table);
                    }
                    items += 1.0;
                    max = max.max(n);
                    key = name;
                }
                _ => return self.counted(table, items, max),
            }
        }
        self.levels.push(Level::Count { table, key, items, max });
        Ok(())
    }

    fn counted(&mut self, table: Tab, items: f64, max: f64) -> Result<(), Fault> {
        let Config { sparse_convert, sparse_ratio, sparse_safe, .. } = self.config;
        if sparse_ratio > 0 && max > items * f64::from(sparse_ratio) && max > f64::from(sparse_safe) {
            if !sparse_convert {
                return Err(refused(Value::Table(table), "excessively sparse array"));
            }
            return self.object(table);
        }
        if max == 0.0 {
            return self.object(table);
        }
        self.out.push(b'[');
        self.levels.push(Level::Array { table, at: 0, length: max as i64 });
        Ok(())
    }

    fn object(&mut self, table: Tab) -> Result<(), Fault> {
        self.out.push(b'{');
        self.levels.push(Level::Object { table, key: Value::Nil });
        Ok(())
    }

    fn pair(&mut self, vm: &mut Vm, table: Tab, key: Value) -> Result<(), Fault> {
        let Ok(Some((name, value))) = vm.heap.tables.get(table.0).next(key, &mut vm.heap.meter) else {
            self.out.push(b'}');
            return Ok(());
        };
        if !key.is_nil() {
            self.out.push(b',');
        }
        match name {
            Value::Number(n) => {
                self.out.push(b'"');
                self.number(n)?;
                self.out.extend_from_slice(b"\":");
            }
            Value::Str(_) => {
                self.value(vm, name)?;
                self.out.push(b':');
            }
            other => return Err(refused(other, "table key must be a number or string")),
        }
        self.levels.push(Level::Object { table, key: name });
        self.value(vm, value)
    }
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' | b'/' => out.extend_from_slice(&[b'\\', *byte]),
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..=31 | 127 => {
                let digit = |n: u8| b"0123456789abcdef"[usize::from(n)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}
