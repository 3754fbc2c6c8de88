//! The last door when all others are away: the real API server with the CustomResourceDefinitions alone.

use ipam_e2e::ControlPlane;
use ipam_e2e::cases::{Case, Complaint, HeldByNode, load};
use ipam_e2e::cluster::install_crds;
use kube::core::Status;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::verdict::assert_none;

/// A client for one namespace of the API server.
struct Server {
    runtime: Runtime,
    client: kube::Client,
    namespace: String,
}

impl Server {
    fn start() -> Self {
        let plane = ControlPlane::shared().unwrap();
        install_crds(plane).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        Self { runtime, client, namespace: plane.namespace("definition").unwrap() }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, Box<Status>> {
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).unwrap();
        match self.runtime.block_on(self.client.request::<Value>(request)) {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(status),
            Err(error) => panic!("{method} {path}: {error:?}"),
        }
    }

    fn path(&self, case: &Case) -> String {
        let plural = format!("{}s", case.kind().kind().to_lowercase());
        format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{}/{plural}", self.namespace)
    }

    /// What the server says to the case: as a creation that has no effect, or as an edit of a pool that is there.
    fn verdict(&self, case: &Case, name: &str) -> Vec<Complaint> {
        let path = self.path(case);
        let answer = match &case.old {
            None => {
                let object = object(case, name, &case.spec);
                self.send("POST", &format!("{path}?dryRun=All"), &object)
            }
            Some(old) => {
                let mut pool = self.send("POST", &path, &object(case, name, old)).unwrap();
                pool["status"] = status(case);
                let mut pool = self.send("PUT", &format!("{path}/{name}/status"), &pool).unwrap();
                pool["spec"] = case.spec.clone();
                self.send("PUT", &format!("{path}/{name}?dryRun=All"), &pool)
            }
        };
        answer.err().map(|status| complaints(&status)).unwrap_or_default()
    }
}

fn object(case: &Case, name: &str, spec: &Value) -> Value {
    let kind = case.kind().kind();
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// What the operator would have written.
fn status(case: &Case) -> Value {
    let entry = |(node, block): (&String, &String)| match block.split_once('-') {
        Some((first, last)) if case.kind().kind() == "IPPool" => {
            json!({"nodeName": node, "startIP": first, "endIP": last})
        }
        _ => match block.split_once(" via ") {
            Some((prefix, gateway)) => json!({"nodeName": node, "prefix": prefix, "gateway": gateway}),
            None => json!({"nodeName": node, "prefix": block}),
        },
    };
    let used: u64 = case
        .held
        .values()
        .map(|held| match held {
            HeldByNode::Count(count) => *count,
            HeldByNode::Addresses(list) => list.len() as u64,
        })
        .sum();
    let allocations: Vec<Value> = case.blocks.iter().map(entry).collect();
    json!({"observedGeneration": 1, "allocations": allocations, "addresses": {"capacity": 1000, "used": used}})
}

/// After a structural error the server adds that rules were not asked, which is no error.
fn complaints(status: &Status) -> Vec<Complaint> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut said: Vec<Complaint> =
        causes.map(|cause| Complaint { field: cause.field.clone(), message: cause.message.clone() }).collect();
    said.retain(|complaint| !complaint.message.contains("some validation rules were not checked"));
    if said.is_empty() {
        return vec![Complaint { field: String::new(), message: status.message.clone() }];
    }
    said
}

fn disagreement(case: &Case, mut said: Vec<Complaint>) -> Option<String> {
    let mut missing = Vec::new();
    for wanted in &case.definition {
        let is_it = |one: &Complaint| one.field == wanted.field && one.message.contains(&wanted.message);
        match said.iter().position(is_it) {
            Some(place) => drop(said.swap_remove(place)),
            None => missing.push(wanted),
        }
    }
    let agrees = missing.is_empty() && said.is_empty();
    (!agrees).then(|| format!("{}: missing {missing:?}, not expected {said:?}", case.title()))
}

#[test]
fn the_api_server_gives_every_case_exactly_its_errors() {
    let server = Server::start();
    let cases = load().unwrap();
    let wrong: Vec<String> = cases
        .iter()
        .enumerate()
        .filter_map(|(number, case)| disagreement(case, server.verdict(case, &format!("case-{number}"))))
        .collect();
    assert_none(&wrong);
}

#[test]
fn what_the_definition_refuses_everyone_refuses() {
    for case in load().unwrap() {
        assert!(
            case.definition.is_empty() || !case.refused.is_empty(),
            "{}: only the definition refuses",
            case.title()
        );
    }
}
