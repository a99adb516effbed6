//! The run of a script or a function: a machine, the commands that it calls, and what it may take.
//!
//! | it is out of steps (a command that it calls stands for some) | then |
//! |---|---|
//! | on a network thread | it is run again from its beginning elsewhere, as any command that takes long |
//! | on a thread for commands in slices | it goes on, without its shards: its keys are held ([`crate::shard::txn::rest`]) |
//! | once it has written, or looked at a key that it did not declare, or within EXEC | it goes on with its shards; after `script-hold-limit` of processor time it is ended and taken back |
//!
//! All that it writes is one record of the log, made when it has ended, by an error, too. One that is run again begins with
//! the numbers that `math.random` had then.

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::convert::{Answer, error_table, one_line, to_lua};
use super::host::{self, Whose};
use super::library::{self, ALLOW_OOM, Kept, NO_WRITES};
use crate::error::{Error, OOM, Result};
use crate::handler::acl::check::Asked;
use crate::handler::acl::log::Context;
use crate::handler::keys::{has_others, keys_of};
use crate::handler::scripts::{Called, Of, Running, Script};
use crate::handler::{Args, Command, Ctx, OwnedArgs, Reply, Route, flags};
use crate::lua::{Failure, Limits, Machine, Outcome, Tab, Value};
use crate::meter;
use crate::server::acl::permit::permit_within;
use crate::shard::engine::gate;
use crate::shard::memory::libraries::{Libraries, Library};
use crate::util::num::format_double;
use crate::util::sys;

/// Steps that a script is given at a time: some tens of microseconds.
const SLICE: u64 = 4 << 10;
/// Steps that a command which it calls stands for beside its own: a script that does little else runs for long, too.
const CALL: u64 = 64;
/// Steps of a script that cost as much as a command's step.
pub(super) const STEPS_A_STEP: u64 = 4;
/// The longest string that a script makes where it cannot rest while it does, and the largest part of a table. What needs more is
/// run where it can.
const MOST_AT_ONCE: usize = 256 << 10;
/// After how many times `script-hold-limit` who has used it up is answered: one client that does so again and again keeps a shard for
/// a small part of the time.
const LATE: u64 = 20;
/// By how much longer a debug build may keep its shards: everything takes it that much longer.
const SLOWER: u64 = if cfg!(debug_assertions) { 20 } else { 1 };

/// What the caller of a script is told that SCRIPT KILL or FUNCTION KILL has ended.
const KILLED: &str = "ERR Script killed by user with SCRIPT KILL.";

/// Keys that are compared with one by one.
const FEW: usize = 16;

/// What is run.
#[derive(Clone, Copy)]
pub(super) enum Code<'a> {
    Script(&'a Script),
    /// A function, and all that it was called with.
    Function {
        libraries: &'a Arc<Libraries>,
        /// Its library, and its place there.
        function: (&'a Library, usize),
        command: Args<'a>,
    },
}

impl<'a> Code<'a> {
    /// What errors call it.
    fn name(&self) -> &'a [u8] {
        match self {
            Code::Script(script) => &script.sha,
            Code::Function { function: (library, at), .. } => {
                library.functions.get(*at).map_or(b"", |function| &function.name)
            }
        }
    }

    /// Whether it says that it may add where there is no room.
    fn allows_oom(&self) -> bool {
        match self {
            Code::Script(script) => script.allow_oom,
            Code::Function { function: (library, at), .. } => {
                library.functions.get(*at).is_some_and(|function| function.flags & ALLOW_OOM != 0)
            }
        }
    }

    /// Whether it would have said so, or that it writes nothing, if it could do without room.
    fn needs_room(&self) -> bool {
        match self {
            Code::Script(script) => script.has_flags && !script.no_writes && !script.allow_oom,
            Code::Function { function: (library, at), .. } => {
                library.functions.get(*at).is_some_and(|function| function.flags & (NO_WRITES | ALLOW_OOM) == 0)
            }
        }
    }

    /// What SCRIPT KILL and FUNCTION KILL go by.
    fn running(&self) -> Running {
        let called = match self {
            Code::Script(_) => None,
            Code::Function { command, .. } => {
                Some(Called { name: self.name().into(), command: command.iter().map(Box::from).collect() })
            }
        };
        Running::new(called)
    }
}

