//! An agent in this process: real allocator, real journal, real gRPC over a unix socket; the blocks are told by the test.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod disk;
pub(crate) mod store;

use std::fs::File;
use std::io::Seek as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ipam_core::ledger::{Change, GrantStep, Ledger};
use ipam_core::{GrantId, PoolKey};
use ipam_crds::{BlockState, NodeBlock, PoolType as BlockType};
use ipam_node_agent::allocator::{Allocator, Source, system_clock};
use ipam_node_agent::blocks::node_pools;
use ipam_node_agent::identity::Identity;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::note::{Noted, Start, Subject};
use ipam_node_agent::ready::Readiness;
use ipam_node_agent::rpc::Rpc;
use ipam_node_agent::socket::Listener;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use ipam_node_api::v1::{AllocationInfo, IpamFeatures, IpamMetadata, IpamParameters};
use ipam_node_store::{Opened, Position, RealDirectory};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use disk::Disk;

pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Waits until a child of this test ends. If it still runs at the [`deadline`], it is killed and the test fails.
pub(crate) fn ended(child: &mut Child, what: &str) -> ExitStatus {
    let until = deadline();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() >= until {
            drop(child.kill());
            drop(child.wait());
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the agent to its end, without input: exit code, standard output and standard error. It ends as [`ended`] says.
pub(crate) fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let [stdout, stderr] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let status = ended(&mut command.spawn().unwrap(), "the agent");
    let text = |mut file: File| {
        file.rewind().unwrap();
        std::io::read_to_string(file).unwrap()
    };
    (status.code(), text(stdout), text(stderr))
}

/// An IPPool block: 192.168.0.1 to .4 of 192.168.0.0/16, gateway .1.
pub(crate) fn blue() -> NodeBlock {
    NodeBlock {
        name: "blue".into(),
        pool_type: BlockType::IPPool,
        grant: "6500000000000001".into(),
        state: BlockState::Active,
        start_ip: "192.168.0.1".into(),
        end_ip: "192.168.0.4".into(),
        subnet: "192.168.0.0/16".into(),
        gateway: Some("192.168.0.1".into()),
        ..NodeBlock::default()
    }
}

/// A CIDRPool block: the hosts of fd00:1::/64, gateway ::1.
pub(crate) fn green() -> NodeBlock {
    NodeBlock {
        name: "green".into(),
        pool_type: BlockType::CIDRPool,
        grant: "6500000000000002".into(),
        state: BlockState::Active,
        start_ip: "fd00:1::1".into(),
        end_ip: "fd00:1::ffff:ffff:ffff:ffff".into(),
        subnet: "fd00:1::/64".into(),
        gateway: Some("fd00:1::1".into()),
        ..NodeBlock::default()
    }
}

/// Parameters of a pod's first interface.
pub(crate) fn parameters(pools: &[&str], container: &str) -> IpamParameters {
    IpamParameters {
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        cni_containerid: container.to_owned(),
        cni_ifname: "net1".to_owned(),
        metadata: Some(IpamMetadata {
            k8s_pod_name: format!("pod-{container}"),
            k8s_pod_namespace: "default".to_owned(),
            ..IpamMetadata::default()
        }),
        ..IpamParameters::default()
    }
}

pub(crate) fn with_ips(parameters: IpamParameters, ips: &[&str]) -> IpamParameters {
    IpamParameters { requested_ips: ips.iter().map(|ip| (*ip).to_owned()).collect(), ..parameters }
}

pub(crate) fn with_index(parameters: IpamParameters, index: i32) -> IpamParameters {
    let features = IpamFeatures { allocate_ip_with_index: Some(index), ..IpamFeatures::default() };
    IpamParameters { features: Some(features), ..parameters }
}

pub(crate) fn with_gateway(parameters: IpamParameters) -> IpamParameters {
    let features = IpamFeatures { allocate_default_gateway: true, ..IpamFeatures::default() };
    IpamParameters { features: Some(features), ..parameters }
}

/// The API server assigns these blocks to the node, and confirms them.
pub(crate) async fn assign(allocator: &Allocator, blocks: &[NodeBlock]) {
    let (pools, problems) = node_pools(blocks);
    assert_eq!(problems, Vec::<String>::new());
    allocator.configure(pools, Source::ApiServer(None), None).await.unwrap();
    confirm(allocator, blocks).await;
}

/// The API server confirms the grants of these blocks.
pub(crate) async fn confirm(allocator: &Allocator, blocks: &[NodeBlock]) {
    allocator.confirm(grants(blocks)).await.unwrap();
}

pub(crate) fn grants(blocks: &[NodeBlock]) -> Vec<(PoolKey, GrantId)> {
    node_pools(blocks).0.into_iter().filter_map(|pool| Some((pool.key, pool.grant?))).collect()
}

fn confirmations(blocks: &[NodeBlock]) -> Vec<Change> {
    let confirmed = |(pool, id)| Change::Grant { pool, id, step: GrantStep::Confirmed };
    grants(blocks).into_iter().map(confirmed).collect()
}

/// A ledger in which the grants of these blocks are confirmed.
pub(crate) fn confirmed_ledger(blocks: &[NodeBlock]) -> Ledger {
    let mut ledger = Ledger::new(0);
    for change in confirmations(blocks) {
        ledger.apply(&change);
    }
    ledger
}

/// Records a spec in the journal of an agent that does not run, as an agent does once the API server has sent it and has confirmed its
/// grants.
pub(crate) fn save_spec(store: &Path, namespace: &str, spec: NodeSpec) {
    // In one go: a child that another test starts at this moment holds the lock of the store until it has become its program.
    append(store, confirmations(&spec.blocks).into_iter().chain([note(namespace, spec)]));
}

/// Records a spec in the journal of an agent that does not run. No grant is confirmed.
pub(crate) fn save_unconfirmed(store: &Path, namespace: &str, spec: NodeSpec) {
    append(store, [note(namespace, spec)]);
}

fn note(namespace: &str, spec: NodeSpec) -> Change {
    let subject = Subject { node: "node1".into(), namespace: namespace.into() };
    Change::Note { text: subject.text(&Noted::first(spec)) }
}

/// Confirms the grants of these blocks in the journal of an agent that does not run.
pub(crate) fn confirm_in(store: &Path, blocks: &[NodeBlock]) {
    append(store, confirmations(blocks));
}

fn append(store: &Path, changes: impl IntoIterator<Item = Change>) {
    let mut all = Vec::new();
    let opened = Opened::read(RealDirectory::lock(store).unwrap(), |change| all.push(change.clone())).unwrap();
    all.extend(changes);
    drop(opened.begin(all).unwrap());
}

/// The object that the notes of [`Node`] are about.
pub(crate) fn subject() -> Subject {
    Subject { node: "node1".into(), namespace: "kube-system".into() }
}

/// A running agent.
pub(crate) struct Node {
    pub(crate) client: AgentClient,
    pub(crate) allocator: Allocator,
    pub(crate) readiness: Readiness,
    /// What the journal had noted.
    pub(crate) start: Start,
    pub(crate) disk: Disk,
    directory: TempDir,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    ended: ipam_node_agent::allocator::Ended,
}

impl Node {
    /// An agent with an empty store and these blocks.
    pub(crate) async fn start(blocks: &[NodeBlock]) -> Self {
        let node = Self::open(tempfile::tempdir().unwrap()).await;
        node.configure(blocks).await;
        node
    }

    /// An agent on a store that exists, without blocks.
    pub(crate) async fn open(directory: TempDir) -> Self {
        Self::open_at(directory, None, Identity::default()).await
    }

    /// The same on this machine, with a journal that counts as one that had come to `position`.
    pub(crate) async fn open_at(directory: TempDir, position: Option<Position>, here: Identity) -> Self {
        let mut ledger = Ledger::new(0);
        let store = RealDirectory::lock(&directory.path().join("store.d")).unwrap();
        let opened = Opened::read(store, |change| ledger.apply(change)).unwrap();
        let start = Start::new(subject(), &mut ledger, position.unwrap_or(opened.position()), here);
        let journal = opened.begin(ledger.snapshot()).unwrap();
        let start = start.recorded();
        let disk = Disk::new(start.durable());
        let journal = disk.with(Box::new(journal));
        let (metrics, _) = Metrics::registered();
        let (allocator, ended) = Allocator::start(ledger, journal, system_clock(), Arc::clone(&metrics)).unwrap();
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        let address = socket(directory.path());
        let listener = Listener::bind(&address).unwrap();
        readiness.set_serving(true);
        let rpc = Rpc::new(allocator.clone(), readiness.clone(), metrics);
        let serving = listener.serve(rpc, stop.clone());
        let serving = tokio::spawn(async move { serving.await.unwrap() });
        let client = AgentClient::connect(&address, deadline()).await.unwrap();
        Self { client, allocator, readiness, start, disk, directory, stop, serving, ended }
    }

    /// The API server assigns these blocks to the node, and confirms them.
    pub(crate) async fn configure(&self, blocks: &[NodeBlock]) {
        assign(&self.allocator, blocks).await;
        self.readiness.blocks_are_known();
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("daemon.sock")
    }

    /// Ends the agent in order; its store can be opened again.
    pub(crate) async fn stop(self) -> TempDir {
        let Self { client, allocator, directory, stop, serving, ended, .. } = self;
        drop(client);
        stop.cancel();
        serving.await.unwrap();
        drop(allocator);
        ended.await.unwrap().unwrap();
        directory
    }

    pub(crate) async fn add(&self, parameters: IpamParameters) -> Result<Vec<AllocationInfo>, Status> {
        self.client.allocate(parameters, deadline()).await
    }

    /// The one address that ADD gives, with its prefix length.
    pub(crate) async fn address(&self, parameters: IpamParameters) -> String {
        let [info] = &self.add(parameters).await.unwrap()[..] else { panic!("one address expected") };
        info.ip.clone()
    }

    pub(crate) async fn del(&self, parameters: IpamParameters) -> Result<(), Status> {
        self.client.deallocate(parameters, deadline()).await
    }

    pub(crate) async fn check(&self, parameters: IpamParameters) -> Result<(), Status> {
        self.client.is_allocated(parameters, deadline()).await
    }
}

fn socket(directory: &Path) -> AgentAddress {
    AgentAddress::Unix(directory.join("daemon.sock"))
}
