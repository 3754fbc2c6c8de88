//! A Secret mounted into a pod, as a kubelet does it: files are links through `..data`, which is swapped whole.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use serde_json::Value;

/// A mounted Secret; empty until it is told of one, as an optional volume.
pub struct SecretMount {
    folder: PathBuf,
    turn: u32,
}

impl SecretMount {
    /// An empty mount at `folder`, which is made.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, turn: 0 })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Shows what the Secret (as JSON) has now.
    ///
    /// # Errors
    /// When its data is no base64, or the files cannot be written.
    pub fn show(&mut self, secret: &Value) -> Result<()> {
        self.turn += 1;
        let version = format!("..turn{}", self.turn);
        fs::create_dir(self.folder.join(&version))?;
        let data = secret["data"].as_object().cloned().unwrap_or_default();
        for (key, value) in &data {
            let bytes: ByteString = serde_json::from_value(value.clone()).with_context(|| format!("data.{key}"))?;
            fs::write(self.folder.join(&version).join(key), bytes.0)?;
        }
        symlink(&version, self.folder.join("..data_tmp"))?;
        fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data"))?;
        for key in data.keys() {
            let link = self.folder.join(key);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(key), link)?;
            }
        }
        if self.turn > 1 {
            fs::remove_dir_all(self.folder.join(format!("..turn{}", self.turn - 1)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_new_version_is_seen_whole_and_the_old_one_goes() {
        let home = tempfile::tempdir().unwrap();
        let mut mount = SecretMount::new(home.path().join("certs")).unwrap();
        assert!(!mount.folder().join("tls.crt").exists());
        for (turn, text) in ["b25l", "dHdv"].iter().enumerate() {
            mount.show(&json!({"data": {"tls.crt": text, "tls.key": text}})).unwrap();
            let wanted = ["one", "two"][turn];
            for file in ["tls.crt", "tls.key"] {
                assert_eq!(fs::read_to_string(mount.folder().join(file)).unwrap(), wanted);
            }
        }
        let versions = fs::read_dir(mount.folder()).unwrap().flatten();
        assert_eq!(versions.filter(|entry| entry.file_type().unwrap().is_dir()).count(), 1);
    }
}
