//! When a report is written, and what the answer to it means: the reporter's decisions, without IO.

use std::collections::VecDeque;
use std::time::Duration;

use ipam_core::{GrantId, PoolKey};
use ipam_crds::{IPAMNode, IPAMNodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::Instant;

use super::idle::Unused;
use super::{Report, Urgency, confirmed, ready_condition, status_patch};
use crate::allocator::Holdings;
use crate::standing::Standing;
use crate::watch::InForce;

/// Shortest time between two writes.
const SOON: Duration = Duration::from_secs(1);
/// Time that a report waits beyond that if it only tells other addresses or counts.
const LATER: Duration = Duration::from_secs(9);
/// While writes fail, and for this long after they are taken again, counts and addresses wait no longer than other news: what
/// moved during an outage, and while it came to its end, is to be known within seconds.
const LIVELY: Duration = Duration::from_secs(15);
/// Pauses after failed writes, doubling from the first to the last.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The longest pause after writes that reached nobody: an API server that is away costs nothing, and one that is back is to
/// hear soon what pods hold.
pub const UNREACHED: Duration = Duration::from_secs(3);
/// Number of written versions that are remembered until the watch shows them.
const MOST_UNSEEN: usize = 16;
/// Time that one write may take. Without an answer by then it counts as [`Outcome::Unreached`].
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

/// What came of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The API server has the report, in this version of the object.
    Written(String),
    /// The object has another version by now, of which the watch will tell.
    Conflict,
    /// The API server has answered with an error.
    Refused,
    /// No answer came. The API server may have the report or not.
    Unreached,
    /// The API server has the report, in this version of the object, and the agent could not record the grants that the answer
    /// confirms.
    Unconfirmed(String),
}

impl From<&kube::Error> for Outcome {
    fn from(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            kube::Error::Api(_) => Self::Refused,
            _ => Self::Unreached,
        }
    }
}

/// One write of a report.
#[derive(Clone, Debug)]
pub struct Write {
    report: Report,
    /// The version of the object that it replaces.
    resource_version: String,
    status: IPAMNodeStatus,
}

impl Write {
    /// The JSON patch of the object.
    pub fn patch(&self) -> serde_json::Value {
        status_patch(&self.report.uid, &self.resource_version, &self.status)
    }

    /// Whether the answer is to be the whole object, because it can confirm grants.
    pub fn wants_object(&self) -> bool {
        !self.report.unconfirmed.is_empty()
    }

    /// The grants that `object`, which is the answer to this write, confirms.
    pub fn confirmed(&self, object: &IPAMNode) -> Vec<(PoolKey, GrantId)> {
        confirmed(&self.report.unconfirmed, &self.report.uid, object)
    }
}

/// What the reporter does next.
#[derive(Clone, Debug)]
pub enum Next {
    /// Nothing, until something changes.
    Wait,
    /// Nothing before this time, unless something changes.
    At(Instant),
    /// The allocator is to make these grants idle.
    Rest(Vec<(PoolKey, GrantId)>),
    /// This write.
    Write(Box<Write>),
}

/// What the API server has, as far as this process knows, and when the next report is due.
#[derive(Clone, Debug)]
pub struct Reports {
    pace: Pace,
    /// What the API server has shown last.
    standing: Option<Standing>,
    /// The version of the object that was shown or written last.
    resource_version: String,
    /// Versions that this process has written and the watch has not shown yet.
    unseen: VecDeque<String>,
    /// The Ready condition that the API server has, so that its transition time survives a restart.
    ready: Option<Condition>,
    /// Grants of which no address is in use.
    unused: Unused,
}

impl Reports {
    /// Nothing is written yet.
    pub fn new(now: Instant) -> Self {
        Self {
            pace: Pace::new(now),
            standing: None,
            resource_version: String::new(),
            unseen: VecDeque::new(),
            ready: None,
            unused: Unused::default(),
        }
    }

    /// What to do with what is in force and in use. `wall` is the time that a status shows.
    pub fn next(&mut self, in_force: &InForce, holdings: &Holdings, now: Instant, wall: jiff::Timestamp) -> Next {
        let Some(standing) = &in_force.standing else { return Next::Wait };
        self.see(standing);
        let Some(report) = Report::new(in_force, holdings) else { return Next::Wait };
        let (idle, next_idle) = self.unused.look(holdings, now);
        // While reports fail, the operator would not know of an idle grant.
        if !idle.is_empty() && self.pace.failures == 0 {
            return Next::Rest(idle);
        }
        match self.pace.due(&report) {
            None => next_idle.map_or(Next::Wait, Next::At),
            Some(due) if now < due => Next::At(next_idle.map_or(due, |idle| idle.min(due))),
            Some(_) => Next::Write(Box::new(self.write(report, wall))),
        }
    }

