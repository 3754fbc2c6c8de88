//! What an interrupted run over all mutants of a list has found, so that the next run on the same commit goes on behind it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The results of one list on one commit, by mutant.
#[derive(Debug)]
pub(super) struct Progress {
    /// `None` keeps nothing.
    file: Option<PathBuf>,
    results: BTreeMap<String, String>,
}

impl Progress {
    /// Keeps nothing: for runs of some mutants.
    pub(super) const fn none() -> Self {
        Self { file: None, results: BTreeMap::new() }
    }

    /// Reads what a run of `commit` has found in `folder` before.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(super) fn open(folder: &Path, list: &str, commit: &str) -> Result<Self> {
        let file = folder.join(format!("{list}-{commit}.played"));
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("{} cannot be read", file.display()))?,
        };
        // A line that was cut off by the end of the run has no line break.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once('\t'));
        let results = lines.map(|(name, result)| (name.to_owned(), result.to_owned())).collect();
        Ok(Self { file: Some(file), results })
    }

    /// What became of a mutant in an earlier run.
    pub(super) fn of(&self, mutant: &str) -> Option<&str> {
        self.results.get(mutant).map(String::as_str)
    }

    /// Keeps what became of a mutant.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn keep(&self, mutant: &str, result: &str) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let line = format!("{mutant}\t{}\n", result.replace('\n', " "));
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| format!("{} cannot be written", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let open = |commit: &str| Progress::open(folder.path(), "tests", commit).unwrap();
        open("a").keep("one", "test\nfails").unwrap();
        fs::write(folder.path().join("tests-b.played"), "two\tSURVIVES\nthree\tte").unwrap();
        assert_eq!((open("a").of("one"), open("a").of("two")), (Some("test fails"), None));
        assert_eq!((open("b").of("two"), open("b").of("three")), (Some("SURVIVES"), None));
        Progress::none().keep("four", "x").unwrap();
    }
}
