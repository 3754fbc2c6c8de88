//! What the agent asks of the API server: the exact calls, and silence where there is nothing to say.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Node, blue, deadline, parameters, with_ips};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use ipam_crds::{BlockState, NodeBlock};
use ipam_node_agent::contact::Offline;
use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::found::Found;
use ipam_node_agent::gc::Collector;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::{NodeSpec, SpecFile};
use ipam_node_agent::status::{Report, Reporter};
use ipam_node_agent::store::Position;
use ipam_node_agent::watch::{Blocks, InForce, Standing, events};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower_test::mock::{Handle, SendResponse, pair};

/// What the API server answers with.
type Answer = UnsyncBoxBody<Bytes, std::io::Error>;

/// The API server's side of the wire.
struct Server(Handle<Request<Body>, Response<Answer>>);

/// One call that waits for its answer.
struct Call {
    method: Method,
    path: String,
    query: String,
    accept: String,
    body: Value,
    answer: SendResponse<Response<Answer>>,
}

impl Call {
    fn answer(self, status: u16, body: &Value) {
        let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
        self.answer.send_response(Response::builder().status(status).body(body).unwrap());
    }

    fn fail(self, code: u16, reason: &str) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason});
        self.answer(code, &status);
    }
}

impl Server {
    fn new() -> (Client, Self) {
        let (service, handle) = pair::<Request<Body>, Response<Answer>>();
        (Client::new(service, "default"), Self(handle))
    }

    /// The next call; a call that does not come fails the test.
    async fn call(&mut self) -> Call {
        let next = tokio::time::timeout(Duration::from_secs(30), self.0.next_request());
        let (request, answer) = next.await.ok().flatten().unwrap();
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap();
        Call {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            accept: parts.headers.get("accept").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            answer,
        }
    }

    async fn silence(&mut self, time: Duration) {
        if let Ok(Some((request, _))) = tokio::time::timeout(time, self.0.next_request()).await {
            panic!("{} {} came, silence was wanted", request.method(), request.uri());
        }
    }
}

const NODE: &str = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/kube-system/ipamnodes";

fn object(generation: i64, blocks: &Value) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
        "metadata": {"name": "node1", "namespace": "kube-system", "uid": "u1", "generation": generation,
            "resourceVersion": generation.to_string()},
        "spec": {"pools": blocks},
    })
}

fn blocks() -> Value {
    json!([{"name": "blue", "poolType": "IPPool", "state": "Active", "startIP": "192.168.0.1",
        "endIP": "192.168.0.4", "subnet": "192.168.0.0/16", "gateway": "192.168.0.1"}])
}

/// A reporter on `node` that was told `first`.
fn reporter(node: &Node, first: InForce) -> (Server, watch::Sender<Option<InForce>>) {
    let (client, server) = Server::new();
    let (told, in_force) = watch::channel(Some(first));
    let metrics = Metrics::registered().0;
    let reporter = Reporter::new(client, "kube-system", "node1", node.allocator.clone(), in_force, metrics);
    // Ends with the runtime, and when `told` is dropped.
    tokio::spawn(reporter.run(CancellationToken::new()));
    (server, told)
}

/// Generation 3 with one block, of an object that shows this status.
fn in_force(block: NodeBlock, status: &Value) -> InForce {
    let spec = NodeSpec { uid: "u1".into(), generation: Some(3), blocks: vec![block] };
    let standing = Some(Standing { uid: "u1".into(), status: serde_json::from_value(status.clone()).unwrap() });
    InForce { spec, saved: Some(3), standing, ..InForce::default() }
}

/// The status that a call writes.
fn reported(call: &Call) -> &Value {
    assert_eq!((&call.method, call.path.as_str()), (&Method::PATCH, format!("{NODE}/node1/status").as_str()));
    &call.body[1]["value"]
}

