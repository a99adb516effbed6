//! The function that is being compiled: its instructions, constants, registers, and the jumps whose targets are not known yet.
//!
//! Jumps that wait for the same target are chained through their own operands. A chain is known by both ends, so that joining
//! two costs the same however long they are.

use super::super::code::{CONST_BIT, Const, Ins, MAX_BX, MAX_SBX, Op, Proto};
use super::lex::{Lexer, SyntaxError};
use hashbrown::HashMap;

pub(super) type Result<T> = std::result::Result<T, SyntaxError>;

/// A name, by its place in the parser's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name(pub(super) u32);

const NO_JUMP: i32 = -1;
/// Stands for a register that a test need not set.
pub(super) const NO_REG: u32 = 255;
const MAX_REGISTERS: u32 = 250;

/// A chain of jumps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jumps {
    head: i32,
    tail: i32,
}

impl Jumps {
    pub(super) const NONE: Jumps = Jumps { head: NO_JUMP, tail: NO_JUMP };

    pub(super) fn one(pc: usize) -> Jumps {
        Jumps { head: pc as i32, tail: pc as i32 }
    }

    pub(super) fn is_none(self) -> bool {
        self.head == NO_JUMP
    }
}

/// Where an expression's value is, or will be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Void,
    Nil,
    True,
    False,
    Const(u32),
    Number(f64),
    Local(u32),
    Upvalue(u32),
    Global(u32),
    /// table register, key as RK
    Indexed(u32, u32),
    /// the jump after a comparison
    Jump(usize),
    /// an instruction whose register A is still open
    Open(usize),
    Register(u32),
    Call(usize),
    Vararg(usize),
}

/// An expression: its value, and the jumps that leave it when it is true or false.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exp {
    pub(super) kind: Kind,
    pub(super) if_true: Jumps,
    pub(super) if_false: Jumps,
}

impl Exp {
    pub(super) fn new(kind: Kind) -> Exp {
        Exp { kind, if_true: Jumps::NONE, if_false: Jumps::NONE }
    }

    pub(super) fn has_jumps(&self) -> bool {
        !self.if_true.is_none() || !self.if_false.is_none()
    }

    pub(super) fn is_numeral(&self) -> bool {
        matches!(self.kind, Kind::Number(_)) && !self.has_jumps()
    }

