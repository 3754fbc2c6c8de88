//! The reports of the agent, by its real reporter, and the API server's answers.

use std::time::Duration;

use ipam_core::{GrantId, PoolKey};
use ipam_crds::IPAMNode;
use ipam_node_agent::status::{Outcome, WRITE_TIMEOUT, Write};
use kube::core::Status;
use serde::Deserialize as _;
use serde_json::Value;

use super::super::action::Fate;
use super::super::activity::error_name;
use super::super::clock::Clock;
use super::super::object::Object;
use super::super::server::{Server, text};
use super::Node;

impl Node {
    /// Writes the report, if one is due. Returns the patch if it is still on its way.
    pub(crate) fn report(&mut self, server: &mut Server, fate: Fate, clock: Clock) -> Option<Value> {
        self.rest(clock);
        self.due(clock).filter(|due| *due <= clock.elapsed)?;
        let write = self.process.as_ref()?.write(clock, self.skew)?;
        let patch = write.patch();
        let reaches = matches!(fate, Fate::Done | Fate::AnswerLost | Fate::ErrorAfter(_));
        server.count_report();
        let answer = reaches.then(|| server.json_patch("ipamnodes", &self.name, true, patch.clone()));
        if matches!(answer, Some(Ok(_))) {
            self.activity.count("reports written");
        }
        let confirmed = match (fate, &answer) {
            (Fate::Done, Some(Ok(object))) if write.wants_object() => confirmed(&write, object),
            _ => Vec::new(),
        };
        let outcome = match (fate, answer) {
            (Fate::ErrorBefore(code) | Fate::ErrorAfter(code), _) | (Fate::Done, Some(Err((code, _)))) => {
                let is_done = matches!(fate, Fate::ErrorAfter(_));
                self.activity.add(error_name("PATCH ipamnodes/status", code, is_done), 1);
                refused(code)
            }
            (Fate::Done, Some(Ok(object))) => {
                let version = text(&object, "/metadata/resourceVersion");
                if self.records_all(confirmed, clock) {
                    Outcome::Written(version)
                } else {
                    Outcome::Unconfirmed(version)
                }
            }
            _ => {
                self.activity.count("reports without an answer");
                let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                Outcome::from(&kube::Error::Service(gone.into()))
            }
        };
        let took = if fate == Fate::Late { WRITE_TIMEOUT } else { Duration::ZERO };
        self.process.as_mut()?.ended(write, &outcome, took, clock);
        (fate == Fate::Late).then_some(patch)
    }

    /// Makes grants idle of which no address has been in use for a while.
    fn rest(&mut self, clock: Clock) {
        let Some(grants) = self.process.as_ref().and_then(|process| process.to_rest(clock)) else { return };
        if let Some(Ok(count)) = self.ask(clock, |allocator| async move { allocator.rest(grants).await }) {
            self.activity.add("grants became idle", u64::try_from(count).unwrap_or_default());
        }
    }

    /// Whether a report is due that can confirm a grant. One of four pods does not wait for it.
    pub(crate) fn waits_for_confirmation(&self, clock: Clock) -> bool {
        let is_due = self.due(clock).is_some_and(|due| due <= clock.elapsed);
        let write =
            self.process.as_ref().filter(|_| is_due && self.made % 4 != 3).and_then(|it| it.write(clock, self.skew));
        write.is_some_and(|write| write.wants_object())
    }

    /// Records the confirmations of an answer. Returns whether that worked.
    fn records_all(&mut self, confirmed: Vec<(PoolKey, GrantId)>, clock: Clock) -> bool {
        if confirmed.is_empty() {
            return true;
        }
        let recorded = self.ask(clock, |allocator| async move { allocator.confirm(confirmed).await });
        let Some(Ok(count)) = recorded else { return false };
        self.activity.add("grants confirmed", u64::try_from(count).unwrap_or_default());
        true
    }
}

fn confirmed(write: &Write, object: &Object) -> Vec<(PoolKey, GrantId)> {
    IPAMNode::deserialize(&**object).map(|object| write.confirmed(&object)).unwrap_or_default()
}

/// The reporter's outcome for an error of the server.
fn refused(code: u16) -> Outcome {
    Outcome::from(&kube::Error::Api(Box::new(Status::failure("refused", "Refused").with_code(code))))
}
