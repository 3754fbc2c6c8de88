//! Whether a program found on this machine will do: it must run, and be new enough. A distribution's kubectl, or a wrapper that
//! chooses one by cluster, is often neither.

use std::path::Path;
use std::process::Command;

use super::Tool;
use crate::child;

/// Major and minor number; patch levels do not matter to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(
    /// Major.
    pub u32,
    /// Minor.
    pub u32,
);

/// CEL's IP and CIDR libraries and ratcheting, which the CRDs rely on, are stable as of this release.
const KUBERNETES: Version = Version(1, 33);
/// What that release of Kubernetes is tested with.
const ETCD: Version = Version(3, 5);
/// The first release that applies charts on the server's side, where each field has its owner.
const HELM: Version = Version(4, 0);

impl Version {
    /// The first `N.N` in `text`, with or without `v` before it.
    pub fn find(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let mut parts = word.trim_start_matches('v').split('.');
            let major = parts.next()?.parse().ok()?;
            let minor = parts.next()?.parse().ok()?;
            Some(Self(major, minor))
        })
    }
}

/// Runs the program and judges what it says about itself.
pub(super) fn is_usable(tool: Tool, path: &Path) -> bool {
    let Some((succeeded, said)) = ask(tool, path) else { return false };
    match tool {
        Tool::Kubectl | Tool::KubeApiserver => succeeded && new_enough(&said, KUBERNETES),
        Tool::Etcd => succeeded && new_enough(&said, ETCD),
        Tool::Helm => succeeded && new_enough(&said, HELM),
        _ => said.contains("CNI protocol versions supported"),
    }
}

/// What the program prints about its version; empty where it does not run.
pub(super) fn printed(tool: Tool, path: &Path) -> String {
    match tool {
        // It has no flag for this, and would start.
        Tool::CertManager => String::new(),
        _ => ask(tool, path).map(|(_, said)| said).unwrap_or_default(),
    }
}

/// Whether the program ended with success, and what it printed.
fn ask(tool: Tool, path: &Path) -> Option<(bool, String)> {
    let arguments: &[&str] = match tool {
        Tool::Kubectl => &["version", "--client"],
        Tool::KubeApiserver | Tool::ControllerManager | Tool::Scheduler | Tool::Kubelet | Tool::Multus | Tool::Etcd => {
            &["--version"]
        }
        Tool::Helm => &["version", "--short"],
        _ => &[],
    };
    let output = child::output(Command::new(path).args(arguments).env_remove("CNI_COMMAND")).ok()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some((output.status.success(), said))
}

fn new_enough(said: &str, wanted: Version) -> bool {
    Version::find(said).is_some_and(|version| version >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_really_print() {
        assert_eq!(Version::find("Kubernetes v1.36.3"), Some(Version(1, 36)));
        assert_eq!(Version::find("etcd Version: 3.7.0\nGit SHA: Not provided"), Some(Version(3, 7)));
        assert_eq!(
            Version::find("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0"),
            Some(Version(1, 32))
        );
        assert_eq!(Version::find("no version here"), None);
    }

    #[test]
    fn an_older_release_is_refused_and_the_needed_one_is_not() {
        assert!(!new_enough("Client Version: v1.32.4-dispatcher", KUBERNETES));
        assert!(new_enough("Client Version: v1.33.0", KUBERNETES));
        assert!(!new_enough("etcd Version: 3.4.30", ETCD));
        assert!(!new_enough("v3.19.2+g8766e71", HELM));
        assert!(new_enough("v4.3.1+gabcdef0", HELM));
    }

    #[test]
    fn a_program_that_does_not_run_is_not_usable() {
        assert!(!is_usable(Tool::Kubectl, Path::new("/nonexistent/kubectl")));
        assert!(!is_usable(Tool::Kubectl, Path::new("/bin/true")), "it runs but tells no version");
        assert!(!is_usable(Tool::Bridge, Path::new("/bin/true")), "it speaks no CNI");
    }
}
