//! Numbers as C reads and prints them.

/// A whole text as a number, with blanks around it: decimal, hexadecimal, `inf` and `nan` as `strtod` takes them.
pub(super) fn parse(text: &[u8]) -> Option<f64> {
    let (value, rest) = read(text)?;
    // C's text ends at a zero byte.
    let rest = skip_space(rest);
    (rest.is_empty() || rest[0] == 0).then_some(value)
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn skip_space(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|b| is_space(**b)).count();
    &text[blanks..]
}

/// The longest beginning that is a number, and what follows it.
pub(super) fn read(text: &[u8]) -> Option<(f64, &[u8])> {
    let text = skip_space(text);
    let (negative, body) = match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (value, rest) = read_unsigned(body)?;
    Some((if negative { -value } else { value }, rest))
}

fn read_unsigned(text: &[u8]) -> Option<(f64, &[u8])> {
    let begins = |word: &[u8]| text.len() >= word.len() && text[..word.len()].eq_ignore_ascii_case(word);
    if begins(b"infinity") {
        return Some((f64::INFINITY, &text[8..]));
    }
    if begins(b"inf") {
        return Some((f64::INFINITY, &text[3..]));
    }
    if begins(b"nan") {
        return Some((f64::NAN, after_nan(&text[3..])));
    }
    if begins(b"0x")
        && let Some(found) = read_hex(&text[2..])
    {
        return Some(found);
    }
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(0);
    let mut end = whole;
    if text.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits((end + 1 + sign).min(text.len()));
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    let value = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
    Some((value, &text[end..]))
}

/// `nan(letters)` is one word.
fn after_nan(rest: &[u8]) -> &[u8] {
    if rest.first() == Some(&b'(') {
        let inner = rest[1..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        if rest.get(1 + inner) == Some(&b')') {
            return &rest[inner + 2..];
        }
    }
    rest
}

fn read_hex(text: &[u8]) -> Option<(f64, &[u8])> {
    let (mut mantissa, mut exponent, mut at, mut any, mut sticky) = (0u64, 0i64, 0, false, false);
    let mut point = false;
    while let Some(byte) = text.get(at) {
        if *byte == b'.' && !point {
            point = true;
        } else if let Some(digit) = (*byte as char).to_digit(16) {
            any = true;
            if mantissa >> 60 == 0 {
                mantissa = mantissa << 4 | u64::from(digit);
                exponent -= if point { 4 } else { 0 };
            } else {
                sticky |= digit != 0;
                exponent += if point { 0 } else { 4 };
            }
        } else {
            break;
        }
        at += 1;
    }
    if !any {
        return None;
    }
    if matches!(text.get(at), Some(b'p' | b'P')) {
        let sign = text.get(at + 1);
        let from = at + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
        let digits = text[from.min(text.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 {
            let value =
                text[from..from + digits].iter().fold(0i64, |sum, b| (sum * 10 + i64::from(b - b'0')).min(99_999));
            exponent += if sign == Some(&b'-') { -value } else { value };
            at = from + digits;
        }
    }
    let value = (mantissa | u64::from(sticky)) as f64;
    // Two factors, so that neither leaves the range of a double before the product does.
    let half = exponent.clamp(-2200, 2200) / 2;
    let rest = exponent.clamp(-2200, 2200) - half;
    Some((value * 2f64.powi(half as i32) * 2f64.powi(rest as i32), &text[at..]))
}

/// `%.14g`, as `tostring` prints a number.
pub(super) fn print(n: f64, out: &mut Vec<u8>) {
    if n.fract() == 0.0 && n.abs() < 1e14 && !(n == 0.0 && n.is_sign_negative()) {
        integer(n as i64, out);
    } else {
        general(n, 14, false, false, out);
    }
}

pub(super) fn integer(n: i64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = n.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if n < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// What C prints for numbers without digits; false if `n` is finite.
fn special(n: f64, upper: bool, out: &mut Vec<u8>) -> bool {
    if n.is_finite() {
        return false;
    }
    if n.is_sign_negative() {
        out.push(b'-');
    }
    out.extend_from_slice(match (n.is_nan(), upper) {
        (true, false) => b"nan",
        (true, true) => b"NAN",
        (false, false) => b"inf",
        (false, true) => b"INF",
    });
    true
}

/// `%.{precision}f`
pub(super) fn fixed(n: f64, precision: usize, alternate: bool, out: &mut Vec<u8>) {
    if !special(n, false, out) {
        out.extend_from_slice(format!("{n:.precision$}").as_bytes());
        if alternate && precision == 0 {
            out.push(b'.');
        }
    }
}

/// `%.{precision}e`
pub(super) fn exponential(n: f64, precision: usize, alternate: bool, upper: bool, out: &mut Vec<u8>) {
    if special(n, upper, out) {
        return;
    }
    let text = format!("{n:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    out.extend_from_slice(mantissa.as_bytes());
    if alternate && precision == 0 {
        out.push(b'.');
    }
    push_exponent(exponent.parse().unwrap_or(0), upper, out);
}

fn push_exponent(exponent: i32, upper: bool, out: &mut Vec<u8>) {
    out.push(if upper { b'E' } else { b'e' });
    out.push(if exponent < 0 { b'-' } else { b'+' });
    out.extend_from_slice(format!("{:02}", exponent.abs()).as_bytes());
}

/// `%.{precision}g`
pub(super) fn general(n: f64, precision: usize, alternate: bool, upper: bool, out: &mut Vec<u8>) {
    if special(n, upper, out) {
        return;
    }
    let precision = precision.max(1);
    let text = format!("{n:.*e}", precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let from = out.len();
    if exponent < -4 || exponent >= precision as i32 {
        out.extend_from_slice(mantissa.as_bytes());
        if !alternate {
            cut_zeros(from, out);
        } else if precision == 1 {
            out.push(b'.');
        }
        push_exponent(exponent, upper, out);
    } else {
        let places = (precision as i32 - 1 - exponent) as usize;
        out.extend_from_slice(format!("{n:.places$}").as_bytes());
        if !alternate {
            cut_zeros(from, out);
        } else if places == 0 {
            out.push(b'.');
        }
    }
}

fn cut_zeros(from: usize, out: &mut Vec<u8>) {
    if out[from..].contains(&b'.') {
        while out.last() == Some(&b'0') {
            out.pop();
        }
        if out.last() == Some(&b'.') {
            out.pop();
        }
    }
}
