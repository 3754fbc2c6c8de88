//! Adds faults to a history that otherwise stays as it was. Each kind has a probability of its own, and 13 of 32
//! histories get none. The steps before the first added fault stay the same, and so do the seeds by which mutants are
//! found.

use super::action::{Action, Fate};
use super::dice::Dice;
use super::runtime::list;
use super::size::{MOST_NODES, NODES, REPLICAS};
use super::story::LEASE_OVER;

/// HTTP codes that any call may be answered with.
const CODES: [u16; 10] = [401, 403, 404, 409, 410, 422, 429, 500, 503, 504];
/// Steps of a history that build the cluster.
const OPENING: usize = 15;

/// Adds faults to `history`, or none.
pub(super) fn overlay(dice: &mut Dice, history: &mut Vec<Action>) {
    match dice.rng.u8(0..32) {
        0..=3 => errors(dice, history),
        4..=5 => clocks(dice, history),
        6..=7 => restore(dice, history),
        8..=9 => {
            let story = collision(dice);
            insert(dice, history, story);
        }
        10 => {
            let story = autoscaling(dice);
            insert(dice, history, story);
        }
        11..=12 => third_replica(dice, history),
        13 => {
            errors(dice, history);
            clocks(dice, history);
            third_replica(dice, history);
        }
        14 => {
            errors(dice, history);
            restore(dice, history);
        }
        15 => {
            errors(dice, history);
            let story = collision(dice);
            insert(dice, history, story);
        }
        16 => {
            let story = first_lease(dice);
            drop(history.splice(0..0, story));
        }
        17 => {
            let story = departed_nodes(dice);
            insert(dice, history, story);
        }
        18 => {
            let story = wiped_store(dice);
            insert(dice, history, story);
        }
        _ => {}
    }
}

fn insert(dice: &mut Dice, history: &mut Vec<Action>, story: Vec<Action>) {
    let at = place(dice, history);
    drop(history.splice(at..at, story));
}

/// A place after the opening and before the last quarter.
fn place(dice: &mut Dice, history: &[Action]) -> usize {
    let last = history.len() * 3 / 4;
    dice.rng.usize(OPENING.min(last)..=last)
}

/// The fate of a call that gets an HTTP error, mostly before the effect.
fn error(dice: &mut Dice) -> Fate {
    let code = CODES[dice.rng.usize(0..CODES.len())];
    if dice.rng.u8(0..3) == 0 { Fate::ErrorAfter(code) } else { Fate::ErrorBefore(code) }
}

/// The fate of a call that fails in any way.
fn failure(dice: &mut Dice) -> Fate {
    match dice.rng.u8(0..8) {
        0 => Fate::Lost,
        1 => Fate::AnswerLost,
        2 => Fate::Late,
        _ => error(dice),
    }
}

/// Calls of the operator get HTTP errors, or are lost: single calls, and sometimes all of a time.
fn errors(dice: &mut Dice, history: &mut [Action]) {
    let apart = dice.rng.u8(1..5);
    for place in OPENING.min(history.len())..history.len() {
        let hits = dice.rng.u8(0..apart) == 0;
        match &mut history[place] {
            Action::Call { fate, .. } | Action::Campaign { fate, .. } if hits && *fate == Fate::Done => {
                *fate = failure(dice);
            }
            Action::Work { replica } if hits => {
                history[place] = Action::WorkAgainst { replica: *replica, fate: failure(dice) };
            }
            _ => {}
        }
    }
}

/// Wall clocks of replicas jump by minutes or hours.
fn clocks(dice: &mut Dice, history: &mut Vec<Action>) {
    for _ in 0..dice.rng.u8(1..=3) {
        let minutes = if dice.rng.bool() { dice.rng.i16(-600..=600) } else { dice.rng.i16(-4..=4) };
        let jump = Action::Jump { replica: dice.replica(), minutes };
        insert(dice, history, vec![jump]);
    }
}

/// A backup is restored while a leader runs. Its watches break at once, one by one, or at the end.
fn restore(dice: &mut Dice, history: &mut Vec<Action>) {
    insert(dice, history, vec![Action::Backup]);
    let breaks = dice.rng.bool();
    let replica = 0;
    // Mostly the agents have received their own reports by then.
    let mut story = Vec::new();
    if dice.rng.u8(0..8) > 0 {
        story.extend((0..dice.machines).map(|node| Action::AgentHear { node, words: 64 }));
    }
    story.push(Action::RestoreLive { breaks });
    if dice.rng.bool() {
        story.push(Action::Crowd);
    }
    if !breaks {
        for watch in 0..4 {
            story.push(Action::LoseWatch { replica, watch });
            if dice.rng.bool() {
                story.push(Action::Work { replica });
            }
        }
        let lost = (0..dice.machines).map(|node| Action::AgentLoseWatch { node });
        story.extend(lost.filter(|_| dice.rng.u8(0..4) > 0));
    }
    story.extend([Action::Round { replica }, Action::Crowd, Action::Round { replica }, Action::Crowd]);
    insert(dice, history, story);
}

