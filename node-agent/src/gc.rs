//! Gives back addresses whose pod is gone, for runtimes that never called DEL.
//!
//! Decides by the API server, and by the container runtime where the agent may ask it, and only on certain knowledge: several
//! observations apart in time, then a last look right before the release. While one of the two does not answer, nothing is released and
//! nothing is counted. A reservation that does not name its pod counts as valid.
//!
//! | sandbox in the runtime | pod in the API | the address |
//! | --- | --- | --- |
//! | listed | any | in use |
//! | not listed | gone, or another UID | stale |
//! | not listed | there, or a static pod without its mirror | stale once no check has seen the sandbox for [`SANDBOX_SETUP`] |
//! | not asked, or the reservation has no UID | gone, or another UID | stale |
//! | not asked, or the reservation has no UID | there, or a static pod without its mirror | in use |
//!
//! A list without any pod or sandbox, or without the agent's own, is of another cluster or of another node: nothing is counted.
//!
//! A pod can have addresses of a sandbox that was replaced and never deleted. Such an address is freed if the pod's network-status has an
//! address that a later sandbox got for the same interface, and not this one.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::{Attachment, Owner, Reservation};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::allocator::{Allocator, Failure};
use crate::flags::StaleConfig;
use crate::metrics::Metrics;
use crate::network_status::{NETWORK_STATUS, addresses_of};
use crate::runtime::{Runtime, Sandboxes};

/// Time that one question to the API server may take.
const API_TIMEOUT: Duration = Duration::from_secs(15);

/// Longer than a runtime may take to set up a sandbox, which it lists only then: the kubelet waits four minutes.
const SANDBOX_SETUP: Duration = Duration::from_mins(5);

/// The pods of this node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pods {
    /// By namespace and name.
    known: HashMap<(String, String), Known>,
    /// What the runtime has; `None` if it was not asked.
    sandboxes: Option<Sandboxes>,
}

/// What is known of the pod of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Evidence {
    /// It may use the address.
    InUse,
    /// It is gone, or a later sandbox has taken the place of that of the reservation.
    Gone,
    /// The runtime does not have its sandbox, or not yet.
    WithoutSandbox,
}

/// What the API server tells of a pod.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Known {
    /// Every UID that the pod is known by. A static pod is known to the runtime by the hash of its manifest and to the API server by the UID
    /// of its mirror, which carries the hash as an annotation.
    uids: Vec<String>,
    /// Its annotation [`NETWORK_STATUS`]; empty if it has none.
    status: String,
}

const STATIC_POD_HASHES: [&str; 2] = ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"];