/// A script or a function that is running.
pub(super) struct Run<'a> {
    pub(super) machine: Machine,
    /// What the machine has loaded, if it is one for libraries.
    kept: Option<Kept>,
    code: Code<'a>,
    read_only: bool,
    /// What `redis.setresp` has asked for.
    pub(super) resp: u8,
    declared: Args<'a>,
    /// The same, if they are many and the script has called a command.
    many: OnceCell<HashSet<&'a [u8]>>,
    /// It runs for long by now.
    running: Option<Arc<Running>>,
    /// Steps of its slice that it has not used up.
    left: u64,
    /// Since when it keeps its shards, by this thread's processor time, and the steps since somebody has looked how long that is.
    keeps_since: Option<Duration>,
    unseen: u64,
    /// Steps that the meter has not been told of.
    untold: u64,
    /// Bytes that the meter has been told of.
    told: usize,
}

thread_local! {
    /// The machine of this thread, while no script runs.
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// A machine that is given back to its thread.
fn machine() -> Machine {
    let limits = Limits::default();
    MACHINE.take().unwrap_or_else(|| Machine::new(limits, host::items(Whose::Script)))
}

/// Runs a script or a function and replies with its result.
pub(super) fn run(
    ctx: &mut Ctx,
    code: Code<'_>,
    (keys, argv): (Args<'_>, Args<'_>),
    read_only: bool,
    out: &mut Reply,
) -> Result {
    if ctx.server.engine.gate.load(Ordering::Relaxed) & gate::FULL != 0 && code.needs_room() {
        return Err(OOM);
    }
    let (machine, kept) = match code {
        Code::Script(_) => (machine(), None),
        Code::Function { .. } => {
            let (machine, kept) = library::take();
            (machine, Some(kept))
        }
    };
    let random = machine.random();
    let mut run = Run {
        told: machine.bytes(),
        machine,
        kept,
        code,
        read_only,
        resp: 2,
        declared: keys,
        many: OnceCell::new(),
        running: None,
        left: SLICE,
        keeps_since: None,
        unseen: 0,
        untold: 0,
    };
    let db = ctx.session().db.clone();
    let was_scripted = std::mem::replace(&mut ctx.scripted, true);
    let elsewhere = elsewhere(ctx);
    if elsewhere.is_some() {
        run.machine.limit_at_once(MOST_AT_ONCE);
    }
    let begun = if ctx.txn.may_rest() {
        let ns = ctx.ns();
        ctx.txn.rest(ns, || run.begin(keys, argv))
    } else {
        run.begin(keys, argv)
    };
    let mut result = begun.and_then(|()| run.finish(ctx, out));
    if let Some(elsewhere) = elsewhere
        && run.machine.wants_more()
    {
        result = Err(elsewhere);
    }
    run.machine.limit_at_once(usize::MAX);
    ctx.scripted = was_scripted;
    if let Some(running) = &run.running {
        ctx.server.scripts.ended(running);
        // Who has ended it was told so: it is not run again, and what it did after its last look is taken back.
        if running.killed.load(Ordering::Relaxed) {
            result = Err(run.error(KILLED));
        }
    }
    if result.is_ok() && ctx.session().db != db {
        ctx.alter().select(&db);
    }
    let (of, bytes) = run.end(result.is_ok(), random);
    ctx.server.scripts.tell_machine(of, bytes);
    result
}

/// How a script is run again where it may do at once what takes long, unless that is here.
fn elsewhere(ctx: &Ctx) -> Option<Error> {
    if meter::is_here() {
        return Some(Error::Cold);
    }
    (ctx.txn.reads_in_slices() && !ctx.txn.may_rest()).then_some(Error::Long)
}

/// There is no room for what a script is given.
pub(super) const NO_ROOM: Error = Error::TooMuch;

impl Run<'_> {
    fn begin(&mut self, keys: Args<'_>, argv: Args<'_>) -> Result {
        let function = match (self.code, &mut self.kept) {
            (Code::Function { libraries, function, .. }, Some(kept)) => {
                Some(kept.function(&mut self.machine, libraries, function)?)
            }
            _ => None,
        };
        let bytes: usize = keys.iter().chain(argv.iter()).map(<[u8]>::len).sum();
        meter::foresee((bytes / meter::STEP_BYTES) as u64)?;
        let mut given = [Value::Nil; 2];
        for (tab, args) in given.iter_mut().zip([keys, argv]) {
            *tab = Value::Table(self.texts(args).ok_or(NO_ROOM)?);
        }
        let started = match (self.code, function) {
            (_, Some(function)) => self.machine.start_function(function, &given),
            (Code::Script(script), None) => {
                for (name, tab) in ["KEYS", "ARGV"].into_iter().zip(given) {
                    self.machine.set_global(name, tab).ok_or(NO_ROOM)?;
                }
                self.machine.start(&script.chunk)
            }
            (Code::Function { .. }, None) => false,
        };
        if started { Ok(()) } else { Err(NO_ROOM) }
    }

    /// A table of texts.
    fn texts(&mut self, args: Args<'_>) -> Option<Tab> {
        let (tab, before) = (self.machine.table(args.len(), 0)?, self.machine.owed());
        for (n, arg) in args.iter().enumerate() {
            let text = self.machine.string(arg)?;
            self.machine.set_index(tab, n + 1, text)?;
            // Those that were made to collide take long.
            if self.machine.is_too_much(self.machine.owed().saturating_sub(before)) {
                return None;
            }
        }
        Some(tab)
    }

    /// The machine goes back to its thread. What was cut off is run again, or has left nothing behind: it may have changed its
    /// library's variables, which is therefore loaded anew. What the machine holds is answered.
    fn end(mut self, whole: bool, random: u64) -> (Of, usize) {
        if let (false, Code::Function { function: (library, _), .. }, Some(kept)) = (whole, self.code, &mut self.kept) {
            kept.forget(&mut self.machine, library.id);
        }
        match self.kept {
            Some(kept) => {
                if !whole {
                    self.machine.set_random(random);
                }
                let bytes = self.machine.bytes();
                library::give_back(self.machine, kept);
                (Of::Functions, bytes)
            }
            None => {
                self.machine.reset();
                if !whole {
                    self.machine.set_random(random);
                }
                let bytes = self.machine.bytes();
                MACHINE.set(Some(self.machine));
                (Of::Scripts, bytes)
            }
        }
    }

    fn finish(&mut self, ctx: &mut Ctx, out: &mut Reply) -> Result {
        let mut outcome = if ctx.txn.may_rest() { self.go_on(ctx, Run::slice)? } else { self.slice() };
        loop {
            self.charge(ctx)?;
            outcome = match outcome {
                Outcome::Done => {
                    return self.answer(ctx, out);
                }
                Outcome::Failed(failure) => {
                    // As in Redis, what it has written stays.
                    out.error(&self.failed(&failure));
                    return Ok(());
                }
                Outcome::Call(function) => {
                    let before = meter::steps_so_far();
                    host::call(self, ctx, function)?;
                    let steps = CALL + (meter::steps_so_far() - before).unsigned_abs() * STEPS_A_STEP;
                    (self.unseen, self.left) = (self.unseen + steps, self.left.saturating_sub(steps));
                    if self.left == 0 { self.go_on(ctx, Run::slice)? } else { self.slice() }
                }
                Outcome::OutOfFuel => self.go_on(ctx, Run::slice)?,
            };
        }
    }

    /// Replies with the script's result, in slices as well.
    fn answer(&mut self, ctx: &mut Ctx, out: &mut Reply) -> Result {
        let value = self.machine.values().first().copied().unwrap_or(Value::Nil);
        let mut answer = Answer::new(value, self.resp == 3);
        self.write(&mut answer, out);
        while !answer.is_whole() {
            self.charge(ctx)?;
            self.go_on(ctx, |run| run.write(&mut answer, out))?;
        }
        Ok(())
    }

    fn write(&mut self, answer: &mut Answer, out: &mut Reply) {
        let used = answer.write(&mut self.machine, self.left.max(1), out);
        self.spend(used);
    }

    /// Takes steps off the slice.
    fn spend(&mut self, steps: u64) {
        self.left = self.left.saturating_sub(steps);
        (self.unseen, self.untold) = (self.unseen + steps, self.untold + steps);
    }

    fn slice(&mut self) -> Outcome {
        let before = self.machine.used();
        let outcome = self.machine.run(self.left);
        self.spend(self.machine.used() - before);
        outcome
    }

    /// Tells the meter what the last slice took.
    fn charge(&mut self, ctx: &mut Ctx) -> Result {
        let bytes = self.machine.bytes();
        if bytes > self.told {
            meter::hold(bytes - self.told)?;
            self.told = bytes;
        }
        meter::step((self.untold / STEPS_A_STEP) as usize)?;
        self.untold %= STEPS_A_STEP;
        self.keep_within_limit(ctx)
    }

    /// Others wait for the shards that it keeps: only for so long. Time that the thread has not had does not count, so that a busy
    /// machine ends no script that does little.
    fn keep_within_limit(&mut self, ctx: &mut Ctx) -> Result {
        if ctx.txn.may_rest() || !ctx.txn.may_block() {
            self.keeps_since = None;
            return Ok(());
        }
        if self.keeps_since.is_some() && self.unseen < SLICE {
            return Ok(());
        }
        self.unseen = 0;
        let now = sys::thread_time();
        let since = *self.keeps_since.get_or_insert(now);
        let limit_ms = ctx.settings().script_hold_limit;
        if now.saturating_sub(since) > Duration::from_millis(limit_ms * SLOWER) {
            ctx.late_ms = limit_ms * LATE;
            return Err(
                self.error("ERR script keeps its keys' shards for longer than script-hold-limit, and was taken back")
            );
        }
        Ok(())
    }

    /// Goes on with a script that has used up a slice, by another one.
    pub(super) fn go_on<R>(&mut self, ctx: &mut Ctx, slice: impl FnOnce(&mut Self) -> R) -> Result<R> {
        // On a network thread it is run elsewhere before it could be called long.
        if !meter::is_here() {
            self.runs_long(ctx)?;
        }
        let ns = ctx.ns();
        self.left = SLICE;
        if !ctx.txn.may_rest() && ctx.txn.lease.has_guests() {
            self.have_guests(ctx);
        }
        ctx.txn.rest(ns, || Ok(slice(self)))
    }

    /// Others see that it runs, and may end it.
    fn runs_long(&mut self, ctx: &Ctx) -> Result {
        let running = match &self.running {
            Some(running) => running.clone(),
            None => {
                if let Code::Function { command, .. } = self.code {
                    // FUNCTION STATS tells what was called.
                    meter::hold(command.iter().map(<[u8]>::len).sum())?;
                }
                let running = Arc::new(self.code.running());
                ctx.server.scripts.began(&running);
                self.running.insert(running).clone()
            }
        };
        running.has_written.store(ctx.txn.has_writes(), Ordering::Relaxed);
        // If it has written since it was killed, that is taken back.
        if running.killed.load(Ordering::Relaxed) {
            return Err(self.error(KILLED));
        }
        Ok(())
    }

    /// Has others read what it has not changed. That is no time for which it keeps its shards.
    fn have_guests(&mut self, ctx: &mut Ctx) {
        let before = self.keeps_since.map(|_| sys::thread_time());
        if ctx.txn.have_guests() > 0
            && let (Some(since), Some(before)) = (&mut self.keeps_since, before)
        {
            *since += sys::thread_time().saturating_sub(before);
        }
    }

    /// An error of the script as a whole, told as where it stands.
    fn error(&self, text: &str) -> Error {
        Error::Quoted(self.placed(text.as_bytes().to_vec(), None).into())
    }

    /// A text with the script and the place that it is about.
    fn placed(&self, mut text: Vec<u8>, place: Option<(&[u8], f64)>) -> Vec<u8> {
        text.extend_from_slice(b" script: ");
        text.extend_from_slice(self.code.name());
        if let Some((source, line)) = place {
            text.extend_from_slice(b", on ");
            text.extend_from_slice(source);
            text.push(b':');
            text.extend_from_slice(format_double(line).as_bytes());
        }
        text.push(b'.');
        one_line(text)
    }

    /// What is replied for an error that nobody has caught.
    fn failed(&mut self, failure: &Failure) -> Error {
        let (text, place) = cause(&mut self.machine, failure);
        if place.is_none() && matches!(self.code, Code::Function { .. }) {
            // It is no function of Lua.
            return Error::Quoted(one_line(text).into());
        }
        let place = place.as_ref().map(|(source, line)| (&source[..], *line));
        Error::Quoted(self.placed(text, place).into())
    }

    /// The call that the script has made; or what is wrong with it.
    pub(super) fn call_args(&self) -> Result<OwnedArgs, &'static [u8]> {
        let mut args = OwnedArgs::default();
        let mut text = Vec::new();
        for value in self.machine.values() {
            text.clear();
            match value {
                Value::Number(number) => text.extend_from_slice(&number_text(*number)),
                value if self.machine.write_text(*value, &mut text) => {}
                _ => return Err(b"ERR Lua redis lib command arguments must be strings or integers"),
            }
            args.push(&text);
        }
        if args.as_args().is_empty() {
            return Err(b"ERR Please specify at least one argument for this redis lib call");
        }
        Ok(args)
    }

    /// Runs a command for the script. `protected`: its error is the call's result.
    pub(super) fn command(&mut self, ctx: &mut Ctx, protected: bool) -> Result {
        let args = match self.call_args() {
            Ok(args) => args,
            Err(text) => return self.fail_uncalled(text, protected),
        };
        let args = args.as_args();
        let Some(row) = ctx.server.table.find(&args[0]).and_then(|(_, container)| container.resolve_known(args.get(1)))
        else {
            return self.fail(b"ERR Unknown Redis command called from script", protected);
        };
        if let Err(error) = self.allows(ctx, row, args) {
            ctx.note_refused(row, &error);
            return self.fail(error.text().as_bytes(), protected);
        }
        if let Err((denied, user)) = permit_within(ctx, Context::Lua, row, args)? {
            let why = denied.text(&user, ctx.server.table, &Asked::new(ctx.server.table, row, args), false);
            let error = Error::Quoted([b"ERR ACL failure in script: ", &why[..]].concat().into());
            ctx.note_refused(row, &error);
            return self.fail(error.text().as_bytes(), protected);
        }
        if let Err(error) = self.may_write(ctx, row) {
            ctx.note_refused(row, &error);
            return self.fail(error.text().as_bytes(), protected);
        }
        if !self.has_declared(row, args) {
            // Nobody holds what it looks at now: from here on nobody comes in between.
            ctx.txn.stay();
        }
        if !has_shards(ctx, row, args) {
            return Err(Error::Undeclared);
        }
        let mut reply = Reply::new(self.resp);
        ctx.run(row, args, &mut reply)?;
        let error =
            reply.as_slice().strip_prefix(b"-").map(|error| error.strip_suffix(b"\r\n").unwrap_or(error).to_vec());
        match error {
            Some(error) => self.fail(&error, protected),
            None => {
                let (value, strings) = to_lua(&mut self.machine, reply.as_slice()).ok_or(NO_ROOM)?;
                // The machine has them, for as long as the script needs them: they are charged by what that takes.
                meter::release(strings);
                self.machine.answer(&[value]);
                Ok(())
            }
        }
    }

    /// Whether a command may be called now.
    fn allows(&self, ctx: &Ctx, row: &Command, args: Args<'_>) -> Result {
        if !row.accepts(args.len()) {
            return Err(Error::err("ERR Wrong number of args calling Redis command from script"));
        }
        if row.has(flags::NOSCRIPT) {
            return Err(Error::err("ERR This Redis command is not allowed from script"));
        }
        if let Some(permit) = row.permit {
            permit(ctx.server, ctx.session())?;
        }
        Ok(())
    }

    /// Whether a command may write now, if it does.
    fn may_write(&self, ctx: &Ctx, row: &Command) -> Result {
        if self.read_only && row.may_write() {
            return Err(Error::err("ERR Write commands are not allowed from read-only scripts."));
        }
        if row.has(flags::WRITE)
            && ctx.server.engine.gate.load(Ordering::Relaxed) & gate::REFUSED != 0
            && let Some(why) = ctx.server.engine.refusal()
        {
            return Err(Error::Misconf(why.to_string().into()));
        }
        // What has begun to write may end: half of it would be of no use.
        if row.has(flags::DENYOOM)
            && ctx.server.engine.gate.load(Ordering::Relaxed) & gate::FULL != 0
            && !ctx.txn.has_writes()
            && !self.code.allows_oom()
        {
            return Err(OOM);
        }
        Ok(())
    }

    fn is_declared(&self, key: &[u8]) -> bool {
        if self.declared.len() <= FEW {
            return self.declared.iter().any(|declared| declared == key);
        }
        self.many.get_or_init(|| self.declared.iter().collect()).contains(key)
    }

    /// Whether all that a command looks at is among the keys that the script has declared.
    fn has_declared(&self, row: &Command, args: Args<'_>) -> bool {
        match row.route {
            Route::None => true,
            Route::All | Route::By(_) => false,
            Route::One(_) | Route::Keys => {
                let keys = keys_of(row, args).unwrap_or_default();
                !has_others(row, args) && keys.iter().all(|(at, _)| self.is_declared(&args[*at]))
            }
        }
    }

    /// The script's call fails with this text.
    pub(super) fn fail(&mut self, text: &[u8], protected: bool) -> Result {
        self.fail_as(text, protected, true)
    }

    /// The same of a call that names no command.
    fn fail_uncalled(&mut self, text: &[u8], protected: bool) -> Result {
        self.fail_as(text, protected, false)
    }

    fn fail_as(&mut self, text: &[u8], protected: bool, counted: bool) -> Result {
        if !protected {
            return fail(&mut self.machine, text);
        }
        let table = error_table(&mut self.machine, text, counted).ok_or(NO_ROOM)?;
        self.machine.answer(&[table]);
        Ok(())
    }
}

