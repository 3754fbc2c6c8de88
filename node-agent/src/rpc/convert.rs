//! Messages to requests and grants to messages. All that can be judged from the message alone is judged here, at once.

use std::collections::HashSet;
use std::net::IpAddr;

use ipam_core::addr::parse_addr;
use ipam_core::ledger::{Attachment, Grant, Owner, Pick, Request, subject_violations};
use ipam_core::{PoolKey, PoolKind, Reason, Violation};
use ipam_node_api::v1::{
    AllocateRequest, AllocationInfo, DeallocateRequest, IpamMetadata, IpamParameters, IsAllocatedRequest, PoolType,
    ReleaseUnlistedRequest, Route,
};

use crate::allocator::Unlisted;

/// An answer can only be as long as its request allows, but a log line repeats it all: texts are bounded.
const MAX_TEXT: usize = 1024;
/// Mistakes that are remembered. A message of the largest size has room for some hundred thousand, which nobody reads.
const MAX_MISTAKES: usize = 32;
/// Characters of a wrong value that an answer repeats.
const SHOWN: usize = 64;

/// Collects what is wrong with a message.
#[derive(Default)]
struct Mistakes(Vec<Violation>);

impl Mistakes {
    fn add(&mut self, field: impl Into<String>, reason: Reason, message: impl Into<String>) {
        if self.0.len() < MAX_MISTAKES {
            self.0.push(Violation::new(field, reason, message));
        }
    }

    fn kind(&mut self, field: &str, value: i32) -> PoolKind {
        match PoolType::try_from(value) {
            Ok(PoolType::Unspecified | PoolType::Ippool) => PoolKind::IpPool,
            Ok(PoolType::Cidrpool) => PoolKind::CidrPool,
            Err(_) => {
                let message = format!("{value} is no kind of pool; write 1 (IPPool), 2 (CIDRPool), or 0 for IPPool");
                self.add(field, Reason::Unsupported, message);
                PoolKind::IpPool
            }
        }
    }

    fn addresses(&mut self, texts: &[String]) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            // Go programs take ::ffff:10.0.0.5 for 10.0.0.5.
            let mapped = text.parse::<IpAddr>().ok().map(|addr| addr.to_canonical()).filter(IpAddr::is_ipv4);
            match mapped.map_or_else(|| parse_addr(text), Ok) {
                Ok(addr) => addresses.push(addr),
                Err(why) => {
                    let text: String = text.chars().take(SHOWN).collect();
                    self.add(
                        format!("parameters.requested_ips[{index}]"),
                        Reason::Malformed,
                        format!("{text:?} {why}"),
                    );
                }
            }
        }
        addresses
    }

    fn bounded(&mut self, field: &str, text: &str) {
        if text.len() > MAX_TEXT {
            self.add(field, Reason::OutOfRange, format!("has {} bytes; at most {MAX_TEXT} are allowed", text.len()));
        }
    }

    fn parameters(&mut self, parameters: Option<IpamParameters>) -> IpamParameters {
        parameters.unwrap_or_else(|| {
            self.add("parameters", Reason::Required, "must be told");
            IpamParameters::default()
        })
    }

    /// Pools and owner, which every call needs.
    fn subject(&mut self, parameters: &IpamParameters) -> (Vec<PoolKey>, Owner) {
        let kind = self.kind("parameters.pool_type", parameters.pool_type);
        let pools: Vec<_> = parameters.pools.iter().map(|name| PoolKey::new(kind, name.as_str())).collect();
        for (index, name) in parameters.pools.iter().enumerate() {
            self.bounded(&format!("parameters.pools[{index}]"), name);
        }
        self.bounded("parameters.cni_containerid", &parameters.cni_containerid);
        self.bounded("parameters.cni_ifname", &parameters.cni_ifname);
        let owner = Owner::new(parameters.cni_containerid.as_str(), parameters.cni_ifname.as_str());
        self.0.extend(subject_violations(&pools, &owner));
        (pools, owner)
    }

    fn attachment(&mut self, metadata: Option<IpamMetadata>) -> Attachment {
        let metadata = metadata.unwrap_or_default();
        let required = [("k8s_pod_name", &metadata.k8s_pod_name), ("k8s_pod_namespace", &metadata.k8s_pod_namespace)];
        for (name, value) in required {
            if value.is_empty() {
                self.add(
                    format!("parameters.metadata.{name}"),
                    Reason::Required,
                    "must be told, so that the address can be given back once the pod is gone",
                );
            }
        }
        let texts = [
            ("k8s_pod_name", &metadata.k8s_pod_name),
            ("k8s_pod_namespace", &metadata.k8s_pod_namespace),
            ("k8s_pod_uid", &metadata.k8s_pod_uid),
            ("device_id", &metadata.device_id),
            ("network_name", &metadata.network_name),
        ];
        for (name, text) in texts {
            self.bounded(&format!("parameters.metadata.{name}"), text);
        }
        Attachment {
            pod_name: metadata.k8s_pod_name,
            pod_namespace: metadata.k8s_pod_namespace,
            pod_uid: metadata.k8s_pod_uid,
            device_id: metadata.device_id,
            network: metadata.network_name,
        }
    }

    fn into_result<T>(self, value: T) -> Result<T, Vec<Violation>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

