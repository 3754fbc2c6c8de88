//! Replicas of the operator and their calls: late calls, old lists, and blocks that are reassigned meanwhile.

use super::{LEASE_OVER, call, change, decide, moves_on, one_serves, seen_by_pods};
use crate::action::{Action, Fate};
use crate::dice::Dice;

/// One replica stops with calls under way, or stops waiting for them. They arrive when another has long continued.
pub(super) fn late_calls(dice: &mut Dice) -> Vec<Action> {
    let (old, node) = (dice.replica(), dice.node());
    let other = 1 - old;
    let mut story = vec![Action::Start { replica: other, skew: 0 }, Action::Drain { node }, change(dice, node)];
    story.extend([Action::Listen { replica: old }, Action::Pass(15), Action::Decide { replica: old }]);
    for _ in 0..dice.rng.u8(0..4) {
        let done = Action::Call { replica: old, call: 0, fate: Fate::Done };
        story.extend([done, Action::Answer { replica: old, answer: 0 }, Action::Decide { replica: old }]);
    }
    let works = match dice.rng.u8(0..3) {
        0 => {
            story.extend([Action::Kill { replica: old }, Action::Rest(LEASE_OVER)]);
            other
        }
        1 => {
            story.extend([Action::Freeze { replica: old, seconds: 2 * LEASE_OVER }, Action::Rest(LEASE_OVER)]);
            other
        }
        _ => {
            let late = Action::Call { replica: old, call: dice.any(), fate: Fate::Late };
            story.extend([late, late, Action::Answer { replica: old, answer: 0 }, Action::Pass(600)]);
            old
        }
    };
    story.extend(moves_on(dice, works, node));
    if dice.rng.bool() {
        story.extend([Action::Rest(LEASE_OVER), Action::Call { replica: old, call: dice.any(), fate: Fate::Done }]);
    }
    story.extend((0..3).map(|_| Action::Orphan { call: dice.any() }));
    story.extend(seen_by_pods(dice, works));
    story
}

/// The creation of an IPAMNode is on its way, or not yet sent, while its node is served by another replica, and leaves.
pub(super) fn late_creation(dice: &mut Dice) -> Vec<Action> {
    let (old, node) = (dice.replica(), dice.node());
    let other = 1 - old;
    let mut story = vec![Action::Start { replica: other, skew: 0 }];
    if dice.rng.bool() {
        // Its IPAMNode is deleted, so that another must be created.
        story.extend([Action::Drain { node }, Action::NodeLeaves { node }, Action::Round { replica: old }]);
        story.extend([Action::Rest(50), Action::Round { replica: old }]);
    }
    story.extend([Action::NodeJoins { node }, Action::Listen { replica: old }, Action::Pass(15)]);
    for _ in 0..dice.rng.u8(1..4) {
        let done = Action::Call { replica: old, call: 0, fate: Fate::Done };
        story.extend([Action::Decide { replica: old }, done, Action::Answer { replica: old, answer: 0 }]);
    }
    story.push(Action::Decide { replica: old });
    let sleeps = dice.rng.bool();
    let ends = if sleeps { Action::Freeze { replica: old, seconds: 120 } } else { Action::Kill { replica: old } };
    story.extend([ends, Action::Rest(LEASE_OVER), Action::Round { replica: other }, Action::Drain { node }]);
    story.extend([Action::NodeLeaves { node }, Action::Round { replica: other }]);
    if sleeps {
        story.push(Action::Rest(60));
    }
    story.extend([Action::NodeJoins { node: dice.node() }, Action::Round { replica: other }]);
    if sleeps {
        // It wakes up, and has not checked its Lease yet.
        story.push(Action::Pass(60_000));
    }
    let late = Action::Call { replica: old, call: 0, fate: Fate::Done };
    story.extend([late, Action::Orphan { call: dice.any() }, Action::Orphan { call: dice.any() }]);
    story.extend(seen_by_pods(dice, other));
    story
}

/// A follower with old lists acquires the Lease.
pub(super) fn old_lists(dice: &mut Dice) -> Vec<Action> {
    let (old, node) = (dice.replica(), dice.node());
    let new = 1 - old;
    let mut story = vec![Action::Start { replica: new, skew: 0 }, Action::Listen { replica: new }];
    story.extend(moves_on(dice, old, node));
    story.extend([Action::Crowd, Action::Kill { replica: old }, Action::Rest(LEASE_OVER)]);
    for _ in 0..dice.rng.u8(0..3) {
        story.push(Action::Hear { replica: new, watch: dice.watch(), words: 64 });
    }
    for _ in 0..dice.rng.u8(1..4) {
        let done = Action::Call { replica: new, call: 0, fate: Fate::Done };
        story.extend([Action::Pass(15), Action::Decide { replica: new }, done, done]);
        story.extend([Action::Answer { replica: new, answer: 0 }, Action::Answer { replica: new, answer: 0 }]);
    }
    story.extend(seen_by_pods(dice, new));
    story
}

/// A node is deselected and selected again before the consequences are done.
pub(super) fn turns_and_returns(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::Drain { node }];
    for _ in 0..dice.rng.u8(5..9) {
        if dice.rng.bool() {
            story.push(Action::Relabel { node });
        }
        if dice.rng.bool() {
            story.extend([Action::Pass(1000), Action::AgentWork { node }]);
        }
        story.push(Action::Work { replica });
    }
    story.extend(seen_by_pods(dice, replica));
    story
}

