//! Writes of the operator that an admission policy refuses: the operator tries them again after longer and longer pauses, says so, and
//! serves others meanwhile.

use std::time::{Duration, Instant};

use ipam_e2e::eventually_blocking;
use serde_json::{Value, json};

use crate::api::{IPAMNODES, IPPOOLS, SOON};
use crate::stage::Stage;

/// The first pause after a refused write; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// What the policy says.
const WHY: &str = "this test refuses it";
const POLICIES: [&str; 2] = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];

/// A policy of the API server. It goes when dropped.
struct Refusal<'a> {
    stage: &'a Stage,
    name: String,
    /// No write was refused before.
    since: Instant,
}

impl<'a> Refusal<'a> {
    /// Refuses every update of one object, or of its status, and waits until the API server does so.
    fn of(stage: &'a Stage, resource: &str, object: &str) -> Self {
        let (name, since) = (stage.name("refuses"), Instant::now());
        let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}});
        let rule = json!({"apiGroups": ["nv-ipam.nvidia.com"], "apiVersions": ["*"], "operations": ["UPDATE"],
            "resources": [resource], "resourceNames": [object]});
        let policy = json!({
            "failurePolicy": "Fail",
            "matchConstraints": {"namespaceSelector": namespace, "resourceRules": [rule]},
            "validations": [{"expression": "false", "message": WHY, "reason": "Forbidden"}],
        });
        let binding = json!({"policyName": name, "validationActions": ["Deny"]});
        for (kind, spec) in [("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)] {
            let metadata = json!({"name": name});
            let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
            stage.plane.kubectl().apply(&object.to_string()).unwrap();
        }
        let (plural, part) = resource.split_once('/').unwrap_or((resource, ""));
        let path = format!("{}/{object}/{part}?dryRun=All", stage.api.path(plural));
        let probe = json!({"metadata": {"annotations": {"probe": ""}}});
        eventually_blocking("the policy is in force", SOON, || {
            match stage.api.send("PATCH", &path, "application/merge-patch+json", &probe) {
                Err(status) if status.message.contains(WHY) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .unwrap();
        Self { stage, name, since }
    }

    /// Waits until so many writes were refused, and tells the operator something of the object with each look. No pause is shorter than
    /// it may be.
    fn await_refused(&self, method: &str, wanted: u32, mut tell: impl FnMut(u32)) {
        let mut looks = 0;
        eventually_blocking("writes are refused", SOON, || {
            looks += 1;
            tell(looks);
            let refused = refused(self.stage, method);
            let most = most_tries(self.since.elapsed());
            assert!(refused <= most, "{refused} writes in {:?}, of which {most} may be", self.since.elapsed());
            if refused >= wanted { Ok(()) } else { Err(format!("{refused} were")) }
        })
        .unwrap();
    }
}

impl Drop for Refusal<'_> {
    fn drop(&mut self) {
        for kind in POLICIES {
            // What fails here fails the test by what comes next.
            let _ = self.stage.plane.kubectl().run(&["delete", kind, &self.name]);
        }
    }
}

/// The most tries within a time, if the first one is made at once.
fn most_tries(within: Duration) -> u32 {
    let ends = |tries: &u32| FIRST_PAUSE * ((1 << tries) - 1);
    1 + u32::try_from((1..20).take_while(|tries| ends(tries) <= within).count()).unwrap()
}

/// How many requests of the operator by this method were refused.
fn refused(stage: &Stage, method: &str) -> u32 {
    let (code, text) = ipam_e2e::http::get(&stage.operator.metrics(), "/metrics").unwrap();
    assert_eq!(code, 200, "{text}");
    let words = ["rest_client_requests_total", "code=\"403\"", &format!("method=\"{method}\"")];
    let line = text.lines().find(|line| words.iter().all(|word| line.contains(word)));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn the_pauses_between_tries_double() {
    let within = |millis| most_tries(Duration::from_millis(millis));
    assert_eq!([0, 499, 500, 1_499, 1_500, 3_500].map(within), [1, 1, 2, 2, 3, 4]);
}

#[test]
fn a_refused_status_is_tried_less_often_until_it_is_written() {
    let stage = Stage::set("refused");
    let first = stage.join("a");
    for (pool, subnet) in [("p", "10.9.0.0/24"), ("q", "10.9.1.0/24")] {
        stage.api.create(IPPOOLS, pool, &stage.for_us(json!({"subnet": subnet, "perNodeBlockSize": 4})));
    }
    stage.api.use_blocks(&first, 2);
    let policy = Refusal::of(&stage, "ippools/status", "p");
    let second = stage.join("b");
    let status = stage.api.get(IPAMNODES, &first)["status"].clone();
    policy.await_refused("PUT", 4, |count| {
        // A report of another count makes the pool due.
        let mut status = status.clone();
        for report in status["pools"].as_array_mut().unwrap() {
            report["used"] = json!(1 + count % 2);
        }
        stage.api.merge_status(IPAMNODES, &first, &status).unwrap();
    });
    let said = stage.api.await_event("p", "PoolNotUpdated");
    assert!(said.contains("Its log has the error"), "{said}");
    let of_q = [(first.as_str(), "10.9.1.1-10.9.1.4"), (second.as_str(), "10.9.1.5-10.9.1.8")];
    stage.api.await_blocks(IPPOOLS, "q", &of_q);
    assert_eq!(stage.api.blocks(IPPOOLS, "p").len(), 1);
    drop(policy);
    let of_p = [(first.as_str(), "10.9.0.1-10.9.0.4"), (second.as_str(), "10.9.0.5-10.9.0.8")];
    stage.api.await_blocks(IPPOOLS, "p", &of_p);
    stage.api.await_ipam_node(&second, 2);
    assert_eq!(stage.api.get(IPPOOLS, "p")["status"]["nodes"], json!({"served": 2, "unserved": 0, "releasing": 0}));
}

#[test]
fn a_refused_status_delays_no_block_of_another_pool() {
    let stage = Stage::set("delays");
    for (pool, subnet) in [("p", "10.9.3.0/24"), ("q", "10.9.4.0/24")] {
        stage.api.create(IPPOOLS, pool, &stage.for_us(json!({"subnet": subnet, "perNodeBlockSize": 4})));
        stage.api.await_condition(IPPOOLS, pool, ("Ready", "True", "Valid"));
    }
    let _policy = Refusal::of(&stage, "ippools/status", "p");
    let newcomer = stage.join("a");
    stage.api.await_blocks(IPPOOLS, "q", &[(&newcomer, "10.9.4.1-10.9.4.4")]);
    // The agent learns of its block of q, although that of p cannot be recorded.
    stage.api.await_ipam_node(&newcomer, 1);
}

#[test]
fn a_pool_whose_finalizer_is_refused_has_an_event() {
    let stage = Stage::set("unsealed");
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.9.5.0/24", "perNodeBlockSize": 4})));
    stage.api.await_condition(IPPOOLS, "p", ("Ready", "True", "Valid"));
    let policy = Refusal::of(&stage, IPPOOLS, "p");
    let node = stage.join("a");
    let said = stage.api.await_event("p", "PoolNotUpdated");
    assert!(said.contains("Its log has the error"), "{said}");
    assert!(stage.api.blocks(IPPOOLS, "p").is_empty(), "a pool without the finalizer assigns no block");
    drop(policy);
    stage.api.await_blocks(IPPOOLS, "p", &[(&node, "10.9.5.1-10.9.5.4")]);
}

/// The condition Degraded of a pool.
fn degraded(stage: &Stage, status: &str, reason: &str) -> Value {
    stage.api.await_condition(IPPOOLS, "p", ("Degraded", status, reason))
}

#[test]
fn an_ipam_node_that_is_not_written_is_named() {
    let stage = Stage::set("unwritten");
    let [first, second] = ["a", "b"].map(|short| stage.join(short));
    for node in [&first, &second] {
        stage.api.await_ipam_node(node, 0);
    }
    let policy = Refusal::of(&stage, IPAMNODES, &second);
    stage.api.create(IPPOOLS, "p", &stage.for_us(json!({"subnet": "10.9.2.0/24", "perNodeBlockSize": 4})));
    stage.api.await_ipam_node(&first, 1);
    policy.await_refused("PATCH", 4, |count| {
        // An event about the Node makes its IPAMNode due.
        stage.api.label_node(&second, &json!({"example.com/count": count.to_string()}));
    });
    let said = degraded(&stage, "True", "NodesNotUpdated")["message"].as_str().unwrap().to_owned();
    assert!(said.contains(&second) && !said.contains(&first) && said.contains(WHY), "{said}");
    assert!(stage.api.await_event("p", "NodesNotUpdated").contains(&second));
    stage.api.await_ipam_node(&second, 0);
    drop(policy);
    stage.api.await_ipam_node(&second, 1);
    degraded(&stage, "False", "AsSpecified");
}
