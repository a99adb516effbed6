//! Libraries of functions: their texts read and loaded, and kept loaded by the threads that run their functions.
//!
//! | what | where |
//! |---|---|
//! | the first line, `#!lua name=…` | [`name_of`] |
//! | the text is run once, to see what it registers | [`Making`], on a machine of its own that is dropped |
//! | the same again, on each thread that runs one of its functions | [`Kept`] |
//!
//! **What a library keeps in its variables** between two calls is the thread's: to share it, all threads would have to wait for
//! each other. It may be forgotten at any time: a call that is run again from its beginning, or one after which the machine holds
//! more than [`MOST_KEPT`], has the library loaded anew. So no call finds what another one has left half done; and it is no place
//! for data.

use std::cell::RefCell;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Weak};

use super::convert::one_line;
use super::host::{self, Host, Whose};
use super::run::{NO_ROOM, STEPS_A_STEP, cause, fail};
use crate::error::{Error, Result};
use crate::lua::{Chunk, Limits, Machine, Outcome, Tab, Value};
use crate::meter;
use crate::shard::memory::libraries::{Function, Libraries, Library};
use crate::util::scale::Scaled;
use crate::util::words;

/// The flags of functions, in the order in which FUNCTION LIST has them: their places are their bits.
pub(super) const FLAGS: [&str; 5] = ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];

/// A function of this flag writes nothing.
pub(super) const NO_WRITES: u8 = 1;
/// A function of this flag may add where there is no room.
pub(super) const ALLOW_OOM: u8 = 1 << 1;

/// Bytes that all libraries together may take.
pub(super) const MOST_BYTES: Scaled<usize> = Scaled::new(8 << 20);
/// Steps that a library is given at a time while it is loaded, and in all: some tens of milliseconds. It has no library then,
/// and nothing to do but to register its functions.
const SLICE: u64 = 64 << 10;
const MOST_STEPS: u64 = 8 << 20;
/// What a call of the host counts besides, in steps.
const STEPS_OF_LOG: u64 = 4 << 10;
const STEPS_OF_REGISTER: u64 = 64;
/// What a thread's machine may hold when no function runs. The compiled libraries, which threads share, count among it.
const MOST_KEPT: usize = 2 * (8 << 20);

const NAME: &str =
    "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&c| c.is_ascii_alphanumeric() || c == b'_')
}

/// A text of several parts, on one line.
pub(super) fn told(parts: &[&[u8]]) -> Error {
    Error::Quoted(one_line(parts.concat()).into())
}

/// The name in a library's first line.
pub(super) fn name_of(code: &[u8]) -> Result<Box<[u8]>> {
    const INVALID: Error = Error::err("ERR Invalid library metadata");
    if !code.starts_with(super::SHEBANG) {
        return Err(Error::err("ERR Missing library metadata"));
    }
    let line = &code[..memchr::memchr(b'\n', code).ok_or(INVALID)?];
    if line.contains(&0) {
        return Err(INVALID);
    }
    let words = words::split(line).ok_or(INVALID)?;
    let mut name: Option<&[u8]> = None;
    for word in words.iter().skip(1) {
        const KEY: &[u8] = b"name=";
        match word.split_at_checked(KEY.len()) {
            Some((key, _)) if key.eq_ignore_ascii_case(KEY) && name.is_some() => {
                return Err(Error::err("ERR Invalid metadata value, name argument was given multiple times"));
            }
            Some((key, value)) if key.eq_ignore_ascii_case(KEY) => name = Some(value),
            _ => return Err(told(&[b"ERR Invalid metadata value given: ", word])),
        }
    }
    let name = name.ok_or(Error::err("ERR Library name was not given"))?;
    if !is_name(name) {
        return Err(Error::err(NAME));
    }
    let engine = words.first().map_or(&b""[..], |word| &word[super::SHEBANG.len().min(word.len())..]);
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(told(&[b"ERR Engine '", engine, b"' not found"]));
    }
    Ok(name.into())
}

/// A text that is being loaded.
#[derive(Debug, Default)]
struct Loader {
    functions: Vec<Function>,
    /// Where the machine keeps them.
    kept: Vec<usize>,
    /// Steps that the calls of the host count.
    called: u64,
}

impl Loader {
    fn start(machine: &mut Machine, chunk: &Chunk) -> Result<Loader> {
        if machine.start_library(chunk) { Ok(Loader::default()) } else { Err(NO_ROOM) }
    }

