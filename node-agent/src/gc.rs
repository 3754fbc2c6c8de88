//! Gives back addresses whose pod is gone, for runtimes that never called DEL.
//!
//! Decides by the API server's word alone, and only on certain knowledge: several observations apart in time, then a last
//! look at the single pod right before the release. While the API server is away nothing is released and nothing is
//! counted. A reservation that does not name its pod counts as valid, and so does one of a static pod whose mirror is
//! absent. The sandbox itself is not asked: the runtime's CRI socket is not among what the agent is given.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::{Attachment, Owner, Reservation};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::allocator::Allocator;
use crate::flags::StaleConfig;
use crate::metrics::Metrics;

/// Time that one question to the API server may take.
const API_TIMEOUT: Duration = Duration::from_secs(15);
/// Pods listed per page.
const PAGE: u32 = 200;

/// The pods of this node: (namespace, name) → every UID that the pod is known by.
///
/// A static pod is known to the runtime by the hash of its manifest and to the API server by the UID of its mirror, which
/// carries the hash as an annotation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pods(HashMap<(String, String), Vec<String>>);

const STATIC_POD_HASHES: [&str; 2] = ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"];

impl Pods {
    /// Adds a pod.
    pub fn add(&mut self, pod: &PartialObjectMeta<Pod>) {
        let metadata = &pod.metadata;
        let annotations = metadata.annotations.iter().flatten();
        let hashes = annotations.filter(|(key, _)| STATIC_POD_HASHES.contains(&key.as_str())).map(|(_, hash)| hash);
        let uids = metadata.uid.iter().chain(hashes).cloned().collect();
        let key = (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
        self.0.insert(key, uids);
    }

    /// Whether it is certain that the pod of an attachment no longer exists. Without a UID the name decides.
    ///
    /// A static pod runs whether or not the API server takes its mirror (a missing namespace or an admission policy may
    /// keep it out). So its absence says nothing; only a mirror of another manifest does, which the kubelet makes when the
    /// earlier pod has ended.
    pub fn lack(&self, attachment: &Attachment) -> bool {
        let Attachment { pod_name, pod_namespace, pod_uid, .. } = attachment;
        let known = self.0.get(&(pod_namespace.clone(), pod_name.clone()));
        match known {
            Some(uids) if pod_uid.is_empty() || uids.contains(pod_uid) => false,
            Some(uids) => is_of_api_server(pod_uid) || uids.iter().any(|uid| !is_of_api_server(uid)),
            None => pod_uid.is_empty() || is_of_api_server(pod_uid),
        }
    }
}

/// Whether a UID has the form of those that the API server gives (RFC 9562, with hyphens). The kubelet's own, of static
/// pods, are bare hexadecimal hashes.
fn is_of_api_server(uid: &str) -> bool {
    let hyphens = [8, 13, 18, 23];
    uid.len() == 36
        && uid
            .bytes()
            .enumerate()
            .all(|(at, byte)| if hyphens.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
}

/// How often each reservation was seen without its pod.
#[derive(Default, Debug)]
pub struct Observations {
    /// Keyed by all that makes a reservation: one given anew is another one.
    missing: HashMap<(PoolKey, Owner, i64), u32>,
}

/// Reservations whose pods were missing often enough. Each pod needs one last look before its addresses are freed.
#[derive(Default, Debug)]
pub struct Suspects {
    stale: Vec<Reservation>,
    /// The pods that the last look has found.
    here: Pods,
}

impl Suspects {
    /// Namespace and name of each pod that needs a last look, once.
    pub fn pods(&self) -> Vec<(String, String)> {
        let mut pods = Vec::new();
        let mut known = HashSet::new();
        for Attachment { pod_name, pod_namespace, .. } in self.stale.iter().map(|reservation| &reservation.attachment) {
            if known.insert((pod_namespace, pod_name)) {
                pods.push((pod_namespace.clone(), pod_name.clone()));
            }
        }
        pods
    }

    /// The last look has found this pod.
    pub fn found(&mut self, pod: &PartialObjectMeta<Pod>) {
        self.here.add(pod);
    }

    /// The reservations to free, once each pod had its last look.
    pub fn confirmed(self) -> Vec<Reservation> {
        let Self { mut stale, here } = self;
        stale.retain(|reservation| here.lack(&reservation.attachment));
        stale
    }
}

impl Observations {
    /// Counts one check; returns the reservations that more than `checks_before` checks in a row found without a pod.
    pub fn observe(&mut self, held: &[Reservation], pods: &Pods, checks_before: u32) -> Suspects {
        let mut missing = HashMap::new();
        let mut stale = Vec::new();
        for reservation in held {
            let attachment = &reservation.attachment;
            // No pod has such a name, so nobody can say whether it is gone.
            let unknown_owner =
                ![&attachment.pod_name, &attachment.pod_namespace].into_iter().all(|name| is_name(name));
            if unknown_owner || !pods.lack(attachment) {
                continue;
            }
            let key = (reservation.pool.clone(), reservation.owner.clone(), reservation.created);
            let count = self.missing.get(&key).copied().unwrap_or(0).saturating_add(1);
            if count > checks_before {
                stale.push(reservation.clone());
            }
            missing.insert(key, count);
        }
        self.missing = missing;
        Suspects { stale, here: Pods::default() }
    }
}

/// Whether an object of Kubernetes may have this name: a DNS subdomain.
fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(allowed)
}

/// The collector.
pub struct Collector {
    client: Client,
    node: String,
    config: StaleConfig,
    allocator: Allocator,
    metrics: Arc<Metrics>,
    observations: Observations,
}

impl Collector {
    /// Nothing is observed yet.
    pub fn new(client: Client, node: &str, config: StaleConfig, allocator: Allocator, metrics: Arc<Metrics>) -> Self {
        Self { client, node: node.to_owned(), config, allocator, metrics, observations: Observations::default() }
    }

