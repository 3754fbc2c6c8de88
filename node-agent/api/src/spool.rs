//! The spool: the requests to free addresses that the plugin could not deliver, because no agent answered.
//!
//! The plugin leaves a note and succeeds, so that a pod can go away without the agent. The agent applies the notes at its next start before it
//! serves, and later now and then. The folder is beside the agent's socket, and belongs to the agent: without it the plugin leaves no note.
//!
//! The name of a note follows from the interface and its pools. So the plugin takes the note away before an ADD of the same interface: a note
//! never frees what was allocated after it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use prost::Message;

use crate::AgentAddress;
use crate::v1::{DeallocateRequest, IpamParameters, PoolType};

/// Name of the folder.
const FOLDER: &str = "spool";
/// What the names of notes end with.
const NOTE: &str = ".del";
/// Longest note that is read. The texts of a request are limited to a few kilobytes.
const LONGEST: u64 = 64 * 1024;

/// The folder of one agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spool(PathBuf);

/// A request that was left.
#[derive(Clone, PartialEq, Debug)]
pub struct Note {
    /// The file.
    pub path: PathBuf,
    /// When it was left.
    pub time: SystemTime,
    /// The request; an error if the file has none.
    pub request: Result<DeallocateRequest, String>,
}

impl Spool {
    /// The spool of the agent with this address; `None` if it has no path.
    pub fn of(address: &AgentAddress) -> Option<Self> {
        match address {
            AgentAddress::Unix(socket) => Some(Self(socket.with_file_name(FOLDER))),
            AgentAddress::Tcp(_) => None,
        }
    }

    /// A spool in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder for root alone: a process that can write there can free any address.
    ///
    /// # Errors
    /// It cannot be made, or something else has its name.
    pub fn create(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::set_permissions(&self.0, Permissions::from_mode(0o700))?;
        // Something that is no folder cannot be listed.
        fs::read_dir(&self.0).map(drop)
    }

    /// Leaves a request to free what the interface has. It is on the disk when this returns.
    ///
    /// # Errors
    /// There is no spool, or the disk does not take the note.
    pub fn leave(&self, parameters: &IpamParameters) -> io::Result<()> {
        let folder = File::open(&self.0)?;
        let path = self.note(parameters);
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let request = DeallocateRequest { parameters: Some(parameters.clone()) };
        let written = write(&temporary, &request.encode_to_vec()).and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            drop(fs::remove_file(&temporary));
            return Err(error);
        }
        folder.sync_all()
    }

    /// Takes away a request that was left for the same interface and pools. Nothing left is no error.
    ///
    /// # Errors
    /// The note is there, and stays.
    pub fn withdraw(&self, parameters: &IpamParameters) -> io::Result<()> {
        match fs::remove_file(self.note(parameters)) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(error),
            _ => Ok(()),
        }
    }

    /// All requests that were left, the oldest first. No spool has none.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn notes(&self) -> io::Result<Vec<Note>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut notes = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(NOTE) {
                notes.extend(read(path));
            }
        }
        notes.sort_by(|a, b| (a.time, &a.path).cmp(&(b.time, &b.path)));
        Ok(notes)
    }

    /// The file of a note.
    fn note(&self, parameters: &IpamParameters) -> PathBuf {
        let IpamParameters { pools, cni_containerid, cni_ifname, pool_type, .. } = parameters;
        // An unspecified type is that of IPPools.
        let kind = (*pool_type).max(PoolType::Ippool.into()).to_string();
        let texts = [cni_containerid, cni_ifname, &kind].into_iter().chain(pools);
        // FNV-1a. A byte that no text has is behind each, so that "ab", "c" is not "a", "bc".
        let bytes = texts.flat_map(|text| text.bytes().chain([0xff]));
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        self.0.join(format!("{hash:016x}{NOTE}"))
    }
}

/// A note; `None` if it is gone, because an ADD has taken it away.
fn read(path: PathBuf) -> Option<Note> {
    let found = File::open(&path).and_then(|file| {
        let (time, mut bytes) = (file.metadata()?.modified()?, Vec::new());
        file.take(LONGEST + 1).read_to_end(&mut bytes)?;
        Ok((time, bytes))
    });
    match found {
        Ok((time, bytes)) => {
            let request = match DeallocateRequest::decode(&bytes[..]) {
                Ok(request) if bytes.len() as u64 <= LONGEST && request.parameters.is_some() => Ok(request),
                Ok(_) => Err("it has no request".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            Some(Note { path, time, request })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Note { path, time: SystemTime::UNIX_EPOCH, request: Err(error.to_string()) }),
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(container: &str, pools: &[&str]) -> IpamParameters {
        IpamParameters {
            pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
            cni_containerid: container.into(),
            cni_ifname: "net1".into(),
            ..IpamParameters::default()
        }
    }

    fn spool() -> (tempfile::TempDir, Spool) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("daemon.sock");
        let spool = Spool::of(&AgentAddress::Unix(socket)).unwrap();
        (folder, spool)
    }

    #[test]
    fn what_is_left_is_found_once_and_an_add_takes_it_away() {
        let (_folder, spool) = spool();
        let (first, second) = (parameters("c1", &["blue"]), parameters("c2", &["blue", "red"]));
        assert_eq!(spool.leave(&first).unwrap_err().kind(), io::ErrorKind::NotFound, "no agent has made the folder");
        assert_eq!(spool.notes().unwrap(), []);
        spool.withdraw(&first).unwrap();
        spool.create().unwrap();
        spool.create().unwrap();
        assert_eq!(fs::metadata(spool.path()).unwrap().permissions().mode() & 0o777, 0o700);
        for one in [&first, &second, &first] {
            spool.leave(one).unwrap();
        }
        let left: Vec<_> =
            spool.notes().unwrap().into_iter().map(|note| note.request.unwrap().parameters.unwrap()).collect();
        assert!(left.len() == 2 && left.contains(&first) && left.contains(&second), "{left:?}");
        let with_type = IpamParameters { pool_type: PoolType::Ippool.into(), ..first };
        spool.withdraw(&with_type).unwrap();
        assert_eq!(spool.notes().unwrap().len(), 1, "an unspecified type is that of IPPools");
        assert_eq!(fs::read_dir(spool.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn each_interface_and_set_of_pools_has_a_note_of_its_own() {
        let (_folder, spool) = spool();
        let mut names = vec![
            spool.note(&parameters("ab", &["c"])),
            spool.note(&parameters("a", &["bc"])),
            spool.note(&parameters("a", &["b", "c"])),
            spool.note(&IpamParameters { cni_ifname: "net2".into(), ..parameters("a", &["bc"]) }),
            spool.note(&IpamParameters { pool_type: PoolType::Cidrpool.into(), ..parameters("a", &["bc"]) }),
        ];
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 5);
    }

    #[test]
    fn a_file_without_a_request_is_named() {
        let (_folder, spool) = spool();
        spool.create().unwrap();
        let long = vec![0; 70_000];
        for (name, bytes) in [("1.del", &b"\xff\xff"[..]), ("2.del", b""), ("3.del", &long), ("other", b"")] {
            fs::write(spool.path().join(name), bytes).unwrap();
        }
        let notes = spool.notes().unwrap();
        assert_eq!(notes.iter().filter(|note| note.request.is_err()).count(), 3, "{notes:?}");
    }
}
