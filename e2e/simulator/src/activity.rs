//! Counts of what happened in a run, by the model alone: a run in which something never happens proves nothing about it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// Each of these must happen in a run of the tests.
pub const EXPECTED: [&str; 52] = [
    "pods served",
    "pods served by index",
    "pods served by value",
    "agents killed after the record of an ADD",
    "ADD refused: no agent",
    "ADD refused: disk",
    "ADD refused: no block",
    "ADD refused: Exhausted",
    "ADD refused: AddressTaken",
    "ADD refused: HeldElsewhere",
    "ADD refused: Releasing",
    "ADD refused: Unconfirmed",
    "ADD refused: Starting",
    "blocks assigned",
    "blocks reassigned",
    "blocks released: report",
    "blocks released: force-release",
    "blocks released: grace",
    "blocks released: idle",
    "blocks released: never in an IPAMNode, Node gone",
    "blocks released: never in an IPAMNode, Node there",
    "blocks released: not in the last report",
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
    "nodes reinstalled",
    "agents killed",
    "replicas killed",
    "replicas stopped",
    "calls lost",
    "answers lost",
    "late calls arrived",
    "reports written",
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
    "grants became idle",
];

/// Each of these must happen, too. They happen on nodes.
pub const AGENT: [&str; 24] = [
    "ADD refused: disk failed",
    "ADD repeated",
    "ADD repeated and refused",
    "CHECK succeeded",
    "DEL repeated",
    "GC freed addresses",
    "GC without leftovers",
    "addresses without a record reclaimed",
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
    "reports discarded",
    "reports without an answer",
];

/// The kinds of requests that are answered with each of [`CODES`], before and after they are done.
const REQUESTS: [&str; 6] =
    ["PATCH ipamnodes", "PATCH ipamnodes/status", "PATCH pools", "POST ipamnodes", "PUT leases", "PUT pools/status"];
/// The same, before or after they are done. They are less frequent.
const RARE_REQUESTS: [&str; 4] = ["DELETE ipamnodes", "GET leases", "GET pools", "POST leases"];
/// The codes of the errors that are returned.
const CODES: [u16; 10] = [401, 403, 404, 409, 410, 422, 429, 500, 503, 504];

/// The name by which an error is counted.
pub fn error_name(request: &str, code: u16, is_done: bool) -> String {
    let done = if is_done { "done and " } else { "" };
    format!("{request} {done}answered {code}")
}

/// A text of the source code, or of a file.
type Words = Cow<'static, str>;

/// Counts, by name.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Activity {
    counts: BTreeMap<Words, u64>,
    /// How often each law that allows violations was checked.
    checks: BTreeMap<Words, u64>,
    /// How many checks of each of these laws were left out, by reason.
    allowed: BTreeMap<Words, BTreeMap<Words, u64>>,
    /// Checks in which an address really was assigned to two, by the reason for which that is allowed.
    #[serde(default)]
    happened: BTreeMap<Words, u64>,
}

impl Activity {
    /// Counts `what` once.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Adds `count` to the count of `what`.
    pub fn add(&mut self, what: impl Into<Words>, count: u64) {
        *self.counts.entry(what.into()).or_default() += count;
    }

    /// The same checks, with the counts of `then`.
    #[must_use]
    pub fn counted_until(self, then: &Self) -> Self {
        Self { counts: then.counts.clone(), ..self }
    }

