//! What validation says, as data. [`super::human`] puts it into words; as JSON it is what `-o json` prints.

use ipam_core::{PoolKind, Reason};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::tree::Place;

/// What became of all that was given.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Pools, in the order of files and documents.
    pub pools: Vec<PoolReport>,
    /// Documents that could not be told to be pools or something else.
    pub strays: Vec<Stray>,
    /// Objects of other kinds, which were not judged.
    pub skipped: usize,
}

impl Report {
    /// Whether nothing is wrong. Warnings do not count.
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

/// A pool and what is to be said about it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PoolReport {
    /// Where it was read.
    #[serde(flatten)]
    pub origin: Origin,
    /// IPPool or CIDRPool.
    #[serde(serialize_with = "kind")]
    pub kind: PoolKind,
    /// Its namespace; the pools' namespace where the manifest names none.
    pub namespace: String,
    /// Its name; empty if it has none that could be read.
    pub name: String,
    /// What is wrong, by place. At most [`super::MAX_TOLD`].
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    #[serde(skip_serializing_if = "is_zero")]
    pub untold: usize,
    /// What works but surprises.
    pub warnings: Vec<Warning>,
    /// How the nodes that were asked about would fare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<super::plan::Fit>,
}

impl PoolReport {
    /// Whether nothing is wrong with it.
    pub fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }
}

/// A mistake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// Full path of the field, as the API server writes it; empty for the document as a whole.
    pub field: String,
    /// The kind of mistake.
    #[serde(serialize_with = "reason")]
    pub reason: Reason,
    /// Names the value and says what would be right.
    pub message: String,
    /// Where the field stands, or the object that lacks it.
    #[serde(flatten)]
    pub place: Place,
}

/// Something that works, but not as one would think.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Warning {
    /// Full path of the field.
    pub field: String,
    /// One word for what surprises.
    pub code: String,
    /// What surprises, and what to write instead.
    pub message: String,
    /// Where the field stands.
    #[serde(flatten)]
    pub place: Place,
}

/// A document that is no pool for sure, and nothing else for sure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stray {
    /// Where it was read.
    #[serde(flatten)]
    pub origin: Origin,
    /// Why.
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
