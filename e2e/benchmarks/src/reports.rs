//! Reports as agents write them, for clusters on which no agent runs. This program reads each IPAMNode and patches its status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use ipam_crds::{AddressRange, BlockState, BlockUse, IPAMNode, IPAMNodeStatus, LedgerPosition, NodeBlock};
use ipam_node_agent::status::status_patch;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use tokio::task::JoinHandle;

use super::load::AT_ONCE;
use super::stage::NAMESPACE;

/// The addresses of a pool that pods of a node use, by the node's number in the list.
pub(super) type Held = fn(u32) -> Vec<AddressRange>;

/// Nothing is in use.
pub(super) fn nothing(_: u32) -> Vec<AddressRange> {
    Vec::new()
}

/// One report for each IPAMNode. Answers how many there are.
pub(super) async fn write_all(client: &Client, held: Held) -> Result<u32> {
    let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes = api.list(&ListParams::default()).await?.items;
    let write = |(number, mut node): (u32, IPAMNode)| {
        let api = api.clone();
        async move {
            // The operator may write the IPAMNode meanwhile.
            while !write(&api, &node, held(number)).await? {
                node = api.get(name(&node)?).await?;
            }
            anyhow::Ok(())
        }
    };
    stream::iter((0..).zip(nodes))
        .map(write)
        .buffer_unordered(AT_ONCE)
        .try_fold(0, async |count, ()| Ok(count + 1))
        .await
}

/// Reports each change of a spec from now on: nothing is in use.
pub(super) struct Reporting {
    task: JoinHandle<()>,
    failed: Arc<AtomicU32>,
}

impl Reporting {
    /// Begins on the runtime of the caller, which must go on.
    pub(super) fn begin(client: &Client) -> Self {
        let api: Api<IPAMNode> = Api::namespaced(client.clone(), NAMESPACE);
        let failed = Arc::<AtomicU32>::default();
        let count = Arc::clone(&failed);
        let task = tokio::spawn(async move {
            let changes = watcher(api.clone(), Config::default()).filter_map(async |event| match event {
                Ok(Event::Apply(node) | Event::InitApply(node)) => Some(node),
                _ => None,
            });
            let report = |node: IPAMNode| {
                let (api, count) = (&api, &count);
                async move {
                    if is_due(&node) && write(api, &node, Vec::new()).await.is_err() {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            changes.for_each_concurrent(AT_ONCE, report).await;
        });
        Self { task, failed }
    }

    /// Reports that the API server did not take, such as those about an IPAMNode that has just gone. Of an IPAMNode that has changed
    /// the watch tells, and the next report is about that.
    pub(super) fn failed(&self) -> u32 {
        self.failed.load(Ordering::SeqCst)
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn is_due(node: &IPAMNode) -> bool {
    node.status.as_ref().is_none_or(|status| status.observed_generation != node.metadata.generation)
}

/// Whether the report is written; it is not if the IPAMNode has changed.
async fn write(api: &Api<IPAMNode>, node: &IPAMNode, held: Vec<AddressRange>) -> Result<bool> {
    let name = name(node)?;
    let metadata = &node.metadata;
    let (uid, version) = (metadata.uid.as_deref(), metadata.resource_version.as_deref());
    let patch = status_patch(uid.unwrap_or_default(), version.unwrap_or_default(), &status(node, &held));
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
    match api.patch_status(name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => Ok(false),
        Err(error) => Err(error).with_context(|| format!("no report of {name}")),
    }
}

fn name(node: &IPAMNode) -> Result<&str> {
    node.metadata.name.as_deref().context("an IPAMNode without a name")
}

/// The report that all is served, with `held` in use of each pool. A revoked entry counts as absent, and one that is Releasing ends
/// once nothing is in use.
fn status(node: &IPAMNode, held: &[AddressRange]) -> IPAMNodeStatus {
    let is_own = |block: &&NodeBlock| block.state != BlockState::Revoked || !held.is_empty();
    let blocks = node.spec.pools.iter().filter(is_own).map(|block| BlockUse {
        name: block.name.clone(),
        pool_type: block.pool_type,
        start_ip: block.start_ip.clone(),
        end_ip: block.end_ip.clone(),
        grant: (block.state != BlockState::Revoked).then(|| block.grant.clone()),
        ended: block.state == BlockState::Releasing && held.is_empty(),
        idle: false,
        used: i64::try_from(held.len()).unwrap_or(i64::MAX),
        capacity: super::stage::BLOCK_SIZE,
        held: held.to_vec(),
    });
    IPAMNodeStatus {
        observed_generation: node.metadata.generation,
        report_request: None,
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        pools: blocks.collect(),
        ledger: Some(LedgerPosition { epoch: 1, sequence: 1 }),
        conditions: Vec::new(),
        ..IPAMNodeStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use ipam_crds::{IPAMNodeSpec, NodeBlock};

    use super::*;

    fn block(state: BlockState) -> NodeBlock {
        NodeBlock {
            name: "p".into(),
            grant: "6500000000000001".into(),
            state,
            start_ip: "10.0.0.1".into(),
            end_ip: "10.0.0.9".into(),
            ..NodeBlock::default()
        }
    }

    #[test]
    fn a_grant_ends_when_releasing_with_nothing_in_use() {
        let held = [AddressRange { start_ip: "10.0.0.1".into(), end_ip: "10.0.0.1".into() }];
        let report = |state, held: &[AddressRange]| {
            let node = IPAMNode::new("n", IPAMNodeSpec { pools: vec![block(state)], ..IPAMNodeSpec::default() });
            let reports = status(&node, held).pools;
            reports.first().map(|report| (report.grant.is_some(), report.ended))
        };
        assert_eq!(report(BlockState::Active, &[]), Some((true, false)));
        assert_eq!(report(BlockState::Releasing, &held), Some((true, false)));
        assert_eq!(report(BlockState::Releasing, &[]), Some((true, true)));
        assert_eq!(report(BlockState::Revoked, &held), Some((false, false)));
        assert_eq!(report(BlockState::Revoked, &[]), None);
    }

    #[test]
    fn a_report_is_about_the_spec_and_names_what_is_held() {
        let block = block(BlockState::Active);
        let mut node = IPAMNode::new("n", IPAMNodeSpec { pools: vec![block], ..IPAMNodeSpec::default() });
        node.metadata.generation = Some(4);
        assert!(is_due(&node));
        let held = [AddressRange { start_ip: "10.9.0.1".into(), end_ip: "10.9.0.1".into() }];
        let status = status(&node, &held);
        let report = &status.pools[0];
        assert_eq!((report.used, &report.held[..], report.start_ip.as_str()), (1, &held[..], "10.0.0.1"));
        node.status = Some(status);
        assert!(!is_due(&node));
    }
}
