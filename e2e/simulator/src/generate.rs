//! Makes a history from a seed. Each history has its own mix: which pools it is about, which actions are frequent in it,
//! and which are absent.

use super::action::{Action, Disk, Fate};
use super::dice::{Dice, Make};
use super::overlay::overlay;
use super::size::{MOST_NODES, NODES};
use super::story::{STORIES, Story, first_block, long_absence, loss};

/// The history of `seed`, of `steps` steps.
pub fn history(seed: u64, steps: usize) -> Vec<Action> {
    let mut dice = Dice::new(seed);
    dice.machines = machines(seed);
    let temper = Temper::new(&mut dice);
    let mut history = opening(&mut dice);
    let stories: Vec<Story> = STORIES.into_iter().chain(super::runtime::STORIES).collect();
    while history.len() < steps {
        if dice.rng.u32(0..100) < temper.stories {
            let story: Story = stories[dice.rng.usize(0..stories.len())];
            history.extend(story(&mut dice));
        } else {
            history.push(temper.action(&mut dice));
        }
    }
    lose_records(seed, &dice, &mut history);
    overlay(&mut dice.apart(seed ^ OVERLAY), &mut history);
    lengthen_grace(seed, &dice, &mut history);
    history.truncate(steps);
    history
}

/// The number of machines of a history: mostly [`NODES`]. It is chosen with a seed of its own, so that the other choices
/// stay the same as without it.
fn machines(seed: u64) -> u8 {
    let mut rng = fastrand::Rng::with_seed(seed ^ MACHINES);
    if rng.u8(0..LARGE_APART) == 0 { rng.u8(NODES + 1..=MOST_NODES) } else { NODES }
}

/// Adds a loss of all records to some histories. It is chosen with a seed of its own, so that the other histories stay
/// the same as without it. So do the seeds by which mutants are found.
fn lose_records(seed: u64, of: &Dice, history: &mut Vec<Action>) {
    let mut dice = of.apart(!seed);
    if dice.rng.u8(0..LOSSES_APART) == 0 {
        let at = dice.rng.usize(history.len() / 4..history.len());
        drop(history.splice(at..at, loss(&mut dice)));
        if dice.rng.bool() {
            drop(history.splice(0..0, first_block(&mut dice)));
        }
    }
}

/// Gives some histories a grace that is longer than the time for which a leader itself must see a Node missing, and Nodes that are gone for
/// about that long. It is chosen with a seed of its own, like a loss of all records.
fn lengthen_grace(seed: u64, of: &Dice, history: &mut Vec<Action>) {
    let mut dice = of.apart(seed ^ GRACES);
    if dice.rng.u8(0..LONG_GRACES_APART) > 0 {
        return;
    }
    let grace = if dice.rng.u8(0..4) == 0 { A_DAY } else { TEN_MINUTES };
    for action in &mut *history {
        if let Action::Grace(seconds) = action {
            *seconds = grace;
        }
    }
    let at = dice.rng.usize(history.len() / 4..=history.len() / 2);
    drop(history.splice(at..at, long_absence(&mut dice)));
}

/// One of this many histories has a long grace.
const LONG_GRACES_APART: u8 = 8;
/// Makes the seed for a long grace from that of the history.
const GRACES: u64 = 0x97ac_0000_0000_0000;
const TEN_MINUTES: u32 = 600;
const A_DAY: u32 = 86_400;
/// One of this many histories is about a loss of all records.
const LOSSES_APART: u8 = 8;
/// Makes the seed for the overlay from that of the history.
const OVERLAY: u64 = 0x5ea5_0000_0000_0000;
/// Makes the seed for the number of machines from that of the history.
const MACHINES: u64 = 0x3ac4_0000_0000_0000;
/// One of this many histories has more machines than [`NODES`].
const LARGE_APART: u8 = 8;

/// A cluster that works: some nodes, a pool or two, an operator.
fn opening(dice: &mut Dice) -> Vec<Action> {
    let grace = if dice.rng.u8(0..4) < 3 { 90 } else { 0 };
    let mut history = vec![
        Action::Grace(grace),
        Action::Start { replica: 0, skew: 0 },
        Action::Campaign { replica: 0, fate: Fate::Done },
    ];
    history.extend(super::runtime::nodes_without_agent(dice));
    history.extend((0..dice.rng.u8(2..=dice.machines)).map(|node| Action::NodeJoins { node }));
    history.extend((0..dice.rng.u8(1..=2)).map(|_| Action::Apply { pool: dice.pool(), spec: 0 }));
    for _ in 0..3 {
        history.extend([Action::Work { replica: 0 }, Action::Pass(20)]);
    }
    history.extend((0..dice.machines).map(|node| Action::AgentWork { node }));
    history
}

/// Weights of the actions of a history.
struct Temper {
    weights: Vec<(u32, Make)>,
    total: u32,
    /// How often a story begins instead of an action, in percent.
    stories: u32,
}

/// Actions of normal operation; every history has them.
const COURSE: [(u32, Make); 16] = [
    (8, |dice| Action::Round { replica: dice.replica() }),
    (6, |_| Action::Crowd),
    (8, |dice| Action::Drain { node: dice.node() }),
    (10, |dice| Action::Work { replica: dice.replica() }),
    (24, |dice| Action::AgentWork { node: dice.node() }),
    (30, |dice| Action::Hear { replica: dice.replica(), watch: dice.watch(), words: dice.rng.u8(1..=12) }),
    (24, |dice| Action::Decide { replica: dice.replica() }),
    (30, |dice| Action::Call { replica: dice.replica(), call: dice.any(), fate: Fate::Done }),
    (30, |dice| Action::Answer { replica: dice.replica(), answer: dice.any() }),
    (24, |dice| Action::AgentHear { node: dice.node(), words: dice.rng.u8(1..=6) }),
    (16, |dice| Action::Report { node: dice.node(), fate: Fate::Done }),
    (40, |dice| Action::Add { node: dice.node(), pool: dice.any() }),
    (14, |dice| Action::Delete { node: dice.node(), pod: dice.any() }),
    (16, |dice| Action::Pass(dice.rng.u32(1..=40))),
    (12, |dice| Action::Pass(dice.rng.u32(100..=2500))),
    (8, |dice| Action::Campaign { replica: dice.replica(), fate: Fate::Done }),
];

