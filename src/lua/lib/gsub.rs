//! `string.find`, `match`, `gmatch`, `gsub`: a matcher tried at one place of the subject after the other.

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::meta::{self, Found};
use super::super::number;
use super::super::value::{Str, Value};
use super::super::vm::{Args, Flow, Input, NativeFn, Vm};
use super::pattern::{End, Matcher, Outcome};

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[
    ("string.find", |vm, args| find(vm, args, Mode::Find)),
    ("string.match", |vm, args| find(vm, args, Mode::Match)),
    ("string.gmatch", gmatch),
    ("string.gfind", gmatch),
    ("(gmatch)", gmatch_next),
    ("string.gsub", gsub),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Find,
    Match,
    /// One step of the iterator.
    Each,
    Replace,
}

/// A search that is under way.
#[derive(Debug)]
pub(in super::super) struct Gsub {
    mode: Mode,
    subject: Str,
    pattern: Str,
    /// Where the pattern begins, after `^`, and ends: at its first zero byte.
    first: usize,
    end: usize,
    /// Where in the subject the matcher was started.
    src: usize,
    running: bool,
    matcher: Matcher,
    // Of `gsub`:
    replacement: Value,
    /// The replacement has no `%`.
    plain: bool,
    max: i64,
    count: i64,
    out: Vec<u8>,
    /// Bytes that were charged for `out`.
    charged: usize,
    /// Where the match ends whose replacement is being made.
    matched: usize,
    /// No further match is looked for.
    ended: bool,
}

/// The part of a pattern that counts.
fn visible(vm: &mut Vm, pattern: Str) -> usize {
    let pattern = vm.heap.strings.get(pattern);
    vm.heap.meter.copy(pattern.len());
    memchr::memchr(0, pattern).unwrap_or(pattern.len())
}

fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|b| matches!(b, b'^' | b'$' | b'*' | b'+' | b'?' | b'.' | b'(' | b'[' | b'%' | b'-'))
}

fn find(vm: &mut Vm, args: Args, mode: Mode) -> Result<Flow, Fault> {
    let (subject, pattern) = (vm.check_string(args, 0)?, vm.check_string(args, 1)?);
    let init = vm.opt_int(args, 2, 1)?;
    let end = visible(vm, pattern);
    vm.heap.meter.read(end);
    let (s, p) = (vm.heap.strings.get(subject), vm.heap.strings.get(pattern));
    let init = if init < 0 { init.saturating_add(s.len() as i64 + 1) } else { init };
    let init = (init - 1).clamp(0, s.len() as i64) as usize;
    if mode == Mode::Find && (vm.arg(args, 3).truthy() || is_plain(&p[..end])) {
        vm.heap.meter.copy((s.len() - init) * 2 + p.len());
        let Some(at) = memchr::memmem::find(&s[init..], p) else { return Ok(Flow::One(Value::Nil)) };
        let values = [Value::Number((init + at + 1) as f64), Value::Number((init + at + p.len()) as f64)];
        vm.push_all(&values)?;
        return Ok(Flow::Many(2));
    }
    let anchored = p.first() == Some(&b'^') && end > 0;
    Gsub::new(mode, subject, pattern, (usize::from(anchored), end), init).run(vm)
}

fn gmatch(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let (subject, pattern) = (vm.check_string(args, 0)?, vm.check_string(args, 1)?);
    let values = [Value::Str(subject), Value::Str(pattern), Value::Number(0.0)];
    vm.heap.new_bound(super::PLACES.gmatch, values).map(Flow::One)
}

fn gmatch_next(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let Value::Bound(bound) = vm.th.stack[args.base - 1] else { return Ok(Flow::Nothing) };
    let [Value::Str(subject), Value::Str(pattern), Value::Number(at)] = vm.heap.bounds.get(bound.0).values else {
        return Ok(Flow::Nothing);
    };
    let end = visible(vm, pattern);
    if at as usize > vm.heap.bytes(subject).len() {
        return Ok(Flow::Nothing);
    }
    let mut search = Gsub::new(Mode::Each, subject, pattern, (0, end), at as usize);
    search.replacement = Value::Bound(bound);
    search.run(vm)
}