    /// Adds the counts of another run.
    pub fn join(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            self.add(what.clone(), *count);
        }
        for (law, checks) in &other.checks {
            self.check(law.clone(), *checks);
        }
        for (reason, checks) in &other.happened {
            self.happens(reason.clone(), *checks);
        }
        for (law, reasons) in &other.allowed {
            for (reason, uses) in reasons {
                self.allow(law.clone(), reason.clone(), *uses);
            }
        }
    }

    /// Adds checks of a law.
    pub fn check(&mut self, law: impl Into<Words>, checks: u64) {
        *self.checks.entry(law.into()).or_default() += checks;
    }

    /// Adds checks of the law that are left out for this reason.
    pub fn allow(&mut self, law: impl Into<Words>, reason: impl Into<Words>, uses: u64) {
        *self.allowed.entry(law.into()).or_default().entry(reason.into()).or_default() += uses;
    }

    /// Adds checks in which an address really was assigned to two, which is allowed for this reason.
    pub fn happens(&mut self, reason: impl Into<Words>, checks: u64) {
        *self.happened.entry(reason.into()).or_default() += checks;
    }

    /// The reasons for which an address really was assigned to two.
    pub fn happened(&self) -> BTreeSet<&str> {
        self.happened.keys().map(Words::as_ref).collect()
    }

    /// The reasons for which checks were left out.
    pub fn reasons(&self) -> BTreeSet<&str> {
        self.allowed.values().flat_map(BTreeMap::keys).map(Words::as_ref).collect()
    }

    /// The share of its checks that each reason left out, for each law that allows violations.
    pub fn shares(&self) -> Vec<Share> {
        let of_law = |(law, reasons): (&Words, &BTreeMap<Words, u64>)| {
            let checks = self.checks.get(law).copied().unwrap_or_default();
            let share = |(reason, uses): (&Words, &u64)| Share {
                law: law.clone(),
                reason: reason.clone(),
                uses: *uses,
                checks,
            };
            reasons.iter().map(share).collect::<Vec<_>>()
        };
        self.allowed.iter().flat_map(of_law).collect()
    }

    /// How many of its checks all reasons together left out, for each law that allows violations: law, checks left out, all checks.
    pub fn left_out(&self) -> Vec<(&str, u64, u64)> {
        let mut found = Vec::new();
        for (law, reasons) in &self.allowed {
            let checks = self.checks.get(law).copied().unwrap_or_default();
            found.push((law.as_ref(), reasons.values().sum(), checks));
        }
        found
    }

    /// The count of `what`.
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// What must happen in a run and did not.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for what in EXPECTED.into_iter().chain(AGENT).filter(|what| self.of(what) == 0) {
            missing.push(what.to_owned());
        }
        for code in CODES {
            for request in REQUESTS {
                let names = [false, true].map(|is_done| error_name(request, code, is_done));
                missing.extend(names.into_iter().filter(|name| self.of(name) == 0));
            }
            for request in RARE_REQUESTS {
                if [false, true].into_iter().all(|is_done| self.of(&error_name(request, code, is_done)) == 0) {
                    missing.push(error_name(request, code, false));
                }
            }
        }
        missing
    }
}

impl Display for Activity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(what, count)| writeln!(f, "{count:>12}  {what}"))?;
        self.checks.iter().try_for_each(|(law, count)| writeln!(f, "{count:>12}  checks of {law}"))?;
        self.shares().iter().try_for_each(|share| writeln!(f, "{share}"))?;
        self.happened.iter().try_for_each(|(reason, checks)| {
            writeln!(f, "{checks:>12}  checks found an address assigned twice, as {reason} allows")
        })
    }
}

/// How many checks of a law one reason left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The law.
    pub law: Words,
    /// The reason.
    pub reason: Words,
    /// Checks that the reason left out.
    pub uses: u64,
    /// All checks of the law.
    pub checks: u64,
}

impl Share {
    /// Whether the reason left out more than this many percent of the law's checks.
    pub const fn is_above(&self, percent: u64) -> bool {
        self.uses * 100 > self.checks * percent
    }
}

impl Display for Share {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let hundredths = self.uses * 10_000 / self.checks.max(1);
        let (percent, rest) = (hundredths / 100, hundredths % 100);
        write!(f, "{percent:>9}.{rest:02} %  of the checks of {} are left out: {}", self.law, self.reason)
    }
}
