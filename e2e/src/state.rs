//! A directory for one run: logs, keys, sockets, etcd's data. It goes when the run ends: by drop, or, when the harness is killed,
//! by a janitor process that waits for its pipe to close. `NV_IPAM_E2E_KEEP_STATE=1` keeps it for a look at the logs.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::progress::say;
use crate::{child, warden};

/// Longest path of a Unix socket is 107 bytes; this leaves room for the names inside the directory.
const LONGEST: usize = 70;

/// The directory of one run. Its path is short enough for Unix sockets inside.
pub struct StateDir {
    path: PathBuf,
    janitor: Child,
}

impl StateDir {
    /// A fresh directory below the system's temporary directory, readable by this user only.
    ///
    /// # Errors
    /// When the directory cannot be made, or `TMPDIR` is too deep for Unix sockets.
    pub fn create() -> Result<Self> {
        let path = tempfile::Builder::new()
            .prefix("nv-ipam-e2e.")
            .tempdir()
            .context("cannot create a temporary directory")?
            .keep();
        let length = path.as_os_str().len();
        ensure!(
            length <= LONGEST,
            "TMPDIR is too deep for Unix sockets: {} has {length} bytes, at most {LONGEST}",
            path.display()
        );
        let mut janitor = Command::new("true");
        if keep() {
            say(&format!("state and logs stay in {}", path.display()));
        } else {
            janitor = warden::command()?;
            janitor.arg("sweep").arg(&path);
        }
        // Ctrl-C in a terminal reaches the whole group of the harness; the janitor has to stay for the sweeping.
        janitor.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let janitor = janitor.spawn().context("cannot start the janitor")?;
        Ok(Self { path, janitor })
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder of that name inside.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        if let Err(error) = child::ended(&mut self.janitor, child::AMPLE) {
            say(&format!("the janitor of {}: {error}", self.path.display()));
        }
    }
}

fn keep() -> bool {
    std::env::var_os("NV_IPAM_E2E_KEEP_STATE").is_some_and(|value| !value.is_empty() && value != "0")
}
