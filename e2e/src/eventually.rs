//! Waiting for a condition: poll it until it holds or the deadline passes. The error of the last look is the reason given.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Pause between two looks. Short against anything a person would notice, long against the cost of a look.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks again and again until `look` answers `Ok`, at most `within`.
///
/// # Errors
/// When the deadline passes; the message carries `what` and the last look's error.
pub async fn eventually<T, E, Look, Answer>(what: &str, within: Duration, mut look: Look) -> Result<T>
where
    E: Display,
    Look: FnMut() -> Answer,
    Answer: Future<Output = Result<T, E>>,
{
    let started = Instant::now();
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(error) if started.elapsed() >= within => return Err(late(what, within, &error)),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// The same for callers outside an async runtime.
///
/// # Errors
/// When the deadline passes; the message carries `what` and the last look's error.
pub fn eventually_blocking<T, E, Look>(what: &str, within: Duration, mut look: Look) -> Result<T>
where
    E: Display,
    Look: FnMut() -> Result<T, E>,
{
    let started = Instant::now();
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(error) if started.elapsed() >= within => return Err(late(what, within, &error)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A deadline passed. Callers that expect this can tell it from other errors.
#[derive(Debug, thiserror::Error)]
#[error("{what}: not within {} s; at last: {reached}", within.as_secs_f32())]
pub struct Late {
    /// What was awaited.
    pub what: String,
    /// How long.
    pub within: Duration,
    /// The error of the last look.
    pub reached: String,
}

fn late(what: &str, within: Duration, error: &impl Display) -> anyhow::Error {
    anyhow::Error::new(Late { what: what.to_owned(), within, reached: format!("{error:#}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_good_look_ends_the_wait() {
        let mut looks = 0;
        let answer = eventually_blocking("third look", Duration::from_secs(10), || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err("too early") }
        });
        assert_eq!(answer.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_missed_deadline_tells_what_and_why() {
        let error = eventually::<(), _, _, _>("the moon", Duration::from_millis(50), async || Err("still waxing"))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("the moon") && error.contains("still waxing"), "{error}");
    }

    #[test]
    fn a_missed_deadline_is_told_from_other_errors() {
        let error = eventually_blocking::<(), _, _>("the moon", Duration::ZERO, || Err("half")).unwrap_err();
        assert_eq!(error.context("night").downcast_ref::<Late>().map(|late| late.reached.as_str()), Some("half"));
    }
}
