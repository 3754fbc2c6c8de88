//! The append-only journal: one file, `journal`, of a magic, a snapshot, and one record for each commit since. A long snapshot has several
//! records. So neither it nor what is read of it has to be in memory as a whole.
//!
//! What holds at every moment, and what a reader may conclude from it:
//! * A record is written only after the one before it is durable. So an unreadable record with an intact one behind it was
//!   durable once and has been damaged since: refused. Without one behind it, it is a write that a crash cut off, of which
//!   nobody was told.
//! * The file is zero-filled ahead, and the last [`record::HEADER`] bytes always stay zero. A file that ends otherwise
//!   has been cut short: refused. The zeros are durable before a record reaches them.
//! * Each opening writes a new file with a new epoch (temporary file, sync, rename, sync of the directory). So what an
//!   earlier process wrote but never synced is durable before anything depends on it, and no byte of an older tail is
//!   in the file. Where the new file cannot be written, because the disk is full or can only be read, the journal waits: it
//!   takes releases and forgets them at the next start. That is safe, and lets pods be removed. Nothing is appended to
//!   the old file: its position would move, though the start is not recorded in it.

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

/// A directory's journal, read and checked; nothing is written yet.
#[derive(Debug)]
pub struct Opened<D> {
    directory: D,
    epoch: u64,
    /// Sequence of the record that would come next.
    sequence: u64,
    chunk: usize,
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
        Position { epoch: self.epoch, sequence: self.sequence.saturating_sub(1) }
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
    /// Reads the journal of `directory`, and passes each change of the history to `apply`, in order. An absent one is empty.
    ///
    /// # Errors
    /// It cannot be read, or is damaged. The changes before the damage are applied.
    pub fn read(directory: D, apply: impl FnMut(&Change)) -> Result<Self, StoreError> {
        match Self::read_or_damaged(directory, apply)? {
            Read::Intact(opened) => Ok(opened),
            Read::Damaged(damaged) => Err(damaged.error()),
        }
    }

