//! NetworkAttachmentDefinitions: which pools the configuration of each names, read as the CNI plugin reads it.

use std::collections::BTreeSet;

use ipam_cni::{NamedPools, PoolType, member, named_pools};
use ipam_core::hint::nearest;
use ipam_core::{PoolKey, PoolKind, Reason};
use serde_json::Value as Json;

use super::report::{NetworkReport, Origin, Problem, Warning};
use super::tree::{Node, Place, shortened};

/// The type of our plugin in a network configuration.
const PLUGIN: &str = "nv-ipam";
/// The code of the warning about a pool that is not known.
pub(super) const UNKNOWN_POOL: &str = "UnknownPool";

/// A network that uses nv-ipam, and the pools that it names.
pub(super) struct Network {
    report: NetworkReport,
    pools: Vec<PoolKey>,
    config_at: Place,
}

/// Reads a NetworkAttachmentDefinition; `None` if it does not use nv-ipam.
pub(super) fn read(object: &Node, origin: Origin) -> Option<Network> {
    let text = object.get("spec").and_then(|spec| spec.get("config")).and_then(Node::text)?;
    let of = |name| object.get("metadata").and_then(|metadata| metadata.get(name)).and_then(Node::text);
    let (name, namespace) = (of("name").unwrap_or_default(), of("namespace").unwrap_or("default"));
    let config_at = object.locate("spec.config");
    let report = NetworkReport {
        origin,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let mut network = Network { report, pools: Vec::new(), config_at };
    match serde_json::from_str::<Json>(text) {
        Ok(config) => network.read_config(&config, name).then_some(network),
        // It may use our plugin.
        Err(error) if text.contains(PLUGIN) => {
            network.error(format!("must be JSON: {error}"));
            Some(network)
        }
        Err(_) => None,
    }
}

impl Network {
    /// Reads the configuration of one plugin, or of a list of plugins. Returns whether one of them uses nv-ipam.
    fn read_config(&mut self, config: &Json, object_name: &str) -> bool {
        // Multus gives the object's name to a configuration without one.
        let name = member(config, "name").and_then(Json::as_str).filter(|name| !name.is_empty()).unwrap_or(object_name);
        let plugins = match member(config, "plugins").and_then(Json::as_array) {
            Some(plugins) => plugins.iter().collect(),
            None => vec![config],
        };
        let mut is_ours = false;
        for plugin in plugins {
            let ipam = member(plugin, "ipam").and_then(|ipam| member(ipam, "type"));
            if ipam.and_then(Json::as_str) == Some(PLUGIN) {
                is_ours = true;
                self.add(named_pools(plugin, name));
            }
        }
        is_ours
    }

    fn add(&mut self, named: NamedPools) {
        named.errors.into_iter().for_each(|error| self.error(error));
        let kind = match named.pool_type {
            PoolType::Ippool => PoolKind::IpPool,
            PoolType::Cidrpool => PoolKind::CidrPool,
            PoolType::Unspecified => return,
        };
        self.pools.extend(named.names.into_iter().map(|name| PoolKey::new(kind, name)));
    }

    fn error(&mut self, message: String) {
        let field = "spec.config".to_owned();
        self.report.problems.push(Problem { field, reason: Reason::Malformed, message, place: self.config_at });
    }

    /// The report. Pools that are not `known` are warnings. Without known pools nothing is said about them.
    pub(super) fn into_report(mut self, known: &BTreeSet<&PoolKey>) -> NetworkReport {
        for key in self.pools.iter().filter(|key| !known.is_empty() && !known.contains(key)) {
            self.report.warnings.push(Warning {
                field: "spec.config".to_owned(),
                code: UNKNOWN_POOL.to_owned(),
                message: unknown(key, known),
                place: self.config_at,
            });
        }
        self.report
    }
}

fn unknown(key: &PoolKey, known: &BTreeSet<&PoolKey>) -> String {
    let of_the_other_kind = known.iter().any(|other| other.name == key.name && other.kind != key.kind);
    let hint = if of_the_other_kind {
        let (kind, pool_type) = match key.kind {
            PoolKind::IpPool => (PoolKind::CidrPool, "cidrpool"),
            PoolKind::CidrPool => (PoolKind::IpPool, "ippool"),
        };
        format!("; for the {kind} of this name, set poolType to {pool_type:?}")
    } else {
        let names = known.iter().filter(|other| other.kind == key.kind).map(|other| other.name.as_str());
        nearest(&key.name, names).map_or_else(String::new, |near| format!("; did you mean {near:?}?"))
    };
    format!("names {} {:?}, which is not among the given pools{hint}", key.kind, shortened(&key.name))
}
