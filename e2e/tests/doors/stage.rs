//! A namespace whose pools a running operator reviews, and in which case after case stands as the table has it.
//!
//! The operator does not lead, so that it changes nothing of what stands there; reviews are served by every replica. What its
//! watches have told it is seen by a mark: a pool of each kind that is changed after all else. Watches tell of one kind in
//! order, so whoever knows the mark knows what was done before.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{Method, Request};
use ipam_core::Family;
use ipam_crds::read::read;
use ipam_crds::{BlockUse, NodeBlock};
use ipam_e2e::cases::{Age, Case};
use ipam_e2e::eventually_blocking;
use ipam_e2e::webhook::{Authority, Mount, PATHS, Replica, register_sparing};
use ipam_operator::election::LEASE_NAME;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::objects;
use crate::server::{STAGEHAND, Server};

/// How long certificates are valid, and nobody else leads; longer than any test.
const LIFE: Duration = Duration::from_hours(1);
/// How long a watch may take to tell; a moment on an idle machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The networks of the marks, for a number, and one around them all. Their family is never that of the case's own pool.
fn networks(family: Family, number: u32) -> (String, String, &'static str) {
    let (high, low) = (number / 256 % 256, number % 256);
    match family {
        Family::V4 => (format!("198.18.{high}.{low}/32"), format!("198.19.{high}.{low}/32"), "198.18.0.0/15"),
        Family::V6 => (format!("2001:db8:1::{number:x}/128"), format!("2001:db8:2::{number:x}/128"), "2001:db8::/32"),
    }
}

