//! A whole Kubernetes cluster on one machine: a control plane with its controllers, and nodes with kubelet, containerd and Multus.
//!
//! All of it runs in namespaces below one pid 1, and ends with the harness. The control plane stands on the network `br0`, which joins
//! the nodes. The nodes have a second interface on the segment `br1`, for secondary networks. The machine reaches the API server by
//! a relay on loopback. It needs root: kubelet and containerd mount and make cgroups.

pub mod command;
mod groups;
pub mod images;
mod node;
mod servers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use crate::assets::{self, Tool, debian};
use crate::eventually::eventually_blocking;
use crate::kubectl::Kubectl;
use crate::netns::Entrance;
use crate::netns::entrance::{Holder, need};
use crate::netns::sandbox::{UNSHARE, await_relay};
use crate::pki::{self, Client};
use crate::ports::Port;
use crate::process::Process;
use crate::state::StateDir;
use crate::warden;

use groups::Cgroups;
pub use node::{IDENTITY, Node, SECONDARY};

/// Enough for a machine under heavy load.
const READY: Duration = Duration::from_mins(3);
/// What must be installed, each with its package.
const PROGRAMS: [(&str, &str); 3] = [("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")];

/// A cluster. It ends when dropped.
pub struct Kubernetes {
    // Fields are dropped in this order: pods and nodes before the control plane, and the folder last.
    nodes: Vec<Node>,
    servers: Vec<Process>,
    _relays: [Process; 2],
    kubectl: Kubectl,
    _port: Port,
    network: Holder,
    _cgroups: Cgroups,
    state: StateDir,
}

impl Kubernetes {
    /// Starts a cluster with this many nodes, from 1 to 9, and waits until they are ready.
    ///
    /// # Errors
    /// If we are not root, a tool is missing and cannot be built, or something does not become ready.
    pub fn start(count: usize) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "a whole cluster needs root: kubelet mounts and makes cgroups");
        ensure!((1..=9).contains(&count), "a cluster has 1 to 9 nodes, not {count}");
        need(&PROGRAMS)?;
        assets::ensure(&assets::CONTROL_PLANE)?;
        assets::ensure(&assets::CLUSTER)?;
        assets::ensure(&assets::PLUGINS)?;
        let runtime = debian::runtime()?;
        let state = StateDir::create()?;
        let names: Vec<String> = (1..=count).map(node::name).collect();
        let port = Port::reserve()?;
        write_keys(&state, &names, &port)?;
        let group = state.path().file_name().context("the state has no name")?.to_string_lossy().into_owned();
        let cgroups = Cgroups::create(&group, &names)?;
        let network = network()?;
        let inside = network.entrance();
        let kubectl = Kubectl::new(assets::path(Tool::Kubectl)?, state.join("kubeconfig"));
        let relays = relays(inside, &state, &port)?;
        let mut servers = vec![
            launch(inside, &state, Tool::Etcd, &servers::etcd(state.path()))?,
            start_api_server(inside, &state, &kubectl)?,
        ];
        servers.push(launch(inside, &state, Tool::ControllerManager, &servers::controller_manager(state.path()))?);
        servers.push(launch(inside, &state, Tool::Scheduler, &servers::scheduler(state.path()))?);
        kubectl.apply(&attachments().to_string())?;
        let images = images::write(&runtime.busybox, state.path())?;
        let runtime = Arc::new(runtime);
        let start = |(at, name): (usize, &String)| {
            let plan = node::Plan {
                name: name.clone(),
                index: at + 1,
                count,
                state: state.path().to_owned(),
                runtime: Arc::clone(&runtime),
                cgroup_root: cgroups.root(name),
            };
            node::Node::start(inside, plan, &images)
        };
        let nodes = names.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
        let mut cluster =
            Self { nodes, servers, _relays: relays, kubectl, _port: port, network, _cgroups: cgroups, state };
        cluster.await_ready()?;
        Ok(cluster)
    }

    /// The administrator's kubeconfig, for this machine.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes, to restart parts of them.
    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Kills the API server, and starts it again after `away`.
    ///
    /// # Errors
    /// If it does not end, or is not ready afterwards.
    pub fn restart_api_server(&mut self, away: Duration) -> Result<()> {
        let [_, api_server, ..] = &mut self.servers[..] else { bail!("the cluster has no API server") };
        api_server.kill()?;
        std::thread::sleep(away);
        *api_server = start_api_server(self.network.entrance(), &self.state, &self.kubectl)?;
        Ok(())
    }

    /// The folder of this run: logs, keys, and room for the caller's own files.
    pub fn directory(&self) -> &Path {
        self.state.path()
    }

    /// Makes the image of an archive known to all nodes.
    ///
    /// # Errors
    /// If a runtime refuses it.
    pub fn import(&mut self, archive: &Path) -> Result<()> {
        self.nodes.iter_mut().try_for_each(|node| node.import(archive))
    }

    /// Runs helm against this cluster; answers stdout.
    ///
    /// # Errors
    /// If it fails; the message is what it said.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        crate::chart::helm_on(&self.kubeconfig(), &self.state.join("helm"), arguments)
    }

    /// An object or a list, as kubectl prints it with `-o json`.
    ///
    /// # Errors
    /// If kubectl fails.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.kubectl.run(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).context("kubectl prints no JSON")
    }

    /// Waits for the nodes, and for the default ServiceAccount, without which the API server refuses pods.
    ///
    /// # Errors
    /// If a process of the cluster has ended, or a node does not become ready.
    pub fn await_ready(&mut self) -> Result<()> {
        let count = self.nodes.len();
        eventually_blocking("the nodes are ready", READY, || {
            let kubelets = self.nodes.iter_mut().map(Node::kubelet);
            if let Err(ended) = self.servers.iter_mut().chain(kubelets).try_for_each(Process::ensure_running) {
                return Ok(Err(ended));
            }
            let nodes = self.get(&["nodes"])?;
            let ready = nodes["items"].as_array().into_iter().flatten().filter(|node| is_ready(node)).count();
            ensure!(ready == count, "{ready} of {count} are ready");
            self.get(&["serviceaccount", "default", "-n", "default"])
                .map(|_| Ok(()))
                .map_err(|_| anyhow!("there is no default ServiceAccount"))
        })?
    }
}

