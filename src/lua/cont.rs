//! What library functions keep while a function they called runs, or while they themselves are interrupted.

use super::fault::Fault;
use super::lib::{self, gsub::Gsub, sort::Sort};
use super::value::{Co, Value};
use super::vm::{Args, Event, Flow, Input, Vm};

/// The state of a library function that is not done.
#[derive(Debug)]
pub(super) enum Cont {
    /// The bottom of a coroutine.
    Base,
    /// `pcall`
    Pcall,
    /// `xpcall`, with its handler
    Xpcall(Value),
    /// the handler of `xpcall` runs
    Handler,
    /// a function of the host
    Host,
    /// `coroutine.yield`: what it is resumed with are its results
    Yielded,
    /// `coroutine.resume`, or a function of `coroutine.wrap` if the flag is set
    Resume(Co, bool),
    /// `tostring` asks `__tostring`
    ToString,
    /// the function of a chunk that is being loaded
    Loaded,
    /// `load` gathers pieces
    Load(Box<lib::base::Load>),
    /// `table.foreach`, `table.foreachi`
    ForEach(lib::table::ForEach),
    /// `table.insert` moves elements up
    Insert(lib::table::Insert),
    /// `table.sort`
    Sort(Box<Sort>),
    /// `string.find`, `match`, `gmatch`, `gsub`
    Match(Box<Gsub>),
    /// `string.format`
    Format(Box<lib::format::Format>),
    /// `cjson.encode`
    Encode(Box<lib::cjson::Encoder>),
    /// `cmsgpack.pack`
    Pack(Box<lib::cmsgpack::Packer>),
    /// `cjson.decode`
    Decode(Box<lib::json_decode::Decoder>),
}

impl Cont {
    /// The values it keeps alive.
    pub(super) fn values(&self, mut visit: impl FnMut(Value)) {
        match self {
            Cont::Xpcall(handler) => visit(*handler),
            Cont::Resume(co, _) => visit(Value::Thread(*co)),
            Cont::Load(load) => load.values().into_iter().for_each(visit),
            Cont::ForEach(each) => each.values().into_iter().for_each(visit),
            Cont::Insert(insert) => insert.values().into_iter().for_each(visit),
            Cont::Sort(sort) => sort.values().into_iter().for_each(visit),
            Cont::Match(state) => state.values().into_iter().for_each(visit),
            Cont::Encode(state) => state.values().into_iter().for_each(visit),
            Cont::Pack(state) => state.values().into_iter().for_each(visit),
            Cont::Decode(state) => state.values().into_iter().for_each(visit),
            _ => {}
        }
    }
}

impl Cont {
    /// Bytes that were charged for it.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Cont::Match(state) => state.bytes(),
            Cont::Format(state) => state.charged,
            Cont::Encode(state) => state.charged,
            Cont::Pack(state) => state.charged,
            _ => 0,
        }
    }
}

/// Goes on with a library function. Its results, if there are any, are at `Vm::results`.
pub(super) fn step(vm: &mut Vm, cont: Cont, args: Args, input: Input) -> Result<Flow, Fault> {
    let (from, n) = vm.results;
    let results = Args { base: from, n: if input == Input::Step { 0 } else { n } };
    if input != Input::Step {
        vm.th.top = from + n;
    }
    match cont {
        Cont::Base => Ok(Flow::Nothing),
        Cont::Pcall | Cont::Xpcall(_) => {
            prepend(vm, results, Value::Bool(true))?;
            Ok(Flow::Many(n + 1))
        }
        Cont::Handler => {
            let value = vm.arg(results, 0);
            vm.push_all(&[Value::Bool(false), value])?;
            Ok(Flow::Many(2))
        }
        Cont::Resume(_, true) if input == Input::Failed => Err(Fault::At(1, vm.arg(results, 0))),
        Cont::Resume(_, false) => {
            prepend(vm, results, Value::Bool(input != Input::Failed))?;
            Ok(Flow::Many(n + 1))
        }
        Cont::Host | Cont::Yielded | Cont::Loaded | Cont::Resume(_, true) => Ok(Flow::Many(n)),
        Cont::ToString => lib::base::tostring_done(vm, results),
        Cont::Load(load) => load.step(vm, results),
        Cont::ForEach(each) => each.step(vm, args, results),
        Cont::Insert(insert) => insert.step(vm),
        Cont::Sort(sort) => sort.step(vm, args, results, input),
        Cont::Format(state) => state.run(vm, args),
        Cont::Encode(state) => state.run(vm),
        Cont::Pack(state) => state.run(vm, args),
        Cont::Decode(state) => state.run(vm),
        Cont::Match(state) => state.step(vm, args, results, input),
    }
}

/// Puts a value before results.
fn prepend(vm: &mut Vm, results: Args, value: Value) -> Result<(), Fault> {
    vm.push(Value::Nil)?;
    vm.th.stack.copy_within(results.base..results.base + results.n, results.base + 1);
    vm.th.stack[results.base] = value;
    Ok(())
}

/// `pcall` has caught an error. As Redis has it, a table with a text in `err` becomes the text, and what else is in `err`
/// follows the table.
pub(super) fn caught(vm: &mut Vm, value: Value) -> Result<Flow, Fault> {
    let mut value = value;
    if let Value::Table(tab) = value {
        let text = vm.heap.get_str(tab, vm.events[Event::Err as usize]);
        if !matches!(text, Value::Str(_) | Value::Number(_)) {
            vm.push_all(&[Value::Bool(false), value, text])?;
            return Ok(Flow::Many(3));
        }
        value = text;
    }
    vm.push_all(&[Value::Bool(false), value])?;
    Ok(Flow::Many(2))
}

/// `xpcall` has caught an error: its handler makes the result.
pub(super) fn handle(vm: &mut Vm, handler: Value, value: Value) -> Result<Flow, Fault> {
    if !handler.is_function() {
        return handler_failed(vm);
    }
    let at = vm.th.top;
    vm.push_all(&[handler, value])?;
    Ok(Flow::Call(Cont::Handler, at, 1))
}

/// The reader of `load` has failed.
pub(super) fn load_failed(vm: &mut Vm, value: Value) -> Result<Flow, Fault> {
    vm.push_all(&[Value::Nil, value])?;
    Ok(Flow::Many(2))
}

pub(super) fn handler_failed(vm: &mut Vm) -> Result<Flow, Fault> {
    let text = vm.heap.string(b"error in error handling")?;
    vm.push_all(&[Value::Bool(false), text])?;
    Ok(Flow::Many(2))
}
