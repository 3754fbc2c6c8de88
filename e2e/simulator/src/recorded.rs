//! Histories as files: they stay the same when the generator makes other histories of the seeds.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::action::Action;

/// A history that breaks a law, or broke it on an earlier commit.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// The law, by its current name.
    pub law: String,
    /// The cause, in the product or in the simulator.
    pub cause: String,
    /// What ends the failure.
    #[serde(flatten)]
    pub mend: Mend,
    /// Where it was found: commit, seed and steps.
    pub found: String,
    /// The actions.
    pub history: Vec<Action>,
}

/// The name of the fault that a file of known faults shows: `NAME.json`, and `NAME.VARIANT.json` for another order of its events.
pub fn fault_of(file: &str) -> &str {
    file.split_once('.').map_or(file, |(name, _)| name)
}

/// What ends a failure. The file belongs in the folder of this field.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub enum Mend {
    /// A known fault: what will remove it, or `none` if it stays.
    RemovedBy(String),
    /// A regression history: the commit that fixed it.
    MendedBy(String),
}

/// Reads a recorded history.
///
/// # Errors
/// The file cannot be read, or is not a recorded history.
pub fn read(file: &Path) -> Result<Recorded> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no history", file.display()))
}

/// All known faults, by name.
///
/// # Errors
/// The folder or a file in it cannot be read, or a file does not name what will remove the fault.
pub fn known_faults() -> Result<Vec<(String, Recorded)>> {
    all("known-faults", |mend| matches!(mend, Mend::RemovedBy(_)))
}

/// All histories that broke a law once and must not break it again, by name.
///
/// # Errors
/// The folder or a file in it cannot be read, or a file does not name what fixed it.
pub fn regressions() -> Result<Vec<(String, Recorded)>> {
    all("regressions", |mend| matches!(mend, Mend::MendedBy(_)))
}

fn all(folder: &str, belongs: fn(&Mend) -> bool) -> Result<Vec<(String, Recorded)>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("e2e/simulator/{folder} cannot be read"))? {
        let file = entry?.path();
        if file.extension().is_some_and(|ending| ending == "json") {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let recorded = read(&file)?;
            anyhow::ensure!(belongs(&recorded.mend), "{name} does not belong in {folder}: {:?}", recorded.mend);
            all.push((name, recorded));
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(all)
}
