//! Glob patterns: `*`, `?`, `[abc]`, `[^a-z]`, and `\` to take the next byte literally.
//!
//! Redis's matcher byte for byte, its quirks included, since clients see them:
//! - a range compares bytes as *signed* numbers, and its ends may stand in either order;
//! - an unclosed class ends where the pattern ends; `]` as the right end of a range is part of it, as in `[a-]`;
//! - an escape within a class compares with case even where case is ignored;
//! - `*` does not match the empty string at top level (`KEYS *` is a case of its own in Redis, and here);
//! - a pattern that must go through more than 1,000 stars matches nothing.
//!
//! A `*` only ever has to give way to the last one passed, so the matcher remembers a single point to return to:
//! time is at most pattern × string, stack is constant.

use std::borrow::Cow;

/// Stars a match may pass, not counting one that ends the pattern.
const STARS_MAX: usize = 1000;

/// Whether `pattern` matches all of `text`; letters must agree in case.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    run(pattern, text, false)
}

/// Like [`matches`], ASCII letters matching in either case.
pub fn matches_nocase(pattern: &[u8], text: &[u8]) -> bool {
    run(pattern, text, true)
}

/// The bytes with which every string that matches must begin: what precedes the first wildcard, unescaped.
pub fn literal_prefix(pattern: &[u8]) -> Cow<'_, [u8]> {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\')).unwrap_or(pattern.len());
    if pattern.get(end) != Some(&b'\\') {
        return Cow::Borrowed(&pattern[..end]);
    }
    let mut prefix = pattern[..end].to_vec();
    let mut rest = &pattern[end..];
    loop {
        rest = match rest {
            [b'\\', byte, rest @ ..] => {
                prefix.push(*byte);
                rest
            }
            [] | [b'*' | b'?' | b'[', ..] => return Cow::Owned(prefix),
            [byte, rest @ ..] => {
                prefix.push(*byte);
                rest
            }
        };
    }
}

/// Whether `pattern` has no wildcard, so that it matches exactly its [`literal_prefix`].
pub fn is_literal(pattern: &[u8]) -> bool {
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'*' | b'?' | b'[' => return false,
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
    true
}

fn run(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star left off: pattern after it, and the text at which its rest was last tried.
    let mut retry: Option<(usize, usize)> = None;
    let mut stars = 0;
    loop {
        let matched = if p == pattern.len() || t == text.len() {
            if p == pattern.len() && t == text.len() {
                return true;
            }
            // What is left of the pattern after the last star takes one byte an item: a later start is no better.
            if t == text.len() {
                return false;
            }
            false
        } else if pattern[p] == b'*' {
            p = skip_stars(pattern, p);
            if p == pattern.len() {
                return true;
            }
            stars += 1;
            if stars > STARS_MAX {
                return false;
            }
            retry = Some((p, t));
            continue;
        } else if let Some(next) = item(pattern, p, text[t], nocase) {
            (p, t) = (next, t + 1);
            if t == text.len() {
                p = skip_stars(pattern, p);
            }
            true
        } else {
            false
        };
        if !matched {
            let Some((after_star, tried)) = retry else { return false };
            (p, t) = (after_star, tried + 1);
            retry = Some((p, t));
        }
    }
}

fn skip_stars(pattern: &[u8], from: usize) -> usize {
    from + pattern[from..].iter().take_while(|&&byte| byte == b'*').count()
}

/// Matches one item that takes exactly one byte; the position of the next item, or `None` on a mismatch.
fn item(pattern: &[u8], p: usize, byte: u8, nocase: bool) -> Option<usize> {
    let (literal, next) = match pattern[p] {
        b'?' => return Some(p + 1),
        b'[' => {
            let (matched, next) = class(pattern, p + 1, byte, nocase);
            return matched.then_some(next);
        }
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1], p + 2),
        literal => (literal, p + 1),
    };
    let equal = if nocase { literal.eq_ignore_ascii_case(&byte) } else { literal == byte };
    equal.then_some(next)
}

