//! The agent's checks of pods, with its real decisions, and the Pod objects of the API server.

use std::collections::BTreeMap;

use ipam_core::ledger::Attachment;
use ipam_node_agent::gc::{Pods, doubtful};
use ipam_node_agent::reclaim::{InUse, SeenPod, Sightings};
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use serde_json::json;

use super::super::action::PodList;
use super::super::clock::Clock;
use super::super::request::IF_NAME;
use super::Node;

/// Number of checks that find a pod missing before the one that frees its addresses.
const CHECKS_BEFORE: u32 = 1;

/// The Pod objects of a node.
#[derive(Default, Debug)]
pub(super) struct Objects {
    pods: BTreeMap<String, PartialObjectMeta<Pod>>,
    /// The pods at the previous check.
    earlier: Pods,
    /// The addresses of pods at the previous check for addresses without a record.
    earlier_in_use: InUse,
}

impl Objects {
    pub(super) fn create(&mut self, attachment: &Attachment) {
        let mut pod = PartialObjectMeta::<Pod>::default();
        pod.metadata.name = Some(attachment.pod_name.clone());
        pod.metadata.namespace = Some(attachment.pod_namespace.clone());
        pod.metadata.uid = Some(attachment.pod_uid.clone());
        self.pods.insert(attachment.pod_name.clone(), pod);
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.pods.remove(name);
    }

    /// A list of them.
    fn list(&mut self, list: PodList) -> Pods {
        let mut exact = Pods::default();
        self.pods.values().for_each(|pod| exact.add(pod));
        let earlier = std::mem::replace(&mut self.earlier, exact.clone());
        match list {
            PodList::Exact => exact,
            PodList::Lagging => earlier,
            PodList::Empty | PodList::Failing | PodList::LookFails => Pods::default(),
        }
    }
}

impl Node {
    /// One check of the agent's garbage collection. Its last look at a pod is exact, unless it fails.
    pub(crate) fn check_pods(&mut self, list: PodList, clock: Clock) {
        if list == PodList::Failing {
            self.activity.add("pod lists failed", self.process.is_some().into());
            return;
        }
        self.check_lost(list, clock);
        let pods = self.objects.list(list);
        let held = self.ask_now(|allocator| {
            let pods = &pods;
            async move { doubtful(&allocator, pods).await }
        });
        let Some(Ok(held)) = held else { return };
        let Some(process) = self.process.as_mut() else { return };
        let mut suspects = process.observations.observe(&held, &pods, CHECKS_BEFORE);
        for (_, name) in suspects.pods() {
            if list == PodList::LookFails {
                return self.activity.count("last looks at pods failed");
            }
            if let Some(pod) = self.objects.pods.get(&name) {
                self.activity.count("pods kept by the last look");
                suspects.found(pod);
            }
        }
        let confirmed = suspects.confirmed();
        if !confirmed.is_empty() {
            let freed = self.free(clock, |allocator| async move { allocator.release_stale(confirmed).await });
            if matches!(freed, Some(Ok(1..))) {
                self.activity.count("garbage collections that free addresses");
            }
        }
    }

    /// One check whether pods have the addresses without a record. Its last look is exact, unless it fails.
    fn check_lost(&mut self, answer: PodList, clock: Clock) {
        let in_use = self.in_use();
        let earlier = std::mem::replace(&mut self.objects.earlier_in_use, in_use.clone());
        let Some(process) = self.process.as_mut() else { return };
        let Some(lost) = process.in_force.as_ref().and_then(|in_force| in_force.lost.clone()) else {
            process.sightings = Sightings::default();
            return;
        };
        let seen = match answer {
            PodList::Exact | PodList::LookFails => &in_use,
            PodList::Lagging => &earlier,
            // The list lacks the agent's own pod.
            PodList::Empty | PodList::Failing => return,
        };
        if !process.sightings.observe(&lost, seen, CHECKS_BEFORE) || answer == PodList::LookFails {
            return;
        }
        if let Some(reclaim) = process.sightings.confirmed(&in_use, CHECKS_BEFORE) {
            process.reclaim(reclaim, clock);
            self.activity.count("addresses without a record reclaimed");
            self.has_ended();
        }
    }

    /// What the pods of this node show by their annotations.
    fn in_use(&self) -> InUse {
        let mut in_use = InUse::default();
        if !self.says_lost() {
            return in_use;
        }
        for name in self.objects.pods.keys() {
            let pod = self.pods.get(name);
            let ips: Vec<_> = pod.iter().flat_map(|pod| &pod.held).map(|held| held.addr).collect();
            let status = json!([{ "interface": IF_NAME, "ips": ips }]).to_string();
            let annotations = pod.map(|_| json!({ "k8s.v1.cni.cncf.io/network-status": status }));
            let ip = pod.map_or("", |_| "10.244.0.1");
            let seen = json!({ "metadata": { "name": name, "annotations": annotations }, "spec": {}, "status": { "podIP": ip } });
            let seen: Option<SeenPod> = serde_json::from_value(seen).ok();
            if let Some(seen) = &seen {
                in_use.add(seen);
            }
        }
        in_use
    }

    /// The runtime and the agent's garbage collection find all pods that are gone.
    pub(crate) fn collect(&mut self, clock: Clock) {
        self.retry_deletes(clock);
        for _ in 0..=CHECKS_BEFORE {
            self.check_pods(PodList::Exact, clock);
        }
        let reservations = self.reservations();
        let is_left = reservations.iter().any(|it| !self.pods.contains_key(&it.owner.container_id));
        self.has_leftovers = is_left || (self.process.is_none() && self.has_leftovers);
    }
}
