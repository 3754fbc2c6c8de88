//! Agents and their saved state: disks that fail, stores that are lost, reports about another object.

use super::calls::swift_return;
use super::{change, moves_on, one_serves};
use crate::action::{Action, Disk, Fate};
use crate::dice::Dice;

/// A node's IPAMNode is deleted by hand and created again before its agent has received that or has reported.
pub(super) fn reborn(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::Drain { node }];
    for _ in 0..dice.rng.u8(4..9) {
        story.push(match dice.rng.u8(0..8) {
            0 | 1 => Action::Relabel { node },
            2 => Action::AgentHear { node, words: dice.rng.u8(1..4) },
            3 => Action::Report { node, fate: Fate::Late },
            4 => Action::Report { node, fate: Fate::Done },
            5 => Action::Pass(1000),
            // Only in histories that delete IPAMNodes at all, so that no second record is lost, too.
            6 if dice.removes_ipam_nodes => Action::RemoveIpamNode { node },
            _ => Action::Drain { node },
        });
        story.extend([Action::Work { replica }, Action::Work { replica }]);
    }
    story.extend([Action::Orphan { call: dice.any() }, Action::Work { replica }, Action::Work { replica }]);
    story.extend([Action::AgentHear { node, words: dice.rng.u8(1..4) }, Action::Add { node, pool: dice.any() }]);
    story.extend([Action::Round { replica }, Action::Crowd]);
    story
}

/// A disk fails while a block is being released, and the agent starts from what is on it.
pub(super) fn bad_disk(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let is = if dice.rng.bool() { Disk::Full } else { Disk::ReadOnly };
    let mut story = vec![Action::Drain { node }, Action::Disk { node, is }];
    story.extend([change(dice, node), Action::Round { replica }, change(dice, node), Action::Round { replica }]);
    story.extend([Action::Crowd, Action::AgentKill { node }, Action::Disk { node, is: Disk::Well }]);
    story.extend([Action::AgentStart { node }, Action::Crowd, Action::Round { replica }, Action::Crowd]);
    story
}

/// A report about one IPAMNode arrives when another one of its name has the same generation and the same content. Pods
/// use addresses that the report has as free.
pub(super) fn word_of_another(dice: &mut Dice) -> Vec<Action> {
    if !dice.removes_ipam_nodes {
        return swift_return(dice);
    }
    let replica = dice.replica();
    let (one, other, mut story) = one_serves(dice, replica);
    let turned = |story: &mut Vec<Action>| {
        story.extend([Action::Cordon { node: one }, Action::Work { replica }, Action::Work { replica }]);
    };
    let replaced = |story: &mut Vec<Action>| {
        story.extend([Action::RemoveIpamNode { node: one }, Action::Work { replica }, Action::Work { replica }]);
    };
    turned(&mut story);
    replaced(&mut story);
    story.extend([Action::AgentHear { node: one, words: 64 }, Action::Pass(1100)]);
    story.push(Action::Report { node: one, fate: Fate::Late });
    turned(&mut story);
    story.extend([Action::AgentHear { node: one, words: 64 }, Action::Crowd]);
    turned(&mut story);
    replaced(&mut story);
    story.extend([
        Action::Orphan { call: dice.any() },
        Action::Orphan { call: dice.any() },
        Action::Cordon { node: other },
    ]);
    story.extend([Action::Work { replica }, Action::Work { replica }, Action::Round { replica }, Action::Crowd]);
    story
}

/// The store of a node's agent is deleted, or replaced by an earlier one, while its pods run.
pub(super) fn lost_store(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::Crowd];
    if dice.rng.bool() {
        story.push(Action::CopyStore { node });
        story.extend([change(dice, node), Action::Round { replica }, Action::Delete { node, pod: dice.any() }]);
    }
    story.extend([Action::Crowd, Action::Pass(10_000), Action::Round { replica }, Action::PutStoreBack { node }]);
    if dice.rng.bool() {
        story.extend([change(dice, node), Action::Round { replica }]);
    }
    story.extend([Action::AgentStart { node }, Action::AgentHear { node, words: dice.rng.u8(1..4) }, Action::Crowd]);
    if dice.rng.bool() {
        story.extend([Action::AgentKill { node }, Action::AgentStart { node }]);
    }
    story.extend([Action::Round { replica }, Action::Crowd, change(dice, node), Action::Round { replica }]);
    story.push(Action::Crowd);
    story
}

/// An agent starts while the API server is unreachable: at first it allocates nothing, then it uses its saved spec.
pub(super) fn lonely_start(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::AgentWork { node }, Action::AgentKill { node }];
    story.extend(moves_on(dice, replica, node));
    story.extend([Action::AgentStart { node }, Action::Crowd]);
    if dice.rng.bool() {
        story.extend([Action::AgentHear { node, words: dice.rng.u8(1..4) }, Action::Crowd]);
    }
    story.extend([Action::Pass(2500), Action::Crowd, Action::Round { replica }, Action::Crowd]);
    story
}
