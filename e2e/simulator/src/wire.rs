//! The operator's real calls, answered by the model instead of a network.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use ipam_operator::api_writer::ApiWriter;
use ipam_operator::election::campaign::Next;
use ipam_operator::election::{LEASE_NAME, Leadership};
use ipam_reconciler::reconcile::{CallError, Command, Outcome};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::action::Fate;
use super::answer::error_response;
use super::server::{NAMESPACE, Server};

/// The server, shared by the world and the calls.
pub(super) type Shared = Arc<Mutex<Server>>;

/// Locks the server.
pub(super) fn lock(server: &Shared) -> MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes calls.
#[derive(Clone)]
pub(super) struct Wire {
    runtime: Rc<Runtime>,
    server: Shared,
    client: Client,
    actor: ApiWriter,
    lead: watch::Sender<Leadership>,
    /// The fate of the next request.
    fate: Arc<Mutex<Fate>>,
    /// Requests sent so far.
    sent: Arc<AtomicU64>,
}

/// A call that was made.
pub(super) struct Made {
    pub(super) outcome: Outcome,
    /// Whether a request was sent: a process that does not lead any more sends none.
    pub(super) is_sent: bool,
}

/// The answer to a call about the Lease.
#[derive(Debug)]
pub(super) enum Answer {
    Read(Result<Option<Lease>, String>),
    Written(Result<Lease, String>),
}

impl Wire {
    /// Calls to `server` in the name of `identity`.
    pub(super) fn new(runtime: Rc<Runtime>, server: &Shared, identity: &str) -> Self {
        let (fate, sent) = (Arc::new(Mutex::new(Fate::Done)), Arc::new(AtomicU64::new(0)));
        let (answers, fates, requests) = (server.clone(), fate.clone(), sent.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, fate) = (answers.clone(), fates.clone());
            requests.fetch_add(1, Ordering::Relaxed);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
                let fate = *fate.lock().unwrap_or_else(PoisonError::into_inner);
                let response = answer(&server, &Request::from_parts(head, body), fate);
                Ok::<Response<Full<_>>, Infallible>(response.map(|body| Full::new(body.into())))
            }
        });
        let entered = runtime.enter();
        let (lead, told) = watch::channel(Leadership::No);
        let client = Client::new(service, NAMESPACE);
        let actor = ApiWriter::new(client.clone(), NAMESPACE.to_owned(), identity.to_owned(), told);
        drop(entered);
        Self { runtime, server: server.clone(), client, actor, lead, fate, sent }
    }

    /// Makes a call now. `left` is how long its sender still leads; `None` if it does not. The writer itself checks that.
    pub(super) fn make(&self, command: Command, fate: Fate, left: Option<Duration>) -> Made {
        let unanswered = command.clone().failed(CallError::Failed("no answer".to_owned()));
        let entered = self.runtime.enter();
        // The clock of the runtime stands still.
        let now = tokio::time::Instant::now().into_std();
        drop(entered);
        let leadership = left.map_or(Leadership::No, |left| Leadership::Until(now + left));
        if matches!(fate, Fate::Lost | Fate::Late) {
            return Made { outcome: unanswered, is_sent: leadership.holds(now) };
        }
        self.lead.send_replace(leadership);
        self.set(fate);
        let sent = self.sent.load(Ordering::Relaxed);
        let outcome = self.runtime.block_on(self.actor.perform(command));
        let is_sent = self.sent.load(Ordering::Relaxed) > sent;
        Made { outcome: if fate == Fate::AnswerLost { unanswered } else { outcome }, is_sent }
    }

    /// Delivers a call that was sent long ago.
    pub(super) fn arrive(&self, command: Command) {
        drop(self.make(command, Fate::AnswerLost, Some(Duration::from_hours(1))));
    }

    /// Makes a call about the Lease. Calls without an HTTP error bypass the client, because there are many.
    pub(super) fn vote(&self, call: Next, fate: Fate) -> Answer {
        if matches!(fate, Fate::ErrorBefore(_) | Fate::ErrorAfter(_)) {
            return self.vote_by_http(call, fate);
        }
        let no_answer = "no answer".to_owned();
        let is_read = call == Next::Read;
        let answer = (fate != Fate::Lost).then(|| vote(&mut lock(&self.server), call));
        match answer.filter(|_| fate == Fate::Done) {
            Some(answer) => answer,
            None if is_read => Answer::Read(Err(no_answer)),
            None => Answer::Written(Err(no_answer)),
        }
    }

    fn vote_by_http(&self, call: Next, fate: Fate) -> Answer {
        self.set(fate);
        let api: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let why = |error: kube::Error| error.to_string();
        let params = PostParams::default();
        match call {
            Next::Create(lease) => Answer::Written(self.runtime.block_on(api.create(&params, &lease)).map_err(why)),
            Next::Replace(lease) => {
                Answer::Written(self.runtime.block_on(api.replace(LEASE_NAME, &params, &lease)).map_err(why))
            }
            Next::Read | Next::Wait(_) | Next::LeadershipLost(_) => {
                Answer::Read(self.runtime.block_on(api.get_opt(LEASE_NAME)).map_err(why))
            }
        }
    }

    fn set(&self, fate: Fate) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = fate;
    }
}

fn answer(server: &Shared, request: &Request<Vec<u8>>, fate: Fate) -> Response<Vec<u8>> {
    match fate {
        Fate::ErrorBefore(code) => {
            lock(server).count_error(request, code, false);
            error_response(code)
        }
        Fate::ErrorAfter(code) => {
            let mut server = lock(server);
            server.count_error(request, code, true);
            drop(server.answer(request));
            error_response(code)
        }
        Fate::Done | Fate::AnswerLost | Fate::Lost | Fate::Late => lock(server).answer(request),
    }
}

/// Executes a call about the Lease on the server.
pub(super) fn vote(server: &mut Server, call: Next) -> Answer {
    let value = |lease: &Lease| serde_json::to_value(lease).unwrap_or(Value::Null);
    let written = match call {
        Next::Create(lease) => server.create("leases", value(&lease)),
        Next::Replace(lease) => server.replace("leases", false, &value(&lease)),
        Next::Read | Next::Wait(_) | Next::LeadershipLost(_) => {
            return Answer::Read(Ok(server.get("leases", LEASE_NAME).and_then(|object| object.lease())));
        }
    };
    let lease = written.map_err(|(_, why)| why);
    Answer::Written(lease.and_then(|object| object.lease().ok_or_else(|| "no Lease".to_owned())))
}
