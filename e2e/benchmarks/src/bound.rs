//! Rows with a limit of time: one that does not finish is missed, with what it reached.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::timeout;

use super::finding::Finding;
use ipam_e2e::eventually::Late;
use ipam_e2e::progress::say;

/// A list of rows that must be measured within a time.
pub(super) struct Bound {
    ends: Instant,
    limit: Duration,
    doing: String,
    expected: Vec<String>,
    found: Vec<Finding>,
}

impl Bound {
    /// Measures until `work` is done or the time is over. Only a wait that runs out makes a missed row; any other error fails the run.
    ///
    /// # Errors
    /// Those of `work`, except a wait that ran out.
    pub(super) fn run(limit: Duration, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Vec<Finding>> {
        let (doing, expected, found) = (String::new(), Vec::new(), Vec::new());
        let mut bound = Self { ends: Instant::now() + limit, limit, doing, expected, found };
        match work(&mut bound) {
            Ok(()) => Ok(bound.found),
            Err(error) => bound.end(error),
        }
    }

    fn end(mut self, error: anyhow::Error) -> Result<Vec<Finding>> {
        let Some(late) = error.downcast_ref::<Late>() else { return Err(error.context(self.doing)) };
        say(&format!("bench: {}: {error:#}", self.doing));
        let aim = format!("all of it within {} s", self.limit.as_secs());
        let is_missing = |row: &String| *row != self.doing && !self.found.iter().any(|found| found.is_about(row));
        let missing = self.expected.iter().filter(|row| is_missing(row));
        let missing: Vec<_> = missing.map(|row| Finding::unfinished(row, aim.clone(), "not begun")).collect();
        self.found.push(Finding::unfinished(self.doing, aim, &late.reached));
        self.found.extend(missing);
        Ok(self.found)
    }

    /// Names rows that are measured later. If an earlier row does not finish, they are missed, too.
    pub(super) fn expect(&mut self, rows: impl IntoIterator<Item = String>) {
        self.expected.extend(rows);
    }

    /// Names the row that is measured next.
    pub(super) fn begin(&mut self, what: impl Into<String>) -> String {
        self.doing = what.into();
        self.doing.clone()
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// A row is complete.
    pub(super) fn found(&mut self, finding: Finding) {
        self.found.push(finding);
    }
}

/// Awaits `work`, at most `within`.
///
/// # Errors
/// Those of `work`; [`Late`] with `reached` when the time is over.
pub(super) async fn in_time<T>(
    what: &str,
    within: Duration,
    work: impl Future<Output = Result<T>>,
    reached: impl FnOnce() -> String,
) -> Result<T> {
    match timeout(within, work).await {
        Ok(done) => done,
        Err(_) => Err(Late { what: what.to_owned(), within, reached: reached() }.into()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;
    use crate::stats::Samples;
    use ipam_e2e::eventually::eventually_blocking;

    #[test]
    fn a_wait_that_runs_out_is_a_missed_row() {
        let found = Bound::run(Duration::from_mins(1), |bound| {
            let what = bound.begin("first");
            bound.found(Finding::new(what, Samples::times([])));
            bound.expect(["first", "second", "third"].map(str::to_owned));
            bound.begin("second");
            eventually_blocking("all", Duration::ZERO, || -> Result<()> { bail!("3 of 5") })
        });
        let cells: Vec<_> = found.unwrap().iter().map(Finding::cells).collect();
        assert_eq!((cells.len(), cells[1][0].as_str(), cells[1][7].as_str()), (3, "second", "**missed**"));
        assert_eq!((cells[2][0].as_str(), cells[2][7].as_str()), ("third", "**missed**"));
        assert!(cells[1][6].contains("3 of 5") && cells[1][2] == "all of it within 60 s", "{:?}", cells[1]);
    }

    #[test]
    fn another_error_fails_the_run() {
        let failed = Bound::run(Duration::from_mins(1), |bound| {
            bound.begin("row");
            bail!("broken")
        });
        assert!(format!("{:#}", failed.err().unwrap()).contains("row: broken"));
    }

    #[tokio::test]
    async fn an_await_that_runs_out_tells_what_it_reached() {
        let never = std::future::pending::<Result<()>>();
        let error = in_time("x", Duration::from_millis(1), never, || "half".into()).await.unwrap_err();
        assert_eq!(error.downcast_ref::<Late>().unwrap().reached, "half");
    }
}