#[tokio::test]
async fn a_report_is_one_patch_of_the_status_and_without_news_there_is_silence() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    let status = reported(&call);
    assert_eq!(status["observedGeneration"], 3);
    let expected = json!([{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
        "used": 0, "capacity": 3}]);
    assert_eq!(status["pools"], expected);
    assert_eq!(status["ledger"], json!({"epoch": 1, "sequence": 0}));
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
        (&json!("Ready"), &json!("True"))
    );
    let operations: Vec<_> = call.body.as_array().unwrap().iter().map(|op| (&op["op"], &op["path"])).collect();
    let expected = [("test", "/metadata/uid"), ("add", "/status")].map(|(op, path)| (json!(op), json!(path)));
    assert_eq!(operations, expected.iter().map(|(op, path)| (op, path)).collect::<Vec<_>>(), "nothing but the status");
    assert_eq!(call.body[0]["value"], "u1", "no other object of this name takes the report");
    assert!(call.accept.contains("as=PartialObjectMetadata;"), "the answer is as short as can be: {}", call.accept);
    call.answer(200, &object(3, &blocks()));
    server.silence(Duration::from_millis(1500)).await;
}

#[tokio::test]
async fn the_first_address_is_reported_soon_with_its_place_and_further_ones_can_wait() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    server.call().await.answer(200, &object(3, &blocks()));
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let call = server.call().await;
    assert_eq!(reported(&call)["pools"][0]["used"], 1);
    assert_eq!(reported(&call)["pools"][0]["held"], json!([{"startIP": "192.168.0.2", "endIP": "192.168.0.2"}]));
    call.answer(200, &object(3, &blocks()));
    node.add(parameters(&["blue"], "c2")).await.unwrap();
    server.silence(Duration::from_millis(1500)).await;
}

#[tokio::test]
async fn a_block_that_is_given_back_is_reported_empty_with_the_generation_it_was_told_in_one_write() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    assert_eq!((&reported(&call)["observedGeneration"], &reported(&call)["pools"][0]["used"]), (&json!(3), &json!(1)));
    call.answer(200, &object(3, &blocks()));
    let releasing = NodeBlock { state: BlockState::Releasing, ..blue() };
    node.configure(std::slice::from_ref(&releasing)).await;
    let mut later = in_force(releasing, &json!({}));
    (later.spec.generation, later.saved) = (Some(4), Some(4));
    later.standing = told.borrow().as_ref().unwrap().standing.clone();
    told.send_replace(Some(later));
    node.del(parameters(&["blue"], "c1")).await.unwrap();
    let call = server.call().await;
    assert_eq!((&reported(&call)["observedGeneration"], &reported(&call)["pools"][0]["used"]), (&json!(4), &json!(0)));
    assert_eq!(reported(&call)["pools"][0].get("held"), None);
}

#[tokio::test]
async fn what_is_held_of_a_pool_that_the_node_no_longer_has_is_reported() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    node.configure(&[]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let expected = json!([{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.2", "endIP": "192.168.0.2",
        "used": 1, "capacity": 0, "held": [{"startIP": "192.168.0.2", "endIP": "192.168.0.2"}]}]);
    assert_eq!(reported(&server.call().await)["pools"], expected);
}

#[tokio::test]
async fn a_restart_without_news_writes_nothing_and_a_status_of_another_hand_is_written_over() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    let status = reported(&call).clone();
    call.answer(200, &object(3, &blocks()));
    let (mut server, told) = reporter(&node, in_force(blue(), &status));
    server.silence(Duration::from_millis(300)).await;
    told.send_replace(Some(in_force(blue(), &json!({}))));
    let call = server.call().await;
    assert_eq!(*reported(&call), status, "the transition time too");
}

#[tokio::test]
async fn a_report_that_fails_is_tried_again() {
    let node = Node::start(&[blue()]).await;
    let (mut server, _told) = reporter(&node, in_force(blue(), &json!({})));
    let call = server.call().await;
    let first = reported(&call).clone();
    call.fail(403, "Forbidden");
    assert_eq!(reported(&server.call().await)["pools"], first["pools"]);
}

