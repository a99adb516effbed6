//! What OBJECT ENCODING says of a set, as Redis 8.2 would keep it.
//!
//! | form | while |
//! |---|---|
//! | 0 `intset` | every member is an integer, and `set-max-intset-entries` is kept |
//! | 1 `listpack` | `set-max-listpack-entries` and `-value` are kept |
//! | 2 `hashtable` | otherwise; of every blind set |
//!
//! Invariants: a form only grows, whatever leaves the set or changes in the limits; only a result that is stored anew
//! begins again. So adding needs the limits only while a set is small.

use crate::config::settings::Encodings;
use crate::shard::memory::object::Object;
use crate::util::num::parse_i64;

/// Integers only.
pub const INTSET: u8 = 0;
/// Few and short members.
pub const LISTPACK: u8 = 1;
/// Anything.
pub const HASHTABLE: u8 = 2;

/// Redis keeps no more integers than this in an intset, whatever is configured.
const INTSET_MOST: usize = 1 << 30;

/// The name that OBJECT ENCODING has for how a set is kept.
pub fn encoding(object: &Object) -> &'static str {
    match object.body.as_ref().map(|body| body.form) {
        Some(INTSET) => "intset",
        Some(LISTPACK) => "listpack",
        _ => "hashtable",
    }
}

/// The form of a new set that gets so many members at most, this one first.
pub fn initial(first: &[u8], hint: usize, limits: &Encodings) -> u8 {
    if hint <= limits.set_max_intset_entries && parse_i64(first).is_some() {
        INTSET
    } else if hint <= limits.set_max_listpack_entries {
        LISTPACK
    } else {
        HASHTABLE
    }
}

/// The form of a set that is about to get so many members, of which Redis expects that all are new.
pub fn hinted(form: u8, hint: usize, limits: &Encodings) -> u8 {
    match form {
        INTSET if hint > limits.set_max_intset_entries => HASHTABLE,
        LISTPACK if hint > limits.set_max_listpack_entries => HASHTABLE,
        form => form,
    }
}

/// The form of a set of `size` members once it has this one too.
pub fn grown(form: u8, size: u64, member: &[u8], limits: &Encodings) -> u8 {
    if form == HASHTABLE {
        return form;
    }
    let packs = size < limits.set_max_listpack_entries as u64 && member.len() <= limits.set_max_listpack_value;
    match form {
        INTSET if parse_i64(member).is_some() => {
            let most = limits.set_max_intset_entries.min(INTSET_MOST) as u64;
            if size < most { INTSET } else { HASHTABLE }
        }
        INTSET | LISTPACK if packs => LISTPACK,
        _ => HASHTABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn limits() -> Encodings {
        Encodings {
            set_max_intset_entries: 4,
            set_max_listpack_entries: 3,
            set_max_listpack_value: 5,
            ..Config::default().settings().encodings
        }
    }

    /// The form of a set that gets these members one by one.
    fn form_of(members: &[&str]) -> u8 {
        let limits = limits();
        let first = initial(members[0].as_bytes(), 1, &limits);
        (members.iter().enumerate())
            .fold(first, |form, (size, member)| grown(form, size as u64, member.as_bytes(), &limits))
    }

    #[test]
    fn forms_grow_as_limits_are_passed() {
        assert_eq!(form_of(&["1", "2", "3", "4"]), INTSET);
        assert_eq!(form_of(&["1", "2", "3", "4", "5"]), HASHTABLE);
        assert_eq!(form_of(&["1", "2", "a"]), LISTPACK);
        assert_eq!(form_of(&["1", "2", "3", "a"]), HASHTABLE);
        assert_eq!(form_of(&["a", "1", "2"]), LISTPACK);
        assert_eq!(form_of(&["a", "1", "2", "3"]), HASHTABLE);
        assert_eq!(form_of(&["12345"]), INTSET);
        assert_eq!(form_of(&["abcde"]), LISTPACK);
        assert_eq!(form_of(&["abcdef"]), HASHTABLE);
        assert_eq!(form_of(&["01"]), LISTPACK);
    }

    #[test]
    fn announced_members_count_as_new() {
        let limits = limits();
        assert_eq!(initial(b"1", 4, &limits), INTSET);
        assert_eq!(initial(b"1", 5, &limits), HASHTABLE);
        assert_eq!(initial(b"a", 3, &limits), LISTPACK);
        assert_eq!(initial(b"a", 4, &limits), HASHTABLE);
        assert_eq!(hinted(INTSET, 4, &limits), INTSET);
        assert_eq!(hinted(INTSET, 5, &limits), HASHTABLE);
        assert_eq!(hinted(LISTPACK, 3, &limits), LISTPACK);
        assert_eq!(hinted(LISTPACK, 4, &limits), HASHTABLE);
        assert_eq!(hinted(HASHTABLE, 1, &limits), HASHTABLE);
    }
}