fn gsub(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let (subject, pattern) = (vm.check_string(args, 0)?, vm.check_string(args, 1)?);
    let mut replacement = vm.arg(args, 2);
    let length = vm.heap.bytes(subject).len() as i64;
    let max = if vm.arg(args, 3).is_nil() { length + 1 } else { i64::from(vm.check_i32(args, 3)?) };
    match replacement {
        Value::Str(_) | Value::Table(_) => {}
        Value::Number(_) => replacement = Value::Str(vm.check_string(args, 2)?),
        value if value.is_function() => {}
        _ => return Err(Fault::arg(3, "string/function/table expected")),
    }
    let end = visible(vm, pattern);
    let p = vm.heap.bytes(pattern);
    let anchored = p.first() == Some(&b'^') && end > 0;
    let mut search = Gsub::new(Mode::Replace, subject, pattern, (usize::from(anchored), end), 0);
    search.replacement = replacement;
    search.max = max;
    if let Value::Str(s) = replacement {
        vm.heap.meter.copy(vm.heap.bytes(s).len());
        search.plain = !vm.heap.bytes(s).contains(&b'%');
    }
    search.run(vm)
}

impl Gsub {
    fn new(mode: Mode, subject: Str, pattern: Str, (first, end): (usize, usize), src: usize) -> Gsub {
        Gsub {
            mode,
            subject,
            pattern,
            first,
            end,
            src,
            running: false,
            matcher: Matcher::new(),
            replacement: Value::Nil,
            plain: false,
            max: 0,
            count: 0,
            out: Vec::new(),
            charged: 0,
            matched: 0,
            ended: false,
        }
    }

    pub(in super::super) fn values(&self) -> [Value; 3] {
        [Value::Str(self.subject), Value::Str(self.pattern), self.replacement]
    }

    /// Bytes that were charged and have to be given back when it ends.
    pub(in super::super) fn bytes(&self) -> usize {
        self.charged + self.matcher.charged
    }

    pub(in super::super) fn step(
        mut self,
        vm: &mut Vm,
        args: Args,
        results: Args,
        input: Input,
    ) -> Result<Flow, Fault> {
        if input != Input::Step {
            let value = vm.arg(results, 0);
            vm.th.top = args.base + args.n;
            if let Err(fault) = self.replace_by(vm, value) {
                vm.heap.meter.give(self.bytes());
                return Err(fault);
            }
        }
        self.run(vm)
    }

    /// Goes on until there is a result, the fuel is used up, or a function has to be called.
    fn run(mut self, vm: &mut Vm) -> Result<Flow, Fault> {
        let flow = self.advance(vm);
        let flow = match flow {
            Ok(Some(flow)) => Ok(flow),
            Ok(None) => return Ok(Flow::Step(Cont::Match(Box::new(self)))),
            Err(fault) => Err(fault),
        };
        if let Ok(Flow::Call(_, at, n)) = flow {
            return Ok(Flow::Call(Cont::Match(Box::new(self)), at, n));
        }
        vm.heap.meter.give(self.bytes());
        flow
    }

