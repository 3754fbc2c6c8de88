//! `ipam-controller validate`: the rules of pools for manifests in Git, without a cluster.
//!
//! It has no rules of its own: the schema is that of the CustomResourceDefinition, and the rules are those of `ipam-core`,
//! which the webhook and reconcile also apply. It adds parsing of files as kubectl does it, the line of each error, and
//! checks across all pools. Everything except [`command`] is a function of bytes, without file, clock or network. Time and
//! memory are proportional to the number of bytes, whatever they are.
//!
//! bytes → `documents` (`yaml` or `json`) → trees → `objects` → pools → `schema`, `metadata`, `Pool::parse` → [`Report`],
//! written as text by [`human`].

mod against;
pub mod command;
mod documents;
mod files;
mod github;
pub mod human;
mod json;
mod metadata;
mod networks;
mod nodes;
mod objects;
pub mod plan;
mod pool;
pub mod report;
mod sarif;
mod scalar;
mod schema;
mod together;
mod tree;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipam_core::words::counted;
use ipam_core::{OverlapCandidate, PoolKey, Violation};
use ipam_crds::GROUP;

pub use against::Live;
pub use nodes::{MAX_NODES, Nodes};
pub use report::{Finding, NetworkReport, Origin, PoolReport, Problem, Report, RunError, Stray, Warning};
pub use tree::Place;

use networks::Network;
use objects::Object;
use together::Together;
use tree::{Limits, Node};

/// Largest file that is read, in bytes. The API server takes objects of 3 MB at most; this leaves room for many in a file.
pub const MAX_BYTES: usize = 16 << 20;
/// Most problems and most warnings that are reported for one pool. The others are counted.
pub const MAX_TOLD: usize = 1_000;

/// The codes of warnings that only this command has; the others are those of [`ipam_core::AdviceCode`].
pub const WARNING_CODES: [&str; 3] = [pool::UNKNOWN_FIELD, pool::OTHER_NAMESPACE, networks::UNKNOWN_POOL];

/// Options of a validation.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
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
    /// Whether to skip documents that are not recognizable and do not name our API group.
    pub only_pools: bool,
    /// Whether it is an error if there is no pool.
    pub require_pools: bool,
    /// Whether a warning makes the result invalid.
    pub warnings_are_errors: bool,
    /// The codes of warnings that are left out.
    pub ignored: BTreeSet<String>,
    /// The pools of the cluster for which the given manifests are.
    pub against: Option<Arc<Live>>,
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
    networks: Vec<Network>,
    /// The valid networks of pools, to compare with those of the cluster.
    candidates: Vec<Candidate>,
}

/// A pool whose addresses are compared with those of the cluster.
struct Candidate {
    /// Its place among the reported pools.
    index: usize,
    namespace: String,
    overlap: OverlapCandidate,
    /// The place of its network.
    at: Place,
}

impl<'a> Judge<'a> {
    /// A validation without any files yet.
    pub fn new(options: &'a Options) -> Self {
        let report = Report { warnings_are_errors: options.warnings_are_errors, ..Report::default() };
        Self { options, report, together: Together::default(), networks: Vec::new(), candidates: Vec::new() }
    }

    /// Validates the content of one file, `-` for standard input. Returns the number of documents in it, including invalid
    /// ones. Empty documents do not count.
    pub fn add(&mut self, file: &str, bytes: &[u8]) -> usize {
        let mut number = 0;
        // A document that cannot be recognized may be a pool if its file names our API group.
        let may_be_ours = !self.options.only_pools || names_our_group(bytes);
        documents::read(file, bytes, Limits::MANIFEST, |document| {
            number += 1;
            let origin = |item, place| Origin { file: file.to_owned(), document: number, item, place };
            match document {
                Err(_) if !may_be_ours => self.report.skipped += 1,
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
                    Object::Other | Object::IpamNode(_) => self.report.skipped += 1,
                    Object::Stray(node, _) if self.options.only_pools && !objects::may_be_a_pool(node) => {
                        self.report.skipped += 1;
                    }
                    Object::Stray(node, problem) => {
                        self.report.strays.push(Stray { origin: origin(item, node.at), problem });
                    }
                    Object::Network(node) => match networks::read(node, origin(item, node.at)) {
                        Some(network) => self.networks.push(network),
                        None => self.report.skipped += 1,
                    },
                    Object::Pool(kind, node) => self.pool(kind, node, origin(item, node.at)),
                }),
            }
        });
        number
    }

    fn pool(&mut self, kind: ipam_core::PoolKind, node: &Node, origin: Origin) {
        let mut judged = pool::judge(kind, node, origin, self.options);
        self.together.add(&mut judged);
        if let (Some(network), Some(_)) = (judged.network, &self.options.against) {
            let (key, allows_overlap) = (judged.key.clone(), judged.allows_overlap);
            self.candidates.push(Candidate {
                index: self.report.pools.len(),
                namespace: judged.namespace.clone(),
                overlap: OverlapCandidate { key, network, created: i64::MAX, allows_overlap },
                at: judged.network_at,
            });
        }
        self.report.pools.push(judged.into_report());
    }

    /// Adds an error that is not about the content of a file.
    pub fn add_error(&mut self, file: Option<String>, message: String) {
        self.report.errors.push(RunError { file, message });
    }

    /// Returns the report.
    pub fn finish(mut self) -> Report {
        self.compare_with_the_cluster();
        let live = self.options.against.as_deref();
        let known: BTreeSet<&PoolKey> = self.together.keys().chain(live.into_iter().flat_map(Live::keys)).collect();
        self.report.networks = self.networks.into_iter().map(|network| network.into_report(&known)).collect();
        for network in &mut self.report.networks {
            network.warnings.retain(|warning| !self.options.ignored.contains(&warning.code));
        }
        if self.options.require_pools && self.report.pools.is_empty() {
            let others = counted(self.report.skipped + self.report.networks.len(), "other object", "other objects");
            let message = format!("there is no IPPool or CIDRPool, but {others}");
            self.report.errors.push(RunError { file: None, message });
        }
        self.report
    }

    /// Reports overlaps with pools of the cluster. It needs all manifests, because a given pool replaces that of the cluster.
    fn compare_with_the_cluster(&mut self) {
        let Some(live) = &self.options.against else { return };
        let mut given: BTreeMap<&str, BTreeSet<PoolKey>> = BTreeMap::new();
        for Candidate { index, namespace, overlap, at } in &self.candidates {
            let given = given.entry(namespace).or_insert_with(|| self.together.names(namespace));
            let Some(Violation { field, reason, message }) = live.overlap(namespace, overlap, given) else { continue };
            let Some(pool) = self.report.pools.get_mut(*index) else { continue };
            let message = format!("{message} (in the cluster)");
            pool.add_error(Problem { field, reason, message, place: *at });
        }
    }
}

fn names_our_group(bytes: &[u8]) -> bool {
    bytes.windows(GROUP.len()).any(|window| window == GROUP.as_bytes())
}
