//! Many nodes join a large cluster within a minute.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use ipam_crds::IPAMNode;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::time::sleep;

use super::bound::{Bound, in_time};
use super::finding::Finding;
use super::large::{Large, PUTS, WRITTEN};
use super::load;
use super::stage::NAMESPACE;
use super::stats::{Samples, Unit, number};

const JOINS: u32 = 500;
/// In this time all of them join, at equal intervals.
const WITHIN: Duration = Duration::from_mins(1);
/// Every node has its blocks this long after its Node exists.
const TIME_AIM: f64 = 10.0;
/// Bytes of pool statuses that the operator writes meanwhile.
const BYTES_AIM: f64 = 60_000_000.0;

/// The name of the first row.
pub(super) fn row(at: &str) -> String {
    format!("{at}: {JOINS} nodes join within a minute: Node created → all blocks")
}

pub(super) fn measure(bound: &mut Bound, large: &mut Large<'_>, at: &str) -> Result<()> {
    let what = bound.begin(row(at));
    let (before, puts) = (large.counter(WRITTEN)?, large.counter(PUTS)?);
    let names: Vec<String> = (0..JOINS).map(|_| large.newcomer()).collect();
    let times = large.block_on(join_all(&large.client(), &names, large.pools.len(), bound.left()))?;
    let bytes = large.counter(WRITTEN)?.saturating_sub(before);
    let puts = large.counter(PUTS)?.saturating_sub(puts);
    bound.found(Finding::new(what, Samples::times(times)).each_at_most(TIME_AIM));
    let what = format!("{at}: {JOINS} nodes join within a minute: pool statuses written until all have their blocks");
    let samples = Samples::counts(Unit::Bytes, [bytes]);
    bound.found(Finding::new(what, samples).at_most(BYTES_AIM).also(format!("{} writes", number(puts))));
    Ok(())
}

/// From the call that creates each Node to the event that shows its IPAMNode with as many blocks.
async fn join_all(client: &Client, names: &[String], blocks: usize, within: Duration) -> Result<Vec<Duration>> {
    const WHAT: &str = "the IPAMNodes of all new nodes";
    let (nodes, api) = (Api::<Node>::all(client.clone()), Api::<IPAMNode>::namespaced(client.clone(), NAMESPACE));
    let began: RefCell<BTreeMap<&str, Instant>> = RefCell::default();
    let version = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
    let create = async {
        let (first, pause) = (Instant::now(), WITHIN / JOINS);
        for (number, name) in (0..).zip(names) {
            sleep((first + pause * number).saturating_duration_since(Instant::now())).await;
            began.borrow_mut().insert(name, Instant::now());
            load::create_one(&nodes, name).await?;
        }
        anyhow::Ok(())
    };
    let done: RefCell<BTreeMap<String, Duration>> = RefCell::default();
    let note = |object: IPAMNode| {
        let name = object.metadata.name.unwrap_or_default();
        if let Some(began) = began.borrow().get(name.as_str()).filter(|_| object.spec.pools.len() == blocks) {
            done.borrow_mut().entry(name).or_insert_with(|| began.elapsed());
        }
        done.borrow().len() == names.len()
    };
    let observe = async {
        let mut version = version;
        loop {
            let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
            while let Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) = events.next().await {
                if note(object) {
                    return anyhow::Ok(());
                }
            }
            // The API server ends each watch after some minutes.
            let list = api.list(&ListParams::default()).await?;
            version = list.metadata.resource_version.unwrap_or_default();
            if list.items.into_iter().map(note).fold(false, |_, is_last| is_last) {
                return Ok(());
            }
        }
    };
    let both = async { futures::future::try_join(create, observe).await.map(drop) };
    let reached = || format!("{} of {} nodes have {blocks} blocks", done.borrow().len(), names.len());
    Box::pin(in_time(WHAT, within, both, reached)).await?;
    let done = done.into_inner();
    names
        .iter()
        .map(|name| done.get(name).copied().with_context(|| format!("{name} has not {blocks} blocks")))
        .collect()
}
