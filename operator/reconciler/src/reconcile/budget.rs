//! How many bytes of pool statuses may be written, over all pools.
//!
//! A status lists the block of each node, and each write sends all of it. At 5,000 nodes it has 390 kB. So a few pools under pod
//! churn would fill etcd and keep the API server too busy to renew the Lease. Writes that a user waits for (a block assigned or
//! released, another condition) get two thirds of the bytes. Counts of addresses get one third. A lone write never waits.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_mins(1);

/// The bytes that may be written.
#[derive(Debug)]
pub(super) struct Budget {
    urgent: Bucket,
    counts: Bucket,
}

/// A token bucket, in bytes. A write may take more than the bucket holds. The next write then waits until it has refilled.
#[derive(Debug)]
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

    /// When a status may be written that a user waits for; `now` if at once.
    pub(super) fn urgent_at(&self, now: Instant) -> Instant {
        self.urgent.ready_at(now)
    }

    /// When a status may be written in which only counts of addresses are new.
    pub(super) fn counts_at(&self, now: Instant) -> Instant {
        self.counts.ready_at(now).max(self.urgent.ready_at(now))
    }

    /// Takes the bytes of a status write. Every write takes from the share of counts, because every status has counts.
    pub(super) fn take(&mut self, bytes: u64, only_counts: bool, now: Instant) {
        self.counts.take(bytes, now);
        if !only_counts {
            self.urgent.take(bytes, now);
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
    fn a_lone_write_waits_for_nothing() {
        let (now, budget) = (Instant::now(), Budget::new(36_000_000));
        assert_eq!((budget.urgent_at(now), budget.counts_at(now)), (now, now));
    }

    #[test]
    fn a_minute_of_writes_has_the_bytes_of_a_minute_and_the_burst() {
        for only_counts in [false, true] {
            let mut budget = Budget::new(36_000_000);
            let (start, mut now, mut written) = (Instant::now(), Instant::now(), 0);
            while now < start + MINUTE {
                let at = if only_counts { budget.counts_at(now) } else { budget.urgent_at(now) };
                now = at.max(now);
                budget.take(STATUS, only_counts, now);
                written += STATUS;
            }
            let (rate, most) = if only_counts { (12_000_000, 3_000_000) } else { (24_000_000, 12_000_000) };
            assert!(written >= rate && written <= rate + most + 2 * STATUS, "{written}");
        }
    }

    #[test]
    fn counts_leave_the_bytes_of_what_a_user_waits_for() {
        let (now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        while budget.counts_at(now) == now {
            budget.take(STATUS, true, now);
        }
        let mut urgent = 0;
        while budget.urgent_at(now) == now {
            budget.take(STATUS, false, now);
            urgent += STATUS;
        }
        assert!(urgent >= 12_000_000, "{urgent}");
        assert!(budget.counts_at(now) > now + MINUTE / 2, "counts come last");
        let wait = budget.urgent_at(now).saturating_duration_since(now);
        assert!(wait < Duration::from_secs(1), "{wait:?}");
    }

    #[test]
    fn what_is_not_written_adds_up_to_the_burst_alone() {
        let (now, mut budget) = (Instant::now(), Budget::new(36_000_000));
        budget.take(STATUS, false, now);
        let later = now + 60 * MINUTE;
        let mut written = 0;
        while budget.urgent_at(later) == later {
            budget.take(STATUS, false, later);
            written += STATUS;
        }
        assert!(written <= 12_000_000 + STATUS, "{written}");
    }
}
