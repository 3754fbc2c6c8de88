//! Validates one pool by metadata, schema and `ipam-core`, and reports each error once.

use std::collections::HashSet;

use ipam_core::addr::Cidr;
use ipam_core::spec::PoolSpec;
use ipam_core::{Advice, OverlapCandidate, Pool, PoolKey, PoolKind, Reason, Violation, advise, advise_annotation};
use ipam_crds::{CIDRPoolSpec, IPPoolSpec};
use serde_json::Value as Json;

use super::metadata::{self, Metadata};
use super::report::{Origin, PoolReport, Problem, Warning};
use super::schema::{self, Finding, Grade};
use super::tree::{Node, Place, Value, doubled, shortened};
use super::{MAX_TOLD, Options, plan};

/// Longest message, in characters. A value may be a megabyte long.
const MAX_MESSAGE: usize = 1_000;

/// The code of the warning about a field that the API server would drop.
pub(super) const UNKNOWN_FIELD: &str = "UnknownField";
/// The code of the warning about a pool in a namespace that is not served.
pub(super) const OTHER_NAMESPACE: &str = "OtherNamespace";

/// A pool that was validated by itself.
pub(super) struct Judged {
    pub(super) origin: Origin,
    pub(super) key: PoolKey,
    pub(super) namespace: String,
    pub(super) allows_overlap: bool,
    /// `spec.subnet` or `spec.cidr`, if it can be parsed, even if the spec has other errors.
    pub(super) network: Option<Cidr>,
    /// The places of the name and of the network.
    pub(super) name_at: Place,
    pub(super) network_at: Place,
    pub(super) problems: Vec<Problem>,
    warnings: Vec<Warning>,
    nodes: Option<plan::Fit>,
}

/// The field that holds the network of a pool of this kind.
const fn network_field(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::IpPool => "spec.subnet",
        PoolKind::CidrPool => "spec.cidr",
    }
}

/// Validates the pool in `object`.
pub(super) fn judge(kind: PoolKind, object: &Node, origin: Origin, options: &Options) -> Judged {
    let (metadata, mut found) = metadata::check(object);
    doubled(object, "", &mut |field, first, again| found.push(twice(field, first, again)));
    let (value, shown) = spec(kind, object);
    found.extend(shown);
    let mut warnings = set_aside_unknown(&mut found, options.strict);
    warnings.extend(elsewhere(&metadata, object, options));
    let (pool, violations) = core(kind, &metadata.name, value);
    let network = pool.as_ref().and_then(|(spec, _)| network(spec));
    let mut problems = united(&found, violations, object);
    let mut nodes = None;
    let key = PoolKey::new(kind, metadata.name);
    let namespace = metadata.namespace.unwrap_or_else(|| options.default_namespace().to_owned());
    let allow_overlap = metadata.allow_overlap;
    // A spec with an error may still parse, with stand-ins for its invalid values. Such a spec gets no advice.
    if let (Some((spec, Some(pool))), true) = (&pool, problems.is_empty()) {
        let mut advice = advice(spec, pool, options);
        advice.extend(advise_annotation(allow_overlap.as_deref()));
        let live = options.against.as_deref();
        if let Some((displaced, left_out)) = live.and_then(|live| live.judge_edit(&namespace, &key, spec, pool)) {
            problems.extend(displaced.iter().map(|violation| located(violation, object)));
            advice.extend(left_out);
        }
        warnings.extend(advice.into_iter().map(|advice| placed(advice, object)));
        let live = live.and_then(|live| live.pool(&namespace, &key));
        nodes = options.nodes.as_ref().map(|nodes| {
            let claims = live.map_or_else(|| plan::claims(pool, object), |live| live.claims.clone());
            plan::fit(spec, pool, claims, nodes, options.explain)
        });
    }
    warnings.retain(|warning| !options.ignored.contains(&warning.code));
    Judged {
        problems,
        key,
        namespace,
        allows_overlap: OverlapCandidate::allows(allow_overlap.as_deref()),
        name_at: object.locate("metadata.name"),
        network_at: object.locate(network_field(kind)),
        origin,
        network,
        warnings,
        nodes,
    }
}

/// The spec with the types that the schema requires, and the findings of the schema.
fn spec(kind: PoolKind, object: &Node) -> (Json, Vec<Finding>) {
    match object.member("spec") {
        Some(member) => schema::check(kind, &member.node, member.place()),
        None => schema::check(kind, &Node::leaf(Value::Null, object.at), object.at),
    }
}

fn twice(field: String, first: Place, again: Place) -> Finding {
    let message = format!("stands twice, first in line {}; leave one out", first.line);
    let problem = Problem { field, reason: Reason::Duplicate, message, place: again };
    Finding { grade: Grade::Form, problem }
}

