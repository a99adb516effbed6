//! How a running script fails, and the meter that every step and every byte passes.

use super::value::Value;
use std::cell::Cell;

/// Why an instruction or a library function did not succeed. All but `Memory` can be caught by `pcall`.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// A value raised as it is.
    Value(Value),
    /// A value raised by `error`: if it is a string, the position of the function at this level is put before it.
    At(usize, Value),
    /// A runtime error. The position is put before it if it arises in a Lua function's own instruction.
    Run(Box<[u8]>),
    /// A library function's error: the position of its caller is put before it.
    Lib(Box<[u8]>),
    /// `bad argument #n to 'function' (text)`
    Arg(usize, Box<[u8]>),
    /// The machine's bytes are used up. No script can catch it.
    Memory,
}

impl Fault {
    pub(super) fn run(text: impl AsRef<[u8]>) -> Fault {
        Fault::Run(text.as_ref().into())
    }

    pub(super) fn lib(text: impl AsRef<[u8]>) -> Fault {
        Fault::Lib(text.as_ref().into())
    }

    pub(super) fn arg(n: usize, text: impl AsRef<[u8]>) -> Fault {
        Fault::Arg(n, text.as_ref().into())
    }
}

/// The one place where steps and bytes are charged. Steps may be overdrawn by what one bounded piece of work costs; the
/// machine looks before the next instruction. Bytes may not.
#[derive(Debug)]
pub(super) struct Meter {
    /// Steps left in this run.
    pub(super) fuel: i64,
    /// Bytes in use.
    pub(super) bytes: usize,
    /// Bytes that may be in use.
    pub(super) max_bytes: usize,
    /// From here on it pays to collect garbage.
    pub(super) collect_at: usize,
    /// The most bytes there ever were in use.
    pub(super) peak: usize,
    /// Steps that were put aside so that the machine stops and collects garbage.
    aside: Option<i64>,
    /// The longest string and the largest part of a table that may be made: what takes long is not begun.
    pub(super) most_at_once: usize,
    /// That was too little.
    pub(super) wants_more: Cell<bool>,
}

/// Bytes of copying that cost as much as an instruction.
const BYTES_A_STEP: usize = 16;
/// Bytes that are looked at in that time.
const READ_A_STEP: usize = 4;

impl Meter {
    pub(super) fn new(max_bytes: usize) -> Meter {
        Meter {
            fuel: 0,
            bytes: 0,
            max_bytes,
            collect_at: usize::MAX,
            peak: 0,
            aside: None,
            most_at_once: usize::MAX,
            wants_more: Cell::new(false),
        }
    }

    /// Charges steps.
    pub(super) fn work(&mut self, steps: usize) {
        self.fuel = self.fuel.saturating_sub_unsigned(steps as u64);
    }

    /// Charges the copying of bytes.
    pub(super) fn copy(&mut self, bytes: usize) {
        self.work(bytes / BYTES_A_STEP);
    }

    /// Charges the reading of bytes one by one.
    pub(super) fn read(&mut self, bytes: usize) {
        self.work(bytes / READ_A_STEP);
    }

    /// Charges bytes before they are allocated, and the work of filling them.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        self.room(bytes)?;
        let sum = self.bytes + bytes;
        self.bytes = sum;
        self.peak = self.peak.max(sum);
        self.copy(bytes);
        if sum >= self.collect_at && self.aside.is_none() {
            self.aside = Some(std::mem::replace(&mut self.fuel, 0));
        }
        Ok(())
    }

    /// Gives back the steps that were put aside; whether garbage is to be collected.
    pub(super) fn resume(&mut self) -> bool {
        match self.aside.take() {
            Some(fuel) => {
                self.fuel = self.fuel.saturating_add(fuel);
                true
            }
            None => false,
        }
    }

    /// Steps that are left, those put aside included.
    pub(super) fn left(&self) -> i64 {
        self.fuel.saturating_add(self.aside.unwrap_or(0))
    }

    /// Whether so many bytes could be had, for results whose size is known before they are made.
    pub(super) fn room(&self, bytes: usize) -> Result<(), Fault> {
        self.at_once(bytes)?;
        if self.bytes.saturating_add(bytes) > self.max_bytes { Err(Fault::Memory) } else { Ok(()) }
    }

    /// Whether what takes as long as copying so many bytes may be begun.
    pub(super) fn at_once(&self, bytes: usize) -> Result<(), Fault> {
        if bytes > self.most_at_once {
            self.wants_more.set(true);
            return Err(Fault::Memory);
        }
        Ok(())
    }

    pub(super) fn give(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
