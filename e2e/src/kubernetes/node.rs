//! A node: kubelet and containerd in namespaces of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::images::PAUSE;
use super::servers::{ADDRESS, SERVICES};
use crate::assets::debian::Runtime;
use crate::assets::{self, Tool};
use crate::cgroups;
use crate::eventually::eventually_blocking;
use crate::netns::Entrance;
use crate::netns::entrance::Holder;
use crate::netns::sandbox::UNSHARE;
use crate::process::Process;
use crate::warden;

const SOCKET: &str = "/run/containerd/containerd.sock";
const READY: Duration = Duration::from_mins(1);
/// The interface of a node on the segment that all nodes share besides their network, for secondary networks.
pub const SECONDARY: &str = "eth1";

/// Folder on the node's disk with its `system-uuid`, as from firmware, and its `boot-id`, as from the kernel.
pub const IDENTITY: &str = "/opt/identity";

/// Folders that a node has for itself.
const DISKS: [&str; 3] = ["/var/lib", "/var/log", "/opt"];

/// What a node is made from.
pub(super) struct Plan {
    pub(super) name: String,
    /// From 1; tells the nodes of a cluster apart.
    pub(super) index: usize,
    /// How many nodes there are.
    pub(super) count: usize,
    /// Folder of the cluster.
    pub(super) state: PathBuf,
    pub(super) runtime: Arc<Runtime>,
    pub(super) cgroup_root: String,
}

impl Plan {
    /// Where the node's own files are on the machine.
    fn folder(&self) -> PathBuf {
        self.state.join(&self.name)
    }
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
    plan: Plan,
    /// Archives of the images that the runtime has.
    images: Vec<PathBuf>,
    kubelet: Process,
    containerd: Process,
    // Last: processes inside are ended one by one before the namespaces go.
    holder: Holder,
}

