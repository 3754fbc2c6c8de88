//! A directory as the kubelet mounts a Secret: the files are links through `..data`, which is swapped in one rename.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::pki::Files;

pub(crate) struct Mounted {
    directory: TempDir,
    count: u32,
}

impl Mounted {
    /// A mount whose Secret is not there yet: the directory is empty.
    pub(crate) fn empty() -> Self {
        Self { directory: TempDir::new().unwrap(), count: 0 }
    }

    pub(crate) fn with(files: &Files) -> Self {
        let mut mounted = Self::empty();
        mounted.swap(files);
        mounted
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// What the kubelet does when the Secret has changed.
    pub(crate) fn swap(&mut self, files: &Files) {
        let old = format!("..{}", self.count);
        self.count += 1;
        let new = format!("..{}", self.count);
        let path = self.path();
        fs::create_dir(path.join(&new)).unwrap();
        fs::write(path.join(&new).join("tls.crt"), &files.certificates).unwrap();
        fs::write(path.join(&new).join("tls.key"), &files.key).unwrap();
        symlink(&new, path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
        if self.count == 1 {
            symlink("..data/tls.crt", path.join("tls.crt")).unwrap();
            symlink("..data/tls.key", path.join("tls.key")).unwrap();
        } else {
            fs::remove_dir_all(path.join(old)).unwrap();
        }
    }
}