/// Whether a node or a pod says that it is ready.
pub fn is_ready(object: &Value) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Keys, and a kubeconfig for each client.
fn write_keys(state: &StateDir, nodes: &[String], port: &Port) -> Result<()> {
    let users: Vec<String> = nodes.iter().map(|node| format!("system:node:{node}")).collect();
    let mut clients: Vec<Client<'_>> = ["kube-controller-manager", "kube-scheduler"]
        .into_iter()
        .zip(["system:kube-controller-manager", "system:kube-scheduler"])
        .map(|(file, name)| Client { file, name, group: "" })
        .collect();
    clients.extend(nodes.iter().zip(&users).map(|(file, name)| Client { file, name, group: "system:nodes" }));
    let directory = state.join("pki");
    pki::write(&directory, &[servers::ADDRESS, servers::SERVICE], &clients)?;
    let kubeconfig = |name: &str, server: &str, client: &str| {
        let user = pki::user(&directory, client);
        pki::write_kubeconfig(&state.join(name), server, &directory, &user)
    };
    kubeconfig("kubeconfig", &format!("https://127.0.0.1:{}", port.number()), pki::ADMIN)?;
    let inside = format!("https://{}:{}", servers::ADDRESS, servers::PORT);
    // For Multus, which reads networks of all namespaces.
    kubeconfig("nodes.kubeconfig", &inside, pki::ADMIN)?;
    clients.iter().try_for_each(|client| kubeconfig(&format!("{}.kubeconfig", client.file), &inside, client.file))
}

/// Namespaces with the two networks.
fn network() -> Result<Holder> {
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(warden::words()?).arg("init");
    let holder = Holder::start(command, 1, false)?;
    holder.entrance().script(&format!(
        "ip link set lo up
         ip link add br0 type bridge
         ip address add {}/24 dev br0
         ip address add {}/32 dev br0
         ip link set br0 up
         ip link add br1 type bridge mcast_snooping 0
         ip link set br1 up
         echo 1 > /proc/sys/net/ipv4/ip_forward",
        servers::ADDRESS,
        servers::SERVICE
    ))?;
    Ok(holder)
}

fn launch(inside: &Entrance, state: &StateDir, tool: Tool, arguments: &[String]) -> Result<Process> {
    let mut command = inside.command(assets::path(tool)?);
    command.args(arguments);
    Process::launch(tool.name(), command, &state.join(format!("{}.log", tool.name())))
}

fn start_api_server(inside: &Entrance, state: &StateDir, kubectl: &Kubectl) -> Result<Process> {
    let mut server = launch(inside, state, Tool::KubeApiserver, &servers::apiserver(state.path()))?;
    server.ready("/readyz", READY, || kubectl.run(&["get", "--raw", "/readyz"]))?;
    Ok(server)
}

/// From loopback of this machine to the API server.
fn relays(inside: &Entrance, state: &StateDir, port: &Port) -> Result<[Process; 2]> {
    let socket = format!("unix:{}", state.join("api.sock").display());
    let words = warden::words()?;
    let (program, first) = words.split_first().context("a warden has no program")?;
    let mut command = inside.command(program);
    command.args(first).args(["relay", &socket, &format!("tcp:127.0.0.1:{}", servers::PORT)]);
    let mut far = Process::launch("relay in the cluster", command, &state.join("relay-in.log"))?;
    await_relay(&mut far)?;
    let mut outside: Vec<std::ffi::OsString> = first.to_vec();
    outside.extend(["relay".into(), format!("tcp:127.0.0.1:{}", port.number()).into(), socket.into()]);
    let mut near = Process::start("relay to the cluster", Path::new(program), &outside, &state.join("relay-out.log"))?;
    await_relay(&mut near)?;
    Ok([far, near])
}

/// The definition of NetworkAttachmentDefinitions, as the specification of the Network Plumbing Working Group has them.
fn attachments() -> Value {
    let spec = json!({"type": "object", "properties": {"config": {"type": "string"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": {
                "kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition", "shortNames": ["net-attach-def"],
            },
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}