    fn advance(&mut self, vm: &mut Vm) -> Result<Option<Flow>, Fault> {
        loop {
            if !self.running {
                if self.mode == Mode::Replace && (self.ended || self.count >= self.max) {
                    return self.finish(vm).map(Some);
                }
                self.matcher.start(self.src, self.first);
                self.running = true;
            }
            let heap = &mut vm.heap;
            let pattern = &heap.strings.get(self.pattern)[..self.end];
            let outcome = self.matcher.run(heap.strings.get(self.subject), pattern, &mut heap.meter)?;
            let matched = match outcome {
                Outcome::Interrupted => return Ok(None),
                Outcome::Matched(end) => Some(end),
                Outcome::Failed => None,
            };
            self.running = false;
            if self.mode == Mode::Replace {
                match matched {
                    None => self.pass(vm, None)?,
                    Some(end) => {
                        if let Some((at, n)) = self.replace_at(vm, end)? {
                            // The state is filled in by `run`.
                            return Ok(Some(Flow::Call(Cont::Host, at, n)));
                        }
                    }
                }
                continue;
            }
            if let Some(end) = matched {
                return self.found(vm, end).map(Some);
            }
            self.src += 1;
            let anchored = self.first == 1;
            if anchored || self.src > vm.heap.bytes(self.subject).len() {
                return Ok(Some(if self.mode == Mode::Each { Flow::Nothing } else { Flow::One(Value::Nil) }));
            }
        }
    }

    /// The results of a search that was successful.
    fn found(&mut self, vm: &mut Vm, end: usize) -> Result<Flow, Fault> {
        if let (Mode::Each, Value::Bound(bound)) = (self.mode, self.replacement) {
            // An empty match would be found for ever.
            let next = end + usize::from(end == self.src);
            vm.heap.bounds.get_mut(bound.0).values[2] = Value::Number(next as f64);
        }
        let mut n = 0;
        if self.mode == Mode::Find {
            vm.push_all(&[Value::Number((self.src + 1) as f64), Value::Number(end as f64)])?;
            n = 2 + self.matcher.captures.len();
            for at in 0..self.matcher.captures.len() {
                let value = self.capture(vm, at, end)?;
                vm.push(value)?;
            }
        } else {
            n += self.push_captures(vm, end)?;
        }
        Ok(Flow::Many(n))
    }

    /// All captures, or the whole match if there are none.
    fn push_captures(&self, vm: &mut Vm, end: usize) -> Result<usize, Fault> {
        let n = self.matcher.captures.len().max(1);
        for at in 0..n {
            let value = self.capture(vm, at, end)?;
            vm.push(value)?;
        }
        Ok(n)
    }

    fn capture(&self, vm: &mut Vm, at: usize, end: usize) -> Result<Value, Fault> {
        let (from, to) = match self.matcher.captures.get(at) {
            Some((from, End::At(to))) => (*from, *to),
            Some((from, End::Position)) => return Ok(Value::Number((from + 1) as f64)),
            Some((_, End::Open)) => return Err(Fault::lib("unfinished capture")),
            None if at == 0 => (self.src, end),
            None => return Err(Fault::lib("invalid capture index")),
        };
        vm.heap.meter.room(to - from)?;
        let text = vm.heap.bytes(self.subject)[from..to].to_vec();
        vm.heap.owned(text)
    }

    // `gsub`

    /// A match is replaced, or a function is to be called for its replacement: its place, and how many arguments it has.
    fn replace_at(&mut self, vm: &mut Vm, end: usize) -> Result<Option<(usize, usize)>, Fault> {
        self.count += 1;
        self.matched = end;
        match self.replacement {
            Value::Str(text) => {
                self.expand(vm, text, end)?;
                self.pass(vm, Some(end))?;
            }
            Value::Table(_) => {
                let key = self.capture(vm, 0, end)?;
                match meta::index(vm, self.replacement, key)? {
                    Found::Value(value) => self.replace_by(vm, value)?,
                    Found::Not(value, _) => {
                        return Err(Fault::run(format!("attempt to index a {} value", value.type_name())));
                    }
                    Found::Call(handler, object) => {
                        let at = vm.th.top;
                        vm.push_all(&[handler, object, key])?;
                        return Ok(Some((at, 2)));
                    }
                }
            }
            function => {
                let at = vm.th.top;
                vm.push(function)?;
                return Ok(Some((at, self.push_captures(vm, end)?)));
            }
        }
        Ok(None)
    }

