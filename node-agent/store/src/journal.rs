//! The append-only journal: one file, `journal`, of a magic, a snapshot, and one record for each commit since.
//!
//! What holds at every moment, and what a reader may conclude from it:
//! * A record is written only after the one before it is durable. So an unreadable record with an intact one behind it was
//!   durable once and has been damaged since: refused. Without one behind it, it is a write that a crash cut off, of which
//!   nobody was told.
//! * The file is zero-filled ahead, and the last [`record::HEADER`] bytes always stay zero. A file that ends otherwise
//!   has been cut short: refused.
//! * Each opening writes a new file with a new epoch (temporary file, sync, rename, sync of the directory). So what an
//!   earlier process wrote but never synced is durable before anything is built on it, and no byte of an older tail is
//!   in the file. On a full disk the old file is written over by what was read of it instead, which comes to the same and
//!   takes no room: an agent must be able to start there, for its pods' sake.

use std::path::Path;
use std::{fs, io};

use ipam_core::ledger::Change;
use tracing::warn;

use super::disk::{Directory, DiskFile};
use super::{Damaged, Position, Room, Store, StoreError, codec, record, room_for_releases};

const FILE: &str = "journal";
const NEW_FILE: &str = "journal.new";
const MAGIC: [u8; 8] = *b"ipamjnl1";
/// Zeros written ahead in one go: some thousand records.
const CHUNK: usize = if cfg!(test) { 8 * 1024 } else { 256 * 1024 };
/// More zeros are written once fewer than a chunk divided by this are left.
const LOW_WATER: usize = 4;
/// A journal is compacted only after it has grown by this many chunks.
const MIN_COMPACTION: usize = 4;

/// What a directory's journal says, read and checked; nothing is written yet.
#[derive(Debug)]
pub struct Opened<D> {
    directory: D,
    epoch: u64,
    changes: Vec<Change>,
    old: Old,
    chunk: usize,
}

/// The file that was read.
#[derive(Default, Debug)]
struct Old {
    /// All of it, zeros behind its last intact record.
    bytes: Vec<u8>,
    end: usize,
    /// Sequence of the record that would come next.
    sequence: u64,
}

impl<D> Opened<D> {
    /// Whether there was no journal yet.
    pub const fn is_new(&self) -> bool {
        self.epoch == 0
    }

    /// The same with another number of zeros written ahead in one go. A small one suits a small simulated disk.
    #[must_use]
    pub fn with_chunk(self, chunk: usize) -> Self {
        Self { chunk, ..self }
    }

    /// How far the history had come; the least there is if there is none.
    pub const fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.old.sequence.saturating_sub(1) }
    }
}

/// A journal that was read.
#[derive(Debug)]
pub enum Read<D> {
    /// It was read to its last record, or is absent.
    Intact(Opened<D>),
    /// It was read up to the damage.
    Damaged(Damaged<D>),
}

