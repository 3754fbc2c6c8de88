//! The end of a history. No more faults happen. Everything must come to rest with the pods that there are, once all pods
//! have ended, and once all pools are deleted.

use std::time::Duration;

use serde_json::json;

use super::action::{Action, Disk, Fate};
use super::broken::{Broken, broken};
use super::law;
use super::server::text;
use super::size::REPLICAS;
use super::wire::lock;
use super::world::World;

/// Simulated time within which all must be at rest, besides a grace: longer than the longest pause after failures, a Lease and a
/// stopped process together.
const LONGEST: Duration = Duration::from_mins(6);

/// How long nothing must happen before the laws of the end are checked.
const QUIET: Duration = Duration::from_secs(12);

/// Lets all settle with the pods that there are, then ends all pods and lets all settle again.
pub(super) fn settle(world: &mut World) -> Result<(), Broken> {
    world.end_history();
    world.forget_orphans();
    if lock(&world.server).restores() > 0 {
        world.break_watches();
    }
    collect(world);
    come_to_rest(world)?;
    law::service::check(world)?;
    for node in world.machines() {
        while world.nodes[usize::from(node)].held().next().is_some() {
            step(world, Action::Delete { node, pod: 0 })?;
        }
        let clock = world.clock();
        world.nodes[usize::from(node)].collect(clock);
        let it = &world.nodes[usize::from(node)];
        // Without a Node the operator would not create the IPAMNode again, and the block would wait for a report without end.
        let has_node = lock(&world.server).get("nodes", &it.name).is_some();
        if it.says_lost() && has_node {
            // An admin does so because of the Ready condition, now that no pod runs there.
            step(world, Action::DiscardReport { node })?;
        }
    }
    come_to_rest(world)?;
    delete_pools(world);
    come_to_rest(world)
}

/// An admin deletes all pools. No pod has an address any more.
fn delete_pools(world: &World) {
    let mut server = lock(&world.server);
    for plural in ["ippools", "cidrpools"] {
        let names: Vec<String> = server.list(plural).map(|pool| text(pool, "/metadata/name")).collect();
        for name in names {
            drop(server.delete(plural, &name, &json!({})));
        }
    }
}

/// Runs the garbage collection of every agent, as it runs by itself every few minutes.
fn collect(world: &mut World) {
    let clock = world.clock();
    for node in &mut world.nodes {
        node.collect(clock);
    }
}

/// Continues until nothing has happened for a while and all laws of the end hold.
fn come_to_rest(world: &mut World) -> Result<(), Broken> {
    let longest = LONGEST + world.longest_grace();
    let end = world.clock().elapsed + longest;
    let (mut last, mut since) = (activity(world), world.clock().elapsed);
    let mut renewed = lock(&world.server).lease_requests();
    let mut wrong = None;
    while world.clock().elapsed < end {
        round(world)?;
        let (now, at) = (activity(world), world.clock().elapsed);
        if now != last {
            (last, since, wrong) = (now, at, None);
            renewed = lock(&world.server).lease_requests();
        } else if at >= since + QUIET && wrong.is_none() {
            let tries = lock(&world.server).lease_requests() - renewed;
            let quiet = at.saturating_sub(since);
            if tries > most_tries(quiet) {
                let what = format!("{tries} requests about the Lease within {} s", quiet.as_secs());
                return broken("all-comes-to-rest", what);
            }
            match law::at_rest(world) {
                Ok(()) => return Ok(()),
                Err(law) => wrong = Some(law),
            }
        }
    }
    wrong.map_or_else(|| broken("all-comes-to-rest", format!("not at rest after {} s", longest.as_secs())), Err)
}

/// Requests about the Lease that all replicas together may make in this time: each reads and writes it every two seconds, with some jitter.
fn most_tries(time: Duration) -> u64 {
    (time.as_secs() + 4) * u64::from(REPLICAS)
}

/// What changes whenever a replica makes a call, an agent writes a report, also one that changes nothing, or an object changes.
fn activity(world: &World) -> (u64, u64) {
    let server = lock(&world.server);
    (server.news(), server.requests())
}

/// Lets every agent and replica do what is due, and lets time pass until something is due again.
fn round(world: &mut World) -> Result<(), Broken> {
    for node in world.machines() {
        if world.has_settled_agent(node) {
            continue;
        }
        step(world, Action::Disk { node, is: Disk::Well })?;
        step(world, Action::AgentStart { node })?;
        step(world, Action::AgentHear { node, words: 64 })?;
        let clock = world.clock();
        world.nodes[usize::from(node)].collect(clock);
        step(world, Action::Report { node, fate: Fate::Done })?;
    }
    if world.replicas.iter().all(Option::is_none) {
        step(world, Action::Start { replica: 0, skew: 0 })?;
    }
    for replica in 0..REPLICAS {
        for _ in 0..4 {
            if world.has_settled_replica(replica) {
                break;
            }
            step(world, Action::Work { replica })?;
            // Calls that were on their way before the history ended.
            step(world, Action::Call { replica, call: 0, fate: Fate::Done })?;
            step(world, Action::Answer { replica, answer: 0 })?;
        }
    }
    let pause = world.quiet_for();
    step(world, Action::Pass(pause))
}

fn step(world: &mut World, action: Action) -> Result<(), Broken> {
    world.step(action)
}