/// A class whose `[` stands before `p`: whether it holds `byte`, and the position behind it.
fn class(pattern: &[u8], mut p: usize, byte: u8, nocase: bool) -> (bool, usize) {
    let fold = |byte: u8| if nocase { byte.to_ascii_lowercase() } else { byte };
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut found = false;
    let next = loop {
        match pattern[p..] {
            [b'\\', escaped, ..] => {
                found |= escaped == byte;
                p += 2;
            }
            [b']', ..] => break p + 1,
            [] => break p,
            [from, b'-', to, ..] => {
                // Folded only after the ends are put in order, as Redis does.
                let (low, high) = if from as i8 > to as i8 { (to, from) } else { (from, to) };
                found |= (fold(low) as i8..=fold(high) as i8).contains(&(fold(byte) as i8));
                p += 3;
            }
            [literal, ..] => {
                found |= fold(literal) == fold(byte);
                p += 1;
            }
        }
    };
    (found != negated, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected results are those of Redis 8.2.3 (`KEYS pattern` with the text as the only key).
    #[test]
    fn agrees_with_redis() {
        let cases: &[(&[u8], &[u8], bool)] = &[
            (b"**", b"", false),
            (b"", b"", true),
            (b"[a-\xff]", b"b", false),
            (b"[a-\xff]", b"A", true),
            (b"[\xff-a]", b"\x80", false),
            (b"[\x80-\xff]", b"\x90", true),
            (b"[z-a]", b"m", true),
            (b"[", b"[", false),
            (b"[^", b"a", true),
            (b"[a", b"a", true),
            (b"[a", b"b", false),
            (b"[\\", b"\\", true),
            (b"[\\]]", b"]", true),
            (b"[]]", b"]", false),
            (b"[]", b"a", false),
            (b"[^]", b"a", true),
            (b"[^a]", b"^", true),
            (b"[a-]", b"-", false),
            (b"[a-]", b"b", false),
            (b"[a-]", b"]", true),
            (b"[a-]x", b"-x", false),
            (b"[a-\\]]", b"b", false),
            (b"\\", b"\\", true),
            (b"a\\", b"a\\", true),
            (b"\\*", b"*", true),
            (b"a*", b"a", true),
            (b"a***", b"a", true),
            (b"*a*b*", b"xxaxbx", true),
            (b"?", b"", false),
            (b"??*", b"ab", true),
            (b"[!a]", b"b", false),
            (b"***", b"x", true),
            (b"[a\\-z]", b"b", false),
            (b"[a\\-z]", b"-", true),
            (b"[\\a-c]", b"b", false),
            (b"[", b"", false),
            (b"[a]*", b"a", true),
            (b"a[", b"a[", false),
            (b"a[b-", b"a-", true),
            (b"h\0*", b"h\0x", true),
            (b"*ab", b"aab", true),
            (b"*aab*b", b"aaabab", true),
            (b"a*b", b"a", false),
        ];
        for &(pattern, text, expected) in cases {
            let shown = (pattern.escape_ascii(), text.escape_ascii());
            assert_eq!(matches(pattern, text), expected, "{} {}", shown.0, shown.1);
        }
    }

    #[test]
    fn stars_are_limited_and_never_explode() {
        assert!(matches(&b"*a".repeat(1000), &b"a".repeat(1000)));
        assert!(!matches(&b"*a".repeat(1001), &b"a".repeat(1001)));
        assert!(matches(&[b"*a".repeat(1000), b"*".to_vec()].concat(), &b"a".repeat(1001)));
        assert!(!matches(&[b"a*".repeat(500), b"b".to_vec()].concat(), &b"a".repeat(20_000)));
    }

    #[test]
    fn case_is_ignored_except_for_escapes_in_classes() {
        assert!(matches_nocase(b"MAX[m]emor?", b"maxMemory"));
        assert!(matches_nocase(b"max[A-Z]emory", b"maxmemory"));
        assert!(matches_nocase(b"max\\Memory", b"maxmemory"));
        assert!(!matches_nocase(b"max[\\M]emory", b"maxmemory"));
        assert!(!matches(b"A", b"a"));
    }

    #[test]
    fn prefix_is_what_every_match_begins_with() {
        for (pattern, prefix, literal) in [
            (&b"user:*"[..], &b"user:"[..], false),
            (b"a\\*b*", b"a*b", false),
            (b"a\\*b", b"a*b", true),
            (b"ab\\", b"ab\\", true),
            (b"[a]b", b"", false),
            (b"x?", b"x", false),
            (b"plain", b"plain", true),
            (b"", b"", true),
        ] {
            let shown = pattern.escape_ascii();
            assert_eq!(*literal_prefix(pattern), *prefix, "{shown}");
            assert_eq!(is_literal(pattern), literal, "{shown}");
            assert!(!literal || matches(pattern, prefix), "{shown}");
        }
    }
}
