//! Source text to tokens, one token ahead on demand.

use super::super::number;

/// Why a chunk does not compile: the whole text, position included.
pub(super) type SyntaxError = Box<[u8]>;

macro_rules! tokens {
    ($($name:ident $text:literal),* ; $($word:ident $spelling:literal),*) => {
        /// A token. What a name, string or number is stands in the lexer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Token { Char(u8), Name, Str, Number, End, $($name,)* $($word,)* }

        impl Token {
            fn text(self) -> Vec<u8> {
                match self {
                    Token::Char(c) if c < 32 || c == 127 => format!("char({c})").into_bytes(),
                    Token::Char(c) => vec![c],
                    Token::Name => b"<name>".to_vec(),
                    Token::Str => b"<string>".to_vec(),
                    Token::Number => b"<number>".to_vec(),
                    Token::End => b"<eof>".to_vec(),
                    $(Token::$name => $text.to_vec(),)*
                    $(Token::$word => $spelling.to_vec(),)*
                }
            }
        }

        fn word(text: &[u8]) -> Token {
            match text { $($spelling => Token::$word,)* _ => Token::Name }
        }
    };
}

tokens! {
    Concat b"..", Dots b"...", Eq b"==", Ge b">=", Le b"<=", Ne b"~=" ;
    And b"and", Break b"break", Do b"do", Else b"else", ElseIf b"elseif", EndWord b"end", False b"false", For b"for",
    Function b"function", If b"if", In b"in", Local b"local", Nil b"nil", Not b"not", Or b"or", Repeat b"repeat",
    Return b"return", Then b"then", True b"true", Until b"until", While b"while"
}

#[derive(Debug)]
pub(super) struct Lexer<'a> {
    source: &'a [u8],
    at: usize,
    /// The name of the chunk as error texts have it.
    name: Vec<u8>,
    pub(super) line: u32,
    /// The line of the token before the current one.
    pub(super) last_line: u32,
    pub(super) token: Token,
    ahead: Option<Token>,
    /// The bytes of the current name or string, or the number's value.
    pub(super) text: Vec<u8>,
    pub(super) number: f64,
    ahead_text: Vec<u8>,
    ahead_number: f64,
    /// Where the token that was read last begins, for error texts.
    start: usize,
    /// The string that is being read lacks its end.
    unfinished: bool,
}

