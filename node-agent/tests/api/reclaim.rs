//! Addresses that the store has lost become available once no pod of the node has them.

use std::time::Duration;

use ipam_node_agent::flags::StaleConfig;
use ipam_node_agent::identity::Identity;
use ipam_node_agent::reclaimer::Reclaimer;
use ipam_node_agent::watch::InForce;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::common::{Node, parameters};
use crate::following::{Following, NEVER};
use crate::lost::{identity, reported_on};
use crate::server::Server;
use ipam_node_store::Position;

/// Checks before the one that frees addresses.
const CHECKS_BEFORE: u32 = 2;

/// An agent whose store was deleted: its last report has .2 and .9 in use.
struct Wiped {
    agent: Following,
    server: Server,
    reclaimer: Reclaimer,
}

impl Wiped {
    /// This machine is `here`, and the report is of the machine "m" in boot "a".
    async fn on(here: Identity) -> Self {
        let (reclaims, heard) = mpsc::channel(1);
        let list = reported_on(&identity("s", "m", "a"));
        let node = Node::open_at(tempfile::tempdir().unwrap(), Some(Position::default()), here).await;
        let mut agent = Following::reclaiming(node, None, Some(NEVER), heard).await;
        agent.server.call().await.answer(200, &list);
        agent.until(|told| told.lost.is_some() && told.standing.is_some()).await;
        agent.confirm().await;
        let (client, server) = Server::new();
        let config = StaleConfig { interval: Duration::from_mins(1), checks_before: CHECKS_BEFORE };
        let own = Some(("kube-system".to_owned(), "agent".to_owned()));
        let reclaimer = Reclaimer::new(client, "node1", config, own, agent.in_force.clone(), reclaims);
        Self { agent, server, reclaimer }
    }

    /// One check. The API server lists these pods, from its cache and then, if it is asked again, not from the cache.
    async fn check(&mut self, lists: &[&[Value]]) -> Result<(), String> {
        let answers = async {
            for (index, pods) in lists.iter().enumerate() {
                let call = self.server.call().await;
                assert_eq!((call.path.as_str(), call.query.contains("spec.nodeName%3Dnode1")), ("/api/v1/pods", true));
                assert_eq!(call.query.contains("resourceVersion=0"), index == 0, "{}", call.query);
                let agent =
                    json!({"metadata": {"namespace": "kube-system", "name": "agent"}, "spec": {"hostNetwork": true}});
                let items: Vec<_> = std::iter::once(&agent).chain(*pods).collect();
                call.answer(200, &json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}));
            }
        };
        let (result, ()) = tokio::join!(self.reclaimer.check(), answers);
        self.server.assert_no_call();
        result
    }

    /// So many checks that list these pods, without a last look.
    async fn checks(&mut self, count: u32, pods: &[Value]) {
        for _ in 0..count {
            self.check(&[pods]).await.unwrap();
        }
    }

    fn lost(&self) -> usize {
        runs(self.agent.in_force.borrow().as_ref().unwrap())
    }
}

/// How many runs of addresses have no record.
fn runs(told: &InForce) -> usize {
    let lost = serde_json::to_value(&told.lost).unwrap();
    lost["pools"][0]["held"].as_array().map_or(0, Vec::len)
}

fn here() -> Identity {
    identity("t", "m", "a")
}

/// A pod that runs, with this value of the annotation.
fn pod(status: Option<&str>) -> Value {
    let mut pod = json!({"metadata": {"namespace": "default", "name": "a"}, "spec": {}, "status": {"phase": "Running", "podIP": "10.244.0.9"}});
    if let Some(status) = status {
        pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/network-status": status});
    }
    pod
}

fn with(addr: &str) -> Value {
    pod(Some(&json!([{"name": "blue", "interface": "net1", "ips": [addr]}]).to_string()))
}

#[tokio::test]
async fn addresses_that_no_pod_has_in_all_checks_and_the_last_look_become_available() {
    let mut wiped = Wiped::on(here()).await;
    let other = with("192.168.0.7");
    wiped.checks(CHECKS_BEFORE, std::slice::from_ref(&other)).await;
    assert_eq!(wiped.lost(), 2);
    let pods: &[Value] = &[other];
    wiped.check(&[pods, pods]).await.unwrap();
    wiped.agent.until(|told| told.lost.is_none()).await;
    assert_eq!(wiped.agent.noted().lost(), None, "the journal has it");
    assert_eq!(wiped.agent.add("c1").await.unwrap(), "192.168.0.2/16");
    // Nothing is left to ask for.
    wiped.check(&[]).await.unwrap();
}

