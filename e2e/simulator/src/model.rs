//! The model API server by itself, for tests that compare it with the real one.

use http::{Request, Response};
use serde_json::Value;

use super::server::{Change, PLURALS, Server};

/// The model.
#[derive(Default, Debug)]
pub struct Model(Server);

impl Model {
    /// Answers a request as it comes over the wire.
    pub fn answer(&mut self, request: &Request<Vec<u8>>) -> Response<Vec<u8>> {
        self.0.answer(request)
    }

    /// The events of a watch of this plural from the beginning: whether the object was deleted, and the object.
    pub fn events(&self, plural: &str) -> Vec<(bool, Value)> {
        let Some(plural) = PLURALS.into_iter().find(|known| *known == plural) else { return Vec::new() };
        let event = |event: &super::server::Event| (event.change == Change::Deleted, (**event.object).clone());
        self.0.since(plural, 0).iter().map(event).collect()
    }
}
