//! Records that are lost or restored: a backup is restored, or the CRDs are deleted.

use super::{LEASE_OVER, call, change, decide, moves_on, one_serves};
use crate::action::{Action, Fate};
use crate::dice::Dice;

/// The store is restored to a state before blocks were reassigned.
pub(super) fn restore(dice: &mut Dice) -> Vec<Action> {
    let node = dice.node();
    let mut story = vec![Action::Backup, Action::Drain { node }];
    story.extend(moves_on(dice, 0, node));
    story.extend([Action::Crowd, Action::Restore]);
    if dice.rng.bool() {
        story.push(Action::Crowd);
    }
    story.extend([Action::Start { replica: 0, skew: 0 }, Action::Rest(LEASE_OVER), Action::Round { replica: 0 }]);
    story.extend([Action::Crowd, change(dice, node), Action::Round { replica: 0 }, Action::Crowd]);
    story
}

/// The store is restored to a state in which a node had a block that another node has by now, and the agents continue to run.
pub(super) fn earlier_state(dice: &mut Dice) -> Vec<Action> {
    let replica = dice.replica();
    let (one, other, mut story) = one_serves(dice, replica);
    story.extend([Action::Backup, Action::Cordon { node: one }, Action::Round { replica }, Action::Round { replica }]);
    story.extend([Action::Cordon { node: other }, Action::Round { replica }, Action::Crowd]);
    story.extend([Action::Restore, Action::Crowd, Action::Start { replica, skew: 0 }, Action::Rest(LEASE_OVER)]);
    story.extend([Action::Round { replica }, Action::Crowd]);
    story
}

/// The CRDs are deleted while pods run, and installed again; the pools are applied again at once, or later. Leaders
/// change at any point of it, agents report one by one, and nodes need blocks meanwhile. It is not one of the random
/// stories: see [`crate::generate`].
pub(crate) fn loss(dice: &mut Dice) -> Vec<Action> {
    let (old, node) = (dice.replica(), dice.node());
    let new = 1 - old;
    let mut story = vec![Action::Round { replica: old }, Action::Crowd];
    let changes = dice.rng.bool();
    if changes && dice.rng.bool() {
        story.extend([Action::Kill { replica: old }, Action::Rest(LEASE_OVER)]);
    }
    story.push(Action::Undefine { breaks: dice.rng.bool() });
    if dice.rng.bool() {
        story.extend([Action::Work { replica: old }, Action::NodeJoins { node }]);
    }
    story.push(Action::Reapply);
    let mut leads = old;
    if changes {
        story.extend([
            Action::Kill { replica: old },
            Action::Start { replica: new, skew: 0 },
            Action::Rest(LEASE_OVER),
        ]);
        leads = new;
    }
    for _ in 0..dice.rng.u8(1..4) {
        story.extend(asks(dice, leads));
        if dice.rng.u8(0..3) == 0 {
            let next = 1 - leads;
            story.extend([
                Action::Kill { replica: leads },
                Action::Start { replica: next, skew: 0 },
                Action::Rest(LEASE_OVER),
            ]);
            leads = next;
        }
    }
    story.extend([
        Action::Round { replica: leads },
        Action::Crowd,
        change(dice, node),
        Action::Round { replica: leads },
    ]);
    story.push(Action::Crowd);
    story
}

/// The very first blocks are assigned step by step, while no replica renews the Lease.
pub(crate) fn first_block(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (0, dice.node());
    let mut story = vec![Action::Start { replica, skew: 0 }, Action::Campaign { replica, fate: Fate::Done }];
    story.extend([Action::NodeJoins { node }, Action::Apply { pool: dice.pool(), spec: 0 }]);
    for _ in 0..4 {
        story.extend(decide(replica));
        story.extend(call(replica));
    }
    story
}

/// A leader makes some calls, and some agents report.
fn asks(dice: &mut Dice, replica: u8) -> Vec<Action> {
    let mut story = vec![Action::Listen { replica }];
    for _ in 0..dice.rng.u8(1..4) {
        story.extend([Action::Pass(15), Action::Decide { replica }]);
        if dice.rng.bool() {
            let fate = [Fate::Done, Fate::Done, Fate::Lost, Fate::AnswerLost][dice.rng.usize(0..4)];
            story.push(Action::Campaign { replica, fate });
        }
        for _ in 0..dice.rng.u8(0..4) {
            story.extend(call(replica));
        }
    }
    if dice.rng.bool() {
        story.push(Action::Work { replica });
    }
    for _ in 0..dice.rng.u8(0..3) {
        story.extend([Action::Pass(1100), Action::AgentWork { node: dice.node() }]);
    }
    if dice.rng.bool() {
        story.extend([Action::Work { replica }, Action::Crowd]);
    }
    story
}
