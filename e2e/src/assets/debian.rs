//! Programs that are not built from Go modules: those in PATH, else those of Debian's packages, unpacked into the cache. Nothing is
//! installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{cache, on_path};
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
    /// Folder of shared libraries that runc may need.
    pub libraries: PathBuf,
}

/// The runtime of this machine, or that of Debian's packages.
///
/// # Errors
/// If programs are missing and this is no Debian, or its packages cannot be had.
pub fn runtime() -> Result<Runtime> {
    let root = cache::base()?.join(format!("debian-{}", std::env::consts::ARCH));
    let _lock = Lock::take(&root.with_added_extension("lock"), "unpacking Debian packages")?;
    let missing = |program: &str| find(program, &root).is_none();
    if PACKAGES.iter().flat_map(|(_, programs)| *programs).any(|program| missing(program)) {
        unpack(&root)?;
    }
    let get = |program: &str| find(program, &root).with_context(|| format!("there is no {program}: install it"));
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    Ok(Runtime {
        containerd: get("containerd")?,
        ctr: get("ctr")?,
        runc: get("runc")?,
        busybox: find_in(&root, "busybox").or_else(|| on_path("busybox")).context("there is no busybox")?,
        libraries,
    })
}

fn find(program: &str, root: &Path) -> Option<PathBuf> {
    // The busybox of PATH may need libraries, which an image does not have.
    if program == "busybox" {
        return find_in(root, program);
    }
    on_path(program).or_else(|| find_in(root, program))
}

fn find_in(root: &Path, program: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| root.join(folder).join(program)).find(|path| path.is_file())
}

/// Fetches the packages with apt and unpacks them beside their place, which then appears whole.
fn unpack(root: &Path) -> Result<()> {
    let names: Vec<&str> = PACKAGES.iter().map(|(name, _)| *name).collect();
    let names = names.join(", ");
    if on_path("apt-get").is_none() || on_path("dpkg").is_none() {
        bail!("a cluster needs containerd, ctr, runc and a static busybox: install what Debian has in {names}");
    }
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
