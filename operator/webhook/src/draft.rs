//! A pool object of a review, as far as a judgement needs it.

use std::borrow::Cow;

use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_core::plan::Claim;
use ipam_core::spec::PoolSpec;
use ipam_core::{Contender, Pool, PoolKey, PoolKind, Violation};
use ipam_crds::read;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use ipam_reconciler::objects::RawObject;
use ipam_reconciler::pool::{StatusRecord, read_status};

/// One side of a review.
#[derive(Debug)]
pub struct Draft {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`, in seconds since 1970; absent if it does not read.
    pub created: Option<i64>,
    /// Whether the pool is going away.
    pub is_going: bool,
    /// Value of the annotation that lets other pools have the same addresses.
    pub allow_overlap: Option<String>,
    /// The spec, as far as it reads.
    pub spec: PoolSpec,
    /// What of the spec does not read. The schema of the CRD lets no such spec through.
    pub unread: Vec<Violation>,
    /// Who has which block, as the status says.
    pub claims: Vec<Claim>,
    /// Whose block is being taken back, as the status says.
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

impl Draft {
    /// Reads an object of `kind` from its JSON.
    ///
    /// # Errors
    /// When it is no JSON object with the metadata of an object. A spec or status that does not read is no error.
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

    /// The same from an object that a watch told of.
    pub(super) fn of(kind: PoolKind, object: &RawObject) -> Self {
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

    /// Without metadata.
    fn of_texts(kind: PoolKind, spec: Option<&RawValue>, status: Option<&RawValue>) -> Self {
        let (spec, unread) = read::read_text(kind, spec.map(RawValue::get));
        let StatusRecord { allocations, releasing, .. } = read_status(kind, status);
        let releasing = releasing.into_iter().map(|release| release.claim).collect();
        let (name, created) = (String::new(), None);
        Self { name, created, is_going: false, allow_overlap: None, spec, unread, claims: allocations, releasing }
    }

    /// The spec judged by itself.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(&self) -> Result<Pool, Vec<Violation>> {
        read::parse(&self.name, &self.spec, self.unread.clone())
    }

    /// Whether the spec is right by itself.
    pub fn is_valid(&self) -> bool {
        self.parse().is_ok()
    }

    /// Whether the two specs say the same.
    pub fn has_spec_of(&self, other: &Self) -> bool {
        (&self.spec, &self.unread) == (&other.spec, &other.unread)
    }

    /// The pool as others could be in its way, if its network reads, whatever else is wrong with the spec.
    pub fn contender(&self, kind: PoolKind) -> Option<Contender> {
        Some(Contender {
            key: PoolKey::new(kind, &self.name),
            network: self.spec.network()?,
            created: self.created.unwrap_or(i64::MAX),
            allows_overlap: Contender::allows(self.allow_overlap.as_deref()),
        })
    }
}
