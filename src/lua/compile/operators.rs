//! Unary and binary operators: priorities, folding of constants, the instructions for them.

use super::super::code::Op;
use super::emit::{Exp, Func, Kind, Result};
use super::lex::{Lexer, Token};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unary {
    Minus,
    Not,
    Len,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Binary {
    /// An arithmetic instruction.
    Arith(Op),
    Concat,
    /// A comparison: instruction, wanted outcome, operands swapped.
    Compare(Op, bool),
    And,
    Or,
}

/// Binds tighter than all binary operators but `^`.
pub(super) const UNARY_PRIORITY: u8 = 8;

pub(super) fn unary(token: Token) -> Option<Unary> {
    match token {
        Token::Not => Some(Unary::Not),
        Token::Char(b'-') => Some(Unary::Minus),
        Token::Char(b'#') => Some(Unary::Len),
        _ => None,
    }
}

/// The operator, and its priorities to the left and to the right.
pub(super) fn binary(token: Token) -> Option<(Binary, u8, u8)> {
    Some(match token {
        Token::Char(b'+') => (Binary::Arith(Op::Add), 6, 6),
        Token::Char(b'-') => (Binary::Arith(Op::Sub), 6, 6),
        Token::Char(b'*') => (Binary::Arith(Op::Mul), 7, 7),
        Token::Char(b'/') => (Binary::Arith(Op::Div), 7, 7),
        Token::Char(b'%') => (Binary::Arith(Op::Mod), 7, 7),
        Token::Char(b'^') => (Binary::Arith(Op::Pow), 10, 9),
        Token::Concat => (Binary::Concat, 5, 4),
        Token::Ne => (Binary::Compare(Op::Eq, false), 3, 3),
        Token::Eq => (Binary::Compare(Op::Eq, true), 3, 3),
        Token::Char(b'<') => (Binary::Compare(Op::Lt, true), 3, 3),
        Token::Le => (Binary::Compare(Op::Le, true), 3, 3),
        Token::Char(b'>') => (Binary::Compare(Op::Lt, false), 3, 3),
        Token::Ge => (Binary::Compare(Op::Le, false), 3, 3),
        Token::And => (Binary::And, 2, 2),
        Token::Or => (Binary::Or, 1, 1),
        _ => return None,
    })
}

/// `a - floor(a / b) * b`
pub(in super::super) fn modulo(a: f64, b: f64) -> f64 {
    a - (a / b).floor() * b
}

impl Func {
    pub(super) fn prefix(&mut self, lex: &Lexer, op: Unary, e: &mut Exp) -> Result<()> {
        match op {
            Unary::Not => self.not(lex, e),
            Unary::Minus => {
                if let Kind::Number(n) = e.kind
                    && e.is_numeral()
                    && !n.is_nan()
                {
                    e.kind = Kind::Number(-n);
                    return Ok(());
                }
                self.unary_op(lex, Op::Unm, e)
            }
            Unary::Len => self.unary_op(lex, Op::Len, e),
        }
    }

    fn unary_op(&mut self, lex: &Lexer, op: Op, e: &mut Exp) -> Result<()> {
        let register = self.put_anywhere(lex, e)?;
        self.free_exp(e);
        *e = Exp::new(Kind::Open(self.abc(lex, op, 0, register, 0)?));
        Ok(())
    }

    /// What has to happen to the left operand before the right one is read.
    pub(super) fn infix(&mut self, lex: &Lexer, op: Binary, e: &mut Exp) -> Result<()> {
        match op {
            Binary::And => self.go_if_true(lex, e)?,
            Binary::Or => self.go_if_false(lex, e)?,
            Binary::Concat => self.put_next(lex, e)?,
            Binary::Arith(_) if e.is_numeral() => {}
            Binary::Arith(_) | Binary::Compare(..) => {
                self.operand(lex, e)?;
            }
        }
        Ok(())
    }

    pub(super) fn postfix(&mut self, lex: &Lexer, op: Binary, left: &mut Exp, mut right: Exp) -> Result<()> {
        match op {
            Binary::And => {
                self.discharge(lex, &mut right)?;
                right.if_false = self.join(lex, left.if_false, right.if_false)?;
                *left = right;
            }
            Binary::Or => {
                self.discharge(lex, &mut right)?;
                right.if_true = self.join(lex, left.if_true, right.if_true)?;
                *left = right;
            }
            Binary::Concat => {
                self.make_value(lex, &mut right)?;
                if let (Kind::Open(pc), Kind::Register(first)) = (right.kind, left.kind)
                    && self.proto.code[pc].op() == Op::Concat
                {
                    // a .. (b .. c) is one instruction over all three registers.
                    self.free_exp(left);
                    self.proto.code[pc].set_b(first);
                    left.kind = Kind::Open(pc);
                } else {
                    self.put_next(lex, &mut right)?;
                    self.arith(lex, Op::Concat, left, &mut right)?;
                }
            }
            Binary::Arith(op) => self.arith(lex, op, left, &mut right)?,
            Binary::Compare(op, wanted) => self.compare(lex, op, wanted, left, &mut right)?,
        }
        Ok(())
    }

    fn arith(&mut self, lex: &Lexer, op: Op, left: &mut Exp, right: &mut Exp) -> Result<()> {
        if let (Kind::Number(a), Kind::Number(b)) = (left.kind, right.kind)
            && left.is_numeral()
            && right.is_numeral()
            && let Some(n) = fold(op, a, b)
        {
            left.kind = Kind::Number(n);
            return Ok(());
        }
        let second = self.operand(lex, right)?;
        let first = self.operand(lex, left)?;
        if first > second {
            self.free_exp(left);
            self.free_exp(right);
        } else {
            self.free_exp(right);
            self.free_exp(left);
        }
        *left = Exp::new(Kind::Open(self.abc(lex, op, 0, first, second)?));
        Ok(())
    }

    fn compare(&mut self, lex: &Lexer, op: Op, wanted: bool, left: &mut Exp, right: &mut Exp) -> Result<()> {
        let mut first = self.operand(lex, left)?;
        let mut second = self.operand(lex, right)?;
        self.free_exp(right);
        self.free_exp(left);
        let mut wanted = wanted;
        if !wanted && op != Op::Eq {
            // a > b is b < a.
            std::mem::swap(&mut first, &mut second);
            wanted = true;
        }
        self.cond_jump(lex, op, u32::from(wanted), first, second)?;
        *left = Exp::new(Kind::Jump(self.pc() - 1));
        Ok(())
    }
}

fn fold(op: Op, a: f64, b: f64) -> Option<f64> {
    let n = match op {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::Mul => a * b,
        Op::Div if b != 0.0 => a / b,
        Op::Mod if b != 0.0 => modulo(a, b),
        Op::Pow => a.powf(b),
        _ => return None,
    };
    (!n.is_nan()).then_some(n)
}