impl Node {
    /// Makes the namespaces, joins them to the networks of `cluster`, and starts containerd with these images, and kubelet.
    pub(super) fn start(cluster: &Entrance, plan: Plan, images: &[PathBuf]) -> Result<Self> {
        let originals = plan.folder().join("originals");
        std::fs::create_dir_all(&originals).with_context(|| format!("cannot create {}", originals.display()))?;
        let mut command = cluster.command("unshare");
        command.args(UNSHARE).args(warden::words()?).arg("init").arg(&originals).arg("/etc:cni");
        let holder = Holder::start(command, 2, cluster.is_rootless())?;
        let inside = holder.entrance();
        wire(cluster, inside, &plan)?;
        disk(inside, &plan)?;
        boot(inside)?;
        let containerd = start_containerd(inside, &plan)?;
        for image in images {
            import(inside, &plan.runtime.ctr, image)?;
        }
        let kubelet = start_kubelet(inside, &plan)?;
        Ok(Self { plan, images: images.to_vec(), kubelet, containerd, holder })
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.plan.name
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
    pub fn import(&mut self, archive: &Path) -> Result<()> {
        import(self.holder.entrance(), &self.plan.runtime.ctr, archive)?;
        self.images.push(archive.to_owned());
        Ok(())
    }

    /// Kills kubelet, and starts it again. Pods run on.
    ///
    /// # Errors
    /// If it does not end or does not start.
    pub fn restart_kubelet(&mut self) -> Result<()> {
        self.kubelet.kill()?;
        self.kubelet = start_kubelet(self.holder.entrance(), &self.plan)?;
        Ok(())
    }

    /// Kills containerd, and starts it again. Pods run on.
    ///
    /// # Errors
    /// If it does not end, or does not answer afterwards.
    pub fn restart_containerd(&mut self) -> Result<()> {
        self.containerd.kill()?;
        self.containerd = start_containerd(self.holder.entrance(), &self.plan)?;
        Ok(())
    }

    /// Loses power: all processes, mounts, cgroups and interfaces of pods are gone. The disk stays.
    ///
    /// # Errors
    /// If a step fails.
    pub fn switch_off(&mut self) -> Result<()> {
        self.kubelet.kill()?;
        self.containerd.kill()?;
        power_off(self.holder.entrance())?;
        let root = &self.plan.cgroup_root;
        eventually_blocking("the cgroups of the pods are removed", READY, || cgroups::clear(root))
    }

    /// Loses power and starts again. The boot has another ID. `meanwhile` is a script that runs on the node before anything starts.
    ///
    /// # Errors
    /// If a step fails.
    pub fn reboot(&mut self, meanwhile: &str) -> Result<()> {
        self.switch_off()?;
        let inside = self.holder.entrance();
        boot(inside)?;
        inside.script(meanwhile)?;
        self.containerd = start_containerd(inside, &self.plan)?;
        self.kubelet = start_kubelet(inside, &self.plan)?;
        Ok(())
    }

    /// Another machine starts under the name of this one, which is [switched off](Self::switch_off): with disks as they are delivered,
    /// and a UUID of its own.
    ///
    /// # Errors
    /// If a step fails.
    pub fn replace(&mut self) -> Result<()> {
        let inside = self.holder.entrance();
        inside.script(&format!("umount -l {}; rm -rf /etc/cni/net.d/*", DISKS.join(" ")))?;
        disk(inside, &self.plan)?;
        boot(inside)?;
        self.containerd = start_containerd(inside, &self.plan)?;
        for image in &self.images {
            import(inside, &self.plan.runtime.ctr, image)?;
        }
        self.kubelet = start_kubelet(inside, &self.plan)?;
        Ok(())
    }
}

/// Two cables: `eth0` to the network of the nodes, `eth1` to a segment without addresses.
fn wire(cluster: &Entrance, inside: &Entrance, plan: &Plan) -> Result<()> {
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

/// Creates what a node loses when it is switched off: `/run`, and the ID of the boot, for which a random UUID serves.
fn boot(inside: &Entrance) -> Result<()> {
    // kubelet mounts into the node what containers mount; these mounts must reach containerd.
    inside.script(&format!(
        "mount --make-rshared /
         mount -t tmpfs -o mode=755 tmpfs /run
         mkdir -p /run/netns /run/lock /run/containerd
         cat /proc/sys/kernel/random/uuid > {IDENTITY}/boot-id
         mount --bind {IDENTITY}/boot-id /proc/sys/kernel/random/boot_id"
    ))?;
    // kubelet sets these for the whole machine, unless they have its values. Here it finds them, and the machine keeps its own.
    inside.script(
        "for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
             kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
             file=/run/sysctl.$(echo ${pair%=*} | tr / .)
             echo ${pair#*=} > $file
             mount --bind $file /proc/sys/${pair%=*}
         done",
    )?;
    Ok(())
}

/// Ends all processes but pid 1, and takes away what `boot` made and what kubelet, containerd and plugins made since.
fn power_off(inside: &Entrance) -> Result<()> {
    // A signal to -1 reaches all but pid 1 and the sender.
    inside.script(
        "kill -9 -1 || true
         places() {
             while read -r _ place _; do
                 case $place in
                     /run|/run/*|/var/lib/kubelet/*|/var/lib/containerd/*|/proc/sys/*) echo $place ;;
                 esac
             done < /proc/self/mounts | sort -r
         }
         # One umount can take away copies of a mount, which are in the list too.
         places | while read -r place; do umount -l $place 2> /dev/null || true; done
         left=$(places)
         [ -z \"$left\" ] || { echo \"still mounted: $left\" >&2; exit 1; }
         ip link delete cni0 2> /dev/null || true",
    )?;
    Ok(())
}

/// The disk of the node: folders of its own, the CNI plugins, and their configuration: Multus, which calls the bridge for the pod's
/// first network.
fn disk(inside: &Entrance, plan: &Plan) -> Result<()> {
    inside.script(&format!(
        "for folder in {}; do mount -t tmpfs -o mode=755 tmpfs $folder; done
         mkdir -p /var/lib/cni /opt/cni/bin /etc/cni/net.d {IDENTITY}
         cat /proc/sys/kernel/random/uuid > {IDENTITY}/system-uuid",
        DISKS.join(" ")
    ))?;
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
        "logLevel": "error", "logFile": plan.folder().join("multus.log"),
    });
    write(inside, "/etc/cni/net.d/10-bridge.conf", &bridge.to_string())?;
    write(inside, "/etc/cni/net.d/00-multus.conf", &multus.to_string())
}

/// Writes a file of the node.
fn write(inside: &Entrance, path: &str, text: &str) -> Result<()> {
    inside.run(&["sh", "-euc", "printf %s \"$2\" > \"$1\"", "sh", path, text]).map(drop)
}

fn start_containerd(inside: &Entrance, plan: &Plan) -> Result<Process> {
    let Runtime { containerd, runc, libraries, .. } = &*plan.runtime;
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
    let mut process = Process::launch(&title, command, &plan.folder().join("containerd.log"))?;
    let ctr = plan.runtime.ctr.display().to_string();
    process.ready("it answers", READY, || inside.run(&[&ctr, "--address", SOCKET, "version"]))?;
    Ok(process)
}

fn import(inside: &Entrance, ctr: &Path, archive: &Path) -> Result<()> {
    ensure!(archive.is_file(), "there is no archive {}", archive.display());
    let (ctr, archive) = (ctr.display().to_string(), archive.display().to_string());
    inside.run(&[&ctr, "--address", SOCKET, "--namespace", "k8s.io", "images", "import", &archive]).map(drop)
}

fn start_kubelet(inside: &Entrance, plan: &Plan) -> Result<Process> {
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
    Process::launch(&format!("kubelet on {}", plan.name), command, &plan.folder().join("kubelet.log"))
}