    /// A table or function has given the replacement.
    fn replace_by(&mut self, vm: &mut Vm, value: Value) -> Result<(), Fault> {
        let (from, to) = (self.src, self.matched);
        match value {
            Value::Nil | Value::Bool(false) => {
                self.room(vm, to - from)?;
                self.out.extend_from_slice(&vm.heap.bytes(self.subject)[from..to]);
            }
            Value::Str(s) => {
                self.room(vm, vm.heap.bytes(s).len())?;
                self.out.extend_from_slice(vm.heap.bytes(s));
            }
            Value::Number(n) => number::print(n, &mut self.out),
            other => {
                let kind = other.type_name();
                return Err(Fault::lib(format!("invalid replacement value (a {kind})")));
            }
        }
        self.pass(vm, Some(to))
    }

    /// A replacement text: `%1` and the like are captures.
    fn expand(&mut self, vm: &mut Vm, text: Str, end: usize) -> Result<(), Fault> {
        let length = vm.heap.bytes(text).len();
        if self.plain {
            self.room(vm, length)?;
            self.out.extend_from_slice(vm.heap.bytes(text));
            return Ok(());
        }
        vm.heap.meter.work(length / 4);
        let mut at = 0;
        while at < length {
            let byte = vm.heap.bytes(text)[at];
            at += 1;
            if byte != b'%' {
                self.room(vm, 1)?;
                self.out.push(byte);
                continue;
            }
            // After the last byte C finds a zero.
            let byte = vm.heap.bytes(text).get(at).copied().unwrap_or(0);
            at += 1;
            let value = match byte {
                b'0' => None,
                b'1'..=b'9' => Some(self.capture(vm, usize::from(byte - b'1'), end)?),
                _ => {
                    self.room(vm, 1)?;
                    self.out.push(byte);
                    continue;
                }
            };
            match value {
                None => {
                    self.room(vm, end - self.src)?;
                    self.out.extend_from_slice(&vm.heap.bytes(self.subject)[self.src..end]);
                }
                Some(Value::Str(s)) => {
                    self.room(vm, vm.heap.bytes(s).len())?;
                    self.out.extend_from_slice(vm.heap.bytes(s));
                }
                Some(Value::Number(n)) => number::print(n, &mut self.out),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Charges bytes before they are added to the result.
    fn room(&mut self, vm: &mut Vm, bytes: usize) -> Result<(), Fault> {
        let wanted = self.out.len() + bytes;
        if wanted > self.charged {
            if wanted > vm.max_string {
                return Err(Fault::lib("resulting string too large"));
            }
            let more = (wanted - self.charged).max(self.charged);
            vm.heap.meter.take(more)?;
            self.charged += more;
        }
        vm.heap.meter.copy(bytes);
        Ok(())
    }

    /// Goes behind a match, or over one character that is kept.
    fn pass(&mut self, vm: &mut Vm, matched: Option<usize>) -> Result<(), Fault> {
        match matched {
            Some(end) if end > self.src => self.src = end,
            _ => match vm.heap.bytes(self.subject).get(self.src).copied() {
                Some(byte) => {
                    self.room(vm, 1)?;
                    self.out.push(byte);
                    self.src += 1;
                }
                None => self.ended = true,
            },
        }
        // A pattern with `^` has one chance.
        self.ended |= self.first == 1;
        Ok(())
    }

    fn finish(&mut self, vm: &mut Vm) -> Result<Flow, Fault> {
        let rest = vm.heap.bytes(self.subject).len().saturating_sub(self.src);
        self.room(vm, rest)?;
        self.out.extend_from_slice(&vm.heap.bytes(self.subject)[self.src..]);
        let text = vm.owned(std::mem::take(&mut self.out))?;
        vm.push_all(&[text, Value::Number(self.count as f64)])?;
        Ok(Flow::Many(2))
    }
}
