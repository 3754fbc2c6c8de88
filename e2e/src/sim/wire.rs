//! The operator's real calls, answered by the model instead of a network.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use ipam_operator::act::Actor;
use ipam_operator::election::Lead;
use ipam_operator::reconcile::{CallError, Command, Outcome};
use kube::Client;
use kube::client::Body;
use tokio::runtime::Runtime;
use tokio::sync::watch;

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
    lead: watch::Sender<Lead>,
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
        let (lead, told) = watch::channel(Lead::No);
        let actor = Actor::new(Client::new(service, NAMESPACE), NAMESPACE.to_owned(), identity.to_owned(), told);
        drop(entered);
        Self { runtime, actor, lead }
    }

    /// Makes a call now; `leads` says whether whoever makes it leads at this moment.
    pub(super) fn make(&self, command: Command, fate: Fate, leads: bool) -> Outcome {
        let unanswered = command.clone().failed(CallError::Failed("no answer".to_owned()));
        if matches!(fate, Fate::Lost | Fate::Late) {
            return unanswered;
        }
        // The real look at the lease is upon a clock that the simulator has not.
        self.lead.send_replace(if leads { Lead::Always } else { Lead::No });
        let outcome = self.runtime.block_on(self.actor.perform(command));
        if fate == Fate::Done { outcome } else { unanswered }
    }

    /// A call that was sent long ago arrives.
    pub(super) fn arrive(&self, command: Command) {
        drop(self.make(command, Fate::AnswerLost, true));
    }
}
