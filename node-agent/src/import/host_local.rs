//! The files of the oldest versions of nv-ipam, which used the CNI plugin host-local: one folder for each IPPool, and in it one file for each
//! address in use (behaviour.md §7).

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use std::{fs, io};

use ipam_core::addr::parse_addr;
use ipam_core::ledger::{Attachment, Change, Owner, Reservation};
use ipam_core::{PoolKey, PoolKind};

use super::ImportError;

/// The file of a pool's folder that host-local locks while it changes the folder.
const LOCK: &str = "lock";
/// What the names of files begin with that have the place of the round robin.
const LAST: &str = "last_reserved_ip.";

/// Folders that were read.
#[derive(Debug)]
pub(super) struct Content {
    /// The locks of the folders.
    pub(super) locks: Vec<fs::File>,
    /// All names and contents, for the digest.
    pub(super) text: Vec<u8>,
    /// Their records.
    pub(super) records: Vec<Change>,
}

/// Locks and reads the folders in `path`. `None` if there is no such folder.
pub(super) fn read(path: &Path) -> Result<Option<Content>, ImportError> {
    let mut content = Content { locks: Vec::new(), text: Vec::new(), records: Vec::new() };
    let pools = match entries(path) {
        Ok(pools) => pools,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, &error)),
    };
    for pool in pools.iter().filter(|pool| pool.is_dir()) {
        content.locks.push(lock(pool)?);
        for file in entries(pool).map_err(|error| failed(pool, &error))? {
            read_file(pool, &file, &mut content)?;
        }
    }
    Ok(Some(content))
}

fn read_file(pool: &Path, file: &Path, content: &mut Content) -> Result<(), ImportError> {
    let (folder, name) = (name_of(pool), name_of(file));
    let addr = parse_addr(&name);
    if addr.is_err() && !name.starts_with(LAST) {
        return Ok(());
    }
    let text = fs::read_to_string(file).map_err(|error| failed(file, &error))?;
    for part in [&folder, &name, &text] {
        content.text.extend(part.len().to_le_bytes());
        content.text.extend(part.as_bytes());
    }
    let key = PoolKey::new(PoolKind::IpPool, folder);
    let record = match addr {
        Ok(addr) => reservation(key, addr, &text, created(file))
            .map(|reservation| Change::Reserve { reservation, moves_cursor: false }),
        Err(_) => parse_addr(text.trim())
            .map(|addr| Change::Cursor { pool: key, addr })
            .map_err(|why| format!("{text:?} {why}")),
    };
    content.records.push(record.map_err(|why| ImportError { path: file.display().to_string(), why })?);
    Ok(())
}

/// The file has two lines: the container, and the interface. The oldest of all have no interface.
fn reservation(pool: PoolKey, addr: IpAddr, text: &str, created: i64) -> Result<Reservation, String> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let (container, interface) = match lines[..] {
        [container] => (container, ""),
        [container, interface] => (container, interface),
        _ => return Err(format!("it has {} lines, not a container and an interface", lines.len())),
    };
    if container.is_empty() {
        return Err("its first line names no container".to_owned());
    }
    Ok(Reservation { pool, owner: Owner::new(container, interface), addr, attachment: Attachment::default(), created })
}

/// When the file was written, in Unix seconds.
fn created(file: &Path) -> i64 {
    let written = fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
    let since = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or_default()
}

/// Takes the lock that host-local takes.
fn lock(pool: &Path) -> Result<fs::File, ImportError> {
    let path = pool.join(LOCK);
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|error| failed(&path, &error))?;
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => {
            let why =
                "another process has locked it; stop the plugin host-local of nv-ipam on this node first".to_owned();
            ImportError { path: path.display().to_string(), why }
        }
        fs::TryLockError::Error(error) => failed(&path, &error),
    })?;
    Ok(file)
}

/// What is in a folder, by name.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn failed(path: &Path, error: &io::Error) -> ImportError {
    ImportError { path: path.display().to_string(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn every_address_and_the_place_of_the_round_robin_are_read() {
        let files = [
            ("blue/10.0.0.2", "c1\r\nnet1"),
            ("blue/10.0.0.3", "c2\nnet2\n"),
            ("blue/last_reserved_ip.0", "10.0.0.9"),
            ("blue/lock", ""),
            ("red/fd00::5", "c3"),
            ("stray", "no pool"),
        ];
        let folder = folder(&files);
        let content = read(folder.path()).unwrap().unwrap();
        let shown = content.records.iter().map(|change| match change {
            Change::Reserve { reservation: held, .. } => format!("{} {} {}", held.pool.name, held.addr, held.owner),
            Change::Cursor { pool, addr } => format!("{} after {addr}", pool.name),
            other => format!("{other:?}"),
        });
        let expected = [
            format!("blue 10.0.0.2 {}", Owner::new("c1", "net1")),
            format!("blue 10.0.0.3 {}", Owner::new("c2", "net2")),
            "blue after 10.0.0.9".to_owned(),
            format!("red fd00::5 {}", Owner::new("c3", "")),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert!(read(&folder.path().join("absent")).unwrap().is_none());
        drop(content);
        let _held = lock(&folder.path().join("blue")).unwrap();
        let refused = read(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("blue/lock") && refused.contains("host-local"), "{refused}");
    }

    #[test]
    fn a_file_that_names_no_container_stops_the_import() {
        for (name, text) in [
            ("blue/10.0.0.2", ""),
            ("blue/10.0.0.2", "a\nb\nc"),
            ("blue/10.0.0.2", "\nb"),
            ("blue/last_reserved_ip.0", "x"),
        ] {
            let folder = folder(&[(name, text)]);
            let refused = read(folder.path()).unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
