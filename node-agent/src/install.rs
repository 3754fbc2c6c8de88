//! Puts the CNI plugin and its configuration where the runtime finds them.
//!
//! Both are replaced whole, and only when they differ, so that a runtime that starts the plugin at that very moment gets
//! the old one or the new one. The agent does this once its socket takes calls: a plugin that is new on the node then
//! never meets an agent that is not there yet.

use std::path::Path;
use std::{fs, io};

use serde::Serialize;
use tracing::info;

use crate::files;
use crate::flags::CniConfig;

const BINARY: &str = "nv-ipam";
const CONF: &str = "nv-ipam.conf";

/// What could not be installed.
#[derive(Debug, thiserror::Error)]
#[error("cannot install {what} as {path}: {source}")]
pub struct InstallError {
    what: &'static str,
    path: String,
    source: io::Error,
}

/// The conf file's keys (behaviour.md §6).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Conf<'a> {
    daemon_socket: String,
    daemon_call_timeout_seconds: u32,
    log_file: &'a str,
    log_level: &'a str,
    force_pool_name: bool,
}

/// Installs what `config` says.
pub fn install(config: &CniConfig) -> Result<(), InstallError> {
    if let Some((file, directory)) = &config.binary {
        let failed = |source| InstallError { what: "the CNI plugin", path: path_in(directory, BINARY), source };
        let bytes = fs::read(file).map_err(failed)?;
        put(&directory.join(BINARY), &bytes, 0o755).map_err(failed)?;
    }
    if let Some(directory) = &config.conf_dir {
        let failed =
            |source| InstallError { what: "the CNI plugin's configuration", path: path_in(directory, CONF), source };
        let text = conf(config).map_err(failed)?;
        put(&directory.join(CONF), &text, 0o644).map_err(failed)?;
    }
    Ok(())
}

fn path_in(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

fn conf(config: &CniConfig) -> io::Result<Vec<u8>> {
    let conf = Conf {
        daemon_socket: config.socket.to_string(),
        daemon_call_timeout_seconds: config.call_timeout_seconds,
        log_file: &config.log_file,
        log_level: &config.log_level,
        force_pool_name: config.force_pool_name,
    };
    let mut text = serde_json::to_vec_pretty(&conf).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text)
}

fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let same_mode =
        fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o777 == mode);
    if same_mode && fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    files::replace(path, bytes, mode)?;
    info!(path = %path.display(), "installed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn config(directory: &Path) -> CniConfig {
        CniConfig {
            binary: Some((directory.join("source"), directory.to_owned())),
            conf_dir: Some(directory.to_owned()),
            socket: "unix:///run/\"quoted\".sock".parse().unwrap(),
            call_timeout_seconds: 7,
            log_file: "/var/log/x.log".into(),
            log_level: "debug".into(),
            force_pool_name: true,
        }
    }

    #[test]
    fn binary_and_conf_are_installed_with_their_modes_and_keys() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("source"), "binary").unwrap();
        install(&config(directory.path())).unwrap();
        let mode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(BINARY), mode(CONF)), (0o755, 0o644));
        assert_eq!(fs::read(directory.path().join(BINARY)).unwrap(), b"binary");
        let conf: serde_json::Value = serde_json::from_slice(&fs::read(directory.path().join(CONF)).unwrap()).unwrap();
        let expected = serde_json::json!({
            "daemonSocket": "unix:///run/\"quoted\".sock", "daemonCallTimeoutSeconds": 7,
            "logFile": "/var/log/x.log", "logLevel": "debug", "forcePoolName": true,
        });
        assert_eq!(conf, expected);
    }

    #[test]
    fn what_is_the_same_is_left_alone_and_what_differs_is_replaced_not_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        fs::write(&source, "one").unwrap();
        let inode = || fs::metadata(directory.path().join(BINARY)).unwrap().ino();
        install(&config(directory.path())).unwrap();
        let first = inode();
        install(&config(directory.path())).unwrap();
        assert_eq!(inode(), first);
        fs::write(&source, "two").unwrap();
        install(&config(directory.path())).unwrap();
        assert_ne!(inode(), first);
    }

    #[test]
    fn a_link_in_the_place_of_the_binary_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("source"), "new").unwrap();
        fs::write(directory.path().join("target"), "old").unwrap();
        std::os::unix::fs::symlink(directory.path().join("target"), directory.path().join(BINARY)).unwrap();
        install(&config(directory.path())).unwrap();
        assert_eq!(fs::read(directory.path().join("target")).unwrap(), b"old");
        assert_eq!(fs::read(directory.path().join(BINARY)).unwrap(), b"new");
    }

    #[test]
    fn a_missing_source_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let message = install(&config(directory.path())).unwrap_err().to_string();
        assert!(message.contains("the CNI plugin") && message.contains("nv-ipam"), "{message}");
    }
}
