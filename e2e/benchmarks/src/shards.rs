//! What record objects of 256 blocks each would cost, in place of one status with all blocks of a pool: a prototype of the storage alone.
//! `docs/adr/0004-shards.md` has the reasons. IPPools without an operator are the record objects, because their status has the same list.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use ipam_crds::IPPool;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use super::finding::Finding;
use super::load::{self, AT_ONCE};
use super::stage::{NAMESPACE, Stage};
use super::stats::{Samples, Unit, number};

/// Blocks in a record object.
const SHARD: u32 = 256;
const POOLS: u32 = 8;
const WRITES: u32 = 20;
/// The cluster whose records a new leader lists.
const NODES: u32 = 50_000;
const LISTS: usize = 5;

pub(super) fn measure(stage: &Stage<'_>, nodes: u32) -> Result<Vec<Finding>> {
    let api: Api<IPPool> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(stage.client.clone());
    stage.runtime.block_on(async {
        // No operator runs that could answer.
        hooks.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        let mut found = Vec::new();
        for (entries, what) in [(SHARD, "shard"), (nodes, "status"), (3 * nodes, "status")] {
            found.push(joins(&api, entries, what, 1).await?);
        }
        for (entries, what) in [(SHARD, "shard"), (nodes, "status")] {
            found.push(joins(&api, entries, what, POOLS).await?);
        }
        found.push(listed(&api).await?);
        anyhow::Ok(found)
    })
}

/// A node joins: one write of a record with so many blocks, or one of each pool at the same time.
async fn joins(api: &Api<IPPool>, entries: u32, what: &str, pools: u32) -> Result<Finding> {
    let names: Vec<String> = (0..pools).map(|pool| format!("{what}-{entries}-{pools}-{pool}")).collect();
    let mut objects = try_join_all(names.iter().map(|name| record(api, name, entries))).await?;
    let bytes: usize = objects.iter().map(|object| serde_json::to_string(object).map_or(0, |text| text.len())).sum();
    let mut times = Vec::new();
    for write in 0..WRITES {
        for object in &mut objects {
            let status = object.status.as_mut().context("no status")?;
            status.allocations.last_mut().context("no block")?.node_name = format!("joins-{write}");
        }
        let began = Instant::now();
        objects = write_all(api, &objects).await?;
        times.push(began.elapsed());
    }
    for name in &names {
        api.delete(name, &DeleteParams::default()).await?;
    }
    let of = if pools == 1 { format!("one {what}") } else { format!("{pools} {what}s at once") };
    let row = Finding::new(format!("prototype: {of} with {entries} blocks, written again"), Samples::times(times));
    Ok(row.also(format!("{} in all", Unit::Bytes.show(number(u64::try_from(bytes)?)))))
}

async fn write_all(api: &Api<IPPool>, objects: &[IPPool]) -> Result<Vec<IPPool>> {
    let options = PostParams::default();
    let mut writes = Vec::new();
    for object in objects {
        let name = object.metadata.name.as_deref().context("no name")?;
        writes.push(api.replace_status(name, &options, object));
    }
    Ok(try_join_all(writes).await?)
}

/// A record object with so many blocks.
async fn record(api: &Api<IPPool>, name: &str, entries: u32) -> Result<IPPool> {
    let mut pool = super::stage::pool(name, "10.0.0.0/8");
    // Nobody takes these records for pools that share addresses.
    pool["metadata"]["annotations"] = json!({"nv-ipam.nvidia.com/allow-overlap": "true"});
    let mut object = api.create(&PostParams::default(), &serde_json::from_value(pool)?).await?;
    object.status = Some(serde_json::from_value(json!({"allocations": allocations(entries)}))?);
    Ok(api.replace_status(name, &PostParams::default(), &object).await?)
}

fn allocations(entries: u32) -> Vec<Value> {
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0A00_0000 + number).to_string();
    let entry = |node: u32| json!({"nodeName": load::name(node), "startIP": address(64 * node + 1), "endIP": address(64 * node + 64)});
    (0..entries).map(entry).collect()
}

/// A new leader lists the records of all pools.
async fn listed(api: &Api<IPPool>) -> Result<Finding> {
    let shards = POOLS * NODES.div_ceil(SHARD);
    let make = |number: u32| async move { record(api, &format!("record-{number}"), SHARD).await };
    stream::iter(0..shards).map(make).buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    let mut times: Vec<Duration> = Vec::new();
    let mut bytes = 0;
    for _ in 0..LISTS {
        let began = Instant::now();
        let (mut token, mut entries) = (None, 0);
        bytes = 0;
        loop {
            let page = ListParams { limit: Some(500), continue_token: token, ..ListParams::default() };
            let list = api.list(&page).await?;
            for object in list.items.iter().filter(|object| is_record(object)) {
                entries += object.status.as_ref().map_or(0, |status| status.allocations.len());
                bytes += serde_json::to_string(object)?.len();
            }
            token = list.metadata.continue_.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
        anyhow::ensure!(entries == usize::try_from(shards * SHARD)?, "{entries} blocks are listed");
        times.push(began.elapsed());
    }
    let what = format!("prototype: the {shards} shards of {POOLS} pools at {NODES} nodes, listed");
    Ok(Finding::new(what, Samples::times(times)).also(Unit::Bytes.show(number(u64::try_from(bytes)?))))
}

fn is_record(object: &IPPool) -> bool {
    object.metadata.name.as_deref().is_some_and(|name| name.starts_with("record-"))
}