    /// Checks at each interval until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut failing = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.config.interval) => {}
            }
            let result = tokio::select! {
                () = stop.cancelled() => return,
                result = self.check() => result,
            };
            match &result {
                Ok(()) if failing => info!("checking for addresses of pods that are gone again"),
                Ok(()) => {}
                Err(error) if failing => debug!(error, "still cannot check for addresses of pods that are gone"),
                Err(error) => warn!(error, "cannot check for addresses of pods that are gone, none is given back"),
            }
            failing = result.is_err();
        }
    }

    /// One check. The reservations are read before the pods: a pod of the list is never too old for them.
    pub async fn check(&mut self) -> Result<(), String> {
        let held = self.allocator.reservations().await.map_err(|error| error.to_string())?;
        if held.is_empty() {
            self.observations = Observations::default();
            return Ok(());
        }
        let pods = self.pods_of_node().await?;
        let mut suspects = self.observations.observe(&held, &pods, self.config.checks_before);
        drop(held);
        for (namespace, name) in suspects.pods() {
            if let Some(pod) = self.pod(&namespace, &name).await? {
                suspects.found(&pod);
            }
        }
        self.release(suspects.confirmed()).await
    }

    async fn release(&self, stale: Vec<Reservation>) -> Result<(), String> {
        if stale.is_empty() {
            return Ok(());
        }
        for Reservation { pool, owner, addr, attachment, .. } in &stale {
            let (container, ifname) = (&owner.container_id, &owner.if_name);
            let Attachment { pod_name: pod, pod_namespace: namespace, .. } = attachment;
            info!(pool = %pool.name, container, ifname, %addr, pod, namespace, "the pod is gone, giving its address back");
        }
        let released = self.allocator.release_stale(stale).await.map_err(|error| error.to_string())?;
        self.metrics.stale_released.inc_by(u64::try_from(released).unwrap_or(u64::MAX));
        Ok(())
    }

    async fn pods_of_node(&self) -> Result<Pods, String> {
        let api = Api::<PartialObjectMeta<Pod>>::all(self.client.clone());
        let mut params = ListParams::default().fields(&format!("spec.nodeName={}", self.node)).limit(PAGE);
        let mut pods = Pods::default();
        loop {
            let page = within(api.list(&params)).await?;
            for pod in &page.items {
                pods.add(pod);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(pods),
            }
        }
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<PartialObjectMeta<Pod>>, String> {
        let api = Api::<PartialObjectMeta<Pod>>::namespaced(self.client.clone(), namespace);
        within(api.get_opt(name)).await
    }
}

