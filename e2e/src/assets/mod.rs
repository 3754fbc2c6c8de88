//! The programs of others that the harness runs: etcd, kube-apiserver, kubectl, helm, cert-manager and the standard CNI plugins.
//!
//! Looked for in `KUBEBUILDER_ASSETS`, then `PATH`, then a cache, and else built with Go from modules whose exact versions and
//! checksums stand in `e2e/assets`. CNI plugins are looked for in `CNI_PATH` instead of the first two. A program that is found
//! must run and be new enough, otherwise the search goes on. Nothing is ever downloaded as a binary.
//!
//! With `NV_IPAM_E2E_TOOLS=pinned`, as in CI, only the cache counts: the tests then run against the pinned versions. Our own
//! CNI plugin must then be linked against musl, as it is shipped (`binaries`).

pub(crate) mod cache;
pub mod debian;
mod go;
mod version;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

pub use version::Version;

/// A program of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tool {
    /// The Kubernetes API server.
    KubeApiserver,
    /// The store behind the API server.
    Etcd,
    /// The controllers of Kubernetes.
    ControllerManager,
    /// Chooses nodes for pods.
    Scheduler,
    /// Runs the pods of a node.
    Kubelet,
    /// CNI: attaches further networks to a pod.
    Multus,
    /// The command line client.
    Kubectl,
    /// The package manager that installs our chart.
    Helm,
    /// cert-manager's controllers and CA injector in one process, over its library packages.
    CertManager,
    /// CNI: joins a pod to a Linux bridge by a veth pair.
    Bridge,
    /// CNI: gives a pod a macvlan interface over one of the node's.
    Macvlan,
    /// CNI: moves an interface of the node into the pod.
    HostDevice,
    /// CNI: sets the pod's `lo` up.
    Loopback,
    /// CNI: a simple IPAM plugin, to prove the harness itself.
    HostLocal,
    /// The reference client of CNI, which calls plugins as a runtime does.
    Cnitool,
}

/// All tools; kube-apiserver first, because its build compiles most of what the others need.
pub const ALL: [Tool; 15] = [
    Tool::KubeApiserver,
    Tool::ControllerManager,
    Tool::Scheduler,
    Tool::Kubelet,
    Tool::Multus,
    Tool::Kubectl,
    Tool::Etcd,
    Tool::Helm,
    Tool::CertManager,
    Tool::Bridge,
    Tool::Macvlan,
    Tool::HostDevice,
    Tool::Loopback,
    Tool::HostLocal,
    Tool::Cnitool,
];

/// The tools of a control plane.
pub const CONTROL_PLANE: [Tool; 3] = [Tool::KubeApiserver, Tool::Kubectl, Tool::Etcd];

/// What a whole cluster needs besides those.
pub const CLUSTER: [Tool; 4] = [Tool::ControllerManager, Tool::Scheduler, Tool::Kubelet, Tool::Multus];

/// The standard CNI plugins.
pub const PLUGINS: [Tool; 5] = [Tool::Bridge, Tool::Macvlan, Tool::HostDevice, Tool::Loopback, Tool::HostLocal];

impl Tool {
    /// File name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeApiserver => "kube-apiserver",
            Self::Etcd => "etcd",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Multus => "multus",
            Self::Kubectl => "kubectl",
            Self::Helm => "helm",
            Self::CertManager => "cert-manager",
            Self::Bridge => "bridge",
            Self::Macvlan => "macvlan",
            Self::HostDevice => "host-device",
            Self::Loopback => "loopback",
            Self::HostLocal => "host-local",
            Self::Cnitool => "cnitool",
        }
    }

    fn is_plugin(self) -> bool {
        PLUGINS.contains(&self)
    }
}

