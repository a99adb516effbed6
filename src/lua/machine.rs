//! What the host sees of the interpreter.
//!
//! | state | entered by | left by |
//! |---|---|---|
//! | idle | `new`, `reset` | `start` |
//! | ready | `start`, `answer`, `fail`, `run` that was out of fuel | `run` |
//! | waiting for the host | `run`: [`Outcome::Call`] | `answer`, `fail` |
//! | ended | `run`: [`Outcome::Done`], [`Outcome::Failed`] | `reset` |
//!
//! `reset` and dropping are possible in every state.

use super::call::MAIN;
use super::code::{Chunk, Const};
use super::exec;
use super::fault::Fault;
use super::gc::{Collection, Protos};
use super::heap::{Heap, LOADED_BYTES, Loaded};
use super::lib;
use super::names;
use super::thread::{FrameKind, Status};
use super::value::{Co, Tab, Value};
use super::vm::{EVENTS, Event, Exit, Input, Vm};
use hashbrown::HashMap;
use std::sync::Arc;

/// What a script may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a machine, its library included.
    pub max_bytes: usize,
    /// The longest string.
    pub max_string: usize,
    /// The longest source text, of scripts and of what they load.
    pub max_source: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_bytes: 64 << 20, max_string: 32 << 20, max_source: 1 << 20 }
    }
}

impl Chunk {
    /// Compiles source text. `name` is what errors call it: `@name` bare, other names as source text. The error is Lua's
    /// text, with its position.
    pub fn compile(source: &[u8], name: &str, limits: &Limits) -> Result<Arc<Chunk>, Box<[u8]>> {
        if source.len() > limits.max_source {
            return Err(b"source text too long"[..].into());
        }
        super::compile::compile(source, name.as_bytes(), 0).map(Arc::new)
    }
}

/// What the host puts into the library, under a dotted name.
#[derive(Clone, Debug)]
pub enum HostItem {
    /// A function: calls to it come out of [`Machine::run`] with this number.
    Function(u16),
    /// A number.
    Number(f64),
    /// A string.
    Text(Box<[u8]>),
}

/// Why [`Machine::run`] came back.
#[derive(Debug)]
pub enum Outcome {
    /// The script has ended; [`Machine::values`] are its results.
    Done,
    /// The steps are used up: `run` goes on.
    OutOfFuel,
    /// The script has called this function of the host; [`Machine::values`] are the arguments.
    Call(u16),
    /// The script has failed.
    Failed(Failure),
}

/// An error nobody caught.
#[derive(Debug)]
pub struct Failure {
    /// What was raised; `None` if the machine's bytes were used up.
    pub value: Option<Value>,
    /// The chunk's name, with its mark, and the line of the Lua function that it arose in.
    pub position: Option<(Arc<[u8]>, u32)>,
}

/// An interpreter. It runs one script at a time.
#[derive(Debug)]
pub struct Machine {
    vm: Vm,
    protos: Protos,
    /// The scripts that were loaded: chunk and main function, by the chunk's id.
    loaded: HashMap<u64, u32>,
    /// The memory of these chunks, bytes. They live on here when everybody else has forgotten them.
    loaded_bytes: usize,
    collection: Option<Collection>,
    /// What the host keeps alive.
    kept: Vec<Option<Value>>,
    /// Globals that were set for one script.
    set: Vec<Value>,
    pending: Option<Fault>,
    /// Steps charged since the last start, by runs and by what the host has made in between.
    used: u64,
    /// Steps that were left when the last run ended.
    left: i64,
    limits: Limits,
    items: Items,
    /// What scripts find, and what the text of a library finds while it is loaded.
    environments: [Tab; 2],
    base_bytes: usize,
}

/// What the host puts somewhere, by dotted names.
pub type HostItems = Arc<[(String, HostItem)]>;

/// Those beside the library, and all that is there while a library's text is loaded.
type Items = [HostItems; 2];

