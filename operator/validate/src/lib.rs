//! `ipam-controller validate`: the rules of pools for manifests in Git, without a cluster.
//!
//! It has no rules of its own: the schema is that of the CustomResourceDefinition, and the rules are those of `ipam-core`,
//! which the webhook and reconcile also apply. It adds parsing of files as kubectl does it, the line of each error, and
//! checks across all pools. Everything except [`command`] is a function of bytes, without file, clock or network. Time and
//! memory are proportional to the number of bytes, whatever they are.
//!
//! bytes → `documents` (`yaml` or `json`) → trees → `objects` → pools → `schema`, `metadata`, `Pool::parse` → [`Report`],
//! written as text by [`human`].

pub mod command;
mod documents;
pub mod human;
mod json;
mod metadata;
mod nodes;
mod objects;
pub mod plan;
mod pool;
pub mod report;
mod scalar;
mod schema;
mod together;
mod tree;
mod yaml;

pub use nodes::{MAX_NODES, Nodes};
pub use report::{Origin, PoolReport, Problem, Report, Stray, Warning};
pub use tree::Place;

use objects::Object;
use together::Together;
use tree::Node;

/// Largest file that is read, in bytes. The API server takes objects of 3 MB at most; this leaves room for many in a file.
pub const MAX_BYTES: usize = 16 << 20;
/// Most problems and most warnings that are reported for one pool. The others are counted.
pub const MAX_TOLD: usize = 1_000;

/// Options of a validation.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether an unknown field is an error, as with `kubectl --validate=strict`, or a warning.
    pub strict: bool,
    /// The namespace of pools without one. A pool in another namespace gets a warning. `None` stands for kube-system, without
    /// warnings.
    pub namespace: Option<String>,
    /// Nodes to plan for.
    pub nodes: Option<Nodes>,
    /// Whether to report which node would get which block.
    pub explain: bool,
}

impl Options {
    fn default_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("kube-system")
    }
}

/// Validates all sources together. Each is a name and its content.
pub fn validate<'a>(sources: impl IntoIterator<Item = (&'a str, &'a [u8])>, options: &Options) -> Report {
    let mut judge = Judge::new(options);
    for (file, bytes) in sources {
        judge.add(file, bytes);
    }
    judge.finish()
}

/// Validates one file after another, so that only one is in memory at a time.
pub struct Judge<'a> {
    options: &'a Options,
    report: Report,
    together: Together,
}

impl<'a> Judge<'a> {
    /// A validation without any files yet.
    pub fn new(options: &'a Options) -> Self {
        Self { options, report: Report::default(), together: Together::default() }
    }

    /// Validates the content of one file, `-` for standard input. Returns the number of documents in it, including invalid
    /// ones. Empty documents do not count.
    pub fn add(&mut self, file: &str, bytes: &[u8]) -> usize {
        let mut number = 0;
        documents::read(file, bytes, |document| {
            number += 1;
            let origin = |item, place| Origin { file: file.to_owned(), document: number, item, place };
            match document {
                Err(unread) => {
                    let problem = Problem {
                        field: String::new(),
                        reason: ipam_core::Reason::Malformed,
                        message: unread.message,
                        place: unread.at,
                    };
                    self.report.strays.push(Stray { origin: origin(None, unread.at), problem });
                }
                Ok(node) => objects::objects(&node, &mut |item, object| match object {
                    Object::Other => self.report.skipped += 1,
                    Object::Stray(node, problem) => {
                        self.report.strays.push(Stray { origin: origin(item, node.at), problem });
                    }
                    Object::Pool(kind, node) => self.pool(kind, node, origin(item, node.at)),
                }),
            }
        });
        number
    }

    fn pool(&mut self, kind: ipam_core::PoolKind, node: &Node, origin: Origin) {
        let mut judged = pool::judge(kind, node, origin, self.options);
        self.together.add(&mut judged);
        self.report.pools.push(judged.into_report());
    }

    /// Returns the report.
    pub fn finish(self) -> Report {
        self.report
    }
}
