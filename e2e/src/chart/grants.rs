//! What the roles of a release allow its service accounts, one right at a time, and which of them were used.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Release;
use crate::eventually::eventually_blocking;

/// RBAC is read from a cache of the API server, which follows within a moment.
const KNOWN: Duration = Duration::from_mins(1);

/// One verb on one resource.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Grant {
    /// The service account.
    pub account: String,
    /// Where; `None` means in the whole cluster.
    pub namespace: Option<String>,
    /// API group.
    pub group: String,
    /// Resource, with its subresource behind a slash.
    pub resource: String,
    /// The one object that it is about; `None` means all.
    pub name: Option<String>,
    /// What may be done.
    pub verb: String,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, namespace, group, resource, name, verb } = self;
        let place = namespace.as_deref().unwrap_or("all namespaces");
        write!(f, "{account}: {verb} {resource} {} of {group:?} in {place}", name.as_deref().unwrap_or("(all)"))
    }
}

/// All rights that the roles of a release grant.
///
/// # Errors
/// When a binding names a role that the release has not, or a rule grants by `*`.
pub fn of(release: &Release<'_>) -> Result<BTreeSet<Grant>> {
    let mut grants = BTreeSet::new();
    for (kind, bindings) in [("clusterroles", "clusterrolebindings"), ("roles", "rolebindings")] {
        let roles = release.objects(kind)?;
        for binding in release.objects(bindings)? {
            let namespace = binding["metadata"]["namespace"].as_str();
            let is_it = |role: &&Value| {
                role["metadata"]["name"] == binding["roleRef"]["name"]
                    && role["metadata"]["namespace"].as_str() == namespace
            };
            let role =
                roles.iter().find(is_it).with_context(|| format!("no role for {}", binding["metadata"]["name"]))?;
            for subject in binding["subjects"].as_array().into_iter().flatten() {
                let account = text(&subject["name"])?;
                for rule in role["rules"].as_array().into_iter().flatten() {
                    expand(rule, &account, namespace, &mut grants)?;
                }
            }
        }
    }
    Ok(grants)
}

fn text(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).with_context(|| format!("{value} is no string"))
}

fn expand(rule: &Value, account: &str, namespace: Option<&str>, grants: &mut BTreeSet<Grant>) -> Result<()> {
    let words = |key: &str| -> Result<Vec<String>> { rule[key].as_array().into_iter().flatten().map(text).collect() };
    let names: Vec<Option<String>> = match words("resourceNames")? {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    for group in words("apiGroups")? {
        for resource in words("resources")? {
            for verb in words("verbs")? {
                if [&group, &resource, &verb].iter().any(|word| word.contains('*')) {
                    bail!("{rule} grants by *, which nobody can call least");
                }
                grants.extend(names.iter().map(|name| Grant {
                    account: account.to_owned(),
                    namespace: namespace.map(str::to_owned),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.clone(),
                    verb: verb.clone(),
                }));
            }
        }
    }
    Ok(())
}

/// Waits until the API server knows all rights of an account, so that its first call is not refused.
///
/// # Errors
/// When one is not granted in time.
pub fn await_all(release: &Release<'_>, account: &str) -> Result<()> {
    for grant in of(release)?.iter().filter(|grant| grant.account == account) {
        eventually_blocking(&grant.to_string(), KNOWN, || is_known(release, grant))?;
    }
    Ok(())
}

fn is_known(release: &Release<'_>, grant: &Grant) -> Result<()> {
    let (resource, subresource) = grant.resource.split_once('/').unwrap_or((&grant.resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{}:{}", release.namespace(), grant.account),
            "resourceAttributes": {
                "namespace": grant.namespace, "group": grant.group, "resource": resource,
                "subresource": subresource, "name": grant.name, "verb": grant.verb,
            },
        },
    });
    let words = ["create", "-f", "-", "-o", "jsonpath={.status.allowed}"];
    let said = release.plane().kubectl().run_with(&words, &review.to_string())?;
    if said.trim() == "true" { Ok(()) } else { bail!("not granted") }
}

/// What the audit log says of the service accounts of a namespace.
#[derive(Default)]
pub struct Used {
    calls: Vec<Grant>,
    /// Calls that RBAC refused, in words.
    pub forbidden: BTreeSet<String>,
}

impl Used {
    /// Reads the log.
    ///
    /// # Errors
    /// When the control plane keeps none.
    pub fn read(release: &Release<'_>) -> Result<Self> {
        let prefix = format!("system:serviceaccount:{}:", release.namespace());
        let mut used = Self::default();
        for event in release.plane().audit()? {
            let Some(account) = event["user"]["username"].as_str().and_then(|user| user.strip_prefix(&prefix)) else {
                continue;
            };
            used.take(account, &event);
        }
        Ok(used)
    }

    fn take(&mut self, account: &str, event: &Value) {
        let word = |key: &str| event["objectRef"][key].as_str().map(str::to_owned);
        let Some(resource) = word("resource") else {
            // Discovery and the like, which everybody may ask for.
            return;
        };
        let call = Grant {
            account: account.to_owned(),
            namespace: word("namespace"),
            group: word("apiGroup").unwrap_or_default(),
            resource: word("subresource").map_or(resource.clone(), |sub| format!("{resource}/{sub}")),
            name: word("name"),
            verb: event["verb"].as_str().unwrap_or_default().to_owned(),
        };
        if event["annotations"]["authorization.k8s.io/decision"] == "allow" {
            self.calls.push(call);
        } else {
            self.forbidden.insert(call.to_string());
        }
    }

    /// Whether a call was made that needs this right.
    pub fn needed(&self, grant: &Grant) -> bool {
        self.calls.iter().any(|call| {
            let same = (&call.account, &call.group, &call.resource, &call.verb)
                == (&grant.account, &grant.group, &grant.resource, &grant.verb);
            same && (grant.namespace.is_none() || grant.namespace == call.namespace)
                && (grant.name.is_none() || grant.name == call.name)
        })
    }
}
