//! The cgroups below which kubelets make those of pods. They are this run's own, and go with it.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::progress::say;
use crate::{cgroups, child, warden};

/// The cgroups of a run. A helper process removes them after the run, also if the harness is killed.
pub(super) struct Cgroups {
    name: String,
    janitor: Child,
}

impl Cgroups {
    /// Makes cgroups of this name for these nodes.
    ///
    /// # Errors
    /// If this is not allowed here.
    pub(super) fn create(name: &str, nodes: &[String]) -> Result<Self> {
        let mut janitor: Command = warden::command()?;
        janitor.args(["sweep-cgroups", name]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let janitor = janitor.spawn().context("cannot start the janitor of the cgroups")?;
        let made = Self { name: name.to_owned(), janitor };
        nodes.iter().try_for_each(|node| cgroups::create(&[name, node]))?;
        Ok(made)
    }

    /// The `cgroupRoot` of a node's kubelet.
    pub(super) fn root(&self, node: &str) -> String {
        format!("/{}/{node}", self.name)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        if let Err(error) = child::ended(&mut self.janitor, child::AMPLE) {
            say(&format!("the janitor of the cgroups {}: {error}", self.name));
        }
    }
}
