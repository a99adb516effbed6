//! Statements and blocks.

use super::super::code::{Ins, Op};
use super::emit::{Exp, Jumps, Kind, Result};
use super::lex::Token;
use super::{MAX_LEVELS, Parser};

impl Parser<'_> {
    /// Statements up to the end of the block.
    pub(super) fn chunk(&mut self) -> Result<()> {
        self.enter()?;
        loop {
            if self.block_ends() {
                break;
            }
            let last = self.statement()?;
            self.accept(Token::Char(b';'))?;
            self.func.free = self.func.active.len() as u32;
            if last {
                break;
            }
        }
        self.leave();
        Ok(())
    }

    fn block_ends(&self) -> bool {
        matches!(self.lex.token, Token::Else | Token::ElseIf | Token::EndWord | Token::Until | Token::End)
    }

    fn block(&mut self) -> Result<()> {
        self.enter_block(false);
        self.chunk()?;
        self.leave_block()
    }

    /// One statement; whether it has to be the block's last.
    fn statement(&mut self) -> Result<bool> {
        let line = self.lex.line;
        match self.lex.token {
            Token::If => self.if_statement(line)?,
            Token::While => self.while_statement(line)?,
            Token::Do => {
                self.lex.next()?;
                self.block()?;
                self.check_match(Token::EndWord, Token::Do, line)?;
            }
            Token::For => self.for_statement(line)?,
            Token::Repeat => self.repeat_statement(line)?,
            Token::Function => self.function_statement(line)?,
            Token::Local => {
                self.lex.next()?;
                if self.accept(Token::Function)? { self.local_function()? } else { self.local_statement()? }
            }
            Token::Return => {
                self.return_statement()?;
                return Ok(true);
            }
            Token::Break => {
                self.lex.next()?;
                self.break_statement()?;
                return Ok(true);
            }
            _ => self.expression_statement()?,
        }
        Ok(false)
    }

    /// A condition; the jumps that leave if it is false.
    fn condition(&mut self) -> Result<Jumps> {
        let mut e = self.expression()?;
        if e.kind == Kind::Nil {
            e.kind = Kind::False;
        }
        self.func.go_if_true(&self.lex, &mut e)?;
        Ok(e.if_false)
    }

    fn if_statement(&mut self, line: u32) -> Result<()> {
        let mut escapes = Jumps::NONE;
        let mut otherwise = self.test_then_block()?;
        while self.lex.token == Token::ElseIf {
            let jump = self.func.jump(&self.lex)?;
            escapes = self.func.join(&self.lex, escapes, jump)?;
            self.func.patch_here(&self.lex, otherwise)?;
            otherwise = self.test_then_block()?;
        }
        if self.lex.token == Token::Else {
            let jump = self.func.jump(&self.lex)?;
            escapes = self.func.join(&self.lex, escapes, jump)?;
            self.func.patch_here(&self.lex, otherwise)?;
            self.lex.next()?;
            self.block()?;
        } else {
            escapes = self.func.join(&self.lex, escapes, otherwise)?;
        }
        self.func.patch_here(&self.lex, escapes)?;
        self.check_match(Token::EndWord, Token::If, line)
    }

    fn test_then_block(&mut self) -> Result<Jumps> {
        self.lex.next()?;
        let otherwise = self.condition()?;
        self.check_next(Token::Then)?;
        self.block()?;
        Ok(otherwise)
    }

    fn while_statement(&mut self, line: u32) -> Result<()> {
        self.lex.next()?;
        let start = self.func.label();
        let exit = self.condition()?;
        self.enter_block(true);
        self.check_next(Token::Do)?;
        self.block()?;
        let back = self.func.jump(&self.lex)?;
        self.func.patch_to(&self.lex, back, start)?;
        self.check_match(Token::EndWord, Token::While, line)?;
        self.leave_block()?;
        self.func.patch_here(&self.lex, exit)
    }

    fn repeat_statement(&mut self, line: u32) -> Result<()> {
        let start = self.func.label();
        self.enter_block(true);
        self.enter_block(false);
        self.lex.next()?;
        self.chunk()?;
        self.check_match(Token::Until, Token::Repeat, line)?;
        let exit = self.condition()?;
        if !self.func.blocks.last().is_some_and(|block| block.captured) {
            self.leave_block()?;
            self.func.patch_to(&self.lex, exit, start)?;
        } else {
            // The variables of the round have to be closed on both ways out of it.
            self.break_statement()?;
            self.func.patch_here(&self.lex, exit)?;
            self.leave_block()?;
            let back = self.func.jump(&self.lex)?;
            self.func.patch_to(&self.lex, back, start)?;
        }
        self.leave_block()
    }

    fn break_statement(&mut self) -> Result<()> {
        let Some(at) = self.func.blocks.iter().rposition(|block| block.is_loop) else {
            return self.syntax_error("no loop to break");
        };
        if self.func.blocks[at + 1..].iter().any(|block| block.captured) {
            let active = self.func.blocks[at].active as u32;
            self.func.abc(&self.lex, Op::Close, active, 0, 0)?;
        }
        let jump = self.func.jump(&self.lex)?;
        let breaks = self.func.join(&self.lex, self.func.blocks[at].breaks, jump)?;
        self.func.blocks[at].breaks = breaks;
        Ok(())
    }

    fn for_statement(&mut self, line: u32) -> Result<()> {
        self.enter_block(true);
        self.lex.next()?;
        let name = self.name()?;
        let base = self.func.free;
        match self.lex.token {
            Token::Char(b'=') => {
                for hidden in [&b"(for index)"[..], b"(for limit)", b"(for step)"] {
                    self.declare_literal(hidden)?;
                }
                self.declare(name)?;
                self.lex.next()?;
                self.expression_to_next()?;
                self.check_next(Token::Char(b','))?;
                self.expression_to_next()?;
                if self.accept(Token::Char(b','))? {
                    self.expression_to_next()?;
                } else {
                    let one = self.func.number(&self.lex, 1.0)?;
                    self.func.emit(&self.lex, Ins::abx(Op::LoadK, self.func.free, one))?;
                    self.func.reserve(&self.lex, 1)?;
                }
                self.for_body(base, line, 1, true)?;
            }
            Token::Char(b',') | Token::In => {
                for hidden in [&b"(for generator)"[..], b"(for state)", b"(for control)"] {
                    self.declare_literal(hidden)?;
                }
                self.declare(name)?;
                let mut count = 1;
                while self.accept(Token::Char(b','))? {
                    let name = self.name()?;
                    self.declare(name)?;
                    count += 1;
                }
                self.check_next(Token::In)?;
                let line = self.lex.line;
                let (mut e, values) = self.list()?;
                self.adjust(3, values, &mut e)?;
                let free = self.func.free;
                self.func.reserve(&self.lex, 3)?;
                self.func.free = free;
                self.for_body(base, line, count, false)?;
            }
            _ => return self.syntax_error("'=' or 'in' expected"),
        }
        self.check_match(Token::EndWord, Token::For, line)?;
        self.leave_block()
    }

    fn expression_to_next(&mut self) -> Result<()> {
        let mut e = self.expression()?;
        self.func.put_next(&self.lex, &mut e)
    }

    fn for_body(&mut self, base: u32, line: u32, variables: usize, numeric: bool) -> Result<()> {
        self.activate(3);
        self.check_next(Token::Do)?;
        let prepare = if numeric {
            Jumps::one(self.func.emit(&self.lex, Ins::asbx(Op::ForPrep, base, -1))?)
        } else {
            self.func.jump(&self.lex)?
        };
        self.enter_block(false);
        self.activate(variables);
        self.func.reserve(&self.lex, variables as u32)?;
        let start = self.func.pc();
        self.block()?;
        self.leave_block()?;
        self.func.patch_here(&self.lex, prepare)?;
        let back = if numeric {
            let back = self.func.emit(&self.lex, Ins::asbx(Op::ForLoop, base, -1))?;
            self.func.set_line(line);
            Jumps::one(back)
        } else {
            self.func.abc(&self.lex, Op::TForLoop, base, 0, variables as u32)?;
            self.func.set_line(line);
            self.func.jump(&self.lex)?
        };
        self.func.patch_to(&self.lex, back, start)
    }

    fn function_statement(&mut self, line: u32) -> Result<()> {
        self.lex.next()?;
        let mut target = self.variable()?;
        while self.lex.token == Token::Char(b'.') {
            target = self.field(target)?;
        }
        let is_method = self.lex.token == Token::Char(b':');
        if is_method {
            target = self.field(target)?;
        }
        let mut function = self.body(is_method, line)?;
        self.store(&target, &mut function)?;
        self.func.set_line(line);
        Ok(())
    }

    fn local_function(&mut self) -> Result<()> {
        let name = self.name()?;
        self.declare(name)?;
        let register = self.func.free;
        self.func.reserve(&self.lex, 1)?;
        self.activate(1);
        let line = self.lex.line;
        let mut function = self.body(false, line)?;
        self.func.put_in(&self.lex, &mut function, register)?;
        // Error texts know the variable only once it has its value.
        let pc = self.func.pc() as u32;
        if let Some((_, at)) = self.func.active.last() {
            self.func.proto.locals[*at].from = pc;
        }
        Ok(())
    }

    fn local_statement(&mut self) -> Result<()> {
        let mut variables = 0;
        loop {
            let name = self.name()?;
            self.declare(name)?;
            variables += 1;
            if !self.accept(Token::Char(b','))? {
                break;
            }
        }
        let (mut e, values) = if self.accept(Token::Char(b'='))? { self.list()? } else { (Exp::new(Kind::Void), 0) };
        self.adjust(variables, values, &mut e)?;
        self.activate(variables as usize);
        Ok(())
    }

    /// Makes `values` expressions, the last of which is `e`, fill `variables` registers.
    fn adjust(&mut self, variables: u32, values: u32, e: &mut Exp) -> Result<()> {
        let extra = variables as i32 - values as i32;
        if e.is_multiple() {
            let wanted = (extra + 1).max(0);
            self.func.set_returns(&self.lex, e, wanted)?;
            if wanted > 1 {
                self.func.reserve(&self.lex, wanted as u32 - 1)?;
            }
            return Ok(());
        }
        if e.kind != Kind::Void {
            self.func.put_next(&self.lex, e)?;
        }
        if extra > 0 {
            let from = self.func.free;
            self.func.reserve(&self.lex, extra as u32)?;
            self.func.load_nil(&self.lex, from, extra as u32)?;
        }
        Ok(())
    }

    fn return_statement(&mut self) -> Result<()> {
        self.lex.next()?;
        let active = self.func.active.len() as u32;
        let (mut first, mut count) = (0, 0);
        if !self.block_ends() && self.lex.token != Token::Char(b';') {
            let (mut e, values) = self.list()?;
            if e.is_multiple() {
                self.func.set_returns(&self.lex, &e, -1)?;
                if let Kind::Call(pc) = e.kind
                    && values == 1
                {
                    let call = self.func.proto.code[pc];
                    self.func.proto.code[pc] =
                        Ins::abc(Op::TailCall, call.a() as u32, call.b() as u32, call.c() as u32);
                }
                (first, count) = (active, -1);
            } else if values == 1 {
                (first, count) = (self.func.put_anywhere(&self.lex, &mut e)?, 1);
            } else {
                self.func.put_next(&self.lex, &mut e)?;
                (first, count) = (active, values as i32);
            }
        }
        self.func.abc(&self.lex, Op::Return, first, (count + 1) as u32, 0)?;
        Ok(())
    }

    fn store(&mut self, target: &Exp, value: &mut Exp) -> Result<()> {
        match target.kind {
            Kind::Local(register) => {
                self.func.free_exp(value);
                return self.func.put_in(&self.lex, value, register);
            }
            Kind::Upvalue(at) => {
                let register = self.func.put_anywhere(&self.lex, value)?;
                self.func.abc(&self.lex, Op::SetUpval, register, at, 0)?;
            }
            Kind::Global(name) => {
                let register = self.func.put_anywhere(&self.lex, value)?;
                self.func.emit(&self.lex, Ins::abx(Op::SetGlobal, register, name))?;
            }
            Kind::Indexed(table, key) => {
                let rk = self.func.operand(&self.lex, value)?;
                self.func.abc(&self.lex, Op::SetTable, table, key, rk)?;
            }
            _ => {}
        }
        self.func.free_exp(value);
        Ok(())
    }

    /// A call, or an assignment.
    fn expression_statement(&mut self) -> Result<()> {
        let e = self.primary()?;
        if let Kind::Call(pc) = e.kind {
            self.func.proto.code[pc].set_c(1);
            return Ok(());
        }
        let mut targets = vec![e];
        while self.accept_target(targets.last())? {
            let next = self.primary()?;
            if let Kind::Local(register) = next.kind {
                self.keep_from_conflict(&mut targets, register)?;
            }
            targets.push(next);
            let limit = MAX_LEVELS - self.depth;
            self.check_limit(targets.len() - 1, limit, "variables in assignment")?;
        }
        self.check_next(Token::Char(b'='))?;
        let (mut e, values) = self.list()?;
        let wanted = targets.len() as u32;
        if values == wanted {
            self.func.set_one_return(&mut e);
            if let Some(last) = targets.pop() {
                self.store(&last, &mut e)?;
            }
        } else {
            self.adjust(wanted, values, &mut e)?;
            if values > wanted {
                self.func.free -= values - wanted;
            }
        }
        while let Some(target) = targets.pop() {
            let mut value = Exp::new(Kind::Register(self.func.free - 1));
            self.store(&target, &mut value)?;
        }
        Ok(())
    }

    /// Whether a comma and another target follow. What is to be assigned to must be a variable.
    fn accept_target(&mut self, target: Option<&Exp>) -> Result<bool> {
        let is_variable =
            |e: &Exp| matches!(e.kind, Kind::Local(_) | Kind::Upvalue(_) | Kind::Global(_) | Kind::Indexed(..));
        if !target.is_some_and(is_variable) {
            return self.syntax_error("syntax error");
        }
        self.accept(Token::Char(b','))
    }

    /// In `a[i], i = …` the old `i` indexes: where an earlier target uses the local variable, a copy takes its place.
    fn keep_from_conflict(&mut self, targets: &mut [Exp], register: u32) -> Result<()> {
        let copy = self.func.free;
        let mut conflict = false;
        for target in targets {
            if let Kind::Indexed(table, key) = &mut target.kind {
                for used in [table, key] {
                    if *used == register {
                        *used = copy;
                        conflict = true;
                    }
                }
            }
        }
        if conflict {
            self.func.abc(&self.lex, Op::Move, copy, register, 0)?;
            self.func.reserve(&self.lex, 1)?;
        }
        Ok(())
    }
}
