//! Programs that are not built from Go modules: those in PATH, else those of Debian's packages, unpacked into the cache. With
//! `NV_IPAM_E2E_TOOLS=pinned` those in PATH do not count. Nothing is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{are_pinned, cache, on_path};
use crate::child;
use crate::lock::Lock;
use crate::progress::Step;

/// The packages, and the programs that the harness takes from each.
const PACKAGES: [(&str, &[&str]); 4] = [
    ("containerd", &["containerd", "containerd-shim-runc-v2", "ctr"]),
    ("runc", &["runc"]),
    ("busybox-static", &["busybox"]),
    // For runc.
    ("libseccomp2", &[]),
];

/// For images of tests.
const BUSYBOX: &str = "busybox";
/// Folders of programs in a package.
const FOLDERS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

/// The container runtime of a node.
pub struct Runtime {
    /// containerd; its shim lies beside it.
    pub containerd: PathBuf,
    /// containerd's client.
    pub ctr: PathBuf,
    /// Runs containers.
    pub runc: PathBuf,
    /// A static busybox, for images of tests.
    pub busybox: PathBuf,
    /// Folder of shared libraries for a runc that is not installed.
    pub libraries: Option<PathBuf>,
}

/// The runtime of this machine, or that of Debian's packages.
///
/// # Errors
/// If programs are missing and this is no Debian, or its packages cannot be had.
pub fn runtime() -> Result<Runtime> {
    let root = cache::base()?.join(format!("debian-{}", std::env::consts::ARCH));
    let _lock = Lock::take(&root.with_added_extension("lock"), "unpacking Debian packages")?;
    let programs = || PACKAGES.iter().flat_map(|(_, programs)| *programs).copied();
    // All of one source: a shim belongs to its containerd. A busybox of PATH may need libraries, which an image does not have.
    let is_installed = !are_pinned() && programs().filter(|name| *name != BUSYBOX).all(|name| on_path(name).is_some());
    let is_unpacked = || programs().all(|name| find_in(&root, name).is_some());
    if !is_unpacked() && on_path("apt-get").is_some() && on_path("dpkg").is_some() {
        unpack(&root)?;
    }
    let get = |name: &str| {
        let found = if is_installed && name != BUSYBOX {
            on_path(name)
        } else {
            find_in(&root, name).or_else(|| on_path(name))
        };
        found.with_context(|| format!("a cluster needs {name}: install it (containerd, ctr, runc, a static busybox)"))
    };
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    Ok(Runtime {
        containerd: get("containerd")?,
        ctr: get("ctr")?,
        runc: get("runc")?,
        busybox: get(BUSYBOX)?,
        libraries: (!is_installed).then_some(libraries),
    })
}

fn find_in(root: &Path, program: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| root.join(folder).join(program)).find(|path| path.is_file())
}

/// Fetches the packages with apt and unpacks them beside their place, which then appears whole.
fn unpack(root: &Path) -> Result<()> {
    let names: Vec<&str> = PACKAGES.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    let step = Step::start(&format!("apt-get download {names}"));
    let parent = root.parent().context("the cache has no folder")?;
    let scratch = tempfile::Builder::new().prefix(".debian.").tempdir_in(parent)?;
    let mut words = vec!["download", "-q"];
    words.extend(PACKAGES.iter().map(|(name, _)| *name));
    if run("apt-get", &words, scratch.path()).is_err() {
        // The lists of packages may be missing or old.
        run("apt-get", &["update", "-q"], scratch.path())?;
        run("apt-get", &words, scratch.path())?;
    }
    let unpacked = scratch.path().join("root");
    std::fs::create_dir(&unpacked)?;
    for entry in std::fs::read_dir(scratch.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let words = ["-x", &path.display().to_string(), &unpacked.display().to_string()];
            run("dpkg", &words, scratch.path())?;
        }
    }
    if root.exists() {
        std::fs::remove_dir_all(root)?;
    }
    std::fs::rename(&unpacked, root).with_context(|| format!("cannot make {}", root.display()))?;
    step.done();
    Ok(())
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let output = child::output(Command::new(program).args(arguments).current_dir(folder))
        .with_context(|| format!("cannot start {program}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), stderr.trim());
    Ok(())
}