/// Bytes that are copied in the time of a step.
const BYTES_A_STEP: usize = 8;
/// So many scripts stay loaded.
const MAX_LOADED: usize = 512;
/// And so many bytes of them, when no script runs.
const MAX_LOADED_BYTES: usize = 4 << 20;
/// Garbage beyond which a machine that is reset begins anew.
const MAX_IDLE_BYTES: usize = 1 << 20;

impl Machine {
    /// A machine with the library and the host's own items.
    pub fn new(limits: Limits, items: HostItems) -> Machine {
        Machine::with_items(limits, [items, Arc::new([])])
    }

    /// The same for libraries of functions: `loading` is all that their texts find while they are
    /// [loaded](Machine::start_library).
    pub fn for_libraries(limits: Limits, items: HostItems, loading: HostItems) -> Machine {
        Machine::with_items(limits, [items, loading])
    }

    fn with_items(limits: Limits, items: Items) -> Machine {
        let mut heap = Heap::new(usize::MAX);
        let (environments, string_meta, events) = match library(&mut heap, &items) {
            Ok(made) => made,
            Err(_) => unreachable!("nothing limits the bytes of the library"),
        };
        heap.meter.max_bytes = limits.max_bytes.max(heap.meter.bytes);
        heap.meter.collect_at = heap.meter.bytes + (256 << 10);
        heap.meter.peak = heap.meter.bytes;
        let base_bytes = heap.meter.bytes;
        let th = std::mem::take(heap.threads.get_mut(MAIN.0));
        let vm = Vm {
            heap,
            th,
            current: MAIN,
            globals: environments[0],
            string_meta,
            events,
            results: (0, 0),
            input: Input::Results,
            origin: None,
            retried: None,
            random: lib::math::Random::new(),
            configs: Vec::new(),
            max_string: limits.max_string,
            max_source: limits.max_source,
            started: std::time::Instant::now(),
        };
        Machine {
            vm,
            protos: Protos::default(),
            loaded: HashMap::new(),
            loaded_bytes: 0,
            collection: None,
            kept: Vec::new(),
            set: Vec::new(),
            pending: None,
            used: 0,
            left: 0,
            limits,
            items,
            environments,
            base_bytes,
        }
    }

    /// Prepares a script to be run from its beginning. False if there is no room for it.
    pub fn start(&mut self, chunk: &Arc<Chunk>) -> bool {
        let proto = match self.loaded.get(&chunk.id) {
            Some(proto) => *proto,
            None => {
                if self.loaded.len() >= MAX_LOADED {
                    self.loaded.clear();
                    self.loaded_bytes = 0;
                }
                let Ok(proto) = self.load(chunk, false) else { return false };
                self.loaded.insert(chunk.id, proto);
                self.loaded_bytes += chunk.bytes();
                proto
            }
        };
        match self.vm.heap.new_closure(proto, Box::default()) {
            Ok(fun) => self.start_function(Value::Function(fun), &[]),
            Err(_) => false,
        }
    }

    /// Prepares the text of a library to be run from its beginning: what it makes is to be [kept](Machine::keep), and only
    /// that keeps it loaded. False if there is no room for it.
    pub fn start_library(&mut self, chunk: &Chunk) -> bool {
        let loaded = self.load(chunk, true).and_then(|proto| self.vm.heap.new_closure(proto, Box::default()));
        let Ok(fun) = loaded else { return false };
        self.vm.globals = self.environments[1];
        self.start_function(Value::Function(fun), &[])
    }

    /// Prepares a function to be called with arguments. False if there is no room for it.
    pub fn start_function(&mut self, function: Value, args: &[Value]) -> bool {
        let th = &mut self.vm.th;
        th.top = 1;
        th.status = Status::Running;
        (self.used, self.left) = (0, self.vm.heap.meter.left());
        let made = lib::coroutine::bottom_frame(&mut self.vm.th, &mut self.vm.heap.meter);
        let made = made.and_then(|()| self.vm.push(function)).and_then(|()| self.vm.push_all(args));
        self.vm.input = Input::Call(1, args.len());
        made.is_ok()
    }

