//! The ID of a grant: one assignment of one block to one node.
//!
//! Two assignments of the same block to the same node are two grants. The ranges of both are equal, so only the ID tells
//! them apart after a restore, a late call or an edit by hand.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The ID of a grant.
///
/// The first 32 bits are the Unix second in which the operator made it, and the last 32 bits are random. So IDs are
/// ordered by age, as far as the clocks of the operator's replicas agree. As text it has 16 lower-case hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GrantId(u64);

/// The text is not a grant ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("must have 16 lower-case hexadecimal digits")]
pub struct InvalidGrantId;

impl GrantId {
    /// The ID made in the Unix second `second`.
    pub fn new(second: u32, random: u32) -> Self {
        Self((u64::from(second) << 32) | u64::from(random))
    }

    /// The ID with this number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The ID as a number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The Unix second in which it was made.
    pub const fn second(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for GrantId {
    type Err = InvalidGrantId;

    fn from_str(text: &str) -> Result<Self, InvalidGrantId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return Err(InvalidGrantId);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| InvalidGrantId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_id_are_one_to_one() {
        let id = GrantId::new(0x6543_21ff, 7);
        assert_eq!(id.to_string(), "654321ff00000007");
        assert_eq!("654321ff00000007".parse(), Ok(id));
        assert_eq!(id.second(), 0x6543_21ff);
        for wrong in
            ["", "654321FF00000007", "+54321ff00000007", "654321ff0000000", "654321ff000000070", "é54321ff0000007"]
        {
            assert_eq!(wrong.parse::<GrantId>(), Err(InvalidGrantId), "{wrong:?}");
        }
    }

    #[test]
    fn a_later_second_makes_a_greater_id() {
        assert!(GrantId::new(2, 0) > GrantId::new(1, u32::MAX));
    }
}