impl Pods {
    /// Adds a pod.
    pub fn add(&mut self, pod: &PartialObjectMeta<Pod>) {
        let metadata = &pod.metadata;
        let annotations = || metadata.annotations.iter().flatten();
        let status = annotations().find(|(key, _)| *key == NETWORK_STATUS).map(|(_, status)| status.clone());
        let hashes = annotations().filter(|(key, _)| STATIC_POD_HASHES.contains(&key.as_str())).map(|(_, hash)| hash);
        let uids = metadata.uid.iter().chain(hashes).cloned().collect();
        let key = (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
        self.known.insert(key, Known { uids, status: status.unwrap_or_default() });
    }

    /// Whether the list can be that of the agent's node.
    fn is_credible(&self, own: Option<&(String, String)>) -> bool {
        own.map_or(!self.known.is_empty(), |own| self.known.contains_key(own))
    }

    /// Whether the runtime has the sandbox of the reservation. `None` if it was not asked, or if the reservation is of another kind of
    /// caller, which the missing UID shows.
    fn is_listed(&self, reservation: &Reservation) -> Option<bool> {
        let is_listed = self.sandboxes.as_ref()?.has(&reservation.owner.container_id);
        (is_listed || !reservation.attachment.pod_uid.is_empty()).then_some(is_listed)
    }

    /// What is known of the pod of the reservation. `later` are the addresses of later sandboxes for its interface.
    fn evidence(&self, reservation: &Reservation, later: &[IpAddr]) -> Evidence {
        match self.is_listed(reservation) {
            Some(true) => Evidence::InUse,
            _ if self.lack(&reservation.attachment) => Evidence::Gone,
            Some(false) => Evidence::WithoutSandbox,
            None if self.has_replaced(reservation, later) => Evidence::Gone,
            None => Evidence::InUse,
        }
    }

    /// Whether the pod has one of `later` on the reservation's interface, and not the reservation's address.
    fn has_replaced(&self, reservation: &Reservation, later: &[IpAddr]) -> bool {
        let others = self.other_addresses(reservation);
        later.iter().any(|addr| others.contains(addr))
    }

    /// What the pod has on the reservation's interface; empty if the reservation's address is among it, or if it is unknown.
    fn other_addresses(&self, reservation: &Reservation) -> Vec<IpAddr> {
        let Attachment { pod_name, pod_namespace, pod_uid, .. } = &reservation.attachment;
        let known = self.known.get(&(pod_namespace.clone(), pod_name.clone()));
        let Some(known) = known.filter(|known| known.uids.contains(pod_uid)) else { return Vec::new() };
        let has = addresses_of(&known.status, &reservation.owner.if_name);
        if has.contains(&reservation.addr) { Vec::new() } else { has }
    }

    /// Whether it is certain that the pod of an attachment no longer exists. Without a UID the name decides.
    ///
    /// A static pod runs whether or not the API server takes its mirror (a missing namespace or an admission policy may
    /// keep it out). So its absence says nothing; only a mirror of another manifest does, which the kubelet makes when the
    /// earlier pod has ended.
    pub fn lack(&self, attachment: &Attachment) -> bool {
        let Attachment { pod_name, pod_namespace, pod_uid, .. } = attachment;
        let known = self.known.get(&(pod_namespace.clone(), pod_name.clone())).map(|known| &known.uids);
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

/// Which interface of which pod a reservation is for, whatever the sandbox. `None` without the pod's UID.
fn interface_of(held: &Reservation) -> Option<Interface> {
    let Reservation { pool, owner, attachment: Attachment { pod_uid, network, .. }, .. } = held;
    (!pod_uid.is_empty()).then(|| (pool.clone(), pod_uid.clone(), owner.if_name.clone(), network.clone()))
}

type Interface = (PoolKey, String, String, String);

/// The reservations that [`Observations::observe`] needs of all that are in use: those that these pods speak against, and the others of the
/// same interfaces.
///
/// # Errors
/// The allocator does not answer.
pub async fn doubtful(allocator: &Allocator, pods: &Pods) -> Result<Vec<Reservation>, Failure> {
    let (mut doubtful, mut interfaces) = (Vec::new(), HashSet::new());
    let mut pages = allocator.pages();
    while let Some(page) = pages.next().await? {
        for held in page {
            match pods.is_listed(&held) {
                None if !pods.other_addresses(&held).is_empty() => interfaces.extend(interface_of(&held)),
                None if pods.lack(&held.attachment) => doubtful.push(held),
                Some(false) => doubtful.push(held),
                _ => {}
            }
        }
    }
    let mut pages = allocator.pages();
    while !interfaces.is_empty()
        && let Some(page) = pages.next().await?
    {
        let is_of_one = |held: &Reservation| interface_of(held).is_some_and(|one| interfaces.contains(&one));
        doubtful.extend(page.into_iter().filter(is_of_one));
    }
    Ok(doubtful)
}

/// The addresses that later sandboxes of the same pod got of the same pool for the same interface, for each reservation that has such.
fn later_addresses(held: &[Reservation]) -> HashMap<(&PoolKey, &Owner), Vec<IpAddr>> {
    let mut of_interface = HashMap::<_, Vec<&Reservation>>::new();
    for reservation in held.iter().filter(|reservation| !reservation.attachment.pod_uid.is_empty()) {
        let Reservation { pool, owner, attachment, .. } = reservation;
        let interface = (pool, attachment.pod_uid.as_str(), owner.if_name.as_str(), attachment.network.as_str());
        of_interface.entry(interface).or_default().push(reservation);
    }
    let mut later = HashMap::new();
    for reservations in of_interface.into_values().filter(|reservations| reservations.len() > 1) {
        for one in &reservations {
            // Two of the same second have no order.
            let others = reservations.iter().filter(|other| other.created > one.created).map(|other| other.addr);
            let others: Vec<_> = others.collect();
            if !others.is_empty() {
                later.insert((&one.pool, &one.owner), others);
            }
        }
    }
    later
}

/// How often each reservation was seen without its pod or sandbox, or with a later sandbox of its pod.
#[derive(Default, Debug)]
pub struct Observations {
    /// Keyed by all that makes a reservation: another one has another time.
    missing: HashMap<(PoolKey, Owner, i64), Missing>,
}

/// Checks in a row that found a reservation to be stale.
#[derive(Clone, Copy, Debug)]
struct Missing {
    count: u32,
    /// When the first of them was.
    since: Instant,
}

/// A reservation to free, if the last look confirms it.
#[derive(Debug)]
struct Suspect {
    reservation: Reservation,
    /// The addresses of later sandboxes for the same interface.
    later: Vec<IpAddr>,
    /// Whether no check has found it in use for [`SANDBOX_SETUP`].
    is_set_up: bool,
}

impl Suspect {
    /// Whether these pods prove that the pod or its sandbox is gone.
    fn is_stale(&self, pods: &Pods) -> bool {
        match pods.evidence(&self.reservation, &self.later) {
            Evidence::Gone => true,
            Evidence::WithoutSandbox => self.is_set_up,
            Evidence::InUse => false,
        }
    }
}

/// Reservations whose pods were missing often enough. Each pod needs one last look before its addresses are freed.
#[derive(Default, Debug)]
pub struct Suspects {
    stale: Vec<Suspect>,
    /// The pods that the last look has found.
    here: Pods,
}

impl Suspects {
    /// Namespace and name of each pod that needs a last look, once.
    pub fn pods(&self) -> Vec<(String, String)> {
        let mut pods = Vec::new();
        let mut known = HashSet::new();
        for Attachment { pod_name, pod_namespace, .. } in
            self.stale.iter().map(|suspect| &suspect.reservation.attachment)
        {
            if known.insert((pod_namespace, pod_name)) {
                pods.push((pod_namespace.clone(), pod_name.clone()));
            }
        }
        pods
    }

    /// The last look has found these sandboxes.
    pub fn found_sandboxes(&mut self, sandboxes: Option<Sandboxes>) {
        self.here.sandboxes = sandboxes;
    }

    /// The last look has found this pod.
    pub fn found(&mut self, pod: &PartialObjectMeta<Pod>) {
        self.here.add(pod);
    }

    /// The reservations to free, once each pod had its last look.
    pub fn confirmed(self) -> Vec<Reservation> {
        let Self { stale, here } = self;
        stale.into_iter().filter(|suspect| suspect.is_stale(&here)).map(|suspect| suspect.reservation).collect()
    }
}

impl Observations {
    /// Counts one check; returns the reservations that more than `checks_before` checks in a row found without a pod or sandbox.
    pub fn observe(&mut self, held: &[Reservation], pods: &Pods, checks_before: u32) -> Suspects {
        let mut missing = HashMap::new();
        let mut stale = Vec::new();
        let mut later = later_addresses(held);
        let now = Instant::now();
        for reservation in held {
            let attachment = &reservation.attachment;
            // No pod has such a name, so nobody can say whether it is gone.
            let unknown_owner =
                ![&attachment.pod_name, &attachment.pod_namespace].into_iter().all(|name| is_name(name));
            let later = later.remove(&(&reservation.pool, &reservation.owner)).unwrap_or_default();
            if unknown_owner || pods.evidence(reservation, &later) == Evidence::InUse {
                continue;
            }
            let key = (reservation.pool.clone(), reservation.owner.clone(), reservation.created);
            let Missing { count, since } = self.missing.get(&key).copied().unwrap_or(Missing { count: 0, since: now });
            let count = count.saturating_add(1);
            let is_set_up = now.duration_since(since) >= SANDBOX_SETUP;
            let suspect = Suspect { reservation: reservation.clone(), later, is_set_up };
            if count > checks_before && suspect.is_stale(pods) {
                stale.push(suspect);
            }
            missing.insert(key, Missing { count, since });
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
    /// Namespace and name of the agent's own pod, if it is one.
    own: Option<(String, String)>,
    /// The container runtime, if it may be asked.
    runtime: Option<Runtime>,
    allocator: Allocator,
    metrics: Arc<Metrics>,
    observations: Observations,
}

impl Collector {
    /// Nothing is observed yet.
    pub fn new(client: Client, node: &str, config: StaleConfig, allocator: Allocator, metrics: Arc<Metrics>) -> Self {
        let observations = Observations::default();
        Self { client, node: node.to_owned(), config, own: None, runtime: None, allocator, metrics, observations }
    }

    /// The agent is this pod, by namespace and name. A list without it is not believed.
    #[must_use]
    pub fn of_pod(self, own: Option<(String, String)>) -> Self {
        Self { own, ..self }
    }

    /// The container runtime is asked, too.
    #[must_use]
    pub fn with_runtime(self, runtime: Option<Runtime>) -> Self {
        Self { runtime, ..self }
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
            if result.is_ok() {
                self.metrics.stale_checked.set(jiff::Timestamp::now().as_second());
            } else {
                self.metrics.stale_checks_failed.inc();
            }
            match &result {
                Ok(()) if failing => info!("checking for addresses of pods that are gone again"),
                Ok(()) => {}
                Err(error) if failing => debug!(error, "still cannot check for addresses of pods that are gone"),
                Err(error) => warn!(error, "cannot check for addresses of pods that are gone, none is given back"),
            }
            failing = result.is_err();
        }
    }

    /// One check.
    pub async fn check(&mut self) -> Result<(), String> {
        let first = self.allocator.pages().next().await.map_err(|error| error.to_string())?;
        if first.is_none_or(|page| page.is_empty()) {
            self.observations = Observations::default();
            return Ok(());
        }
        // The runtime comes first: a pod whose sandbox it lists is in the API already.
        let sandboxes = self.sandboxes().await?;
        let pods = Pods { sandboxes, ..self.pods_of_node().await? };
        if !pods.is_credible(self.own.as_ref()) {
            return Err("the API server lists no pod on this node, or not the agent's own pod".to_owned());
        }
        let held = doubtful(&self.allocator, &pods).await.map_err(|error| error.to_string())?;
        let mut suspects = self.observations.observe(&held, &pods, self.config.checks_before);
        for (namespace, name) in suspects.pods() {
            if let Some(pod) = self.pod(&namespace, &name).await? {
                suspects.found(&pod);
            }
        }
        if !suspects.stale.is_empty() {
            suspects.found_sandboxes(self.sandboxes().await?);
        }
        self.release(suspects.confirmed()).await
    }

    /// The sandboxes of the runtime; `None` if it may not be asked.
    async fn sandboxes(&self) -> Result<Option<Sandboxes>, String> {
        let Some(runtime) = &self.runtime else { return Ok(None) };
        let sandboxes = runtime.sandboxes().await?;
        if sandboxes.is_credible(self.own.as_ref()) {
            Ok(Some(sandboxes))
        } else {
            Err("the container runtime lists no sandbox, or not that of the agent's own pod. \
                 --container-runtime-endpoint must be the runtime of this node's kubelet"
                .to_owned())
        }
    }

    async fn release(&self, stale: Vec<Reservation>) -> Result<(), String> {
        if stale.is_empty() {
            return Ok(());
        }
        for Reservation { pool, owner, addr, attachment, .. } in &stale {
            let (container, ifname) = (&owner.container_id, &owner.if_name);
            let Attachment { pod_name: pod, pod_namespace: namespace, .. } = attachment;
            info!(pool = %pool.name, container, ifname, %addr, pod, namespace, "address freed: its pod or sandbox is gone");
        }
        let released = self.allocator.release_stale(stale).await.map_err(|error| error.to_string())?;
        self.metrics.stale_released.inc_by(u64::try_from(released).unwrap_or(u64::MAX));
        Ok(())
    }

    /// From the API server's cache, which can be behind: the last look is not.
    async fn pods_of_node(&self) -> Result<Pods, String> {
        let api = Api::<PartialObjectMeta<Pod>>::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={}", self.node)).match_any();
        let mut pods = Pods::default();
        within(api.list(&params)).await?.items.iter().for_each(|pod| pods.add(pod));
        Ok(pods)
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<PartialObjectMeta<Pod>>, String> {
        let api = Api::<PartialObjectMeta<Pod>>::namespaced(self.client.clone(), namespace);
        within(api.get_opt(name)).await
    }
}

/// The answer of the API server, or why there is none.
pub(crate) async fn within<T>(question: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
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

    /// Two sandboxes of pod "a": the earlier one has .2, the later one .3.
    fn sandboxes(created: [i64; 2]) -> [Reservation; 2] {
        let at = |container: &str, addr: &str, created| Reservation {
            owner: Owner::new(container, "net1"),
            addr: addr.parse().unwrap(),
            ..reservation("a", U1, created)
        };
        [at("c1", "10.0.0.2", created[0]), at("c2", "10.0.0.3", created[1])]
    }

    fn with_status(uid: &str, ips: &[&str]) -> PartialObjectMeta<Pod> {
        let status = serde_json::json!([{"name": "default/blue", "interface": "net1", "ips": ips}]).to_string();
        pod("a", uid, &[(NETWORK_STATUS, &status)])
    }

    #[test]
    fn the_address_of_a_sandbox_that_was_replaced_is_stale_once_the_pod_has_that_of_the_later_one() {
        let held = sandboxes([5, 6]);
        let observe = |held: &[Reservation], seen: &PartialObjectMeta<Pod>, last: &PartialObjectMeta<Pod>| {
            let mut observations = Observations::default();
            observations.observe(held, &pods(std::slice::from_ref(seen)), 1);
            let mut suspects = observations.observe(held, &pods(std::slice::from_ref(seen)), 1);
            suspects.found(last);
            suspects.confirmed()
        };
        let later = with_status(U1, &["10.0.0.3"]);
        assert_eq!(observe(&held, &later, &later), held[..1]);
        for other in [
            with_status(U1, &["10.0.0.2"]),
            with_status(U1, &["10.0.0.2", "10.0.0.3"]),
            with_status(U1, &["10.0.0.4"]),
            pod("a", U1, &[]),
        ] {
            assert_eq!(observe(&held, &later, &other), [], "the last look counts: {:?}", other.metadata.annotations);
        }
        assert_eq!(observe(&sandboxes([5, 5]), &later, &later), [], "neither is the later one");
        assert_eq!(observe(&sandboxes([6, 5]), &later, &later), [], "the clock was set back");
    }

    /// Checks a minute apart until `minutes` have passed; the last of them decides.
    async fn stale_after(minutes: u32, held: &[Reservation], seen: &Pods, last: Pods) -> Vec<Reservation> {
        let mut observations = Observations::default();
        for _ in 0..minutes {
            observations.observe(held, seen, 3);
            tokio::time::advance(Duration::from_mins(1)).await;
        }
        let mut suspects = observations.observe(held, seen, 3);
        suspects.here = last;
        suspects.confirmed()
    }

    fn with_sandboxes(pods: Pods, ids: &[&str]) -> Pods {
        Pods { sandboxes: Some(ids.iter().copied().collect()), ..pods }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_in_use_as_long_as_the_runtime_has_its_sandbox() {
        let [held, later] = sandboxes([5, 6]);
        let has_another = pods(&[with_status(U1, &["10.0.0.3"])]);
        for seen in [Pods::default(), pods(&[pod("a", U2, &[])]), has_another] {
            let seen = with_sandboxes(seen, &["c1"]);
            assert_eq!(stale_after(10, &[held.clone(), later.clone()][..1], &seen, seen.clone()).await, []);
        }
        let (gone, listed) = (with_sandboxes(Pods::default(), &["c2"]), with_sandboxes(Pods::default(), &["c1"]));
        assert_eq!(stale_after(3, std::slice::from_ref(&held), &gone, listed).await, [], "the last look counts");
        assert_eq!(stale_after(3, std::slice::from_ref(&held), &gone, gone.clone()).await, [held]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_whose_sandbox_is_gone_is_stale_once_none_can_be_set_up() {
        let held = [reservation("a", U1, 5)];
        let seen = with_sandboxes(pods(&[pod("a", U1, &[])]), &["c2"]);
        assert_eq!(stale_after(4, &held, &seen, seen.clone()).await, [], "it may be set up only now");
        assert_eq!(stale_after(5, &held, &seen, seen.clone()).await, held);
        // The list of pods was behind: the last look finds the pod, whose sandbox is set up only now.
        let behind = with_sandboxes(Pods::default(), &["c2"]);
        assert_eq!(stale_after(4, &held, &behind, seen).await, []);
        // A static pod has no mirror to ask for.
        let held = [reservation("a", HASH, 5)];
        assert_eq!(stale_after(5, &held, &behind, behind.clone()).await, held);
        // Of another caller, such as a pod of podman, this runtime knows nothing.
        let held = [reservation("a", "", 5)];
        let seen = with_sandboxes(pods(&[pod("a", U1, &[])]), &["c2"]);
        assert_eq!(stale_after(10, &held, &seen, seen.clone()).await, []);
    }

    #[test]
    fn a_list_without_a_pod_or_without_the_agents_own_is_not_credible() {
        let own = ("default".to_owned(), "agent".to_owned());
        assert!(!Pods::default().is_credible(None));
        assert!(pods(&[pod("a", U1, &[])]).is_credible(None));
        assert!(!pods(&[pod("a", U1, &[])]).is_credible(Some(&own)));
        assert!(pods(&[pod("agent", U2, &[])]).is_credible(Some(&own)));
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