/// A node is deselected for long, then leaves, and the operator waits for its block.
pub(super) fn departure(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::Crowd];
    if dice.rng.bool() {
        story.push(Action::Relabel { node });
    }
    story.extend([Action::Round { replica }, Action::Rest(dice.rng.u8(20..120)), Action::NodeLeaves { node }]);
    story.extend([Action::Round { replica }, Action::Rest(dice.rng.u8(1..120))]);
    if dice.rng.bool() {
        story.extend([Action::WatchFails { replica }, Action::Rest(dice.rng.u8(1..90))]);
    }
    story.extend([Action::Round { replica }, Action::Round { replica }, Action::Crowd]);
    story
}

/// A node that has released its block gets one again and loses it before its IPAMNode has it. The answer to that status
/// write is lost.
pub(super) fn unanswered_release(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let turn = if dice.rng.bool() { Action::Cordon { node } } else { Action::Relabel { node } };
    let work = Action::Work { replica };
    let mut story = vec![Action::Drain { node }, turn, work, work, Action::AgentWork { node }, work, turn, work, turn];
    story.extend([Action::Listen { replica }, Action::Pass(15), Action::Decide { replica }]);
    let fate = if dice.rng.bool() { Fate::AnswerLost } else { Fate::ErrorAfter(504) };
    story.extend([Action::Call { replica, call: 0, fate }, Action::Answer { replica, answer: 0 }]);
    if dice.rng.bool() {
        story.push(Action::NodeJoins { node: dice.node() });
    }
    let fate = if dice.rng.bool() { Fate::Lost } else { Fate::ErrorBefore(503) };
    story.extend([Action::Decide { replica }, Action::WorkAgainst { replica, fate }]);
    story.extend([Action::Pass(600), work, Action::Round { replica }, Action::Crowd]);
    story
}

/// A replica assigns a block to one node and the next leader to another, while the calls of the first are still on their way.
pub(super) fn trade(dice: &mut Dice) -> Vec<Action> {
    let old = dice.replica();
    let new = 1 - old;
    let (one, other, mut story) = one_serves(dice, old);
    story.extend([
        Action::Cordon { node: one },
        Action::Round { replica: old },
        Action::Start { replica: new, skew: 0 },
    ]);
    story.push(Action::Cordon { node: one });
    story.extend(decide(old));
    story.extend([Action::Kill { replica: old }, Action::Rest(LEASE_OVER)]);
    story.extend([Action::Cordon { node: one }, Action::Cordon { node: other }]);
    story.extend([Action::Round { replica: new }, Action::Crowd]);
    story.extend((0..3).map(|_| Action::Orphan { call: dice.any() }));
    story.extend(seen_by_pods(dice, new));
    story
}

/// A node whose block was removed from its IPAMNode returns and leaves again before its IPAMNode is written. Another
/// waits for the block.
pub(super) fn swift_return(dice: &mut Dice) -> Vec<Action> {
    let replica = dice.replica();
    let (one, other, mut story) = one_serves(dice, replica);
    story.extend([
        Action::Cordon { node: one },
        Action::Work { replica },
        Action::Work { replica },
        Action::Pass(1100),
    ]);
    story.extend([Action::AgentWork { node: one }, Action::Work { replica }]);
    story.extend([Action::Cordon { node: one }, Action::Work { replica }]);
    story.extend([Action::Cordon { node: one }, Action::Cordon { node: other }]);
    story.extend(decide(replica));
    for _ in 0..dice.rng.u8(1..=2) {
        story.extend(call(replica));
    }
    story.push(Action::Decide { replica });
    for _ in 0..3 {
        story.extend(call(replica));
    }
    story.extend(seen_by_pods(dice, replica));
    story
}

/// A Node is gone for about ten minutes, mostly seen by two leaders one after the other. It may return while none leads.
pub(crate) fn long_absence(dice: &mut Dice) -> Vec<Action> {
    let (node, mut replica) = (dice.node(), 0);
    let mut story = vec![Action::NodeJoins { node }, Action::Round { replica }, Action::Crowd];
    story.extend([Action::NodeLeaves { node }, Action::Round { replica }, Action::Rest(dice.rng.u8(..))]);
    if dice.rng.u8(0..4) > 0 {
        story.extend([Action::Rest(dice.rng.u8(..)), Action::Kill { replica }]);
        if dice.rng.bool() {
            story.extend([Action::NodeJoins { node }, Action::AgentWork { node }, Action::Crowd]);
            story.extend([Action::Pass(dice.rng.u32(..=70_000)), Action::NodeLeaves { node }]);
        }
        replica = 1;
        story.extend([Action::Start { replica, skew: dice.rng.i8(..) }, Action::Rest(LEASE_OVER)]);
    }
    for _ in 0..dice.rng.u8(2..6) {
        story.extend([Action::Round { replica }, Action::Rest(dice.rng.u8(60..)), Action::Crowd]);
    }
    story.extend([Action::Round { replica }, Action::Crowd, Action::NodeJoins { node }, Action::Round { replica }]);
    story.push(Action::Crowd);
    story
}

/// A node has been deselected for longer than the grace when its Node is deleted.
pub(super) fn long_unselected(dice: &mut Dice) -> Vec<Action> {
    let mut story = vec![Action::Grace(90), Action::Kill { replica: 0 }, Action::Kill { replica: 1 }];
    story.extend([Action::Start { replica: 0, skew: 0 }, Action::Rest(LEASE_OVER)]);
    let (one, other, opening) = one_serves(dice, 0);
    story.extend(opening);
    story.extend([Action::Crowd, Action::Cordon { node: one }, Action::Round { replica: 0 }, Action::Rest(120)]);
    story.extend([Action::NodeLeaves { node: one }, Action::Cordon { node: other }, Action::Round { replica: 0 }]);
    story.extend([
        Action::Round { replica: 0 },
        Action::Crowd,
        Action::Rest(dice.rng.u8(..)),
        Action::Round { replica: 0 },
    ]);
    story.push(Action::Crowd);
    story
}
