//! Eight pools on one large cluster, as hosts with eight interfaces have them: a node joins, and a node is deleted under pod churn.

use std::time::Duration;

use anyhow::{Context, Result};
use ipam_reconciler::reconcile::STATUS_BYTES_PER_MINUTE;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;

use super::bound::Bound;
use super::burst;
use super::churn;
use super::finding::Finding;
use super::fleet::Fleet;
use super::joins::{self, Joined};
use super::large::{DECISIONS, Large, PUTS, SECONDS, WRITTEN, eight_pools};
use super::minute::{Minute, PODS};
use super::stage::Stage;
use super::stats::{Samples, Unit, number};

/// For all of it.
const LIMIT: Duration = Duration::from_mins(15);
const JOINS: u32 = 10;
/// The part of the byte budget for what users wait for.
const URGENT: f64 = 2.0 / 3.0;
/// Bytes of pool statuses in the minute in which a node is deleted.
const BYTES_AIM: f64 = 20_000_000.0;

pub(super) fn measure(stage: &Stage<'_>, nodes: u32) -> Result<Vec<Finding>> {
    Bound::run(LIMIT, |bound| {
        let at = format!("{nodes} nodes, 8 pools");
        bound.expect([lone_row(&at), cpu_row(&at), burst::row(&at), rest_row(&at), deleted_row(&at)]);
        let what = bound.begin(format!("{at} applied → full statuses"));
        let mut large = Large::begin(stage, nodes, eight_pools())?;
        let applied = large.apply(bound.left())?;
        let written = format!("all IPAMNodes after {}", Unit::Time.show(applied.ipam_nodes.as_secs_f64()));
        bound.found(Finding::new(what, Samples::times([applied.status])).also(written));
        let done = joins(bound, &mut large, &at)
            .and_then(|()| burst::measure(bound, &mut large, &at))
            .and_then(|()| deleted(bound, &mut large, &at));
        large.unless_ended(done)
    })
}

fn lone_row(at: &str) -> String {
    format!("{at}: one node joins alone: Node created → all 8 blocks")
}

fn cpu_row(at: &str) -> String {
    format!("{at}: one node joins alone: CPU of the operator")
}

fn rest_row(at: &str) -> String {
    format!("{at}, in-process agents, {PODS} pods a minute")
}

fn deleted_row(at: &str) -> String {
    format!("{at}, the same with one deleted node")
}

fn joins(bound: &mut Bound, large: &mut Large<'_>, at: &str) -> Result<()> {
    let what = bound.begin(lone_row(at));
    let mut joined = Joined::default();
    for _ in 0..JOINS {
        // Until the byte budget of urgent status writes is full again, so that joins do not delay each other.
        let before = large.counter(WRITTEN)?;
        joined.add(large, bound.left())?;
        let bytes = large.counter(WRITTEN)?.saturating_sub(before);
        std::thread::sleep(Duration::from_mins(1).mul_f64(number(bytes) / (URGENT * number(STATUS_BYTES_PER_MINUTE))));
    }
    let memory = large.meter().memory()?;
    let resident = |kib: u64| Unit::Memory.show(number(kib));
    let also = format!("memory {}, at most {}", resident(memory.now), resident(memory.most));
    bound.found(joined.row(what, &joins::statuses(large)?));
    bound.found(Finding::new(cpu_row(at), joined.cpu()).also(also));
    Ok(())
}

/// A minute of pods on a cluster at rest, and one that begins with the deletion of a node that died with pods on it.
fn deleted(bound: &mut Bound, large: &mut Large<'_>, at: &str) -> Result<()> {
    let what = bound.begin(rest_row(at));
    let fleet = Fleet::start(large.stage, &large.pool_names())?;
    let mut members = churn::begin(large, &fleet, bound.left())?;
    found(bound, &what, &Minute::play(large, &mut members, async |_, _| Ok(()))?);
    let what = bound.begin(deleted_row(at));
    let mut dead = members.pop().context("no agent is left")?;
    let nodes: Api<Node> = Api::all(large.client());
    let (before, puts) = (large.counter(WRITTEN)?, large.counter(PUTS)?);
    let (decisions, planning) = (large.counter(DECISIONS)?, large.seconds(SECONDS)?);
    let minute = Minute::play(large, &mut members, async |number, _| {
        // At once, so that what the deletion itself costs is part of the minute.
        if number == 0 {
            dead.add().await?;
            dead.die();
            nodes.delete(&dead.name, &DeleteParams::default()).await.context("cannot delete a node")?;
        }
        Ok(())
    })?;
    let bytes = Samples::counts(Unit::Bytes, [large.counter(WRITTEN)?.saturating_sub(before)]);
    let planning = large.seconds(SECONDS)?.saturating_sub(planning);
    let also = format!(
        "{} writes, {} decisions of {} in all",
        large.counter(PUTS)?.saturating_sub(puts),
        large.counter(DECISIONS)?.saturating_sub(decisions),
        Unit::Time.show(planning.as_secs_f64()),
    );
    bound.found(minute.row(format!("{what}: pool statuses"), bytes, &also).at_most(BYTES_AIM));
    found(bound, &what, &minute);
    Ok(())
}

fn found(bound: &mut Bound, what: &str, minute: &Minute) {
    let requests = format!("reports {}, other writes {}", minute.reports().show(50), minute.writes().show(50));
    let written = format!("{}; operator {}", minute.puts().show(50), minute.cpu().show(50));
    bound.found(minute.row(format!("{what}: API requests"), minute.requests(), &requests));
    bound.found(minute.row(format!("{what}: etcd's log"), minute.log(), &written));
}
