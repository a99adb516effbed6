//! From source text to a [`Chunk`], in one pass.
//!
//! | file | owns |
//! |---|---|
//! | `lex` | tokens |
//! | `statements`, `expressions` | the grammar |
//! | `operators` | operators, folding |
//! | `emit` | instructions, constants, registers, jumps |
//!
//! The only recursion is that of the grammar, and it has a depth: 200 levels, as Lua 5.1 has it.

mod emit;
mod expressions;
mod lex;
mod operators;
mod statements;

use super::code::{Chunk, LocalVar, Proto};
use emit::{Block, Exp, Func, Jumps, Kind, Name, Result, Source};
use hashbrown::HashMap;
use lex::{Lexer, SyntaxError, Token};
use std::sync::Arc;

pub(super) use expressions::{FIELDS_PER_FLUSH, from_float_byte};
pub(super) use lex::display_name;
pub(super) use operators::modulo;

/// How deep expressions and blocks may be nested.
const MAX_LEVELS: usize = 200;
const MAX_LOCALS: usize = 200;
const MAX_UPVALUES: usize = 60;

/// Compiles source text. `depth` is how many of the levels are used up by what asks for it.
pub(super) fn compile(source: &[u8], name: &[u8], depth: usize) -> std::result::Result<Chunk, Box<[u8]>> {
    let mut parser = Parser {
        lex: Lexer::new(source, name),
        source: name.into(),
        func: Func::default(),
        outer: Vec::new(),
        protos: Vec::new(),
        names: Vec::new(),
        by_name: HashMap::new(),
        visible: Vec::new(),
        depth,
    };
    parser.main()?;
    Ok(Chunk::of(parser.protos))
}

#[derive(Debug)]
struct Parser<'a> {
    lex: Lexer<'a>,
    source: Arc<[u8]>,
    /// The function that is being compiled, and those around it.
    func: Func,
    outer: Vec<Func>,
    protos: Vec<Arc<Proto>>,
    names: Vec<Arc<[u8]>>,
    by_name: HashMap<Arc<[u8]>, Name>,
    /// For each name, how many active variables of it there are in all functions.
    visible: Vec<u32>,
    depth: usize,
}