/// Actions of an admin, and faults; each history has some of them.
const TROUBLE: [(u32, Make); 43] = [
    (1, |_| Action::Backup),
    (1, |_| Action::Restore),
    (6, |dice| Action::Apply { pool: dice.pool(), spec: dice.any() }),
    (3, |dice| Action::Apply { pool: 0, spec: dice.any() }),
    (3, |dice| Action::Remove { pool: dice.pool() }),
    (1, |dice| Action::Strip { pool: dice.pool() }),
    (2, |dice| Action::Share { pool: dice.pool() }),
    (2, |dice| Action::ForceRelease { pool: dice.pool(), node: dice.node() }),
    (1, |dice| Action::ForceAll { pool: dice.pool() }),
    (4, |dice| Action::NodeJoins { node: dice.node() }),
    (4, |dice| Action::NodeLeaves { node: dice.node() }),
    (4, |dice| Action::Relabel { node: dice.node() }),
    (2, |dice| Action::Cordon { node: dice.node() }),
    (1, |dice| Action::Rest(dice.rng.u8(1..=120))),
    (3, |dice| Action::Kill { replica: dice.replica() }),
    (6, |dice| Action::Start { replica: dice.replica(), skew: dice.rng.i8(..) }),
    (2, |dice| Action::Freeze { replica: dice.replica(), seconds: dice.rng.u8(1..40) }),
    (4, |dice| Action::Orphan { call: dice.any() }),
    (4, |dice| Action::LoseWatch { replica: dice.replica(), watch: dice.watch() }),
    (2, |dice| Action::NodeTerminates { node: dice.node() }),
    (2, |dice| Action::WatchFails { replica: dice.replica() }),
    (4, |dice| Action::HearAgain { replica: dice.replica(), watch: dice.watch() }),
    (6, |dice| Action::HearLast { replica: dice.replica(), watch: dice.watch() }),
    (6, |dice| Action::Call { replica: dice.replica(), call: dice.any(), fate: Fate::AnswerLost }),
    (6, |dice| Action::Call { replica: dice.replica(), call: dice.any(), fate: Fate::Lost }),
    (4, |dice| Action::Call { replica: dice.replica(), call: dice.any(), fate: Fate::Late }),
    (2, |dice| Action::Report { node: dice.node(), fate: Fate::Late }),
    (2, |dice| Action::Campaign { replica: dice.replica(), fate: Fate::AnswerLost }),
    (3, |dice| Action::Campaign { replica: dice.replica(), fate: Fate::Lost }),
    (4, |dice| Action::Report { node: dice.node(), fate: Fate::AnswerLost }),
    (4, |dice| Action::AgentLoseWatch { node: dice.node() }),
    (3, |dice| Action::AddAndCrash { node: dice.node(), pool: dice.any() }),
    (8, |dice| Action::AddByName { node: dice.node(), pool: dice.any(), place: dice.any() }),
    (3, |dice| Action::AgentKill { node: dice.node() }),
    (8, |dice| Action::AgentStart { node: dice.node() }),
    (2, |dice| Action::Disk { node: dice.node(), is: Disk::Full }),
    (1, |dice| Action::Disk { node: dice.node(), is: Disk::ReadOnly }),
    (3, |dice| Action::Disk { node: dice.node(), is: Disk::Well }),
    (1, |dice| Action::Wipe { node: dice.node() }),
    (1, |dice| Action::CopyStore { node: dice.node() }),
    (1, |dice| Action::PutStoreBack { node: dice.node() }),
    (1, |dice| Action::DiscardReport { node: dice.node() }),
    (2, |dice| Action::Pass(dice.rng.u32(2500..=70_000))),
];

impl Temper {
    fn new(dice: &mut Dice) -> Self {
        let mut weights: Vec<(u32, Make)> = COURSE.to_vec();
        let spoils: Make = if dice.removes_ipam_nodes {
            |dice| Action::RemoveIpamNode { node: dice.node() }
        } else {
            |dice| Action::WipeStatus { pool: dice.pool() }
        };
        weights.push((dice.rng.u32(0..5), spoils));
        for (weight, make) in TROUBLE.into_iter().chain(super::runtime::TROUBLE) {
            // Some faults are absent from a history, some are frequent in it.
            let factor = [0, 0, 1, 1, 3][dice.rng.usize(0..5)];
            weights.push((weight * factor, make));
        }
        // Killed processes start again some day.
        weights.push((3, |dice| Action::Start { replica: dice.replica(), skew: 0 }));
        weights.push((3, |dice| Action::AgentStart { node: dice.node() }));
        let total = weights.iter().map(|(weight, _)| weight).sum();
        Self { weights, total, stories: [0, 3, 8][dice.rng.usize(0..3)] }
    }

    fn action(&self, dice: &mut Dice) -> Action {
        let mut point = dice.rng.u32(0..self.total);
        for (weight, make) in &self.weights {
            if point < *weight {
                return make(dice);
            }
            point -= weight;
        }
        Action::Pass(1)
    }
}
