//! Words of a line, split and quoted as Redis does it (`sdssplitargs`, `sdscatrepr`): inline requests, the configuration.
//!
//! | form | meaning |
//! |---|---|
//! | `word` | up to the next blank; a quote inside it opens a quoted part |
//! | `"…"` | escapes `\n \r \t \b \a \xHH`, any other `\c` is `c` |
//! | `'…'` | literal, only `\'` is an escape |
//!
//! A closing quote must be followed by white space or the end.

use std::ops::Range;

/// A text as C sees it: up to a zero byte.
pub fn c_string(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |end| &text[..end])
}

/// The words of `line`, or `None` when a quote is not closed or is followed by something other than white space. A zero
/// byte ends the line, as it ends a string of C.
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut line = c_string(line).to_vec();
    let mut words = Vec::new();
    let closed = split_in_place(&mut line, |word| words.push(word));
    closed.then(|| words.into_iter().map(|word| line[word].to_vec()).collect())
}

/// Unquotes the words of a line in place and says of each where it stands; false if a quote is not closed or is followed
/// by something other than white space. A zero byte is a byte like others.
pub fn split_in_place(line: &mut [u8], mut found: impl FnMut(Range<usize>)) -> bool {
    let mut read = 0;
    loop {
        while line.get(read).is_some_and(|&byte| is_space(byte)) {
            read += 1;
        }
        if read == line.len() {
            return true;
        }
        let start = read;
        let mut write = read;
        loop {
            match line.get(read) {
                None | Some(b' ' | b'\n' | b'\r' | b'\t') => break,
                Some(&quote @ (b'"' | b'\'')) => {
                    let Some((next_read, next_write)) = unquote(line, quote, read + 1, write) else { return false };
                    (read, write) = (next_read, next_write);
                    break;
                }
                Some(&byte) => {
                    line[write] = byte;
                    (read, write) = (read + 1, write + 1);
                }
            }
        }
        found(start..write);
    }
}

/// Moves what stands between quotes, the first byte at `read`, to `write`; both positions afterwards, or `None` if the
/// quotes do not close or are not followed by white space.
fn unquote(line: &mut [u8], quote: u8, mut read: usize, mut write: usize) -> Option<(usize, usize)> {
    loop {
        let (byte, taken) = match line[read..] {
            [] => return None,
            [b'\\', b'x', high, low, ..] if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex_digit(high) << 4 | hex_digit(low), 4)
            }
            [b'\\', escaped, ..] if quote == b'"' => (unescape(escaped), 2),
            [b'\\', b'\'', ..] if quote == b'\'' => (b'\'', 2),
            [byte, ref rest @ ..] if byte == quote => {
                return rest.first().is_none_or(|&next| is_space(next)).then_some((read + 1, write));
            }
            [byte, ..] => (byte, 1),
        };
        line[write] = byte;
        (read, write) = (read + taken, write + 1);
    }
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// The value of an ASCII hexadecimal digit.
fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// C's `isspace`: also vertical tab and form feed, which separate words only before a word and after a quote.
pub fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// `text` as [`split`] reads it back as one word: in quotes if it needs them.
pub fn as_word(text: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !text.is_empty() && text.iter().all(is_plain) { text.to_vec() } else { quote(text) }
}

/// `text` in double quotes, so that [`split`] reads it back as one word.
pub fn quote(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    for &c in text {
        match c {
            b'\\' | b'"' => out.extend([b'\\', c]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            b' '..=b'~' => out.push(c),
            _ => out.extend(format!("\\x{c:02x}").bytes()),
        }
    }
    out.push(b'"');
    out
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> Option<Vec<String>> {
        Some(split(line.as_bytes())?.into_iter().map(|w| String::from_utf8(w).unwrap()).collect())
    }

    #[test]
    fn splits_as_redis_does() {
        assert_eq!(words("  a \t bc  "), Some(vec!["a".into(), "bc".into()]));
        assert_eq!(words(""), Some(vec![]));
        assert_eq!(words(r#"save """#), Some(vec!["save".into(), String::new()]));
        assert_eq!(words(r#""a\"b\x41\n\q" 'it\'s "x"'"#), Some(vec!["a\"bA\nq".into(), "it's \"x\"".into()]));
        assert_eq!(words(r#"ab"cd e""#), Some(vec!["abcd e".into()]));
        assert_eq!(words(r#""a"b"#), None);
        assert_eq!(words(r#""a"#), None);
        assert_eq!(words("'a"), None);
        assert_eq!(words("\"a\\"), None);
        assert_eq!(words("a\x0bb \x0bc"), Some(vec!["a\x0bb".into(), "c".into()]));
        assert_eq!(words("a b\0c d"), Some(vec!["a".into(), "b".into()]));
    }

    proptest! {
        #[test]
        fn what_is_quoted_splits_back(text: Vec<u8>) {
            prop_assert_eq!(split(&quote(&text)), Some(vec![text.clone()]));
            prop_assert_eq!(split(&as_word(&text)), Some(vec![text]));
        }

        #[test]
        fn never_panics(line: Vec<u8>) {
            split(&line);
        }
    }
}
