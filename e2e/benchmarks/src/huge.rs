//! A cluster of 15,000 nodes: a pool is applied, a node joins, the pool is deleted. Reports are written by this program.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ipam_crds::IPPool;
use kube::Api;
use kube::api::DeleteParams;

use super::bound::{Bound, in_time};
use super::finding::Finding;
use super::joins::{self, Joined};
use super::large::{Large, POOL, one_pool};
use super::reports::{self, Reporting};
use super::stage::{NAMESPACE, Stage};
use super::stats::{Samples, Unit, number};

/// For all of it.
const LIMIT: Duration = Duration::from_mins(20);
const JOINS: u32 = 5;
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn measure(stage: &Stage<'_>, nodes: u32) -> Result<Vec<Finding>> {
    Bound::run(LIMIT, |bound| {
        let what = bound.begin(format!("{nodes} nodes, pool applied → full status"));
        let mut large = Large::begin(stage, nodes, one_pool())?;
        let applied = large.apply(bound.left())?;
        let creating = Unit::Time.show(large.creating.as_secs_f64());
        bound
            .found(Finding::new(what, Samples::times([applied.status])).also(format!("creating the Nodes {creating}")));
        let memory = Unit::Memory.show(number(applied.memory.most));
        let row =
            Finding::new(format!("the same → all {nodes} IPAMNodes written"), Samples::times([applied.ipam_nodes]));
        bound.found(row.also(format!("most memory of the operator {memory}")));
        let done = changes(bound, &mut large);
        large.unless_ended(done)
    })
}

/// Nodes join, and the pool is deleted.
fn changes(bound: &mut Bound, large: &mut Large<'_>) -> Result<()> {
    let nodes = large.nodes;
    let what = bound.begin(format!("one node joins at {nodes}: Node created → IPAMNode"));
    let mut joined = Joined::default();
    for _ in 0..JOINS {
        joined.add(large, bound.left())?;
    }
    bound.found(joined.row(what, &joins::statuses(large)?));
    bound.found(Finding::new(format!("one node joins at {nodes}: CPU of the operator"), joined.cpu()));
    let what = bound.begin(format!("pool deleted at {nodes} nodes → pool gone"));
    let (took, failed) = large.block_on(deleted(large.stage, bound.left()))?;
    let also = format!("{failed} reports refused, as about an IPAMNode that is gone");
    bound.found(Finding::new(what, Samples::times([took])).demand("done in time", true).also(also));
    Ok(())
}

/// From the deletion of the pool to its end, which waits for the last report. Every node has reported before.
async fn deleted(stage: &Stage<'_>, within: Duration) -> Result<(Duration, u32)> {
    let ends = Instant::now() + within;
    let all = async { reports::write_all(&stage.client, reports::nothing).await };
    let reported = in_time("all reports", within, all, || "reports are being written".to_owned()).await?;
    ensure!(reported > 0, "no IPAMNode");
    let reporting = Reporting::begin(&stage.client);
    let pools: Api<IPPool> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let began = Instant::now();
    pools.delete(POOL, &DeleteParams::default()).await?;
    let mut reached = String::new();
    while Instant::now() < ends {
        let Some(pool) = pools.get_opt(POOL).await? else { return Ok((began.elapsed(), reporting.failed())) };
        let releasing = pool.status.map_or(0, |status| status.allocations.len() + status.releasing.len());
        reached = format!("{releasing} of {reported} blocks are not free after {} s", began.elapsed().as_secs());
        tokio::time::sleep(LOOK).await;
    }
    let late = ipam_e2e::eventually::Late { what: "the pool is gone".to_owned(), within, reached };
    bail!(late)
}