/// Whether a command that its keys do not lead to their shards has those that it goes through. Others find out by themselves.
fn has_shards(ctx: &Ctx, row: &Command, args: Args<'_>) -> bool {
    let shards = match row.route {
        Route::All => None,
        Route::By(by) => by(ctx.server, ctx.session(), args),
        Route::None | Route::One(_) | Route::Keys => return true,
    };
    match shards {
        None => ctx.txn.lease.len() == ctx.txn.router.shards(),
        Some(shards) => shards.iter().all(|shard| ctx.txn.lease.binary_search_by_key(shard, |core| core.shard).is_ok()),
    }
}

/// The text of an error that nobody has caught, and the place that it is about.
pub(super) fn cause(machine: &mut Machine, failure: &Failure) -> (Vec<u8>, Option<(Vec<u8>, f64)>) {
    let place = failure.position.as_ref().map(|(source, line)| (source.to_vec(), f64::from(*line)));
    match failure.value {
        None => (b"ERR not enough memory".to_vec(), place),
        Some(Value::Table(tab)) => {
            let field = |machine: &mut Machine, name| {
                let value = machine.get_field(tab, name);
                machine.bytes_of(value).map(<[u8]>::to_vec)
            };
            let text = field(machine, "err").unwrap_or_else(|| b"ERR unknown error".to_vec());
            match (field(machine, "source"), machine.get_field(tab, "line")) {
                (Some(source), Value::Number(line)) => (text, Some((source, line))),
                _ => (text, place),
            }
        }
        Some(value) => {
            let mut text = b"ERR ".to_vec();
            if !machine.write_text(value, &mut text) {
                text.extend_from_slice(value.type_name().as_bytes());
            }
            (text, place)
        }
    }
}

/// What the host was called for fails with this text, which is told with the place of the call.
pub(super) fn fail(machine: &mut Machine, text: &[u8]) -> Result {
    let place = machine.caller();
    let table = error_table(machine, text, true).ok_or(NO_ROOM)?;
    if let (Value::Table(tab), Some((source, line))) = (table, place) {
        let fields = [("source", machine.string(&source)), ("line", Some(Value::Number(f64::from(line))))];
        for (name, value) in fields {
            let name = machine.string(name.as_bytes()).ok_or(NO_ROOM)?;
            machine.set(tab, name, value.ok_or(NO_ROOM)?).ok_or(NO_ROOM)?;
        }
    }
    machine.fail(table);
    Ok(())
}

/// A number as a command's argument: as an integer if it is one, else the shortest text that reads back.
fn number_text(number: f64) -> Vec<u8> {
    if number == number.trunc() && number.abs() < 9_223_372_036_854_775_808.0 {
        return itoa::Buffer::new().format(number as i64).as_bytes().to_vec();
    }
    format_double(number).as_bytes().to_vec()
}
