//! dump.rdb: the frame in which Redis and Valkey keep all keys of a server, read from any [`Read`] without ever having more of
//! it in memory than one value that is small, or one piece of a value that is big.
//!
//! `REDIS` and four digits (Valkey 9: `VALKEY` and three) are the version; then, by their first byte:
//!
//! | byte | what follows |
//! |---|---|
//! | 243 slots that are being imported (Valkey) | a string, `count`, for each two lengths |
//! | 244 slot info | three lengths |
//! | 245 library of functions | a string: its code; 246 that of a release candidate |
//! | 247 what a module keeps beside keys | `module id`, `2` and a length that says when, opcodes up to 0 |
//! | 248 idle time, 249 use | a length in seconds; a byte: of the next key |
//! | 250 auxiliary field | two strings |
//! | 251 sizes | two lengths: keys, and keys with a time |
//! | 252, 253 expiry | eight bytes in ms, four in seconds, little-endian: of the next key |
//! | 254 database | a length |
//! | 255 end | from version 5 on, eight bytes: the checksum of all before them, 0 for none |
//! | any other: type of a value | a string: the key; the value ([`super::value`]) |
//!
//! | file | owns |
//! |---|---|
//! | this one | the frame |
//! | [`input`] | the window over the bytes |
//! | [`extent`] | where a value ends |
//! | [`parts`] | big values, piece by piece |
//! | [`writer`] | the way out |
//!
//! Invariants: no bytes make it panic; memory is bounded by [`Bounds`] whatever they say; an error leaves
//! [`Reader::offset`] where it was found.

mod extent;
mod input;
mod parts;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
pub mod writer;

use std::io::Read;

pub use input::Input;
pub use parts::{Part, kind_of, may_expire_by_field};

use super::length::{Source, read_string};
use super::value::VERSION_VALKEY;
use super::{RdbError, Value, value};

/// The highest version of Redis's that is known. Of a later one what is known may still be read.
const VERSION_MAX: u16 = 13;

mod opcode {
    pub(super) const SLOT_IMPORT: u8 = 243;
    pub(super) const SLOT_INFO: u8 = 244;
    pub(super) const FUNCTION: u8 = 245;
    pub(super) const FUNCTION_PRE_GA: u8 = 246;
    pub(super) const MODULE_AUX: u8 = 247;
    pub(super) const IDLE: u8 = 248;
    pub(super) const FREQ: u8 = 249;
    pub(super) const AUX: u8 = 250;
    pub(super) const RESIZE_DB: u8 = 251;
    pub(super) const EXPIRE_MS: u8 = 252;
    pub(super) const EXPIRE_S: u8 = 253;
    pub(super) const SELECT_DB: u8 = 254;
    pub(super) const END: u8 = 255;
}

/// Values of modules: the first cannot even be skipped.
const MODULE_1: u8 = 6;
const MODULE_2: u8 = 7;

/// What a file may take of memory.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes in the file from which on a value is read piece by piece.
    pub whole: usize,
    /// Bytes of a piece: a string, and what holds many elements in one string.
    pub piece: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { whole: 256 << 10, piece: 512 << 20 }
    }
}

/// Why a file cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The disk, or whatever it is read from.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It ends too early.
    #[error("the file is cut short")]
    Cut,
    /// It is no RDB file.
    #[error("this is no RDB file")]
    Magic,
    /// It is of a version that is not known.
    #[error("RDB version {0} is unknown")]
    Version(u16),
    /// A value.
    #[error("{0}")]
    Value(#[from] RdbError),
    /// The checksum at its end is not that of its bytes.
    #[error("the checksum does not match: the file is damaged")]
    Checksum,
    /// A value of a module in the format before Redis 4.0's, whose end only the module knows.
    #[error("a module's value in the old format has no end that can be found")]
    OldModule,
    /// Libraries of a release candidate of Redis 7.0.
    #[error("functions of a release candidate of Redis 7.0 cannot be read")]
    PreGaFunction,
    /// Whoever takes the pieces of a value does not want any more.
    #[error("given up")]
    GivenUp,
    /// A value is longer than what is read as a whole; never seen outside.
    #[error("big")]
    Big,
}

/// A key, in front of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub key: Vec<u8>,
    /// Absolute, ms; 0 for never.
    pub expire_ms: u64,
    /// The value's type byte.
    pub tag: u8,
}

/// What comes next in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Something about the server that has written it: name, value.
    Aux(Vec<u8>, Vec<u8>),
    /// The keys that follow are of this database.
    Database(u64),
    /// About how many keys this database has.
    Sizes(u64),
    /// The code of a library of functions.
    Function(Vec<u8>),
    /// A module has kept something beside keys, which was skipped: its name.
    ModuleAux(String),
    /// A key with a value of a module, which was skipped: the module's name.
    ModuleValue(Vec<u8>, String),
    /// A key. Its value is to be read by [`Reader::whole`] or [`Reader::parts`].
    Key(Key),
    /// There is nothing more.
    End,
}

/// A file that is being read.
pub struct Reader<R> {
    input: Input<R>,
    version: u16,
    bounds: Bounds,
}

