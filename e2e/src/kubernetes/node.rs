//! A node: kubelet and containerd in namespaces of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::images::PAUSE;
use super::servers::{ADDRESS, SERVICES};
use crate::assets::debian::Runtime;
use crate::assets::{self, Tool};
use crate::netns::Entrance;
use crate::netns::entrance::Holder;
use crate::netns::sandbox::UNSHARE;
use crate::process::Process;
use crate::warden;

const SOCKET: &str = "/run/containerd/containerd.sock";
const READY: Duration = Duration::from_mins(1);
/// The interface of a node on the segment that all nodes share besides their network, for secondary networks.
pub const SECONDARY: &str = "eth1";

/// What a node is made from.
pub(super) struct Plan<'a> {
    pub(super) name: &'a str,
    /// From 1; tells the nodes of a cluster apart.
    pub(super) index: usize,
    /// How many nodes there are.
    pub(super) count: usize,
    pub(super) state: &'a Path,
    pub(super) runtime: &'a Runtime,
    pub(super) cgroup_root: &'a str,
    pub(super) images: &'a [PathBuf],
}

/// The name of a node.
pub(super) fn name(index: usize) -> String {
    format!("node-{index}")
}

fn address(index: usize) -> String {
    format!("172.30.0.{}", 10 + index)
}

fn pod_network(index: usize) -> String {
    format!("10.244.{index}.0/24")
}

/// A node of the cluster. It and its pods end when it is dropped.
pub struct Node {
    name: String,
    ctr: PathBuf,
    kubelet: Process,
    _containerd: Process,
    // Last: processes inside are ended one by one before the namespaces go.
    holder: Holder,
}

impl Node {
    /// Makes the namespaces, joins them to the networks of `cluster`, and starts containerd and kubelet.
    pub(super) fn start(cluster: &Entrance, plan: &Plan<'_>) -> Result<Self> {
        let folder = plan.state.join(plan.name);
        let originals = folder.join("originals");
        std::fs::create_dir_all(&originals).with_context(|| format!("cannot create {}", originals.display()))?;
        let mut command = cluster.command("unshare");
        command.args(UNSHARE).args(warden::words()?).arg("init").arg(&originals).arg("/etc:cni");
        let holder = Holder::start(command, 2, cluster.is_rootless())?;
        let inside = holder.entrance();
        wire(cluster, inside, plan)?;
        prepare(inside, plan)?;
        let containerd = start_containerd(inside, plan, &folder)?;
        for image in plan.images {
            import(inside, &plan.runtime.ctr, image)?;
        }
        let kubelet = start_kubelet(inside, plan, &folder)?;
        let (name, ctr) = (plan.name.to_owned(), plan.runtime.ctr.clone());
        Ok(Self { name, ctr, kubelet, _containerd: containerd, holder })
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The way in.
    pub fn entrance(&self) -> &Entrance {
        self.holder.entrance()
    }

    /// kubelet.
    pub fn kubelet(&mut self) -> &mut Process {
        &mut self.kubelet
    }

    /// Makes the image of an archive known to the node's runtime.
    ///
    /// # Errors
    /// If containerd refuses it.
    pub fn import(&self, archive: &Path) -> Result<()> {
        import(self.entrance(), &self.ctr, archive)
    }
}

/// Two cables: `eth0` to the network of the nodes, `eth1` to a segment without addresses.
fn wire(cluster: &Entrance, inside: &Entrance, plan: &Plan<'_>) -> Result<()> {
    let (pid, index, address) = (inside.pid_above()?, plan.index, address(plan.index));
    cluster.script(&format!(
        "ip link add n{index}a type veth peer name eth0 netns {pid}
         ip link add n{index}b type veth peer name {SECONDARY} netns {pid}
         ip link set n{index}a master br0 up
         ip link set n{index}b master br1 up
         ip route add {} via {address}",
        pod_network(index)
    ))?;
    let others = (1..=plan.count).filter(|other| *other != index);
    let routes: Vec<String> =
        others.map(|other| format!("ip route add {} via {}\n", pod_network(other), self::address(other))).collect();
    inside.script(&format!(
        "ip link set lo up
         ip address add {address}/24 dev eth0
         ip link set eth0 up
         ip link set {SECONDARY} up
         ip route add {SERVICES} via {ADDRESS}
         {}
         echo 1 > /proc/sys/net/ipv4/ip_forward",
        routes.concat()
    ))?;
    Ok(())
}

/// Folders of the node's own, the CNI plugins, and their configuration: Multus, which calls the bridge for the pod's first network.
fn prepare(inside: &Entrance, plan: &Plan<'_>) -> Result<()> {
    // kubelet mounts into the node what containers mount; these mounts must reach containerd.
    inside.script(
        "mount --make-rshared /
         for folder in /run /var/lib /var/log /opt; do mount -t tmpfs -o mode=755 tmpfs $folder; done
         mkdir -p /run/netns /run/lock /run/containerd /var/lib/cni /opt/cni/bin /etc/cni/net.d",
    )?;
    // kubelet sets these for the whole machine, unless they have its values. Here it finds them, and the machine keeps its own.
    inside.script(
        "for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
             kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
             file=/run/sysctl.$(echo ${pair%=*} | tr / .)
             echo ${pair#*=} > $file
             mount --bind $file /proc/sys/${pair%=*}
         done",
    )?;
    let mut plugins = vec![assets::path(Tool::Multus)?];
    plugins.extend(assets::PLUGINS.iter().map(|tool| assets::path(*tool)).collect::<Result<Vec<_>>>()?);
    for plugin in plugins {
        inside.run(&["ln", "-s", &plugin.display().to_string(), "/opt/cni/bin/"])?;
    }
    // One plugin and not a list: of a list, Multus keeps only the types of the plugins for DEL.
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "pods",
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "dataDir": "/run/cni-ipam",
            "ranges": [[{"subnet": pod_network(plan.index)}]], "routes": [{"dst": "0.0.0.0/0"}],
        },
    });
    let multus = json!({
        "cniVersion": "1.0.0", "name": "multus", "type": "multus",
        "kubeconfig": plan.state.join("nodes.kubeconfig"),
        "clusterNetwork": "/etc/cni/net.d/10-bridge.conf",
        "binDir": "/opt/cni/bin", "confDir": "/etc/cni/net.d",
        "logLevel": "error", "logFile": plan.state.join(plan.name).join("multus.log"),
    });
    write(inside, "/etc/cni/net.d/10-bridge.conf", &bridge.to_string())?;
    write(inside, "/etc/cni/net.d/00-multus.conf", &multus.to_string())
}

