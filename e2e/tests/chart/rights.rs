//! No right too few and none too many: the daemons run with the arguments and the tokens that the chart gives them, do all that
//! they ever do, and the API server's audit log says which rights that took.

use ipam_e2e::chart::grants::{self, Grant, Used};
use ipam_e2e::chart::webhook::{Webhook, first_refusal};
use ipam_e2e::chart::{Release, pods};
use ipam_e2e::cluster::{Agent, Operator};
use ipam_e2e::eventually_blocking;
use ipam_e2e::netns::{BRIDGE, Node, Pod, Sandbox};
use serde_json::{Value, json};

use crate::stage::{SOON, node, plane, pool, release, until};

/// Kinds in the order in which they are said.
const POOLS: [(&str, &str); 2] = [("ippool", "IPPool"), ("cidrpool", "CIDRPool")];

fn conditions(object: &Value, name: &str, status: &str, reason: &str) -> bool {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.iter().any(|found| found["type"] == name && found["status"] == status && found["reason"] == reason)
}

/// Nothing that was asked for was refused.
fn assert_nothing_forbidden(release: &Release<'_>) {
    let used = Used::read(release).unwrap();
    assert!(used.forbidden.is_empty(), "the roles of the chart lack:\n{:#?}", used.forbidden);
}

/// Every right was needed, or comes to be within the time given.
fn assert_all_used(release: &Release<'_>) {
    let grants = grants::of(release).unwrap();
    assert!(grants.len() >= 20, "{grants:?}");
    eventually_blocking("every right in the chart's roles is used", SOON, || {
        let used = Used::read(release)?;
        let idle: Vec<String> = grants.iter().filter(|grant| !used.needed(grant)).map(ToString::to_string).collect();
        if idle.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("nothing needed\n{}", idle.join("\n"))) }
    })
    .unwrap();
}

/// A pod whose object nobody has made: its address will be taken back.
fn add(node: &Node, pool: &str, uid: &str) -> Pod {
    let pod = node.pod("default", &format!("pod-{pool}"), uid).unwrap();
    let network = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": BRIDGE,
        "ipam": {"type": "nv-ipam", "poolName": pool, "poolType": pool},
    });
    let result = pod.add("net1", &network).unwrap();
    assert!(result["ips"][0]["address"].as_str().is_some_and(|address| address.starts_with("10.")), "{result}");
    pod
}

/// The agent reports both blocks, with so many addresses held in all.
fn used(object: &Value, count: i64) -> bool {
    let reports = object["status"]["pools"].as_array().cloned().unwrap_or_default();
    reports.len() == 2 && reports.iter().map(|report| report["used"].as_i64().unwrap_or(-1)).sum::<i64>() == count
}

/// A release with two operators that make their own certificates, a node with an agent, and a pool of each kind; and a node
/// that is left without a block.
struct World {
    release: Release<'static>,
    leader: Operator,
    agent: Agent,
    host: Node,
    name: String,
    left_out: String,
    _running: (Operator, [Webhook; 2], Sandbox),
}

impl World {
    fn build() -> Self {
        let webhooks = [(); 2].map(|()| Webhook::new(plane()).unwrap());
        // Checks for pods that are gone follow each other quickly. The second operator outlives the first and answers.
        let checks = ["agent.staleIpCheck.interval=1s", "agent.staleIpCheck.countBeforeRelease=1"];
        let answers = [webhooks[1].value(), "webhook.certificates=self-managed".to_owned()];
        let release = release("rights", &[&checks[..], &answers.each_ref().map(String::as_str)].concat());
        release.route_webhook().unwrap();
        let group = json!({"group": release.namespace()});
        let [name, left_out] = ["a", "b"].map(|short| format!("{}-{short}", release.namespace()));
        let sandbox = Sandbox::start(plane()).unwrap();
        let host = Node::start(&sandbox, &name, 1).unwrap();
        node(plane(), &name, &group);
        let mut leader = pods::operator(&release, Some(&webhooks[0])).unwrap();
        leader.await_ready().unwrap();
        let mut second = pods::operator(&release, Some(&webhooks[1])).unwrap();
        first_refusal(&release, &mut second).unwrap();
        let agent = pods::agent(&release, &host).unwrap();
        let running = (second, webhooks, sandbox);
        Self { release, leader, agent, host, name, left_out, _running: running }
    }

