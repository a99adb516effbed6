//! `table`

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::meta::READONLY;
use super::super::number;
use super::super::value::{Tab, Value};
use super::super::vm::{Args, Flow, NativeFn, Vm};
use super::base::set_checked;
use super::sort::Sort;

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("table.concat", concat),
    ("table.foreach", foreach),
    ("table.foreachi", foreachi),
    ("table.getn", getn),
    ("table.insert", insert),
    ("table.maxn", maxn),
    ("table.remove", remove),
    ("table.setn", setn),
    ("table.sort", sort),
];

fn getn(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    Ok(Flow::One(Value::Number(vm.heap.border(tab) as f64)))
}

fn setn(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    vm.check_table(args, 0)?;
    Err(Fault::lib("'setn' is obsolete"))
}

fn maxn(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    let table = vm.heap.tables.get(tab.0);
    vm.heap.meter.work((table.array.len() + table.nodes.len()) / 4);
    let array = table.array.iter().rposition(|v| !v.is_nil()).map_or(0.0, |at| (at + 1) as f64);
    let keys = table.nodes.iter().filter(|node| !node.value.is_nil());
    let max = keys.fold(array, |max, node| if let Value::Number(n) = node.key { max.max(n) } else { max });
    Ok(Flow::One(Value::Number(max)))
}

fn concat(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let separator = vm.opt_string(args, 1)?;
    let tab = vm.check_table(args, 0)?;
    let from = vm.opt_i32(args, 2, 1)?;
    let to = if vm.arg(args, 3).is_nil() { vm.heap.border(tab) as i32 } else { vm.check_i32(args, 3)? };
    let mut out = Vec::new();
    let heap = &mut vm.heap;
    let separator = separator.map_or(&b""[..], |s| heap.strings.get(s));
    let mut charged = 0;
    for at in from..=to {
        match heap.tables.get(tab.0).get_int(i64::from(at), &mut heap.meter) {
            Value::Str(s) => out.extend_from_slice(heap.strings.get(s)),
            Value::Number(n) => number::print(n, &mut out),
            other => {
                let kind = other.type_name();
                return Err(Fault::lib(format!("invalid value ({kind}) at index {at} in table for 'concat'")));
            }
        }
        if at != to {
            out.extend_from_slice(separator);
        }
        heap.meter.work(1 + (out.len() - charged) / 32);
        charged = out.len();
        if out.len() > vm.max_string {
            return Err(Fault::lib("resulting string too large"));
        }
        heap.meter.room(out.len())?;
    }
    vm.owned(out).map(Flow::One)
}

/// `table.insert` that moves elements up, one by one from the end.
#[derive(Debug)]
pub(in super::super) struct Insert {
    table: Tab,
    at: i64,
    position: i64,
    value: Value,
}

fn insert(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let table = vm.check_table(args, 0)?;
    let end = vm.heap.border(table) as i64 + 1;
    match args.n {
        2 => {
            set_checked(vm, table, Value::Number(end as f64), vm.arg(args, 1))?;
            Ok(Flow::Nothing)
        }
        3 => {
            let position = i64::from(vm.check_i32(args, 1)?);
            let at = end.max(position);
            Insert { table, at, position, value: vm.arg(args, 2) }.step(vm)
        }
        _ => Err(Fault::lib("wrong number of arguments to 'insert'")),
    }
}

impl Insert {
    pub(in super::super) fn values(&self) -> [Value; 2] {
        [Value::Table(self.table), self.value]
    }

    pub(in super::super) fn step(mut self, vm: &mut Vm) -> Result<Flow, Fault> {
        if vm.heap.table(self.table).readonly {
            return Err(Fault::run(READONLY));
        }
        while self.at > self.position {
            if vm.heap.meter.fuel <= 0 {
                return Ok(Flow::Step(Cont::Insert(self)));
            }
            vm.heap.meter.work(4);
            let below = vm.heap.get_int(self.table, self.at - 1);
            vm.heap.raw_set_int(self.table, self.at, below)?;
            self.at -= 1;
        }
        vm.heap.raw_set_int(self.table, self.position, self.value)?;
        Ok(Flow::Nothing)
    }
}

fn remove(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let tab = vm.check_table(args, 0)?;
    let end = vm.heap.border(tab) as i64;
    let position = if vm.arg(args, 1).is_nil() { end } else { i64::from(vm.check_i32(args, 1)?) };
    if !(1..=end).contains(&position) {
        return Ok(Flow::Nothing);
    }
    if vm.heap.table(tab).readonly {
        return Err(Fault::run(READONLY));
    }
    let removed = vm.heap.get_int(tab, position);
    vm.heap.meter.work((end - position) as usize / 4);
    for at in position..end {
        let above = vm.heap.get_int(tab, at + 1);
        vm.heap.raw_set_int(tab, at, above)?;
    }
    vm.heap.raw_set_int(tab, end, Value::Nil)?;
    Ok(Flow::One(removed))
}

fn sort(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let table = vm.check_table(args, 0)?;
    let n = vm.heap.border(table) as i64;
    let comparator = if vm.arg(args, 1).is_nil() { Value::Nil } else { vm.check_function(args, 1)? };
    vm.th.top = args.base + args.n;
    Box::new(Sort::new(table, comparator, n)).run(vm)
}

/// `table.foreach` and `table.foreachi`: the first result that is not nil ends them.
#[derive(Debug)]
pub(in super::super) struct ForEach {
    table: Tab,
    function: Value,
    /// The last key that was visited.
    key: Value,
    /// For `foreachi`: the last index there is.
    end: Option<i64>,
}

fn foreach(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let table = vm.check_table(args, 0)?;
    let function = vm.check_function(args, 1)?;
    ForEach { table, function, key: Value::Nil, end: None }.next(vm)
}

fn foreachi(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let table = vm.check_table(args, 0)?;
    let function = vm.check_function(args, 1)?;
    let end = Some(vm.heap.border(table) as i64);
    ForEach { table, function, key: Value::Number(0.0), end }.next(vm)
}

impl ForEach {
    pub(in super::super) fn values(&self) -> [Value; 3] {
        [Value::Table(self.table), self.function, self.key]
    }

    fn next(mut self, vm: &mut Vm) -> Result<Flow, Fault> {
        let pair = match (self.end, self.key) {
            (Some(end), Value::Number(at)) => {
                let at = at as i64 + 1;
                (at <= end).then(|| (Value::Number(at as f64), vm.heap.get_int(self.table, at)))
            }
            _ => match vm.heap.tables.get(self.table.0).next(self.key, &mut vm.heap.meter) {
                Ok(pair) => pair,
                Err(_) => return Err(Fault::run("invalid key to 'next'")),
            },
        };
        let Some((key, value)) = pair else { return Ok(Flow::Nothing) };
        self.key = key;
        let at = vm.th.top;
        vm.push_all(&[self.function, key, value])?;
        Ok(Flow::Call(Cont::ForEach(self), at, 2))
    }

    pub(in super::super) fn step(self, vm: &mut Vm, args: Args, results: Args) -> Result<Flow, Fault> {
        let value = vm.arg(results, 0);
        vm.th.top = args.base + args.n;
        if value.is_nil() { self.next(vm) } else { Ok(Flow::One(value)) }
    }
}
