//! The few things that the journal wants of a file system, and the real one.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::StoreError;

const LOCK_FILE: &str = "LOCK";

/// One directory of which this process is the only owner.
pub trait Directory: Send {
    /// A file open for writing.
    type File: DiskFile;

    /// The whole file; `None` if there is none.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// A new empty file; one of this name is emptied.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Puts a file in the place of another, at once.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Takes a file away; one that is absent is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
    /// The path of a file in it, for people.
    fn path_of(&self, name: &str) -> String;
}

/// A file open for writing.
pub trait DiskFile: Send {
    /// Takes room on the disk for these bytes, so that writing them later cannot fail for want of it.
    fn reserve(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything written durable, the length of the file included.
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system, locked for this process.
#[derive(Debug)]
pub struct RealDirectory {
    path: PathBuf,
    handle: File,
    /// Holds the lock as long as it is open. The file is never replaced: a lock on a replaced file locks nobody out.
    _lock: File,
}

impl RealDirectory {
    /// Opens `path`, which is made with mode 0700 if absent, and locks it. Its parent must exist.
    pub fn lock(path: &Path) -> Result<Self, StoreError> {
        let failed = |doing, source| StoreError::Io { doing, place: path.display().to_string(), source };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("create", error)),
            _ => {}
        }
        // Who could write here could give any address to anybody, so an older, wider mode is narrowed.
        let mode = fs::metadata(path).map_err(|error| failed("look at", error))?.permissions().mode();
        if mode & 0o7777 != 0o700 {
            fs::set_permissions(path, Permissions::from_mode(0o700))
                .map_err(|error| failed("set the mode of", error))?;
        }
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.join(LOCK_FILE));
        // A disk that can only be read may have the file.
        let lock = lock.or_else(|error| match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => File::open(path.join(LOCK_FILE)).map_err(|_| error),
            _ => Err(error),
        });
        let lock = lock.map_err(|error| failed("open the lock of", error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Locked { place: path.display().to_string() }),
            Err(fs::TryLockError::Error(error)) => return Err(failed("lock", error)),
        }
        let handle = File::open(path).map_err(|error| failed("open", error))?;
        if let Some(parent) = path.parent() {
            File::open(parent)
                .and_then(|parent| parent.sync_all())
                .map_err(|error| failed("sync the parent of", error))?;
        }
        Ok(Self { path: path.to_owned(), handle, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Directory for RealDirectory {
    type File = File;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn path_of(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

impl DiskFile for File {
    fn reserve(&mut self, offset: u64, len: u64) -> io::Result<()> {
        match fallocate(&*self, FallocateFlags::empty(), offset, len) {
            // File systems without it take the room when zeros are written, which then fails in its place.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_private_and_has_one_owner_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store.d");
        let held = RealDirectory::lock(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let refused = RealDirectory::lock(&path).unwrap_err();
        assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
        drop(held);
        RealDirectory::lock(&path).unwrap();
    }

    #[test]
    fn files_are_private() {
        let parent = tempfile::tempdir().unwrap();
        let directory = RealDirectory::lock(&parent.path().join("store.d")).unwrap();
        directory.create("journal").unwrap();
        let mode = fs::metadata(directory.path().join("journal")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_absent_parent_is_named() {
        let error = RealDirectory::lock(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
