//! The garbage collection of the agent, with its real decisions, and the Pod objects of the API server.

use std::collections::BTreeMap;

use ipam_core::ledger::Attachment;
use ipam_node_agent::gc::Pods;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;

use super::super::action::PodList;
use super::super::clock::Clock;
use super::Node;

/// Number of checks that find a pod missing before the one that frees its addresses.
const CHECKS_BEFORE: u32 = 1;

/// The Pod objects of a node.
#[derive(Default, Debug)]
pub(super) struct Objects {
    pods: BTreeMap<String, PartialObjectMeta<Pod>>,
    /// The pods at the previous check.
    earlier: Pods,
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
        let held = self.reservations();
        let pods = self.objects.list(list);
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
