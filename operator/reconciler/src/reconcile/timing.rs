//! When something is to be looked at. Pure: time is told, never asked.

use std::time::{Duration, Instant};

/// A burst of events is over when none has come for this long. Short, for each join waits for it; what comes while a
/// status is being written is drawn together anyway.
pub(super) const QUIET: Duration = Duration::from_millis(10);
/// A burst that does not end is served after this long all the same.
const LONGEST_BURST: Duration = Duration::from_millis(400);
/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When a pool is to be looked at, with bursts of reasons drawn together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Due {
    burst_began: Option<Instant>,
    at: Option<Instant>,
    /// Whether the time became earlier since [`Due::take_woken`].
    is_woken: bool,
    /// Whether a look was due and could not be made.
    is_blocked: bool,
}

impl Due {
    /// Something happened: look once it is quiet, but not later than a burst may last.
    pub(super) fn wake(&mut self, now: Instant) {
        let began = *self.burst_began.get_or_insert(now);
        let at = (now + QUIET).min(began + LONGEST_BURST);
        // A later time needs no other step: the step that waits asks again.
        self.is_woken |= self.is_blocked || self.at.is_none_or(|known| at < known);
        (self.at, self.is_blocked) = (Some(at), false);
    }

    /// Look no later than `at`, for a reason that bears waiting.
    pub(super) fn by(&mut self, at: Instant) {
        if self.is_blocked || self.at.is_none_or(|known| at < known) {
            self.at = Some(self.at.map_or(at, |known| known.min(at)));
            (self.is_woken, self.is_blocked) = (true, false);
        }
    }

    /// A look is due and cannot be made. The next wake leads to a step, whatever its time.
    pub(super) fn block(&mut self) {
        self.is_blocked = self.at.is_some();
    }

    /// Wakes once more, if there is something to look at.
    pub(super) fn wake_again(&mut self) {
        self.is_woken = self.at.is_some();
    }

    /// Whether it was woken since the last time.
    pub(super) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.is_woken)
    }

    /// When to look, if at all.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Takes the order to look, if it is time.
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

    /// It worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_served_once_after_it_falls_quiet() {
        let (start, mut due) = (Instant::now(), Due::default());
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
        let (start, mut due) = (Instant::now(), Due::default());
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
        let (now, mut due) = (Instant::now(), Due::default());
        due.wake(now);
        due.by(now + Duration::from_secs(10));
        assert_eq!(due.at(), Some(now + QUIET));
    }

    #[test]
    fn a_look_that_was_due_and_could_not_be_is_asked_for_again() {
        let (now, mut due) = (Instant::now(), Due::default());
        due.wake(now);
        assert!(due.take_woken() && !due.take_woken());
        due.wake(now + QUIET);
        assert!(!due.take_woken(), "the driver knows of an earlier time");
        due.block();
        due.wake(now + LONGEST_BURST);
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