async fn within<T>(question: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(API_TIMEOUT, question).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer of the API server within {} s", API_TIMEOUT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use ipam_core::PoolKind;

    use super::*;

    const U1: &str = "11111111-1111-4111-8111-111111111111";
    const U2: &str = "22222222-2222-4222-8222-222222222222";
    const HASH: &str = "0123456789abcdef0123456789abcdef";

    fn pod(name: &str, uid: &str, annotations: &[(&str, &str)]) -> PartialObjectMeta<Pod> {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut pod = PartialObjectMeta::<Pod>::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.annotations = Some(annotations);
        pod
    }

    fn pods(list: &[PartialObjectMeta<Pod>]) -> Pods {
        let mut pods = Pods::default();
        for pod in list {
            pods.add(pod);
        }
        pods
    }

    fn reservation(pod_name: &str, pod_uid: &str, created: i64) -> Reservation {
        let (pod_name, pod_uid) = (pod_name.to_owned(), pod_uid.to_owned());
        let attachment = Attachment { pod_name, pod_uid, pod_namespace: "default".into(), ..Attachment::default() };
        Reservation {
            pool: PoolKey::new(PoolKind::IpPool, "blue"),
            owner: Owner::new("c1", "net1"),
            addr: "10.0.0.2".parse().unwrap(),
            attachment,
            created,
        }
    }

    #[test]
    fn an_address_is_stale_after_more_checks_in_a_row_than_asked_for() {
        let (held, nobody) = ([reservation("a", U1, 5)], Pods::default());
        let mut observations = Observations::default();
        for _ in 0..3 {
            assert_eq!(observations.observe(&held, &nobody, 3).confirmed(), []);
        }
        assert_eq!(observations.observe(&held, &nobody, 3).confirmed(), held);
    }

    #[test]
    fn a_pod_seen_once_in_between_starts_the_count_anew() {
        let (held, there) = ([reservation("a", U1, 5)], pods(&[pod("a", U1, &[])]));
        let mut observations = Observations::default();
        observations.observe(&held, &Pods::default(), 1);
        observations.observe(&held, &there, 1);
        assert_eq!(observations.observe(&held, &Pods::default(), 1).confirmed(), []);
    }

    #[test]
    fn a_reservation_made_anew_is_another_one() {
        let mut observations = Observations::default();
        observations.observe(&[reservation("a", U1, 5)], &Pods::default(), 1);
        assert_eq!(observations.observe(&[reservation("a", U1, 6)], &Pods::default(), 1).confirmed(), []);
    }

    #[test]
    fn a_pod_of_the_same_name_but_another_uid_is_another_pod() {
        let there = pods(&[pod("a", U2, &[])]);
        assert!(there.lack(&reservation("a", U1, 0).attachment));
        assert!(!there.lack(&reservation("a", U2, 0).attachment));
        assert!(!there.lack(&reservation("a", "", 0).attachment), "without a UID the name decides");
        assert!(Pods::default().lack(&reservation("a", "", 0).attachment), "without a UID the name decides");
    }

    #[test]
    fn a_static_pod_is_known_by_the_hash_of_its_manifest() {
        let mirror = |hash| pods(&[pod("a", U1, &[("kubernetes.io/config.mirror", hash)])]);
        assert!(!mirror(HASH).lack(&reservation("a", HASH, 0).attachment));
        assert!(mirror("ffffffffffffffffffffffffffffffff").lack(&reservation("a", HASH, 0).attachment));
    }

    #[test]
    fn a_static_pod_without_its_mirror_keeps_its_address() {
        let static_pod = reservation("a", HASH, 0);
        assert!(!Pods::default().lack(&static_pod.attachment), "the API server may have refused the mirror");
        assert!(!pods(&[pod("a", U1, &[])]).lack(&static_pod.attachment), "another pod has the mirror's name");
        let mut observations = Observations::default();
        for _ in 0..5 {
            assert_eq!(observations.observe(std::slice::from_ref(&static_pod), &Pods::default(), 1).confirmed(), []);
        }
    }

    #[test]
    fn a_reservation_without_a_pods_name_is_never_stale() {
        let mut observations = Observations::default();
        for _ in 0..5 {
            assert_eq!(observations.observe(&[reservation("", "", 0)], &Pods::default(), 1).confirmed(), []);
            // Nor one with a name that no pod can have: to ask for it would be an error, and stop the check for all.
            for name in ["my pod", "../a", "Pod", "a\u{e9}"] {
                assert_eq!(
                    observations.observe(&[reservation(name, "", 0)], &Pods::default(), 1).confirmed(),
                    [],
                    "{name}"
                );
            }
        }
    }
}
