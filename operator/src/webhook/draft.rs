//! A pool object of a review, as far as a judgement needs it.

use std::borrow::Cow;

use ipam_core::addr::HostBits;
use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_core::plan::Claim;
use ipam_core::spec::PoolSpec;
use ipam_core::{Cidr, Contender, Pool, PoolKey, PoolKind, Violation};
use ipam_crds::{CIDRPoolSpec, IPPoolSpec};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::review::unreadable_spec;
use crate::objects::RawObject;

/// One side of a review.
#[derive(Debug)]
pub struct Draft {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`, in seconds since 1970; absent if it does not read.
    pub created: Option<i64>,
    /// Whether the pool is going away.
    pub is_going: bool,
    /// Whether its annotation lets other pools have the same addresses.
    pub allows_overlap: bool,
    /// The spec, or why it does not read.
    pub spec: Result<PoolSpec, Violation>,
    /// Who has which block, as the status says.
    pub claims: Vec<Claim>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    creation_timestamp: Option<jiff::Timestamp>,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

/// The annotations that count; others, of any size, are skipped.
#[derive(Deserialize)]
struct Annotations<'a> {
    #[serde(borrow, default, rename = "nv-ipam.nvidia.com/allow-overlap")]
    allow_overlap: Option<Cow<'a, str>>,
}

impl Draft {
    /// Reads an object of `kind` from its JSON.
    ///
    /// # Errors
    /// When it is no JSON object with the metadata of an object. A spec or status that does not read is no error.
    pub fn read(kind: PoolKind, text: &str) -> Result<Self, serde_json::Error> {
        let Object { metadata, spec, status } = serde_json::from_str(text)?;
        let allow_overlap = metadata.annotations.and_then(|annotations| annotations.allow_overlap);
        Ok(Self {
            name: metadata.name.into_owned(),
            created: metadata.creation_timestamp.map(jiff::Timestamp::as_second),
            is_going: metadata.deletion_timestamp.is_some(),
            allows_overlap: Contender::allows(allow_overlap.as_deref()),
            spec: read_spec(kind, spec),
            claims: crate::pool::read_status(kind, status).allocations,
        })
    }

    /// The same from an object that a watch told of.
    pub(super) fn of(kind: PoolKind, object: &RawObject) -> Self {
        let annotations = object.metadata.annotations.as_ref();
        let allow_overlap = annotations.and_then(|all| all.get(ALLOW_OVERLAP_ANNOTATION)).map(String::as_str);
        Self {
            name: object.name().to_owned(),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()),
            is_going: object.metadata.deletion_timestamp.is_some(),
            allows_overlap: Contender::allows(allow_overlap),
            spec: read_spec(kind, object.spec.as_deref()),
            claims: crate::pool::read_status(kind, object.status.as_deref()).allocations,
        }
    }

    /// The spec judged by itself.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(&self) -> Result<Pool, Vec<Violation>> {
        let spec = self.spec.as_ref().map_err(|violation| vec![violation.clone()])?;
        Pool::parse(&self.name, spec)
    }

    /// Whether the spec is right by itself.
    pub fn is_valid(&self) -> bool {
        self.parse().is_ok()
    }

    /// The pool's network, if that much of the spec reads.
    pub fn network(&self) -> Option<Cidr> {
        let (network, host_bits) = match self.spec.as_ref().ok()? {
            PoolSpec::Ip(spec) => Cidr::parse(&spec.subnet).map(|(network, _)| (network, HostBits::Zero)),
            PoolSpec::Cidr(spec) => Cidr::parse(&spec.cidr),
        }
        .ok()?;
        (host_bits == HostBits::Zero).then_some(network)
    }

    /// The pool as others could be in its way.
    pub fn contender(&self, kind: PoolKind) -> Option<Contender> {
        Some(Contender {
            key: PoolKey::new(kind, &self.name),
            network: self.network()?,
            created: self.created.unwrap_or(i64::MAX),
            allows_overlap: self.allows_overlap,
        })
    }
}

fn read_spec(kind: PoolKind, text: Option<&RawValue>) -> Result<PoolSpec, Violation> {
    let text = text.map_or("{}", RawValue::get);
    let read = match kind {
        PoolKind::IpPool => serde_json::from_str(text).map(|spec: IPPoolSpec| spec.to_spec()),
        PoolKind::CidrPool => serde_json::from_str(text).map(|spec: CIDRPoolSpec| spec.to_spec()),
    };
    read.map_err(|error| unreadable_spec(&error))
}
