//! Addresses, CIDRs and address ranges of both families, as numbers.
//!
//! Only this module parses the text of addresses. It rejects an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`): some
//! programs parse it as IPv4, some as IPv6. If two components parse an address differently, it can be assigned twice.

mod suggestion;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// An IP address family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// IPv4, 32 bits.
    V4,
    /// IPv6, 128 bits.
    V6,
}

impl Family {
    /// The family of `addr`.
    pub const fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Bits in an address: 32 or 128.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The highest address as a number.
    pub const fn max(self) -> u128 {
        match self {
            Self::V4 => u32::MAX as u128,
            Self::V6 => u128::MAX,
        }
    }

    /// The address with the number `value`, truncated to the family's width.
    pub fn addr(self, value: u128) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(value & Self::V4.max()).unwrap_or(u32::MAX))),
            Self::V6 => IpAddr::V6(Ipv6Addr::from_bits(value)),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// `addr` as a number, most significant bit first.
pub const fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_bits() as u128,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Why a text is not an address or CIDR. The message completes the sentence "`VALUE` …".
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    /// Empty text.
    #[error("must not be empty")]
    Empty,
    /// Leading or trailing whitespace.
    #[error("has blanks around it; write {0:?}")]
    Blanks(String),
    /// A CIDR where an address is wanted.
    #[error("is a network; write the address alone: {0:?}")]
    NotAlone(String),
    /// An address where a CIDR is wanted.
    #[error("has no prefix length; write for example \"{0}/{1}\"")]
    NoPrefixLength(IpAddr, u8),
    /// A prefix length that is not a number or too large for the family.
    #[error("has a bad prefix length; {family} takes 0 to {max}", max = family.bits())]
    PrefixLength {
        /// The family of the address part.
        family: Family,
    },
    /// An IPv4-mapped IPv6 address.
    #[error("is an IPv4-mapped IPv6 address; write the IPv4 address {0}")]
    Mapped(Ipv4Addr),
    /// Two addresses where one is wanted.
    #[error("is a range; write one address, \"{0}\" or \"{1}\"")]
    Range(IpAddr, IpAddr),
    /// A common error with a known correction.
    #[error("{what}; write {write:?}")]
    Meant {
        /// The error.
        what: &'static str,
        /// The suggested value.
        write: String,
    },
    /// Any other text that is not an address.
    #[error("is not an IP address such as \"192.168.0.1\" or \"fd00::1\"")]
    NotAnAddress,
    /// Any other text that is not a CIDR.
    #[error("is not a network such as \"192.168.0.0/16\" or \"fd00::/64\"")]
    NotANetwork,
}

/// Parses one address. [`ParseError`] lists what it rejects.
pub fn parse_addr(text: &str) -> Result<IpAddr, ParseError> {
    if text.is_empty() {
        return Err(ParseError::Empty);
    }
    let trimmed = text.trim();
    if trimmed != text {
        return Err(parse_addr(trimmed).map_or_else(|inner| inner, |_| ParseError::Blanks(trimmed.to_owned())));
    }
    if let Some((alone, _)) = text.split_once('/') {
        return Err(match parse_addr(alone) {
            Ok(_) => ParseError::NotAlone(alone.to_owned()),
            Err(mapped @ ParseError::Mapped(_)) => mapped,
            Err(_) => suggestion::of_address(text).unwrap_or(ParseError::NotAnAddress),
        });
    }
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) => v6.to_ipv4_mapped().map_or(Ok(IpAddr::V6(v6)), |v4| Err(ParseError::Mapped(v4))),
        Ok(v4) => Ok(v4),
        Err(_) => Err(suggestion::of_address(text).unwrap_or(ParseError::NotAnAddress)),
    }
}

/// A network: an address whose host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cidr {
    family: Family,
    network: u128,
    prefix_len: u8,
}

impl Cidr {
    /// The network of `prefix_len` bits that contains `addr`; `None` if the prefix length is too large for the family.
    pub fn containing(addr: IpAddr, prefix_len: u8) -> Option<Self> {
        let family = Family::of(addr);
        (prefix_len <= family.bits()).then(|| Self {
            family,
            network: number(addr) & !host_mask(family, prefix_len),
            prefix_len,
        })
    }

    /// The smallest network that contains `range`. For the range of a network, it is that network.
    pub fn enclosing(range: &AddrRange) -> Self {
        let family = range.family;
        let differing = u128::BITS - (range.first ^ range.last).leading_zeros();
        let prefix_len = u32::from(family.bits()).saturating_sub(differing);
        let prefix_len = u8::try_from(prefix_len).unwrap_or(0);
        Self { family, network: range.first & !host_mask(family, prefix_len), prefix_len }
    }

    /// The network of all addresses of `family`: `0.0.0.0/0` or `::/0`.
    pub const fn default_route(family: Family) -> Self {
        Self { family, network: 0, prefix_len: 0 }
    }