    /// The write before the agent ends, if there is any news. It waits for nothing.
    pub fn last(&mut self, in_force: &InForce, holdings: &Holdings, wall: jiff::Timestamp) -> Option<Write> {
        self.see(in_force.standing.as_ref()?);
        let report = Report::new(in_force, holdings)?;
        let is_news = report.urgency(self.pace.last.as_ref()) != Urgency::No;
        is_news.then(|| self.write(report, wall))
    }

    fn write(&self, report: Report, wall: jiff::Timestamp) -> Write {
        let status = report.status(self.ready.as_ref(), wall);
        Write { report, resource_version: self.resource_version.clone(), status }
    }

    /// The allocator was asked to make grants idle. Those that it could not are looked at again later.
    pub fn rested(&mut self, asked: &[(PoolKey, GrantId)]) {
        self.unused.restart(asked);
    }

    /// Takes note of what the API server shows.
    fn see(&mut self, standing: &Standing) {
        if self.standing.as_ref() != Some(standing) {
            self.standing = Some(standing.clone());
            match self.unseen.iter().position(|written| *written == standing.resource_version) {
                Some(place) => drop(self.unseen.drain(..=place)),
                None => self.unseen.clear(),
            }
            if !self.unseen.is_empty() {
                // The watch is behind: a later report of this process has taken the place of this one.
                return;
            }
            self.pace.shown(Report::read(standing));
            self.pace.conflicts = 0;
            // Of a status that somebody has wiped the condition's time is remembered.
            self.ready = ready_condition(&standing.status).cloned().or(self.ready.take());
            self.resource_version.clone_from(&standing.resource_version);
        }
    }

    /// The API server is there: the next try need not wait.
    pub fn heard(&mut self, now: Instant) {
        self.pace.heard(now);
    }

    /// The write has ended. Returns how many writes in a row had failed before it.
    pub fn ended(&mut self, write: Write, outcome: &Outcome, now: Instant) -> u32 {
        let failures = self.pace.failures;
        if let Outcome::Written(version) | Outcome::Unconfirmed(version) = outcome {
            self.resource_version.clone_from(version);
            self.unseen.push_back(version.clone());
            self.unseen.drain(..self.unseen.len().saturating_sub(MOST_UNSEEN));
        }
        match outcome {
            Outcome::Written(_) => {
                self.ready = write.status.conditions.into_iter().next();
                self.pace.written(write.report, now);
            }
            Outcome::Conflict => {
                // The watch is believed again, whatever it has shown of versions of this process.
                self.unseen.clear();
                if let Some(standing) = &self.standing {
                    self.resource_version.clone_from(&standing.resource_version);
                    self.pace.shown(Report::read(standing));
                }
                self.pace.conflicted(now);
            }
            Outcome::Refused | Outcome::Unconfirmed(_) => self.pace.failed(now),
            Outcome::Unreached => self.pace.unreached(now),
        }
        failures
    }

    /// Number of conflicts in a row since the watch has shown the object.
    pub fn conflicts(&self) -> u32 {
        self.pace.conflicts
    }

    /// The earliest time of the next write.
    pub fn not_before(&self) -> Instant {
        self.pace.urgent_not_before.min(self.pace.not_before)
    }
}

/// When the next report is due.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pace {
    /// The report that the API server has, as far as this process knows.
    last: Option<Report>,
    not_before: Instant,
    /// The earliest time of a write for which pods may wait.
    urgent_not_before: Instant,
    failures: u32,
    /// Conflicts in a row since the watch has shown the object.
    conflicts: u32,
    lively_until: Option<Instant>,
}

impl Pace {
    /// Nothing is written yet; the first report is due at once.
    const fn new(now: Instant) -> Self {
        Self { last: None, not_before: now, urgent_not_before: now, failures: 0, conflicts: 0, lively_until: None }
    }

    /// When `report` should be written; `None` if it tells nothing new.
    fn due(&self, report: &Report) -> Option<Instant> {
        match report.urgency(self.last.as_ref()) {
            Urgency::No => None,
            Urgency::Now => Some(self.urgent_not_before.min(self.not_before)),
            Urgency::Soon => Some(self.not_before),
            Urgency::Later if self.is_lively() => Some(self.not_before),
            Urgency::Later => Some(self.not_before + LATER),
        }
    }

    /// Whether writes fail, or have failed until a moment ago.
    fn is_lively(&self) -> bool {
        self.failures > 0 || self.lively_until.is_some_and(|until| self.not_before < until)
    }

    /// The API server shows `report`, whoever wrote it.
    fn shown(&mut self, report: Report) {
        self.last = Some(report);
    }

