//! One row of the table: what was measured, the aim, the samples, and whether they reach the aim.

use super::stats::{Samples, Unit};

/// Words that a cell has at most.
const CELL: usize = 20;

/// Whether a row reaches its aim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// The row has no aim.
    None,
    Met,
    Missed,
}

/// Which end of the samples is the worse one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Worse {
    High,
    Low,
}

/// One row of the table.
pub(super) struct Finding {
    what: String,
    reference: &'static str,
    aims: Vec<String>,
    samples: Samples,
    worse: Worse,
    also: String,
    verdict: Verdict,
}

impl Finding {
    /// A row without an aim.
    pub(super) fn new(what: impl Into<String>, samples: Samples) -> Self {
        let (reference, worse, verdict) = ("–", Worse::High, Verdict::None);
        Self { what: what.into(), reference, aims: Vec::new(), samples, worse, also: String::new(), verdict }
    }

    /// A row whose time ran out: it misses the aim, and says what was reached.
    pub(super) fn unfinished(what: impl Into<String>, aim: impl Into<String>, reached: &str) -> Self {
        let row = Self::new(what, Samples::times([])).also(format!("not finished: {reached}"));
        Self { aims: vec![aim.into()], verdict: Verdict::Missed, ..row }
    }

    /// The figure of the reference implementation on two cores, which is not measured here.
    pub(super) fn reference(mut self, figure: &'static str) -> Self {
        self.reference = figure;
        self
    }

    /// Further figures, in at most 20 words.
    pub(super) fn also(mut self, text: impl Into<String>) -> Self {
        self.also = text.into();
        self
    }

    /// The median must be at most this.
    pub(super) fn at_most(self, most: f64) -> Self {
        let met = self.has_samples() && self.samples.median() <= most;
        let aim = format!("≤ {}", self.unit().show(most));
        self.demand(aim, met)
    }

    /// The median must be at least this; the table then shows the 10th percentile.
    pub(super) fn at_least(mut self, least: f64) -> Self {
        self.worse = Worse::Low;
        let met = self.has_samples() && self.samples.median() >= least;
        let aim = format!("≥ {}", self.unit().show(least));
        self.demand(aim, met)
    }

    /// Each single sample must be at most this.
    pub(super) fn each_at_most(self, most: f64) -> Self {
        let met = self.has_samples() && self.samples.percentile(100) <= most;
        let aim = format!("each ≤ {}", self.unit().show(most));
        self.demand(aim, met)
    }

    /// Something else must hold too.
    pub(super) fn demand(mut self, aim: impl Into<String>, met: bool) -> Self {
        self.aims.push(aim.into());
        self.verdict = if met && self.verdict != Verdict::Missed { Verdict::Met } else { Verdict::Missed };
        self
    }

    fn unit(&self) -> Unit {
        self.samples.unit()
    }

    fn has_samples(&self) -> bool {
        self.samples.n() > 0
    }

    fn aim(&self) -> String {
        if self.aims.is_empty() { "–".to_owned() } else { self.aims.join(", ") }
    }

    fn verdict(&self) -> &'static str {
        match self.verdict {
            Verdict::None => "–",
            Verdict::Met => "met",
            Verdict::Missed => "**missed**",
        }
    }

    /// Number, median and the worse end of the samples.
    fn figures(&self) -> [String; 3] {
        match (self.samples.n(), self.worse) {
            (0, _) => ["–".to_owned(), "–".to_owned(), "–".to_owned()],
            (n, Worse::High) => [n.to_string(), self.samples.show(50), self.samples.show(90)],
            (n, Worse::Low) => [n.to_string(), self.samples.show(50), format!("p10 {}", self.samples.show(10))],
        }
    }

    /// In one line, for progress.
    pub(super) fn line(&self) -> String {
        let [n, median, worse] = self.figures();
        let also = if self.also.is_empty() { String::new() } else { format!("; {}", self.also) };
        let worse = if self.worse == Worse::High { format!("p90 {worse}") } else { worse };
        format!("{}: n {n}, median {median}, {worse}{also} (aim {}: {})", self.what, self.aim(), self.verdict())
    }

    /// Whether it is the row of this name, or the first of those that begin with it.
    pub(super) fn is_about(&self, row: &str) -> bool {
        self.what.strip_prefix(row).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// The cells of the table, in the order of [`COLUMNS`].
    pub(super) fn cells(&self) -> [String; COLUMNS.len()] {
        let [n, median, worse] = self.figures();
        let verdict = self.verdict().to_owned();
        let cells =
            [self.what.clone(), self.reference.to_owned(), self.aim(), n, median, worse, self.also.clone(), verdict];
        cells.map(|text| cell(&text))
    }
}

/// The columns of the table.
pub(super) const COLUMNS: [&str; 8] = ["what", "nv-ipam", "aim", "n", "median", "p90", "also", "verdict"];

/// Text for a cell: one line, at most 20 words, and no bar that would end it.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let kept = words.iter().take(CELL).copied().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if words.len() > CELL { format!("{kept} …") } else { kept }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(millis: &[u64]) -> Finding {
        Finding::new("a", Samples::times(millis.iter().copied().map(Duration::from_millis)))
    }

    #[test]
    fn the_median_decides_about_an_aim() {
        let cells = row(&[10, 20, 90]).reference("r").at_most(0.02).also("b").cells();
        assert_eq!(cells, ["a", "r", "≤ 20 ms", "3", "20 ms", "90 ms", "b", "met"]);
        assert_eq!(row(&[10, 21, 22]).at_most(0.02).cells()[7], "**missed**");
        assert_eq!(row(&[10, 20, 90]).each_at_most(0.02).cells()[7], "**missed**");
    }

    #[test]
    fn a_rate_shows_its_tenth_percentile() {
        let rates = Finding::new("a", Samples::counts(Unit::Of("op/s"), 1..=10)).at_least(5.0).cells();
        assert_eq!(rates[2..6], ["≥ 5 op/s", "10", "5 op/s", "p10 1 op/s"]);
        assert_eq!(rates[7], "met");
    }

    #[test]
    fn one_missed_demand_is_a_missed_row() {
        let cells = row(&[1]).demand("none failed", false).at_most(1.0).cells();
        assert_eq!((cells[2].as_str(), cells[7].as_str()), ("none failed, ≤ 1 s", "**missed**"));
    }

    #[test]
    fn a_row_without_samples_never_meets_an_aim() {
        assert_eq!(row(&[]).at_most(1.0).cells()[7], "**missed**");
        assert_eq!(row(&[1]).cells()[7], "–");
        let unfinished = Finding::unfinished("a", "in 1 min", "3 of 5").cells();
        assert_eq!(unfinished[2..], ["in 1 min", "–", "–", "–", "not finished: 3 of 5", "**missed**"]);
    }

    #[test]
    fn a_cell_is_one_line_of_twenty_words() {
        let long = "a|b\n".repeat(30);
        let text = cell(&long);
        assert!(!text.contains('\n') && text.starts_with("a\\|b a") && text.split(' ').count() == 21, "{text}");
    }
}