/// So long, with a zero byte, are names of chunks in texts of syntax errors.
const SHOWN_NAME: usize = 80;
const MAX_LINE: u32 = i32::MAX as u32 - 2;

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a [u8], chunk_name: &[u8]) -> Lexer<'a> {
        Lexer {
            source,
            at: 0,
            name: display_name(chunk_name, SHOWN_NAME),
            line: 1,
            last_line: 1,
            token: Token::End,
            ahead: None,
            text: Vec::new(),
            number: 0.0,
            ahead_text: Vec::new(),
            ahead_number: 0.0,
            start: 0,
            unfinished: false,
        }
    }

    /// Reads the next token.
    pub(super) fn next(&mut self) -> Result<(), SyntaxError> {
        self.last_line = self.line;
        match self.ahead.take() {
            Some(token) => {
                self.token = token;
                std::mem::swap(&mut self.text, &mut self.ahead_text);
                self.number = self.ahead_number;
            }
            None => self.token = self.read()?,
        }
        Ok(())
    }

    /// The token after the current one. As in Lua, its line is from now on the current one's, too: what goes by lines takes
    /// `{x` and `(y)}` on the next line for a call.
    pub(super) fn peek(&mut self) -> Result<Token, SyntaxError> {
        let number = self.number;
        let text = std::mem::take(&mut self.text);
        let token = self.read()?;
        self.ahead_text = std::mem::replace(&mut self.text, text);
        self.ahead_number = std::mem::replace(&mut self.number, number);
        self.ahead = Some(token);
        Ok(token)
    }

    /// An error at the current token.
    pub(super) fn error(&self, message: &str) -> SyntaxError {
        self.error_near(message, Some(self.token))
    }

    pub(super) fn error_near(&self, message: &str, token: Option<Token>) -> SyntaxError {
        let mut text = self.name.clone();
        text.extend_from_slice(format!(":{}: {message}", self.line).as_bytes());
        if let Some(token) = token {
            text.extend_from_slice(b" near '");
            match token {
                Token::Str => self.push_string(&mut text),
                Token::Name | Token::Number => text.extend_from_slice(&self.source[self.start..self.at]),
                _ => text.extend(token.text()),
            }
            text.push(b'\'');
        }
        // Lua's texts are C strings.
        if let Some(end) = memchr::memchr(0, &text) {
            text.truncate(end);
        }
        text.into_boxed_slice()
    }

    pub(super) fn expected(&self, token: Token) -> SyntaxError {
        self.error(&format!("'{}' expected", String::from_utf8_lossy(&token.text())))
    }

    pub(super) fn expected_to_close(&self, token: Token, opening: Token, line: u32) -> SyntaxError {
        let (token, opening) = (token.text(), opening.text());
        let (token, opening) = (String::from_utf8_lossy(&token), String::from_utf8_lossy(&opening));
        self.error(&format!("'{token}' expected (to close '{opening}' at line {line})"))
    }

    /// The current string as error texts show it: escapes resolved, between its delimiters.
    fn push_string(&self, out: &mut Vec<u8>) {
        let source = &self.source[self.start..];
        let opening = match source.first() {
            Some(b'[') => 1 + source[1..].iter().take_while(|b| **b == b'=').count(),
            _ => 0,
        };
        let whole = opening == 0 || source.get(opening) == Some(&b'[');
        let opening = &source[..opening + usize::from(whole)];
        out.extend_from_slice(opening);
        if !whole {
            return;
        }
        out.extend_from_slice(&self.text);
        if !self.unfinished {
            out.extend(opening.iter().map(|b| if *b == b'[' { b']' } else { *b }));
        }
    }

    fn byte(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let hit = self.byte() == Some(byte);
        self.at += usize::from(hit);
        hit
    }

    /// Passes the end of a line: `\n`, `\r`, or both.
    fn end_of_line(&mut self) -> Result<(), SyntaxError> {
        let first = self.byte();
        self.at += 1;
        if matches!(self.byte(), Some(b'\n' | b'\r')) && self.byte() != first {
            self.at += 1;
        }
        self.line += 1;
        if self.line >= MAX_LINE { Err(self.error("chunk has too many lines")) } else { Ok(()) }
    }

    fn read(&mut self) -> Result<Token, SyntaxError> {
        loop {
            self.start = self.at;
            let Some(byte) = self.byte() else { return Ok(Token::End) };
            match byte {
                b'\n' | b'\r' => self.end_of_line()?,
                b' ' | b'\t' | 0x0b | 0x0c => self.at += 1,
                b'-' => {
                    self.at += 1;
                    if !self.accept(b'-') {
                        return Ok(Token::Char(b'-'));
                    }
                    self.comment()?;
                }
                b'[' => {
                    return match self.long_bracket() {
                        Ok(level) => {
                            self.long_text(level, false)?;
                            Ok(Token::Str)
                        }
                        Err(0) => Ok(Token::Char(b'[')),
                        Err(_) => {
                            self.text.clear();
                            Err(self.error_near("invalid long string delimiter", Some(Token::Str)))
                        }
                    };
                }
                b'"' | b'\'' => return self.quoted(byte),
                b'.' => {
                    self.at += 1;
                    if self.accept(b'.') {
                        return Ok(if self.accept(b'.') { Token::Dots } else { Token::Concat });
                    }
                    if self.byte().is_some_and(|b| b.is_ascii_digit()) {
                        return self.numeral();
                    }
                    return Ok(Token::Char(b'.'));
                }
                b'0'..=b'9' => return self.numeral(),
                b'=' => return Ok(self.pair(byte, Token::Eq)),
                b'<' => return Ok(self.pair(byte, Token::Le)),
                b'>' => return Ok(self.pair(byte, Token::Ge)),
                b'~' => return Ok(self.pair(byte, Token::Ne)),
                b'_' | b'a'..=b'z' | b'A'..=b'Z' => return Ok(self.name_or_word()),
                _ => {
                    self.at += 1;
                    return Ok(Token::Char(byte));
                }
            }
        }
    }

    fn pair(&mut self, byte: u8, with_equals: Token) -> Token {
        self.at += 1;
        if self.accept(b'=') { with_equals } else { Token::Char(byte) }
    }

    fn name_or_word(&mut self) -> Token {
        while self.byte().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
            self.at += 1;
        }
        let text = &self.source[self.start..self.at];
        let token = word(text);
        if token == Token::Name {
            self.text.clear();
            self.text.extend_from_slice(text);
        }
        token
    }

    fn numeral(&mut self) -> Result<Token, SyntaxError> {
        while self.byte().is_some_and(|b| b.is_ascii_digit() || b == b'.') {
            self.at += 1;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.at += 1;
            }
        }
        while self.byte().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
            self.at += 1;
        }
        self.number = number::parse(&self.source[self.start..self.at])
            .ok_or_else(|| self.error_near("malformed number", Some(Token::Number)))?;
        Ok(Token::Number)
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        if self.byte() == Some(b'[')
            && let Ok(level) = self.long_bracket()
        {
            return self.long_text(level, true);
        }
        let rest = &self.source[self.at..];
        self.at += memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        Ok(())
    }

    /// Passes `[`, some `=`, `[`; how many `=` there were, or `Err` of that count where the second bracket lacks.
    fn long_bracket(&mut self) -> Result<usize, usize> {
        self.at += 1;
        let from = self.at;
        while self.accept(b'=') {}
        let level = self.at - from;
        if self.byte() == Some(b'[') { Ok(level) } else { Err(level) }
    }

    fn long_text(&mut self, level: usize, comment: bool) -> Result<(), SyntaxError> {
        self.at += 1;
        self.text.clear();
        if matches!(self.byte(), Some(b'\n' | b'\r')) {
            self.end_of_line()?;
        }
        loop {
            let rest = &self.source[self.at..];
            let marks = |b: &u8| matches!(b, b']' | b'\n' | b'\r') || *b == b'[' && level == 0;
            let plain = rest.iter().position(marks).unwrap_or(rest.len());
            if !comment {
                self.text.extend_from_slice(&rest[..plain]);
            }
            self.at += plain;
            match self.byte() {
                None => {
                    let what = if comment { "unfinished long comment" } else { "unfinished long string" };
                    return Err(self.error_near(what, Some(Token::End)));
                }
                Some(b']') => {
                    let from = self.at;
                    self.at += 1;
                    while self.accept(b'=') {}
                    if self.at - from - 1 == level && self.accept(b']') {
                        return Ok(());
                    }
                    if !comment {
                        self.text.extend_from_slice(&self.source[from..self.at]);
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    if self.byte() == Some(b'[') {
                        let what = "nesting of [[...]] is deprecated";
                        return Err(self.error_near(what, Some(Token::Char(b'['))));
                    }
                    if !comment {
                        self.text.push(b'[');
                    }
                }
                Some(_) => {
                    self.end_of_line()?;
                    if !comment {
                        self.text.push(b'\n');
                    }
                }
            }
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<Token, SyntaxError> {
        self.at += 1;
        self.text.clear();
        self.unfinished = true;
        loop {
            match self.byte() {
                None => return Err(self.error_near("unfinished string", Some(Token::End))),
                Some(b'\n' | b'\r') => return Err(self.error_near("unfinished string", Some(Token::Str))),
                Some(b'\\') => self.escape()?,
                Some(byte) => {
                    self.at += 1;
                    if byte == quote {
                        self.unfinished = false;
                        return Ok(Token::Str);
                    }
                    self.text.push(byte);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<(), SyntaxError> {
        self.at += 1;
        let Some(byte) = self.byte() else { return Ok(()) };
        let meant = match byte {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'\n' | b'\r' => {
                self.end_of_line()?;
                self.text.push(b'\n');
                return Ok(());
            }
            b'0'..=b'9' => {
                let mut code = 0u32;
                for _ in 0..3 {
                    let Some(digit @ b'0'..=b'9') = self.byte() else { break };
                    code = code * 10 + u32::from(digit - b'0');
                    self.at += 1;
                }
                let code = u8::try_from(code);
                self.text.push(code.map_err(|_| self.error_near("escape sequence too large", Some(Token::Str)))?);
                return Ok(());
            }
            other => other,
        };
        self.at += 1;
        self.text.push(meant);
        Ok(())
    }
}

/// Error texts show a chunk's name without its mark: `=name` and `@file` bare, source text in `[string "…"]`.
pub(in super::super) fn display_name(name: &[u8], max: usize) -> Vec<u8> {
    match name.first() {
        Some(b'=') => name[1..name.len().min(max)].to_vec(),
        Some(b'@') => {
            let rest = &name[1..];
            let keep = max - " '...' ".len() - 1;
            if rest.len() > keep { [b"...", &rest[rest.len() - keep..]].concat() } else { rest.to_vec() }
        }
        _ => {
            let line = name.iter().position(|b| matches!(b, b'\n' | b'\r')).unwrap_or(name.len());
            let keep = max - " [string \"...\"] ".len() - 1;
            let mut text = b"[string \"".to_vec();
            text.extend_from_slice(&name[..line.min(keep)]);
            if line < name.len() || line > keep {
                text.extend_from_slice(b"...");
            }
            text.extend_from_slice(b"\"]");
            text
        }
    }
}
