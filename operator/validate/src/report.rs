//! The result of a validation, as data. [`super::human`] writes it as text, and `-o json` prints it as JSON.

use ipam_core::{PoolKind, Reason};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::tree::Place;

/// The version of the program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The result for all sources.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Why something could not be validated: a file that cannot be read, or one without documents.
    pub errors: Vec<RunError>,
    /// Pools, in the order of files and documents.
    pub pools: Vec<PoolReport>,
    /// NetworkAttachmentDefinitions that use nv-ipam, in the order of files and documents.
    pub networks: Vec<NetworkReport>,
    /// Documents that cannot be parsed, and objects that may be pools.
    pub strays: Vec<Stray>,
    /// Number of objects of other kinds, which were not validated.
    pub skipped: usize,
    /// Whether a warning makes the result invalid.
    pub warnings_are_errors: bool,
}

impl Report {
    /// Whether there are no errors. Warnings count only if they are errors.
    pub fn is_valid(&self) -> bool {
        let is_valid = |errors: &[Problem], warnings: &[Warning]| {
            errors.is_empty() && (warnings.is_empty() || !self.warnings_are_errors)
        };
        self.errors.is_empty()
            && self.strays.is_empty()
            && self.pools.iter().all(|pool| is_valid(&pool.problems, &pool.warnings))
            && self.networks.iter().all(|network| is_valid(&network.problems, &network.warnings))
    }

    /// All errors and warnings about objects: documents first that are not recognized, then pools, then networks.
    pub fn findings(&self) -> Vec<Finding<'_>> {
        let strays = self.strays.iter().map(|stray| Finding::error(&stray.origin, String::new(), &stray.problem));
        let mut all: Vec<Finding<'_>> = strays.collect();
        for pool in &self.pools {
            all.extend(pool.problems.iter().map(|error| Finding::error(&pool.origin, pool.title(), error)));
            all.extend(pool.warnings.iter().map(|warning| Finding::warning(&pool.origin, pool.title(), warning)));
        }
        for network in &self.networks {
            all.extend(network.problems.iter().map(|error| Finding::error(&network.origin, network.title(), error)));
            all.extend(network.warnings.iter().map(|it| Finding::warning(&network.origin, network.title(), it)));
        }
        all
    }
}

/// An error or a warning about an object, in the form that all outputs share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding<'a> {
    /// Where the object was read.
    pub origin: &'a Origin,
    /// Kind, namespace and name of the object; empty if it is not recognized.
    pub subject: String,
    /// Full path of the field; empty for the object as a whole.
    pub field: &'a str,
    /// The reason of an error, or the code of a warning.
    pub rule: &'a str,
    /// The value, and what is expected instead.
    pub message: &'a str,
    /// The place of the field.
    pub place: Place,
    /// Whether it is an error.
    pub is_error: bool,
}

impl<'a> Finding<'a> {
    fn error(origin: &'a Origin, subject: String, problem: &'a Problem) -> Self {
        let Problem { field, reason, message, place } = problem;
        Self { origin, subject, field, rule: reason.as_str(), message, place: *place, is_error: true }
    }

    fn warning(origin: &'a Origin, subject: String, warning: &'a Warning) -> Self {
        let Warning { field, code, message, place } = warning;
        Self { origin, subject, field, rule: code, message, place: *place, is_error: false }
    }

    /// The field, if there is one, and the message.
    pub fn field_and_message(&self) -> String {
        if self.field.is_empty() { self.message.to_owned() } else { format!("{}: {}", self.field, self.message) }
    }

    /// The object, the field and the message.
    pub fn text(&self) -> String {
        if self.subject.is_empty() {
            return self.field_and_message();
        }
        format!("{}: {}", self.subject, self.field_and_message())
    }
}

/// Why something could not be validated.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RunError {
    /// The file, as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 7)?;
        report.serialize_field("version", VERSION)?;
        report.serialize_field("valid", &self.is_valid())?;
        report.serialize_field("errors", &self.errors)?;
        report.serialize_field("pools", &self.pools)?;
        report.serialize_field("networks", &self.networks)?;
        report.serialize_field("unrecognized", &self.strays)?;
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
    #[serde(rename = "errors")]
    pub problems: Vec<Problem>,
    /// Number of errors beyond those.
    #[serde(rename = "moreErrors", skip_serializing_if = "is_zero")]
    pub untold: usize,
    /// Valid settings with unexpected effects.
    pub warnings: Vec<Warning>,
    /// How the pool would serve the given nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<super::plan::Fit>,
}

impl PoolReport {
    /// Whether the pool has no errors.
    pub fn is_valid(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds an error that was found after the others.
    pub(super) fn add_error(&mut self, error: Problem) {
        if self.problems.len() >= super::MAX_TOLD {
            self.untold += 1;
            return;
        }
        let at = self.problems.partition_point(|earlier| earlier.place <= error.place);
        self.problems.insert(at, error);
    }

    /// Kind, namespace and name.
    pub(super) fn title(&self) -> String {
        if self.name.is_empty() {
            return format!("{} without a name", self.kind);
        }
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A NetworkAttachmentDefinition that uses nv-ipam, and the findings about it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NetworkReport {
    /// Where it was read.
    #[serde(flatten)]
    pub origin: Origin,
    /// Its namespace; `default` if the manifest has none.
    pub namespace: String,
    /// Its name; empty if it is missing.
    pub name: String,
    /// Errors in the part of its configuration that nv-ipam reads.
    #[serde(rename = "errors")]
    pub problems: Vec<Problem>,
    /// Pools that it names and that do not exist.
    pub warnings: Vec<Warning>,
}

impl NetworkReport {
    /// Kind, namespace and name.
    pub(super) fn title(&self) -> String {
        format!("NetworkAttachmentDefinition {}/{}", self.namespace, self.name)
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
    #[serde(rename = "error")]
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
