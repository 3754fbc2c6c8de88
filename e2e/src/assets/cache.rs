//! The folder of built tools. Its name carries a hash of everything the build depends on, so a change of a version is another
//! folder; a tool appears in it by an atomic rename, so what is there is whole.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Tool, go};
use crate::lock::Lock;

/// The tool in the cache, if it has been built.
pub(super) fn find(tool: Tool) -> Option<PathBuf> {
    let path = folder(tool).ok()?.join(tool.name());
    path.is_file().then_some(path)
}

/// Builds what the cache lacks of `tools`, one builder at a time on this machine. Answers the paths in the order asked for.
pub(super) fn build(tools: &[Tool]) -> Result<Vec<PathBuf>> {
    let mut folders: Vec<PathBuf> = tools.iter().map(|tool| folder(*tool)).collect::<Result<_>>()?;
    folders.dedup();
    for folder in folders {
        build_into(&folder, tools)?;
    }
    tools.iter().map(|tool| Ok(folder(*tool)?.join(tool.name()))).collect()
}

fn build_into(folder: &Path, tools: &[Tool]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _lock = Lock::take(&folder.join(".lock"), "building the test tools")?;
    let here = |tool: Tool| self::folder(tool).is_ok_and(|of_it| of_it == folder);
    // Whoever held the lock before may have built what we need.
    let missing: Vec<Tool> =
        super::ALL.into_iter().filter(|tool| tools.contains(tool) && here(*tool) && find(*tool).is_none()).collect();
    go::build(&missing, folder)
}

/// `NV_IPAM_E2E_CACHE`, else the user's cache folder. It also holds the locks of this user's harnesses on this machine.
pub(crate) fn base() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("NV_IPAM_E2E_CACHE") {
        return Ok(folder.into());
    }
    if let Some(folder) = std::env::var_os("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(folder).join("nv-ipam-e2e"));
    }
    let home = std::env::home_dir()
        .context("no home directory for the cache of test tools: set NV_IPAM_E2E_CACHE to a folder")?;
    Ok(home.join(".cache/nv-ipam-e2e"))
}

fn folder(tool: Tool) -> Result<PathBuf> {
    Ok(base()?.join(format!("{:016x}", fnv1a(&go::inputs(tool)))))
}

/// FNV-1a, 64 bits: stable across releases, and nothing here is secret.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
