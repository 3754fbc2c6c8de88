//! A pod: a named network namespace on a node, and what a runtime does with it.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cni::{CniError, exchange};
use super::entrance::Entrance;
use crate::warden;

/// A pod on a node. It goes with [`delete`](Self::delete), or with its node.
#[derive(Clone, Debug)]
pub struct Pod {
    node: Entrance,
    cni_path: String,
    namespace: String,
    name: String,
    uid: String,
    arguments: String,
}

impl Pod {
    pub(super) fn create(node: Entrance, cni_path: &str, namespace: &str, name: &str, uid: &str) -> Result<Self> {
        node.run(&["ip", "netns", "add", name])?;
        node.run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        Ok(Self {
            node,
            cni_path: cni_path.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            arguments: String::new(),
        })
    }

    /// The pod's name, which is its network namespace's name too.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The container id that plugins get: a function of the pod's uid, as there is one sandbox per pod here.
    pub fn container_id(&self) -> String {
        format!("c-{}", self.uid)
    }

    /// The same pod, for which the runtime adds `KEY=VALUE` pairs, separated by semicolons, to `CNI_ARGS`.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &str) -> Self {
        arguments.clone_into(&mut self.arguments);
        self
    }

    /// ADD of a network (a plugin configuration, not a list); answers the CNI result.
    ///
    /// # Errors
    /// What the plugin answered instead.
    pub fn add(&self, ifname: &str, network: &Value) -> Result<Value, CniError> {
        self.cni("ADD", ifname, network)
    }

    /// DEL of a network.
    ///
    /// # Errors
    /// What the plugin answered instead.
    pub fn del(&self, ifname: &str, network: &Value) -> Result<(), CniError> {
        self.cni("DEL", ifname, network).map(|_| ())
    }

    /// CHECK of a network against the result of its ADD.
    ///
    /// # Errors
    /// What the plugin answered instead.
    pub fn check(&self, ifname: &str, network: &Value, result: &Value) -> Result<(), CniError> {
        let mut network = network.clone();
        network["prevResult"] = result.clone();
        self.cni("CHECK", ifname, &network).map(|_| ())
    }

    /// Any CNI verb: runs the plugin that `network.type` names, found in `CNI_PATH` as a runtime finds it, on the node.
    ///
    /// # Errors
    /// What the plugin answered instead of a result.
    pub fn cni(&self, verb: &str, ifname: &str, network: &Value) -> Result<Value, CniError> {
        let plugin = network["type"].as_str().unwrap_or_default();
        exchange(plugin, verb, self.plugin(plugin, ifname)?, network)
    }

    fn plugin(&self, plugin: &str, ifname: &str) -> Result<Command, CniError> {
        let path = self
            .cni_path
            .split(':')
            .map(|folder| format!("{folder}/{plugin}"))
            .find(|path| self.node.run(&["test", "-x", path]).is_ok())
            .ok_or_else(|| CniError::NotRun(format!("no plugin {plugin:?} in CNI_PATH {}", self.cni_path)))?;
        let mut arguments = vec![
            "IgnoreUnknown=1".to_owned(),
            format!("K8S_POD_NAMESPACE={}", self.namespace),
            format!("K8S_POD_NAME={}", self.name),
            format!("K8S_POD_INFRA_CONTAINER_ID={}", self.container_id()),
            format!("K8S_POD_UID={}", self.uid),
        ];
        if !self.arguments.is_empty() {
            arguments.push(self.arguments.clone());
        }
        let mut command = self.node.command(path);
        command
            .env("CNI_CONTAINERID", self.container_id())
            .env("CNI_NETNS", format!("/run/netns/{}", self.name))
            .env("CNI_IFNAME", ifname)
            .env("CNI_ARGS", arguments.join(";"))
            .env("CNI_PATH", &self.cni_path);
        Ok(command)
    }

    /// Addresses with prefix length that `ip address` shows on an interface, link-local ones left out.
    ///
    /// # Errors
    /// When the interface is not there.
    pub fn addresses(&self, ifname: &str) -> Result<Vec<String>> {
        let shown = self.node.run(&["ip", "-n", &self.name, "-json", "address", "show", "dev", ifname])?;
        let links: Value = serde_json::from_str(&shown).with_context(|| format!("ip said {shown:?}"))?;
        let all = links[0]["addr_info"].as_array().cloned().unwrap_or_default();
        let global = all.iter().filter(|entry| entry["scope"] != "link");
        Ok(global
            .map(|entry| format!("{}/{}", entry["local"].as_str().unwrap_or_default(), entry["prefixlen"]))
            .collect())
    }

    /// Routes of one family as `ip route` prints them, a line each.
    ///
    /// # Errors
    /// When the namespace has gone.
    pub fn routes(&self, ipv6: bool) -> Result<Vec<String>> {
        let family = if ipv6 { "-6" } else { "-4" };
        let shown = self.node.run(&["ip", family, "-n", &self.name, "route", "show"])?;
        Ok(shown.lines().map(|line| line.trim().to_owned()).collect())
    }

    /// Whether `address` answers an ICMP echo from inside the pod; asked again until `within` has passed.
    ///
    /// # Errors
    /// When nothing answers, with what the last attempt met.
    pub fn ping(&self, address: IpAddr, within: Duration) -> Result<()> {
        let words = warden::words()?;
        let mut command = self.node.command("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").args(words);
        command.args(["ping", &address.to_string(), &within.as_millis().to_string()]);
        let output = crate::child::output(&mut command).context("nsenter")?;
        if !output.status.success() {
            bail!("{} cannot reach {address}: {}", self.name, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Removes the network namespace. The runtime has called DEL before.
    ///
    /// # Errors
    /// When it is not there.
    pub fn delete(self) -> Result<()> {
        self.node.run(&["ip", "netns", "delete", &self.name]).map(|_| ())
    }

    /// Whether a file exists on the pod's node.
    pub fn node_has(&self, path: &Path) -> bool {
        self.node.run(&["test", "-e", &path.display().to_string()]).is_ok()
    }
}