/// The leader ends or is stopped, and two others compete for the Lease step by step.
fn collision(dice: &mut Dice) -> Vec<Action> {
    let (one, other) = (1, 2);
    let mut story: Vec<Action> = [one, other].map(|replica| Action::Start { replica, skew: 0 }).into();
    let goes = match dice.rng.u8(0..4) {
        0 => Action::Kill { replica: 0 },
        1 => Action::Freeze { replica: 0, seconds: dice.rng.u8(11..40) },
        _ => Action::Stop {
            replica: 0,
            fate: [Fate::Done, Fate::Done, Fate::AnswerLost, Fate::Late][dice.rng.usize(0..4)],
        },
    };
    story.extend([one, other].map(|replica| Action::Campaign { replica, fate: Fate::Done }));
    story.push(goes);
    for _ in 0..dice.rng.u8(8..24) {
        let replica = dice.rng.u8(0..REPLICAS);
        let fate = match dice.rng.u8(0..12) {
            0 => Fate::Late,
            1 => Fate::AnswerLost,
            2 => error(dice),
            _ => Fate::Done,
        };
        story.push(Action::Lease { replica, fate });
        if dice.rng.u8(0..3) == 0 {
            story.push(Action::Pass(dice.rng.u32(500..=6000)));
        }
    }
    story.extend([one, other].map(|replica| Action::Work { replica }));
    story.extend([Action::Orphan { call: dice.any() }, Action::Crowd]);
    story
}

/// The first replica gets errors while it creates the Lease.
fn first_lease(dice: &mut Dice) -> Vec<Action> {
    let mut story = vec![Action::Start { replica: 0, skew: 0 }];
    for _ in 0..dice.rng.u8(2..8) {
        let fate = if dice.rng.bool() { error(dice) } else { Fate::Done };
        story.extend([Action::Lease { replica: 0, fate }, Action::Pass(dice.rng.u32(500..=3000))]);
    }
    story
}

/// Nodes come and leave, and the leader gets errors while it deletes their IPAMNodes.
fn departed_nodes(dice: &mut Dice) -> Vec<Action> {
    let (mut story, replica, node) = (Vec::new(), 0, MOST_NODES - 1);
    for _ in 0..dice.rng.u8(1..4) {
        story.extend([Action::NodeJoins { node }, Action::Work { replica }, Action::Work { replica }]);
        story.push(Action::NodeLeaves { node });
        story.extend((0..4).map(|_| Action::WorkAgainst { replica, fate: error(dice) }));
        story.push(Action::Round { replica });
    }
    story
}

/// The store of an agent is deleted while pods run, and the agent checks which of them have the addresses of its last report.
fn wiped_store(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (0, dice.node());
    let mut story = vec![Action::Round { replica }, Action::Crowd, Action::Round { replica }];
    story.extend([Action::PutStoreBack { node }, Action::AgentStart { node }, Action::AgentHear { node, words: 64 }]);
    for _ in 0..dice.rng.u8(2..6) {
        match dice.rng.u8(0..4) {
            0 => story.push(Action::Delete { node, pod: dice.any() }),
            1 => story.push(Action::Crowd),
            _ => {}
        }
        story.push(Action::CheckPods { node, list: list(dice) });
    }
    story.extend([Action::Crowd, Action::Round { replica }, Action::Crowd]);
    story
}

/// Nodes are replaced under new names until pools would be full: cordoned and drained or not, with a last report or without.
fn autoscaling(dice: &mut Dice) -> Vec<Action> {
    let (mut story, replica) = (Vec::new(), 0);
    let last = dice.rng.u8(NODES + 1..=MOST_NODES);
    for new in NODES..last {
        let old = dice.rng.u8(new.saturating_sub(NODES)..new);
        story.push(Action::NodeJoins { node: new });
        if dice.rng.bool() {
            story.extend([Action::Work { replica }, Action::AgentWork { node: new }, Action::Crowd]);
        }
        match dice.rng.u8(0..4) {
            0 => story.push(Action::Cordon { node: old }),
            1 | 2 => story.push(Action::NodeTerminates { node: old }),
            _ => {}
        }
        story.push(Action::Drain { node: old });
        if dice.rng.bool() {
            story.extend([Action::Work { replica }, Action::Pass(1100), Action::AgentWork { node: old }]);
        }
        story.extend([Action::NodeLeaves { node: old }, Action::Wipe { node: old }, Action::Work { replica }]);
        if dice.rng.u8(0..3) == 0 {
            story.push(Action::Rest(LEASE_OVER));
        }
    }
    story.extend([Action::Round { replica }, Action::Crowd]);
    story
}

/// A third replica takes part.
fn third_replica(dice: &mut Dice, history: &mut Vec<Action>) {
    let third = REPLICAS - 1;
    for action in &mut *history {
        if dice.rng.bool() {
            *action = of_third(*action, third);
        }
    }
    let starts = [0, 1, third].map(|replica| Action::Start { replica, skew: 0 });
    insert(dice, history, starts.into());
}

/// Replaces the second replica in an action by the third.
const fn of_third(action: Action, third: u8) -> Action {
    match action {
        Action::Hear { replica: 1, watch, words } => Action::Hear { replica: third, watch, words },
        Action::Decide { replica: 1 } => Action::Decide { replica: third },
        Action::Call { replica: 1, call, fate } => Action::Call { replica: third, call, fate },
        Action::Answer { replica: 1, answer } => Action::Answer { replica: third, answer },
        Action::Campaign { replica: 1, fate } => Action::Campaign { replica: third, fate },
        Action::Kill { replica: 1 } => Action::Kill { replica: third },
        Action::Start { replica: 1, skew } => Action::Start { replica: third, skew },
        Action::Freeze { replica: 1, seconds } => Action::Freeze { replica: third, seconds },
        Action::Work { replica: 1 } => Action::Work { replica: third },
        Action::Round { replica: 1 } => Action::Round { replica: third },
        other => other,
    }
}