#[tokio::test]
async fn an_address_that_a_pod_has_in_one_check_or_the_last_look_stays_unavailable() {
    for seen in 0..=CHECKS_BEFORE + 1 {
        let mut wiped = Wiped::on(here()).await;
        let pods = |check| if check == seen { vec![with("192.168.0.2")] } else { vec![pod(Some("[]"))] };
        for check in 0..CHECKS_BEFORE {
            wiped.check(&[&pods(check)]).await.unwrap();
        }
        wiped.check(&[&pods(CHECKS_BEFORE), &pods(CHECKS_BEFORE + 1)]).await.unwrap();
        wiped.agent.until(|told| runs(told) < 2).await;
        assert_eq!(wiped.lost(), 1, "{seen}");
        assert_eq!(wiped.agent.add("c1").await.unwrap(), "192.168.0.3/16", "{seen}");
        // Once that pod is gone, so many checks free it, too.
        wiped.checks(CHECKS_BEFORE, &[]).await;
        wiped.check(&[&[], &[]]).await.unwrap();
        wiped.agent.until(|told| told.lost.is_none()).await;
    }
}

#[tokio::test]
async fn a_pod_with_unknown_addresses_keeps_all_of_them_unavailable() {
    let claims = {
        let mut pod = with("192.168.0.7");
        pod["spec"]["resourceClaims"] = json!([{"name": "nic"}]);
        pod
    };
    for unknown in [pod(None), pod(Some("{}")), pod(Some(r#"[{"ips": ["x"]}]"#)), claims] {
        let mut wiped = Wiped::on(here()).await;
        let pods: &[Value] = std::slice::from_ref(&unknown);
        wiped.checks(2 * CHECKS_BEFORE, pods).await;
        wiped.checks(CHECKS_BEFORE, &[]).await;
        // The last look counts, too.
        wiped.check(&[&[], pods]).await.unwrap();
        assert_eq!(wiped.lost(), 2, "{unknown}");
    }
}

#[tokio::test]
async fn a_pod_without_a_network_of_its_own_has_no_addresses() {
    let mut of_host = pod(None);
    of_host["spec"]["hostNetwork"] = json!(true);
    let mut waiting = pod(None);
    waiting["status"] = json!({"phase": "Pending"});
    let mut ended = pod(None);
    ended["status"]["phase"] = json!("Succeeded");
    for known in [of_host, waiting, ended] {
        let mut wiped = Wiped::on(here()).await;
        let pods: &[Value] = std::slice::from_ref(&known);
        wiped.checks(CHECKS_BEFORE, pods).await;
        wiped.check(&[pods, pods]).await.unwrap();
        wiped.agent.until(|told| told.lost.is_none()).await;
    }
}

#[tokio::test]
async fn a_list_without_the_agents_own_pod_counts_as_no_check() {
    let mut wiped = Wiped::on(here()).await;
    wiped.checks(CHECKS_BEFORE, &[]).await;
    let own = async {
        let call = wiped.server.call().await;
        call.answer(200, &json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod(Some("[]"))]}));
    };
    let (result, ()) = tokio::join!(wiped.reclaimer.check(), own);
    result.unwrap_err();
    assert_eq!(wiped.lost(), 2);
}

#[tokio::test]
async fn addresses_of_another_machine_or_of_an_unknown_one_are_not_asked_for() {
    let unknown = Identity { machine: None, ..here() };
    for here in [identity("t", "n", "a"), unknown] {
        let mut wiped = Wiped::on(here).await;
        wiped.check(&[]).await.unwrap();
        assert_eq!(wiped.agent.node.address(parameters(&["blue"], "c1")).await, "192.168.0.3/16");
    }
}

/// What the agent tells of the addresses.
#[tokio::test]
async fn the_message_says_that_pods_of_this_node_decide() {
    let wiped = Wiped::on(here()).await;
    let told = wiped.agent.in_force.borrow().clone();
    let InForce { problems, .. } = told.unwrap();
    assert!(problems[0].sentence.contains("while a pod of this node may have them"), "{:?}", problems[0]);
}
