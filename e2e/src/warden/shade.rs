//! Gives a node its own version of some system directories: a directory is replaced by a tmpfs in which everything that was
//! there appears as a symbolic link, except the named entries, which start empty. So `/var/lib/cni` or `/etc/cni` are the node's
//! own although the host may not even have them, and nothing is written outside the mount namespace.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{MountFlags, mount, mount_bind_recursive};

/// A directory and the entries in it which become the node's own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shade {
    directory: PathBuf,
    own: Vec<String>,
}

/// Reads words of the form `DIR:NAME,NAME`.
pub(super) fn parse(words: &[&str]) -> Result<Vec<Shade>> {
    let mut shades = Vec::new();
    for word in words {
        let (directory, own) = word.split_once(':').with_context(|| format!("{word}: expected DIR:NAME,NAME"))?;
        ensure!(directory.starts_with('/'), "{word}: the directory must be absolute");
        shades.push(Shade {
            directory: directory.into(),
            own: own.split(',').filter(|own| !own.is_empty()).map(str::to_owned).collect(),
        });
    }
    Ok(shades)
}

/// Mounts the shades; `originals` is an empty directory under which what they hide stays reachable for the links.
/// Refuses to work where mounts would propagate out of this namespace.
pub(super) fn apply(shades: &[Shade], originals: &Path) -> Result<()> {
    ensure_private()?;
    // A tmpfs first: from outside this namespace the directory then stays empty, so that removing it can never reach an original.
    tmpfs(originals)?;
    for shade in shades {
        apply_one(shade, originals)?;
    }
    Ok(())
}

fn apply_one(shade: &Shade, originals: &Path) -> Result<()> {
    let directory = &shade.directory;
    let original = originals.join(directory.strip_prefix("/")?);
    std::fs::create_dir_all(&original).with_context(|| format!("cannot create {}", original.display()))?;
    mount_bind_recursive(directory, &original).with_context(|| format!("cannot bind {}", directory.display()))?;
    tmpfs(directory)?;
    for entry in std::fs::read_dir(&original).with_context(|| format!("cannot read {}", original.display()))? {
        let name = entry?.file_name();
        if !shade.own.iter().any(|own| name == own.as_str()) {
            symlink(original.join(&name), directory.join(&name))
                .with_context(|| format!("cannot link {}", name.display()))?;
        }
    }
    for own in &shade.own {
        std::fs::create_dir_all(directory.join(own)).with_context(|| format!("cannot create {own}"))?;
    }
    Ok(())
}

fn tmpfs(target: &Path) -> Result<()> {
    mount("tmpfs", target, "tmpfs", MountFlags::empty(), None)
        .with_context(|| format!("cannot mount a tmpfs on {}", target.display()))
}

/// A shared mount would carry our tmpfs into the host. `unshare --propagation private` must have been here first.
fn ensure_private() -> Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read the mount table")?;
    let shared = table.lines().find(|line| optional_fields(line).any(|field| field.starts_with("shared:")));
    match shared {
        Some(line) => bail!("mounts of this namespace would reach the host: {line}"),
        None => Ok(()),
    }
}

/// Fields 7 up to the lone dash (proc(5), mountinfo).
fn optional_fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').skip(6).take_while(|field| *field != "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_shades() {
        let shades = parse(&["/var/lib:cni,kubelet", "/var/log:"]).unwrap();
        assert_eq!(shades[0], Shade { directory: "/var/lib".into(), own: vec!["cni".into(), "kubelet".into()] });
        assert_eq!(shades[1], Shade { directory: "/var/log".into(), own: Vec::new() });
        assert_eq!(shades.len(), 2);
        assert!(parse(&["relative:x"]).is_err());
        assert!(parse(&["/etc"]).is_err());
    }

    #[test]
    fn only_optional_fields_tell_about_propagation() {
        let shared = "36 35 98:0 /shared:1 /mnt rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue";
        let private = "36 35 98:0 /shared:1 /mnt rw,noatime - ext3 shared:9 rw";
        assert!(optional_fields(shared).any(|field| field.starts_with("shared:")));
        assert!(!optional_fields(private).any(|field| field.starts_with("shared:")));
    }
}
