//! Errors in an input, in a form for users, metrics and programs.

use std::fmt;

/// The reason of an error, as one word. The same word is a metric label, part of a condition and a gRPC detail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// A required value is absent or empty.
    Required,
    /// A text does not have the format of the field.
    Malformed,
    /// A number is below the minimum or above the maximum of the field.
    OutOfRange,
    /// An address or prefix is not inside the pool's network, or of the other family.
    OutsidePool,
    /// Host bits are set.
    HostBits,
    /// The end of a range is lower than its start.
    Inverted,
    /// A value occurs twice.
    Duplicate,
    /// A value is not one of those that the field accepts.
    Unsupported,
    /// A field requires another field or value, or conflicts with it.
    Conflict,
    /// Another pool of the namespace has some of these addresses.
    Overlap,
    /// An edit would move or remove blocks, or make addresses unavailable, that pods may use.
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

    /// The reason as one word.
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

/// One error in a spec or request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Violation {
    /// Full path of the field, for example `spec.exclusions[2].endIP`.
    pub field: String,
    /// The reason of the error.
    pub reason: Reason,
    /// Names the value and what is required. Starts with a lower-case letter and does not repeat the field.
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