    /// `report` was written.
    fn written(&mut self, report: Report, now: Instant) {
        self.not_before = now + SOON;
        // What this report could not confirm is reported again after a second, or with the next news of the watch.
        self.urgent_not_before = if report.unconfirmed.is_empty() { now } else { self.not_before };
        self.last = Some(Report { unconfirmed: Vec::new(), ..report });
        if self.failures > 0 {
            self.lively_until = Some(now + LIVELY);
        }
        (self.failures, self.conflicts) = (0, 0);
    }

    fn heard(&mut self, now: Instant) {
        if self.failures > 0 {
            self.not_before = self.not_before.min(now);
        }
        self.urgent_not_before = self.urgent_not_before.min(now);
    }

    /// A write reached nobody.
    fn unreached(&mut self, now: Instant) {
        self.failed(now);
        self.not_before = self.not_before.min(now + UNREACHED);
        self.urgent_not_before = self.not_before;
    }

    /// The object has changed. The watch shows it soon. If it does not, the pauses grow.
    fn conflicted(&mut self, now: Instant) {
        self.not_before = now + SOON.saturating_mul(1 << self.conflicts.min(6)).min(RETRY.1);
        self.urgent_not_before = self.not_before;
        self.conflicts = self.conflicts.saturating_add(1);
    }

    /// A write failed.
    fn failed(&mut self, now: Instant) {
        self.not_before = now + RETRY.0.saturating_mul(1 << self.failures.min(6)).min(RETRY.1);
        // Pods may wait for a confirmation.
        self.urgent_not_before = self.not_before.min(now + UNREACHED);
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::super::tests::{holdings, in_force, report};
    use super::*;

    #[test]
    fn a_report_shown_by_the_api_server_that_is_not_the_last_one_is_written_over() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.written(report(1), start);
        pace.shown(report(0));
        assert_eq!(pace.due(&report(1)), Some(start + SOON));
    }