#[tokio::test]
async fn nothing_is_reported_before_the_api_server_has_shown_the_object() {
    let node = Node::start(&[blue()]).await;
    let unseen = InForce { standing: None, ..in_force(blue(), &json!({})) };
    let (mut server, _told) = reporter(&node, unseen);
    server.silence(Duration::from_millis(300)).await;
}

/// A journal further on than any that is reported.
const AHEAD: Position = Position { epoch: u64::MAX, sequence: 0 };

/// An agent that follows its object, with the API server's side of it.
struct Following {
    node: Node,
    server: Server,
    file: SpecFile,
    in_force: watch::Receiver<Option<InForce>>,
    directory: tempfile::TempDir,
}

impl Following {
    async fn start(limit: Option<Duration>) -> Self {
        Self::with(Node::open(tempfile::tempdir().unwrap()).await, tempfile::tempdir().unwrap(), limit, None).await
    }

    /// One that finds generation 4 with one block on its disk, of which container c0 holds an address.
    async fn restart(patience: Duration) -> Self {
        let node = Node::start(&[blue()]).await;
        assert_eq!(node.address(parameters(&["blue"], "c0")).await, "192.168.0.2/16");
        let node = Node::open(node.stop().await).await;
        let directory = tempfile::tempdir().unwrap();
        let file = SpecFile::new(directory.path(), "node1", "kube-system");
        let spec = NodeSpec { uid: "u1".into(), generation: Some(4), blocks: vec![blue()] };
        file.save(&Noted::first(spec)).unwrap();
        Self::with(node, directory, None, Some((patience, AHEAD))).await
    }

    async fn with(
        node: Node,
        directory: tempfile::TempDir,
        limit: Option<Duration>,
        start: Option<(Duration, Position)>,
    ) -> Self {
        let file = SpecFile::new(directory.path(), "node1", "kube-system");
        let (told, in_force) = watch::channel(None);
        let mut blocks = Blocks::new(node.allocator.clone(), file.clone(), node.readiness.clone(), told);
        if let Some((patience, found)) = start {
            blocks.load(patience, Found::note(directory.path(), found)).await;
        }
        let (client, server) = Server::new();
        let (stop, metrics) = (CancellationToken::new(), Metrics::registered().0);
        let (client, limit) = match limit.map(|limit| Offline::watch(client.clone(), limit)) {
            Some((client, limit)) => (client, Some(limit)),
            None => (client, None),
        };
        tokio::spawn(blocks.follow(events(client, "kube-system", "node1"), limit, metrics, stop));
        Self { node, server, file, in_force, directory }
    }

    /// Answers the list that comes next, and waits until it is in force. Returns the watch that follows.
    async fn list(&mut self, generation: i64) -> Call {
        let list = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList",
            "metadata": {"resourceVersion": "7"}, "items": [object(generation, &blocks())]});
        self.server.call().await.answer(200, &list);
        self.until(|told| told.spec.generation == Some(generation)).await;
        self.server.call().await
    }

    /// Waits until what is in force is like this.
    async fn until(&mut self, is: impl Fn(&InForce) -> bool) {
        let told = self.in_force.wait_for(|told| told.as_ref().is_some_and(&is));
        drop(tokio::time::timeout(Duration::from_secs(30), told).await.unwrap().unwrap());
    }

    async fn add(&self, container: &str) -> Result<String, tonic::Status> {
        self.node.add(parameters(&["blue"], container)).await.map(|given| given[0].ip.clone())
    }
}

fn line(kind: &str, object: &Value) -> Vec<u8> {
    format!("{}\n", json!({"type": kind, "object": object})).into_bytes()
}

