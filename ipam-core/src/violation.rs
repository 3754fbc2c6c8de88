//! What is wrong with an input, in a form that serves people, metrics and machines alike.

use std::fmt;

/// One word for why something is refused. The same word is a metric label, part of a condition and a gRPC detail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// A required value is absent or empty.
    Required,
    /// A text is not of the form that the field takes.
    Malformed,
    /// A number is below or above what the field takes.
    OutOfRange,
    /// An address or prefix is not inside the pool's network, or of the other family.
    OutsidePool,
    /// Bits are set behind the prefix length.
    HostBits,
    /// An end lies before its start.
    Inverted,
    /// The same thing stands twice.
    Duplicate,
    /// A value is none of those that the field takes.
    Unsupported,
    /// A field makes no sense without, or together with, another.
    Conflict,
    /// Another pool of the namespace has some of these addresses.
    Overlap,
    /// An edit would move or drop blocks, or bar addresses, that pods may hold.
    InUse,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::Required,
        Self::Malformed,
        Self::OutOfRange,
        Self::OutsidePool,
        Self::HostBits,
        Self::Inverted,
        Self::Duplicate,
        Self::Unsupported,
        Self::Conflict,
        Self::Overlap,
        Self::InUse,
    ];

    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "Required",
            Self::Malformed => "Malformed",
            Self::OutOfRange => "OutOfRange",
            Self::OutsidePool => "OutsidePool",
            Self::HostBits => "HostBits",
            Self::Inverted => "Inverted",
            Self::Duplicate => "Duplicate",
            Self::Unsupported => "Unsupported",
            Self::Conflict => "Conflict",
            Self::Overlap => "Overlap",
            Self::InUse => "InUse",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One mistake in a spec or request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Violation {
    /// Full path of the field, for example `spec.exclusions[2].endIP`.
    pub field: String,
    /// The kind of mistake.
    pub reason: Reason,
    /// Names the value and says what would be right. Starts in lower case; the field is not repeated.
    pub message: String,
}

impl Violation {
    /// A violation.
    pub fn new(field: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self { field: field.into(), reason, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}
