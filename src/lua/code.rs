//! Instructions and compiled functions.
//!
//! The instructions are those of Lua 5.1's machine, because the texts of its errors name variables by looking at the
//! instructions around the one that failed. An instruction is 32 bits:
//!
//! | bits | 0..6 | 6..14 | 14..23 | 23..32 |
//! |---|---|---|---|---|
//! | A B C | op | A | C | B |
//! | A Bx, A sBx | op | A | Bx: 18 bits, sBx with 131071 added | |
//!
//! `RK(x)`: register x, or constant x - 256 from 256 on.

use std::sync::Arc;

macro_rules! ops {
    ($($name:ident $sets:literal $test:literal),*) => {
        /// What an instruction does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Op { $($name),* }

        /// By number: the operation, whether it sets register A, whether a jump follows it.
        const OPS: [(Op, bool, bool); 64] = {
            let mut all = [(Op::Vararg, false, false); 64];
            $(all[Op::$name as usize] = (Op::$name, $sets, $test);)*
            all
        };
    };
}

ops! {
    Move true false, LoadK true false, LoadBool true false, LoadNil true false, GetUpval true false,
    GetGlobal true false, GetTable true false, SetGlobal false false, SetUpval false false, SetTable false false,
    NewTable true false, Method true false, Add true false, Sub true false, Mul true false, Div true false,
    Mod true false, Pow true false, Unm true false, Not true false, Len true false, Concat true false,
    Jmp false false, Eq false true, Lt false true, Le false true, Test true true, TestSet true true,
    Call true false, TailCall true false, Return false false, ForLoop true false, ForPrep true false,
    TForLoop false true, SetList false false, Close false false, Closure true false, Vararg true false
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ins(pub(super) u32);

pub(super) const MAX_BX: usize = (1 << 18) - 1;
pub(super) const MAX_SBX: i32 = (MAX_BX >> 1) as i32;
pub(super) const MAX_BC: u32 = 511;
/// From here on an RK operand is a constant.
pub(super) const CONST_BIT: u32 = 256;

impl Ins {
    pub(super) fn abc(op: Op, a: u32, b: u32, c: u32) -> Ins {
        Ins(op as u32 | a << 6 | c << 14 | b << 23)
    }

    pub(super) fn abx(op: Op, a: u32, bx: u32) -> Ins {
        Ins(op as u32 | a << 6 | bx << 14)
    }

    pub(super) fn asbx(op: Op, a: u32, sbx: i32) -> Ins {
        Ins::abx(op, a, (sbx + MAX_SBX) as u32)
    }

    #[inline(always)]
    pub(super) fn op(self) -> Op {
        OPS[(self.0 & 63) as usize].0
    }

    pub(super) fn sets_a(self) -> bool {
        OPS[(self.0 & 63) as usize].1
    }

    pub(super) fn is_test(self) -> bool {
        OPS[(self.0 & 63) as usize].2
    }

    #[inline(always)]
    pub(super) fn a(self) -> usize {
        (self.0 >> 6 & 255) as usize
    }

    #[inline(always)]
    pub(super) fn b(self) -> usize {
        (self.0 >> 23) as usize
    }

    #[inline(always)]
    pub(super) fn c(self) -> usize {
        (self.0 >> 14 & 511) as usize
    }

    #[inline(always)]
    pub(super) fn bx(self) -> usize {
        (self.0 >> 14) as usize
    }

    #[inline(always)]
    pub(super) fn sbx(self) -> i32 {
        (self.0 >> 14) as i32 - MAX_SBX
    }

    pub(super) fn set_a(&mut self, a: u32) {
        self.0 = self.0 & !(255 << 6) | a << 6;
    }

    pub(super) fn set_b(&mut self, b: u32) {
        self.0 = self.0 & !(511 << 23) | b << 23;
    }

    pub(super) fn set_c(&mut self, c: u32) {
        self.0 = self.0 & !(511 << 14) | c << 14;
    }

    pub(super) fn set_sbx(&mut self, sbx: i32) {
        self.0 = self.0 & 0x3fff | ((sbx + MAX_SBX) as u32) << 14;
    }
}

/// A constant of a function.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Const {
    Nil,
    Bool(bool),
    Number(f64),
    Str(Box<[u8]>),
}

/// A local variable and the instructions during which it is one.
#[derive(Clone, Debug)]
pub(super) struct LocalVar {
    pub(super) name: Arc<[u8]>,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// A compiled function.
#[derive(Debug, Default)]
pub(super) struct Proto {
    pub(super) code: Vec<Ins>,
    pub(super) lines: Vec<u32>,
    pub(super) consts: Vec<Const>,
    /// The functions in it, by their places in the chunk.
    pub(super) children: Vec<u32>,
    /// How many upvalues each of them has.
    pub(super) closure_upvalues: Vec<u8>,
    pub(super) upvalues: Vec<Arc<[u8]>>,
    pub(super) locals: Vec<LocalVar>,
    pub(super) params: u8,
    pub(super) is_vararg: bool,
    /// It may use the table `arg`, which older scripts find their extra arguments in.
    pub(super) needs_arg: bool,
    pub(super) max_stack: u8,
    /// Where its source begins; 0 for a chunk's main function.
    pub(super) line_defined: u32,
    /// The chunk's name, with its mark.
    pub(super) source: Arc<[u8]>,
}

impl Proto {
    /// The line of an instruction.
    pub(super) fn line(&self, pc: usize) -> u32 {
        self.lines.get(pc).copied().unwrap_or(0)
    }

    /// The name of the `n`th local variable (from 1) that is active at an instruction.
    pub(super) fn local_name(&self, n: usize, pc: usize) -> Option<&[u8]> {
        let mut left = n;
        for local in &self.locals {
            if local.from as usize > pc {
                break;
            }
            if pc < local.to as usize {
                left -= 1;
                if left == 0 {
                    return Some(&local.name);
                }
            }
        }
        None
    }

    pub(super) fn bytes(&self) -> usize {
        let strings: usize = self.consts.iter().map(|c| if let Const::Str(s) = c { s.len() } else { 0 }).sum();
        size_of::<Proto>()
            + self.code.len() * 8
            + self.consts.len() * size_of::<Const>()
            + strings
            + self.children.len() * 5
            + self.upvalues.len() * 16
            + self.locals.len() * size_of::<LocalVar>()
    }
}

/// A compiled script: immutable, shared by machines and threads.
#[derive(Debug)]
pub struct Chunk {
    /// Distinguishes chunks for as long as the process lives.
    pub(super) id: u64,
    /// The main function is the last.
    pub(super) protos: Vec<Arc<Proto>>,
    pub(super) bytes: usize,
}

impl Chunk {
    pub(super) fn of(protos: Vec<Arc<Proto>>) -> Chunk {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let bytes = size_of::<Chunk>() + protos.iter().map(|p| p.bytes() + 32).sum::<usize>();
        Chunk { id, protos, bytes }
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
