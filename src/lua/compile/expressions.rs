//! Expressions, from constants to function bodies.

use super::super::code::{Ins, MAX_BC, MAX_BX, Op};
use super::Parser;
use super::emit::{Exp, Kind, Result, Source};
use super::lex::Token;
use super::operators::{self, Binary};
use std::sync::Arc;

/// So many elements of a constructor go into the table at a time.
pub(in super::super) const FIELDS_PER_FLUSH: usize = 50;

/// A binary operator and its priorities to the left and to the right, if one follows.
type Following = Option<(Binary, u8, u8)>;

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Result<Exp> {
        Ok(self.operators(0)?.0)
    }

    /// Reads operands and operators that bind tighter than `limit`; the operator that follows is left to the caller.
    fn operators(&mut self, limit: u8) -> Result<(Exp, Following)> {
        self.enter()?;
        let mut left = match operators::unary(self.lex.token) {
            Some(op) => {
                self.lex.next()?;
                let mut operand = self.operators(operators::UNARY_PRIORITY)?.0;
                self.func.prefix(&self.lex, op, &mut operand)?;
                operand
            }
            None => self.simple()?,
        };
        let mut next = operators::binary(self.lex.token);
        while let Some((op, tightness, right_limit)) = next
            && tightness > limit
        {
            self.lex.next()?;
            self.func.infix(&self.lex, op, &mut left)?;
            let (right, after) = self.operators(right_limit)?;
            self.func.postfix(&self.lex, op, &mut left, right)?;
            next = after;
        }
        self.leave();
        Ok((left, next))
    }

    fn simple(&mut self) -> Result<Exp> {
        let kind = match self.lex.token {
            Token::Number => Kind::Number(self.lex.number),
            Token::Str => {
                let name = self.intern_text();
                Kind::Const(self.string_constant(name)?)
            }
            Token::Nil => Kind::Nil,
            Token::True => Kind::True,
            Token::False => Kind::False,
            Token::Dots => {
                if !self.func.proto.is_vararg {
                    return self.syntax_error("cannot use '...' outside a vararg function");
                }
                self.func.proto.needs_arg = false;
                Kind::Vararg(self.func.abc(&self.lex, Op::Vararg, 0, 1, 0)?)
            }
            Token::Char(b'{') => return self.constructor(),
            Token::Function => {
                self.lex.next()?;
                let line = self.lex.line;
                return self.body(false, line);
            }
            _ => return self.primary(),
        };
        self.lex.next()?;
        Ok(Exp::new(kind))
    }

    fn prefix_expression(&mut self) -> Result<Exp> {
        match self.lex.token {
            Token::Char(b'(') => {
                let line = self.lex.line;
                self.lex.next()?;
                let mut e = self.expression()?;
                self.check_match(Token::Char(b')'), Token::Char(b'('), line)?;
                self.func.discharge(&self.lex, &mut e)?;
                Ok(e)
            }
            Token::Name => self.variable(),
            _ => self.syntax_error("unexpected symbol"),
        }
    }

    pub(super) fn primary(&mut self) -> Result<Exp> {
        let mut e = self.prefix_expression()?;
        loop {
            match self.lex.token {
                Token::Char(b'.') => e = self.field(e)?,
                Token::Char(b'[') => {
                    let table = self.func.put_anywhere(&self.lex, &mut e)?;
                    let mut key = self.index()?;
                    let key = self.func.operand(&self.lex, &mut key)?;
                    e = Exp::new(Kind::Indexed(table, key));
                }
                Token::Char(b':') => {
                    self.lex.next()?;
                    let name = self.name()?;
                    let key = Exp::new(Kind::Const(self.string_constant(name)?));
                    self.method(&mut e, key)?;
                    e = self.arguments(e)?;
                }
                Token::Char(b'(' | b'{') | Token::Str => {
                    self.func.put_next(&self.lex, &mut e)?;
                    e = self.arguments(e)?;
                }
                _ => return Ok(e),
            }
        }
    }

    /// `e.name`
    pub(super) fn field(&mut self, mut e: Exp) -> Result<Exp> {
        let table = self.func.put_anywhere(&self.lex, &mut e)?;
        self.lex.next()?;
        let name = self.name()?;
        let mut key = Exp::new(Kind::Const(self.string_constant(name)?));
        let key = self.func.operand(&self.lex, &mut key)?;
        Ok(Exp::new(Kind::Indexed(table, key)))
    }

    fn index(&mut self) -> Result<Exp> {
        self.lex.next()?;
        let mut e = self.expression()?;
        self.func.make_value(&self.lex, &mut e)?;
        self.check_next(Token::Char(b']'))?;
        Ok(e)
    }

    fn method(&mut self, e: &mut Exp, mut key: Exp) -> Result<()> {
        let object = self.func.put_anywhere(&self.lex, e)?;
        self.func.free_exp(e);
        let base = self.func.free;
        self.func.reserve(&self.lex, 2)?;
        let rk = self.func.operand(&self.lex, &mut key)?;
        self.func.abc(&self.lex, Op::Method, base, object, rk)?;
        self.func.free_exp(&key);
        *e = Exp::new(Kind::Register(base));
        Ok(())
    }

    /// The arguments of a call to the function in the register of `function`.
    fn arguments(&mut self, function: Exp) -> Result<Exp> {
        let line = self.lex.line;
        let mut args = match self.lex.token {
            Token::Char(b'(') => {
                if line != self.lex.last_line {
                    return self.syntax_error("ambiguous syntax (function call x new statement)");
                }
                self.lex.next()?;
                let args = if self.lex.token == Token::Char(b')') {
                    Exp::new(Kind::Void)
                } else {
                    let (list, _) = self.list()?;
                    self.func.set_returns(&self.lex, &list, -1)?;
                    list
                };
                self.check_match(Token::Char(b')'), Token::Char(b'('), line)?;
                args
            }
            Token::Char(b'{') => self.constructor()?,
            Token::Str => self.simple()?,
            _ => return self.syntax_error("function arguments expected"),
        };
        let Kind::Register(base) = function.kind else { return Ok(function) };
        let count = if args.is_multiple() {
            0
        } else {
            if args.kind != Kind::Void {
                self.func.put_next(&self.lex, &mut args)?;
            }
            self.func.free - base
        };
        let call = self.func.abc(&self.lex, Op::Call, base, count, 2)?;
        self.func.set_line(line);
        self.func.free = base + 1;
        Ok(Exp::new(Kind::Call(call)))
    }

    /// Expressions between commas: all but the last go to registers.
    pub(super) fn list(&mut self) -> Result<(Exp, u32)> {
        let mut count = 1;
        let mut e = self.expression()?;
        while self.accept(Token::Char(b','))? {
            self.func.put_next(&self.lex, &mut e)?;
            e = self.expression()?;
            count += 1;
        }
        Ok((e, count))
    }

    fn constructor(&mut self) -> Result<Exp> {
        let line = self.lex.line;
        let pc = self.func.abc(&self.lex, Op::NewTable, 0, 0, 0)?;
        let mut table = Exp::new(Kind::Open(pc));
        self.func.put_next(&self.lex, &mut table)?;
        let register = self.func.free - 1;
        let (mut pairs, mut elements, mut pending) = (0usize, 0usize, 0usize);
        let mut last: Option<Exp> = None;
        self.check_next(Token::Char(b'{'))?;
        while self.lex.token != Token::Char(b'}') {
            if let Some(mut e) = last.take() {
                self.func.put_next(&self.lex, &mut e)?;
                if pending == FIELDS_PER_FLUSH {
                    self.set_list(register, elements, pending as u32)?;
                    pending = 0;
                }
            }
            let is_pair = match self.lex.token {
                Token::Name => self.lex.peek()? == Token::Char(b'='),
                token => token == Token::Char(b'['),
            };
            if is_pair {
                self.pair(register)?;
                pairs += 1;
            } else {
                last = Some(self.expression()?);
                elements += 1;
                pending += 1;
            }
            if !self.accept(Token::Char(b','))? && !self.accept(Token::Char(b';'))? {
                break;
            }
        }
        self.check_match(Token::Char(b'}'), Token::Char(b'{'), line)?;
        match last {
            Some(e) if e.is_multiple() => {
                self.func.set_returns(&self.lex, &e, -1)?;
                self.set_list(register, elements, 0)?;
                elements -= 1;
            }
            Some(mut e) => {
                self.func.put_next(&self.lex, &mut e)?;
                self.set_list(register, elements, pending as u32)?;
            }
            None if pending > 0 => self.set_list(register, elements, pending as u32)?,
            None => {}
        }
        let ins = &mut self.func.proto.code[pc];
        ins.set_b(to_float_byte(elements));
        ins.set_c(to_float_byte(pairs));
        Ok(table)
    }

    fn pair(&mut self, table: u32) -> Result<()> {
        let free = self.func.free;
        let mut key = if self.lex.token == Token::Name {
            let name = self.name()?;
            Exp::new(Kind::Const(self.string_constant(name)?))
        } else {
            self.index()?
        };
        self.check_next(Token::Char(b'='))?;
        let key = self.func.operand(&self.lex, &mut key)?;
        let mut value = self.expression()?;
        let value = self.func.operand(&self.lex, &mut value)?;
        self.func.abc(&self.lex, Op::SetTable, table, key, value)?;
        self.func.free = free;
        Ok(())
    }

    fn set_list(&mut self, table: u32, elements: usize, pending: u32) -> Result<()> {
        let batch = ((elements - 1) / FIELDS_PER_FLUSH + 1) as u32;
        if batch <= MAX_BC {
            self.func.abc(&self.lex, Op::SetList, table, pending, batch)?;
        } else {
            self.func.abc(&self.lex, Op::SetList, table, pending, 0)?;
            self.func.emit(&self.lex, Ins(batch))?;
        }
        self.func.free = table + 1;
        Ok(())
    }

    /// Parameters, block and `end` of a function; the closure is the value.
    pub(super) fn body(&mut self, is_method: bool, line: u32) -> Result<Exp> {
        self.open(line);
        self.check_next(Token::Char(b'('))?;
        if is_method {
            self.declare_literal(b"self")?;
            self.activate(1);
        }
        self.parameters()?;
        self.check_next(Token::Char(b')'))?;
        self.chunk()?;
        self.check_match(Token::EndWord, Token::Function, line)?;
        let upvalues = self.func.upvalues.clone();
        let proto = self.close()?;
        self.protos.push(Arc::new(proto));
        let child = self.func.proto.children.len();
        if child > MAX_BX {
            return Err(self.lex.error_near("constant table overflow", None));
        }
        self.func.proto.children.push(self.protos.len() as u32 - 1);
        self.func.proto.closure_upvalues.push(upvalues.len() as u8);
        let closure = self.func.emit(&self.lex, Ins::abx(Op::Closure, 0, child as u32))?;
        for (_, source) in upvalues {
            match source {
                Source::Local(register) => self.func.abc(&self.lex, Op::Move, 0, register, 0)?,
                Source::Upvalue(at) => self.func.abc(&self.lex, Op::GetUpval, 0, at, 0)?,
            };
        }
        Ok(Exp::new(Kind::Open(closure)))
    }

    fn parameters(&mut self) -> Result<()> {
        let mut count = 0;
        if self.lex.token != Token::Char(b')') {
            loop {
                match self.lex.token {
                    Token::Name => {
                        let name = self.name()?;
                        self.declare(name)?;
                        count += 1;
                    }
                    Token::Dots => {
                        self.lex.next()?;
                        self.declare_literal(b"arg")?;
                        self.func.proto.is_vararg = true;
                        self.func.proto.needs_arg = true;
                        break;
                    }
                    _ => return self.syntax_error("<name> or '...' expected"),
                }
                if !self.accept(Token::Char(b','))? {
                    break;
                }
            }
        }
        let declared = self.func.declared.len();
        self.activate(declared);
        // The method's own `self` counts, the table `arg` does not.
        let own = self.func.active.len();
        self.func.proto.params = (own - (declared - count)) as u8;
        self.func.reserve(&self.lex, own as u32)
    }
}

/// Sizes of tables in an instruction: eeeeexxx, (1xxx) * 2^(eeeee - 1), rounded up.
fn to_float_byte(n: usize) -> u32 {
    let (mut mantissa, mut exponent) = (n, 0);
    while mantissa >= 16 {
        mantissa = mantissa.div_ceil(2);
        exponent += 1;
    }
    if mantissa < 8 { mantissa as u32 } else { (exponent + 1) << 3 | (mantissa as u32 - 8) }
}

pub(in super::super) fn from_float_byte(n: usize) -> usize {
    let exponent = n >> 3 & 31;
    if exponent == 0 { n } else { ((n & 7) + 8) << (exponent - 1) }
}
