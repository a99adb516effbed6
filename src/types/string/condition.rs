//! Conditions under which a string is written or deleted.
//!
//! | words | of | holds for an absent key |
//! |---|---|---|
//! | NX, XX | Redis | NX |
//! | IFEQ, IFNE value | Redis 8.4, IFEQ as in Valkey | IFNE |
//! | IFDEQ, IFDNE digest | Redis 8.4 | IFDNE |
//!
//! A digest is XXH3-64 of the value as 16 hexadecimal digits.

use std::ops::ControlFlow;

use super::value::{Piece, each_piece, equals};
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, events, flags, key};
use crate::resp::args::Cursor;
use crate::shard::memory::object::Kind;

/// Digits of a digest.
pub const DIGEST_LEN: usize = 16;

/// A digest's text.
pub type Digest = [u8; DIGEST_LEN];

/// When a string is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition<'a> {
    /// In any case.
    #[default]
    Always,
    /// If the key is not there.
    Absent,
    /// If it is.
    Present,
    /// If it holds this value.
    Equal(&'a [u8]),
    /// If it does not.
    NotEqual(&'a [u8]),
    /// If it holds a value of this digest.
    DigestEqual(&'a [u8]),
    /// If it does not.
    DigestNotEqual(&'a [u8]),
}

impl<'a> Condition<'a> {
    /// Takes the next option if it is NX or XX; whether it was. One of them may be repeated.
    ///
    /// # Errors
    /// `Syntax` beside another condition.
    pub fn take_existence(&mut self, options: &mut Cursor<'a>) -> Result<bool> {
        let new = if options.next_is(b"NX") {
            Condition::Absent
        } else if options.next_is(b"XX") {
            Condition::Present
        } else {
            return Ok(false);
        };
        if *self != Condition::Always && *self != new {
            return Err(Error::Syntax);
        }
        *self = new;
        Ok(true)
    }

    /// Takes the next option if it is any condition; whether it was.
    ///
    /// # Errors
    /// `Syntax` beside another condition or without a value; another text for what cannot be a digest.
    pub fn take(&mut self, options: &mut Cursor<'a>) -> Result<bool> {
        if self.take_existence(options)? {
            return Ok(true);
        }
        let Some(word) = options.peek() else { return Ok(false) };
        if Condition::comparison(word, b"").is_none() {
            return Ok(false);
        }
        options.next();
        let value = options.arg()?;
        if *self != Condition::Always {
            return Err(Error::Syntax);
        }
        *self = Condition::comparison(word, value).unwrap_or_default();
        self.check_digest()?;
        Ok(true)
    }

    /// The condition that this word and value make.
    fn comparison(word: &[u8], value: &'a [u8]) -> Option<Condition<'a>> {
        if word.eq_ignore_ascii_case(b"IFEQ") {
            Some(Condition::Equal(value))
        } else if word.eq_ignore_ascii_case(b"IFNE") {
            Some(Condition::NotEqual(value))
        } else if word.eq_ignore_ascii_case(b"IFDEQ") {
            Some(Condition::DigestEqual(value))
        } else if word.eq_ignore_ascii_case(b"IFDNE") {
            Some(Condition::DigestNotEqual(value))
        } else {
            None
        }
    }

    fn check_digest(&self) -> Result {
        match self {
            Condition::DigestEqual(digest) | Condition::DigestNotEqual(digest) if digest.len() != DIGEST_LEN => {
                Err(Error::err("ERR must be exactly 16 hexadecimal characters"))
            }
            _ => Ok(()),
        }
    }

    /// Whether it holds for a key as it is.
    ///
    /// # Errors
    /// `WrongType` where a value is asked for and the key holds no string.
    pub fn holds(&self, ctx: &mut Ctx, found: Option<Found>) -> Result<bool> {
        let Some(found) = found else {
            return Ok(matches!(
                self,
                Condition::Always | Condition::Absent | Condition::NotEqual(_) | Condition::DigestNotEqual(_)
            ));
        };
        match self {
            Condition::Always | Condition::Present => return Ok(true),
            Condition::Absent => return Ok(false),
            _ if ctx.object(found).kind != Kind::String => return Err(Error::WrongType),
            _ => {}
        }
        Ok(match self {
            Condition::Equal(value) => equals(ctx, found, value)?,
            Condition::NotEqual(value) => !equals(ctx, found, value)?,
            Condition::DigestEqual(digest) => digest.eq_ignore_ascii_case(&digest_of(ctx, found)?),
            Condition::DigestNotEqual(digest) => !digest.eq_ignore_ascii_case(&digest_of(ctx, found)?),
            _ => true,
        })
    }
}

/// The digest of a string.
pub fn digest_of(ctx: &mut Ctx, found: Found) -> Result<Digest> {
    let object = ctx.object(found);
    if object.body.is_none() {
        return Ok(digest_text(xxhash_rust::xxh3::xxh3_64(object.value())));
    }
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    let len = ctx.string_len(found);
    each_piece(ctx, found, 0..len, |_, piece| {
        match piece {
            Piece::Bytes(bytes) => hash.update(bytes),
            Piece::Zeros(mut count) => {
                while count > 0 {
                    let part = count.min(ZEROS.len());
                    hash.update(&ZEROS[..part]);
                    count -= part;
                }
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(digest_text(hash.digest()))
}

/// Lower-case hexadecimal digits, the highest first.
fn digest_text(digest: u64) -> Digest {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|i| DIGITS[(digest >> (60 - 4 * i)) as usize & 15])
}

fn digest(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match ctx.lookup_string(&args[1])? {
        None => out.nil(),
        Some(found) => out.bulk(&digest_of(ctx, found)?),
    }
    Ok(())
}

fn delifeq(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match ctx.lookup_string(&args[1])? {
        Some(found) => delete_if(ctx, found, Condition::Equal(&args[2]), out)?,
        None => out.int(0),
    }
    Ok(())
}

fn delex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match args.len() {
        2 => {
            let removed = ctx.remove(&args[1])?;
            out.int(removed.into());
            return Ok(());
        }
        4 => {}
        _ => return Err(Error::Arity("delex".into())),
    }
    // The key and its type come before the condition: anything goes on a key that is not there.
    let Some(found) = ctx.lookup(&args[1])? else {
        out.int(0);
        return Ok(());
    };
    if ctx.object(found).kind != Kind::String {
        return Err(Error::err("ERR Key should be of string type if conditions are specified"));
    }
    let condition = Condition::comparison(&args[2], &args[3])
        .ok_or(Error::err("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"))?;
    condition.check_digest()?;
    delete_if(ctx, found, condition, out)
}

fn delete_if(ctx: &mut Ctx, found: Found, condition: Condition<'_>, out: &mut Reply) -> Result {
    let deleted = condition.holds(ctx, Some(found))? && ctx.delete_found(found);
    out.int(deleted.into());
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("delex", delex, -2, flags::WRITE | flags::FAST, Group::String)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE | key::VARIABLE_FLAGS)])
        .help("8.4.0", "Deletes a key if its value or the digest of its value is, or is not, the given one.")
        .syntax(
            "key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]",
            "O(1) for IFEQ/IFNE, O(N) for IFDEQ/IFDNE where N is the length of the value.",
        ),
    Command::new("delifeq", delifeq, 3, flags::WRITE | flags::FAST, Group::String)
        .tells(&events::DEL)
        .keys(&[KeySpec::one(1, key::RM | key::DELETE)])
        .help("9.0.0", "Deletes a key if it holds the given value.")
        .syntax("key value", "O(1)"),
    Command::new("digest", digest, 2, flags::READONLY | flags::FAST, Group::String)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("8.4.0", "Returns the XXH3 digest of a string as 16 hexadecimal digits.")
        .syntax("key", "O(N) where N is the length of the value."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_keep_their_leading_zeros() {
        assert_eq!(&digest_text(0x6c38_adf3_1777), b"00006c38adf31777");
        // Published test vectors of XXH3-64 with seed 0.
        assert_eq!(&digest_text(xxhash_rust::xxh3::xxh3_64(b"")), b"2d06800538d394c2");
    }
}
