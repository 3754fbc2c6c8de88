//! The API server as the operator meets it: lists are answered from a fixture, watches stay open for the test to speak
//! on, and every other call is handed to the test, which alone answers it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{FutureExt, StreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use ipam_operator::api_writer::ApiWriter;
use ipam_operator::controllers::Controllers;
use ipam_operator::election::Leadership;
use ipam_operator::metrics::Metrics;
use ipam_reconciler::reconcile::Settings;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tower_test::mock::SendResponse;

/// The body of an answer.
type Answer = UnsyncBoxBody<Bytes, Infallible>;

/// A write or read that the operator asks for.
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content_type: String,
    pub(crate) accept: String,
    pub(crate) body: Value,
    respond: SendResponse<Response<Answer>>,
}

impl Call {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    pub(crate) fn answer(self, body: &Value) {
        self.answer_with(StatusCode::OK, body);
    }

    pub(crate) fn refuse(self, status: StatusCode, reason: &str) {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
            "reason": reason, "message": format!("refused: {reason}")});
        self.answer_with(status, &body);
    }

    fn answer_with(self, status: StatusCode, body: &Value) {
        let response = Response::builder().status(status).body(whole(body)).unwrap();
        self.respond.send_response(response);
    }
}

/// What lists are answered with, by path.
type Objects = Arc<Mutex<HashMap<&'static str, Vec<Value>>>>;

/// A running controller and the server that it talks to.
pub(crate) struct Server {
    calls: mpsc::UnboundedReceiver<Call>,
    watches: watch::Receiver<HashMap<String, UnboundedSender<String>>>,
    objects: Objects,
    /// Kubernetes Events of type Normal, which are answered at once. All other calls are handed to the test.
    pub(crate) normal_events: Arc<Mutex<Vec<Value>>>,
    pub(crate) lead: watch::Sender<Leadership>,
    stop: CancellationToken,
    controller: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Starts a controller against a server that holds `objects`, by list path.
    pub(crate) fn start(objects: HashMap<&'static str, Vec<Value>>, leads: bool) -> Self {
        Self::start_with(objects, if leads { Leadership::Always } else { Leadership::No })
    }

    /// The same, with a lead that may end.
    pub(crate) fn start_with(objects: HashMap<&'static str, Vec<Value>>, lead: Leadership) -> Self {
        let (service, handle) = tower_test::mock::pair::<Request<Body>, Response<Answer>>();
        let client = Client::new(service, "kube-system");
        let (call_sender, calls) = mpsc::unbounded_channel();
        let (watch_sender, watches) = watch::channel(HashMap::new());
        let objects = Objects::new(Mutex::new(objects));
        let normal_events = Arc::default();
        tokio::spawn(serve(handle, objects.clone(), call_sender, watch_sender, Arc::clone(&normal_events)));

        let (lead, told) = watch::channel(lead);
        let actor = ApiWriter::new(client.clone(), "kube-system".into(), "test".into(), told.clone());
        let events = Box::new(move || ipam_operator::watch::all(&client, "kube-system", &Arc::default()));
        let metrics = Arc::new(Metrics::default());
        let stop = CancellationToken::new();
        let (marker, keeper) = ipam_operator::election::marker::marker();
        tokio::spawn(keeper.grant_all());
        let controller =
            tokio::spawn(Controllers::new(Settings::default(), actor, events, marker, metrics).run(told, stop.clone()));
        Self { calls, watches, objects, normal_events, lead, stop, controller }
    }

    /// The next call that is no list or watch.
    pub(crate) async fn call(&mut self) -> Call {
        self.call_within(Duration::from_mins(1)).await
    }

    /// The next call that is no list or watch, which comes within this time.
    pub(crate) async fn call_within(&mut self, time: Duration) -> Call {
        tokio::time::timeout(time, self.calls.recv()).await.expect("a call").expect("a server")
    }

    /// Asserts that nothing is called for a long time. The clock is paused, so this takes none.
    pub(crate) async fn radio_silence(&mut self) {
        if let Ok(Some(call)) = tokio::time::timeout(Duration::from_mins(1), self.calls.recv()).await {
            panic!("unexpected {} {}", call.name(), call.body);
        }
    }

    /// From now on the server holds `objects` under `path`, of which no watch has told.
    pub(crate) fn hold(&self, path: &'static str, objects: Vec<Value>) {
        self.objects.lock().unwrap().insert(path, objects);
    }

    /// Sends an event on the watch of `path`.
    pub(crate) async fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let open = self.watches.wait_for(|open| open.contains_key(path)).await.unwrap();
        // The type comes first, as every API server sends it.
        let line = format!(r#"{{"type":"{kind}","object":{object}}}"#);
        open[path].unbounded_send(line + "\n").unwrap();
    }

    /// Stops the controller as a signal does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_mins(1), self.controller).await.expect("an end").unwrap();
    }
}

async fn serve(
    handle: tower_test::mock::Handle<Request<Body>, Response<Answer>>,
    objects: Objects,
    calls: mpsc::UnboundedSender<Call>,
    watches: watch::Sender<HashMap<String, UnboundedSender<String>>>,
    normal_events: Arc<Mutex<Vec<Value>>>,
) {
    let mut handle = pin!(handle);
    while let Some((request, respond)) = handle.next_request().await {
        let (parts, body) = request.into_parts();
        let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
        let header = |name| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let listed = objects.lock().unwrap().get(path.as_str()).cloned();
        if parts.method == http::Method::GET && query.contains("watch=") {
            let (sender, receiver) = unbounded();
            watches.send_modify(|open| drop(open.insert(path, sender)));
            respond.send_response(Response::new(streamed(receiver)));
        } else if let Some(items) = listed.filter(|_| parts.method == http::Method::GET) {
            let list =
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "90"}, "items": items});
            respond.send_response(Response::new(whole(&list)));
        } else {
            let body = body.collect().now_or_never().expect("a whole body").unwrap().to_bytes();
            let (content_type, accept) = (header("content-type"), header("accept"));
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            if body["type"] == "Normal" {
                normal_events.lock().unwrap().push(body.clone());
                respond.send_response(Response::new(whole(&body)));
                continue;
            }
            let call = Call { method: parts.method.to_string(), path, query, content_type, accept, body, respond };
            if calls.send(call).is_err() {
                return;
            }
        }
    }
}

fn whole(body: &Value) -> Answer {
    Full::new(Bytes::from(body.to_string())).boxed_unsync()
}

fn streamed(lines: UnboundedReceiver<String>) -> Answer {
    let frames = lines.map(|line| Ok(Frame::data(Bytes::from(line))));
    StreamBody::new(frames).boxed_unsync()
}
