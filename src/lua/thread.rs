//! A coroutine: its stack of values, its frames, and what library functions keep while functions they called run.

use super::cont::Cont;
use super::fault::{Fault, Meter};
use super::value::{Co, Fun, Value};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A Lua function.
    Lua,
    /// A library function that waits for one it called; its state is the coroutine's last [`Cont`].
    Native,
}

/// Where a function's results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// To the place of the function, as many as the frame's `want` says.
    Place,
    /// To the instruction of the calling frame that needed a metamethod.
    Meta,
    /// The same, negated: `a <= b` as `not (b < a)`.
    MetaNot,
    /// To the variables of a `for … in`, which then goes on or ends.
    Loop,
    /// To the library function in the frame below.
    Native,
}

/// A function that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) ret: Return,
    /// Tail calls that this frame has replaced; error levels count them.
    pub(super) tails: u32,
    /// How many results are wanted; -1: all.
    pub(super) want: i32,
    /// The function's place in the stack.
    pub(super) func: u32,
    /// Its first register.
    pub(super) base: u32,
    /// The end of its registers.
    pub(super) top: u32,
    /// The next instruction.
    pub(super) pc: u32,
    pub(super) fun: Fun,
    pub(super) proto: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Suspended,
    Running,
    /// It has resumed another one.
    Normal,
    Dead,
}

/// Frames a coroutine may have: what Redis comes to once a script has overflowed the stack.
pub(super) const MAX_FRAMES: usize = 20_000;
/// Calls from library functions and metamethods back into Lua that may be nested.
pub(super) const MAX_C_LEVELS: u32 = 200;
/// Registers a Lua function can name; every base has so many places after it.
pub(super) const WINDOW: usize = 256;

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) stack: Vec<Value>,
    pub(super) frames: Vec<Frame>,
    pub(super) conts: Vec<Cont>,
    /// Upvalues that are still in the stack, by place, ascending.
    pub(super) open: Vec<(u32, u32)>,
    /// One past the last value of a list of open length: arguments, results.
    pub(super) top: usize,
    pub(super) status: Status,
    /// The coroutine that resumed this one.
    pub(super) parent: Co,
    /// How deep library functions and metamethods are nested, those of the resuming coroutines included.
    pub(super) levels: u32,
    /// What `levels` was when it was resumed.
    pub(super) base_levels: u32,
}

impl Default for Thread {
    fn default() -> Thread {
        Thread {
            stack: Vec::new(),
            frames: Vec::new(),
            conts: Vec::new(),
            open: Vec::new(),
            top: 0,
            status: Status::Suspended,
            parent: Co(0),
            levels: 0,
            base_levels: 0,
        }
    }
}

const FRAME_BYTES: usize = size_of::<Frame>();

impl Thread {
    /// Bytes that were charged for it beside its own.
    pub(super) fn bytes(&self) -> usize {
        let conts: usize = self.conts.iter().map(Cont::bytes).sum();
        self.stack.len() * size_of::<Value>() + self.frames.capacity() * FRAME_BYTES + conts
    }

    /// Makes the stack so long that `size` places are there, and a window after them.
    #[inline(always)]
    pub(super) fn reserve(&mut self, size: usize, meter: &mut Meter) -> Result<(), Fault> {
        if size + WINDOW > self.stack.len() { self.grow(size + WINDOW, meter) } else { Ok(()) }
    }

    #[cold]
    fn grow(&mut self, size: usize, meter: &mut Meter) -> Result<(), Fault> {
        let wanted = size.max(self.stack.len() + self.stack.len() / 2);
        let more = wanted - self.stack.len();
        meter.take(more * size_of::<Value>())?;
        self.stack.resize(wanted, Value::Nil);
        Ok(())
    }

    /// Makes sure that there is a place for one more frame.
    #[inline(always)]
    pub(super) fn reserve_frame(&mut self, meter: &mut Meter) -> Result<(), Fault> {
        if self.frames.len() == self.frames.capacity() { self.grow_frames(meter) } else { Ok(()) }
    }

    #[cold]
    fn grow_frames(&mut self, meter: &mut Meter) -> Result<(), Fault> {
        if self.frames.len() >= MAX_FRAMES {
            return Err(Fault::run("stack overflow"));
        }
        let more = self.frames.len().max(8).min(MAX_FRAMES - self.frames.len());
        meter.take(more * FRAME_BYTES)?;
        self.frames.reserve_exact(more);
        Ok(())
    }
}