/// Writes a file of the node.
fn write(inside: &Entrance, path: &str, text: &str) -> Result<()> {
    inside.run(&["sh", "-euc", "printf %s \"$2\" > \"$1\"", "sh", path, text]).map(drop)
}

fn start_containerd(inside: &Entrance, plan: &Plan<'_>, folder: &Path) -> Result<Process> {
    let Runtime { containerd, runc, libraries, .. } = plan.runtime;
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    write(
        inside,
        "/run/containerd.toml",
        &format!(
            "version = 2
root = \"/var/lib/containerd\"
state = \"/run/containerd\"
oom_score = 0
[grpc]
address = \"{SOCKET}\"
[{cri}]
sandbox_image = \"{PAUSE}\"
# A negative value needs a capability that root may lack in a container or a virtual machine.
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = \"/opt/cni/bin\"
conf_dir = \"/etc/cni/net.d\"
[{cri}.containerd.runtimes.runc]
runtime_type = \"io.containerd.runc.v2\"
[{cri}.containerd.runtimes.runc.options]
BinaryName = \"{}\"
SystemdCgroup = false
",
            runc.display()
        ),
    )?;
    let mut command = inside.command(containerd);
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = containerd.parent().context("containerd has no folder")?;
    command.args(["--config", "/run/containerd.toml"]).env("PATH", format!("{}:{path}", beside.display()));
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let title = format!("containerd on {}", plan.name);
    let mut process = Process::launch(&title, command, &folder.join("containerd.log"))?;
    let ctr = plan.runtime.ctr.display().to_string();
    process.ready("it answers", READY, || inside.run(&[&ctr, "--address", SOCKET, "version"]))?;
    Ok(process)
}

fn import(inside: &Entrance, ctr: &Path, archive: &Path) -> Result<()> {
    ensure!(archive.is_file(), "there is no archive {}", archive.display());
    let (ctr, archive) = (ctr.display().to_string(), archive.display().to_string());
    inside.run(&[&ctr, "--address", SOCKET, "--namespace", "k8s.io", "images", "import", &archive]).map(drop)
}

fn start_kubelet(inside: &Entrance, plan: &Plan<'_>, folder: &Path) -> Result<Process> {
    let full = json!("0%");
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "failCgroupV1": false, "cgroupDriver": "cgroupfs", "cgroupRoot": plan.cgroup_root,
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "authentication": {
            "x509": {"clientCAFile": plan.state.join("pki").join(crate::pki::CA)},
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
        },
        "authorization": {"mode": "Webhook"},
        "failSwapOn": false,
        // There is no kube-proxy.
        "makeIPTablesUtilChains": false,
        "resolvConf": "", "clusterDomain": "cluster.local", "clusterDNS": ["10.96.0.10"],
        // The disks are tmpfs.
        "localStorageCapacityIsolation": false, "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": full, "nodefs.available": full, "nodefs.inodesFree": full, "imagefs.available": full,
        },
        // A killed agent is started again within a second.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "registryPullQPS": 0, "eventRecordQPS": 0, "syncFrequency": "5s", "maxPods": 250,
    });
    write(inside, "/run/kubelet.yaml", &config.to_string())?;
    let kubelet = assets::path(Tool::Kubelet)?;
    let mut command: Command = inside.command(kubelet);
    command.args([
        "--config=/run/kubelet.yaml",
        &format!("--kubeconfig={}", plan.state.join(format!("{}.kubeconfig", plan.name)).display()),
        &format!("--hostname-override={}", plan.name),
        &format!("--node-ip={}", address(plan.index)),
        "--root-dir=/var/lib/kubelet",
    ]);
    Process::launch(&format!("kubelet on {}", plan.name), command, &folder.join("kubelet.log"))
}