/// Answers a watch with these lines; it stays open as long as the sender lives.
fn stream(call: Call) -> tokio::sync::mpsc::UnboundedSender<Vec<u8>> {
    let (lines, mut next) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
    let frames = futures::stream::poll_fn(move |context| {
        next.poll_recv(context).map(|line| line.map(|line| Ok::<_, std::io::Error>(Frame::data(line.into()))))
    });
    call.answer.send_response(Response::new(StreamBody::new(frames).boxed_unsync()));
    lines
}

#[tokio::test]
async fn a_block_that_comes_back_by_a_restored_api_server_alone_is_not_given_from() {
    let mut agent = Following::start(None).await;
    let watch = agent.list(4).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
    let lines = stream(watch);
    lines.send(line("MODIFIED", &object(5, &json!([])))).unwrap();
    agent.until(|told| told.spec.generation == Some(5)).await;
    lines.send(line("MODIFIED", &object(4, &blocks()))).unwrap();
    agent.until(|told| told.problems.iter().any(|problem| problem.reason == "Restored")).await;
    let refused = agent.add("c2").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("delete the IPAMNode"), "{refused}");
    agent.node.check(parameters(&["blue"], "c1")).await.unwrap();
    lines.send(line("MODIFIED", &object(6, &blocks()))).unwrap();
    agent.until(|told| told.problems.is_empty()).await;
    assert_eq!(agent.add("c2").await.unwrap(), "192.168.0.3/16");
}

#[tokio::test]
async fn cut_off_for_longer_than_the_offline_limit_the_agent_gives_nothing_new_until_it_is_answered() {
    let mut agent = Following::start(Some(Duration::from_millis(50))).await;
    let watch = agent.list(4).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
    drop(stream(watch));
    agent.server.call().await.fail(500, "InternalError");
    agent.until(|told| told.problems.iter().any(|problem| problem.reason == "Offline")).await;
    let refused = agent.add("c2").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("--offline-limit"), "{refused}");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16", "a repeat is nothing new");
    agent.node.check(parameters(&["blue"], "c1")).await.unwrap();
    agent.node.del(parameters(&["blue"], "c1")).await.unwrap();
    // Without news, but answered.
    let _lines = stream(agent.server.call().await);
    agent.until(|told| told.problems.is_empty()).await;
    assert_eq!(agent.add("c2").await.unwrap(), "192.168.0.3/16");
}

#[tokio::test]
async fn cut_off_without_an_offline_limit_the_agent_goes_on_giving() {
    let mut agent = Following::start(None).await;
    drop(stream(agent.list(4).await));
    agent.server.call().await.fail(500, "InternalError");
    agent.server.call().await.fail(500, "InternalError");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}

#[tokio::test]
async fn the_agent_watches_its_one_object_and_nothing_else() {
    let mut agent = Following::start(None).await;
    let call = agent.server.call().await;
    assert_eq!((&call.method, call.path.as_str()), (&Method::GET, NODE));
    assert!(call.query.contains("fieldSelector=metadata.name%3Dnode1"), "{}", call.query);
    let list = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList",
        "metadata": {"resourceVersion": "7"}, "items": [object(4, &blocks())]});
    call.answer(200, &list);
    agent.until(|told| told.spec.generation == Some(4)).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
    let saved = agent.file.load().unwrap().unwrap().spec;
    assert_eq!(saved.generation, Some(4), "the spec is on disk for a start without API server");
    let call = agent.server.call().await;
    assert!(call.query.contains("watch=true") && call.query.contains("metadata.name%3Dnode1"), "{}", call.query);
    let lines = stream(call);
    lines.send(line("MODIFIED", &object(5, &json!("nonsense")))).unwrap();
    lines.send(line("DELETED", &object(6, &json!([])))).unwrap();
    agent.until(|told| told.spec == NodeSpec::default()).await;
    agent.node.check(parameters(&["blue"], "c1")).await.unwrap();
    assert_eq!(agent.add("c2").await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_block_is_given_from_only_once_it_is_noted_on_disk() {
    let mut agent = Following::start(None).await;
    // A directory stands where the temporary file of a replacement would go.
    let obstacle = agent.directory.path().join(".spec.json.new");
    std::fs::create_dir(&obstacle).unwrap();
    let _lines = stream(agent.list(4).await);
    assert_eq!(agent.file.load(), Ok(None));
    let refused = agent.add("c1").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("cannot note the block on its disk"), "{refused}");
    std::fs::remove_dir(&obstacle).unwrap();
    agent.until(|told| told.problems.is_empty()).await;
    assert_eq!(agent.file.load().unwrap().unwrap().spec.generation, Some(4));
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}