    /// One pool of each kind, each with a single block, which the node gets.
    fn make_pools(&mut self) {
        let specs = [
            json!({"subnet": "10.80.0.0/29", "perNodeBlockSize": 4}),
            json!({"cidr": "10.81.0.0/24", "perNodeNetworkPrefix": 24}),
        ];
        let namespace = self.release.namespace();
        for ((short, kind), spec) in POOLS.into_iter().zip(specs) {
            plane().kubectl().apply(&pool(kind, namespace, short, spec, namespace)).unwrap();
            let ready = |pool: &Value| conditions(pool, "Ready", "True", "Valid");
            until(&self.release, short, short, "is ready", ready);
        }
        self.agent.await_ready(&self.host).unwrap();
        until(&self.release, "ipamnode", &self.name, "has both blocks, all free", |object| used(object, 0));
    }

    /// A node that there is no block for, which is worth an event. Once more, so that the event becomes a series.
    fn leave_a_node_out(&self) {
        self.join_without_block();
        plane().kubectl().run(&["delete", "node", &self.left_out]).unwrap();
        self.await_unserved(0);
        self.join_without_block();
    }

    fn join_without_block(&self) {
        node(plane(), &self.left_out, &json!({"group": self.release.namespace()}));
        self.await_unserved(1);
    }

    fn await_unserved(&self, count: i64) {
        for (short, _) in POOLS {
            let counted = |pool: &Value| pool["status"]["nodes"]["unserved"] == count;
            until(&self.release, short, short, "counts the node without a block", counted);
        }
    }

    /// Addresses of pods that are not there: the collector asks for the pods and gives them back.
    fn hold_and_forget(&self) {
        let uids = ["11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"];
        let held: Vec<Pod> = POOLS.iter().zip(uids).map(|((short, _), uid)| add(&self.host, short, uid)).collect();
        eventually_blocking("the last look at the pods", SOON, || {
            let used = Used::read(&self.release)?;
            let looked = |grant: &Grant| grant.resource != "pods" || used.needed(grant);
            let all = grants::of(&self.release)?;
            if all.iter().all(looked) { Ok(()) } else { Err(anyhow::anyhow!("not yet")) }
        })
        .unwrap();
        until(&self.release, "ipamnode", &self.name, "has all addresses back", |object| used(object, 0));
        // A leader that finds counts to be written confirms nothing: writing does that, too.
        for (short, _) in POOLS {
            let counted = |pool: &Value| pool["status"]["addresses"]["used"] == 0;
            until(&self.release, short, short, "counts no address", counted);
        }
        drop(held);
    }

    /// The next leader confirms what it finds; the agent starts anew.
    fn restart(&mut self) {
        self.leader.process().terminate(SOON).unwrap();
        self.agent.process().terminate(SOON).unwrap();
        let pod = format!("agent-{}", self.name);
        plane().kubectl().run(&["delete", "pod", &pod, "-n", self.release.namespace(), "--force"]).unwrap();
        self.agent = pods::agent(&self.release, &self.host).unwrap();
        self.agent.await_ready(&self.host).unwrap();
    }

    /// A certificate that is spoilt is mended.
    fn spoil_the_certificate(&self) {
        let [configuration] = &self.release.objects("validatingwebhookconfigurations").unwrap()[..] else { panic!() };
        let name =
            configuration["metadata"]["name"].as_str().unwrap().replace("validating-webhook", "webhook-server-cert");
        let spoilt = json!({"data": {"tls.crt": "c3BvaWx0"}});
        let words = ["patch", "secret", &name, "-n", self.release.namespace(), "-p", &spoilt.to_string()];
        plane().kubectl().run(&words).unwrap();
        until(&self.release, "secret", &name, "is mended", |secret| secret["data"]["tls.crt"] != "c3BvaWx0");
    }

    /// The pools go, and the nodes. Their IPAMNodes, without blocks by then, follow at once.
    fn remove_all(&self) {
        for (short, _) in POOLS {
            let words = ["delete", short, short, "-n", self.release.namespace(), "--timeout=60s"];
            plane().kubectl().run(&words).unwrap();
        }
        plane().kubectl().run(&["delete", "node", &self.name, &self.left_out]).unwrap();
    }
}

#[test]
fn every_call_is_allowed_and_every_right_is_needed() {
    let mut world = World::build();
    world.make_pools();
    world.leave_a_node_out();
    world.hold_and_forget();
    world.spoil_the_certificate();
    world.restart();
    assert_nothing_forbidden(&world.release);
    world.remove_all();
    assert_all_used(&world.release);
    assert_nothing_forbidden(&world.release);
}