/// The specs of the marks: a block of one address in a network of one.
fn specs(family: Family, ip: &str, cidr: &str) -> [(&'static str, Value); 2] {
    [
        ("IPPool", json!({"subnet": ip, "perNodeBlockSize": 1})),
        ("CIDRPool", json!({"cidr": cidr, "perNodeNetworkPrefix": family.bits()})),
    ]
}

pub(crate) struct Stage {
    pub(crate) server: Server,
    webhook: kube::Client,
    /// Paths of what stands there for the case of now.
    standing: Vec<String>,
    marks: u32,
    marked: Family,
    /// Ends with the stage.
    _replica: Replica,
}

/// What stands there for a case.
pub(crate) struct Set {
    /// The case's pool before the edit.
    pub(crate) old: Option<Value>,
    /// When the other pools were made, in seconds since 1970.
    pub(crate) created: BTreeMap<String, i64>,
}

impl Stage {
    /// With what the nodes hold in all of `cases`, whose pools have names of their own.
    pub(crate) fn build(cases: &[Case]) -> Self {
        let server = Server::start("stage");
        lead_for_ever(&server);
        for ipam_node in ipam_nodes(cases) {
            server.put(&ipam_node);
        }
        let (ip, cidr, _) = networks(Family::V4, 0);
        for (kind, spec) in specs(Family::V4, &ip, &cidr) {
            server.put(&objects::pool(kind, "mark", None, &spec));
        }
        let (plane, namespace) = (server.plane, server.namespace.clone());
        let authority = Authority::new().unwrap();
        let mut mount = Mount::create(&plane.directory().join(format!("{namespace}.secret"))).unwrap();
        mount.exchange(&authority.issue(LIFE).unwrap()).unwrap();
        let elect_in = format!("--leader-elect-namespace={namespace}");
        let replica = Replica::start(plane, &namespace, mount.directory(), &["--leader-elect", &elect_in]).unwrap();
        register_sparing(plane, &namespace, replica.port(), &authority.pem(), STAGEHAND).unwrap();
        let webhook = client(&server, replica.port(), &authority.pem());
        Self { server, webhook, standing: Vec::new(), marks: 0, marked: Family::V4, _replica: replica }
    }

    /// Takes away what stood there for the last case, puts what this one needs, and waits until the webhook knows it.
    pub(crate) fn set(&mut self, case: &Case) -> Set {
        let mut is_news = !self.standing.is_empty();
        for path in self.standing.drain(..) {
            self.server.prepare(&Method::DELETE, &path, &Value::Null);
        }
        let mut created = BTreeMap::new();
        let mut others: Vec<_> = case.others.iter().collect();
        others.sort_by_key(|other| other.age);
        let (before, after): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| other.age < Age::Same);
        let mut put = |stage: &mut Self, object: &Value| {
            let made = stage.put(object);
            is_news = true;
            made
        };
        for other in &before {
            created.insert(other.name.clone(), second(&put(self, &objects::other(other))));
        }
        let old = objects::old(case).map(|old| put(self, &old));
        for other in &after {
            created.insert(other.name.clone(), second(&put(self, &objects::other(other))));
        }
        let own = read(case.kind(), &case.spec).0.network().map(|network| network.family());
        if is_news || own == Some(self.marked) {
            self.mark(if own == Some(Family::V4) { Family::V6 } else { Family::V4 });
        }
        Set { old, created }
    }

    fn put(&mut self, object: &Value) -> Value {
        let made = self.server.put(object);
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        self.standing.push(format!("{}/{name}", self.server.path(kind)));
        made
    }

    /// Waits until the webhook knows all that was done up to now.
    fn mark(&mut self, family: Family) {
        self.marks += 1;
        self.marked = family;
        let (ip, cidr, around) = networks(family, self.marks);
        for (kind, spec) in specs(family, &ip, &cidr) {
            let path = format!("{}/mark", self.server.path(kind));
            self.server.prepare(&Method::PATCH, &path, &json!({"spec": spec}));
        }
        let probe = objects::pool("IPPool", "probe", None, &json!({"subnet": around, "perNodeBlockSize": 1}));
        eventually_blocking("the webhook knows what stands there", PATIENCE, || {
            let said = self.review(None, &probe)["status"]["message"].to_string();
            let knows = [&ip, &cidr].iter().all(|network| said.contains(&format!("({network})")));
            if knows { Ok(()) } else { Err(said) }
        })
        .unwrap();
    }

    /// What the webhook answers when it is asked directly about the change from `old` to `new`.
    pub(crate) fn review(&self, old: Option<&Value>, new: &Value) -> Value {
        let review = objects::review(&self.server.namespace, old, new);
        let resource = review["request"]["resource"]["resource"].as_str().unwrap();
        let (_, path) = PATHS.iter().find(|(of, _)| *of == resource).unwrap();
        let request = Request::post(*path).header("content-type", "application/json");
        let request = request.body(review.to_string().into_bytes()).unwrap();
        let answer: Value = self.server.runtime.block_on(self.webhook.request(request)).unwrap();
        assert_eq!(answer["response"]["uid"], "u", "{answer}");
        answer["response"].clone()
    }
}

/// Somebody else holds the Lease.
fn lead_for_ever(server: &Server) {
    let spec = json!({
        "holderIdentity": "nobody", "leaseDurationSeconds": LIFE.as_secs(), "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
    });
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE_NAME}, "spec": spec,
    });
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", server.namespace);
    server.prepare(&Method::POST, &path, &lease);
}

fn ipam_nodes(cases: &[Case]) -> Vec<Value> {
    let mut nodes: BTreeMap<String, Vec<(NodeBlock, Option<BlockUse>)>> = BTreeMap::new();
    for case in cases {
        for (node, told) in objects::told(case) {
            nodes.entry(node).or_default().push(told);
        }
    }
    nodes.iter().map(|(name, told)| objects::ipam_node(name, told)).collect()
}

/// A client that trusts the CA and nobody else.
fn client(server: &Server, port: u16, ca: &str) -> kube::Client {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    config.root_cert = Some(vec![CertificateDer::from_pem_slice(ca.as_bytes()).unwrap().to_vec()]);
    // What keeps a connection in use belongs to a runtime.
    let _inside = server.runtime.enter();
    kube::Client::try_from(config).unwrap()
}

fn second(object: &Value) -> i64 {
    let at: jiff::Timestamp = object["metadata"]["creationTimestamp"].as_str().unwrap().parse().unwrap();
    at.as_second()
}
