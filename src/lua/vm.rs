//! What runs: the heap, the running coroutine, and the ways between them.

use super::cont::Cont;
use super::fault::Fault;
use super::heap::Heap;
use super::thread::{MAX_C_LEVELS, Return, Thread};
use super::value::{Co, Str, Tab, Value};

/// Metamethods and other strings the machine itself asks for, by their places among the strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Event {
    Index,
    NewIndex,
    Eq,
    Len,
    Call,
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Unm,
    Lt,
    Le,
    Concat,
    Metatable,
    ToString,
    Err,
    N,
}

pub(super) const EVENTS: [&str; 19] = [
    "__index",
    "__newindex",
    "__eq",
    "__len",
    "__call",
    "__add",
    "__sub",
    "__mul",
    "__div",
    "__mod",
    "__pow",
    "__unm",
    "__lt",
    "__le",
    "__concat",
    "__metatable",
    "__tostring",
    "err",
    "n",
];

/// Where the arguments of a library function are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Args {
    pub(super) base: usize,
    pub(super) n: usize,
}

/// How a library function went on.
#[derive(Debug)]
pub(super) enum Flow {
    /// No result.
    Nothing,
    /// One result.
    One(Value),
    /// So many results, the last of which is below the coroutine's top.
    Many(usize),
    /// The function at this place is to be called with so many arguments after it; its results go to the state.
    Call(Cont, usize, usize),
    /// The state goes on at once, unless the fuel is used up.
    Step(Cont),
    /// The coroutine goes on with so many values, those below the top.
    Resume(Co, usize, Cont),
    /// The running coroutine rests; so many values below the top go to the one that resumed it.
    Yield(usize),
    /// A chunk is to be loaded; its function is the result.
    Load(super::Chunk),
}

/// An instruction, and the bytes in use when it was tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retried {
    pub(super) place: (Co, usize, u32),
    pub(super) bytes: usize,
    /// How often the script has been helped so.
    pub(super) tries: u8,
}

/// What the library function on top of the frames goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// `Vm::results`
    Results,
    /// It wants the function at this place called with so many arguments.
    Call(usize, usize),
    /// It was interrupted by itself.
    Step,
    /// The coroutine that it resumed has failed with the value at `Vm::results`.
    Failed,
}

/// Why execution stops.
#[derive(Debug)]
pub(super) enum Exit {
    /// The fuel of this run is used up.
    Fuel,
    /// Garbage is to be collected.
    Collect,
    /// The script has ended; its results are `Vm::results`.
    Done,
    /// The host is to do something; the arguments are `Vm::results`.
    Host(u16),
    /// A chunk is to be loaded; its function is the result of the library function in the topmost frame.
    Load(super::Chunk),
    /// The script has failed.
    Failed(Fault),
}

pub(super) type NativeFn = fn(&mut Vm, Args) -> Result<Flow, Fault>;

/// The part of a machine that library functions see.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) heap: Heap,
    /// The running coroutine's; its place in the arena is empty meanwhile.
    pub(super) th: Thread,
    pub(super) current: Co,
    pub(super) globals: Tab,
    pub(super) string_meta: Tab,
    pub(super) events: [Str; EVENTS.len()],
    /// Results for the library function on top of the frames: place and count.
    pub(super) results: (usize, usize),
    /// What the library function on top of the frames goes on with.
    pub(super) input: Input,
    /// The instruction that was last tried again after a collection because there was no room for it.
    pub(super) retried: Option<Retried>,
    /// Where the error arose that the script has failed with: function and instruction.
    pub(super) origin: Option<(u32, u32)>,
    pub(super) random: super::lib::math::Random,
    /// Settings of `cjson`, and of what `cjson.new` made.
    pub(super) configs: Vec<super::lib::cjson::Config>,
    /// The longest string, and the longest source text, in bytes.
    pub(super) max_string: usize,
    pub(super) max_source: usize,
    /// Processor time at the start of the machine, for `os.clock`.
    pub(super) started: std::time::Instant,
}

impl Vm {
    pub(super) fn event(&self, event: Event) -> Str {
        self.events[event as usize]
    }

    // Arguments.

    #[inline(always)]
    pub(super) fn arg(&self, args: Args, n: usize) -> Value {
        if n < args.n { self.th.stack[args.base + n] } else { Value::Nil }
    }