fn list_of(generation: i64, blocks: &Value) -> Value {
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList", "metadata": {"resourceVersion": "7"},
        "items": [object(generation, blocks)]})
}

/// The object of another life: epoch 2 of a journal, .2 and, by its name, .9 held.
fn reported_before(uid: &str) -> Value {
    let mut list = list_of(4, &blocks());
    list["items"][0]["metadata"]["uid"] = json!(uid);
    list["items"][0]["status"] = json!({"observedGeneration": 4, "ledger": {"epoch": 2, "sequence": 7},
        "pools": [{"name": "blue", "poolType": "IPPool", "startIP": "192.168.0.1", "endIP": "192.168.0.4",
            "used": 2, "capacity": 3, "held": [{"startIP": "192.168.0.2", "endIP": "192.168.0.2"},
                {"startIP": "192.168.0.9", "endIP": "192.168.0.9"}]}]});
    list
}

fn went_back(told: &InForce) -> bool {
    told.problems.first().is_some_and(|problem| problem.reason == "StoreWentBack")
}

#[tokio::test]
async fn what_a_store_that_went_back_does_not_know_is_given_to_nobody_until_the_object_is_made_anew() {
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let start = Some((NEVER, Position { epoch: 2, sequence: 6 }));
    let mut agent = Following::with(node, tempfile::tempdir().unwrap(), None, start).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(went_back).await;
    for named in ["192.168.0.2", "192.168.0.9"] {
        let refused = agent.node.add(with_ips(parameters(&["blue"], "c1"), &[named])).await.unwrap_err();
        assert!(refused.message().contains("without a record"), "{refused}");
    }
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.3/16");
    let in_force = agent.in_force.borrow().clone().unwrap();
    let report = Report::new(&in_force, &agent.node.allocator.holdings().await.unwrap()).unwrap();
    let held: Vec<_> = report.pools[0].held.iter().map(|run| (run.start_ip.as_str(), run.end_ip.as_str())).collect();
    assert_eq!(
        (report.pools[0].used, &held[..]),
        (3, &[("192.168.0.2", "192.168.0.3"), ("192.168.0.9", "192.168.0.9")][..])
    );
    assert_eq!(report.ready.0, "StoreWentBack");
    // The next start is ahead of what stands, and knows it from its disk.
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let mut agent = Following::with(node, agent.directory, None, Some((NEVER, AHEAD))).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(|told| went_back(told) && told.standing.is_some()).await;
    let lines = stream(agent.server.call().await);
    lines.send(line("MODIFIED", &reported_before("u2")["items"][0])).unwrap();
    agent.until(|told| told.problems.is_empty()).await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.2/16");
}

