//! The identity of a pool.

use std::fmt;

/// The two kinds of pools.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PoolKind {
    /// One subnet, cut into blocks of addresses that share its mask.
    IpPool,
    /// One CIDR, cut into prefixes that each are a subnet of their own.
    CidrPool,
}

impl PoolKind {
    /// The Kubernetes kind: `IPPool` or `CIDRPool`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::IpPool => "IPPool",
            Self::CidrPool => "CIDRPool",
        }
    }

    /// The kind of this Kubernetes name, spelled exactly.
    pub fn from_kind(kind: &str) -> Option<Self> {
        [Self::IpPool, Self::CidrPool].into_iter().find(|k| k.kind() == kind)
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

/// Identifies one pool of the pools' namespace. An IPPool and a CIDRPool with the same name are two different pools.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolKey {
    /// The kind.
    pub kind: PoolKind,
    /// `metadata.name`.
    pub name: String,
}

impl PoolKey {
    /// A key.
    pub fn new(kind: PoolKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}
