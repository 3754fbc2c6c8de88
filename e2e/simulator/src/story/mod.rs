//! Short sequences of events that random choice alone would hardly ever produce. An old call, list, report or disk meets
//! a cluster that has changed. Each is a frame with random parts; the laws do not depend on them.

mod agents;
mod calls;
mod records;

use super::action::{Action, Fate};
use super::dice::Dice;
pub(super) use calls::long_absence;
pub(super) use records::{first_block, loss};

/// Makes the actions of a story.
pub(super) type Story = fn(&mut Dice) -> Vec<Action>;

/// All stories.
pub(super) const STORIES: [Story; 16] = [
    calls::late_calls,
    calls::late_creation,
    calls::old_lists,
    calls::turns_and_returns,
    records::restore,
    calls::departure,
    calls::unanswered_release,
    agents::reborn,
    agents::bad_disk,
    calls::trade,
    calls::swift_return,
    records::earlier_state,
    calls::long_unselected,
    agents::word_of_another,
    agents::lost_store,
    agents::lonely_start,
];

/// In seconds, longer than a Lease lasts and an operator waits for it.
pub(super) const LEASE_OVER: u8 = 20;

/// An action of an admin or a node that can happen at any time; mostly on the node that the story is about.
fn change(dice: &mut Dice, node: u8) -> Action {
    let node = if dice.rng.u8(0..3) == 0 { dice.node() } else { node };
    match dice.rng.u8(0..12) {
        0..=4 => Action::Relabel { node },
        5 => Action::NodeJoins { node },
        6 => Action::NodeLeaves { node },
        7 | 8 => Action::Apply { pool: dice.pool(), spec: dice.any() },
        9 => Action::Remove { pool: dice.pool() },
        10 => Action::Cordon { node },
        _ => Action::Crowd,
    }
}

/// The cluster changes while a replica works.
fn moves_on(dice: &mut Dice, replica: u8, node: u8) -> Vec<Action> {
    let mut story = Vec::new();
    for _ in 0..dice.rng.u8(1..=3) {
        if dice.rng.bool() {
            story.push(Action::Drain { node });
        }
        story.extend([change(dice, node), Action::Round { replica }]);
    }
    story
}

/// Agents receive events, and pods are started before anything can correct what the agents received.
fn seen_by_pods(dice: &mut Dice, replica: u8) -> Vec<Action> {
    let mut story: Vec<Action> = (0..dice.machines).map(|node| Action::AgentHear { node, words: 64 }).collect();
    story.push(Action::Crowd);
    if dice.rng.bool() {
        story.extend([Action::Round { replica }, Action::Crowd]);
    }
    story
}

/// Two nodes that are created again, the second cordoned and without blocks. The first has some if there are any.
fn one_serves(dice: &mut Dice, replica: u8) -> (u8, u8, Vec<Action>) {
    let one = dice.node();
    let other = (one + dice.rng.u8(1..dice.machines)) % dice.machines;
    let mut story = Vec::new();
    for node in [one, other] {
        story.extend([Action::NodeLeaves { node }, Action::NodeJoins { node }]);
    }
    story.extend([Action::Drain { node: one }, Action::Drain { node: other }, Action::Cordon { node: other }]);
    story.extend([Action::Round { replica }, Action::Round { replica }]);
    (one, other, story)
}

/// A replica decides, and none of its calls is answered.
fn decide(replica: u8) -> [Action; 3] {
    [Action::Listen { replica }, Action::Pass(15), Action::Decide { replica }]
}

/// The first call of a replica is made, and answered.
fn call(replica: u8) -> [Action; 2] {
    [Action::Call { replica, call: 0, fate: Fate::Done }, Action::Answer { replica, answer: 0 }]
}
