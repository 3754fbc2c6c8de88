//! The import of the stores of nv-ipam: what they record is never allocated again. There are two: the file of its agent, and the folders of the
//! oldest versions.
//!
//! The journal records the digest of each imported store. So a file that another agent has changed since is imported again, and one that
//! has not changed is not. Afterwards the file is kept under a dated name, and a placeholder on which NVIDIA's agent refuses to start
//! takes its place: started on the old file, it would allocate addresses that this agent has allocated since.
//!
//! Call it only once the agent has the lock of its store and its socket: an agent that still serves would go on changing the file.

mod host_local;
pub(crate) mod nv_ipam;

use std::path::{Path, PathBuf};
use std::{fs, io};

use ipam_core::PoolKey;
use ipam_core::ledger::{Change, Ledger, Reservation};
use tracing::{info, warn};

use crate::files;

/// Why the reservations of an older store are not known.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot import {path}, the store of nv-ipam: {why}. Without it this agent would allocate addresses that pods use. Repair the file, \
     or move it away once no pod on this node uses these pools"
)]
pub struct ImportError {
    path: String,
    why: String,
}

/// A store that NVIDIA's agent refuses ("checksum not set in store file"), and that has no reservations.
const PLACEHOLDER: &str = r#"{"version":1,"checksum":0,"pools":{}}"#;

/// An older store that was read.
#[derive(Debug)]
pub struct Import {
    path: PathBuf,
    digest: [u8; 32],
    records: Vec<Change>,
    /// No other process changes the store until it is put away.
    _locks: Vec<fs::File>,
}

/// A reservation of the older store that the ledger contradicts.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Conflict {
    /// What the older store records.
    older: Reservation,
    /// What the ledger records: another owner of the address, or another address of the owner.
    own: Reservation,
}

impl Conflict {
    fn log(&self) {
        let Self { older, own } = self;
        let meaning = if own.owner == older.owner {
            "they have another address of one interface: both addresses stay unavailable until its pod is gone"
        } else {
            "two pods may use one address: it stays unavailable until both are gone; delete one of them"
        };
        warn!(
            pool = %older.pool,
            address = %older.addr,
            owner = %older.owner,
            pod = %pod(older),
            journal_address = %own.addr,
            journal_owner = %own.owner,
            journal_pod = %pod(own),
            "the store of nv-ipam and the journal disagree; {meaning}"
        );
    }
}

impl Import {
    /// Reads the store file `path`. `None` if there is none, or only the placeholder.
    ///
    /// # Errors
    /// Another process has locked the file, or it cannot be read to its last record.
    pub fn read(path: &Path) -> Result<Option<Self>, ImportError> {
        let Some(nv_ipam::Content { file, text, records }) = nv_ipam::read(path)? else { return Ok(None) };
        Ok(Some(Self { path: path.to_owned(), digest: digest(&text), records, _locks: vec![file] }))
    }

    /// Reads the folders of the oldest versions, in `state/host-local` beside the store file `path`. `None` if there are none.
    ///
    /// # Errors
    /// Another process has locked a folder, or a file in it cannot be read.
    pub fn read_host_local(path: &Path) -> Result<Option<Self>, ImportError> {
        Self::read_folders(&path.with_file_name("state").join("host-local"))
    }

    /// Reads a folder of host-local, which has a folder for each pool. `None` if it does not exist.
    ///
    /// # Errors
    /// As for [`Self::read_host_local`].
    pub fn read_folders(path: &Path) -> Result<Option<Self>, ImportError> {
        let Some(host_local::Content { locks, text, records }) = host_local::read(path)? else { return Ok(None) };
        Ok(Some(Self { path: path.to_owned(), digest: digest(&text), records, _locks: locks }))
    }

    /// Records in `ledger` what it does not know of this store, unless the same content was imported before: what pods have released since
    /// does not come back. Nothing is durable yet: the next snapshot has it.
    pub fn record(&self, ledger: &mut Ledger) {
        if ledger.imported(&self.source()) == Some(&self.digest) {
            return;
        }
        let (changes, conflicts) = self.changes(ledger);
        for change in &changes {
            ledger.apply(change);
        }
        let reserved = changes.iter().filter(|change| matches!(change, Change::Reserve { .. })).count();
        info!(path = %self.path.display(), reserved, conflicts = conflicts.len(), "imported the store of nv-ipam");
        for conflict in conflicts {
            conflict.log();
        }
    }

    /// What `ledger` does not know of this store, whether or not the same content was imported before.
    pub(crate) fn news(&self, ledger: &Ledger) -> Vec<Change> {
        self.changes(ledger).0
    }

    /// The changes of an import, and the conflicts.
    fn changes(&self, ledger: &Ledger) -> (Vec<Change>, Vec<Conflict>) {
        let (mut changes, conflicts) = missing(ledger, &self.records);
        changes.push(Change::Imported { source: self.source(), digest: self.digest });
        (changes, conflicts)
    }

