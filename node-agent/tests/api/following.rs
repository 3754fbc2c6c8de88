//! An agent that follows its object.

use std::time::Duration;

use ipam_node_agent::contact::Offline;
use ipam_node_agent::identity::Identity;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::note::Noted;
use ipam_node_agent::reclaim::Reclaim;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::watch::{Blocks, InForce, events};
use ipam_node_store::Position;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::common::{Node, blue, confirm, parameters, save_unconfirmed};
use crate::server::{Call, Server, blocks, object};

/// Far longer than any test takes.
pub(crate) const NEVER: Duration = Duration::from_hours(1);

/// How long addresses of another machine of this name are unavailable.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// A journal further on than any that is reported.
pub(crate) const AHEAD: Position = Position { epoch: u64::MAX, sequence: 0 };

/// An agent that follows its object, with the API server's side of it.
pub(crate) struct Following {
    pub(crate) node: Node,
    pub(crate) server: Server,
    pub(crate) in_force: watch::Receiver<Option<InForce>>,
    stop: CancellationToken,
    watching: tokio::task::JoinHandle<()>,
}

impl Following {
    pub(crate) async fn start(limit: Option<Duration>) -> Self {
        Self::with(Node::open_at(tempfile::tempdir().unwrap(), Some(AHEAD), Identity::default()).await, limit, None)
            .await
    }

    /// One that finds generation 4 with one block on its disk, of which container c0 holds an address.
    pub(crate) async fn restart(patience: Duration) -> Self {
        let node = Node::start(&[blue()]).await;
        assert_eq!(node.address(parameters(&["blue"], "c0")).await, "192.168.0.2/16");
        let directory = node.stop().await;
        let spec =
            NodeSpec { uid: "u1".into(), created: 0, generation: Some(4), blocks: vec![blue()], ..NodeSpec::default() };
        save_unconfirmed(&directory.path().join("store.d"), "kube-system", spec);
        Self::with(Node::open_at(directory, Some(AHEAD), Identity::default()).await, None, Some(patience)).await
    }

    /// With `patience` it waits so long for the API server before it goes by what its journal has noted.
    pub(crate) async fn with(node: Node, limit: Option<Duration>, patience: Option<Duration>) -> Self {
        Self::reclaiming(node, limit, patience, mpsc::channel(1).1).await
    }

    /// The same, and addresses without a record become available as `reclaims` says.
    pub(crate) async fn reclaiming(
        node: Node,
        limit: Option<Duration>,
        patience: Option<Duration>,
        reclaims: mpsc::Receiver<Reclaim>,
    ) -> Self {
        let (told, in_force) = watch::channel(None);
        let blocks = Blocks::new(node.allocator.clone(), node.start.clone(), node.readiness.clone(), told);
        let mut blocks = blocks.with_grace(Some(GRACE)).with_reclaims(reclaims);
        if let Some(patience) = patience {
            blocks.load(patience).await;
        }
        let (client, server) = Server::new();
        let (stop, metrics) = (CancellationToken::new(), Metrics::registered().0);
        let (client, limit) = match limit.map(|limit| Offline::watch(client.clone(), limit)) {
            Some((client, limit)) => (client, Some(limit)),
            None => (client, None),
        };
        let events = events(client, "kube-system", "node1", std::sync::Arc::default());
        let watching = tokio::spawn(blocks.follow(events, limit, metrics, stop.clone()));
        Self { node, server, in_force, stop, watching }
    }

    /// Ends the agent in order. Its store can be opened again.
    pub(crate) async fn stop(self) -> tempfile::TempDir {
        self.stop.cancel();
        self.watching.await.unwrap();
        self.node.stop().await
    }

    /// What its journal has noted last.
    pub(crate) fn noted(&self) -> Noted {
        self.node.disk.noted()
    }

    /// Answers the list that comes next, and waits until it is in force. Returns the watch that follows.
    pub(crate) async fn list(&mut self, generation: i64) -> Call {
        let list = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNodeList",
            "metadata": {"resourceVersion": "7"}, "items": [object(generation, &blocks())]});
        self.server.call().await.answer(200, &list);
        self.until(|told| told.spec.generation == Some(generation)).await;
        self.server.call().await
    }

    /// Waits until what is in force is like this.
    pub(crate) async fn until(&mut self, is: impl Fn(&InForce) -> bool) {
        let told = self.in_force.wait_for(|told| told.as_ref().is_some_and(&is));
        drop(tokio::time::timeout(Duration::from_secs(30), told).await.unwrap().unwrap());
    }

    /// The API server confirms the grants of what is in force.
    pub(crate) async fn confirm(&self) {
        let blocks = self.in_force.borrow().as_ref().map(|told| told.spec.blocks.clone()).unwrap_or_default();
        confirm(&self.node.allocator, &blocks).await;
    }

    /// CNI ADD, after the grants in force are confirmed.
    pub(crate) async fn add(&self, container: &str) -> Result<String, tonic::Status> {
        self.confirm().await;
        self.node.add(parameters(&["blue"], container)).await.map(|given| given[0].ip.clone())
    }
}
