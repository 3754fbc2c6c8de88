//! Short courses of events that chance alone would hardly ever string together: those after which a call, a list, a report or a
//! disk of long ago meets a world that has moved on. Each is a frame, filled by chance; the laws know nothing of them.

use super::action::{Action, Disk, Fate};
use super::generate::Dice;
use super::world::NODES;

/// Makes the actions of one.
pub(super) type Story = fn(&mut Dice) -> Vec<Action>;

/// All of them.
pub(super) const STORIES: [Story; 16] = [
    late_calls,
    late_creation,
    old_lists,
    turns_and_returns,
    restore,
    departure,
    unanswered_release,
    reborn,
    bad_disk,
    trade,
    swift_return,
    earlier_state,
    long_unselected,
    word_of_another,
    lost_store,
    lonely_start,
];

/// Longer than a lease lasts and an operator waits for its lease.
pub(super) const LEASE_OVER: u8 = 20;

/// What an admin or a node may do to the world at any time; mostly to the one node that the story is about.
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

/// The world moves on under a replica that works.
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

/// Agents hear, and pods are started before anybody could put right what they heard.
fn seen_by_pods(dice: &mut Dice, replica: u8) -> Vec<Action> {
    let mut story: Vec<Action> = (0..NODES).map(|node| Action::AgentHear { node, words: 64 }).collect();
    story.push(Action::Crowd);
    if dice.rng.bool() {
        story.extend([Action::Round { replica }, Action::Crowd]);
    }
    story
}