    /// The name of this store in the ledger.
    fn source(&self) -> String {
        self.path.display().to_string()
    }

    /// What an import of [`Self::news`] does.
    pub(crate) fn preview(&self, ledger: &Ledger) -> Preview {
        let (changes, conflicts) = missing(ledger, &self.records);
        let new = changes.iter().filter_map(|change| match change {
            Change::Reserve { reservation, .. } => Some(line(reservation)),
            _ => None,
        });
        let new: Vec<_> = new.collect();
        let all = self.records.iter().filter(|record| is_of_address(record)).count();
        let known = all.saturating_sub(new.len() + conflicts.len());
        let conflicts =
            conflicts.iter().map(|Conflict { older, own }| format!("{}; the journal has {}", line(older), line(own)));
        Preview { new, known, conflicts: conflicts.collect() }
    }

    /// Whether this store has what `ledger` does not.
    pub fn has_news(&self, ledger: &Ledger) -> bool {
        missing(ledger, &self.records).0.iter().any(is_of_address)
    }

    /// Keeps the store under a dated name, and puts the placeholder in the place of a file. To be called once the import is durable.
    pub fn put_away(&self) {
        if let Err(error) = self.replace() {
            warn!(
                path = %self.path.display(),
                %error,
                "cannot put the imported store of nv-ipam away; do not start nv-ipam on it: it would allocate addresses that are in use"
            );
        }
    }

    fn replace(&self) -> io::Result<()> {
        // The name of the moment: a file that is imported again keeps its own copy.
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ").to_string();
        let mut kept = self.path.clone().into_os_string();
        kept.push(format!(".imported-{now}"));
        if self.path.is_dir() {
            fs::rename(&self.path, &kept)?;
            files::sync_parent(&self.path)?;
            info!(path = %self.path.display(), kept = %Path::new(&kept).display(), "the imported store is kept under another name");
            return Ok(());
        }
        fs::hard_link(&self.path, &kept)?;
        if let Err(error) = files::replace(&self.path, PLACEHOLDER.as_bytes(), 0o600) {
            drop(fs::remove_file(&kept));
            return Err(error);
        }
        info!(path = %self.path.display(), kept = %Path::new(&kept).display(), "the imported store is kept under another name");
        Ok(())
    }
}

/// Puts the placeholder where no older store is, so that NVIDIA's agent does not start with an empty store beside addresses in use.
pub fn reserve_place(path: &Path) {
    let is_empty =
        fs::metadata(path).map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |found| found.len() == 0);
    if is_empty && let Err(error) = files::replace(path, PLACEHOLDER.as_bytes(), 0o600) {
        warn!(path = %path.display(), %error, "cannot write the placeholder on which nv-ipam refuses to start");
    }
}

/// The changes that add to `ledger` what `records` have and it has not, and the conflicts. A conflicting address is contested: it is
/// free once both owners have released it.
fn missing(ledger: &Ledger, records: &[Change]) -> (Vec<Change>, Vec<Conflict>) {
    let (mut changes, mut conflicts) = (Vec::new(), Vec::new());
    let is_known = |pool: &PoolKey| ledger.reservations().any(|held| held.pool == *pool);
    for record in records {
        match record {
            Change::Reserve { reservation, .. } | Change::Contested { reservation } => {
                let of_owner = ledger.held_by(&reservation.pool, &reservation.owner);
                let own = of_owner.or_else(|| ledger.holder(&reservation.pool, reservation.addr));
                match own {
                    None => changes.push(record.clone()),
                    Some(own) if (&own.owner, own.addr) == (&reservation.owner, reservation.addr) => {}
                    Some(own) => {
                        conflicts.push(Conflict { older: reservation.clone(), own });
                        changes.push(Change::Contested { reservation: reservation.clone() });
                    }
                }
            }
            // The round robin of a pool that this agent has allocated from goes on here.
            Change::Cursor { pool, .. } if is_known(pool) => {}
            _ => changes.push(record.clone()),
        }
    }
    (changes, conflicts)
}

/// What an import would do, one line for each address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Preview {
    /// Addresses that the journal does not have.
    pub(crate) new: Vec<String>,
    /// How many addresses the journal has for the same owner.
    pub(crate) known: usize,
    /// Addresses that the journal has for another owner, or whose owner has another address there.
    pub(crate) conflicts: Vec<String>,
}

fn is_of_address(change: &Change) -> bool {
    matches!(change, Change::Reserve { .. } | Change::Contested { .. })
}

/// An address with its pool and owner, without control characters.
fn line(held: &Reservation) -> String {
    let PoolKey { kind, name } = &held.pool;
    format!("{} {name} {} {} {}", kind.kind(), held.addr, pod(held), held.owner).escape_debug().to_string()
}

/// SHA-256.
fn digest(text: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, text);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

fn pod(reservation: &Reservation) -> String {
    format!("{}/{}", reservation.attachment.pod_namespace, reservation.attachment.pod_name)
}

#[cfg(test)]
mod tests;