/// Moves unknown fields from `found` to warnings, unless `strict` makes them errors.
fn set_aside_unknown(found: &mut Vec<Finding>, strict: bool) -> Vec<Warning> {
    if strict {
        return Vec::new();
    }
    let (unknown, rest): (Vec<_>, Vec<_>) = found.drain(..).partition(|finding| finding.grade == Grade::Unknown);
    *found = rest;
    unknown
        .into_iter()
        .map(|Finding { problem: Problem { field, message, place, .. }, .. }| Warning {
            field,
            code: UNKNOWN_FIELD.to_owned(),
            message,
            place,
        })
        .collect()
}

fn elsewhere(metadata: &Metadata, object: &Node, options: &Options) -> Option<Warning> {
    let (served, given) = (options.namespace.as_deref()?, metadata.namespace.as_deref()?);
    (served != given).then(|| Warning {
        field: "metadata.namespace".to_owned(),
        code: OTHER_NAMESPACE.to_owned(),
        message: format!("{:?} is not {served:?}, the only namespace in which pools are served", shortened(given)),
        place: object.locate("metadata.namespace"),
    })
}

/// The spec as parsed by `ipam-core`, and its errors. The spec is `None` only if it could not be deserialized.
type Parsed = (Option<(PoolSpec, Option<Pool>)>, Vec<Violation>);

fn core(kind: PoolKind, name: &str, value: Json) -> Parsed {
    let spec = match kind {
        PoolKind::IpPool => serde_json::from_value(value).map(|spec: IPPoolSpec| PoolSpec::from(&spec)),
        PoolKind::CidrPool => serde_json::from_value(value).map(|spec: CIDRPoolSpec| PoolSpec::from(&spec)),
    };
    match spec {
        // The value has the types of the schema, so this happens only if the schema and the Rust type differ.
        Err(error) => (None, vec![Violation::new("spec", Reason::Malformed, error.to_string())]),
        Ok(spec) => match Pool::parse(name, &spec) {
            Ok(pool) => (Some((spec, Some(pool))), Vec::new()),
            Err(violations) => (Some((spec, None)), violations),
        },
    }
}

fn network(spec: &PoolSpec) -> Option<Cidr> {
    let text = match spec {
        PoolSpec::Ip(spec) => &spec.subnet,
        PoolSpec::Cidr(spec) => &spec.cidr,
    };
    Cidr::parse(text).ok().map(|(network, _)| network)
}

fn advice(spec: &PoolSpec, pool: &Pool, options: &Options) -> Vec<Advice> {
    let mut advice = advise(spec, pool);
    if let Some(nodes) = &options.nodes {
        advice.extend(plan::advice(spec, pool, nodes));
    }
    advice
}

fn placed(advice: Advice, object: &Node) -> Warning {
    Warning {
        place: object.locate(&advice.field),
        code: advice.code.to_string(),
        message: bounded(&advice.message),
        field: advice.field,
    }
}

/// All errors, each once. For a value that was not validated the schema's error counts, else that of the rules, which has
/// more detail.
fn united(found: &[Finding], violations: Vec<Violation>, object: &Node) -> Vec<Problem> {
    let unjudged: HashSet<&str> =
        found.iter().filter(|finding| finding.grade == Grade::Form).map(|finding| &*finding.problem.field).collect();
    let violations: Vec<Violation> = violations
        .into_iter()
        .filter(|violation| !above(&violation.field).any(|field| unjudged.contains(field)))
        .collect();
    let told: HashSet<&str> = violations.iter().map(|violation| &*violation.field).collect();
    let shown = found
        .iter()
        .filter(|finding| finding.grade != Grade::Limit || !told.contains(&*finding.problem.field))
        .map(|finding| finding.problem.clone());
    let mut problems: Vec<Problem> =
        shown.chain(violations.iter().map(|violation| located(violation, object))).collect();
    problems.sort_by(|left, right| (left.place, &left.field).cmp(&(right.place, &right.field)));
    problems
}

/// A path and all paths above it: `a.b[0]`, `a.b`, `a`.
fn above(field: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(field), |field| field.rfind(['.', '[']).map(|end| &field[..end]))
}

fn located(violation: &Violation, object: &Node) -> Problem {
    Problem {
        field: violation.field.clone(),
        reason: violation.reason,
        message: bounded(&violation.message),
        place: object.locate(&violation.field),
    }
}

fn bounded(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

impl Judged {
    pub(super) fn into_report(mut self) -> PoolReport {
        let untold = self.problems.len().saturating_sub(MAX_TOLD);
        self.problems.truncate(MAX_TOLD);
        self.warnings.sort_by(|left, right| (left.place, &left.field).cmp(&(right.place, &right.field)));
        self.warnings.truncate(MAX_TOLD);
        PoolReport {
            origin: self.origin,
            kind: self.key.kind,
            namespace: self.namespace,
            name: self.key.name,
            problems: self.problems,
            untold,
            warnings: self.warnings,
            nodes: self.nodes,
        }
    }
}
