//! `struct`: numbers and strings as C lays them out.
//!
//! | option | is | option | is |
//! |---|---|---|---|
//! | `>` `<` | big, little endian | `f` `d` | float, double |
//! | `!n` | alignment | `s` | string that ends with a zero |
//! | `b` `h` `i` `l` `T` | 1, 2, 4 (`in`: n), 8, 8 bytes; capital: unsigned | `cn` | n characters, `c0`: as many as the value before says |
//! | `x` | padding | blank | nothing |

use super::super::fault::Fault;
use super::super::value::Value;
use super::super::vm::{Args, Flow, NativeFn, Vm, to_int, to_unsigned};
use super::base::MAX_RESULTS;

pub(in super::super) const FUNCTIONS: &[(&str, NativeFn)] =
    &[("struct.pack", pack), ("struct.unpack", unpack), ("struct.size", size)];

const MAX_INT_SIZE: usize = 32;
const MAX_ALIGN: usize = 8;

/// A format and how far it was read.
struct Format {
    text: Vec<u8>,
    at: usize,
    little: bool,
    align: usize,
}

impl Format {
    fn new(vm: &mut Vm, args: Args) -> Result<Format, Fault> {
        let format = vm.check_string(args, 0)?;
        let text = vm.heap.bytes(format);
        let text = text[..memchr::memchr(0, text).unwrap_or(text.len())].to_vec();
        Ok(Format { text, at: 0, little: cfg!(target_endian = "little"), align: 1 })
    }

    fn number(&mut self) -> Result<Option<usize>, Fault> {
        let mut value = None;
        while let Some(digit @ b'0'..=b'9') = self.text.get(self.at) {
            let sum = value.unwrap_or(0usize) * 10 + usize::from(digit - b'0');
            if sum > i32::MAX as usize {
                return Err(Fault::lib("integral size overflow"));
            }
            value = Some(sum);
            self.at += 1;
        }
        Ok(value)
    }

    /// The next option: its letter, size, and the padding before it. What stands for no bytes has none of both, whatever it is:
    /// that is for [`Format::control`].
    fn next(&mut self, vm: &mut Vm, position: usize) -> Result<Option<(u8, usize, usize)>, Fault> {
        let Some(option) = self.text.get(self.at).copied() else { return Ok(None) };
        self.at += 1;
        vm.heap.meter.work(1);
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number()?.unwrap_or(1),
            b'i' | b'I' => {
                let size = self.number()?.unwrap_or(4);
                if size > MAX_INT_SIZE {
                    let text = format!("integral size {size} is larger than limit of {MAX_INT_SIZE}");
                    return Err(Fault::lib(text));
                }
                size
            }
            _ => 0,
        };
        let align = size.min(self.align);
        let padding = if option != b'c' && align > 1 { (align - (position & (align - 1))) & (align - 1) } else { 0 };
        Ok(Some((option, size, padding)))
    }

    /// What an option that stands for no bytes changes.
    fn control(&mut self, option: u8) -> Result<(), Fault> {
        match option {
            b' ' => {}
            b'>' | b'<' => self.little = option == b'<',
            b'!' => {
                let align = self.number()?.unwrap_or(MAX_ALIGN);
                if !align.is_power_of_two() {
                    return Err(Fault::lib(format!("alignment {align} is not a power of 2")));
                }
                self.align = align;
            }
            other => return Err(Fault::arg(1, [b"invalid format option '", &[other][..], b"'"].concat())),
        }
        Ok(())
    }

    fn is_integer(option: u8) -> bool {
        matches!(option, b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I')
    }
}

/// The low bytes of an integer; what is wider than it is filled with zeros, as shifts of C's type do.
fn put_integer(value: u64, size: usize, little: bool, out: &mut Vec<u8>) {
    let from = out.len();
    out.extend((0..size).map(|n| if n < 8 { (value >> (8 * n)) as u8 } else { 0 }));
    if !little {
        out[from..].reverse();
    }
}