impl<D: Directory> Opened<D> {
    /// Reads the journal of `directory`. An absent one is empty.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn read(directory: D) -> Result<Self, StoreError> {
        match Self::read_or_damaged(directory)? {
            Read::Intact(opened) => Ok(opened),
            Read::Damaged(damaged) => Err(damaged.error()),
        }
    }

    /// The same. Of a damaged journal it reads what is before the damage.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_or_damaged(directory: D) -> Result<Read<D>, StoreError> {
        let bytes = directory.read(FILE).map_err(|error| failed(&directory, "read", error))?;
        let Some(mut bytes) = bytes else {
            let new = Self { directory, epoch: 0, changes: Vec::new(), old: Old::default(), chunk: CHUNK };
            return Ok(Read::Intact(new));
        };
        let replayed = match replay(&bytes) {
            Ok(replayed) => replayed,
            Err(Damage { what, before }) => {
                let (file, position) = (directory.path_of(FILE), before.position());
                return Ok(Read::Damaged(Damaged::new(directory, file, what, before.changes, position)));
            }
        };
        if replayed.torn {
            let file = directory.path_of(FILE);
            warn!(%file, offset = replayed.end, "dropped a record that was cut off by a crash; nobody was told of it");
        }
        let Replayed { epoch, changes, end, sequence, .. } = replayed;
        bytes[end..].fill(0);
        Ok(Read::Intact(Self { directory, epoch, changes, old: Old { bytes, end, sequence }, chunk: CHUNK }))
    }

    /// The whole history, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Starts a new file with `snapshot`, which must be equal to the history; or goes on with the old one where there is no
    /// room for another.
    pub fn begin(self, snapshot: &[Change]) -> Result<Journal<D>, StoreError> {
        let (next, is_new) = (self.epoch.saturating_add(1), self.is_new());
        let Self { directory, epoch, old, chunk, .. } = self;
        let (epoch, file) = match new_file(&directory, next, snapshot, chunk) {
            Ok(file) => (next, file),
            Err(full) if full.is_harmless() && !is_new => {
                warn!(error = %full, "going on with the old journal: what is held is served, nothing may be given any more");
                (epoch, old.taken_up(&directory, chunk)?)
            }
            Err(error) => return Err(error),
        };
        Ok(Journal { directory, epoch, file, broken: false })
    }
}

/// What a journal has, for a program that only looks at it.
#[derive(Debug)]
pub struct Contents {
    /// The path of the file.
    pub file: String,
    /// The whole history, in order.
    pub changes: Vec<Change>,
    /// How far it has come.
    pub position: Position,
    /// Bytes of the file that have records.
    pub used: usize,
    /// Bytes of the file.
    pub bytes: usize,
    /// Whether a record that was cut off is behind the last one.
    pub is_torn: bool,
}

/// Reads the journal in a folder without its lock. `None` if there is none.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn contents(directory: &Path) -> Result<Option<Contents>, StoreError> {
    let file = directory.join(FILE).display().to_string();
    let mut before = None;
    // An agent that appends while the file is read can look like damage. Damage is the same when it is read again.
    for is_last in [false, false, false, true] {
        let bytes = match fs::read(directory.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::Io { doing: "read", place: file, source }),
        };
        match replay(&bytes) {
            Ok(replayed) => {
                let position = replayed.position();
                let Replayed { changes, end, torn, .. } = replayed;
                return Ok(Some(Contents { file, changes, position, used: end, bytes: bytes.len(), is_torn: torn }));
            }
            Err(Damage { what, .. }) if is_last || before.as_ref() == Some(&bytes) => {
                return Err(StoreError::Damaged { file, what });
            }
            Err(_) => before = Some(bytes),
        }
    }
    Ok(None)
}

impl Old {
    /// Writes over the file what was read of it: only then is it known to be on the disk, and its tail to be zero.
    fn taken_up<D: Directory>(self, directory: &D, chunk: usize) -> Result<OpenFile<D::File>, StoreError> {
        let Self { bytes, end, sequence } = self;
        let mut file = directory.open(FILE).map_err(|error| failed(directory, "open", error))?;
        match file.write_at(0, &bytes) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Err(full(directory)),
            Err(error) => return Err(failed(directory, "write", error)),
        }
        file.sync().map_err(|error| failed(directory, "sync", error))?;
        Ok(OpenFile { file, sequence, end, len: bytes.len(), compact_beyond: end + MIN_COMPACTION * chunk, chunk })
    }
}

/// The journal, open for commits.
#[derive(Debug)]
pub struct Journal<D: Directory> {
    directory: D,
    epoch: u64,
    file: OpenFile<D::File>,
    /// A write or sync has failed: what the disk holds is unknown.
    broken: bool,
}

#[derive(Debug)]
struct OpenFile<F> {
    file: F,
    /// Sequence of the next record.
    sequence: u64,
    /// Where the next record goes.
    end: usize,
    /// Bytes of the file; those behind `end` are zero.
    len: usize,
    /// Where the end must be for a compaction to be worth its cost.
    compact_beyond: usize,
    /// Zeros written ahead in one go.
    chunk: usize,
}