    /// Goes on for a slice; whether it is through.
    fn advance(&mut self, machine: &mut Machine) -> Result<bool> {
        let until = self.steps(machine) + SLICE;
        loop {
            let steps = self.steps(machine);
            if steps > MOST_STEPS {
                return Err(told(&[REGISTERING, b"ERR FUNCTION LOAD timeout"]));
            }
            if steps >= until {
                return Ok(false);
            }
            match machine.run(until - steps) {
                Outcome::Done => return Ok(true),
                Outcome::OutOfFuel => {}
                Outcome::Failed(failure) => return Err(told(&[REGISTERING, &cause(machine, &failure).0])),
                Outcome::Call(number) => self.call(machine, number)?,
            }
        }
    }

    fn steps(&self, machine: &Machine) -> u64 {
        machine.used() + self.called
    }

    fn call(&mut self, machine: &mut Machine, number: u16) -> Result {
        let args = machine.values().to_vec();
        match host::function(number) {
            Some(Host::Log) => {
                self.called += STEPS_OF_LOG;
                host::log(machine, &args)
            }
            Some(Host::RegisterFunction) => {
                self.called += STEPS_OF_REGISTER;
                match self.register(machine, &args) {
                    Ok(()) => {
                        machine.answer(&[]);
                        Ok(())
                    }
                    Err(text) => fail(machine, text.as_bytes()),
                }
            }
            _ => fail(machine, b"ERR this function can not be called while a library is loaded"),
        }
    }

    fn register(&mut self, machine: &mut Machine, args: &[Value]) -> Result<(), &'static str> {
        let (function, callback) = match *args {
            [Value::Table(tab)] => named(machine, tab)?,
            [_] => {
                return Err(
                    "ERR calling redis.register_function with a single argument is only applicable to Lua table \
                            (representing named arguments).",
                );
            }
            [name, callback] => {
                let name =
                    text_of(machine, name).ok_or("ERR first argument to redis.register_function must be a string")?;
                if !is_function(callback) {
                    return Err("ERR second argument to redis.register_function must be a function");
                }
                (Function { name, description: None, flags: 0 }, callback)
            }
            _ => return Err("ERR wrong number of arguments to redis.register_function"),
        };
        if !is_name(&function.name) {
            return Err(NAME);
        }
        if self.functions.iter().any(|other| other.name == function.name) {
            return Err("ERR Function already exists in the library");
        }
        self.called += self.functions.len() as u64;
        self.kept.push(machine.keep(callback));
        self.functions.push(function);
        Ok(())
    }

    /// What was kept of a text that could not be loaded goes.
    fn give_up(self, machine: &mut Machine) {
        self.kept.into_iter().for_each(|at| machine.forget(at));
        machine.reset();
    }
}

const REGISTERING: &[u8] = b"ERR Error registering functions: ";

fn is_function(value: Value) -> bool {
    value.type_name() == "function"
}

fn text_of(machine: &Machine, value: Value) -> Option<Box<[u8]>> {
    let mut text = Vec::new();
    machine.write_text(value, &mut text).then(|| text.into())
}

/// The named arguments of `redis.register_function`.
fn named(machine: &mut Machine, tab: Tab) -> Result<(Function, Value), &'static str> {
    let (mut name, mut callback, mut description, mut flags) = (None, None, None, 0);
    let mut key = Value::Nil;
    while let Some((next, value)) = machine.next(tab, key) {
        key = next;
        let word =
            text_of(machine, key).ok_or("ERR named argument key given to redis.register_function is not a string")?;
        match &*word.to_ascii_lowercase() {
            b"function_name" => {
                const WRONG: &str = "ERR function_name argument given to redis.register_function must be a string";
                name = Some(text_of(machine, value).ok_or(WRONG)?);
            }
            b"description" => {
                const WRONG: &str = "ERR description argument given to redis.register_function must be a string";
                description = Some(text_of(machine, value).ok_or(WRONG)?);
            }
            b"callback" if is_function(value) => callback = Some(value),
            b"callback" => return Err("ERR callback argument given to redis.register_function must be a function"),
            b"flags" => match value {
                Value::Table(tab) => flags = flags_in(machine, tab)?,
                _ => {
                    return Err(
                        "ERR flags argument to redis.register_function must be a table representing function flags",
                    );
                }
            },
            _ => return Err("ERR unknown argument given to redis.register_function"),
        }
    }
    let name = name.ok_or("ERR redis.register_function must get a function name argument")?;
    let callback = callback.ok_or("ERR redis.register_function must get a callback argument")?;
    Ok((Function { name, description, flags }, callback))
}