#[tokio::test]
async fn an_address_of_the_report_of_a_later_time_is_not_free_when_the_pod_that_an_older_journal_names_for_it_is_gone()
{
    let node = Node::start(&[blue()]).await;
    assert_eq!(node.address(parameters(&["blue"], "c0")).await, "192.168.0.2/16");
    let node = Node::open(node.stop().await).await;
    // The report, of a time at which the journal was further, tells the same address of whoever had it then.
    let start = Some((NEVER, Position { epoch: 2, sequence: 6 }));
    let mut agent = Following::with(node, tempfile::tempdir().unwrap(), None, start).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(went_back).await;
    assert_eq!(agent.add("c0").await.unwrap(), "192.168.0.2/16", "a repeat is nothing new");
    let in_force = agent.in_force.borrow().clone().unwrap();
    let before = Report::new(&in_force, &agent.node.allocator.holdings().await.unwrap()).unwrap();
    assert_eq!(before.pools[0].used, 2, "an address counts once");
    agent.node.del(parameters(&["blue"], "c0")).await.unwrap();
    let refused = agent.node.add(with_ips(parameters(&["blue"], "c1"), &["192.168.0.2"])).await.unwrap_err();
    assert!(refused.message().contains("without a record"), "{refused}");
    let after = Report::new(&in_force, &agent.node.allocator.holdings().await.unwrap()).unwrap();
    assert_eq!(after.pools[0].held, before.pools[0].held, "and may be held still");
}

#[tokio::test]
async fn a_store_that_went_back_is_found_also_after_starts_that_never_saw_the_report() {
    let directory = tempfile::tempdir().unwrap();
    // Each start raises the epoch. These end before the API server has spoken.
    for epoch in 0..5 {
        Found::note(directory.path(), Position { epoch, sequence: 0 });
    }
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let mut agent = Following::with(node, directory, None, Some((NEVER, AHEAD))).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(|told| went_back(told) && told.standing.is_some()).await;
    assert!(!agent.directory.path().join("uncompared.json").exists(), "of the next report it would be too early");
}

#[tokio::test]
async fn nothing_is_reported_while_the_next_start_would_compare_what_is_compared_already() {
    let directory = tempfile::tempdir().unwrap();
    // What cannot be read as the note, nor taken away as one.
    let obstacle = directory.path().join("uncompared.json");
    std::fs::create_dir(&obstacle).unwrap();
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let mut agent = Following::with(node, directory, None, Some((NEVER, AHEAD))).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(|told| told.spec.generation == Some(4)).await;
    assert_eq!(agent.in_force.borrow().as_ref().unwrap().standing, None, "nothing to report to");
    std::fs::remove_dir(&obstacle).unwrap();
    agent.until(|told| told.standing.is_some()).await;
}

#[tokio::test]
async fn a_report_that_alone_tells_what_is_held_is_not_replaced_before_the_disk_knows_it() {
    let directory = tempfile::tempdir().unwrap();
    let obstacle = directory.path().join(".spec.json.new");
    std::fs::create_dir(&obstacle).unwrap();
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    let mut agent = Following::with(node, directory, None, Some((NEVER, Position::default()))).await;
    agent.server.call().await.answer(200, &reported_before("u1"));
    agent.until(went_back).await;
    assert_eq!(agent.in_force.borrow().as_ref().unwrap().standing, None, "nothing to report to");
    std::fs::remove_dir(&obstacle).unwrap();
    agent.until(|told| told.standing.is_some()).await;
    assert!(went_back(agent.in_force.borrow().as_ref().unwrap()));
}

/// Far longer than any test takes.
const NEVER: Duration = Duration::from_hours(1);

#[tokio::test]
async fn nothing_new_is_given_after_a_start_before_the_api_server_has_said_what_is_still_the_nodes() {
    for (generation, still, wanted) in [(4, blocks(), Ok("192.168.0.3/16")), (5, json!([]), Err(tonic::Code::NotFound))]
    {
        let mut agent = Following::restart(NEVER).await;
        let call = agent.server.call().await;
        agent.node.readiness.blocks().unwrap();
        agent.node.check(parameters(&["blue"], "c0")).await.unwrap();
        assert_eq!(agent.add("c0").await.unwrap(), "192.168.0.2/16", "a repeat is nothing new");
        let new = agent.node.client.clone();
        let new = tokio::spawn(async move { new.allocate(parameters(&["blue"], "c1"), deadline()).await });
        tokio::pin!(new);
        let early = tokio::time::timeout(Duration::from_millis(200), &mut new).await;
        assert!(early.is_err(), "{early:?}");
        call.answer(200, &list_of(generation, &still));
        let given = new.await.unwrap().map(|given| given[0].ip.clone()).map_err(|refused| refused.code());
        assert_eq!(given, wanted.map(str::to_owned));
        agent.node.del(parameters(&["blue"], "c0")).await.unwrap();
    }
}

