//! How many bytes of pool statuses may be written, over all pools.
//!
//! A status lists the block of each node, and each write sends all of it. At 5,000 nodes it has 390 kB. So a few pools under pod
//! churn would fill etcd and keep the API server too busy to renew the Lease. Writes that a user waits for (a block assigned or
//! released, another condition) get two thirds of the bytes. Counts of addresses get one third. A lone write never waits.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_mins(1);
/// By so much, statuses that a user waits for delay counts alone. Without a limit, hours of an upgrade would delay them by hours.
const MOST_DELAY: Duration = Duration::from_secs(10);

/// The bytes that may be written.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    urgent: Bucket,
    counts: Bucket,
}

/// A token bucket, in bytes. A write may take more than the bucket holds. The next write then waits until it has refilled.
#[derive(Clone, Debug)]
struct Bucket {
    /// Bytes in a minute.
    rate: u64,
    /// Its capacity: the bytes that may be written at once after a pause.
    most: u64,
    /// When it is full again if nothing more is taken.
    full_at: Option<Instant>,
}

impl Budget {
    /// Returns a budget of `per_minute` bytes in a minute.
    pub(super) const fn new(per_minute: u64) -> Self {
        let counts = per_minute / 3;
        let urgent = per_minute - counts;
        Self { urgent: Bucket::new(urgent, urgent / 2), counts: Bucket::new(counts, counts / 4) }
    }

    /// Takes the bytes of a status that a user waits for, and returns when it may be written; `now` if at once. Who asks first writes
    /// first: a pool that waits has its bytes, whatever other pools ask for meanwhile.
    pub(super) fn take_turn(&mut self, bytes: u64, now: Instant) -> Instant {
        let turn = self.urgent.ready_at(now);
        self.urgent.take(bytes, now);
        turn
    }

    /// When a status may be written in which only counts of addresses are new.
    pub(super) fn counts_at(&self, now: Instant) -> Instant {
        self.counts.ready_at(now).max(self.urgent.ready_at(now))
    }

    /// Takes the bytes of a status in which only counts are new. Returns when it may be written.
    pub(super) fn take_counts(&mut self, bytes: u64, now: Instant) -> Instant {
        let turn = self.counts_at(now);
        self.counts.take(bytes, now);
        turn
    }

    /// Takes the bytes of a status that a user waits for from the share of counts, too, because it also has counts. So counts alone wait
    /// longer, by [`MOST_DELAY`] at most.
    pub(super) fn carry_counts(&mut self, bytes: u64, now: Instant) {
        let latest = now + MOST_DELAY;
        if self.counts.ready_at(now) < latest {
            self.counts.take(bytes, now);
            self.counts.be_ready_by(latest);
        }
    }
}

impl Bucket {
    const fn new(rate: u64, most: u64) -> Self {
        Self { rate, most, full_at: None }
    }

    /// The time in which the bucket gains `bytes`.
    fn time_for(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * MINUTE.as_nanos() / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When it has a byte or more.
    fn ready_at(&self, now: Instant) -> Instant {
        let Some(full_at) = self.full_at else { return now };
        // The bucket fills from empty in `time_for(most)`, so it has a byte from that long before it is full.
        now + full_at.saturating_duration_since(now + self.time_for(self.most))
    }

    /// Has a byte at this time.
    fn be_ready_by(&mut self, latest: Instant) {
        let full_at = latest + self.time_for(self.most);
        self.full_at = self.full_at.map(|at| at.min(full_at));
    }

    fn take(&mut self, bytes: u64, now: Instant) {
        let from = self.full_at.filter(|full_at| *full_at > now).unwrap_or(now);
        self.full_at = Some(from + self.time_for(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a pool with 5,000 nodes.
    const STATUS: u64 = 390_000;

    #[test]
    fn hours_of_statuses_for_users_delay_counts_by_seconds() {
        let (mut now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        for _ in 0..10_000 {
            now = budget.take_turn(STATUS, now).max(now);
            budget.carry_counts(STATUS, now);
        }
        let wait = budget.take_counts(STATUS, now) - now;
        assert!(wait <= MOST_DELAY && wait > MOST_DELAY / 2, "{wait:?}");
    }

    #[test]
    fn a_lone_write_waits_for_nothing() {
        let (now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        assert_eq!((budget.counts_at(now), budget.take_turn(STATUS, now)), (now, now));
    }

    /// Writes statuses one after another from `now` until `end`. Returns their bytes.
    fn write(budget: &mut Budget, only_counts: bool, mut now: Instant, end: Instant) -> u64 {
        let mut written = 0;
        loop {
            let at = if only_counts { budget.counts_at(now) } else { budget.clone().take_turn(STATUS, now) };
            if at > end {
                return written;
            }
            now = at.max(now);
            if !only_counts {
                budget.take_turn(STATUS, now);
            }
            budget.take_counts(STATUS, now);
            written += STATUS;
        }
    }

    #[test]
    fn a_minute_of_writes_has_the_bytes_of_a_minute_and_the_burst() {
        for only_counts in [false, true] {
            let (start, mut budget) = (Instant::now(), Budget::new(36_000_000));
            let written = write(&mut budget, only_counts, start, start + MINUTE);
            let (rate, most) = if only_counts { (12_000_000, 3_000_000) } else { (24_000_000, 12_000_000) };
            assert!(written >= rate && written <= rate + most + 2 * STATUS, "{written}");
        }
    }

    #[test]
    fn counts_leave_the_bytes_of_what_a_user_waits_for() {
        let (now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        write(&mut budget, true, now, now);
        let urgent = write(&mut budget, false, now, now);
        assert!(urgent >= 12_000_000, "{urgent}");
        assert!(budget.counts_at(now) > now + MINUTE / 2, "counts come last");
        let wait = budget.take_turn(STATUS, now).saturating_duration_since(now);
        assert!(wait < Duration::from_secs(1), "{wait:?}");
    }

    #[test]
    fn what_is_not_written_adds_up_to_the_burst_alone() {
        let (now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        budget.take_turn(STATUS, now);
        let later = now + 60 * MINUTE;
        let written = write(&mut budget, false, later, later);
        assert!(written <= 12_000_000 + STATUS, "{written}");
    }

    #[test]
    fn turns_follow_one_another_in_the_order_of_the_requests() {
        let (now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        write(&mut budget, false, now, now);
        let turns: Vec<Instant> = (0..8).map(|_| budget.take_turn(STATUS, now)).collect();
        let apart: Vec<Duration> = turns.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let wanted = MINUTE.mul_f64(390_000.0 / 24_000_000.0);
        assert!(apart.iter().all(|apart| apart.abs_diff(wanted) < Duration::from_millis(1)), "{apart:?}");
    }
}
