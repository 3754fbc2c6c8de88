//! The end of a history: nothing goes wrong any more, all pods end, and everything must come to rest.

use std::time::Duration;

use super::action::{Action, Fate};
use super::law::{self, Broken};
use super::wire::lock;
use super::world::{NODES, REPLICAS, World};

/// Rounds until all must be at rest. One round is one of everything and some time.
const ROUNDS: usize = 400;
/// Time that passes in a round. Longer than the retries of most things, shorter than a leader's deadline.
const ROUND: Duration = Duration::from_millis(900);

/// Lets all settle with the pods that there are, then ends all pods and lets all settle again.
pub(super) fn settle(world: &mut World) -> Result<(), Broken> {
    world.forget_orphans();
    come_to_rest(world)?;
    law::nodes_are_told(world)?;
    for node in 0..NODES {
        while world.nodes[usize::from(node)].held().next().is_some() {
            step(world, Action::Delete { node, pod: 0 })?;
        }
        let clock = world.clock();
        world.nodes[usize::from(node)].collect(clock);
    }
    come_to_rest(world)?;
    law::nodes_are_told(world)?;
    law::nothing_is_left(world)
}

fn come_to_rest(world: &mut World) -> Result<(), Broken> {
    for _ in 0..ROUNDS {
        round(world)?;
        if is_at_rest(world) {
            return Ok(());
        }
    }
    Err(format!("not at rest after {ROUNDS} rounds of {} ms: {}", ROUND.as_millis(), unrest(world)))
}

fn round(world: &mut World) -> Result<(), Broken> {
    for node in 0..NODES {
        step(world, Action::AgentStart { node })?;
        step(world, Action::AgentHear { node, words: 64 })?;
        let clock = world.clock();
        world.nodes[usize::from(node)].collect(clock);
        step(world, Action::Report { node, fate: Fate::Done })?;
    }
    for replica in 0..REPLICAS {
        step(world, Action::Start { replica, skew: 0 })?;
        for _ in 0..4 {
            step(world, Action::Work { replica })?;
            // What was on its way before the history ended.
            step(world, Action::Call { replica, call: 0, fate: Fate::Done })?;
            step(world, Action::Answer { replica, answer: 0 })?;
        }
    }
    step(world, Action::Pass(u32::try_from(ROUND.as_millis()).unwrap_or(u32::MAX)))
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
