//! Asks the API server which pods of the node have addresses that the journal has no record of.
//!
//! Decides when to ask: only while there are such addresses of this machine. What follows from the answers decides [`crate::reclaim`].

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, ListParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::flags::StaleConfig;
use crate::gc::within;
use crate::lost::Lost;
use crate::reclaim::{InUse, Reclaim, SeenPod, Sightings};
use crate::watch::InForce;

/// Asks for the pods of the node while it has addresses without a record.
pub struct Reclaimer {
    client: Client,
    node: String,
    config: StaleConfig,
    /// Namespace and name of the agent's own pod, if it is one.
    own: Option<(String, String)>,
    in_force: watch::Receiver<Option<InForce>>,
    reclaims: mpsc::Sender<Reclaim>,
    sightings: Sightings,
    /// The pod whose addresses were not known in the last check.
    unknown: Option<String>,
}

impl Reclaimer {
    /// Nothing is seen yet. `own` is the namespace and name of the agent's pod, without which a list is not believed.
    pub fn new(
        client: Client,
        node: &str,
        config: StaleConfig,
        own: Option<(String, String)>,
        in_force: watch::Receiver<Option<InForce>>,
        reclaims: mpsc::Sender<Reclaim>,
    ) -> Self {
        let (node, sightings) = (node.to_owned(), Sightings::default());
        Self { client, node, config, own, in_force, reclaims, sightings, unknown: None }
    }

    /// Checks at each interval until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            let mut is_failing = false;
            loop {
                tokio::time::sleep(self.config.interval).await;
                let result = self.check().await;
                if let Err(error) = &result
                    && !is_failing
                {
                    warn!(error, "cannot check whether pods have addresses without a record: none becomes available");
                }
                is_failing = result.is_err();
            }
        })
        .await;
    }

    /// One check.
    ///
    /// # Errors
    /// The API server gives no answer that can be believed. No check is counted then.
    pub async fn check(&mut self) -> Result<(), String> {
        let lost = self.in_force.borrow().as_ref().and_then(|in_force| in_force.lost.clone());
        let Some(lost) = lost.filter(Lost::is_of_this_machine) else {
            self.sightings = Sightings::default();
            return Ok(());
        };
        let in_use = self.in_use(ListParams::default().match_any()).await?;
        if let Some(pod) = in_use.unknown().filter(|pod| self.unknown.as_deref() != Some(*pod)) {
            info!(
                pod,
                "addresses without a record stay unavailable: the network-status of this pod does not show all its addresses"
            );
        }
        self.unknown = in_use.unknown().map(str::to_owned);
        if !self.sightings.observe(&lost, &in_use, self.config.checks_before) {
            return Ok(());
        }
        let last_look = self.in_use(ListParams::default()).await?;
        if let Some(reclaim) = self.sightings.confirmed(&last_look, self.config.checks_before) {
            info!("addresses without a record that no pod of this node has are available again");
            // Closed only at the end of the agent.
            drop(self.reclaims.send(reclaim).await);
        }
        Ok(())
    }

    async fn in_use(&self, params: ListParams) -> Result<InUse, String> {
        let api = Api::<SeenPod>::all_with(self.client.clone(), &ApiResource::erase::<Pod>(&()));
        let pods = within(api.list(&params.fields(&format!("spec.nodeName={}", self.node)))).await?;
        let is_own = |pod: &SeenPod| {
            self.own
                .as_ref()
                .is_none_or(|(namespace, name)| pod.namespace().as_ref() == Some(namespace) && pod.name_any() == *name)
        };
        if !pods.items.iter().any(is_own) {
            return Err("the API server lists no pod on this node, or not the agent's own pod".to_owned());
        }
        let mut in_use = InUse::default();
        pods.items.iter().for_each(|pod| in_use.add(pod));
        debug!(pods = pods.items.len(), "pods listed");
        Ok(in_use)
    }
}
