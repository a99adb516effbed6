//! Elements of a small collection behind the header of its metadata record, in the order of their keys.
//!
//! | bytes | part |
//! |---|---|
//! | varint + … | an element's key, its group first |
//! | varint + … | its value |
//!
//! and so on to the end of the record. Of a sorted set the elements that sort members by their scores stand there; those under
//! the members' names follow from them.

use smallvec::SmallVec;

use super::cursor::{Cursor, push_slice};
use super::element::{self, Element, Group, split_text, with_text, zset_is_digested, zset_score_of};
use super::{CodecError, Meta};

/// Whether an element stands in the record itself.
#[inline]
pub fn stands(element: &[u8]) -> bool {
    element.first() != Some(&Group::ZsetScore.tag())
}

/// Appends an element.
#[inline]
pub fn push(element: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_slice(element, out);
    push_slice(value, out);
}

/// The elements that stand in the record one by one, each as [`each`] reads it, up to where one ends that has no end.
pub fn one_by_one(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let mut cursor = Cursor::new(bytes);
        let read = !cursor.is_empty() && cursor.slice().and_then(|_| cursor.slice()).is_ok();
        let (one, rest) = bytes.split_at(bytes.len() - cursor.rest().len());
        bytes = rest;
        read.then_some(one)
    })
}

/// Visits key and value of the elements, what follows from one right behind it.
///
/// # Errors
/// What cannot be read, and what `visit` says.
pub fn each<E: From<CodecError>>(
    meta: &Meta,
    bytes: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut cursor, mut name) = (Cursor::new(bytes), Vec::new());
    while !cursor.is_empty() {
        let (element, value) = (cursor.slice()?, cursor.slice()?);
        visit(element, value)?;
        if element.first() == Some(&Group::ZsetSort.tag())
            && let Element::ZsetSort(score, stored) = element::Element::decode(element)?
        {
            let (member, score) = (split_text(stored, value)?.0, score.to_bytes());
            name.clear();
            zset_score_of(meta.encoding, member, &mut name);
            match zset_is_digested(meta.encoding, member) {
                true => visit(&name, &score)?,
                false => visit(&name, &with_text(member, &score))?,
            }
        }
    }
    Ok(())
}

/// The value of one element, as [`each`] reads it, if it is there.
///
/// # Errors
/// What cannot be read.
pub fn find(meta: &Meta, bytes: &[u8], wanted: &[u8]) -> Result<Option<SmallVec<[u8; 64]>>, CodecError> {
    let mut found = None;
    each(meta, bytes, |element, value| {
        if element == wanted {
            found = Some(SmallVec::from_slice(value));
        }
        Ok::<_, CodecError>(())
    })?;
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::element::zset_sort;
    use crate::codec::{Kind, Score};
    use proptest::collection::vec;
    use proptest::prelude::*;

    type Elements = Vec<(Vec<u8>, Vec<u8>)>;

    fn all(meta: &Meta, bytes: &[u8]) -> (Elements, Result<(), CodecError>) {
        let mut all = Vec::new();
        let read = each(meta, bytes, |element, value| {
            all.push((element.to_vec(), value.to_vec()));
            Ok(())
        });
        (all, read)
    }

    #[test]
    fn packed_bytes_are_pinned() {
        let mut out = Vec::new();
        push(b"\x03a", b"", &mut out);
        push(b"\x03bc", b"value", &mut out);
        assert_eq!(out, b"\x02\x03a\0\x03\x03bc\x05value");
    }

    #[test]
    fn what_is_cut_is_told() {
        let (elements, read) = all(&Meta::new(Kind::Set), b"\x01\x03\0\x02\x03");
        assert_eq!((elements, read), (vec![(b"\x03".to_vec(), Vec::new())], Err(CodecError::Truncated)));
        assert_eq!(one_by_one(b"\x01\x03\0\x02\x03").collect::<Vec<_>>(), [b"\x01\x03\0"]);
    }

    #[test]
    fn what_stands_under_a_members_name_follows_from_its_place_in_the_order() {
        let score = Score::new(1.5).unwrap();
        for (encoding, member) in
            [(0, &b"member"[..]), (1, b"member"), (1, b"a member of many bytes"), (0, &[b'm'; 2000])]
        {
            let (mut sort, mut name, mut out) = (Vec::new(), Vec::new(), Vec::new());
            zset_sort(score, member, &mut sort);
            zset_score_of(encoding, member, &mut name);
            let text = with_text(member, b"");
            push(&sort, &text, &mut out);
            let value = if zset_is_digested(encoding, member) { b"".into() } else { text.clone() };
            let value = [&value[..], &score.to_bytes()].concat();
            assert!(stands(&sort) && !stands(&name));
            let (elements, read) = all(&Meta { encoding, ..Meta::new(Kind::Zset) }, &out);
            assert_eq!((elements, read), (vec![(sort, text.to_vec()), (name, value)], Ok(())));
        }
    }

    #[test]
    fn each_of_several_members_has_a_name_of_its_own() {
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        for (score, member) in [(1.5, &b"a"[..]), (2.5, b"another"), (3.5, b"b")] {
            let (score, mut sort, mut name) = (Score::new(score).unwrap(), Vec::new(), Vec::new());
            zset_sort(score, member, &mut sort);
            zset_score_of(0, member, &mut name);
            let text = with_text(member, b"").to_vec();
            push(&sort, &text, &mut out);
            expected.extend([(sort, text.clone()), (name, [text, score.to_bytes().to_vec()].concat())]);
        }
        assert_eq!(all(&Meta::new(Kind::Zset), &out), (expected, Ok(())));
    }

    proptest! {
        #[test]
        fn elements_return(elements in vec((vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..200)), 0..20)) {
            let elements: Elements = elements.into_iter().map(|(name, value)| ([b"\x03", &name[..]].concat(), value)).collect();
            let mut out = Vec::new();
            elements.iter().for_each(|(element, value)| push(element, value, &mut out));
            prop_assert_eq!(one_by_one(&out).collect::<Vec<_>>().concat(), out.clone());
            prop_assert_eq!(one_by_one(&out).count(), elements.len());
            let meta = Meta::new(Kind::Set);
            for (element, _) in &elements {
                // Of names that come twice here the last is found.
                let (_, value) = elements.iter().rev().find(|(other, _)| other == element).unwrap();
                let found = find(&meta, &out, element).unwrap();
                prop_assert_eq!(found.as_deref(), Some(&value[..]));
            }
            prop_assert_eq!(find(&meta, &out, b"\x02"), Ok(None));
            prop_assert_eq!(all(&meta, &out), (elements, Ok(())));
        }

        #[test]
        fn random_bytes_never_panic(encoding in 0u8..3, bytes in vec(any::<u8>(), 0..80)) {
            _ = (all(&Meta { encoding, ..Meta::new(Kind::Zset) }, &bytes), one_by_one(&bytes).count());
            _ = all(&Meta { encoding, ..Meta::new(Kind::Zset) }, &[&[20, 5], &bytes[..]].concat());
        }
    }
}
