//! The seeds of a commit, which no earlier commit has played.

use std::path::Path;
use std::process::Command;

/// Seeds below this one are those of the fixed ranges.
const FIXED: u64 = 10_000;

/// Where the seeds of the commit in `folder` begin, or those of `NV_IPAM_SEED`, if it is not empty.
///
/// # Errors
/// `NV_IPAM_SEED` is not a number, or git cannot tell the commit.
pub fn seed(folder: &Path) -> Result<u64, String> {
    let set = std::env::var("NV_IPAM_SEED").unwrap_or_default();
    of(&set, || {
        let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(folder).output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .map_err(|error| format!("git: {error}"))
    })
}

/// The seed that is `set`; the one of the commit if it is empty, as a workflow leaves a variable that it does not set.
fn of(set: &str, commit: impl FnOnce() -> Result<String, String>) -> Result<u64, String> {
    if !set.is_empty() {
        return set.parse().map_err(|_| format!("NV_IPAM_SEED={set:?} must be a number"));
    }
    let commit = commit()?;
    let digits = commit.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits.map(|seed| FIXED + seed).ok_or_else(|| format!("HEAD is {commit:?}; set NV_IPAM_SEED to a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_leaves_the_seed_to_the_commit() {
        let commit = || Ok("0000000000010000000000000000000000000000\n".to_owned());
        assert_eq!([of("", commit), of("7", commit)], [Ok(FIXED + 1), Ok(7)]);
        assert_eq!(of("x", commit), Err("NV_IPAM_SEED=\"x\" must be a number".to_owned()));
        assert_eq!(of("", || Ok(String::new())), Err("HEAD is \"\"; set NV_IPAM_SEED to a number".to_owned()));
    }
}
