//! The reports of the agent, by its real reporter, and what the API server answers.

use std::time::Duration;

use ipam_node_agent::status::{Outcome, WRITE_TIMEOUT};
use kube::core::Status;
use serde_json::Value;

use super::super::action::Fate;
use super::super::replica::Clock;
use super::super::server::Server;
use super::Node;

impl Node {
    /// Writes the report, if one is due. Returns the patch if it is still on its way.
    pub(crate) fn report(&mut self, server: &mut Server, fate: Fate, clock: Clock) -> Option<Value> {
        self.due(clock).filter(|due| *due <= clock.elapsed)?;
        let write = self.process.as_ref()?.write(clock, self.skew)?;
        let patch = write.patch();
        let reaches = matches!(fate, Fate::Done | Fate::AnswerLost | Fate::ErrorAfter(_));
        let answer = reaches.then(|| server.json_patch("ipamnodes", &self.name, true, patch.clone()));
        if matches!(answer, Some(Ok(_))) {
            self.activity.count("reports written");
        }
        let outcome = match (fate, answer) {
            (Fate::ErrorBefore(code) | Fate::ErrorAfter(code), _) | (Fate::Done, Some(Err((code, _)))) => {
                self.activity.count("reports refused by HTTP code");
                refused(code)
            }
            (Fate::Done, _) => Outcome::Written,
            _ => {
                self.activity.count("reports without an answer");
                let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                Outcome::from(&kube::Error::Service(gone.into()))
            }
        };
        let took = if fate == Fate::Late { WRITE_TIMEOUT } else { Duration::ZERO };
        self.process.as_mut()?.ended(write, outcome, took, clock);
        (fate == Fate::Late).then_some(patch)
    }
}

/// What the reporter makes of an error of the server.
fn refused(code: u16) -> Outcome {
    Outcome::from(&kube::Error::Api(Box::new(Status::failure("refused", "Refused").with_code(code))))
}