    /// Goes on for so many steps; one is about an instruction. What the host has made since the last run is paid from them.
    pub fn run(&mut self, fuel: u64) -> Outcome {
        // It may be the reason to collect as well.
        if self.vm.heap.meter.resume() && self.collection.is_none() {
            self.collect();
        }
        let fuel = i64::try_from(fuel).unwrap_or(i64::MAX);
        let owed = (self.left - self.vm.heap.meter.fuel).max(0);
        self.vm.heap.meter.fuel = fuel.saturating_sub(owed);
        let outcome = self.advance();
        self.vm.heap.meter.resume();
        self.left = self.vm.heap.meter.fuel;
        self.used += (fuel - self.left).max(0) as u64;
        outcome
    }

    /// Lets no string and no part of a table be made that is larger, whoever makes it: the script fails then, and
    /// [`wants_more`](Machine::wants_more) says so.
    pub fn limit_at_once(&mut self, most_bytes: usize) {
        let meter = &mut self.vm.heap.meter;
        meter.most_at_once = most_bytes;
        meter.wants_more.set(false);
    }

    /// Steps that what the host has made since the last run has cost.
    pub fn owed(&self) -> u64 {
        u64::try_from(self.left - self.vm.heap.meter.fuel).unwrap_or(0)
    }

    /// Whether so many steps are more than may be done at once; the script [`wants_more`](Machine::wants_more) then.
    pub fn is_too_much(&self, steps: u64) -> bool {
        self.vm.heap.meter.at_once((steps as usize).saturating_mul(BYTES_A_STEP)).is_err()
    }

    /// Whether the script needed more at once than it might.
    pub fn wants_more(&self) -> bool {
        self.vm.heap.meter.wants_more.get()
    }

    fn advance(&mut self) -> Outcome {
        loop {
            if let Some(collection) = &mut self.collection {
                if !collection.run(&mut self.vm, &mut self.protos) {
                    return Outcome::OutOfFuel;
                }
                self.collection = None;
                let meter = &mut self.vm.heap.meter;
                let room = meter.max_bytes.saturating_sub(meter.bytes);
                meter.collect_at = meter.bytes + meter.bytes.min(room / 2).max(64 << 10);
                meter.resume();
                if let Some(retried) = &mut self.vm.retried {
                    retried.bytes = meter.bytes;
                }
            }
            let exit = match self.pending.take() {
                Some(fault) => super::call::unwind(&mut self.vm, &self.protos.slots, fault).err(),
                None => None,
            };
            let exit = exit.unwrap_or_else(|| exec::run(&mut self.vm, &self.protos.slots));
            match exit {
                Exit::Fuel => return Outcome::OutOfFuel,
                Exit::Collect => self.collect(),
                Exit::Done => return Outcome::Done,
                Exit::Host(id) => return Outcome::Call(id),
                Exit::Load(chunk) => self.load_for_script(&chunk),
                Exit::Failed(fault) => return Outcome::Failed(self.failure(fault)),
            }
        }
    }

    fn collect(&mut self) {
        let mut roots: Vec<Value> = self.kept.iter().flatten().copied().collect();
        roots.extend_from_slice(&self.set);
        if let Some(Fault::Value(value)) = &self.pending {
            roots.push(*value);
        }
        let loaded: Vec<u32> = self.loaded.values().copied().collect();
        self.collection = Some(Collection::start(&mut self.vm, &mut self.protos, &roots, &loaded));
    }

    fn failure(&mut self, fault: Fault) -> Failure {
        let value = match fault {
            Fault::Value(value) => Some(value),
            _ => None,
        };
        let position = self.vm.origin.take().map(|(proto, pc)| {
            let proto = &self.protos.slots[proto as usize].proto;
            (Arc::clone(&proto.source), proto.line((pc as usize).saturating_sub(1)))
        });
        Failure { value, position }
    }

    // Chunks.