/// What is asked for, or all that is wrong with it.
pub(super) fn allocate(request: AllocateRequest) -> Result<Request, Vec<Violation>> {
    let mut mistakes = Mistakes::default();
    let mut parameters = mistakes.parameters(request.parameters);
    let (pools, owner) = mistakes.subject(&parameters);
    let attachment = mistakes.attachment(parameters.metadata.take());
    let requested = mistakes.addresses(&parameters.requested_ips);
    let features = parameters.features.unwrap_or_default();
    let pick = Pick::from_features(features.allocate_default_gateway, features.allocate_ip_with_index);
    let pick = pick.unwrap_or_else(|violation| {
        mistakes.0.push(violation);
        Pick::Next
    });
    mistakes.into_result(Request { pools, owner, attachment, requested, pick })
}

/// Pools, owner and the addresses believed to be held.
pub(super) fn check(request: IsAllocatedRequest) -> Result<(Vec<PoolKey>, Owner, Vec<IpAddr>), Vec<Violation>> {
    let mut mistakes = Mistakes::default();
    let parameters = mistakes.parameters(request.parameters);
    let (pools, owner) = mistakes.subject(&parameters);
    let expected = mistakes.addresses(&parameters.requested_ips);
    mistakes.into_result((pools, owner, expected))
}

/// Pools and owner; whatever else the message says does not matter for giving back.
pub(crate) fn release(request: DeallocateRequest) -> Result<(Vec<PoolKey>, Owner), Vec<Violation>> {
    let mut mistakes = Mistakes::default();
    let parameters = mistakes.parameters(request.parameters);
    let subject = mistakes.subject(&parameters);
    mistakes.into_result(subject)
}

/// What a network keeps.
pub(super) fn unlisted(request: ReleaseUnlistedRequest) -> Result<Unlisted, Vec<Violation>> {
    let mut mistakes = Mistakes::default();
    let kind = mistakes.kind("pool_type", request.pool_type);
    if request.network_name.is_empty() {
        mistakes.add("network_name", Reason::Required, "must be the network's name");
    }
    mistakes.bounded("network_name", &request.network_name);
    if request.pools.is_empty() || request.pools.len() > 2 {
        mistakes.add("pools", Reason::Required, format!("must name one or two pools, not {}", request.pools.len()));
    }
    if let Some(index) = request.pools.iter().position(String::is_empty) {
        mistakes.add(format!("pools[{index}]"), Reason::Required, "must be the name of a pool");
    }
    let mut valid = HashSet::new();
    for (index, attachment) in request.valid_attachments.into_iter().enumerate() {
        // Half a pair must not be skipped over: what it means to keep would be released.
        for (name, text) in [("container_id", &attachment.container_id), ("if_name", &attachment.if_name)] {
            if text.is_empty() {
                mistakes.add(format!("valid_attachments[{index}].{name}"), Reason::Required, "must be told");
            }
        }
        valid.insert(Owner::new(attachment.container_id, attachment.if_name));
    }
    let pools = request.pools.into_iter().map(|name| PoolKey::new(kind, name)).collect();
    mistakes.into_result(Unlisted { network: request.network_name, pools, valid })
}

/// A grant as the answer tells it.
pub(super) fn info(grant: &Grant) -> AllocationInfo {
    let pool_type = match grant.pool.kind {
        PoolKind::IpPool => PoolType::Ippool,
        PoolKind::CidrPool => PoolType::Cidrpool,
    };
    AllocationInfo {
        pool: grant.pool.name.clone(),
        ip: format!("{}/{}", grant.addr, grant.prefix_len),
        gateway: grant.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
        pool_type: pool_type.into(),
        routes: grant.routes.iter().map(|dest| Route { dest: dest.to_string() }).collect(),
    }
}
