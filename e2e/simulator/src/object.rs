//! An object as the model server stores it: its JSON, and what is parsed from it, each at most once.

use std::fmt::{self, Display, Formatter};
use std::ops::Deref;
use std::sync::OnceLock;

use ipam_core::plan::{Claim, ClaimSource};
use ipam_reconciler::objects::RawObject;
use k8s_openapi::api::coordination::v1::Lease;
use serde::Deserialize as _;
use serde_json::Value;

/// One state of an object. Never changes.
#[derive(Debug)]
pub(super) struct Object {
    json: Value,
    raw: OnceLock<Option<RawObject>>,
    claims: OnceLock<Vec<Claim>>,
    lease: OnceLock<Option<Lease>>,
}

impl Object {
    /// The state with this JSON.
    pub(super) fn new(json: Value) -> Self {
        Self { json, raw: OnceLock::new(), claims: OnceLock::new(), lease: OnceLock::new() }
    }

    /// The object as the operator's watches read it: from text, as it comes over the wire. `None` if it does not read.
    pub(super) fn raw(&self) -> Option<RawObject> {
        self.raw.get_or_init(|| serde_json::from_str(&self.json.to_string()).ok()).clone()
    }

    /// The object as a Lease, if it is one.
    pub(super) fn lease(&self) -> Option<Lease> {
        self.lease.get_or_init(|| Lease::deserialize(&self.json).ok()).clone()
    }

    /// The blocks of nodes by the status, assigned or being released, if this is a pool.
    pub(super) fn claims(&self) -> &[Claim] {
        self.claims.get_or_init(|| {
            let lists = ["allocations", "releasing"].into_iter().map(|list| &self.json["status"][list]);
            lists.filter_map(Value::as_array).flatten().filter_map(claim).collect()
        })
    }
}

impl Deref for Object {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.json
    }
}

impl Display for Object {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.json.fmt(f)
    }
}

fn claim(entry: &Value) -> Option<Claim> {
    let node = entry["nodeName"].as_str()?;
    match entry["prefix"].as_str() {
        Some(prefix) => Claim::from_prefix(node, prefix, None, ClaimSource::Status),
        None => Claim::from_ip_range(node, entry["startIP"].as_str()?, entry["endIP"].as_str()?, ClaimSource::Status),
    }
}
