//! Words of a configuration line, split and quoted as Redis does it (`sdssplitargs`, `sdscatrepr`).
//!
//! | form | meaning |
//! |---|---|
//! | `word` | up to the next blank; a quote inside it opens a quoted part |
//! | `"…"` | escapes `\n \r \t \b \a \xHH`, any other `\c` is `c` |
//! | `'…'` | literal, only `\'` is an escape |
//!
//! A closing quote must be followed by a blank or the end.

/// The words of `line`, or `None` when a quote is not closed or is followed by something other than a blank.
pub(crate) fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&c| is_space(c)) {
            at += 1;
        }
        if at >= line.len() {
            return Some(words);
        }
        let mut word = Vec::new();
        at = read_word(line, at, &mut word)?;
        words.push(word);
    }
}

/// Blanks of C's `isspace`.
pub(super) fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Appends the word that starts at `at`; answers where it ends.
fn read_word(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    while let Some(&c) = line.get(at) {
        match c {
            0 => return Some(line.len()),
            _ if is_space(c) => return Some(at),
            b'"' | b'\'' => {
                at = if c == b'"' { read_double(line, at + 1, word)? } else { read_single(line, at + 1, word)? };
                let ends = line.get(at).is_none_or(|&next| is_space(next));
                return ends.then_some(at);
            }
            _ => {
                word.push(c);
                at += 1;
            }
        }
    }
    Some(at)
}

fn read_double(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match line[at.min(line.len())..] {
            [b'"', ..] => return Some(at + 1),
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                word.push(hex(high) << 4 | hex(low));
                at += 4;
            }
            [b'\\', c, ..] => {
                word.push(match c {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => other,
                });
                at += 2;
            }
            [c, ..] => {
                word.push(c);
                at += 1;
            }
            [] => return None,
        }
    }
}

fn read_single(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match line[at.min(line.len())..] {
            [b'\'', ..] => return Some(at + 1),
            [b'\\', b'\'', ..] => {
                word.push(b'\'');
                at += 2;
            }
            [c, ..] => {
                word.push(c);
                at += 1;
            }
            [] => return None,
        }
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

/// `text` in double quotes, so that [`split`] reads it back as one word.
pub(super) fn quote(text: &[u8]) -> Vec<u8> {
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
    }

    proptest! {
        #[test]
        fn what_is_quoted_splits_back(text: Vec<u8>) {
            prop_assert_eq!(split(&quote(&text)), Some(vec![text]));
        }

        #[test]
        fn never_panics(line: Vec<u8>) {
            split(&line);
        }
    }
}