fn flags_in(machine: &mut Machine, tab: Tab) -> Result<u8, &'static str> {
    let mut flags = 0;
    for n in 1.. {
        let value = machine.get_index(tab, n);
        if value.is_nil() {
            break;
        }
        let word = machine.bytes_of(value).unwrap_or_default();
        let at = FLAGS.iter().position(|flag| flag.as_bytes().eq_ignore_ascii_case(word));
        flags |= 1 << at.ok_or("ERR unknown flag given")?;
    }
    Ok(flags)
}

/// A library that is being made of its text.
pub(super) struct Making {
    name: Box<[u8]>,
    chunk: Arc<Chunk>,
    machine: Machine,
    loader: Loader,
    /// Steps and bytes that the meter has been told of.
    told: (u64, usize),
}

/// An empty machine for libraries.
fn machine() -> Machine {
    Machine::for_libraries(Limits::default(), host::items(Whose::Function), host::items(Whose::Library))
}

impl Making {
    /// Compiles a text.
    pub(super) fn of(name: Box<[u8]>, code: &[u8]) -> Result<Making> {
        // Lines are counted from the first on.
        let source = &code[memchr::memchr(b'\n', code).unwrap_or(0)..];
        let chunk = Chunk::compile(source, "@user_function", &Limits::default())
            .map_err(|text| told(&[b"ERR Error compiling function: ", &text[..]]))?;
        let mut machine = machine();
        let loader = Loader::start(&mut machine, &chunk)?;
        let told = (0, machine.bytes());
        Ok(Making { name, chunk, machine, loader, told })
    }

    /// Goes on for a slice; whether it is through.
    pub(super) fn advance(&mut self) -> Result<bool> {
        self.loader.advance(&mut self.machine)
    }

    /// Tells the meter what it took since the last time.
    pub(super) fn charge(&mut self) -> Result {
        let (steps, bytes) = (self.loader.steps(&self.machine), self.machine.bytes().max(self.told.1));
        let before = std::mem::replace(&mut self.told, (steps, bytes));
        meter::hold(bytes - before.1)?;
        meter::step(((steps - before.0) / STEPS_A_STEP) as usize)
    }

    /// The library, once it is through.
    pub(super) fn library(self, code: &[u8]) -> Result<Library> {
        if self.loader.functions.is_empty() {
            return Err(Error::err("ERR No functions registered"));
        }
        Ok(Library::new(&self.name, code, Some(self.chunk), self.loader.functions))
    }
}

/// A library that was stored. One that cannot be loaded any more has no functions.
pub fn stored(code: &[u8]) -> Option<Library> {
    let name = name_of(code).ok()?;
    let made = Making::of(name.clone(), code).and_then(|mut making| {
        while !making.advance()? {}
        making.library(code)
    });
    Some(made.unwrap_or_else(|error| {
        let library = String::from_utf8_lossy(&name).into_owned();
        tracing::error!(%error, library, "a library of functions cannot be loaded any more, and has none");
        Library::new(&name, code, None, Vec::new())
    }))
}

thread_local! {
    /// The machine of this thread, while no function runs, and what it has loaded.
    static KEPT: RefCell<Option<(Machine, Kept)>> = const { RefCell::new(None) };
}

/// What a machine has loaded of libraries.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The list as of which it has dropped those that are gone.
    of: Weak<Libraries>,
    /// By the library's id, where the machine keeps its functions, in their order.
    loaded: HashMap<u64, Vec<usize>>,
}

/// The machine of this thread.
pub(super) fn take() -> (Machine, Kept) {
    KEPT.take().unwrap_or_else(|| (machine(), Kept::default()))
}

/// Gives the machine back to its thread.
pub(super) fn give_back(mut machine: Machine, kept: Kept) {
    if machine.bytes() <= MOST_KEPT {
        machine.reset();
        KEPT.set(Some((machine, kept)));
    }
}

impl Kept {
    /// A function, whose library is loaded if it is not yet.
    pub(super) fn function(
        &mut self,
        machine: &mut Machine,
        libraries: &Arc<Libraries>,
        (library, at): (&Library, usize),
    ) -> Result<Value> {
        if !std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(libraries)) {
            self.of = Arc::downgrade(libraries);
            let gone: Vec<u64> = {
                let is_there: std::collections::HashSet<u64> = libraries.iter().map(|library| library.id).collect();
                self.loaded.keys().copied().filter(|id| !is_there.contains(id)).collect()
            };
            gone.into_iter().for_each(|id| self.forget(machine, id));
        }
        let kept = match self.loaded.entry(library.id) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(place) => place.insert(load(machine, library)?),
        };
        kept.get(at).map(|place| machine.kept(*place)).ok_or(Error::err("ERR Function not found"))
    }

    /// Forgets a library: it is loaded anew when one of its functions is called again.
    pub(super) fn forget(&mut self, machine: &mut Machine, id: u64) {
        self.loaded.remove(&id).into_iter().flatten().for_each(|place| machine.forget(place));
    }
}

