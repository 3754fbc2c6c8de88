//! Which addresses of this node's last report that the journal has no record of become available, because no pod of the node has them.
//!
//! Decides without clock and network; [`crate::reclaimer`] asks for the pods.
//!
//! The store was deleted or restored while pods ran. Multus writes the addresses of each pod to its annotation
//! `k8s.v1.cni.cncf.io/network-status`, so the pods of the node tell which of these addresses are still in use. As in
//! the garbage collection ([`crate::gc`]), several checks in a row must agree, and then a last look that no cache answers.
//!
//! Unknown means in use. A pod may have any address if it has a network of its own and no annotation that can be read, or if it has
//! resource claims, whose drivers attach interfaces that the annotation does not have. While there is such a pod, no address becomes available.
//! A pod whose network is not set up yet has none that this agent does not know: it gets them from this agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::ResourceExt as _;
use kube::core::Object;
use serde::Deserialize;

use crate::lost::Lost;
use crate::network_status::{NETWORK_STATUS, all_addresses};

/// What of a pod decides about its addresses. The rest is not read.
pub type SeenPod = Object<PodSpec, PodStatus>;

/// See [`SeenPod`].
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Whether the pod is in the network of its node.
    #[serde(default)]
    pub host_network: bool,
    /// Its claims, of any content.
    #[serde(default)]
    pub resource_claims: Vec<serde::de::IgnoredAny>,
}

/// See [`SeenPod`].
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// `Running`, for example.
    #[serde(default)]
    pub phase: String,
    /// The address of its first network; empty until that is set up.
    #[serde(default, rename = "podIP")]
    pub pod_ip: String,
}

/// The addresses that the pods of a node have.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InUse {
    /// Known addresses.
    addresses: BTreeSet<IpAddr>,
    /// Namespace and name of a pod whose addresses are not known.
    unknown: Option<String>,
}

impl InUse {
    /// Namespace and name of a pod whose addresses are not known, if there is one.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// Adds those of a pod.
    pub fn add(&mut self, pod: &SeenPod) {
        match addresses_of(pod) {
            Some(addresses) => self.addresses.extend(addresses),
            None => self.unknown = Some(format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())),
        }
    }
}

/// The addresses of the pod in all networks; `None` if they are not known.
fn addresses_of(pod: &SeenPod) -> Option<Vec<IpAddr>> {
    if pod.spec.host_network {
        return Some(Vec::new());
    }
    let status = pod.status.clone().unwrap_or_default();
    let has_ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    if !has_ended && !pod.spec.resource_claims.is_empty() {
        return None;
    }
    match pod.annotations().get(NETWORK_STATUS) {
        Some(text) => all_addresses(text),
        None if has_ended || status.pod_ip.is_empty() => Some(Vec::new()),
        None => None,
    }
}

/// What the checks have seen of addresses without a record.
#[derive(Default, Debug)]
pub struct Sightings {
    /// The addresses that the checks are about.
    lost: Option<Lost>,
    /// Checks since then.
    checks: u32,
    /// The last check in which a pod had the address.
    seen: BTreeMap<IpAddr, u32>,
}

/// What a reclaim changes: `lost` becomes `left`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reclaim {
    pub(crate) lost: Lost,
    pub(crate) left: Option<Lost>,
}

impl Sightings {
    /// Counts one check, in which the pods had `in_use` and the agent had no record of `lost`. Returns whether a last look is due:
    /// some of these addresses were not seen in more than `checks_before` checks in a row.
    pub fn observe(&mut self, lost: &Lost, in_use: &InUse, checks_before: u32) -> bool {
        if self.lost.as_ref() != Some(lost) {
            *self = Self { lost: Some(lost.clone()), ..Self::default() };
        }
        if in_use.unknown.is_some() {
            (self.checks, self.seen) = (0, BTreeMap::new());
            return false;
        }
        self.checks = self.checks.saturating_add(1);
        let of_interest = in_use.addresses.iter().filter(|addr| lost.may_be_of_a_pod_here(**addr));
        self.seen.extend(of_interest.map(|addr| (*addr, self.checks)));
        self.checks > checks_before && self.confirmed(&InUse::default(), checks_before).is_some()
    }

    /// What becomes available after the last look, if anything does.
    pub fn confirmed(&self, last_look: &InUse, checks_before: u32) -> Option<Reclaim> {
        let lost = self.lost.clone().filter(|_| last_look.unknown.is_none())?;
        let since = self.checks.saturating_sub(checks_before);
        let recent = self.seen.iter().filter(|(_, check)| **check >= since);
        let mut in_use: BTreeSet<IpAddr> = recent.map(|(addr, _)| *addr).collect();
        in_use.extend(&last_look.addresses);
        let left = lost.clone().left_by(&in_use);
        (left.as_ref() != Some(&lost)).then_some(Reclaim { lost, left })
    }
}
