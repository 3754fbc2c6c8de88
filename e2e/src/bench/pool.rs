//! A pool is applied to a large cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use ipam_crds::IPPool;
use kube::Api;

use super::large::{Large, NAMESPACE, POOL};
use super::meter::ms;
use super::table::Finding;

const STATUS_AIM: Duration = Duration::from_millis(530);
const IPAM_NODES_AIM: Duration = Duration::from_secs(5);

pub(super) fn measure(large: &mut Large<'_>) -> Result<Vec<Finding>> {
    let applied = large.applied;
    large.runtime.block_on(ensure_blocks_of_their_own(large))?;
    let line =
        |what: &str, reference, aim, measured, met| Finding { what: what.to_owned(), reference, aim, measured, met };
    Ok(vec![
        line(
            "5,000 nodes, pool applied → full status",
            "0.53 s",
            "≤ 0.53 s",
            ms(applied.status),
            applied.status <= STATUS_AIM,
        ),
        line(
            "the same → all 5,000 IPAMNodes written",
            "–",
            "≤ 5 s",
            format!(
                "{:.2} s, {:.2} CPU s for everything; creating the Nodes took this program {:.2} s",
                applied.ipam_nodes.as_secs_f64(),
                applied.cpu.as_secs_f64(),
                applied.nodes.as_secs_f64()
            ),
            applied.ipam_nodes <= IPAM_NODES_AIM,
        ),
    ])
}

/// A quick answer is worth nothing if it is wrong.
async fn ensure_blocks_of_their_own(large: &Large<'_>) -> Result<()> {
    let pool = Api::<IPPool>::namespaced(large.client.clone(), NAMESPACE).get(POOL).await?;
    let given = pool.status.map(|status| status.allocations).unwrap_or_default();
    let nodes: BTreeSet<_> = given.iter().map(|given| &given.node_name).collect();
    let blocks: BTreeSet<_> = given.iter().map(|given| &given.start_ip).collect();
    let wanted = usize::try_from(large.nodes)?;
    ensure!(
        (nodes.len(), blocks.len()) == (wanted, wanted),
        "{} nodes, {} blocks, {wanted} wanted",
        nodes.len(),
        blocks.len()
    );
    Ok(())
}
