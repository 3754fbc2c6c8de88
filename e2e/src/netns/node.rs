//! A node: its namespaces, its ports on the fabric, and the programs on it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::entrance::{Entrance, Holder, await_file};
use super::pod::Pod;
use super::sandbox::{Sandbox, UNSHARE, await_relay};
use crate::process::Process;
use crate::{assets, warden};

/// Bridge on each node for the bridge plugin; one of its ports leads to the fabric.
pub const BRIDGE: &str = "br-sec";
/// Interface on each node for the macvlan plugin's `master`; it leads to the fabric and carries the node's own address.
pub const PARENT: &str = "sec0";

/// What is a node's own in its file system; everything else there is the host's.
const SHADES: [&str; 5] = ["/etc:cni", "/opt:cni", "/var/lib:cni", "/var/log:", "/run:netns"];

/// Folders that a kubelet makes on the node for the agent's hostPath volumes.
const HOST_PATHS: [&str; 3] = ["/opt/cni/bin", "/etc/cni/net.d/nv-ipam.d", "/var/lib/cni/nv-ipam"];

/// A node; it and all on it end when it is dropped.
pub struct Node {
    name: String,
    addresses: [String; 2],
    relay: Option<Process>,
    relay_words: [String; 3],
    directory: PathBuf,
    cni_path: String,
    // Last: processes inside are ended one by one before the namespaces go.
    holder: Holder,
}

impl Node {
    /// Makes a node and joins it to the fabric. `index` (1 to 200) tells nodes of a sandbox apart.
    ///
    /// # Errors
    /// When namespaces or links cannot be made, or the standard plugins can be neither found nor built.
    pub fn start(sandbox: &Sandbox, name: &str, index: u8) -> Result<Self> {
        let directory = sandbox.directory().join(name);
        let originals = directory.join("originals");
        std::fs::create_dir_all(&originals).with_context(|| format!("cannot create {}", originals.display()))?;
        let mut command = sandbox.entrance().command("unshare");
        command.args(UNSHARE).args(warden::words()?).arg("init").arg(&originals).args(SHADES);
        let holder = Holder::start(command, 2, sandbox.entrance().is_rootless())?;
        let addresses = [format!("172.31.0.{index}"), format!("fd00:31::{index}")];
        wire(sandbox.entrance(), holder.entrance(), index, &addresses)?;
        holder.entrance().run(&[&["mkdir", "-p"], &HOST_PATHS[..]].concat())?;
        let folders = assets::plugin_folders()?;
        let cni_path =
            ["/opt/cni/bin".to_owned()].into_iter().chain(folders.iter().map(|folder| folder.display().to_string()));
        let cni_path = cni_path.collect::<Vec<_>>().join(":");
        let mut node = Self {
            name: name.to_owned(),
            addresses,
            relay: None,
            relay_words: sandbox.node_relay(),
            directory,
            cni_path,
            holder,
        };
        node.connect()?;
        Ok(node)
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its own addresses on the fabric, IPv4 (172.31.0.0/24) and IPv6 (fd00:31::/64), for routes from node to node.
    pub fn addresses(&self) -> &[String; 2] {
        &self.addresses
    }

    /// The way in.
    pub fn entrance(&self) -> &Entrance {
        self.holder.entrance()
    }

    /// `CNI_PATH` on this node.
    pub fn cni_path(&self) -> &str {
        &self.cni_path
    }

    /// A folder on the host for logs of this node.
    pub fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// Starts a program on the node; its output goes to `NAME.log` in the node's folder.
    ///
    /// # Errors
    /// When it cannot be started, or ends at once.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        let title = format!("{name} on {}", self.name);
        Process::launch(&title, command, &self.directory.join(format!("{name}.log")))
    }

    /// GET of `path` from `address` (`HOST:PORT`) as seen on the node; answers the body.
    ///
    /// # Errors
    /// When there is no answer, or one that is not 200.
    pub fn http(&self, address: &str, path: &str) -> Result<String> {
        let words = warden::words()?;
        let mut command = self.entrance().command(&words[0]);
        let output = crate::child::output(command.args(&words[1..]).args(["get", address, path]))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lets the node reach the API server (again).
    ///
    /// # Errors
    /// When the relay does not start.
    pub fn connect(&mut self) -> Result<()> {
        let words = warden::words()?;
        let mut command = self.entrance().command(&words[0]);
        command.args(&words[1..]).args(&self.relay_words);
        let _ = std::fs::remove_file(self.directory.join("relay.log"));
        let mut relay = self.spawn("relay", command)?;
        await_relay(&mut relay)?;
        self.relay = Some(relay);
        Ok(())
    }

    /// Cuts the node off the API server; open connections break.
    pub fn disconnect(&mut self) {
        self.relay = None;
    }

    /// Makes a pod: an empty network namespace of that name on the node.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn pod(&self, namespace: &str, name: &str, uid: &str) -> Result<Pod> {
        Pod::create(self.entrance().clone(), &self.cni_path, namespace, name, uid)
    }

    /// Waits until a path exists on the node.
    ///
    /// # Errors
    /// When it does not within the time given.
    pub fn await_file(&self, path: &str, within: Duration) -> Result<()> {
        await_file(self.entrance(), path, within)
    }
}

/// Two cables to the fabric: one ends in the node's bridge, the other is a plain interface, since a bridge's port can carry no
/// macvlan. The bridge's own MAC is set: it would else follow its ports, and CHECK compares it. Nodes forward, as every Kubernetes node does.
fn wire(sandbox: &Entrance, node: &Entrance, index: u8, [address, address6]: &[String; 2]) -> Result<()> {
    let pid = node.pid_above()?;
    sandbox.script(&format!(
        "ip link add n{index}a type veth peer name port0 netns {pid}
         ip link add n{index}b type veth peer name {PARENT} netns {pid}
         ip link set n{index}a master fabric up
         ip link set n{index}b master fabric up"
    ))?;
    node.script(&format!(
        "ip link set lo up
         ip link add {BRIDGE} address 02:00:00:00:00:{index:02x} type bridge mcast_snooping 0
         ip link set {BRIDGE} up
         ip link set port0 master {BRIDGE} up
         ip link set {PARENT} up
         ip address add {address}/24 dev {PARENT}
         ip address add {address6}/64 dev {PARENT} nodad
         echo 1 > /proc/sys/net/ipv4/ip_forward
         echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
    ))?;
    Ok(())
}
