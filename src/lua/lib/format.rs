//! `string.format`, which prints as C's `printf` does.

use super::super::cont::Cont;
use super::super::fault::Fault;
use super::super::number;
use super::super::value::Str;
use super::super::vm::{Args, Flow, NativeFn, Vm, to_int, to_unsigned};

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] = &[("string.format", format)];

/// A conversion: `%-+ #0width.precision`
#[derive(Debug, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

/// A text that is being written, conversion by conversion.
#[derive(Debug, Default)]
pub(in super::super) struct Format {
    /// How far the template is read, and the arguments.
    at: usize,
    n: usize,
    out: Vec<u8>,
    /// Bytes that were charged for `out`.
    pub(in super::super) charged: usize,
}

fn format(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    Format::default().run(vm, args)
}

impl Format {
    /// Goes on until all is written or the fuel is used up.
    pub(in super::super) fn run(mut self, vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
        let template = vm.check_string(args, 0)?;
        loop {
            if vm.heap.meter.fuel <= 0 {
                return Ok(Flow::Step(Cont::Format(Box::new(self))));
            }
            let whole = self.piece(vm, args, template).and_then(|whole| {
                if self.out.len() > vm.max_string {
                    return Err(Fault::lib("resulting string too large"));
                }
                vm.heap.meter.take(self.out.len() - self.charged)?;
                self.charged = self.out.len();
                Ok(whole)
            });
            if !matches!(whole, Ok(false)) {
                vm.heap.meter.give(self.charged);
                whole?;
                return vm.owned(self.out).map(Flow::One);
            }
        }
    }

    /// What stands before the next conversion, and that; whether it was the last piece.
    fn piece(&mut self, vm: &mut Vm, args: Args, template: Str) -> Result<bool, Fault> {
        let rest = &vm.heap.bytes(template)[self.at..];
        let Some(place) = memchr::memchr(b'%', rest) else {
            self.out.extend_from_slice(rest);
            return Ok(true);
        };
        self.out.extend_from_slice(&rest[..place]);
        let rest = &rest[place + 1..];
        self.at += place + 1;
        if rest.first() == Some(&b'%') {
            self.out.push(b'%');
            self.at += 1;
            return Ok(false);
        }
        self.n += 1;
        if self.n >= args.n {
            return Err(Fault::arg(self.n + 1, "no value"));
        }
        let (spec, after) = spec_of(rest)?;
        let conversion = after.first().copied().unwrap_or(0);
        self.at += rest.len() - after.get(1..).unwrap_or(&[]).len();
        let before = self.out.len();
        convert(vm, args, self.n, (&spec, conversion), &mut self.out)?;
        let written = self.out.len() - before;
        // Long numbers are worked out digit by digit.
        let digits = if matches!(conversion, b'e' | b'E' | b'f' | b'g' | b'G') { written * written / 8 } else { 0 };
        vm.heap.meter.work(4 + digits);
        Ok(false)
    }
}

fn spec_of(text: &[u8]) -> Result<(Spec, &[u8]), Fault> {
    let mut spec = Spec::default();
    let flags = text.iter().take_while(|b| b"-+ #0".contains(b)).count();
    if flags >= 6 {
        return Err(Fault::lib("invalid format (repeated flags)"));
    }
    for flag in &text[..flags] {
        match flag {
            b'-' => spec.left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.alternate = true,
            _ => spec.zero = true,
        }
    }
    let mut rest = &text[flags..];
    let digits = |rest: &mut &[u8]| {
        let count = rest.iter().take(2).take_while(|b| b.is_ascii_digit()).count();
        let value = rest[..count].iter().fold(0, |sum, b| sum * 10 + usize::from(b - b'0'));
        *rest = &rest[count..];
        value
    };
    spec.width = digits(&mut rest);
    if rest.first() == Some(&b'.') {
        rest = &rest[1..];
        spec.precision = Some(digits(&mut rest));
    }
    if rest.first().is_some_and(u8::is_ascii_digit) {
        return Err(Fault::lib("invalid format (width or precision too long)"));
    }
    Ok((spec, rest))
}