impl<R: Read> Reader<R> {
    /// Reads the version.
    ///
    /// # Errors
    /// `Magic`, `Version`, `Cut`, `Io`.
    pub fn new(mut input: Input<R>, bounds: Bounds) -> Result<Self, FileError> {
        input.hold_at_most(bounds.piece);
        input.begin_checksum();
        let head: [u8; 9] = input.array()?;
        let digits = if head.starts_with(b"VALKEY") {
            &head[6..]
        } else if head.starts_with(b"REDIS") {
            &head[5..]
        } else {
            return Err(FileError::Magic);
        };
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(FileError::Magic);
        }
        let version = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        if version == 0 || version > VERSION_MAX && version != VERSION_VALKEY {
            return Err(FileError::Version(version));
        }
        input.release();
        Ok(Reader { input, version, bounds })
    }

    /// Where it stands in the file.
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    /// The RDB version.
    pub const fn version(&self) -> u16 {
        self.version
    }

    /// What follows the end.
    pub fn into_input(self) -> Input<R> {
        self.input
    }

    /// What comes next. The value of a key that came before has been read.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn next_item(&mut self) -> Result<Item, FileError> {
        let mut expire_ms = 0;
        loop {
            self.input.release();
            match self.input.u8()? {
                opcode::EXPIRE_MS => expire_ms = expiry(i64::from_le_bytes(self.input.array()?)),
                opcode::EXPIRE_S => expire_ms = u64::from(u32::from_le_bytes(self.input.array()?)) * 1000,
                // Of uses nothing is kept on disk.
                opcode::IDLE => _ = self.input.len()?,
                opcode::FREQ => _ = self.input.u8()?,
                opcode::SLOT_INFO => {
                    for _ in 0..3 {
                        self.input.len()?;
                    }
                }
                opcode::SLOT_IMPORT => {
                    self.string()?;
                    for _ in 0..self.input.len()? {
                        self.input.release();
                        self.input.len()?;
                        self.input.len()?;
                    }
                }
                opcode::RESIZE_DB => {
                    let keys = self.input.len()?;
                    self.input.len()?;
                    return Ok(Item::Sizes(keys));
                }
                opcode::AUX => return Ok(Item::Aux(self.string()?, self.string()?)),
                opcode::SELECT_DB => return Ok(Item::Database(self.input.len()?)),
                opcode::FUNCTION => return Ok(Item::Function(self.string()?)),
                opcode::FUNCTION_PRE_GA => return Err(FileError::PreGaFunction),
                opcode::MODULE_AUX => {
                    let name = module_name(self.input.len()?);
                    // What says when the module wants it has the form of what follows.
                    extent::skip_module(&mut self.input)?;
                    return Ok(Item::ModuleAux(name));
                }
                opcode::END => return self.end(),
                tag => return self.key(tag, expire_ms),
            }
        }
    }

    fn key(&mut self, tag: u8, expire_ms: u64) -> Result<Item, FileError> {
        if tag != MODULE_1 && tag != MODULE_2 && kind_of(tag, self.version).is_none() {
            return Err(unreadable(tag, self.version).into());
        }
        let key = self.string()?;
        match tag {
            MODULE_1 => Err(FileError::OldModule),
            MODULE_2 => {
                let name = module_name(self.input.len()?);
                extent::skip_module(&mut self.input)?;
                Ok(Item::ModuleValue(key, name))
            }
            _ => Ok(Item::Key(Key { key, expire_ms, tag })),
        }
    }

    fn string(&mut self) -> Result<Vec<u8>, FileError> {
        self.input.release();
        extent::skip_string(&mut self.input).map_err(parts::too_large)?;
        Ok(read_string(&mut Source::new(self.input.held(), self.bounds.piece))?)
    }

    fn end(&mut self) -> Result<Item, FileError> {
        self.input.release();
        let sum = self.input.end_checksum();
        if self.version >= 5 {
            let stated = u64::from_le_bytes(self.input.array()?);
            if stated != 0 && stated != sum {
                return Err(FileError::Checksum);
            }
        }
        Ok(Item::End)
    }

    /// The bytes of a value, whose key has just come, if it is small: [`Reader::decode`] reads them. `None` for a big one,
    /// which is still to be read.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn whole(&mut self, tag: u8) -> Result<Option<&[u8]>, FileError> {
        self.input.release();
        self.input.hold_at_most(self.bounds.whole);
        let skipped = extent::skip(&mut self.input, tag, self.version);
        self.input.hold_at_most(self.bounds.piece);
        match skipped {
            Ok(()) => Ok(Some(self.input.held())),
            Err(FileError::Big) => {
                self.input.rewind();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A value, whose key has just come, piece by piece.
    ///
    /// # Errors
    /// See [`FileError`]; `GivenUp` if `each` does not want any more.
    pub fn parts(&mut self, tag: u8, each: &mut dyn FnMut(Part) -> bool) -> Result<(), FileError> {
        self.input.release();
        parts::read(&mut self.input, (tag, self.version), self.bounds.piece, each)
    }
}

/// The value in the bytes that [`Reader::whole`] gave, if it takes no more than `room` bytes of memory, about.
///
/// # Errors
/// Bytes that contradict the format.
pub fn decode(tag: u8, version: u16, bytes: &[u8], room: usize) -> Result<Value, RdbError> {
    let (value, rest) = value::read_within(tag, version, bytes, room)?;
    if rest.is_empty() { Ok(value) } else { Err(RdbError::Corrupt("bytes behind a value")) }
}

/// Why no value has this type.
fn unreadable(tag: u8, version: u16) -> RdbError {
    match value::read_within(tag, version, b"", 0) {
        Err(error @ RdbError::Unsupported(_)) => error,
        _ => RdbError::UnknownType(tag),
    }
}

/// When a key goes, by what the file says of its time: 0 for never, which a file says as -1. Servers whose clock stood wrong have
/// written times before 1970: these have passed. Seconds, of servers before 2.6, are taken without a sign: some of theirs lie
/// behind 2038.
const fn expiry(ms: i64) -> u64 {
    match ms {
        -1 => 0,
        ..=0 => 1,
        _ => ms as u64,
    }
}

/// The nine letters in a module's id.
fn module_name(id: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).map(|at| char::from(LETTERS[(id >> (58 - 6 * at) & 63) as usize])).collect()
}