    /// What error texts call an argument's type: absent ones have none.
    pub(super) fn arg_type(&self, args: Args, n: usize) -> &'static str {
        if n < args.n { self.arg(args, n).type_name() } else { "no value" }
    }

    pub(super) fn type_error(&self, args: Args, n: usize, wanted: &str) -> Fault {
        Fault::arg(n + 1, format!("{wanted} expected, got {}", self.arg_type(args, n)))
    }

    pub(super) fn check_any(&self, args: Args, n: usize) -> Result<Value, Fault> {
        if n < args.n { Ok(self.arg(args, n)) } else { Err(Fault::arg(n + 1, "value expected")) }
    }

    pub(super) fn check_table(&self, args: Args, n: usize) -> Result<Tab, Fault> {
        match self.arg(args, n) {
            Value::Table(tab) => Ok(tab),
            _ => Err(self.type_error(args, n, "table")),
        }
    }

    pub(super) fn check_function(&self, args: Args, n: usize) -> Result<Value, Fault> {
        let value = self.arg(args, n);
        if value.is_function() { Ok(value) } else { Err(self.type_error(args, n, "function")) }
    }

    pub(super) fn check_number(&mut self, args: Args, n: usize) -> Result<f64, Fault> {
        match self.arg(args, n) {
            Value::Number(number) => Ok(number),
            value => self.number_of(value).ok_or_else(|| self.type_error(args, n, "number")),
        }
    }

    pub(super) fn check_int(&mut self, args: Args, n: usize) -> Result<i64, Fault> {
        Ok(to_int(self.check_number(args, n)?))
    }

    /// An argument that C takes as an `int`.
    pub(super) fn check_i32(&mut self, args: Args, n: usize) -> Result<i32, Fault> {
        Ok(self.check_int(args, n)? as i32)
    }

    pub(super) fn opt_i32(&mut self, args: Args, n: usize, default: i32) -> Result<i32, Fault> {
        if self.arg(args, n).is_nil() { Ok(default) } else { self.check_i32(args, n) }
    }

    pub(super) fn opt_int(&mut self, args: Args, n: usize, default: i64) -> Result<i64, Fault> {
        if self.arg(args, n).is_nil() { Ok(default) } else { self.check_int(args, n) }
    }

    /// A string, or a number turned into one.
    pub(super) fn check_string(&mut self, args: Args, n: usize) -> Result<Str, Fault> {
        match self.arg(args, n) {
            Value::Str(s) => Ok(s),
            Value::Number(number) => {
                let mut text = Vec::new();
                super::number::print(number, &mut text);
                let s = self.heap.strings.intern_owned(text, &mut self.heap.meter)?;
                // As in Lua the argument itself becomes the string, which keeps it alive.
                self.th.stack[args.base + n] = Value::Str(s);
                Ok(s)
            }
            _ => Err(self.type_error(args, n, "string")),
        }
    }

    pub(super) fn opt_string(&mut self, args: Args, n: usize) -> Result<Option<Str>, Fault> {
        if self.arg(args, n).is_nil() { Ok(None) } else { self.check_string(args, n).map(Some) }
    }

    // Conversions.

    pub(super) fn number_of(&mut self, value: Value) -> Option<f64> {
        match value {
            Value::Number(n) => Some(n),
            Value::Str(s) => {
                self.heap.meter.read(self.heap.strings.get(s).len());
                super::number::parse(self.heap.bytes(s))
            }
            _ => None,
        }
    }

    /// Pushes a value at the top of the running coroutine.
    pub(super) fn push(&mut self, value: Value) -> Result<(), Fault> {
        self.th.reserve(self.th.top + 1, &mut self.heap.meter)?;
        self.th.stack[self.th.top] = value;
        self.th.top += 1;
        Ok(())
    }

    pub(super) fn push_all(&mut self, values: &[Value]) -> Result<(), Fault> {
        self.th.reserve(self.th.top + values.len(), &mut self.heap.meter)?;
        self.th.stack[self.th.top..self.th.top + values.len()].copy_from_slice(values);
        self.th.top += values.len();
        Ok(())
    }

    pub(super) fn owned(&mut self, bytes: Vec<u8>) -> Result<Value, Fault> {
        self.check_length(bytes.len())?;
        self.heap.owned(bytes)
    }

    pub(super) fn check_length(&self, bytes: usize) -> Result<(), Fault> {
        if bytes > self.max_string {
            return Err(Fault::lib("resulting string too large"));
        }
        self.heap.meter.room(bytes)
    }

    /// Charges a step of writing, and what an output of this length has grown by beyond what was charged for it.
    pub(super) fn charge_output(&mut self, len: usize, charged: &mut usize) -> Result<(), Fault> {
        self.heap.meter.work(2);
        if len > *charged {
            self.check_length(len)?;
            let more = (len - *charged).max(*charged).max(256);
            self.heap.meter.take(more)?;
            *charged += more;
        }
        Ok(())
    }

    pub(super) fn enter_level(&mut self, ret: Return) -> Result<(), Fault> {
        if ret != Return::Place {
            if self.th.levels >= MAX_C_LEVELS {
                return Err(Fault::run("C stack overflow"));
            }
            self.th.levels += 1;
        }
        Ok(())
    }

    /// Closes the upvalues from a place on.
    pub(super) fn close_upvalues(&mut self, from: usize) {
        while let Some((place, upvalue)) = self.th.open.last().copied()
            && place as usize >= from
        {
            let value = self.th.stack[place as usize];
            *self.heap.upvalues.get_mut(upvalue) = super::heap::Upvalue::Closed(value);
            self.th.open.pop();
        }
    }
}

/// A double as C converts it to `unsigned long` on common machines.
pub(super) fn to_unsigned(n: f64) -> u64 {
    if n >= 9_223_372_036_854_775_808.0 {
        if n < 18_446_744_073_709_551_616.0 { n as u64 } else { 0 }
    } else {
        to_int(n) as u64
    }
}

/// A number as an integer, cut off, as C converts it where it can.
pub(super) fn to_int(n: f64) -> i64 {
    // 2^63 is the first double that does not fit.
    if n.abs() < 9_223_372_036_854_775_808.0 { n as i64 } else { i64::MIN }
}