    pub(super) fn is_multiple(&self) -> bool {
        matches!(self.kind, Kind::Call(_) | Kind::Vararg(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConstKey {
    Nil,
    Bool(bool),
    Number(u64),
    Str(Name),
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) breaks: Jumps,
    pub(super) is_loop: bool,
    pub(super) active: usize,
    /// A variable of it is an upvalue of some function.
    pub(super) captured: bool,
}

/// Where a closure finds an upvalue when it is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    Local(u32),
    Upvalue(u32),
}

#[derive(Debug, Default)]
pub(super) struct Func {
    pub(super) proto: Proto,
    consts: HashMap<ConstKey, u32>,
    pub(super) blocks: Vec<Block>,
    /// The active local variables: name, place in the list of names for error texts.
    pub(super) active: Vec<(Name, usize)>,
    /// Variables that were declared and become active after their statement.
    pub(super) declared: Vec<(Name, usize)>,
    pub(super) upvalues: Vec<(Name, Source)>,
    pub(super) free: u32,
    /// Jumps to the instruction that comes next.
    here: Option<Jumps>,
    last_target: i32,
}

impl Default for Jumps {
    fn default() -> Jumps {
        Jumps::NONE
    }
}

impl Func {
    pub(super) fn pc(&self) -> usize {
        self.proto.code.len()
    }

    pub(super) fn emit(&mut self, lex: &Lexer, ins: Ins) -> Result<usize> {
        if let Some(here) = self.here.take() {
            let pc = self.pc();
            self.patch(lex, here, pc, NO_REG, pc)?;
        }
        self.proto.code.push(ins);
        self.proto.lines.push(lex.last_line);
        Ok(self.pc() - 1)
    }

    pub(super) fn abc(&mut self, lex: &Lexer, op: Op, a: u32, b: u32, c: u32) -> Result<usize> {
        self.emit(lex, Ins::abc(op, a, b, c))
    }

    pub(super) fn set_line(&mut self, line: u32) {
        if let Some(last) = self.proto.lines.last_mut() {
            *last = line;
        }
    }

    // Jumps.

    pub(super) fn jump(&mut self, lex: &Lexer) -> Result<Jumps> {
        let here = self.here.take();
        let jump = Jumps::one(self.emit(lex, Ins::asbx(Op::Jmp, 0, NO_JUMP))?);
        self.join(lex, jump, here.unwrap_or_default())
    }

    /// Marks the next instruction as a target.
    pub(super) fn label(&mut self) -> usize {
        self.last_target = self.pc() as i32;
        self.pc()
    }

    pub(super) fn is_target(&self) -> bool {
        self.pc() as i32 <= self.last_target
    }

    fn next_jump(&self, pc: i32) -> i32 {
        match self.proto.code[pc as usize].sbx() {
            NO_JUMP => NO_JUMP,
            offset => pc + 1 + offset,
        }
    }

    fn fix_jump(&mut self, lex: &Lexer, pc: i32, target: usize) -> Result<()> {
        let offset = target as i32 - (pc + 1);
        if offset.abs() > MAX_SBX {
            return Err(lex.error("control structure too long"));
        }
        self.proto.code[pc as usize].set_sbx(offset);
        Ok(())
    }

    pub(super) fn join(&mut self, lex: &Lexer, first: Jumps, second: Jumps) -> Result<Jumps> {
        if first.is_none() || second.is_none() {
            return Ok(if first.is_none() { second } else { first });
        }
        self.fix_jump(lex, first.tail, second.head as usize)?;
        Ok(Jumps { head: first.head, tail: second.tail })
    }

    /// The instruction that decides about a jump: the test before it, or itself.
    fn control(&mut self, pc: i32) -> &mut Ins {
        let at = pc as usize;
        let at = if at >= 1 && self.proto.code[at - 1].is_test() { at - 1 } else { at };
        &mut self.proto.code[at]
    }

    fn needs_value(&mut self, jumps: Jumps) -> bool {
        let mut pc = jumps.head;
        while pc != NO_JUMP {
            if self.control(pc).op() != Op::TestSet {
                return true;
            }
            pc = self.next_jump(pc);
        }
        false
    }

    /// Gives a test its register, or lets it only test. False if the jump carries no value.
    fn set_test_register(&mut self, pc: i32, register: u32) -> bool {
        let control = self.control(pc);
        if control.op() != Op::TestSet {
            return false;
        }
        if register != NO_REG && register != control.b() as u32 {
            control.set_a(register);
        } else {
            *control = Ins::abc(Op::Test, control.b() as u32, 0, control.c() as u32);
        }
        true
    }

    pub(super) fn drop_values(&mut self, jumps: Jumps) {
        let mut pc = jumps.head;
        while pc != NO_JUMP {
            self.set_test_register(pc, NO_REG);
            pc = self.next_jump(pc);
        }
    }

    /// Jumps that carry a value go to `with_value` and leave it in `register`, the others to `without`.
    fn patch(&mut self, lex: &Lexer, jumps: Jumps, with_value: usize, register: u32, without: usize) -> Result<()> {
        let mut pc = jumps.head;
        while pc != NO_JUMP {
            let next = self.next_jump(pc);
            let target = if self.set_test_register(pc, register) { with_value } else { without };
            self.fix_jump(lex, pc, target)?;
            pc = next;
        }
        Ok(())
    }

    pub(super) fn patch_to(&mut self, lex: &Lexer, jumps: Jumps, target: usize) -> Result<()> {
        if target == self.pc() { self.patch_here(lex, jumps) } else { self.patch(lex, jumps, target, NO_REG, target) }
    }

    pub(super) fn patch_here(&mut self, lex: &Lexer, jumps: Jumps) -> Result<()> {
        self.label();
        let joined = self.join(lex, self.here.unwrap_or_default(), jumps)?;
        self.here = (!joined.is_none()).then_some(joined);
        Ok(())
    }

    pub(super) fn cond_jump(&mut self, lex: &Lexer, op: Op, a: u32, b: u32, c: u32) -> Result<Jumps> {
        self.abc(lex, op, a, b, c)?;
        self.jump(lex)
    }

    pub(super) fn invert(&mut self, pc: usize) {
        let control = self.control(pc as i32);
        let a = control.a() as u32;
        control.set_a(u32::from(a == 0));
    }

    // Registers.

    pub(super) fn reserve(&mut self, lex: &Lexer, count: u32) -> Result<()> {
        let size = self.free + count;
        if size > u32::from(self.proto.max_stack) {
            if size >= MAX_REGISTERS {
                return Err(lex.error("function or expression too complex"));
            }
            self.proto.max_stack = size as u8;
        }
        self.free = size;
        Ok(())
    }

    fn free_register(&mut self, register: u32) {
        if register < CONST_BIT && register as usize >= self.active.len() {
            self.free -= 1;
        }
    }

    pub(super) fn free_exp(&mut self, e: &Exp) {
        if let Kind::Register(register) = e.kind {
            self.free_register(register);
        }
    }

    // Constants.

    fn constant(&mut self, lex: &Lexer, key: ConstKey, value: impl FnOnce() -> Const) -> Result<u32> {
        if let Some(found) = self.consts.get(&key) {
            return Ok(*found);
        }
        let at = self.proto.consts.len();
        if at > MAX_BX {
            return Err(lex.error_near("constant table overflow", None));
        }
        self.proto.consts.push(value());
        self.consts.insert(key, at as u32);
        Ok(at as u32)
    }

    pub(super) fn string(&mut self, lex: &Lexer, name: Name, text: &[u8]) -> Result<u32> {
        self.constant(lex, ConstKey::Str(name), || Const::Str(text.into()))
    }

    pub(super) fn number(&mut self, lex: &Lexer, n: f64) -> Result<u32> {
        // Zero and minus zero are one constant, the first that came, as in Lua 5.1.
        let key = if n == 0.0 { 0 } else { n.to_bits() };
        self.constant(lex, ConstKey::Number(key), || Const::Number(n))
    }

    // Expressions into registers.

    pub(super) fn load_nil(&mut self, lex: &Lexer, from: u32, count: u32) -> Result<()> {
        if !self.is_target()
            && let Some(last) = self.proto.code.last_mut()
            && last.op() == Op::LoadNil
        {
            let (first, end) = (last.a() as u32, last.b() as u32);
            if first <= from && from <= end + 1 {
                if from + count - 1 > end {
                    last.set_b(from + count - 1);
                }
                return Ok(());
            }
        }
        self.abc(lex, Op::LoadNil, from, from + count - 1, 0)?;
        Ok(())
    }

    pub(super) fn set_returns(&mut self, lex: &Lexer, e: &Exp, count: i32) -> Result<()> {
        match e.kind {
            Kind::Call(pc) => self.proto.code[pc].set_c((count + 1) as u32),
            Kind::Vararg(pc) => {
                let free = self.free;
                self.proto.code[pc].set_b((count + 1) as u32);
                self.proto.code[pc].set_a(free);
                self.reserve(lex, 1)?;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn set_one_return(&mut self, e: &mut Exp) {
        match e.kind {
            Kind::Call(pc) => e.kind = Kind::Register(self.proto.code[pc].a() as u32),
            Kind::Vararg(pc) => {
                self.proto.code[pc].set_b(2);
                e.kind = Kind::Open(pc);
            }
            _ => {}
        }
    }

    pub(super) fn discharge(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        e.kind = match e.kind {
            Kind::Local(register) => Kind::Register(register),
            Kind::Upvalue(at) => Kind::Open(self.abc(lex, Op::GetUpval, 0, at, 0)?),
            Kind::Global(name) => Kind::Open(self.emit(lex, Ins::abx(Op::GetGlobal, 0, name))?),
            Kind::Indexed(table, key) => {
                self.free_register(key);
                self.free_register(table);
                Kind::Open(self.abc(lex, Op::GetTable, 0, table, key)?)
            }
            Kind::Call(_) | Kind::Vararg(_) => {
                self.set_one_return(e);
                e.kind
            }
            other => other,
        };
        Ok(())
    }

    fn discharge_to(&mut self, lex: &Lexer, e: &mut Exp, register: u32) -> Result<()> {
        self.discharge(lex, e)?;
        match e.kind {
            Kind::Nil => self.load_nil(lex, register, 1)?,
            Kind::True | Kind::False => {
                self.abc(lex, Op::LoadBool, register, u32::from(e.kind == Kind::True), 0)?;
            }
            Kind::Const(at) => {
                self.emit(lex, Ins::abx(Op::LoadK, register, at))?;
            }
            Kind::Number(n) => {
                let at = self.number(lex, n)?;
                self.emit(lex, Ins::abx(Op::LoadK, register, at))?;
            }
            Kind::Open(pc) => self.proto.code[pc].set_a(register),
            Kind::Register(from) if from != register => {
                self.abc(lex, Op::Move, register, from, 0)?;
            }
            Kind::Register(_) => {}
            _ => return Ok(()),
        }
        e.kind = Kind::Register(register);
        Ok(())
    }

    fn discharge_to_any(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        if !matches!(e.kind, Kind::Register(_)) {
            self.reserve(lex, 1)?;
            self.discharge_to(lex, e, self.free - 1)?;
        }
        Ok(())
    }

    pub(super) fn put_in(&mut self, lex: &Lexer, e: &mut Exp, register: u32) -> Result<()> {
        self.discharge_to(lex, e, register)?;
        if let Kind::Jump(pc) = e.kind {
            e.if_true = self.join(lex, e.if_true, Jumps::one(pc))?;
        }
        if e.has_jumps() {
            let (mut load_false, mut load_true) = (0, 0);
            if self.needs_value(e.if_true) || self.needs_value(e.if_false) {
                let over = if matches!(e.kind, Kind::Jump(_)) { Jumps::NONE } else { self.jump(lex)? };
                self.label();
                load_false = self.abc(lex, Op::LoadBool, register, 0, 1)?;
                self.label();
                load_true = self.abc(lex, Op::LoadBool, register, 1, 0)?;
                self.patch_here(lex, over)?;
            }
            let end = self.label();
            self.patch(lex, e.if_false, end, register, load_false)?;
            self.patch(lex, e.if_true, end, register, load_true)?;
        }
        *e = Exp::new(Kind::Register(register));
        Ok(())
    }

    pub(super) fn put_next(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        self.discharge(lex, e)?;
        self.free_exp(e);
        self.reserve(lex, 1)?;
        self.put_in(lex, e, self.free - 1)
    }

    pub(super) fn put_anywhere(&mut self, lex: &Lexer, e: &mut Exp) -> Result<u32> {
        self.discharge(lex, e)?;
        if let Kind::Register(register) = e.kind {
            if !e.has_jumps() {
                return Ok(register);
            }
            if register as usize >= self.active.len() {
                self.put_in(lex, e, register)?;
                return Ok(register);
            }
        }
        self.put_next(lex, e)?;
        Ok(self.free - 1)
    }

    pub(super) fn make_value(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        if e.has_jumps() {
            self.put_anywhere(lex, e)?;
            return Ok(());
        }
        self.discharge(lex, e)
    }

    /// A register or a constant, as an operand.
    pub(super) fn operand(&mut self, lex: &Lexer, e: &mut Exp) -> Result<u32> {
        self.make_value(lex, e)?;
        let few = self.proto.consts.len() < CONST_BIT as usize;
        let at = match e.kind {
            Kind::Nil if few => Some(self.constant(lex, ConstKey::Nil, || Const::Nil)?),
            Kind::True if few => Some(self.constant(lex, ConstKey::Bool(true), || Const::Bool(true))?),
            Kind::False if few => Some(self.constant(lex, ConstKey::Bool(false), || Const::Bool(false))?),
            Kind::Number(n) if few => Some(self.number(lex, n)?),
            Kind::Const(at) if at < CONST_BIT => Some(at),
            _ => None,
        };
        match at {
            Some(at) => {
                e.kind = Kind::Const(at);
                Ok(at | CONST_BIT)
            }
            None => self.put_anywhere(lex, e),
        }
    }

    // Conditions.

    fn jump_if(&mut self, lex: &Lexer, e: &mut Exp, condition: bool) -> Result<Jumps> {
        if let Kind::Open(pc) = e.kind
            && self.proto.code[pc].op() == Op::Not
        {
            let tested = self.proto.code[pc].b() as u32;
            self.proto.code.pop();
            self.proto.lines.pop();
            return self.cond_jump(lex, Op::Test, tested, 0, u32::from(!condition));
        }
        self.discharge_to_any(lex, e)?;
        self.free_exp(e);
        let Kind::Register(register) = e.kind else { return Ok(Jumps::NONE) };
        self.cond_jump(lex, Op::TestSet, NO_REG, register, u32::from(condition))
    }

    /// Goes on if the expression is true, leaves by `if_false` if not.
    pub(super) fn go_if_true(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        self.discharge(lex, e)?;
        let jump = match e.kind {
            Kind::Const(_) | Kind::Number(_) | Kind::True => Jumps::NONE,
            Kind::Jump(pc) => {
                self.invert(pc);
                Jumps::one(pc)
            }
            _ => self.jump_if(lex, e, false)?,
        };
        e.if_false = self.join(lex, e.if_false, jump)?;
        let here = std::mem::take(&mut e.if_true);
        self.patch_here(lex, here)
    }

    /// Goes on if the expression is false, leaves by `if_true` if not.
    pub(super) fn go_if_false(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        self.discharge(lex, e)?;
        let jump = match e.kind {
            Kind::Nil | Kind::False => Jumps::NONE,
            Kind::Jump(pc) => Jumps::one(pc),
            _ => self.jump_if(lex, e, true)?,
        };
        e.if_true = self.join(lex, e.if_true, jump)?;
        let here = std::mem::take(&mut e.if_false);
        self.patch_here(lex, here)
    }

    pub(super) fn not(&mut self, lex: &Lexer, e: &mut Exp) -> Result<()> {
        self.discharge(lex, e)?;
        match e.kind {
            Kind::Nil | Kind::False => e.kind = Kind::True,
            Kind::Const(_) | Kind::Number(_) | Kind::True => e.kind = Kind::False,
            Kind::Jump(pc) => self.invert(pc),
            _ => {
                self.discharge_to_any(lex, e)?;
                self.free_exp(e);
                if let Kind::Register(register) = e.kind {
                    e.kind = Kind::Open(self.abc(lex, Op::Not, 0, register, 0)?);
                }
            }
        }
        std::mem::swap(&mut e.if_true, &mut e.if_false);
        self.drop_values(e.if_true);
        self.drop_values(e.if_false);
        Ok(())
    }
}
