//! One watch of one kind: it lists, follows the history at its own pace, breaks, and lists again.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::object::Object;
use super::server::{Change, Event, Server};

/// The next event of a watch.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// A list begins.
    Init,
    /// The list names an object.
    Listed(Arc<Object>),
    /// The list is complete.
    Done,
    /// An object changed.
    Changed(Change, Arc<Object>),
}

/// A watch.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    plural: &'static str,
    /// Watches only the object of this name.
    only: Option<String>,
    /// The version up to which every event is delivered or waits in `listed`; `None` before a list.
    at: Option<u64>,
    /// The number of restores before the list. A connection from before the last restore delivers nothing until it breaks.
    restores: u64,
    /// What is left of the list.
    listed: VecDeque<Told>,
    last: Option<Told>,
}

impl Watch {
    /// A watch that begins with a list.
    pub(super) fn new(plural: &'static str, only: Option<String>) -> Self {
        Self { plural, only, at: None, restores: 0, listed: VecDeque::new(), last: None }
    }

    /// Loses its place: the next event is the start of a list.
    pub(super) fn expire(&mut self) {
        *self = Self::new(self.plural, self.only.take());
    }

    /// Loses its place if the server was restored since the list.
    pub(super) fn expire_if_restored(&mut self, server: &Server) {
        if self.at.is_some() && self.restores != server.restores() {
            self.expire();
        }
    }

    /// The version up to which every event is delivered, once the list is complete.
    pub(super) const fn version(&self) -> Option<u64> {
        self.at
    }

    /// Whether it has begun to list since the last restore.
    pub(super) fn is_connected(&self, server: &Server) -> bool {
        self.at.is_some() && self.restores == server.restores()
    }

    /// Whether all events are delivered.
    pub(super) fn is_current(&self, server: &Server) -> bool {
        self.is_connected(server)
            && self.listed.is_empty()
            && self.at.is_some_and(|at| self.next_event(server, at).is_none())
    }

    /// The next event, if there is one.
    pub(super) fn next(&mut self, server: &Server) -> Option<Told> {
        if self.at.is_none() {
            let matching = server.list(self.plural).filter(|object| self.is_ours(object)).cloned();
            self.listed = matching.map(Told::Listed).chain([Told::Done]).collect();
            (self.at, self.restores) = (Some(server.version()), server.restores());
            return Some(Told::Init);
        }
        if self.restores != server.restores() {
            return None;
        }
        let told = if let Some(told) = self.listed.pop_front() {
            told
        } else {
            let event = self.next_event(server, self.at?)?.clone();
            self.at = Some(event.version);
            Told::Changed(event.change, event.object)
        };
        self.last = Some(told.clone());
        Some(told)
    }

    /// All pending events, but only the last of each object; a list is completed first.
    pub(super) fn rest(&mut self, server: &Server) -> Vec<Told> {
        let Some(at) = self.at.filter(|_| self.restores == server.restores()) else { return Vec::new() };
        let mut told: Vec<Told> = self.listed.drain(..).collect();
        let untold = server.since(self.plural, at);
        for (place, event) in untold.iter().enumerate().filter(|(_, event)| self.is_ours(&event.object)) {
            let name = &event.object["metadata"]["name"];
            if !untold[place + 1..].iter().any(|later| later.object["metadata"]["name"] == *name) {
                told.push(Told::Changed(event.change, event.object.clone()));
            }
        }
        self.at = untold.last().map(|event| event.version).or(self.at);
        self.last = told.last().cloned().or_else(|| self.last.take());
        told
    }

    /// The last event once more, if it was about a change.
    pub(super) fn repeat(&self) -> Option<Told> {
        self.last.clone().filter(|told| matches!(told, Told::Changed(..)) && self.listed.is_empty())
    }

    fn next_event<'a>(&self, server: &'a Server, at: u64) -> Option<&'a Event> {
        server.since(self.plural, at).iter().find(|event| self.is_ours(&event.object))
    }

    fn is_ours(&self, object: &Value) -> bool {
        self.only.as_ref().is_none_or(|name| object["metadata"]["name"] == **name)
    }
}
