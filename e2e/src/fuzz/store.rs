//! The bytes of an agent's journal, and a directory in memory to keep them in.

#![expect(clippy::panic, reason = "a target panics where something does not hold")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipam_core::ledger::{Change, Ledger, Reservation};
use ipam_node_store::{Directory, DiskFile, Journal, Opened, Room, Store as _};

use super::node::reservation;

/// The journal's file.
const FILE: &str = "journal";
/// Start of a journal.
const MAGIC: [u8; 8] = *b"ipamjnl1";
/// Zeros behind the records.
const ROOM: usize = 512;
/// First byte of an input that holds payloads, which become records with a right checksum.
const PAYLOADS: u8 = 1;
/// Longest text about damage, the path included.
const LONGEST: usize = 2_000;

/// A directory in memory. Clones are the same directory.
#[derive(Clone, Default, Debug)]
struct Memory(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Memory {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holding(journal: Vec<u8>) -> Self {
        let memory = Self::default();
        memory.files().insert(FILE.to_owned(), journal);
        memory
    }
}

/// An open file of it.
#[derive(Debug)]
struct MemoryFile {
    memory: Memory,
    /// A file keeps its bytes under another name; the journal is renamed once, right after it was made.
    names: [String; 2],
}

impl Directory for Memory {
    type File = MemoryFile;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.files().get(name).cloned())
    }

    fn create(&self, name: &str) -> io::Result<MemoryFile> {
        self.files().insert(name.to_owned(), Vec::new());
        Ok(MemoryFile { memory: self.clone(), names: [name.to_owned(), FILE.to_owned()] })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        let bytes = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), bytes);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn path_of(&self, name: &str) -> String {
        name.to_owned()
    }
}

impl DiskFile for MemoryFile {
    fn reserve(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        let mut files = self.memory.files();
        let name = self.names.iter().find(|name| files.contains_key(*name)).ok_or(io::ErrorKind::NotFound)?;
        let file = files.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a directory's journal says. Panics where a journal that was written is refused.
fn read(memory: &Memory) -> (Opened<Memory>, Ledger) {
    let mut ledger = Ledger::new(0);
    match Opened::read(memory.clone(), |change| ledger.apply(change)) {
        Ok(opened) => (opened, ledger),
        Err(error) => panic!("a journal that was written is refused: {error}"),
    }
}

/// A journal that begins with what was read.
fn begun(opened: Opened<Memory>, ledger: &Ledger) -> Journal<Memory> {
    match opened.begin(ledger.snapshot()) {
        Ok(journal) => journal,
        Err(error) => panic!("a journal cannot be begun: {error}"),
    }
}

/// The ledger with this history.
pub(super) fn replayed(changes: &[Change]) -> Ledger {
    let mut ledger = Ledger::new(0);
    for change in changes {
        ledger.apply(change);
    }
    ledger
}

/// Each address of a pool has one owner, and each owner one address. What an older store had twice is contested, apart from the first.
pub(super) fn reserved_once(ledger: &Ledger) {
    let (mut addresses, mut owners) = (BTreeSet::new(), BTreeSet::new());
    for change in ledger.snapshot() {
        let Change::Reserve { reservation: Reservation { pool, addr, owner, .. }, .. } = change else { continue };
        assert!(
            addresses.insert((pool.clone(), addr)),
            "{addr} of {pool} is reserved twice, the second time by {owner}"
        );
        assert!(
            owners.insert((pool.clone(), owner.clone())),
            "{owner} has two addresses of {pool}, the second is {addr}"
        );
    }
}

/// All that is held, in an order of its own.
pub(super) fn held(ledger: &Ledger) -> BTreeSet<String> {
    ledger.reservations().map(|held| format!("{held:?}")).collect()
}

pub(super) fn run(data: &[u8]) {
    let bytes = match data.split_first() {
        Some((&PAYLOADS, payloads)) => journal(payloads),
        Some((_, bytes)) => bytes.to_vec(),
        None => return,
    };
    let memory = Memory::holding(bytes);
    let mut ledger = Ledger::new(0);
    let opened = match Opened::read(memory.clone(), |change| ledger.apply(change)) {
        Ok(opened) => opened,
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(FILE) && message.len() < LONGEST, "{message}");
            return;
        }
    };
    reserved_once(&ledger);
    kept(&memory, opened, &ledger);
}