fn convert(vm: &mut Vm, args: Args, n: usize, (spec, conversion): (&Spec, u8), out: &mut Vec<u8>) -> Result<(), Fault> {
    match conversion {
        b'c' => {
            let code = vm.check_number(args, n)?;
            // What is no `int` becomes the smallest one, whose last byte is zero.
            let code = if code.abs() < 2_147_483_648.0 { code as i32 as u8 } else { 0 };
            // C's buffer ends at a zero byte.
            let mut text = Vec::new();
            pad(spec, &[code], &mut text);
            out.extend_from_slice(&text[..memchr::memchr(0, &text).unwrap_or(text.len())]);
        }
        b'd' | b'i' => {
            let value = to_int(vm.check_number(args, n)?);
            let mut digits = Vec::new();
            number::integer(value, &mut digits);
            let digits = if value < 0 { &digits[1..] } else { &digits };
            integer(spec, sign(spec, value < 0), digits, value == 0, out);
        }
        b'o' | b'u' | b'x' | b'X' => {
            let value = to_unsigned(vm.check_number(args, n)?);
            let (prefix, digits) = match conversion {
                b'o' => ("", format!("{value:o}")),
                b'u' => ("", format!("{value}")),
                b'x' => ("0x", format!("{value:x}")),
                _ => ("0X", format!("{value:X}")),
            };
            let prefix = if spec.alternate && value != 0 { prefix } else { "" };
            // `#` gives an octal number a leading zero, unless precision has given it one.
            let bare = digits.len() >= spec.precision.unwrap_or(0);
            let octal = conversion == b'o' && spec.alternate && bare;
            let digits = if octal && value != 0 { format!("0{digits}") } else { digits };
            integer(spec, prefix.as_bytes(), digits.as_bytes(), value == 0 && !octal, out);
        }
        b'e' | b'E' | b'f' | b'g' | b'G' => {
            let value = vm.check_number(args, n)?;
            float(spec, conversion, value, out);
        }
        b'q' => quoted(vm, args, n, out)?,
        b's' => {
            let s = vm.check_string(args, n)?;
            let text = vm.heap.bytes(s);
            if spec.precision.is_none() && text.len() >= 100 {
                // Too long to be padded: it is put there as it is.
                vm.heap.meter.room(text.len())?;
                out.extend_from_slice(text);
            } else {
                let visible = memchr::memchr(0, text).unwrap_or(text.len());
                pad(spec, &text[..visible.min(spec.precision.unwrap_or(usize::MAX))], out);
            }
        }
        other => {
            let mut text = b"invalid option '%".to_vec();
            if other != 0 {
                text.push(other);
            }
            text.extend_from_slice(b"' to 'format'");
            return Err(Fault::lib(text));
        }
    }
    Ok(())
}

fn sign(spec: &Spec, negative: bool) -> &'static [u8] {
    match (negative, spec.plus, spec.space) {
        (true, ..) => b"-",
        (_, true, _) => b"+",
        (_, _, true) => b" ",
        _ => b"",
    }
}

fn fill(count: usize, byte: u8, out: &mut Vec<u8>) {
    out.resize(out.len() + count, byte);
}

fn pad(spec: &Spec, text: &[u8], out: &mut Vec<u8>) {
    let blanks = spec.width.saturating_sub(text.len());
    if !spec.left {
        fill(blanks, b' ', out);
    }
    out.extend_from_slice(text);
    if spec.left {
        fill(blanks, b' ', out);
    }
}

fn integer(spec: &Spec, prefix: &[u8], digits: &[u8], is_zero: bool, out: &mut Vec<u8>) {
    // With precision 0 nothing stands for zero.
    let digits = if is_zero && spec.precision == Some(0) { &b""[..] } else { digits };
    let mut text = prefix.to_vec();
    let mut zeros = spec.precision.unwrap_or(0).saturating_sub(digits.len());
    if spec.zero && !spec.left && spec.precision.is_none() {
        zeros = spec.width.saturating_sub(prefix.len() + digits.len());
    }
    fill(zeros, b'0', &mut text);
    text.extend_from_slice(digits);
    pad(spec, &text, out);
}

fn float(spec: &Spec, conversion: u8, value: f64, out: &mut Vec<u8>) {
    let precision = spec.precision.unwrap_or(6);
    let upper = conversion.is_ascii_uppercase();
    let mut digits = Vec::new();
    let magnitude = value.abs();
    match conversion.to_ascii_lowercase() {
        b'e' => number::exponential(magnitude, precision, spec.alternate, upper, &mut digits),
        b'f' => number::fixed(magnitude, precision, spec.alternate, &mut digits),
        _ => number::general(magnitude, precision, spec.alternate, upper, &mut digits),
    }
    let mut text = sign(spec, value.is_sign_negative()).to_vec();
    if spec.zero && !spec.left && value.is_finite() {
        fill(spec.width.saturating_sub(text.len() + digits.len()), b'0', &mut text);
    }
    text.extend_from_slice(&digits);
    pad(spec, &text, out);
}

/// A string as a literal that reads back as itself.
fn quoted(vm: &mut Vm, args: Args, n: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    let s = vm.check_string(args, n)?;
    let text = vm.heap.bytes(s);
    vm.heap.meter.room(text.len() * 2)?;
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' | b'\\' | b'\n' => out.extend_from_slice(&[b'\\', *byte]),
            b'\r' => out.extend_from_slice(b"\\r"),
            0 => out.extend_from_slice(b"\\000"),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
    Ok(())
}
