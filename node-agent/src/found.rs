//! How far the journal had come before the first start that has not yet compared it with this node's report.
//!
//! Each start begins a new epoch of the journal. A start that ends before it has seen the report must leave behind from where
//! it came: after enough of them a store that was deleted or put back would pass for one that is ahead of the report. So it is
//! noted beside the journal before the epoch rises, and taken away once it was compared and what follows from it is on disk,
//! but before another report is written, for of that one it would be too early.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tracing::warn;

use crate::files;
use crate::store::Position;

/// Such a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub(crate) position: Position,
    file: Option<PathBuf>,
}

/// Of a store that is on no disk.
impl From<Position> for Found {
    fn from(position: Position) -> Self {
        Self { position, file: None }
    }
}

impl Found {
    /// The journal in `directory` has come to `position`; where an earlier start has noted that it came from before that, and
    /// could not compare, its note counts. A disk that takes no note is no reason not to start.
    pub fn note(directory: &Path, position: Position) -> Self {
        let path = directory.join("uncompared.json");
        let position = match fs::read(&path) {
            Ok(text) => position.min(serde_json::from_slice(&text).map_or_else(|_| Position::default(), from_pair)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("[{},{}]\n", position.epoch, position.sequence);
                if let Err(error) = files::replace(&path, text.as_bytes(), 0o600) {
                    warn!(path = %path.display(), %error, "cannot note how far the journal had come");
                }
                position
            }
            // It may be of any time.
            Err(error) => {
                warn!(path = %path.display(), %error, "cannot read how far the journal had come before");
                Position::default()
            }
        };
        Self { position, file: Some(path) }
    }

    /// The same where the position says nothing, so that the journal counts as older than any report.
    #[must_use]
    pub fn of_unknown_age(self) -> Self {
        Self { position: Position::default(), ..self }
    }

    /// It was compared, and the disk knows what follows.
    pub fn forget(&self) -> io::Result<()> {
        match self.file.as_deref().map(files::remove) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn from_pair((epoch, sequence): (u64, u64)) -> Position {
    Position { epoch, sequence }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64) -> Position {
        Position { epoch, sequence: 0 }
    }

    #[test]
    fn the_first_of_the_starts_that_could_not_compare_counts() {
        let directory = tempfile::tempdir().unwrap();
        for epoch in 3..6 {
            assert_eq!(Found::note(directory.path(), at(epoch)).position, at(3));
        }
        // A store that was put back together with a note of later.
        assert_eq!(Found::note(directory.path(), at(1)).position, at(1));
        let found = Found::note(directory.path(), at(7));
        found.forget().unwrap();
        found.forget().unwrap();
        assert_eq!(Found::note(directory.path(), at(8)).position, at(8));
    }

    #[test]
    fn a_note_that_cannot_be_read_may_be_of_any_time_and_one_that_cannot_be_written_stops_no_start() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("uncompared.json"), "[1").unwrap();
        assert_eq!(Found::note(directory.path(), at(8)).position, Position::default());
        let found = Found::note(&directory.path().join("absent"), at(8));
        assert_eq!(found.position, at(8));
        found.forget().unwrap();
    }
}