/// What is read is kept by the next start, and by a commit after it.
fn kept(memory: &Memory, opened: Opened<Memory>, ledger: &Ledger) {
    let mut journal = begun(opened, ledger);
    let change = Change::Reserve { reservation: reservation("late"), moves_cursor: false };
    assert!(journal.make_room(1_000, Room::Release).is_ok() && journal.commit(std::slice::from_ref(&change)).is_ok());
    drop(journal);
    let wanted: Vec<Change> = ledger.snapshot().chain([change]).collect();
    assert_eq!(held(&read(memory).1), held(&replayed(&wanted)), "the next start knows of something else");
}

/// A journal of these payloads, each behind its length in two bytes. Written here once more from the description of the format.
fn journal(payloads: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    let (mut rest, mut sequence) = (payloads, 0_u64);
    while let [low, high, tail @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        let (payload, behind) = tail.split_at(length);
        record(&mut file, sequence, payload);
        (rest, sequence) = (behind, sequence + 1);
    }
    file.resize(file.len() + ROOM, 0);
    file
}

fn record(file: &mut Vec<u8>, sequence: u64, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_le_bytes();
    let ids = [1_u64.to_le_bytes(), sequence.to_le_bytes()].concat();
    let checksum = crc32(&[&length[..], &ids, payload].concat());
    file.extend(length);
    file.extend(checksum.to_le_bytes());
    file.extend(ids);
    file.extend(payload);
    file.resize(file.len().next_multiple_of(8), 0);
}

/// CRC-32 of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1));
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// A journal as it is on the disk, and its payloads alone.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let memory = Memory::default();
    let (opened, ledger) = read(&memory);
    let mut journal = begun(opened, &ledger);
    for name in ["a", "b", "c"] {
        let reserve = Change::Reserve { reservation: reservation(name), moves_cursor: true };
        let Reservation { pool, owner, .. } = reservation(name);
        let mut changes = vec![reserve];
        if name == "b" {
            changes.push(Change::Release { pool, owner, at: 7 });
        }
        assert!(journal.commit(&changes).is_ok());
    }
    let written = memory.files().get(FILE).cloned().unwrap_or_default();
    let end = written.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + ROOM).next_multiple_of(8);
    let file = [&[0], &written[..end.min(written.len())]].concat();
    vec![file, payloads(&written[MAGIC.len()..]), vec![PAYLOADS]]
}

fn payloads(records: &[u8]) -> Vec<u8> {
    const HEADER: usize = 24;
    let (mut input, mut rest) = (vec![PAYLOADS], records);
    while let Some(length) = rest.first_chunk::<4>().filter(|length| **length != [0; 4]) {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or_default();
        let Some(payload) = rest.get(HEADER..HEADER + length) else { break };
        input.extend(u16::try_from(length).unwrap_or_default().to_le_bytes());
        input.extend(payload);
        rest = rest.get((HEADER + length).next_multiple_of(8)..).unwrap_or_default();
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_written_here_is_the_agents() {
        let [file, payloads, _] = &seeds()[..] else { panic!("three seeds") };
        let is_not_zero = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).map(|last| bytes[..=last].to_vec());
        assert_eq!(is_not_zero(&journal(&payloads[1..])), is_not_zero(&file[1..]));
        let (_, ledger) = read(&Memory::holding(journal(&payloads[1..])));
        let names: BTreeSet<_> = ledger.reservations().map(|held| held.owner.container_id.clone()).collect();
        assert_eq!(names, ["a".to_owned(), "c".to_owned()].into());
    }
}
