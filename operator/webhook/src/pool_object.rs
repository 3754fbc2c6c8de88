//! The fields of a pool object that a decision needs.

use std::borrow::Cow;

use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_core::plan::Claim;
use ipam_core::spec::PoolSpec;
use ipam_core::{OverlapCandidate, Pool, PoolKey, PoolKind, Violation};
use ipam_crds::read;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use ipam_reconciler::objects::RawObject;
use ipam_reconciler::pool::{StatusRecord, read_status};

/// A pool object: the old or new one of a review, or one from a watch.
#[derive(Debug)]
pub struct ReviewedPool {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`, in seconds since 1970, if there is one.
    pub created: Option<i64>,
    /// Whether the pool is being deleted.
    pub is_going: bool,
    /// Value of the annotation that lets other pools have the same addresses.
    pub allow_overlap: Option<String>,
    /// The spec, as far as it can be parsed.
    pub spec: PoolSpec,
    /// The parts of the spec that cannot be parsed. The schema of the CRD rejects such a spec.
    pub unread: Vec<Violation>,
    /// The assigned blocks, from the status.
    pub claims: Vec<Claim>,
    /// The blocks that are being released, from the status.
    pub releasing: Vec<Claim>,
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

impl ReviewedPool {
    /// Reads an object of `kind` from its JSON.
    ///
    /// # Errors
    /// If `text` is not a JSON object with valid object metadata. An invalid spec or status is not an error.
    pub fn read(kind: PoolKind, text: &str) -> Result<Self, serde_json::Error> {
        let Object { metadata, spec, status } = serde_json::from_str(text)?;
        let allow_overlap = metadata.annotations.and_then(|annotations| annotations.allow_overlap);
        let draft = Self::of_texts(kind, spec, status);
        Ok(Self {
            name: metadata.name.into_owned(),
            created: metadata.creation_timestamp.map(jiff::Timestamp::as_second),
            is_going: metadata.deletion_timestamp.is_some(),
            allow_overlap: allow_overlap.map(Cow::into_owned),
            ..draft
        })
    }

    /// Reads an object of `kind` from a watch.
    pub fn of(kind: PoolKind, object: &RawObject) -> Self {
        let annotations = object.metadata.annotations.as_ref();
        let allow_overlap = annotations.and_then(|all| all.get(ALLOW_OVERLAP_ANNOTATION)).cloned();
        Self {
            name: object.name().to_owned(),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()),
            is_going: object.metadata.deletion_timestamp.is_some(),
            allow_overlap,
            ..Self::of_texts(kind, object.spec.as_deref(), object.status.as_deref())
        }
    }

    /// A pool without metadata, from its spec and status.
    fn of_texts(kind: PoolKind, spec: Option<&RawValue>, status: Option<&RawValue>) -> Self {
        let (spec, unread) = read::read_text(kind, spec.map(RawValue::get));
        let StatusRecord { allocations, releasing, .. } = read_status(kind, status);
        let releasing = releasing.into_iter().map(|release| release.claim).collect();
        let (name, created) = (String::new(), None);
        Self { name, created, is_going: false, allow_overlap: None, spec, unread, claims: allocations, releasing }
    }

    /// Parses and validates the spec, without regard to other objects.
    ///
    /// # Errors
    /// All errors of the spec.
    pub fn parse(&self) -> Result<Pool, Vec<Violation>> {
        read::parse(&self.name, &self.spec, self.unread.clone())
    }

    /// Whether the spec is valid by itself.
    pub fn is_valid(&self) -> bool {
        self.parse().is_ok()
    }

    /// Whether the two specs are equal.
    pub fn has_spec_of(&self, other: &Self) -> bool {
        (&self.spec, &self.unread) == (&other.spec, &other.unread)
    }

    /// The pool as a candidate for overlaps, if its network can be parsed. Other errors of the spec do not matter.
    pub fn contender(&self, kind: PoolKind) -> Option<OverlapCandidate> {
        Some(OverlapCandidate {
            key: PoolKey::new(kind, &self.name),
            network: self.spec.network()?,
            created: self.created.unwrap_or(i64::MAX),
            allows_overlap: OverlapCandidate::allows(self.allow_overlap.as_deref()),
        })
    }
}
