//! The operator's record of a pool: its parsed spec, and its status as far as it parses.
//!
//! Reading never refuses an object. What is invalid in a spec becomes a [`Violation`]. What does not parse in a status is left out, and the
//! operator then writes the status again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

use ipam_core::overlap::{ALLOW_OVERLAP_ANNOTATION, OverlapCandidate};
use ipam_core::plan::{Claim, ClaimSource};
use ipam_core::{AddrRange, Pool, PoolKey, PoolKind, Violation};
use ipam_crds::{
    AddressCounts, BlockCounts, CIDRPoolAllocation, CIDRPoolRelease, CIDRPoolStatus, IPPoolAllocation, IPPoolRelease,
    IPPoolStatus, NodeCounts, read,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::objects::RawObject;

/// A pool as read from the API server.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolRecord {
    /// Kind and name.
    pub key: PoolKey,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`: changes with the spec.
    pub generation: i64,
    /// `metadata.resourceVersion`: changes with anything.
    pub resource_version: String,
    /// The rest of the metadata.
    pub life: PoolMetadata,
    /// The bytes of all metadata, also of annotations of others.
    pub metadata_bytes: usize,
    /// The spec as the API server sends it.
    pub spec_text: Arc<str>,
    /// The spec of this generation, or all errors in it.
    pub spec: Result<Arc<Pool>, Vec<Violation>>,
    /// The status.
    pub status: StatusRecord,
}

/// The finalizer of a pool, which keeps it while its blocks may be in use.
pub const FINALIZER: &str = "nv-ipam.nvidia.com/pool-in-use";
/// Annotation of a pool that force-releases the blocks of the nodes that it names, separated by commas, whatever their agents report. It
/// applies to blocks that are being released, and new blocks do not wait for reports of these nodes. The name of a node that is served stays
/// until the node leaves. The operator removes a name for which nothing is left to do, and the annotation with the last name. It replaces
/// `*` by the names of all nodes whose blocks are being released at that time, not of nodes that leave later.
pub const FORCE_RELEASE: &str = "nv-ipam.nvidia.com/force-release";

/// A random ID that makes a new version of a pool or an IPAMNode, so that no earlier write without an answer can take effect.
pub const FENCED_BY: &str = "nv-ipam.nvidia.com/fenced-by";

/// The name for all nodes in [`FORCE_RELEASE`].
pub const FORCE_ALL: &str = "*";
/// Command of `ipam-controller` that removes the finalizers of pools where no operator runs.
pub const RELEASE_POOLS: &str = "release-pools";

/// Parsed metadata of a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PoolMetadata {
    /// `metadata.creationTimestamp`, in seconds since 1970.
    pub created: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// All finalizers, ours and those of others.
    pub finalizers: Vec<String>,
    /// Nodes that [`FORCE_RELEASE`] names.
    pub force_release: BTreeSet<String>,
    /// Whether it may share addresses with other pools that allow it, too.
    pub allows_overlap: bool,
}

/// `metadata.creationTimestamp`, in seconds since 1970.
pub fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map_or(0, |Time(at)| at.as_second())
}

impl PoolMetadata {
    fn read(metadata: &ObjectMeta) -> Self {
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let named = annotation(FORCE_RELEASE).unwrap_or_default().split(',').map(str::trim);
        Self {
            created: created(metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            force_release: named.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            allows_overlap: OverlapCandidate::allows(annotation(ALLOW_OVERLAP_ANNOTATION)),
        }
    }

    /// Whether it has our finalizer.
    pub fn is_sealed(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    }

    /// Whether the admin force-releases the node's block.
    pub fn force_releases(&self, node: &str) -> bool {
        self.force_release.contains(node)
    }

    /// Whether the admin force-releases all blocks that are being released.
    pub fn force_releases_all(&self) -> bool {
        self.force_release.contains(FORCE_ALL)
    }
}

/// A block that is being released.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// The node and its block.
    pub claim: Claim,
    /// Since when; `None` if the status has no time. The status of a large pool has no room for times.
    pub since: Option<Timestamp>,
    /// Since when the Node is gone.
    pub node_gone_since: Option<Timestamp>,
}

/// The status of a pool of either kind.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct StatusRecord {
    /// Which node has which block. The operator writes them in the order of node names.
    pub allocations: Vec<Claim>,
    /// The blocks that are being released, in the same order.
    pub releasing: Vec<Release>,
    /// Whether all of the status was parsed. If not, the operator writes it again.
    pub intact: bool,
    /// The rest.
    pub summary: Summary,
}

/// A pool's status without the allocations.
#[derive(Clone, PartialEq, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// The generation of the spec that the status is about.
    pub observed_generation: Option<i64>,
    /// The conditions of the operator, and those that others have added.
    pub conditions: Vec<Condition>,
    /// Numbers of nodes: served, unserved, releasing.
    pub nodes: Option<NodeCounts>,
    /// Numbers of blocks: all, and free.
    pub blocks: Option<BlockCounts>,
    /// Numbers of addresses: in Active blocks, and in use.
    pub addresses: Option<AddressCounts>,
}

impl PoolRecord {
    /// The addresses of the spec, if that is valid.
    pub fn network(&self) -> Option<AddrRange> {
        self.spec.as_ref().ok().map(|pool| pool.network().range())
    }

    /// Reads `object`. The spec is taken from `before` if the texts are the same. The generation is not compared, because a restored API
    /// server assigns it a second time.
    pub fn read(kind: PoolKind, object: &RawObject, before: Option<&Self>) -> Self {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let text = object.spec.as_deref().map_or("", RawValue::get);
        let known = before.filter(|record| record.uid == uid && *record.spec_text == *text);
        Self {
            key: PoolKey::new(kind, object.name()),
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            spec_text: known.map_or_else(|| Arc::from(text), |record| record.spec_text.clone()),
            spec: known.map_or_else(|| read_spec(kind, object), |record| record.spec.clone()),
            status: read_status(kind, object.status.as_deref()),
            resource_version: object.resource_version().to_owned(),
            life: PoolMetadata::read(&object.metadata),
            metadata_bytes: object.metadata_bytes,
            uid,
            generation,
        }
    }
}

/// Parses the spec. The API server's schema refuses a value of the wrong type. So such a value comes only from a changed CRD or a damaged
/// store. It is reported as an error of its field, like any other.
fn read_spec(kind: PoolKind, object: &RawObject) -> Result<Arc<Pool>, Vec<Violation>> {
    let (spec, unread) = read::read_text(kind, object.spec.as_deref().map(RawValue::get));
    read::parse(object.name(), &spec, unread).map(Arc::new)
}

/// An allocation of either kind. Absent fields are empty.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct AnyAllocation {
    node_name: String,
    #[serde(rename = "startIP")]
    start_ip: String,
    #[serde(rename = "endIP")]
    end_ip: String,
    prefix: String,
    gateway: Option<String>,
    since: Option<String>,
    node_gone_since: Option<String>,
}

impl AnyAllocation {
    fn claim(&self, kind: PoolKind) -> Option<Claim> {
        match kind {
            PoolKind::IpPool => {
                Claim::from_ip_range(&self.node_name, &self.start_ip, &self.end_ip, ClaimSource::Status)
            }
            PoolKind::CidrPool => {
                Claim::from_prefix(&self.node_name, &self.prefix, self.gateway.as_deref(), ClaimSource::Status)
            }
        }
    }

    fn release(&self, kind: PoolKind) -> Option<Release> {
        let time = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
        let claim = self.claim(kind)?;
        Some(Release { claim, since: time(&self.since), node_gone_since: time(&self.node_gone_since) })
    }

    /// Whether the claim has all that the entry has. A gateway that does not parse is missing in the claim.
    fn said_by(&self, claim: &Claim) -> bool {
        self.gateway.is_some() == claim.gateway.is_some()
    }
}

#[derive(Deserialize)]
struct Allocations {
    #[serde(default)]
    allocations: Vec<AnyAllocation>,
    #[serde(default)]
    releasing: Vec<AnyAllocation>,
}

/// The status of a pool from its JSON. What does not parse is left out, and the record is not intact.
pub fn read_status(kind: PoolKind, text: Option<&RawValue>) -> StatusRecord {
    let Some(text) = text.map(RawValue::get) else {
        return StatusRecord { intact: true, ..StatusRecord::default() };
    };
    // A valid status is parsed at once. Only an invalid one is parsed piece by piece. A list is invalid, although serde would take an empty
    // one for a struct whose fields are all absent.
    if !text.starts_with('{') {
        return salvage(kind, text);
    }
    match (serde_json::from_str::<Allocations>(text), serde_json::from_str::<Summary>(text)) {
        (Ok(read), Ok(summary)) => record(kind, &read, summary, true),
        _ => salvage(kind, text),
    }
}

fn record(kind: PoolKind, entries: &Allocations, summary: Summary, whole: bool) -> StatusRecord {
    let mut intact = whole;
    let mut allocations = Vec::with_capacity(entries.allocations.len());
    for entry in &entries.allocations {
        let claim = entry.claim(kind);
        intact &= claim.as_ref().is_some_and(|claim| entry.said_by(claim));
        allocations.extend(claim);
    }
    let mut releasing = Vec::with_capacity(entries.releasing.len());
    for entry in &entries.releasing {
        let release = entry.release(kind);
        intact &= release.as_ref().is_some_and(|release| entry.said_by(&release.claim));
        releasing.extend(release);
    }
    StatusRecord { allocations, releasing, intact, summary }
}

/// Takes all pieces that parse. An error in one piece, however deep or large, does not affect another.
fn salvage(kind: PoolKind, text: &str) -> StatusRecord {
    let status: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| status.get(name).copied();
    let summary = Summary {
        observed_generation: field("observedGeneration").and_then(piece),
        conditions: pieces(field("conditions")),
        nodes: field("nodes").and_then(piece),
        blocks: field("blocks").and_then(piece),
        addresses: field("addresses").and_then(piece),
    };
    let entries = Allocations { allocations: pieces(field("allocations")), releasing: pieces(field("releasing")) };
    record(kind, &entries, summary, false)
}

fn piece<T: DeserializeOwned>(text: &RawValue) -> Option<T> {
    serde_json::from_str(text.get()).ok()
}

fn pieces<T: DeserializeOwned>(list: Option<&RawValue>) -> Vec<T> {
    let texts: Vec<&RawValue> = list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
    texts.into_iter().filter_map(piece).collect()
}

/// A status as it is sent.
#[derive(Serialize)]
#[serde(untagged)]
pub enum StatusBody {
    /// Of an IPPool.
    Ip(IPPoolStatus),
    /// Of a CIDRPool.
    Cidr(CIDRPoolStatus),
}

impl StatusRecord {
    /// Whether it records the same blocks for the same nodes as `other`, each in the same list.
    pub fn has_blocks_of(&self, other: &Self) -> bool {
        let block = |claim: &Claim| (claim.range, claim.node.len());
        let is_same = |(one, other): (&Claim, &Claim)| block(one) == block(other) && one.node == other.node;
        let (released, of_other) = (&self.releasing, &other.releasing);
        self.allocations.len() == other.allocations.len()
            && released.len() == of_other.len()
            && self.claims().zip(other.claims()).all(is_same)
    }

    /// All recorded blocks, including those that are being released.
    pub fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.allocations.iter().chain(self.releasing.iter().map(|release| &release.claim))
    }

    /// The bytes of this status for a pool of `kind`.
    pub fn bytes(&self, kind: PoolKind) -> u64 {
        u64::try_from(bytes_of(&self.body(kind))).unwrap_or(u64::MAX)
    }

    /// This status as the API has it for a pool of `kind`.
    pub fn body(&self, kind: PoolKind) -> StatusBody {
        let Summary { observed_generation, conditions, nodes, blocks, addresses } = self.summary.clone();
        match kind {
            PoolKind::IpPool => StatusBody::Ip(IPPoolStatus {
                observed_generation,
                allocations: self.allocations.iter().map(ip_allocation).collect(),
                releasing: self.releasing.iter().map(ip_release).collect(),
                conditions,
                nodes,
                blocks,
                addresses,
            }),
            PoolKind::CidrPool => StatusBody::Cidr(CIDRPoolStatus {
                observed_generation,
                allocations: self.allocations.iter().map(cidr_allocation).collect(),
                releasing: self.releasing.iter().map(cidr_release).collect(),
                conditions,
                nodes,
                blocks,
                addresses,
            }),
        }
    }
}

/// The bytes of the value as JSON.
fn bytes_of(value: &impl Serialize) -> usize {
    let mut counter = Counter(0);
    // Serializing such a value never fails.
    drop(serde_json::to_writer(&mut counter, value));
    counter.0
}

/// Counts what is written.
struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn ip_allocation(claim: &Claim) -> IPPoolAllocation {
    IPPoolAllocation {
        node_name: claim.node.clone(),
        start_ip: claim.range.first().to_string(),
        end_ip: claim.range.last().to_string(),
    }
}

fn cidr_allocation(claim: &Claim) -> CIDRPoolAllocation {
    CIDRPoolAllocation {
        node_name: claim.node.clone(),
        prefix: prefix_text(claim),
        gateway: claim.gateway.map(|gateway| gateway.to_string()),
    }
}

fn ip_release(release: &Release) -> IPPoolRelease {
    let IPPoolAllocation { node_name, start_ip, end_ip } = ip_allocation(&release.claim);
    let (since, node_gone_since) = times(release);
    IPPoolRelease { node_name, start_ip, end_ip, since, node_gone_since }
}

fn cidr_release(release: &Release) -> CIDRPoolRelease {
    let CIDRPoolAllocation { node_name, prefix, gateway } = cidr_allocation(&release.claim);
    let (since, node_gone_since) = times(release);
    CIDRPoolRelease { node_name, prefix, gateway, since, node_gone_since }
}

fn times(release: &Release) -> (Option<Time>, Option<Time>) {
    (release.since.map(Time), release.node_gone_since.map(Time))
}

/// The prefix in CIDR notation. The range of a CIDRPool is always a whole prefix, so its size determines the length.
fn prefix_text(claim: &Claim) -> String {
    let (first, last) = claim.range.numbers();
    let host_bits = (last ^ first).count_ones();
    format!("{}/{}", claim.range.first(), u32::from(claim.range.family().bits()) - host_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &str, status: &str) -> RawObject {
        let text = format!(
            r#"{{"metadata":{{"name":"p","uid":"u","generation":1,"resourceVersion":"1"}},"spec":{spec},"status":{status}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const SPEC: &str = r#"{"subnet":"10.0.0.0/24","perNodeBlockSize":4}"#;

    #[test]
    fn a_status_survives_being_written_and_read() {
        let status = r#"{"allocations":[{"nodeName":"a","startIP":"10.0.0.1","endIP":"10.0.0.4"}],
            "releasing":[{"nodeName":"b","startIP":"10.0.0.5","endIP":"10.0.0.8","since":"2026-01-02T03:04:05Z",
            "nodeGoneSince":"2026-01-02T03:04:06Z"}],"nodes":{"served":1,
            "unserved":0,"releasing":0},"observedGeneration":1}"#;
        let record = PoolRecord::read(PoolKind::IpPool, &object(SPEC, status), None);
        assert!(record.spec.is_ok() && record.status.intact);
        let text = serde_json::to_string(&record.status.body(PoolKind::IpPool)).unwrap();
        assert_eq!(PoolRecord::read(PoolKind::IpPool, &object(SPEC, &text), None).status, record.status);
    }

    #[test]
    fn a_prefix_is_written_with_its_length_in_both_families() {
        let status = r#"{"allocations":[{"nodeName":"a","prefix":"10.0.1.0/24","gateway":"10.0.1.1"},
            {"nodeName":"b","prefix":"fd00::/64"},{"nodeName":"c","prefix":"10.0.2.7/32"}]}"#;
        let record = PoolRecord::read(PoolKind::CidrPool, &object("{}", status), None);
        let StatusBody::Cidr(body) = record.status.body(PoolKind::CidrPool) else { panic!("not a CIDRPool") };
        let prefixes: Vec<_> = body.allocations.iter().map(|a| a.prefix.as_str()).collect();
        assert_eq!(prefixes, ["10.0.1.0/24", "fd00::/64", "10.0.2.7/32"]);
        assert_eq!(body.allocations[0].gateway.as_deref(), Some("10.0.1.1"));
    }

    #[test]
    fn what_reads_of_a_spoilt_status_is_kept_and_the_rest_makes_it_not_intact() {
        let good = r#"{"nodeName":"a","startIP":"10.0.0.1","endIP":"10.0.0.4"}"#;
        for bad in [
            format!(r#"{{"allocations":[{good},{{"nodeName":"b","startIP":"x","endIP":"10.0.0.8"}}]}}"#),
            format!(r#"{{"allocations":[{good},"nonsense"]}}"#),
            format!(r#"{{"allocations":[{good},{{"startIP":"10.0.0.5","endIP":"10.0.0.8"}}]}}"#),
            format!(r#"{{"allocations":[{good}],"nodes":"many"}}"#),
            format!(r#"{{"allocations":[{good}],"blocks":{{"total":1e999}}}}"#),
            format!(r#"{{"nodes":{}{},"allocations":[{good}]}}"#, "[".repeat(1000), "]".repeat(1000)),
        ] {
            let status = PoolRecord::read(PoolKind::IpPool, &object(SPEC, &bad), None).status;
            assert!(!status.intact, "{bad}");
            assert_eq!(status.allocations.len(), 1, "{bad}");
        }
        for empty in [r#""nonsense""#, "[]", "7"] {
            let status = PoolRecord::read(PoolKind::IpPool, &object(SPEC, empty), None).status;
            assert!(!status.intact && status.allocations.is_empty(), "{empty}");
        }
    }

    #[test]
    fn a_spec_of_which_fields_do_not_read_is_told_field_by_field_and_is_no_error() {
        let spec = r#"{"subnet":7,"perNodeBlockSize":0,"exclusions":[{"startIP":"10.0.0.1"}]}"#;
        let record = PoolRecord::read(PoolKind::IpPool, &object(spec, "{}"), None);
        let fields: Vec<String> = record.spec.unwrap_err().into_iter().map(|violation| violation.field).collect();
        assert_eq!(fields, ["spec.perNodeBlockSize", "spec.subnet", "spec.exclusions[0].endIP"]);
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let record = PoolRecord::read(PoolKind::IpPool, &object(&deep, "{}"), None);
        assert_eq!(record.spec.unwrap_err()[0].field, "spec");
    }

    #[test]
    fn a_spec_is_parsed_again_when_its_text_changes() {
        let before = PoolRecord::read(PoolKind::IpPool, &object(SPEC, "{}"), None);
        let same = PoolRecord::read(PoolKind::IpPool, &object(SPEC, "{}"), Some(&before));
        assert!(Arc::ptr_eq(before.spec.as_ref().unwrap(), same.spec.as_ref().unwrap()));
        let restored = PoolRecord::read(PoolKind::IpPool, &object("{}", "{}"), Some(&before));
        assert!(restored.generation == before.generation && restored.spec.is_err());
    }
}
