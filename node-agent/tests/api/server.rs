//! The API server, played by the test: it takes the agent's calls and answers them by the test's script.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use ipam_node_agent::allocator::Allocator;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse, pair};

use crate::common::blue;

/// What the API server answers with.
pub(crate) type Answer = UnsyncBoxBody<Bytes, std::io::Error>;

/// The API server's side of the wire.
pub(crate) struct Server(Handle<Request<Body>, Response<Answer>>);

/// One call that waits for its answer.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) accept: String,
    pub(crate) body: Value,
    pub(crate) answer: SendResponse<Response<Answer>>,
}

impl Call {
    async fn read((request, answer): (Request<Body>, SendResponse<Response<Answer>>)) -> Self {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        Self {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            accept: parts.headers.get("accept").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            answer,
        }
    }

    pub(crate) fn answer(self, status: u16, body: &Value) {
        let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
        self.answer.send_response(Response::builder().status(status).body(body).unwrap());
    }

    pub(crate) fn fail(self, code: u16, reason: &str) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason});
        self.answer(code, &status);
    }
}

impl Server {
    pub(crate) fn new() -> (Client, Self) {
        let (service, handle) = pair::<Request<Body>, Response<Answer>>();
        (Client::new(service, "default"), Self(handle))
    }

    /// The next call; a call that does not come fails the test.
    pub(crate) async fn call(&mut self) -> Call {
        let next = tokio::time::timeout(Duration::from_secs(30), self.0.next_request());
        Call::read(next.await.ok().flatten().unwrap()).await
    }

    /// A call that has come already; without one the test fails.
    pub(crate) async fn call_now(&mut self) -> Call {
        let next = self.0.next_request().now_or_never();
        Call::read(next.flatten().unwrap()).await
    }

    /// Fails the test if a call has come that the test did not take.
    pub(crate) fn assert_no_call(&mut self) {
        if let Some(Some((request, _))) = self.0.next_request().now_or_never() {
            panic!("{} {} came, no call was expected", request.method(), request.uri());
        }
    }
}

/// tokio's clock, which stands still from [`StoppedClock::stop`] on and moves only in [`StoppedClock::pass`].
pub(crate) struct StoppedClock {
    /// While a blocking task runs, tokio does not move a paused clock by itself.
    _blocked: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    pub(crate) fn stop() -> Self {
        let (blocked, end) = std::sync::mpsc::channel::<()>();
        drop(tokio::task::spawn_blocking(move || end.recv()));
        tokio::time::pause();
        Self { _blocked: blocked }
    }

    /// Moves the clock by `time`. Afterwards all tasks of this runtime have done what they could do by then, also what needs answers of
    /// the allocator.
    pub(crate) async fn pass(&self, allocator: &Allocator, time: Duration) {
        const STEPS: u32 = 20;
        settle(allocator).await;
        for _ in 0..STEPS {
            tokio::time::advance(time / STEPS).await;
            settle(allocator).await;
        }
    }
}

/// Lets each task go on until it waits for the clock or for the test. The allocator answers in the order of the questions: what a task
/// asked before has its answer when this question has one.
async fn settle(allocator: &Allocator) {
    const QUESTIONS: usize = 4;
    const TURNS: usize = 32;
    for _ in 0..QUESTIONS {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        allocator.holdings().await.unwrap();
    }
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn line(kind: &str, object: &Value) -> Vec<u8> {
    format!("{}\n", json!({"type": kind, "object": object})).into_bytes()
}

/// Answers a watch with these lines; it stays open as long as the sender lives.
pub(crate) fn stream(call: Call) -> tokio::sync::mpsc::UnboundedSender<Vec<u8>> {
    let (lines, mut next) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
    let frames = futures::stream::poll_fn(move |context| {
        next.poll_recv(context).map(|line| line.map(|line| Ok::<_, std::io::Error>(Frame::data(line.into()))))
    });
    call.answer.send_response(Response::new(StreamBody::new(frames).boxed_unsync()));
    lines
}

pub(crate) const NODE: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system/ipamnodes";

pub(crate) fn object(generation: i64, blocks: &Value) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
        "metadata": {"name": "node1", "namespace": "kube-system", "uid": "u1", "generation": generation,
            "resourceVersion": generation.to_string()},
        "spec": {"pools": blocks},
    })
}

/// The block [`blue`].
pub(crate) fn blocks() -> Value {
    json!([blue()])
}

pub(crate) fn list_of(generation: i64, blocks: &Value) -> Value {
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList", "metadata": {"resourceVersion": "7"},
        "items": [object(generation, blocks)]})
}