/// One replica stops with calls under way, or gives them up; they arrive when another has long gone on.
fn late_calls(dice: &mut Dice) -> Vec<Action> {
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
fn late_creation(dice: &mut Dice) -> Vec<Action> {
    let (old, node) = (dice.replica(), dice.node());
    let other = 1 - old;
    let mut story = vec![Action::Start { replica: other, skew: 0 }];
    if dice.rng.bool() {
        // Its IPAMNode is gone, so that another is to be made.
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
        // It wakes up, and has not yet looked at its lease.
        story.push(Action::Pass(60_000));
    }
    let late = Action::Call { replica: old, call: 0, fate: Fate::Done };
    story.extend([late, Action::Orphan { call: dice.any() }, Action::Orphan { call: dice.any() }]);
    story.extend(seen_by_pods(dice, other));
    story
}

/// One who follows with lists of long ago comes to lead.
fn old_lists(dice: &mut Dice) -> Vec<Action> {
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

/// A node is unselected and selected again faster than what follows from it is done.
fn turns_and_returns(dice: &mut Dice) -> Vec<Action> {
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

/// The store goes back to a state before blocks went from node to node.
fn restore(dice: &mut Dice) -> Vec<Action> {
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

/// A node is unselected for long, then goes, and its block is waited for.
fn departure(dice: &mut Dice) -> Vec<Action> {
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

/// A node that has released its block gets one again and loses it before its IPAMNode has it. The answer to that status is lost.
fn unanswered_release(dice: &mut Dice) -> Vec<Action> {
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

/// A node's IPAMNode is deleted by hand and made anew while its agent has not yet heard or been heard.
fn reborn(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::Drain { node }];
    for _ in 0..dice.rng.u8(4..9) {
        story.push(match dice.rng.u8(0..8) {
            0 | 1 => Action::Relabel { node },
            2 => Action::AgentHear { node, words: dice.rng.u8(1..4) },
            3 => Action::Report { node, fate: Fate::Late },
            4 => Action::Report { node, fate: Fate::Done },
            5 => Action::Pass(1000),
            // Only where histories have it at all, lest a second record be lost besides.
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

/// A disk fails while a block is taken back, and the agent starts by what is on it.
fn bad_disk(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let is = if dice.rng.bool() { Disk::Full } else { Disk::ReadOnly };
    let mut story = vec![Action::Drain { node }, Action::Disk { node, is }];
    story.extend([change(dice, node), Action::Round { replica }, change(dice, node), Action::Round { replica }]);
    story.extend([Action::Crowd, Action::AgentKill { node }, Action::Disk { node, is: Disk::Well }]);
    story.extend([Action::AgentStart { node }, Action::Crowd, Action::Round { replica }, Action::Crowd]);
    story
}

/// Two nodes that begin anew, the second cordoned and without blocks. The first has some if there are any.
fn one_serves(dice: &mut Dice, replica: u8) -> (u8, u8, Vec<Action>) {
    let one = dice.node();
    let other = (one + dice.rng.u8(1..NODES)) % NODES;
    let mut story = Vec::new();
    for node in [one, other] {
        story.extend([Action::NodeLeaves { node }, Action::NodeJoins { node }]);
    }
    story.extend([Action::Drain { node: one }, Action::Drain { node: other }, Action::Cordon { node: other }]);
    story.extend([Action::Round { replica }, Action::Round { replica }]);
    (one, other, story)
}

/// A replica decides, and nothing of it is answered.
fn decide(replica: u8) -> [Action; 3] {
    [Action::Listen { replica }, Action::Pass(15), Action::Decide { replica }]
}

/// The first call of a replica is made, and answered.
fn call(replica: u8) -> [Action; 2] {
    [Action::Call { replica, call: 0, fate: Fate::Done }, Action::Answer { replica, answer: 0 }]
}

/// A node is to get a block and another gets it, while the calls of whoever gave it to the first are still on their way.
fn trade(dice: &mut Dice) -> Vec<Action> {
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

/// A node whose block was taken out of its IPAMNode comes back and leaves again before it is told, and another waits for the block.
fn swift_return(dice: &mut Dice) -> Vec<Action> {
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

/// The store goes back to a state in which a node had a block that is another's by now, and the agents live on.
fn earlier_state(dice: &mut Dice) -> Vec<Action> {
    let replica = dice.replica();
    let (one, other, mut story) = one_serves(dice, replica);
    story.extend([Action::Backup, Action::Cordon { node: one }, Action::Round { replica }, Action::Round { replica }]);
    story.extend([Action::Cordon { node: other }, Action::Round { replica }, Action::Crowd]);
    story.extend([Action::Restore, Action::Crowd, Action::Start { replica, skew: 0 }, Action::Rest(LEASE_OVER)]);
    story.extend([Action::Round { replica }, Action::Crowd]);
    story
}

/// A node has been left out for longer than the grace when its Node goes.
fn long_unselected(dice: &mut Dice) -> Vec<Action> {
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

/// A report about one IPAMNode arrives when another of its name is at the same generation and tells the same, and pods hold
/// what that report says is empty.
fn word_of_another(dice: &mut Dice) -> Vec<Action> {
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

/// The store of a node's agent is deleted, or an earlier one put in its place, while its pods run.
fn lost_store(dice: &mut Dice) -> Vec<Action> {
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

/// An agent starts while the server cannot be heard: at first it gives nothing, then it goes by what it had noted.
fn lonely_start(dice: &mut Dice) -> Vec<Action> {
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

/// The definitions are deleted while pods run, and installed again; the pools are applied again at once, or later. Leaders change at
/// any point of it, agents answer one by one, and nodes want blocks meanwhile. No story among the others: see
/// [`super::generate`].
pub(super) fn loss(dice: &mut Dice) -> Vec<Action> {
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

/// The very first blocks are given step by step, while nobody looks after the Lease.
pub(super) fn first_block(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (0, dice.node());
    let mut story = vec![Action::Start { replica, skew: 0 }, Action::Campaign { replica, fate: Fate::Done }];
    story.extend([Action::NodeJoins { node }, Action::Apply { pool: dice.pool(), spec: 0 }]);
    for _ in 0..4 {
        story.extend(decide(replica));
        story.extend(call(replica));
    }
    story
}

/// A leader makes some calls, and some agents answer.
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