fn load(machine: &mut Machine, library: &Library) -> Result<Vec<usize>> {
    let Some(chunk) = &library.chunk else { return Err(Error::err("ERR Function not found")) };
    let mut loader = Loader::start(machine, chunk)?;
    let mut told = 0;
    loop {
        let through = loader.advance(machine);
        let steps = loader.steps(machine);
        let charged = meter::step(((steps - told) / STEPS_A_STEP) as usize);
        told = steps;
        match through.and_then(|through| charged.map(|()| through)) {
            Ok(false) => {}
            Ok(true) if loader.functions == library.functions => break,
            Ok(true) => {
                loader.give_up(machine);
                return Err(Error::err("ERR the library registers other functions than before"));
            }
            Err(error) => {
                loader.give_up(machine);
                return Err(error);
            }
        }
    }
    machine.reset();
    Ok(loader.kept)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_stored_library_is_there_whether_it_can_be_loaded_or_not() {
        let good = stored(b"#!lua name=good\nredis.register_function('f', function() end)").unwrap();
        assert_eq!((&*good.name, good.functions.len(), good.chunk.is_some()), (&b"good"[..], 1, true));
        for code in [&b"#!lua name=bad\nfoo()"[..], b"#!lua name=bad\nwhile true do end", b"#!lua name=bad\nend"] {
            let bad = stored(code).unwrap();
            assert_eq!((&*bad.name, &*bad.code, bad.functions.len()), (&b"bad"[..], code, 0));
        }
        assert!(stored(b"no name").is_none());
    }

    /// A thread keeps what it has loaded as long as the library is there, and no longer.
    #[test]
    fn a_thread_keeps_what_is_there() {
        let library = |code: &str| Arc::new(stored(code.as_bytes()).unwrap());
        let counts =
            library("#!lua name=a\nlocal n = 0 redis.register_function('f', function() n = n + 1 return n end)");
        let other = library("#!lua name=b\nredis.register_function('g', function() return 0 end)");
        let (mut machine, mut kept) = (machine(), Kept::default());
        let mut call = |libraries: &Arc<Libraries>, library: &Library, forget: bool| {
            let function = kept.function(&mut machine, libraries, (library, 0)).unwrap();
            assert!(machine.start_function(function, &[]));
            assert!(matches!(machine.run(1_000), Outcome::Done));
            let value = machine.values()[0];
            machine.reset();
            if forget {
                kept.forget(&mut machine, library.id);
            }
            (value, kept.loaded.len())
        };
        let libraries = Arc::new(Libraries::default().with(vec![counts.clone()]).unwrap());
        assert_eq!(call(&libraries, &counts, false), (Value::Number(1.0), 1));
        let libraries = Arc::new(libraries.with(vec![other.clone()]).unwrap());
        assert_eq!(call(&libraries, &counts, false), (Value::Number(2.0), 1), "another one changes nothing");
        assert_eq!(call(&libraries, &other, false), (Value::Number(0.0), 2));
        assert_eq!(call(&libraries, &counts, true), (Value::Number(3.0), 1));
        assert_eq!(call(&libraries, &counts, false), (Value::Number(1.0), 2), "loaded anew");
        let libraries = Arc::new(libraries.without(b"a"));
        assert_eq!(call(&libraries, &other, false), (Value::Number(0.0), 1), "what is gone is forgotten");
    }

    /// What a machine keeps in the variables of its libraries is the thread's, as long as it is little.
    #[test]
    fn a_machine_that_holds_much_is_not_kept() {
        let kept_of = |code: &str| {
            let library = Arc::new(stored(code.as_bytes()).unwrap());
            let libraries = Arc::new(Libraries::default().with(vec![library.clone()]).unwrap());
            let (mut machine, mut kept) = take();
            kept.function(&mut machine, &libraries, (&library, 0)).unwrap();
            give_back(machine, kept);
            KEPT.with_borrow(|kept| kept.as_ref().map(|(_, kept)| kept.loaded.len()))
        };
        let code = |bytes: usize| {
            format!("#!lua name=a\nlocal s = ('x'):rep({bytes}) redis.register_function('f', function() return s end)")
        };
        assert_eq!(kept_of(&code(1000)), Some(1));
        assert_eq!(kept_of(&code(MOST_KEPT)), None);
    }
}