    /// The main function of a chunk in this machine.
    fn load(&mut self, chunk: &Chunk, own: bool) -> Result<u32, Fault> {
        let mut places: Vec<u32> = Vec::with_capacity(chunk.protos.len());
        for proto in &chunk.protos {
            let children: Box<[u32]> = proto.children.iter().map(|child| places[*child as usize]).collect();
            let mut charged = LOADED_BYTES + proto.consts.len() * size_of::<Value>() + children.len() * 4;
            if own {
                charged += proto.bytes();
            }
            self.vm.heap.meter.take(charged)?;
            let consts = proto.consts.iter().map(|constant| {
                Ok(match constant {
                    Const::Nil => Value::Nil,
                    Const::Bool(b) => Value::Bool(*b),
                    Const::Number(n) => Value::Number(*n),
                    Const::Str(text) => self.vm.heap.string(text)?,
                })
            });
            let consts = consts.collect::<Result<_, Fault>>()?;
            places.push(self.protos.add(Loaded { proto: Arc::clone(proto), consts, children, charged }));
        }
        places.last().copied().ok_or(Fault::Memory)
    }

    fn load_for_script(&mut self, chunk: &Chunk) {
        let made = self.load(chunk, true).and_then(|proto| self.vm.heap.new_closure(proto, Box::default()));
        match made.and_then(|fun| self.vm.push(Value::Function(fun))) {
            Ok(()) => {
                self.vm.results = (self.vm.th.top - 1, 1);
                self.vm.input = Input::Results;
            }
            Err(fault) => self.pending = Some(fault),
        }
    }

    // The host's side of a call.

    /// The arguments of the host's function, or the script's results.
    pub fn values(&self) -> &[Value] {
        let (from, n) = self.vm.results;
        &self.vm.th.stack[from..from + n]
    }

    /// The host's function returns these values.
    pub fn answer(&mut self, values: &[Value]) {
        let from = self.vm.th.top;
        match self.vm.push_all(values) {
            Ok(()) => {
                self.vm.results = (from, values.len());
                self.vm.input = Input::Results;
            }
            Err(fault) => self.pending = Some(fault),
        }
    }

    /// The host's function raises this value.
    pub fn fail(&mut self, value: Value) {
        self.leave_host();
        self.pending = Some(Fault::Value(value));
    }

    /// The host's function raises a text, with the position of its caller before it if it is wanted.
    pub fn fail_text(&mut self, text: &[u8], position: bool) {
        self.leave_host();
        let mut whole = if position { names::position(&self.vm, &self.protos.slots, 1) } else { Vec::new() };
        whole.extend_from_slice(text);
        self.pending = Some(self.vm.heap.owned(whole).map_or_else(|fault| fault, Fault::Value));
    }

    /// The frame of the host's function goes away, as that of a function that has failed.
    fn leave_host(&mut self) {
        self.vm.th.conts.pop();
        if let Some(frame) = self.vm.th.frames.pop()
            && frame.ret != super::thread::Return::Place
        {
            self.vm.th.levels -= 1;
        }
    }

    /// The chunk's name, with its mark, and the line from which the host's function was called, if a Lua function did.
    pub fn caller(&self) -> Option<(Arc<[u8]>, u32)> {
        let frame = self.vm.th.frames.iter().rev().nth(1)?;
        if frame.kind != FrameKind::Lua {
            return None;
        }
        let proto = &self.protos.slots[frame.proto as usize].proto;
        Some((Arc::clone(&proto.source), proto.line((frame.pc as usize).saturating_sub(1))))
    }

