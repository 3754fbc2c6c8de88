//! Histories as files: they stay what they are when the generator changes what a seed means.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::action::Action;

/// A history that breaks a law.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// The law that it breaks.
    pub law: String,
    /// Why, in the product.
    pub cause: String,
    /// The decision of the redesign that removes the cause.
    pub removed_by: String,
    /// Where it was found: commit, seed and steps.
    pub found: String,
    /// What happens.
    pub history: Vec<Action>,
}

/// The folder of the known faults.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/known-faults"))
}

/// Reads one.
///
/// # Errors
/// The file cannot be read, or is none.
pub fn read(file: &Path) -> Result<Recorded> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no history", file.display()))
}

/// All known faults, by name.
///
/// # Errors
/// The folder or a file in it cannot be read.
pub fn all() -> Result<Vec<(String, Recorded)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder()).context("e2e/simulator/known-faults cannot be read")? {
        let file = entry?.path();
        if file.extension().is_some_and(|ending| ending == "json") {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.push((name, read(&file)?));
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(all)
}
