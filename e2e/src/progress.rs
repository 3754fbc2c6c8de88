//! Lines that tell a waiting person what takes so long. They go straight to stderr, past libtest's capture: a build of minutes
//! inside a test must be visible while it runs. Never stdout: that belongs to the demo's story and to tests.

use std::io::Write;
use std::time::{Duration, Instant};

/// Writes one line to stderr. A closed stderr is not an error: progress is a courtesy.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "e2e: {line}");
}

/// How often a long step reports that it is still running.
const STILL_RUNNING: Duration = Duration::from_secs(20);

/// A long step with a name; tells when it starts, that it still runs, and how many seconds it took.
pub struct Step {
    name: String,
    started: Instant,
    last: Instant,
}

impl Step {
    /// Announces the step.
    pub fn start(name: &str) -> Self {
        say(&format!("{name} ..."));
        let now = Instant::now();
        Self { name: name.to_owned(), started: now, last: now }
    }

    /// To be called while waiting; speaks up once in a while.
    pub fn tick(&mut self) {
        if self.last.elapsed() >= STILL_RUNNING {
            self.last = Instant::now();
            say(&format!("{} ... {} s so far", self.name, self.started.elapsed().as_secs()));
        }
    }

    /// Announces the end with the seconds it took.
    pub fn done(self) {
        say(&format!("{}: done in {:.1} s", self.name, self.started.elapsed().as_secs_f32()));
    }
}
