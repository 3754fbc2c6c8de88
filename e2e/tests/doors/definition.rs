//! The last door when all others are away: the real API server with the CustomResourceDefinitions alone.

use ipam_crds::read::judge;
use ipam_e2e::ControlPlane;
use ipam_e2e::cases::{Case, Complaint, HeldByNode, POOL, load};
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
    let is_valid = case.old.as_ref().is_some_and(|old| judge(case.kind(), POOL, old).is_ok());
    let condition = if is_valid { ready("True", "Valid") } else { ready("False", "InvalidSpec") };
    let addresses = json!({"capacity": 1000, "used": used});
    json!({"observedGeneration": 1, "allocations": allocations, "addresses": addresses, "conditions": [condition]})
}

fn ready(status: &str, reason: &str) -> Value {
    let since = "2026-01-01T00:00:00Z";
    json!({"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": since})
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

/// An edit of a pool with a block for each of `nodes` nodes, one of which holds an address.
fn edit_of_a_large_pool(server: &Server, nodes: u32, spec: &Value) -> Vec<String> {
    let path = format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{}/ippools", server.namespace);
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0001 + number).to_string();
    let entry = |node: u32| json!({"nodeName": format!("node-{node:06}"), "startIP": address(4 * node), "endIP": address(4 * node + 3)});
    let old = json!({"subnet": "10.0.0.0/8", "perNodeBlockSize": 4});
    let object = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "spec": old,
        "metadata": {"generateName": "large-"}});
    let mut pool = server.send("POST", &path, &object).unwrap();
    let path = format!("{path}/{}", pool["metadata"]["name"].as_str().unwrap());
    pool["status"] = json!({
        "allocations": (0..nodes).map(entry).collect::<Vec<_>>(),
        "addresses": {"capacity": 4 * nodes, "used": 1},
        "conditions": [ready("True", "Valid")],
    });
    let mut pool = server.send("PUT", &format!("{path}/status"), &pool).unwrap();
    pool["spec"] = spec.clone();
    let answer = server.send("PUT", &format!("{path}?dryRun=All"), &pool);
    answer.err().map(|status| complaints(&status)).unwrap_or_default().into_iter().map(|one| one.message).collect()
}

#[test]
fn the_rules_on_edits_stay_within_the_servers_budget_for_ten_thousand_blocks() {
    let server = Server::start();
    let verdict =
        |subnet: &str| edit_of_a_large_pool(&server, 10_000, &json!({"subnet": subnet, "perNodeBlockSize": 4}));
    let moved = verdict("11.0.0.0/8");
    assert!(moved.len() == 1 && moved[0].contains("while pods hold 1 of their addresses"), "{moved:?}");
    // All but the last few blocks would be lost, so all are looked at.
    assert_eq!(verdict("10.0.156.0/23"), [""; 0]);
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