/// The path of a tool, which is built when it is nowhere to be found; that takes minutes and is told on stderr.
///
/// # Errors
/// When it has to be built and Go is missing or the build fails.
pub fn path(tool: Tool) -> Result<PathBuf> {
    match find(tool) {
        Some(path) => Ok(path),
        None => cache::build(&[tool])?.pop().ok_or_else(|| anyhow!("{} was not built", tool.name())),
    }
}

/// Makes sure that all of `tools` are there, so that a later [`path`] answers at once.
///
/// # Errors
/// When one has to be built and Go is missing or the build fails.
pub fn ensure(tools: &[Tool]) -> Result<()> {
    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| find(*tool).is_none()).collect();
    if !missing.is_empty() {
        cache::build(&missing)?;
    }
    Ok(())
}

/// Folders that hold the standard plugins, for `CNI_PATH` on nodes; usually just one.
///
/// # Errors
/// When they have to be built and Go is missing or the build fails.
pub fn plugin_folders() -> Result<Vec<PathBuf>> {
    ensure(&PLUGINS)?;
    let mut folders: Vec<PathBuf> = Vec::new();
    for tool in PLUGINS {
        let folder = path(tool)?.parent().map(Path::to_path_buf).unwrap_or_default();
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    Ok(folders)
}

/// The folder of cert-manager's CRDs, of the very version that [`Tool::CertManager`] is built from.
///
/// # Errors
/// When Go is missing or cannot fetch the module.
pub fn cert_manager_crds() -> Result<PathBuf> {
    Ok(go::sources(Tool::CertManager, "github.com/cert-manager/cert-manager")?.join("deploy/crds"))
}

/// Where a program lies in `PATH`, if it does.
pub fn on_path(program: &str) -> Option<PathBuf> {
    folders("PATH").into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// What a tool prints about its version, in one line.
///
/// # Errors
/// As [`path`].
pub fn printed_version(tool: Tool) -> Result<String> {
    let said = version::printed(tool, &path(tool)?);
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}

/// One line for each program that is there: name, what it says of its version, where it comes from, path.
pub fn origins() -> Vec<String> {
    let line = |tool: Tool| {
        let (path, origin) = find_with_origin(tool)?;
        let version = version::printed(tool, &path).lines().next().unwrap_or_default().trim().to_owned();
        Some(format!("{:<16} {version:<32} {origin:<20} {}", tool.name(), path.display()))
    };
    ALL.into_iter().filter_map(line).collect()
}

/// Whether `NV_IPAM_E2E_TOOLS=pinned` is set, as in CI.
pub(crate) fn are_pinned() -> bool {
    std::env::var_os("NV_IPAM_E2E_TOOLS").is_some_and(|value| value == "pinned")
}

fn find(tool: Tool) -> Option<PathBuf> {
    find_with_origin(tool).map(|(path, _)| path)
}

fn find_with_origin(tool: Tool) -> Option<(PathBuf, &'static str)> {
    let searched: &[&'static str] = match tool {
        _ if are_pinned() => &[],
        // These are looked for nowhere else. The programs of a whole cluster are all of one version.
        Tool::CertManager | Tool::Cnitool => &[],
        tool if CLUSTER.contains(&tool) => &[],
        tool if tool.is_plugin() => &["CNI_PATH"],
        _ => &["KUBEBUILDER_ASSETS", "PATH"],
    };
    let candidates =
        searched.iter().flat_map(|variable| folders(variable).into_iter().map(move |folder| (folder, *variable)));
    candidates
        .map(|(folder, variable)| (folder.join(tool.name()), variable))
        .find(|(path, _)| path.is_file() && version::is_usable(tool, path))
        .or_else(|| Some((cache::find(tool)?, "built from modules")))
}

fn folders(variable: &str) -> Vec<PathBuf> {
    std::env::var_os(variable).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_builds_most_is_built_first() {
        assert_eq!(ALL[0], Tool::KubeApiserver);
        assert!(CONTROL_PLANE.iter().chain(&CLUSTER).chain(&PLUGINS).all(|tool| ALL.contains(tool)));
    }
}