impl<D: Directory> Store for Journal<D> {
    fn make_room(&mut self, bytes: usize, room: Room) -> Result<(), StoreError> {
        self.usable()?;
        let spare = match room {
            Room::Release => 0,
            Room::Other { spare } => spare,
        };
        let needed = self.file.end + record::size(codec::HEADER + bytes) + record::HEADER + spare;
        if needed + self.file.chunk / LOW_WATER <= self.file.len {
            return Ok(());
        }
        match self.extend(needed) {
            Err(full) if full.is_harmless() && needed <= self.file.len => Ok(()),
            result => result,
        }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.usable()?;
        if changes.is_empty() {
            return Ok(());
        }
        let payload = codec::encode(changes);
        let record = record::encode(self.epoch, self.file.sequence, &payload);
        if self.file.end + record.len() + record::HEADER > self.file.len {
            self.extend(self.file.end + record.len() + record::HEADER)?;
        }
        let written = self.file.file.write_at(offset(self.file.end), &record);
        written.and_then(|()| self.file.file.sync()).map_err(|error| self.break_with("write", error))?;
        self.file.end += record.len();
        self.file.sequence += 1;
        Ok(())
    }

    fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.file.sequence.saturating_sub(1) }
    }

    fn wants_compaction(&self) -> bool {
        self.file.end > self.file.compact_beyond
    }

    fn compact(&mut self, snapshot: &[Change]) -> Result<(), StoreError> {
        self.usable()?;
        let epoch = self.epoch.saturating_add(1);
        match new_file(&self.directory, epoch, snapshot, self.file.chunk) {
            Ok(file) => {
                self.file = file;
                self.epoch = epoch;
                Ok(())
            }
            Err(error) => {
                self.broken = !error.is_harmless();
                // Not again with the very next commit: a try costs as much as the state is long.
                self.file.compact_beyond = self.file.end + MIN_COMPACTION * self.file.chunk;
                Err(error)
            }
        }
    }
}

impl<D: Directory> Journal<D> {
    fn usable(&self) -> Result<(), StoreError> {
        if self.broken {
            return Err(failed(&self.directory, "go on with", io::Error::other("an earlier write failed")));
        }
        Ok(())
    }

    fn break_with(&mut self, doing: &'static str, error: io::Error) -> StoreError {
        self.broken = true;
        failed(&self.directory, doing, error)
    }

    /// Writes zeros ahead, to `needed` bytes and a chunk more.
    fn extend(&mut self, needed: usize) -> Result<(), StoreError> {
        let len = needed.max(self.file.len) + self.file.chunk;
        let more = vec![0; len - self.file.len];
        let file = &mut self.file.file;
        let at = offset(self.file.len);
        let written = file.reserve(at, offset(more.len())).and_then(|()| file.write_at(at, &more));
        match written {
            // Zeros that did get there are as good as none.
            Err(error) if is_full(&error) => return Err(full(&self.directory)),
            Err(error) => return Err(self.break_with("extend", error)),
            Ok(()) => {}
        }
        // Durable together with the record that follows; a sync of its own tells lack of room apart from damage.
        self.file.file.sync().map_err(|error| self.break_with("sync", error))?;
        self.file.len = len;
        Ok(())
    }
}

