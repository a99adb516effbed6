//! Why bytes from disk are refused.

/// A record that cannot be decoded. None of these can come from a client: they mean damage, or a newer binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end inside a part.
    #[error("record is cut short")]
    Truncated,
    /// Bytes are left over behind the last part.
    #[error("{0} bytes too many behind the record")]
    Trailing(usize),
    /// The first byte of a key names no record group.
    #[error("unknown record group {0:#04x}")]
    UnknownGroup(u8),
    /// The byte in front of an element names no element group.
    #[error("unknown element group {0:#04x}")]
    UnknownElementGroup(u8),
    /// The byte names no type.
    #[error("unknown type {0:#04x}")]
    UnknownKind(u8),
    /// The byte in an expiry key is neither key nor field.
    #[error("unknown expiry kind {0:#04x}")]
    UnknownExpiryKind(u8),
    /// A metadata record has parts that this binary does not know, or that its type has not.
    #[error("metadata flags {flags:#04x} do not suit type {kind}")]
    Flags {
        /// Tag of the type.
        kind: u8,
        /// The flags found.
        flags: u8,
    },
    /// The first byte of an operation in a log record is unknown.
    #[error("unknown log operation {0:#04x}")]
    UnknownOp(u8),
    /// The stored form of a key or element has a length that none has.
    #[error("stored form of {0} bytes")]
    StoredLength(usize),
    /// A variable-length integer passes 64 bits, or the 16 or 32 of its field.
    #[error("integer out of range")]
    IntegerRange,
    /// A score is not a number.
    #[error("score is not a number")]
    NotANumber,
    /// The namespace map contradicts itself; how.
    #[error("namespace map: {0}")]
    Namespaces(&'static str),
    /// A collection's index of counters contradicts itself or the elements; how.
    #[error("rank index: {0}")]
    Rank(&'static str),
}

impl From<CodecError> for crate::Error {
    fn from(error: CodecError) -> Self {
        crate::Error::Storage(error.to_string().into())
    }
}
