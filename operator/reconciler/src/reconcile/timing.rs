//! When a pool is due, and how long to wait after failures. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// A burst of events is over when no event has come for this long. It is short, because each join waits for it. Events
/// during a status write are joined anyway.
pub(super) const QUIET: Duration = Duration::from_millis(10);
/// A burst that does not end is handled after this long.
const LONGEST_BURST: Duration = Duration::from_millis(400);
/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// From this many errors in a row on, users see that an object cannot be written.
pub(super) const LASTING: u32 = 3;
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When a pool is due for a decision. Bursts of events are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Debounce {
    burst_began: Option<Instant>,
    at: Option<Instant>,
    /// Whether the time became earlier since [`Debounce::take_woken`].
    is_woken: bool,
}

impl Debounce {
    /// Makes the pool due once the burst is over, at the latest after [`LONGEST_BURST`].
    pub(super) fn wake(&mut self, now: Instant) {
        let began = *self.burst_began.get_or_insert(now);
        let at = (now + QUIET).min(began + LONGEST_BURST);
        // A later time needs no other step: the waiting step checks the time again.
        self.is_woken |= self.at.is_none_or(|known| at < known);
        self.at = Some(at);
    }

    /// Makes the pool due no later than `at`, for a reason that can wait.
    pub(super) fn by(&mut self, at: Instant) {
        if self.at.is_none_or(|known| at < known) {
            (self.at, self.is_woken) = (Some(at), true);
        }
    }

    /// Wakes the pool once more, if a decision is pending.
    pub(super) fn wake_again(&mut self) {
        self.is_woken = self.at.is_some();
    }

    /// Whether the pool was woken since the last call.
    pub(super) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.is_woken)
    }

    /// When the pool is due, if at all.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Whether the pool is due. If so, it is no longer due afterwards.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let due = self.at.is_some_and(|at| at <= now);
        if due {
            *self = Self::default();
        }
        due
    }
}

/// Pauses after failures in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure.
    pub(super) fn pause(&mut self) -> Duration {
        let factor = 2_u32.saturating_pow(self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
    }

    /// Resets the pauses after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_served_once_after_it_falls_quiet() {
        let (start, mut due) = (Instant::now(), Debounce::default());
        for step in 0..10 {
            due.wake(start + Duration::from_millis(5 * step));
        }
        let last = start + Duration::from_millis(45);
        assert!(!due.take(last + QUIET.saturating_sub(Duration::from_millis(1))));
        assert!(due.take(last + QUIET));
        assert!(!due.take(last + LONGEST_BURST), "one burst, one look");
    }

    #[test]
    fn a_burst_without_end_is_served_after_the_longest_time() {
        let (start, mut due) = (Instant::now(), Debounce::default());
        let mut now = start;
        while !due.take(now) {
            assert!(now <= start + LONGEST_BURST, "never served");
            due.wake(now);
            now += Duration::from_millis(5);
        }
        assert!(now >= start + LONGEST_BURST);
    }

    #[test]
    fn a_reason_that_bears_waiting_does_not_put_off_an_urgent_one() {
        let (now, mut due) = (Instant::now(), Debounce::default());
        due.wake(now);
        due.by(now + Duration::from_secs(10));
        assert_eq!(due.at(), Some(now + QUIET));
    }

    #[test]
    fn a_later_time_causes_no_step_unless_woken_again() {
        let (now, mut due) = (Instant::now(), Debounce::default());
        due.wake(now);
        assert!(due.take_woken() && !due.take_woken());
        due.wake(now + QUIET);
        assert!(!due.take_woken(), "the driver knows of an earlier time");
        due.wake_again();
        assert!(due.take_woken());
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_start_anew_after_a_success() {
        let mut backoff = Backoff::default();
        assert_eq!((backoff.pause(), backoff.pause()), (FIRST_PAUSE, FIRST_PAUSE * 2));
        for _ in 0..100 {
            backoff.pause();
        }
        assert_eq!(backoff.pause(), LONGEST_PAUSE);
        backoff.reset();
        assert_eq!(backoff.pause(), FIRST_PAUSE);
    }
}
