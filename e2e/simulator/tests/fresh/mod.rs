//! Seeds that no earlier commit has played.

use std::process::Command;

/// Seeds below this one are those of the fixed ranges.
const FIXED: u64 = 10_000;

/// Where the seeds of this commit begin: far from those of the fixed range.
pub(crate) fn fresh_start() -> u64 {
    if let Some(text) = std::env::var("NV_IPAM_SEED").ok().filter(|text| !text.is_empty()) {
        return text.parse().expect("NV_IPAM_SEED must be a number");
    }
    let folder = env!("CARGO_MANIFEST_DIR");
    let output =
        Command::new("git").args(["rev-parse", "HEAD"]).current_dir(folder).output().expect("git must be there");
    let commit = String::from_utf8(output.stdout).unwrap();
    let digits = commit.get(..12).expect("HEAD must name a commit, or NV_IPAM_SEED a seed");
    FIXED + u64::from_str_radix(digits, 16).unwrap()
}
