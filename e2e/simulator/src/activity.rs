//! What happened in a run, counted by the model alone: a run in which something never happens proves nothing about it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// Each of these must happen in a run of the tests.
pub const EXPECTED: [&str; 59] = [
    "pods served",
    "pods served by name",
    "agents killed after the record of an ADD",
    "ADD refused: no agent",
    "ADD refused: disk",
    "ADD refused: no block",
    "ADD refused: Exhausted",
    "ADD refused: AddressTaken",
    "ADD refused: HeldElsewhere",
    "ADD refused: Releasing",
    "ADD refused: Unsaved",
    "ADD refused: Restored",
    "ADD refused: Starting",
    "blocks assigned",
    "blocks reassigned",
    "blocks released: report",
    "blocks released: force-release",
    "blocks released: grace",
    "blocks released: never told",
    "blocks lost from the records",
    "blocks recorded again",
    "restores",
    "force-releases",
    "leader changes",
    "records lost: status wiped",
    "records lost: IPAMNode deleted",
    "records lost: definitions deleted",
    "finalizers removed by hand",
    "stores deleted",
    "stores put back",
    "nodes set up anew",
    "agents killed",
    "replicas killed",
    "replicas stopped",
    "calls lost",
    "answers lost",
    "late calls arrived",
    "reports written",
    "calls answered 401",
    "calls answered 403",
    "calls answered 404",
    "calls answered 409",
    "calls answered 410",
    "calls answered 422",
    "calls answered 429",
    "calls answered 500",
    "calls answered 503",
    "calls answered 504",
    "calls done and answered by an HTTP error",
    "HTTP errors of the Lease",
    "candidates that collided",
    "leaderships lost",
    "replicas ended in good order",
    "three replicas at one time",
    "wall clocks set",
    "restores under a running leader",
    "watches of Nodes failed",
    "Nodes terminating",
    "machines added",
];

/// So must each of these, which happen on nodes.
pub const AGENT: [&str; 23] = [
    "ADD refused: disk failed",
    "ADD repeated",
    "ADD repeated and refused",
    "CHECK succeeded",
    "DEL repeated",
    "GC freed addresses",
    "GC without leftovers",
    "agents ended by a failed sync",
    "agents ended by their disk",
    "agents killed while a spec was saved",
    "agents stopped within a record",
    "clocks of nodes turned",
    "garbage collections that free addresses",
    "journals compacted",
    "last looks at pods failed",
    "nodes without an agent",
    "pod lists failed",
    "pods gone without DEL",
    "pods kept by the last look",
    "pods served from two pools",
    "power cuts of nodes",
    "reports refused by HTTP code",
    "reports without an answer",
];

/// Counts, by what they count.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Activity {
    counts: BTreeMap<&'static str, u64>,
}

impl Activity {
    /// One more of `what`.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// So many more of `what`.
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.counts.entry(what).or_default() += count;
    }

    /// Adds the counts of another run.
    pub fn join(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            self.add(what, *count);
        }
    }

    /// How many there were of `what`.
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// What must happen in a run and did not.
    pub fn missing(&self) -> Vec<&'static str> {
        EXPECTED.into_iter().chain(AGENT).filter(|what| self.of(what) == 0).collect()
    }

    /// All counts, by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(what, count)| (*what, *count))
    }
}

impl Display for Activity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(what, count)| writeln!(f, "{count:>12}  {what}"))
    }
}