    /// The same. Of a damaged journal it reads what is before the damage.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_or_damaged(directory: D, mut apply: impl FnMut(&Change)) -> Result<Read<D>, StoreError> {
        let bytes = directory.read(FILE).map_err(|error| failed(&directory, "read", error))?;
        let Some(bytes) = bytes else {
            let new = Self { directory, epoch: 0, sequence: 0, chunk: CHUNK };
            return Ok(Read::Intact(new));
        };
        let replayed = match replay(&bytes, &mut apply) {
            Ok(replayed) => replayed,
            Err(Damage { what, before }) => {
                let (file, position) = (directory.path_of(FILE), before.position());
                return Ok(Read::Damaged(Damaged::new(directory, file, what, position)));
            }
        };
        if replayed.torn {
            let file = directory.path_of(FILE);
            warn!(%file, offset = replayed.end, "dropped a record that was cut off by a crash; nobody was told of it");
        }
        let Replayed { epoch, sequence, .. } = replayed;
        Ok(Read::Intact(Self { directory, epoch, sequence, chunk: CHUNK }))
    }

    /// Starts a new file with `snapshot`, which must be equal to the history. The journal [waits](Store::is_waiting) where the disk
    /// takes none.
    ///
    /// # Errors
    /// A write failed for another reason. What the disk holds is unknown.
    pub fn begin(self, snapshot: impl IntoIterator<Item = Change>) -> Result<Journal<D>, StoreError> {
        let next = self.epoch.saturating_add(1);
        let Self { directory, epoch, sequence, chunk } = self;
        let (epoch, state) = match new_file(&directory, next, &mut snapshot.into_iter(), chunk) {
            Ok(file) => (next, State::Open(file)),
            Err(Trouble::Lack(lack)) => {
                let error = lack.error(&directory);
                warn!(%error, "the journal takes no records: DEL and CHECK work, ADD is refused");
                (epoch, State::Waiting(Waiting { sequence, chunk, lack }))
            }
            Err(trouble) => return Err(trouble.error(&directory)),
        };
        Ok(Journal { directory, epoch, state })
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
        let mut changes = Vec::new();
        match replay(&bytes, &mut |change| changes.push(change.clone())) {
            Ok(replayed) => {
                let position = replayed.position();
                let Replayed { end, torn, .. } = replayed;
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

/// The journal, open for commits.
#[derive(Debug)]
pub struct Journal<D: Directory> {
    directory: D,
    epoch: u64,
    state: State<D::File>,
}

#[derive(Debug)]
enum State<F> {
    Open(OpenFile<F>),
    Waiting(Waiting),
    /// A write or sync has failed: what the disk holds is unknown. Has the sequence of the record that would come next.
    Broken(u64),
}

/// Nothing could be written since the start.
#[derive(Debug)]
struct Waiting {
    /// Sequence of the record that would come next.
    sequence: u64,
    /// Zeros written ahead in one go.
    chunk: usize,
    lack: Lack,
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
    /// Of them, those that a sync has made durable.
    synced: usize,
    /// Where the end must be for a compaction to be worth its cost.
    compact_beyond: usize,
    /// Zeros written ahead in one go.
    chunk: usize,
}

/// Why nothing was written.
#[derive(Debug)]
enum Trouble {
    /// The disk takes nothing for now.
    Lack(Lack),
    /// What was being done has failed.
    Failed(&'static str, io::Error),
}

/// What a disk lacks that takes nothing for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lack {
    /// It is full.
    Room,
    /// It can only be read.
    Writing,
}

impl Trouble {
    fn of(doing: &'static str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Lack(Lack::Room),
            io::ErrorKind::ReadOnlyFilesystem => Self::Lack(Lack::Writing),
            _ => Self::Failed(doing, error),
        }
    }

    fn error<D: Directory>(self, directory: &D) -> StoreError {
        match self {
            Self::Lack(lack) => lack.error(directory),
            Self::Failed(doing, source) => failed(directory, doing, source),
        }
    }
}

impl Lack {
    fn error<D: Directory>(self, directory: &D) -> StoreError {
        let place = directory.path_of(FILE);
        match self {
            Self::Room => StoreError::Full { place },
            Self::Writing => StoreError::ReadOnly { place },
        }
    }
}

impl<D: Directory> Store for Journal<D> {
    fn make_room(&mut self, bytes: usize, room: Room) -> Result<(), StoreError> {
        let spare = match room {
            Room::Release if self.is_waiting() => return Ok(()),
            Room::Release => 0,
            Room::Other { spare } => spare,
        };
        self.with_file(|file| file.make_room(bytes, spare))
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        // Only releases come while the journal waits: there is no room for anything else.
        if changes.is_empty() || self.is_waiting() {
            return Ok(());
        }
        let epoch = self.epoch;
        self.with_file(|file| file.append(epoch, changes))
    }

    fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.state.sequence().saturating_sub(1) }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    fn bytes(&self) -> usize {
        if let State::Open(file) = &self.state { file.end } else { 0 }
    }

    fn wants_compaction(&self) -> bool {
        if let State::Open(file) = &self.state { file.end > file.compact_beyond } else { false }
    }

    fn compact(&mut self, snapshot: &mut dyn Iterator<Item = Change>) -> Result<(), StoreError> {
        let chunk = match &self.state {
            State::Open(file) => file.chunk,
            State::Waiting(waiting) => waiting.chunk,
            State::Broken(_) => return Err(self.broken()),
        };
        let epoch = self.epoch.saturating_add(1);
        match new_file(&self.directory, epoch, snapshot, chunk) {
            Ok(file) => {
                self.state = State::Open(file);
                self.epoch = epoch;
                Ok(())
            }
            Err(Trouble::Lack(lack)) => {
                match &mut self.state {
                    // Not again with the very next commit: a try costs as much as the state is long.
                    State::Open(file) => file.compact_beyond = file.end + MIN_COMPACTION * chunk,
                    State::Waiting(waiting) => waiting.lack = lack,
                    State::Broken(_) => {}
                }
                Err(lack.error(&self.directory))
            }
            Err(failed) => Err(self.break_with(failed)),
        }
    }
}

impl<D: Directory> Journal<D> {
    /// What `act` does with the file. After a failure the journal is broken.
    fn with_file(&mut self, act: impl FnOnce(&mut OpenFile<D::File>) -> Result<(), Trouble>) -> Result<(), StoreError> {
        match &mut self.state {
            State::Open(file) => match act(file) {
                Ok(()) => Ok(()),
                Err(Trouble::Lack(lack)) => Err(lack.error(&self.directory)),
                Err(failed) => Err(self.break_with(failed)),
            },
            State::Waiting(waiting) => Err(waiting.lack.error(&self.directory)),
            State::Broken(_) => Err(self.broken()),
        }
    }

    fn break_with(&mut self, trouble: Trouble) -> StoreError {
        self.state = State::Broken(self.state.sequence());
        trouble.error(&self.directory)
    }

    fn broken(&self) -> StoreError {
        failed(&self.directory, "go on with", io::Error::other("an earlier write failed"))
    }
}

impl<F> State<F> {
    /// Sequence of the next record.
    const fn sequence(&self) -> u64 {
        match self {
            Self::Open(file) => file.sequence,
            Self::Waiting(waiting) => waiting.sequence,
            Self::Broken(sequence) => *sequence,
        }
    }
}

impl<F: DiskFile> OpenFile<F> {
    fn make_room(&mut self, bytes: usize, spare: usize) -> Result<(), Trouble> {
        let needed = self.end + record::size(codec::HEADER + bytes) + record::HEADER + spare;
        if needed + self.chunk / LOW_WATER <= self.len {
            return Ok(());
        }
        match self.extend(needed) {
            Err(Trouble::Lack(_)) if needed <= self.len => Ok(()),
            result => result,
        }
    }

    /// Writes a record, and makes it durable.
    fn append(&mut self, epoch: u64, changes: &[Change]) -> Result<(), Trouble> {
        let record = record::encode(epoch, self.sequence, &codec::encode(changes));
        let needed = self.end + record.len() + record::HEADER;
        if needed > self.len {
            self.extend(needed)?;
        }
        // A crash may leave the start of the record and not the zeros behind it. The file would look cut short.
        if needed > self.synced {
            self.sync()?;
        }
        // Room was made before, so any error is final.
        self.file.write_at(offset(self.end), &record).map_err(|error| Trouble::Failed("write", error))?;
        self.sync()?;
        self.end += record.len();
        self.sequence += 1;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Trouble> {
        self.file.sync().map_err(|error| Trouble::Failed("sync", error))?;
        self.synced = self.len;
        Ok(())
    }

    /// Writes zeros ahead, to `needed` bytes and a chunk more.
    fn extend(&mut self, needed: usize) -> Result<(), Trouble> {
        let len = needed.max(self.len) + self.chunk;
        let more = vec![0; len - self.len];
        let at = offset(self.len);
        let written = self.file.reserve(at, offset(more.len())).and_then(|()| self.file.write_at(at, &more));
        // Zeros that did get there are as good as none. They become durable together with the record that follows, or before one that
        // reaches them.
        written.map_err(|error| Trouble::of("extend", error))?;
        self.len = len;
        Ok(())
    }
}

/// Puts a file with `snapshot` in the place of the journal.
fn new_file<D: Directory>(
    directory: &D,
    epoch: u64,
    snapshot: &mut dyn Iterator<Item = Change>,
    chunk: usize,
) -> Result<OpenFile<D::File>, Trouble> {
    let written = directory.create(NEW_FILE).and_then(|file| with_snapshot(file, epoch, snapshot, chunk));
    let mut new = written.map_err(|error| Trouble::of("write", error)).inspect_err(|trouble| {
        if matches!(trouble, Trouble::Lack(_)) {
            // Left behind it would only take the room that is wanting; the next opening overwrites it.
            drop(directory.remove(NEW_FILE));
        }
    })?;
    new.sync()?;
    directory.rename(NEW_FILE, FILE).map_err(|error| Trouble::Failed("replace", error))?;
    directory.sync().map_err(|error| Trouble::Failed("sync the directory of", error))?;
    Ok(new)
}

/// Writes `snapshot` to an empty file, in records of about `chunk` bytes, with zeros behind them.
fn with_snapshot<F: DiskFile>(
    mut file: F,
    epoch: u64,
    snapshot: &mut dyn Iterator<Item = Change>,
    chunk: usize,
) -> io::Result<OpenFile<F>> {
    let mut snapshot = snapshot.peekable();
    let mut bytes = MAGIC.to_vec();
    let (mut written, mut sequence, mut in_use) = (0, 0, 0);
    loop {
        let mut payload = codec::Payload::new();
        while payload.len() < chunk
            && let Some(change) = snapshot.next()
        {
            payload.push(&change);
            in_use += usize::from(matches!(change, Change::Reserve { .. } | Change::Contested { .. }));
        }
        let continues = snapshot.peek().is_some();
        bytes.extend(record::encode(epoch, sequence, &payload.finish(continues)));
        sequence += 1;
        if !continues {
            break;
        }
        file.write_at(offset(written), &bytes)?;
        written += bytes.len();
        bytes.clear();
    }
    let end = written + bytes.len();
    let len = end + chunk.max(room_for_releases(in_use) + record::HEADER);
    bytes.resize(len - written, 0);
    file.reserve(offset(written), offset(bytes.len()))?;
    file.write_at(offset(written), &bytes)?;
    let compact_beyond = end + (MIN_COMPACTION * chunk).max(end);
    Ok(OpenFile { file, sequence, end, len, synced: 0, compact_beyond, chunk })
}

#[derive(Default)]
struct Replayed {
    epoch: u64,
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

/// Reads a journal and passes its changes to `apply`, or says what is damaged.
fn replay(file: &[u8], apply: &mut impl FnMut(&Change)) -> Result<Replayed, Damage> {
    let mut read = Replayed::default();
    match replay_into(file, &mut read, apply) {
        Ok(()) => {
            read.torn = file[read.end.min(file.len())..].iter().any(|byte| *byte != 0);
            Ok(read)
        }
        Err(what) => Err(Damage { what, before: read }),
    }
}

fn replay_into(file: &[u8], read: &mut Replayed, apply: &mut impl FnMut(&Change)) -> Result<(), String> {
    if !file.starts_with(&MAGIC) {
        return Err("it does not start as a journal does".to_owned());
    }
    let Some(first) = record::at_if(file, MAGIC.len(), |_, sequence| sequence == 0) else {
        return Err(format!("the snapshot at offset {} is unreadable", MAGIC.len()));
    };
    (read.epoch, read.end) = (first.epoch, MAGIC.len());
    let mut continues = false;
    while let Some(found) = record::at_if(file, read.end, |e, s| (e, s) == (read.epoch, read.sequence)) {
        let decoded = codec::decode(found.payload);
        let decoded = decoded
            .map_err(|why| format!("record {} at offset {} is intact but unknown: {why}", read.sequence, read.end))?;
        decoded.changes.iter().for_each(&mut *apply);
        continues = decoded.continues;
        read.end += found.size();
        read.sequence += 1;
    }
    // No crash can do this: a file is the journal only once its whole snapshot is durable.
    if continues {
        return Err(format!("record {} of the snapshot, at offset {}, is unreadable", read.sequence, read.end));
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

/// A position in a file; `usize` is 64 bits at most.
fn offset(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