fn pack(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let mut format = Format::new(vm, args)?;
    // As in Redis a nil follows the arguments, and error texts call a missing one that.
    vm.push(Value::Nil)?;
    let args = Args { n: args.n + 1, ..args };
    let (mut out, mut n) = (Vec::new(), 1);
    while let Some((option, size, padding)) = format.next(vm, out.len())? {
        vm.check_length(out.len() + size + padding)?;
        vm.heap.meter.copy(size);
        out.resize(out.len() + padding, 0);
        match option {
            b'x' => out.push(0),
            b'f' => {
                let value = vm.check_number(args, n)? as f32;
                put_integer(u64::from(value.to_bits()), 4, format.little, &mut out);
                n += 1;
            }
            b'd' => {
                put_integer(vm.check_number(args, n)?.to_bits(), 8, format.little, &mut out);
                n += 1;
            }
            b'c' | b's' => {
                let s = vm.check_string(args, n)?;
                n += 1;
                let text = vm.heap.bytes(s);
                let size = if size == 0 { text.len() } else { size };
                if text.len() < size {
                    return Err(Fault::arg(n + 1, "string too short"));
                }
                vm.check_length(out.len() + size)?;
                out.extend_from_slice(&text[..size]);
                if option == b's' {
                    out.push(0);
                }
            }
            option if !Format::is_integer(option) => format.control(option)?,
            _ => {
                let value = vm.check_number(args, n)?;
                let bits = if value < 0.0 { to_int(value) as u64 } else { to_unsigned(value) };
                put_integer(bits, size, format.little, &mut out);
                n += 1;
            }
        }
    }
    vm.owned(out).map(Flow::One)
}

fn get_integer(bytes: &[u8], little: bool, signed: bool) -> f64 {
    let byte = |n: usize| if little { bytes[n] } else { bytes[bytes.len() - 1 - n] };
    let value = (0..bytes.len().min(8)).fold(0u64, |sum, n| sum | u64::from(byte(n)) << (8 * n));
    if !signed {
        return value as f64;
    }
    let unused = 64 - 8 * bytes.len().clamp(1, 8);
    (((value << unused) as i64) >> unused) as f64
}

fn unpack(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let mut format = Format::new(vm, args)?;
    let data = vm.check_string(args, 1)?;
    let length = vm.heap.bytes(data).len();
    // An offset has no sign in C: one below 0 is beyond all data.
    let mut at = match vm.opt_int(args, 2, 1)? {
        0 => return Err(Fault::arg(3, "offset must be 1 or greater")),
        offset => offset.wrapping_sub(1) as usize,
    };
    let mut n = 0;
    while let Some((option, size, padding)) = format.next(vm, at)? {
        at = at.saturating_add(padding);
        if at.saturating_add(size) > length {
            return Err(Fault::arg(2, "data string too short"));
        }
        if n + args.n + 2 > MAX_RESULTS {
            return Err(Fault::lib("stack overflow (too many results)"));
        }
        let bytes = &vm.heap.bytes(data)[at..];
        let mut taken = size;
        let value = match option {
            b'x' => {
                at += 1;
                continue;
            }
            b'f' => {
                let bits = get_integer(&bytes[..4], format.little, false) as u32;
                Value::Number(f64::from(f32::from_bits(bits)))
            }
            b'd' => {
                let mut raw = [0; 8];
                raw.copy_from_slice(&bytes[..8]);
                Value::Number(if format.little { f64::from_le_bytes(raw) } else { f64::from_be_bytes(raw) })
            }
            b'c' => {
                if size == 0 {
                    if n == 0 {
                        return Err(Fault::lib("format 'c0' needs a previous size"));
                    }
                    let Some(count) = vm.number_of(vm.th.stack[vm.th.top - 1]) else {
                        return Err(Fault::lib("format 'c0' needs a previous size"));
                    };
                    vm.th.top -= 1;
                    n -= 1;
                    taken = count.max(0.0) as usize;
                    if count < 0.0 || taken > length - at {
                        return Err(Fault::arg(2, "data string too short"));
                    }
                }
                let text = vm.heap.bytes(data)[at..at + taken].to_vec();
                vm.owned(text)?
            }
            b's' => {
                let Some(end) = memchr::memchr(0, bytes) else { return Err(Fault::lib("unfinished string in data")) };
                taken = end + 1;
                let text = bytes[..end].to_vec();
                vm.owned(text)?
            }
            option if !Format::is_integer(option) => {
                format.control(option)?;
                continue;
            }
            _ => Value::Number(get_integer(&bytes[..size], format.little, option.is_ascii_lowercase())),
        };
        vm.push(value)?;
        n += 1;
        at += taken;
    }
    vm.push(Value::Number(at.wrapping_add(1) as i64 as f64))?;
    Ok(Flow::Many(n + 1))
}

fn size(vm: &mut Vm, args: Args) -> Result<Flow, Fault> {
    let mut format = Format::new(vm, args)?;
    let mut position = 0usize;
    while let Some((option, size, padding)) = format.next(vm, position)? {
        if option == b's' {
            return Err(Fault::arg(1, "option 's' has no fixed size"));
        }
        if option == b'c' && size == 0 {
            return Err(Fault::arg(1, "option 'c0' has no fixed size"));
        }
        // A letter that is none of the options stands for nothing here.
        if !option.is_ascii_alphanumeric() {
            format.control(option)?;
        }
        position = position.saturating_add(padding + size);
    }
    Ok(Flow::One(Value::Number(position as f64)))
}
