//! One lock per thing that must be built once on this machine, however many tests and demos run at a time.
//! A lock is a `flock` on a file that is never removed, so it ends with its holder, even by SIGKILL.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use crate::progress::say;

/// Held until dropped.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, waiting for another holder if there is one, and says so.
    ///
    /// # Errors
    /// When the file can be neither opened nor locked.
    pub fn take(path: &Path, what: &str) -> Result<Self> {
        if let Some(lock) = Self::try_take(path)? {
            return Ok(lock);
        }
        say(&format!("waiting for another process to finish {what} (lock {})", path.display()));
        let file = open(path)?;
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { _file: file })
    }

    /// Takes the lock if nobody holds it, else answers `None`.
    ///
    /// # Errors
    /// When the file cannot be opened, or locking fails for another reason than a holder.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open the lock file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_refused_and_free_again_once_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/lock");
        let held = Lock::try_take(&path).unwrap().expect("nobody holds it");
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
    }

    #[test]
    fn a_second_taker_waits_until_the_first_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, "a test").unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = std::thread::spawn({
            let path = path.clone();
            move || {
                let lock = Lock::take(&path, "a test").unwrap();
                sender.send(()).unwrap();
                drop(lock);
            }
        });
        assert!(receiver.try_recv().is_err(), "taken twice");
        drop(held);
        receiver.recv_timeout(std::time::Duration::from_secs(20)).expect("the second taker gets the lock");
        other.join().unwrap();
    }
}
