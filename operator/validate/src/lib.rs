//! `ipam-controller validate`: the rules of pools for manifests in Git, without a cluster.
//!
//! Decides nothing of its own: the schema is the CustomResourceDefinition's, the rules are `ipam-core`'s, which webhook and
//! reconcile ask too. What it adds is reading files as kubectl would, the line of every mistake, and a look at the given
//! pools together. Everything but [`command`] is a function of bytes: no file, no clock, no network; and whatever the
//! bytes are, time and memory stay in proportion to their number.
//!
//! bytes → `documents` (`yaml` or `json`) → trees → `objects` → pools → `schema`, `metadata`, `Pool::parse` → [`Report`], in
//! words by [`human`].

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
/// Most problems and most warnings that are told of one pool; the rest is counted.
pub const MAX_TOLD: usize = 1_000;

/// How to judge.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether a field that nobody knows is a mistake, as `kubectl --validate=strict` has it, or a warning.
    pub strict: bool,
    /// The namespace of pools that name none; a pool that names another is warned about. `None`: kube-system, and any.
    pub namespace: Option<String>,
    /// Nodes to plan for.
    pub nodes: Option<Nodes>,
    /// Whether to tell which node would get which block.
    pub explain: bool,
}

impl Options {
    fn default_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("kube-system")
    }
}

/// Judges all sources, each a name and its content, together.
pub fn validate<'a>(sources: impl IntoIterator<Item = (&'a str, &'a [u8])>, options: &Options) -> Report {
    let mut judge = Judge::new(options);
    for (file, bytes) in sources {
        judge.add(file, bytes);
    }
    judge.finish()
}

/// Takes one file after the other, so that only one is held at a time.
pub struct Judge<'a> {
    options: &'a Options,
    report: Report,
    together: Together,
}

impl<'a> Judge<'a> {
    /// A judge who has seen nothing yet.
    pub fn new(options: &'a Options) -> Self {
        Self { options, report: Report::default(), together: Together::default() }
    }

    /// Judges the content of one file, `-` for standard input. Answers how many documents are in it, broken ones included; an
    /// empty one is none.
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

    /// What was found.
    pub fn finish(self) -> Report {
        self.report
    }
}
