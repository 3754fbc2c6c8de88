//! A control plane with our chart installed by helm, as users have it, and the operator that the chart's Deployment would run.

use std::time::Duration;

use anyhow::{Context, Result};
use ipam_crds::{IPAMNode, IPAMNodeSpec};
use ipam_reconciler::ipam_node::FINALIZER;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::Context as Bench;
use super::flags::Flags;
use ipam_e2e::binaries;
use ipam_e2e::chart::webhook::Webhook;
use ipam_e2e::chart::{self, Release, grants, pods};
use ipam_e2e::cluster::{self, Operator};
use ipam_e2e::control_plane::{self, ControlPlane};
use ipam_e2e::eventually::eventually_blocking;

/// Addresses of the block that each node gets.
pub(super) const BLOCK_SIZE: i64 = 64;
/// Namespace of the release and of the pools.
pub(super) const NAMESPACE: &str = "kube-system";
const RELEASE: &str = "nv-ipam";
/// Ample for a loaded machine.
const SOON: Duration = Duration::from_mins(2);

/// A control plane with the chart's objects; no operator and no agent runs yet.
pub(super) struct Stage<'a> {
    pub(super) plane: &'a ControlPlane,
    pub(super) runtime: &'a Runtime,
    /// As the administrator.
    pub(super) client: Client,
    release: Release<'a>,
    agents: Value,
    operator: Vec<String>,
}

/// Sets a stage on a control plane of its own, and lets `work` measure on it.
///
/// # Errors
/// When the stage cannot be set, and those of `work`.
pub(super) fn on_stage<T>(bench: &Bench, work: impl FnOnce(&Stage<'_>) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    binaries::build()?;
    let plane = ControlPlane::start_durable()?;
    let webhook = Webhook::new(&plane)?;
    let stage = Stage::set(&plane, &runtime, &webhook)?;
    let agent = pods::agent_arguments(&stage.agents, "node")?;
    bench.note_flags(Flags::read(&stage.operator, &agent)?);
    work(&stage)
}

impl<'a> Stage<'a> {
    fn set(plane: &'a ControlPlane, runtime: &'a Runtime, webhook: &Webhook) -> Result<Self> {
        cluster::await_namespace(plane, NAMESPACE)?;
        // The one value that is not the chart's default: nothing here translates a Service's port.
        let release = Release::install(plane, RELEASE, NAMESPACE, &chart::folder(), &[&webhook.value()])?;
        cluster::await_crds(plane)?;
        release.route_webhook()?;
        let operator = pods::operator_arguments(&release, Some(webhook))?;
        let agents = pods::agent_template(&release)?;
        grants::await_all(&release, pods::account(&agents)?)?;
        let client = runtime.block_on(plane.client())?;
        Ok(Self { plane, runtime, client, release, agents, operator })
    }

    /// Starts an operator, and waits for nothing.
    pub(super) fn launch_operator(&self) -> Result<Operator> {
        Operator::launch(self.plane, self.operator.clone())
    }

    /// Starts an operator, and waits until it leads and the API server takes a pool through its webhook.
    pub(super) fn start_operator(&self) -> Result<Operator> {
        let mut operator = self.launch_operator()?;
        operator.await_ready()?;
        let pool = pool("probe", "192.0.2.0/24").to_string();
        let words = ["create", "--dry-run=server", "-f", "-"];
        eventually_blocking("the webhook answers", SOON, || self.plane.kubectl().run_with(&words, &pool).map(drop))?;
        Ok(operator)
    }

    /// The administrator's kubeconfig, by which an in-process agent acts with the name and node of an agent's token. Nothing else
    /// about its calls is the administrator's: permissions, admission policy and fairness are those of an agent.
    pub(super) fn kubeconfig_as_agent(&self) -> Result<impl Fn(&str) -> Value + use<>> {
        let file: Value = serde_json::from_slice(&std::fs::read(self.plane.kubeconfig())?)?;
        let user = format!("system:serviceaccount:{NAMESPACE}:{}", pods::account(&self.agents)?);
        Ok(move |node: &str| {
            let mut file = file.clone();
            file["users"][0]["user"]["as"] = json!(user);
            file["users"][0]["user"]["as-user-extra"] = json!({"authentication.kubernetes.io/node-name": [node]});
            file
        })
    }

    /// The arguments of an agent's pod, and a kubeconfig with the token that is bound to the pod. Makes the pod.
    pub(super) fn agent(&self, node: &str) -> Result<(Vec<String>, Value)> {
        let kubeconfig = pods::agent_pod(&self.release, node)?;
        let text = std::fs::read(&kubeconfig).with_context(|| format!("cannot read {}", kubeconfig.display()))?;
        Ok((pods::agent_arguments(&self.agents, node)?, serde_json::from_slice(&text)?))
    }

    /// Creates an IPAMNode with these blocks as the operator does, whom alone the admission policy lets assign them: without blocks,
    /// and then by a patch.
    pub(super) fn assign(&self, node: &str, pools: &Value) -> Result<()> {
        let [deployment] = &self.release.objects("deployments")?[..] else { anyhow::bail!("not one Deployment") };
        let account = pods::account(&deployment["spec"]["template"])?;
        let kubeconfig = self.plane.token(NAMESPACE, account, None)?;
        let spec = json!({"metadata": {"finalizers": [FINALIZER]}, "spec": {"pools": pools}});
        // Not by kubectl, which reads an object before it changes it: the operator may list them, and read none alone.
        self.runtime.block_on(async {
            let api: Api<IPAMNode> = Api::namespaced(control_plane::client(&kubeconfig).await?, NAMESPACE);
            api.create(&PostParams::default(), &IPAMNode::new(node, IPAMNodeSpec::default())).await?;
            api.patch(node, &PatchParams::default(), &Patch::Merge(spec)).await?;
            Ok(())
        })
    }
}

/// A pool of this subnet with the block size of all large clusters.
pub(super) fn pool(name: &str, subnet: &str) -> Value {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"subnet": subnet, "perNodeBlockSize": BLOCK_SIZE},
    })
}
