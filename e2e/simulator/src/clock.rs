//! The time of the simulator. Only the world moves it.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The simulator's time: since the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// The instant that counts as the start.
    pub(super) start: Instant,
    /// The time since the start.
    pub(super) elapsed: Duration,
}

impl Clock {
    /// The simulated instant.
    pub(super) fn instant(self) -> Instant {
        self.start + self.elapsed
    }

    /// The time of a wall clock that is `skew` seconds off.
    pub(super) fn wall(self, skew: i64) -> Timestamp {
        let second = 1_800_000_000 + i64::try_from(self.elapsed.as_secs()).unwrap_or_default() + skew;
        Timestamp::from_second(second).unwrap_or_default()
    }
}
