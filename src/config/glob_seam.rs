//! Globs of `CONFIG GET` and `include`.

/// Whether `text` matches `pattern` (`* ? [a-z] [^a] \c`); `nocase` folds ASCII.
pub(super) fn matches(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    let fold = |c: u8| if nocase { c.to_ascii_lowercase() } else { c };
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|skip| matches(rest, &text[skip..], nocase)),
        [b'?', rest @ ..] => !text.is_empty() && matches(rest, &text[1..], nocase),
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().skip(1).position(|&c| c == b']').map(|at| at + 1) else { return false };
            let Some((&first, tail)) = text.split_first() else { return false };
            let (set, negated) = match &rest[..end] {
                [b'^', set @ ..] => (set, true),
                set => (set, false),
            };
            in_set(set, first, fold) != negated && matches(&rest[end + 1..], tail, nocase)
        }
        [b'\\', c, rest @ ..] | [c, rest @ ..] => {
            text.first().is_some_and(|&first| fold(first) == fold(*c)) && matches(rest, &text[1..], nocase)
        }
    }
}

fn in_set(set: &[u8], c: u8, fold: impl Fn(u8) -> u8 + Copy) -> bool {
    match set {
        [low, b'-', high, rest @ ..] => (fold(*low)..=fold(*high)).contains(&fold(c)) || in_set(rest, c, fold),
        [one, rest @ ..] => fold(*one) == fold(c) || in_set(rest, c, fold),
        [] => false,
    }
}
