//! The operator's real calls, answered by the model instead of a network.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use ipam_operator::act::Actor;
use ipam_operator::reconcile::{CallError, Command, Outcome};
use kube::Client;
use kube::client::Body;
use tokio::runtime::Runtime;

use super::action::Fate;
use super::server::{NAMESPACE, Server};

/// The server, shared by the world and the calls.
pub(super) type Shared = Arc<Mutex<Server>>;

/// The server for a moment.
pub(super) fn lock(server: &Shared) -> MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes calls.
#[derive(Clone)]
pub(super) struct Wire {
    runtime: Rc<Runtime>,
    actor: Actor,
}

impl Wire {
    /// Calls to `server` in the name of `identity`.
    pub(super) fn new(runtime: Rc<Runtime>, server: &Shared, identity: &str) -> Self {
        let server = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
                let response = lock(&server).answer(&Request::from_parts(head, body));
                Ok::<Response<Full<_>>, Infallible>(response.map(|body| Full::new(body.into())))
            }
        });
        let entered = runtime.enter();
        let actor = Actor::new(Client::new(service, NAMESPACE), NAMESPACE.to_owned(), identity.to_owned());
        drop(entered);
        Self { runtime, actor }
    }

    /// Makes a call now.
    pub(super) fn make(&self, command: Command, fate: Fate) -> Outcome {
        let lost = || CallError::Failed("no answer".to_owned());
        let unanswered = match &command {
            Command::WriteStatus { pool, .. } | Command::PatchPool { pool, .. } | Command::Confirm { pool } => {
                Outcome::Pool(pool.clone(), Err(lost()))
            }
            Command::WriteIpamNode(write) => Outcome::IpamNode(write.clone(), Err(lost())),
            Command::Publish { .. } => Outcome::Published,
        };
        if matches!(fate, Fate::Lost | Fate::Late) {
            return unanswered;
        }
        let outcome = self.runtime.block_on(self.actor.perform(command));
        if fate == Fate::Done { outcome } else { unanswered }
    }
}