impl Parser<'_> {
    fn main(&mut self) -> Result<()> {
        self.func.proto.is_vararg = true;
        self.func.proto.max_stack = 2;
        self.lex.next()?;
        self.chunk()?;
        self.check(Token::End)?;
        let main = self.close()?;
        self.protos.push(Arc::new(main));
        Ok(())
    }

    // Tokens.

    fn check(&self, token: Token) -> Result<()> {
        if self.lex.token == token { Ok(()) } else { Err(self.lex.expected(token)) }
    }

    fn check_next(&mut self, token: Token) -> Result<()> {
        self.check(token)?;
        self.lex.next()
    }

    fn accept(&mut self, token: Token) -> Result<bool> {
        let hit = self.lex.token == token;
        if hit {
            self.lex.next()?;
        }
        Ok(hit)
    }

    fn check_match(&mut self, token: Token, opening: Token, line: u32) -> Result<()> {
        if self.accept(token)? {
            return Ok(());
        }
        Err(if line == self.lex.line {
            self.lex.expected(token)
        } else {
            self.lex.expected_to_close(token, opening, line)
        })
    }

    fn name(&mut self) -> Result<Name> {
        self.check(Token::Name)?;
        let name = self.intern_text();
        self.lex.next()?;
        Ok(name)
    }

    fn intern_text(&mut self) -> Name {
        if let Some(found) = self.by_name.get(&self.lex.text[..]) {
            return *found;
        }
        let text: Arc<[u8]> = self.lex.text[..].into();
        self.intern(text)
    }

    fn intern(&mut self, text: Arc<[u8]>) -> Name {
        if let Some(found) = self.by_name.get(&text) {
            return *found;
        }
        let name = Name(self.names.len() as u32);
        self.names.push(Arc::clone(&text));
        self.visible.push(0);
        self.by_name.insert(text, name);
        name
    }

    fn string_constant(&mut self, name: Name) -> Result<u32> {
        let text = Arc::clone(&self.names[name.0 as usize]);
        self.func.string(&self.lex, name, &text)
    }

    fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_LEVELS {
            return Err(self.lex.error_near("chunk has too many syntax levels", None));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    fn check_limit(&self, count: usize, limit: usize, what: &str) -> Result<()> {
        if count <= limit {
            return Ok(());
        }
        let line = self.func.proto.line_defined;
        let text = if line == 0 {
            format!("main function has more than {limit} {what}")
        } else {
            format!("function at line {line} has more than {limit} {what}")
        };
        Err(self.lex.error_near(&text, None))
    }

    // Variables.

    fn declare(&mut self, name: Name) -> Result<()> {
        self.check_limit(self.func.active.len() + self.func.declared.len() + 1, MAX_LOCALS, "local variables")?;
        let local = LocalVar { name: Arc::clone(&self.names[name.0 as usize]), from: u32::MAX, to: u32::MAX };
        self.func.proto.locals.push(local);
        let at = self.func.proto.locals.len() - 1;
        self.func.declared.push((name, at));
        Ok(())
    }

    fn declare_literal(&mut self, text: &[u8]) -> Result<()> {
        let name = self.intern(text.into());
        self.declare(name)
    }

    /// The first `count` of the declared variables become active.
    fn activate(&mut self, count: usize) {
        let pc = self.func.pc() as u32;
        for (name, at) in self.func.declared.drain(..count) {
            self.func.proto.locals[at].from = pc;
            self.visible[name.0 as usize] += 1;
            self.func.active.push((name, at));
        }
    }

    fn deactivate(&mut self, keep: usize) {
        let pc = self.func.pc() as u32;
        while self.func.active.len() > keep
            && let Some((name, at)) = self.func.active.pop()
        {
            self.func.proto.locals[at].to = pc;
            self.visible[name.0 as usize] -= 1;
        }
    }

    fn variable(&mut self) -> Result<Exp> {
        let name = self.name()?;
        if self.visible[name.0 as usize] > 0
            && let Some(kind) = self.find_variable(name)?
        {
            return Ok(Exp::new(kind));
        }
        Ok(Exp::new(Kind::Global(self.string_constant(name)?)))
    }

    /// A local variable of this function or of one around it. In a function around, what a name means cannot change while
    /// this one is compiled, so an upvalue that is there by that name is the one that is meant.
    fn find_variable(&mut self, name: Name) -> Result<Option<Kind>> {
        if let Some(register) = local_of(&self.func, name) {
            return Ok(Some(Kind::Local(register)));
        }
        if let Some(at) = upvalue_of(&self.func, name) {
            return Ok(Some(Kind::Upvalue(at)));
        }
        // From the inside out, up to the function that knows the name; then an upvalue for each on the way back.
        let mut level = self.outer.len();
        let mut source = loop {
            if level == 0 {
                return Ok(None);
            }
            level -= 1;
            if let Some(register) = local_of(&self.outer[level], name) {
                capture(&mut self.outer[level], register);
                break Source::Local(register);
            }
            if let Some(at) = upvalue_of(&self.outer[level], name) {
                break Source::Upvalue(at);
            }
        };
        let text = Arc::clone(&self.names[name.0 as usize]);
        for at in level + 1..=self.outer.len() {
            let func = if at == self.outer.len() { &self.func } else { &self.outer[at] };
            let count = func.upvalues.len();
            if count >= MAX_UPVALUES {
                // The text names the function that overflows.
                let line = func.proto.line_defined;
                let text = format!("function at line {line} has more than {MAX_UPVALUES} upvalues");
                return Err(self.lex.error_near(&text, None));
            }
            let func = if at == self.outer.len() { &mut self.func } else { &mut self.outer[at] };
            func.upvalues.push((name, source));
            func.proto.upvalues.push(Arc::clone(&text));
            source = Source::Upvalue(count as u32);
        }
        match source {
            Source::Upvalue(at) => Ok(Some(Kind::Upvalue(at))),
            Source::Local(_) => Ok(None),
        }
    }

    // Blocks and functions.

    fn enter_block(&mut self, is_loop: bool) {
        let active = self.func.active.len();
        self.func.blocks.push(Block { breaks: Jumps::NONE, is_loop, active, captured: false });
    }

    fn leave_block(&mut self) -> Result<()> {
        let Some(block) = self.func.blocks.pop() else { return Ok(()) };
        self.deactivate(block.active);
        if block.captured {
            self.func.abc(&self.lex, super::code::Op::Close, block.active as u32, 0, 0)?;
        }
        self.func.free = self.func.active.len() as u32;
        self.func.patch_here(&self.lex, block.breaks)
    }

    fn open(&mut self, line: u32) {
        let mut func = Func::default();
        func.proto.line_defined = line;
        func.proto.max_stack = 2;
        self.outer.push(std::mem::replace(&mut self.func, func));
    }

    /// Ends the current function; the one around it is current again.
    fn close(&mut self) -> Result<Proto> {
        self.deactivate(0);
        self.func.abc(&self.lex, super::code::Op::Return, 0, 1, 0)?;
        let outer = self.outer.pop().unwrap_or_default();
        let mut proto = std::mem::replace(&mut self.func, outer).proto;
        proto.source = Arc::clone(&self.source);
        proto.code.shrink_to_fit();
        proto.lines.shrink_to_fit();
        proto.consts.shrink_to_fit();
        proto.locals.shrink_to_fit();
        Ok(proto)
    }

    fn syntax_error<T>(&self, message: &str) -> Result<T> {
        let error: SyntaxError = self.lex.error(message);
        Err(error)
    }
}

fn local_of(func: &Func, name: Name) -> Option<u32> {
    func.active.iter().rposition(|(active, _)| *active == name).map(|at| at as u32)
}

fn upvalue_of(func: &Func, name: Name) -> Option<u32> {
    func.upvalues.iter().position(|(upvalue, _)| *upvalue == name).map(|at| at as u32)
}

/// Notes that the block which owns a variable has to close it.
fn capture(func: &mut Func, register: u32) {
    if let Some(block) = func.blocks.iter_mut().rev().find(|block| block.active <= register as usize) {
        block.captured = true;
    }
}