    /// Parses `address/length`. Host bits are allowed and dropped; [`HostBits`] is whether any were set.
    pub fn parse(text: &str) -> Result<(Self, HostBits), ParseError> {
        if text.is_empty() {
            return Err(ParseError::Empty);
        }
        let trimmed = text.trim();
        if trimmed != text {
            return Err(Self::parse(trimmed).map_or_else(|inner| inner, |_| ParseError::Blanks(trimmed.to_owned())));
        }
        let Some((addr, len)) = text.split_once('/') else {
            return Err(match parse_addr(text) {
                Ok(addr) => ParseError::NoPrefixLength(addr, Family::of(addr).bits()),
                Err(mapped @ ParseError::Mapped(_)) => mapped,
                Err(_) => suggestion::of_network(text).unwrap_or(ParseError::NotANetwork),
            });
        };
        let addr = parse_addr(addr).map_err(|error| match error {
            ParseError::Mapped(_) => error,
            _ => suggestion::of_network(text).unwrap_or(ParseError::NotANetwork),
        })?;
        let family = Family::of(addr);
        let bad_length = ParseError::PrefixLength { family };
        // Rust parses "+8" and "08" as numbers, but other programs do not accept them as a prefix length.
        if len.is_empty() || !len.bytes().all(|b| b.is_ascii_digit()) || (len.len() > 1 && len.starts_with('0')) {
            return Err(suggestion::of_network(text).unwrap_or(bad_length));
        }
        let cidr = len.parse().ok().and_then(|len| Self::containing(addr, len)).ok_or(bad_length)?;
        let host_bits = if cidr.network == number(addr) { HostBits::Zero } else { HostBits::Set };
        Ok((cidr, host_bits))
    }

    /// The family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Bits of the network part.
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// The network address (all host bits zero).
    pub fn network(&self) -> IpAddr {
        self.family.addr(self.network)
    }

    /// Network address to last address, both included.
    pub fn range(&self) -> AddrRange {
        AddrRange {
            family: self.family,
            first: self.network,
            last: self.network | host_mask(self.family, self.prefix_len),
        }
    }

    /// The host addresses of the network (behaviour.md §4). In a /31, /32, /127 and /128 these are all addresses.
    /// Otherwise the network address is not one, nor is the broadcast address in IPv4. IPv6 has no broadcast address.
    pub fn hosts(&self) -> AddrRange {
        let all = self.range();
        if self.is_point_to_point() {
            return all;
        }
        let last = if self.family == Family::V4 { all.last - 1 } else { all.last };
        AddrRange { first: all.first + 1, last, ..all }
    }

    /// Whether this is a /31, /32, /127 or /128, which has neither network nor broadcast address.
    pub const fn is_point_to_point(&self) -> bool {
        self.family.bits() - self.prefix_len <= 1
    }

    /// Whether `addr` is in this network.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.range().contains(addr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network(), self.prefix_len)
    }
}

/// Whether the text of a CIDR had host bits set, as in `192.168.0.5/16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostBits {
    /// The address was the network address.
    Zero,
    /// The address was some other address of the network.
    Set,
}

const fn host_mask(family: Family, prefix_len: u8) -> u128 {
    match family.bits() - prefix_len {
        0 => 0,
        host_bits => u128::MAX >> (128 - host_bits),
    }
}

/// Addresses of one family from `first` to `last`, both included; never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AddrRange {
    family: Family,
    first: u128,
    last: u128,
}

impl AddrRange {
    /// The range from `first` to `last`; `None` if their families differ or `first` is greater than `last`.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        if Family::of(first) != Family::of(last) {
            return None;
        }
        Self::from_numbers(Family::of(first), number(first), number(last))
    }

    /// As [`AddrRange::new`], from numbers; `None` also if `last` is too large for the family.
    pub fn from_numbers(family: Family, first: u128, last: u128) -> Option<Self> {
        (first <= last && last <= family.max()).then_some(Self { family, first, last })
    }

    /// The family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        self.family.addr(self.first)
    }

    /// The last address, included.
    pub fn last(&self) -> IpAddr {
        self.family.addr(self.last)
    }

    /// First and last address as numbers, both included.
    pub const fn numbers(&self) -> (u128, u128) {
        (self.first, self.last)
    }

    /// Number of addresses, saturating: all of IPv6 has one more than `u128::MAX`.
    pub const fn size(&self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Whether `addr` is of this family and in the range.
    pub fn contains(&self, addr: IpAddr) -> bool {
        Family::of(addr) == self.family && (self.first..=self.last).contains(&number(addr))
    }

    /// Whether all of `other` is in this range.
    pub fn contains_range(&self, other: &Self) -> bool {
        self.family == other.family && self.first <= other.first && other.last <= self.last
    }

    /// Whether the two share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.intersection(other).is_some()
    }

    /// The addresses that are in both ranges; `None` if there are none.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.family != other.family {
            return None;
        }
        Self::from_numbers(self.family, self.first.max(other.first), self.last.min(other.last))
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first(), self.last())
    }
}
