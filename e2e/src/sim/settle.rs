//! The end of a history: nothing goes wrong any more, all pods end, and everything must come to rest.

use std::time::Duration;

use super::action::{Action, Disk, Fate};
use super::law::{self, Broken};
use super::wire::lock;
use super::world::{NODES, REPLICAS, World};

/// Simulated time until all must be at rest: longer than the longest pause after failures, a lease and a process that stands
/// still together.
const LONGEST: Duration = Duration::from_mins(6);

/// Lets all settle with the pods that there are, then ends all pods and lets all settle again.
pub(super) fn settle(world: &mut World) -> Result<(), Broken> {
    world.forget_orphans();
    collect(world);
    come_to_rest(world)?;
    law::nodes_are_told(world)?;
    law::the_older_serves(world)?;
    law::what_is_held_is_recorded(world)?;
    for node in 0..NODES {
        while world.nodes[usize::from(node)].held().next().is_some() {
            step(world, Action::Delete { node, pod: 0 })?;
        }
        let clock = world.clock();
        world.nodes[usize::from(node)].collect(clock);
        if world.nodes[usize::from(node)].has_lost() {
            // As the agent says that an admin should, now that no pod runs there.
            step(world, Action::RemoveIpamNode { node })?;
        }
    }
    come_to_rest(world)?;
    law::nodes_are_told(world)?;
    law::nothing_is_left(world)
}

/// Every agent looks for pods that are gone, as it does by itself every few minutes.
fn collect(world: &mut World) {
    let clock = world.clock();
    for node in &mut world.nodes {
        node.collect(clock);
    }
}

fn come_to_rest(world: &mut World) -> Result<(), Broken> {
    let began = world.clock().elapsed;
    while world.clock().elapsed < began + LONGEST {
        round(world)?;
        if is_at_rest(world) {
            return Ok(());
        }
    }
    Err(format!("not at rest after {} s: {}", LONGEST.as_secs(), unrest(world)))
}

/// Everybody does what there is for him to do, and time passes until somebody has something to do again.
fn round(world: &mut World) -> Result<(), Broken> {
    for node in 0..NODES {
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
            // What was on its way before the history ended.
            step(world, Action::Call { replica, call: 0, fate: Fate::Done })?;
            step(world, Action::Answer { replica, answer: 0 })?;
        }
    }
    let pause = world.quiet_for();
    step(world, Action::Pass(pause))
}

fn step(world: &mut World, action: Action) -> Result<(), Broken> {
    world.step(action);
    law::check(world)
}

fn is_at_rest(world: &World) -> bool {
    unrest(world).is_empty()
}

/// Who is not at rest.
fn unrest(world: &World) -> String {
    let server = lock(&world.server);
    let mut restless = Vec::new();
    for node in &world.nodes {
        if node.due(world.clock()).is_some() || !node.is_idle(&server, world.clock()) {
            restless.push(node.name.clone());
        }
    }
    let leads = world.replicas.iter().flatten().any(super::replica::Replica::is_leading);
    if !leads {
        restless.push("no replica leads".to_owned());
    }
    for (place, replica) in world.replicas.iter().enumerate() {
        if replica.as_ref().is_some_and(|replica| !replica.is_idle(&server)) {
            restless.push(format!("replica {place}"));
        }
    }
    restless.join(", ")
}
