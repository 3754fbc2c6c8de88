//! A pool object of a review, as far as a judgement needs it.

use std::borrow::Cow;

use ipam_core::plan::Claim;
use ipam_core::spec::PoolSpec;
use ipam_core::{PoolKind, Violation};
use ipam_crds::{CIDRPoolSpec, IPPoolSpec};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::review::unreadable_spec;

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
            allows_overlap: allow_overlap.is_some_and(|value| value == "true"),
            spec: read_spec(kind, spec.map_or("{}", RawValue::get)).map_err(|error| unreadable_spec(&error)),
            claims: crate::pool::read_status(kind, status).allocations,
        })
    }
}

fn read_spec(kind: PoolKind, text: &str) -> Result<PoolSpec, serde_json::Error> {
    Ok(match kind {
        PoolKind::IpPool => serde_json::from_str::<IPPoolSpec>(text)?.to_spec(),
        PoolKind::CidrPool => serde_json::from_str::<CIDRPoolSpec>(text)?.to_spec(),
    })
}
