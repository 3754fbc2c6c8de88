//! What ADD and VERSION write on success, in each form the specification has had. Decides the form of a result, and
//! refuses an answer of the agent that does not belong to the request; knows nothing of how the answer came.

use std::net::IpAddr;

use ipam_node_api::v1::AllocationInfo;
use ipnet::IpNet;
use serde::Serialize;

use crate::error::{CniError, Code};
use crate::version::{ResultForm, SpecVersion};

/// One address given, in types that need no further checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allocation {
    address: IpNet,
    gateway: Option<IpAddr>,
    routes: Vec<IpNet>,
}

impl Allocation {
    /// Reads the agent's answer to a request for `pools`: one well-formed address for each of them, in any order.
    pub(crate) fn read_all(pools: &[String], answer: &[AllocationInfo]) -> Result<Vec<Self>, CniError> {
        let strange =
            |what: String| CniError::new(Code::AgentFailure, format!("the agent's answer makes no sense: {what}"));
        let given = answer.iter().map(|info| info.pool.as_str()).collect::<Vec<_>>();
        if given.len() != pools.len() || !pools.iter().all(|pool| given.contains(&pool.as_str())) {
            return Err(strange(format!("asked for pools {pools:?}, got {given:?}")));
        }
        answer.iter().map(|info| Self::read(info).map_err(strange)).collect()
    }

    fn read(info: &AllocationInfo) -> Result<Self, String> {
        let pool = &info.pool;
        let network = |what, text: &str| {
            text.parse::<IpNet>()
                .map_err(|_| format!("pool {pool}: {what} {text:?} is not an address with a prefix length"))
        };
        let address = network("ip", &info.ip)?;
        let gateway = match info.gateway.as_str() {
            "" => None,
            text => {
                Some(text.parse::<IpAddr>().map_err(|_| format!("pool {pool}: gateway {text:?} is not an address"))?)
            }
        };
        let routes = info.routes.iter().map(|route| network("route", &route.dest).map(|dest| dest.trunc()));
        let routes = routes.collect::<Result<Vec<_>, _>>()?;
        let families = gateway.iter().map(IpAddr::is_ipv4).chain(routes.iter().map(|dest| dest.addr().is_ipv4()));
        if families.into_iter().any(|is_ipv4| is_ipv4 != address.addr().is_ipv4()) {
            return Err(format!("pool {pool}: {address} with a gateway or route of the other family"));
        }
        Ok(Self { address, gateway, routes })
    }

    fn is_ipv4(&self) -> bool {
        self.address.addr().is_ipv4()
    }

    fn routes(&self) -> impl Iterator<Item = Route> {
        self.routes
            .iter()
            .map(|dst| Route { dst: dst.to_string(), gw: self.gateway.map(|gateway| gateway.to_string()) })
    }

    fn gateway_text(&self) -> Option<String> {
        self.gateway.map(|gateway| gateway.to_string())
    }
}

/// The result of ADD as JSON in the form of `version`. Up to 0.2.0 a result has the first address of each family. The others stay reserved
/// until DEL.
pub(crate) fn add_result(version: SpecVersion, allocations: &[Allocation]) -> Result<String, CniError> {
    match version.result_form() {
        ResultForm::PerFamily => {
            let [ip4, ip6] = [true, false].map(|is_ipv4| first_of_family(allocations, is_ipv4));
            json(&PerFamily { cni_version: version.as_str(), ip4, ip6, dns: Dns {} })
        }
        form => {
            let with_version = form == ResultForm::IpsWithVersion;
            let ips = allocations.iter().map(|one| Ip {
                version: with_version.then_some(if one.is_ipv4() { "4" } else { "6" }),
                address: one.address.to_string(),
                gateway: one.gateway_text(),
            });
            let routes = allocations.iter().flat_map(Allocation::routes).collect();
            json(&Listed { cni_version: version.as_str(), ips: ips.collect(), routes, dns: Dns {} })
        }
    }
}

/// The result of VERSION as JSON; `cni_version` is what the caller said it speaks.
pub(crate) fn version_result(cni_version: &str) -> Result<String, CniError> {
    json(&Versions { cni_version, supported_versions: SpecVersion::ALL.map(SpecVersion::as_str) })
}

fn first_of_family(allocations: &[Allocation], is_ipv4: bool) -> Option<FamilyIp> {
    let first = allocations.iter().find(|one| one.is_ipv4() == is_ipv4)?;
    Some(FamilyIp { ip: first.address.to_string(), gateway: first.gateway_text(), routes: first.routes().collect() })
}

fn json(document: &impl Serialize) -> Result<String, CniError> {
    serde_json::to_string(document)
        .map_err(|error| CniError::new(Code::AgentFailure, format!("cannot write the result: {error}")))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PerFamily {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<FamilyIp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<FamilyIp>,
    dns: Dns,
}

#[derive(Serialize)]
struct FamilyIp {
    ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    cni_version: &'static str,
    ips: Vec<Ip>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Serialize)]
struct Ip {
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<String>,
}

#[derive(Serialize)]
struct Route {
    dst: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<String>,
}

/// Pools know no name servers; the key stands there because callers of old versions expect it.
#[derive(Serialize)]
struct Dns {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions<'a> {
    cni_version: &'a str,
    supported_versions: [&'static str; SpecVersion::ALL.len()],
}
