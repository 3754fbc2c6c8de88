//! The result of a validation, as data. [`super::human`] writes it as text, and `-o json` prints it as JSON.

use ipam_core::{PoolKind, Reason};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::tree::Place;

/// The result for all sources.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Pools, in the order of files and documents.
    pub pools: Vec<PoolReport>,
    /// Documents that cannot be parsed, and objects that may be pools.
    pub strays: Vec<Stray>,
    /// Number of objects of other kinds, which were not validated.
    pub skipped: usize,
}

impl Report {
    /// Whether there are no errors. Warnings do not count.
    pub fn is_fine(&self) -> bool {
        self.strays.is_empty() && self.pools.iter().all(PoolReport::is_fine)
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 4)?;
        report.serialize_field("fine", &self.is_fine())?;
        report.serialize_field("pools", &self.pools)?;
        report.serialize_field("strays", &self.strays)?;
        report.serialize_field("skipped", &self.skipped)?;
        report.end()
    }
}

/// Where an object was read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Origin {
    /// The file's name as given; `-` is standard input.
    pub file: String,
    /// Number of the document in the file, from 1. Empty documents do not count.
    pub document: usize,
    /// Position in the document's list, from 0, if it is a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<usize>,
    /// Where the object begins.
    #[serde(flatten)]
    pub place: Place,
}

/// A pool and the findings about it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PoolReport {
    /// Where it was read.
    #[serde(flatten)]
    pub origin: Origin,
    /// IPPool or CIDRPool.
    #[serde(serialize_with = "kind")]
    pub kind: PoolKind,
    /// Its namespace; the pools' namespace if the manifest has none.
    pub namespace: String,
    /// Its name; empty if it is missing or cannot be read.
    pub name: String,
    /// Errors, sorted by place. At most [`super::MAX_TOLD`].
    pub problems: Vec<Problem>,
    /// Number of errors beyond those.
    #[serde(skip_serializing_if = "is_zero")]
    pub untold: usize,
    /// Valid settings with unexpected effects.
    pub warnings: Vec<Warning>,
    /// How the pool would serve the given nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<super::plan::Fit>,
}

impl PoolReport {
    /// Whether the pool has no errors.
    pub fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }
}

/// An error in a manifest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// Full path of the field, as the API server writes it; empty for the document as a whole.
    pub field: String,
    /// The kind of error.
    #[serde(serialize_with = "reason")]
    pub reason: Reason,
    /// The value, and what is expected instead.
    pub message: String,
    /// The place of the field, or of the object that lacks it.
    #[serde(flatten)]
    pub place: Place,
}

/// A valid setting with an unexpected effect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Warning {
    /// Full path of the field.
    pub field: String,
    /// One word for the kind of warning.
    pub code: String,
    /// The effect, and what to write instead.
    pub message: String,
    /// The place of the field.
    #[serde(flatten)]
    pub place: Place,
}

/// A document that cannot be parsed, or an object that may be a pool.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stray {
    /// Where it was read.
    #[serde(flatten)]
    pub origin: Origin,
    /// What is wrong with it.
    pub problem: Problem,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn kind<S: Serializer>(kind: &PoolKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.kind())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn reason<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.as_str())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}