/// Puts a file with `snapshot` in the place of the journal.
fn new_file<D: Directory>(
    directory: &D,
    epoch: u64,
    snapshot: &[Change],
    chunk: usize,
) -> Result<OpenFile<D::File>, StoreError> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(record::encode(epoch, 0, &codec::encode(snapshot)));
    let end = bytes.len();
    let in_use = |change: &&Change| matches!(change, Change::Reserve { .. } | Change::Contested { .. });
    let len = end + chunk.max(room_for_releases(snapshot.iter().filter(in_use).count()) + record::HEADER);
    bytes.resize(len, 0);
    let written = directory.create(NEW_FILE).and_then(|mut file| {
        file.reserve(0, offset(len))?;
        file.write_at(0, &bytes)?;
        Ok(file)
    });
    let mut file = match written {
        Ok(file) => file,
        Err(error) if is_full(&error) => {
            // Left behind it would only take the room that is wanting; the next opening overwrites it.
            drop(directory.remove(NEW_FILE));
            return Err(full(directory));
        }
        Err(error) => return Err(failed(directory, "write", error)),
    };
    file.sync().map_err(|error| failed(directory, "sync", error))?;
    directory.rename(NEW_FILE, FILE).map_err(|error| failed(directory, "replace", error))?;
    directory.sync().map_err(|error| failed(directory, "sync the directory of", error))?;
    let compact_beyond = end + (MIN_COMPACTION * chunk).max(end);
    Ok(OpenFile { file, sequence: 1, end, len, compact_beyond, chunk })
}

#[derive(Default)]
struct Replayed {
    epoch: u64,
    changes: Vec<Change>,
    end: usize,
    /// Sequence of the record that would come next.
    sequence: u64,
    torn: bool,
}

impl Replayed {
    /// How far the history has come.
    const fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.sequence.saturating_sub(1) }
    }
}

/// What is damaged and where, and what was read before it.
struct Damage {
    what: String,
    before: Replayed,
}

/// Reads a journal, or says what is damaged.
fn replay(file: &[u8]) -> Result<Replayed, Damage> {
    let mut read = Replayed::default();
    match replay_into(file, &mut read) {
        Ok(()) => {
            read.torn = file[read.end.min(file.len())..].iter().any(|byte| *byte != 0);
            Ok(read)
        }
        Err(what) => Err(Damage { what, before: read }),
    }
}

fn replay_into(file: &[u8], read: &mut Replayed) -> Result<(), String> {
    if !file.starts_with(&MAGIC) {
        return Err("it does not start as a journal does".to_owned());
    }
    let Some(first) = record::at_if(file, MAGIC.len(), |_, sequence| sequence == 0) else {
        return Err(format!("the snapshot at offset {} is unreadable", MAGIC.len()));
    };
    (read.epoch, read.end) = (first.epoch, MAGIC.len());
    while let Some(found) = record::at_if(file, read.end, |e, s| (e, s) == (read.epoch, read.sequence)) {
        let decoded = codec::decode(found.payload);
        let changes = decoded
            .map_err(|why| format!("record {} at offset {} is intact but unknown: {why}", read.sequence, read.end))?;
        read.changes.extend(changes);
        read.end += found.size();
        read.sequence += 1;
    }
    nothing_behind(file, read.end, read.epoch, read.sequence)
}

/// Checks what follows the last readable record, `sequence - 1`.
fn nothing_behind(file: &[u8], end: usize, epoch: u64, sequence: u64) -> Result<(), String> {
    let later = (end..file.len()).step_by(record::ALIGNMENT);
    let later =
        later.filter_map(|at| record::at_if(file, at, |e, s| e == epoch && s > sequence).map(|found| (at, found)));
    if let Some((at, found)) = later.into_iter().next() {
        let behind = found.sequence;
        return Err(format!(
            "record {sequence} at offset {end} is unreadable, but record {behind} at offset {at} is intact"
        ));
    }
    let tail = file.len().saturating_sub(record::HEADER).max(end.min(file.len()));
    if file.len() - tail < record::HEADER || file[tail..].iter().any(|byte| *byte != 0) {
        return Err(format!("it is cut short at {} bytes", file.len()));
    }
    Ok(())
}

fn failed<D: Directory>(directory: &D, doing: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { doing, place: directory.path_of(FILE), source }
}

fn full<D: Directory>(directory: &D) -> StoreError {
    StoreError::Full { place: directory.path_of(FILE) }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A position in a file; `usize` is 64 bits at most.
fn offset(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
