//! Rare actions and faults of container runtimes, nodes and their disks, and how often they happen.

use super::action::{Action, Disk, Fate, PodList};
use super::dice::{Dice, Make};
use super::story::Story;

/// HTTP codes of errors that the API server answers with.
const CODES: [u16; 10] = [401, 403, 404, 409, 410, 422, 429, 500, 503, 504];

fn code(dice: &mut Dice) -> u16 {
    CODES[dice.rng.usize(0..CODES.len())]
}

pub(super) fn list(dice: &mut Dice) -> PodList {
    let lists = [PodList::Exact, PodList::Lagging, PodList::Empty, PodList::Failing, PodList::LookFails];
    lists[dice.rng.usize(0..lists.len())]
}

/// Faults on nodes, and rare requests; each history has some of them.
pub(super) const TROUBLE: [(u32, Make); 16] = [
    (6, |dice| Action::AddTwo { node: dice.node(), pool: dice.any(), other: dice.any() }),
    (4, |dice| Action::AddAgain { node: dice.node(), pod: dice.any() }),
    (3, |dice| Action::AddAndCut { node: dice.node(), pool: dice.any(), after: dice.any(), power: dice.rng.bool() }),
    (4, |dice| Action::Check { node: dice.node(), pod: dice.any() }),
    (2, |dice| Action::DeleteAgain { node: dice.node() }),
    (3, |dice| Action::Vanish { node: dice.node(), pod: dice.any() }),
    (2, |dice| Action::RuntimeGc { node: dice.node(), foreign: dice.rng.bool() }),
    (8, |dice| Action::CheckPods { node: dice.node(), list: list(dice) }),
    (1, |dice| Action::PowerCut { node: dice.node(), luck: dice.any() }),
    (2, |dice| Action::FailSync { node: dice.node(), after: dice.any() }),
    (3, |dice| Action::AgentHearAndKill { node: dice.node(), saved: dice.rng.bool() }),
    (2, |dice| Action::TurnClock { node: dice.node(), minutes: dice.rng.i16(-300..=300) }),
    (3, |dice| Action::Report { node: dice.node(), fate: Fate::ErrorBefore(code(dice)) }),
    (3, |dice| Action::Report { node: dice.node(), fate: Fate::ErrorAfter(code(dice)) }),
    (2, |dice| Action::Report { node: dice.node(), fate: Fate::Lost }),
    (2, |dice| Action::Drain { node: dice.node() }),
];

/// Short sequences of events on one node.
pub(super) const STORIES: [Story; 4] = [journal_and_spec, power_cut, failing_journal, missing_pods];

/// The agent is killed between the record of an ADD and the spec that it has received, in either order.
fn journal_and_spec(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::AgentWork { node }];
    for _ in 0..dice.rng.u8(1..3) {
        story.extend([Action::Cordon { node }, Action::Work { replica }, Action::Work { replica }]);
        story.push(Action::Add { node, pool: dice.any() });
        story.push(Action::AgentHearAndKill { node, saved: dice.rng.bool() });
        story.push(Action::AgentStart { node });
        if dice.rng.bool() {
            story.extend([Action::Pass(2500), Action::Add { node, pool: dice.any() }]);
        }
        story.push(Action::AgentWork { node });
    }
    story.extend([Action::Crowd, Action::Round { replica }, Action::Crowd]);
    story
}

/// The power of a node is cut, mostly within a record.
fn power_cut(dice: &mut Dice) -> Vec<Action> {
    let (replica, node) = (dice.replica(), dice.node());
    let mut story = vec![Action::Crowd, Action::Delete { node, pod: dice.any() }];
    story.push(match dice.rng.u8(0..3) {
        0 => Action::PowerCut { node, luck: dice.any() },
        _ => Action::AddAndCut { node, pool: dice.any(), after: dice.any(), power: true },
    });
    story.extend([Action::AgentStart { node }, Action::AgentWork { node }, Action::Crowd]);
    story.extend([Action::CheckPods { node, list: PodList::Exact }, Action::CheckPods { node, list: list(dice) }]);
    story.extend([Action::Round { replica }, Action::Crowd]);
    story
}

/// A sync fails, or the journal has no more room, while pods start and end and requests are repeated.
fn failing_journal(dice: &mut Dice) -> Vec<Action> {
    let node = dice.node();
    let fails = Action::FailSync { node, after: dice.any() };
    let mut story = vec![Action::Add { node, pool: dice.any() }];
    story.push(if dice.rng.bool() { fails } else { Action::Disk { node, is: Disk::Full } });
    for _ in 0..dice.rng.u8(3..12) {
        story.push(match dice.rng.u8(0..6) {
            0 => Action::Delete { node, pod: dice.any() },
            1 => Action::AddAgain { node, pod: dice.any() },
            2 => Action::DeleteAgain { node },
            3 => Action::Check { node, pod: dice.any() },
            _ => Action::Add { node, pool: dice.any() },
        });
    }
    story.extend([Action::Disk { node, is: Disk::Well }, Action::AgentStart { node }, Action::AgentWork { node }]);
    story.push(Action::Crowd);
    story
}

/// The agent's garbage collection sees lists without pods that run, and pods that are gone.
fn missing_pods(dice: &mut Dice) -> Vec<Action> {
    let node = dice.node();
    let mut story = vec![Action::Crowd, Action::Vanish { node, pod: dice.any() }];
    for _ in 0..dice.rng.u8(2..5) {
        story.push(Action::CheckPods { node, list: list(dice) });
        if dice.rng.u8(0..4) == 0 {
            story.push(Action::TurnClock { node, minutes: dice.rng.i16(-300..=300) });
        }
    }
    story.extend([Action::RuntimeGc { node, foreign: dice.rng.bool() }, Action::Crowd]);
    story
}

/// Before the opening of a history: some nodes never have an agent.
pub(super) fn nodes_without_agent(dice: &mut Dice) -> Vec<Action> {
    if dice.rng.u8(0..48) > 0 {
        return Vec::new();
    }
    vec![Action::WithoutAgent { node: dice.node() }]
}