    /// Ends whatever runs. What the scripts have left behind goes, at once or with the next collection.
    pub fn reset(&mut self) {
        let idle = MAX_IDLE_BYTES.min((self.vm.heap.meter.max_bytes - self.base_bytes) / 2);
        let garbage = self.vm.heap.meter.bytes > self.base_bytes + idle;
        let has_much = self.loaded_bytes > MAX_LOADED_BYTES;
        if (garbage || has_much || self.collection.is_some()) && self.kept.iter().all(Option::is_none) {
            let random = self.vm.random;
            *self = Machine::with_items(self.limits, self.items.clone());
            self.vm.random = random;
            return;
        }
        if let Some(collection) = &mut self.collection.take() {
            self.vm.heap.meter.fuel = i64::MAX;
            collection.run(&mut self.vm, &mut self.protos);
        }
        if self.vm.current != MAIN {
            let main = std::mem::take(self.vm.heap.threads.get_mut(MAIN.0));
            let current = self.vm.current;
            *self.vm.heap.threads.get_mut(current.0) = std::mem::replace(&mut self.vm.th, main);
            self.vm.current = MAIN;
        }
        self.vm.close_upvalues(0);
        let th = &mut self.vm.th;
        let charged: usize = th.conts.iter().map(super::cont::Cont::bytes).sum();
        th.frames.clear();
        th.conts.clear();
        (th.top, th.levels, th.base_levels, th.parent) = (1, 0, 0, Co(0));
        self.vm.heap.meter.give(charged);
        self.vm.heap.meter.give(self.vm.configs.len().saturating_sub(1) * size_of::<lib::cjson::Config>());
        self.vm.configs.clear();
        self.vm.results = (0, 0);
        self.vm.retried = None;
        self.pending = None;
        self.vm.globals = self.environments[0];
        for name in std::mem::take(&mut self.set) {
            let heap = &mut self.vm.heap;
            if let Some(slot) = heap.tables.get_mut(self.vm.globals.0).slot(name, &mut heap.meter) {
                *slot = Value::Nil;
            }
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.vm.heap.meter.bytes
    }

    /// The memory of the chunks that stay loaded, bytes. They are shared with whoever else has them.
    pub fn loaded_bytes(&self) -> usize {
        self.loaded_bytes
    }

    /// The most bytes that were ever in use.
    pub fn peak_bytes(&self) -> usize {
        self.vm.heap.meter.peak
    }

    /// Steps charged since the last start.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The state of `math.random`, which goes on from script to script.
    pub fn random(&self) -> u64 {
        self.vm.random.state()
    }

    /// Lets `math.random` go on from a state.
    pub fn set_random(&mut self, state: u64) {
        self.vm.random = lib::math::Random::from_state(state);
    }

    // Values. They hold until the machine runs again, unless the script can reach them or they are kept.

    /// A string. `None` if there is no room for it, here and below.
    pub fn string(&mut self, bytes: &[u8]) -> Option<Value> {
        self.vm.heap.string(bytes).ok()
    }

    /// The bytes of a string.
    pub fn bytes_of(&self, value: Value) -> Option<&[u8]> {
        match value {
            Value::Str(s) => Some(self.vm.heap.bytes(s)),
            _ => None,
        }
    }

    /// A string's bytes, or a number as Lua prints it, appended to `out`; false for other values.
    pub fn write_text(&self, value: Value, out: &mut Vec<u8>) -> bool {
        match value {
            Value::Str(s) => out.extend_from_slice(self.vm.heap.bytes(s)),
            Value::Number(n) => super::number::print(n, out),
            _ => return false,
        }
        true
    }

    /// A table with room for so many elements and pairs.
    pub fn table(&mut self, elements: usize, pairs: usize) -> Option<Tab> {
        self.vm.heap.new_table(elements, pairs).ok()
    }

    /// Assigns without metamethods.
    pub fn set(&mut self, tab: Tab, key: Value, value: Value) -> Option<()> {
        self.vm.heap.raw_set(tab, key, value).ok()
    }

    /// Assigns an element without metamethods.
    pub fn set_index(&mut self, tab: Tab, n: usize, value: Value) -> Option<()> {
        self.vm.heap.raw_set_int(tab, n as i64, value).ok()
    }

    /// Reads without metamethods.
    pub fn get(&mut self, tab: Tab, key: Value) -> Value {
        self.vm.heap.get(tab, key)
    }

    /// Reads a field without metamethods.
    pub fn get_field(&mut self, tab: Tab, name: &str) -> Value {
        match self.vm.heap.string(name.as_bytes()) {
            Ok(key) => self.vm.heap.get(tab, key),
            Err(_) => Value::Nil,
        }
    }

    /// Reads an element without metamethods.
    pub fn get_index(&mut self, tab: Tab, n: usize) -> Value {
        self.vm.heap.get_int(tab, n as i64)
    }

    /// A table's border, as `#` finds it.
    pub fn len(&mut self, tab: Tab) -> usize {
        self.vm.heap.border(tab)
    }

    /// The pair after a key in the order of `next`.
    pub fn next(&mut self, tab: Tab, key: Value) -> Option<(Value, Value)> {
        let heap = &mut self.vm.heap;
        heap.tables.get(tab.0).next(key, &mut heap.meter).ok().flatten()
    }

    /// Sets a global for the script that is started next; `reset` takes it away.
    pub fn set_global(&mut self, name: &str, value: Value) -> Option<()> {
        let name = self.string(name.as_bytes())?;
        self.vm.heap.raw_set(self.vm.globals, name, value).ok()?;
        self.set.push(name);
        Some(())
    }

    /// Keeps a value alive over runs and resets; the number takes it away again.
    pub fn keep(&mut self, value: Value) -> usize {
        match self.kept.iter().position(Option::is_none) {
            Some(at) => {
                self.kept[at] = Some(value);
                at
            }
            None => {
                self.kept.push(Some(value));
                self.kept.len() - 1
            }
        }
    }

    /// A value that is kept.
    pub fn kept(&self, at: usize) -> Value {
        self.kept.get(at).copied().flatten().unwrap_or(Value::Nil)
    }

    /// No longer keeps a value.
    pub fn forget(&mut self, at: usize) {
        if let Some(slot) = self.kept.get_mut(at) {
            *slot = None;
        }
    }
}

type Library = ([Tab; 2], Tab, [super::value::Str; EVENTS.len()]);

/// Makes the library. Its strings and tables are never collected, and its tables cannot be written.
fn library(heap: &mut Heap, [items, loading]: &Items) -> Result<Library, Fault> {
    let mut events = [super::value::Str { id: 0, hash: 0 }; EVENTS.len()];
    for (slot, name) in events.iter_mut().zip(EVENTS) {
        *slot = heap.strings.intern(name.as_bytes(), &mut heap.meter)?;
    }
    let globals = heap.new_table(0, 64)?;
    lib::open(heap, globals)?;
    host_items(heap, globals, items)?;
    let bare = heap.new_table(0, 1)?;
    host_items(heap, bare, loading)?;
    let bare_tables = bare.0..heap.tables.len();
    let index = Value::Str(events[Event::Index as usize]);
    let string_meta = heap.new_table(0, 1)?;
    let string = heap.string(b"string")?;
    let string = heap.get(globals, string);
    heap.raw_set(string_meta, index, string)?;
    let global_meta = heap.new_table(0, 1)?;
    heap.raw_set(global_meta, index, Value::Native(lib::place_of("(undefined)")))?;
    heap.table_mut(globals).set_meta(Some(global_meta));
    // While a library is loaded, what is not there may not be asked for in the host's tables either.
    for at in bare_tables {
        heap.table_mut(Tab(at)).set_meta(Some(global_meta));
    }
    heap.tables.fix();
    heap.strings.fix();
    for at in 0..heap.tables.fixed() {
        heap.table_mut(Tab(at)).readonly = true;
    }
    let main = lib::coroutine::bottom(&mut heap.meter)?;
    heap.threads.add(main);
    heap.threads.fix();
    Ok(([globals, bare], string_meta, events))
}

fn host_items(heap: &mut Heap, globals: Tab, items: &[(String, HostItem)]) -> Result<(), Fault> {
    for (name, item) in items {
        let value = match item {
            HostItem::Function(id) => Value::Host(*id),
            HostItem::Number(n) => Value::Number(*n),
            HostItem::Text(text) => heap.string(text)?,
        };
        lib::register(heap, globals, name, value)?;
    }
    Ok(())
}
