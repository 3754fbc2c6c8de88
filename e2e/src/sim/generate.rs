//! From a seed to a history. Each history has a temper of its own: which things happen often in it, and which never.

use super::action::{Action, Fate};

/// The history of `seed`, of `steps` steps.
pub fn history(seed: u64, steps: usize) -> Vec<Action> {
    let mut dice = fastrand::Rng::with_seed(seed);
    let temper = Temper::new(&mut dice);
    let mut history = opening(&mut dice);
    while history.len() < steps {
        history.push(temper.action(&mut dice));
    }
    history
}

/// A cluster that works: some nodes, a pool or two, an operator.
fn opening(dice: &mut fastrand::Rng) -> Vec<Action> {
    let mut history = vec![Action::Start { replica: 0, skew: 0 }, Action::Campaign { replica: 0, fate: Fate::Done }];
    history.extend((0..dice.u8(2..=4)).map(|node| Action::NodeJoins { node }));
    history.extend((0..dice.u8(1..=2)).map(|_| Action::Apply { pool: dice.u8(..), spec: 0 }));
    for _ in 0..3 {
        history.extend([Action::Work { replica: 0 }, Action::Pass(20)]);
    }
    history.extend((0..4).map(|node| Action::AgentWork { node }));
    history
}

/// Weights of a history.
struct Temper {
    weights: Vec<(u32, Make)>,
    total: u32,
}

type Make = fn(&mut fastrand::Rng) -> Action;

/// What keeps a cluster going; always there.
const COURSE: [(u32, Make); 13] = [
    (24, |dice| Action::Work { replica: one(dice) }),
    (24, |dice| Action::AgentWork { node: dice.u8(0..4) }),
    (30, |dice| Action::Hear { replica: one(dice), watch: dice.u8(0..4), words: dice.u8(1..=12) }),
    (24, |dice| Action::Decide { replica: one(dice) }),
    (30, |dice| Action::Call { replica: one(dice), call: dice.u8(..), fate: Fate::Done }),
    (30, |dice| Action::Answer { replica: one(dice), answer: dice.u8(..) }),
    (24, |dice| Action::AgentHear { node: dice.u8(0..4), words: dice.u8(1..=6) }),
    (16, |dice| Action::Report { node: dice.u8(0..4), fate: Fate::Done }),
    (40, |dice| Action::Add { node: dice.u8(0..4), pool: dice.u8(..) }),
    (14, |dice| Action::Delete { node: dice.u8(0..4), pod: dice.u8(..) }),
    (16, |dice| Action::Pass(dice.u32(1..=40))),
    (12, |dice| Action::Pass(dice.u32(100..=2500))),
    (8, |dice| Action::Campaign { replica: one(dice), fate: Fate::Done }),
];

/// What an admin does and what goes wrong; each history has some of it.
const TROUBLE: [(u32, Make); 24] = [
    (1, |_| Action::Backup),
    (1, |_| Action::Restore),
    (6, |dice| Action::Apply { pool: dice.u8(..), spec: dice.u8(..) }),
    (3, |dice| Action::Apply { pool: 0, spec: dice.u8(..) }),
    (3, |dice| Action::Remove { pool: dice.u8(..) }),
    (4, |dice| Action::NodeJoins { node: dice.u8(0..4) }),
    (4, |dice| Action::NodeLeaves { node: dice.u8(0..4) }),
    (4, |dice| Action::Relabel { node: dice.u8(0..4) }),
    (3, |dice| Action::Kill { replica: one(dice) }),
    (6, |dice| Action::Start { replica: one(dice), skew: dice.i8(..) }),
    (2, |dice| Action::Freeze { replica: one(dice), seconds: dice.u8(1..40) }),
    (4, |dice| Action::Orphan { call: dice.u8(..) }),
    (4, |dice| Action::LoseWatch { replica: one(dice), watch: dice.u8(0..4) }),
    (4, |dice| Action::HearAgain { replica: one(dice), watch: dice.u8(0..4) }),
    (6, |dice| Action::Call { replica: one(dice), call: dice.u8(..), fate: Fate::AnswerLost }),
    (6, |dice| Action::Call { replica: one(dice), call: dice.u8(..), fate: Fate::Lost }),
    (2, |dice| Action::Campaign { replica: one(dice), fate: Fate::AnswerLost }),
    (3, |dice| Action::Campaign { replica: one(dice), fate: Fate::Lost }),
    (4, |dice| Action::Report { node: dice.u8(0..4), fate: Fate::AnswerLost }),
    (4, |dice| Action::AgentLoseWatch { node: dice.u8(0..4) }),
    (3, |dice| Action::AddAndCrash { node: dice.u8(0..4), pool: dice.u8(..) }),
    (3, |dice| Action::AgentKill { node: dice.u8(0..4) }),
    (8, |dice| Action::AgentStart { node: dice.u8(0..4) }),
    (1, |dice| Action::Wipe { node: dice.u8(0..4) }),
];

fn one(dice: &mut fastrand::Rng) -> u8 {
    // Mostly the first replica: two that work side by side all the time are no cluster that we know.
    u8::from(dice.u8(0..4) == 0)
}

impl Temper {
    fn new(dice: &mut fastrand::Rng) -> Self {
        let mut weights: Vec<(u32, Make)> = COURSE.to_vec();
        // A status and the IPAMNodes derived from it are each other's second record. Nothing that is left tells who holds
        // what once both are destroyed by hand, so a history has only one of the two.
        let spoils: Make = if dice.bool() {
            |dice| Action::RemoveIpamNode { node: dice.u8(0..4) }
        } else {
            |dice| Action::WipeStatus { pool: dice.u8(..) }
        };
        weights.push((dice.u32(0..5), spoils));
        for (weight, make) in TROUBLE {
            // Some troubles are absent from a history, some are frequent in it.
            let factor = [0, 0, 1, 1, 3][dice.usize(0..5)];
            weights.push((weight * factor, make));
        }
        // Whoever is killed comes back some day.
        weights.push((3, |dice| Action::Start { replica: one(dice), skew: 0 }));
        weights.push((3, |dice| Action::AgentStart { node: dice.u8(0..4) }));
        let total = weights.iter().map(|(weight, _)| weight).sum();
        Self { weights, total }
    }

    fn action(&self, dice: &mut fastrand::Rng) -> Action {
        let mut point = dice.u32(0..self.total);
        for (weight, make) in &self.weights {
            if point < *weight {
                return make(dice);
            }
            point -= weight;
        }
        Action::Pass(1)
    }
}
