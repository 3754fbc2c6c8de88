//! The shipped programs, and how each is built.

use std::path::PathBuf;

use anyhow::Result;

use crate::cargo;
use crate::platform::Platform;
use crate::{target_folder, workspace};

/// A shipped program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// `ipam-controller`, the operator.
    Operator,
    /// `ipam-node`, the node agent.
    Agent,
    /// `nv-ipam`, the CNI plugin.
    Plugin,
}

impl Program {
    /// Every program.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Agent, Self::Plugin];

    /// The name of the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "ipam-controller",
            Self::Agent => "ipam-node",
            Self::Plugin => "nv-ipam",
        }
    }

    /// The package that it is built from.
    pub const fn package(self) -> &'static str {
        match self {
            Self::Operator => "ipam-operator",
            Self::Agent => "ipam-node-agent",
            Self::Plugin => "ipam-cni",
        }
    }

    /// The profile of Cargo.toml.
    const fn profile(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Agent => "agent",
            Self::Plugin => "shim",
        }
    }

    /// The daemons are loaded at a random address, the plugin at a fixed one, as `.cargo/config.toml` says.
    const fn relocation(self) -> &'static str {
        match self {
            Self::Operator | Self::Agent => "pie",
            Self::Plugin => "static",
        }
    }

    /// Builds the program, by itself: with features that another package asks for it would be another program.
    ///
    /// # Errors
    /// If a tool or Rust's standard library for the platform is missing, or the build fails.
    pub fn build(self, platform: Platform) -> Result<PathBuf> {
        platform.install()?;
        let mut build = cargo::command();
        let package = format!("--package={}", self.package());
        build.args(["build", "--locked", &package, "--bins", "--profile", self.profile()]);
        build.args(["--target", &platform.target()]);
        // The place of the sources is not part of the program. Panics name files.
        let mut flags = vec!["-C".to_owned(), format!("relocation-model={}", self.relocation())];
        // The last place that matches counts.
        let places = [(Some(workspace()), "/src"), (Some(target_folder()), "/target"), (cargo::home(), "/cargo")];
        let known = places.into_iter().filter_map(|(place, name)| Some((place?, name)));
        flags.extend(known.map(|(place, name)| format!("--remap-path-prefix={}={name}", place.display())));
        build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        platform.set_tools(&mut build)?;
        cargo::build(&mut build, self.name())
    }
}