    #[test]
    fn writes_are_a_second_apart_those_of_counts_ten_and_failures_back_off() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.due(&report(1)), Some(start));
        pace.written(report(1), start);
        assert_eq!(pace.due(&report(1)), None, "without news there is silence");
        assert_eq!(pace.due(&report(0)), Some(start + Duration::from_secs(1)));
        assert_eq!(pace.due(&report(2)), Some(start + Duration::from_secs(10)));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pace.failed(start);
            pauses.push((pace.not_before - start).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        pace.unreached(start);
        assert_eq!(pace.due(&report(0)), Some(start + UNREACHED), "a server that is away is tried again soon");
        pace.heard(start);
        assert_eq!(pace.due(&report(0)), Some(start), "and one that is back at once");
        assert_eq!(pace.failures, 9);
    }

    #[test]
    fn counts_are_told_soon_for_a_while_after_an_outage() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.written(report(1), start);
        pace.unreached(start);
        assert_eq!(pace.due(&report(2)), Some(start + RETRY.0), "tried again like any other");
        pace.written(report(1), start);
        assert_eq!(pace.due(&report(2)), Some(start + SOON), "pods came while the API server was not yet ready");
        let later = start + LIVELY;
        pace.written(report(2), later);
        assert_eq!(pace.due(&report(3)), Some(later + SOON + LATER));
    }

    #[test]
    fn an_error_code_is_refused_or_a_conflict_and_no_answer_is_unreached() {
        let answer =
            |code| Outcome::from(&kube::Error::Api(Box::new(Status::failure("no", "Unknown").with_code(code))));
        for code in [401, 403, 404, 410, 422, 429, 500, 503, 504] {
            assert_eq!(answer(code), Outcome::Refused, "{code}");
        }
        assert_eq!(answer(409), Outcome::Conflict);
        let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert_eq!(Outcome::from(&kube::Error::Service(gone.into())), Outcome::Unreached);
    }

    /// What to do for `used` addresses of an object that shows no report yet.
    fn next(reports: &mut Reports, used: u64, now: Instant) -> Next {
        let shown = InForce { standing: Some(Standing::default()), ..in_force(Vec::new()) };
        reports.next(&shown, &holdings(used, 7), now, jiff::Timestamp::now())
    }

    #[test]
    fn a_report_is_written_until_one_write_succeeds() {
        let mut now = Instant::now();
        let mut reports = Reports::new(now);
        let mut failures = Vec::new();
        for outcome in [Outcome::Refused, Outcome::Unreached, Outcome::Written("2".into())] {
            let Next::Write(write) = next(&mut reports, 1, now) else { panic!("{outcome:?}: no write is due") };
            failures.push(reports.ended(*write, &outcome, now));
            if let Next::At(due) = next(&mut reports, 1, now) {
                now = due;
            }
        }
        assert_eq!(failures, [0, 1, 2]);
        assert!(matches!(next(&mut reports, 1, now), Next::Wait), "the API server has it");
    }

    #[test]
    fn a_report_replaces_the_version_that_was_shown_or_written_last() {
        let now = Instant::now();
        let mut reports = Reports::new(now);
        let show = |reports: &mut Reports, version: &str, used, arrival, now| {
            let standing = Standing { resource_version: version.into(), arrival, ..Standing::default() };
            let shown = InForce { standing: Some(standing), ..in_force(Vec::new()) };
            let next = reports.next(&shown, &holdings(used, 7), now, jiff::Timestamp::now());
            let Next::Write(write) = next else { panic!("{next:?}") };
            write
        };
        let of_version = |write: &Write| write.patch()[1]["value"].clone();
        let first = show(&mut reports, "4", 1, 1, now);
        assert_eq!(of_version(&first), "4");
        reports.ended(*first, &Outcome::Written("5".into()), now);
        let later = now + SOON;
        let second = show(&mut reports, "4", 0, 1, later);
        assert_eq!(of_version(&second), "5", "the watch lags behind the answer");
        assert_eq!(reports.ended(*second, &Outcome::Conflict, later), 0);
        let third = show(&mut reports, "7", 0, 2, later + SOON);
        assert_eq!((of_version(&third), reports.ended(*third, &Outcome::Conflict, later)), ("7".into(), 0));
    }

    #[test]
    fn conflicts_back_off_until_the_watch_shows_the_object() {
        let mut now = Instant::now();
        let mut reports = Reports::new(now);
        let shown = |arrival, version: &str| {
            let standing = Standing { resource_version: version.into(), arrival, ..Standing::default() };
            InForce { standing: Some(standing), ..in_force(Vec::new()) }
        };
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let Next::Write(write) = reports.next(&shown(1, "4"), &holdings(1, 7), now, jiff::Timestamp::now()) else {
                panic!("no write is due")
            };
            reports.ended(*write, &Outcome::Conflict, now);
            pauses.push((reports.not_before() - now).as_secs());
            now = reports.not_before();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let Next::Write(write) = reports.next(&shown(2, "5"), &holdings(1, 7), now, jiff::Timestamp::now()) else {
            panic!("no write is due")
        };
        reports.ended(*write, &Outcome::Conflict, now);
        assert_eq!(reports.not_before(), now + SOON, "the watch goes on");
    }

    #[test]
    fn a_report_of_its_own_that_the_watch_shows_late_says_nothing() {
        let now = Instant::now();
        let mut reports = Reports::new(now);
        let show = |reports: &mut Reports, version: &str, used, arrival, now| {
            let standing = Standing { resource_version: version.into(), arrival, ..Standing::default() };
            let shown = InForce { standing: Some(standing), ..in_force(Vec::new()) };
            reports.next(&shown, &holdings(used, 7), now, jiff::Timestamp::now())
        };
        let write = |reports: &mut Reports, used, version: &str, now| {
            let Next::Write(write) = show(reports, "4", used, 1, now) else { panic!("no write is due") };
            reports.ended(*write, &Outcome::Written(version.into()), now);
        };
        write(&mut reports, 1, "5", now);
        write(&mut reports, 0, "6", now + SOON);
        let behind = show(&mut reports, "5", 0, 2, now + SOON);
        assert!(matches!(behind, Next::Wait), "{behind:?}");
        let Next::Write(by_another) = show(&mut reports, "7", 0, 3, now + 2 * SOON) else { panic!("no write is due") };
        assert_eq!(by_another.patch()[1]["value"], "7");
    }

    #[test]
    fn an_earlier_report_that_arrives_again_is_written_over() {
        let now = Instant::now();
        let mut reports = Reports::new(now);
        let Next::Write(write) = next(&mut reports, 1, now) else { panic!("no write is due") };
        reports.ended(*write, &Outcome::Written("2".into()), now);
        assert!(matches!(next(&mut reports, 1, now), Next::Wait));
        // A restored API server shows what it showed before the write.
        let standing = Some(Standing { arrival: 1, ..Standing::default() });
        let shown = InForce { standing, ..in_force(Vec::new()) };
        let again = reports.next(&shown, &holdings(1, 7), now, jiff::Timestamp::now());
        assert!(matches!(again, Next::At(_)), "{again:?}");
    }

    #[test]
    fn an_object_that_was_not_shown_gets_no_report() {
        let now = Instant::now();
        let mut reports = Reports::new(now);
        let next = reports.next(&in_force(Vec::new()), &holdings(1, 7), now, jiff::Timestamp::now());
        assert!(matches!(next, Next::Wait));
    }
}