#[tokio::test]
async fn after_a_start_the_copy_on_disk_is_given_from_once_the_api_server_fails_or_keeps_silent() {
    let mut agent = Following::restart(NEVER).await;
    agent.server.call().await.fail(500, "InternalError");
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.3/16");
    let mut agent = Following::restart(Duration::from_millis(50)).await;
    let _unanswered = agent.server.call().await;
    assert_eq!(agent.add("c1").await.unwrap(), "192.168.0.3/16");
}

#[tokio::test]
async fn an_agent_whose_start_does_not_end_refuses_what_is_new_with_a_word() {
    let mut agent = Following::restart(NEVER).await;
    let _unanswered = agent.server.call().await;
    let refused = agent.add("c1").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("has just started"), "{refused}");
}

fn collector(node: &Node, checks_before: u32) -> (Server, Collector) {
    let (client, server) = Server::new();
    let config = StaleConfig { interval: Duration::from_mins(1), checks_before };
    (server, Collector::new(client, "node1", config, node.allocator.clone(), Metrics::registered().0))
}

/// Runs one check against scripted answers; each is (path, status, body).
async fn check(server: &mut Server, collector: &mut Collector, script: &[(&str, u16, Value)]) -> Result<(), String> {
    let answers = async {
        for (path, status, body) in script {
            let call = server.call().await;
            assert_eq!((&call.method, call.path.as_str()), (&Method::GET, *path));
            assert!(call.accept.contains("PartialObjectMetadata"), "metadata only: {}", call.accept);
            if *path == "/api/v1/pods" {
                assert!(call.query.contains("fieldSelector=spec.nodeName%3Dnode1"), "{}", call.query);
            }
            call.answer(*status, body);
        }
    };
    let (result, ()) = tokio::join!(collector.check(), answers);
    result
}

fn pods(names: &[(&str, &str)]) -> Value {
    let items: Vec<_> = names
        .iter()
        .map(|(name, uid)| json!({"metadata": {"name": name, "namespace": "default", "uid": uid}}))
        .collect();
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items})
}

const PODS: &str = "/api/v1/pods";
const POD: &str = "/api/v1/namespaces/default/pods/pod-c1";

fn not_found() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"})
}

#[tokio::test]
async fn an_address_is_given_back_after_the_checks_and_a_last_look_at_its_pod() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[]))]).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[])), (POD, 404, not_found())]).await.unwrap();
    let gone = node.check(parameters(&["blue"], "c1")).await.unwrap_err();
    assert_eq!(gone.code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_pod_that_the_last_look_finds_keeps_its_address() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    let found = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "pod-c1", "namespace": "default", "uid": "u"}});
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[]))]).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[])), (POD, 200, found)]).await.unwrap();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn while_the_api_server_is_away_nothing_is_given_back() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let (mut server, mut collector) = collector(&node, 1);
    let forbidden =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden"});
    check(&mut server, &mut collector, &[(PODS, 200, pods(&[]))]).await.unwrap();
    check(&mut server, &mut collector, &[(PODS, 403, forbidden.clone())]).await.unwrap_err();
    let script = [(PODS, 200, pods(&[])), (POD, 403, forbidden)];
    check(&mut server, &mut collector, &script).await.unwrap_err();
    node.check(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn a_node_that_holds_nothing_asks_nothing() {
    let node = Node::start(&[blue()]).await;
    let (mut server, mut collector) = collector(&node, 1);
    collector.check().await.unwrap();
    server.silence(Duration::from_millis(20)).await;
}
