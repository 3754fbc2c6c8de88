//! Samples of one quantity and what the table says of them: their number, the median and the 90th percentile.

use std::time::Duration;

/// What the numbers of a sample count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Seconds.
    Time,
    /// Resident memory, in KiB.
    Memory,
    /// Bytes.
    Bytes,
    /// One number divided by another.
    Ratio,
    /// Something that the text names, such as `op/s`.
    Of(&'static str),
}

impl Unit {
    /// A value with its unit and three significant digits. Bytes are whole.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Time if value >= 1.0 => format!("{} s", digits(value)),
            Self::Time => format!("{} ms", digits(value * 1e3)),
            Self::Memory => format!("{} MiB", digits(value / 1024.0)),
            Self::Bytes if value >= 100_000.0 => format!("{} kB", digits(value / 1e3)),
            Self::Bytes => format!("{value:.0} B"),
            Self::Ratio => format!("{} ×", digits(value)),
            Self::Of(unit) => format!("{} {unit}", digits(value)),
        }
    }
}

/// Three significant digits, without zeros at the end of a fraction.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number that may be large, for a sample. Above 2^53 the last digits are lost.
#[expect(clippy::cast_precision_loss, reason = "no sample comes near 2^53")]
pub(super) fn number(value: u64) -> f64 {
    value as f64
}

/// Measurements of one quantity, sorted.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Samples {
    unit: Unit,
    sorted: Vec<f64>,
}

impl Samples {
    pub(super) fn new(unit: Unit, values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Self { unit, sorted }
    }

    pub(super) fn times(times: impl IntoIterator<Item = Duration>) -> Self {
        Self::new(Unit::Time, times.into_iter().map(|time| time.as_secs_f64()))
    }

    pub(super) fn counts(unit: Unit, counts: impl IntoIterator<Item = u64>) -> Self {
        Self::new(unit, counts.into_iter().map(number))
    }

    pub(super) fn unit(&self) -> Unit {
        self.unit
    }

    /// How many there are.
    pub(super) fn n(&self) -> usize {
        self.sorted.len()
    }

    /// Nearest-rank percentile, 1 to 100; zero without samples.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.sorted.len() * percent).div_ceil(100);
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    pub(super) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// A percentile in words.
    pub(super) fn show(&self, percent: usize) -> String {
        self.unit.show(self.percentile(percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_were_measured() {
        let samples = Samples::times((1..=200).rev().map(Duration::from_millis));
        assert_eq!((samples.n(), samples.show(50), samples.show(90)), (200, "100 ms".into(), "180 ms".into()));
        assert_eq!(samples.show(99), "198 ms");
        assert_eq!(Samples::times([Duration::from_secs(2)]).show(90), "2 s");
        assert_eq!(Samples::times([]).show(50), "0 ms");
    }

    #[test]
    fn values_have_three_significant_digits_and_a_unit() {
        let shown = [
            Unit::Time.show(0.000_194_4),
            Unit::Time.show(6.876),
            Unit::Memory.show(9.04 * 1024.0),
            Unit::Bytes.show(3812.0),
            Unit::Bytes.show(390_400.0),
            Unit::Ratio.show(1.784),
            Unit::Of("op/s").show(24_822.4),
            Unit::Of("writes/s").show(0.0),
        ];
        let wanted = ["0.194 ms", "6.88 s", "9.04 MiB", "3812 B", "390 kB", "1.78 ×", "24822 op/s", "0 writes/s"];
        assert_eq!(shown, wanted);
    }
}
