//! A simulated disk for tests and for the simulator; the agent itself never uses it. It knows live from durable bytes, its
//! power can be cut at any step, a sync can fail, and it can be full or read-only.
//!
//! What was not synced may survive a cut in any part: every 512 byte sector of a write by itself, in any order; the
//! length of a file; creations and renames in their order up to some point.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Directory, DiskFile};

const SECTOR: usize = 512;

/// Handle of a disk. Clones are handles of the same disk.
#[derive(Clone, Default, Debug)]
pub struct FakeDisk(Arc<Mutex<State>>);

#[derive(Clone, Default, Debug)]
struct State {
    inodes: Vec<Inode>,
    live: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    unsynced_names: Vec<BTreeMap<String, usize>>,
    steps: usize,
    cut_at: Option<usize>,
    fail_sync_at: Option<usize>,
    syncs: usize,
    failed_syncs: usize,
    room: Option<usize>,
    /// The error of a write without room, if it is not the one of a full disk.
    full: Option<io::ErrorKind>,
    copies_on_write: bool,
    lies: bool,
    read_only: bool,
}

#[derive(Clone, Default, Debug)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

/// A file of the disk, open for writing.
#[derive(Debug)]
pub struct FakeFile {
    disk: FakeDisk,
    inode: usize,
}

impl FakeDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps done so far.
    pub fn steps(&self) -> usize {
        self.state().steps
    }

    /// Syncs of files done or tried so far.
    pub fn syncs(&self) -> usize {
        self.state().syncs
    }

    /// Cuts the power before step `step`; that one and all later ones fail.
    pub fn cut_at(&self, step: usize) {
        self.state().cut_at = Some(step);
    }

    /// Ends the power cut. What was written before it is still live, as after the kill of a process.
    pub fn end_cut(&self) {
        self.state().cut_at = None;
    }

    /// Lets the file sync number `sync` fail.
    pub fn fail_sync_at(&self, sync: usize) {
        self.state().fail_sync_at = Some(sync);
    }

    /// Syncs of files that have failed.
    pub fn failed_syncs(&self) -> usize {
        self.state().failed_syncs
    }

    /// Makes every change fail, or work again.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    /// Bytes that all files together may take; `None` is no limit.
    pub fn set_room(&self, room: Option<usize>) {
        self.state().room = room;
    }

    /// Makes the limit of [`FakeDisk::set_room`] a quota. Otherwise it is the size of the disk.
    pub fn set_quota(&self) {
        self.state().full = Some(io::ErrorKind::QuotaExceeded);
    }

    /// Lets a write over a file need as much room as it has bytes, or not.
    pub fn set_copy_on_write(&self, copies: bool) {
        self.state().copies_on_write = copies;
    }

    /// Lets each sync succeed without an effect, or not.
    pub fn set_lies(&self, lies: bool) {
        self.state().lies = lies;
    }

    /// Whether the power is cut.
    pub fn is_cut(&self) -> bool {
        let state = self.state();
        state.cut_at.is_some_and(|at| state.steps >= at)
    }

    /// Leaves no room beyond what all files take now.
    pub fn fill(&self) {
        let mut state = self.state();
        let taken = state.live.values().map(|inode| state.inodes[*inode].live.len()).sum();
        state.room = Some(taken);
    }

    /// Puts `bytes` where the file `name` is, durably.
    pub fn overwrite(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let inode = Inode { live: bytes.clone(), durable: bytes, unsynced: Vec::new() };
        state.inodes.push(inode);
        let index = state.inodes.len() - 1;
        state.live.insert(name.to_owned(), index);
        state.durable.insert(name.to_owned(), index);
    }

    /// Whether there is such a file.
    pub fn has(&self, name: &str) -> bool {
        self.state().live.contains_key(name)
    }

    /// The live bytes of a file; empty without the file.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.live.get(name).map(|inode| state.inodes[*inode].live.clone()).unwrap_or_default()
    }

    /// Another disk with the live files of this one, all of them durable.
    #[must_use]
    pub fn copied(&self) -> Self {
        let copy = Self::default();
        let files = self.state();
        files.live.iter().for_each(|(name, inode)| copy.overwrite(name, files.inodes[*inode].live.clone()));
        drop(files);
        copy
    }

    /// The disk as a reboot may find it after a power cut now; `choose` decides what of the unsynced survives.
    #[must_use]
    pub fn after_cut(&self, choose: &mut dyn FnMut() -> bool) -> Self {
        let state = self.state();
        let mut names = state.durable.clone();
        for later in &state.unsynced_names {
            if !choose() {
                break;
            }
            names.clone_from(later);
        }
        let inodes = state.inodes.iter().map(|inode| inode.after_cut(choose)).collect();
        Self(Arc::new(Mutex::new(State { inodes, live: names.clone(), durable: names, ..State::default() })))
    }
}

impl Inode {
    fn after_cut(&self, choose: &mut dyn FnMut() -> bool) -> Self {
        let mut bytes = self.durable.clone();
        if self.live.len() > bytes.len() && choose() {
            bytes.resize(self.live.len(), 0);
        }
        for (offset, written) in &self.unsynced {
            for (index, byte_run) in sectors(*offset, written) {
                if choose() {
                    let end = index + byte_run.len();
                    if end > bytes.len() {
                        bytes.resize(end, 0);
                    }
                    bytes[index..end].copy_from_slice(byte_run);
                }
            }
        }
        Self { live: bytes.clone(), durable: bytes, unsynced: Vec::new() }
    }
}

/// A write cut where sectors end, as (offset, bytes).
fn sectors(offset: usize, bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut out = Vec::new();
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let (head, tail) = rest.split_at((SECTOR - at % SECTOR).min(rest.len()));
        out.push((at, head));
        at += head.len();
        rest = tail;
    }
    out
}

/// A position in a file.
fn place(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        if self.cut_at.is_some_and(|at| self.steps >= at) {
            return Err(io::Error::other("power cut"));
        }
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.steps += 1;
        Ok(())
    }

    fn rename_done(&mut self) {
        let names = self.live.clone();
        self.unsynced_names.push(names);
    }

    fn check_room(&self, inode: usize, len: usize) -> io::Result<()> {
        let others: usize = self.live.values().filter(|i| **i != inode).map(|i| self.inodes[*i].live.len()).sum();
        match self.room {
            Some(room) if others + len.max(self.inodes[inode].live.len()) > room => {
                Err(io::Error::from(self.full.unwrap_or(io::ErrorKind::StorageFull)))
            }
            _ => Ok(()),
        }
    }
}

impl Directory for FakeDisk {
    type File = FakeFile;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let state = self.state();
        Ok(state.live.get(name).map(|inode| state.inodes[*inode].live.clone()))
    }

    fn create(&self, name: &str) -> io::Result<FakeFile> {
        let mut state = self.state();
        state.step()?;
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.live.insert(name.to_owned(), inode);
        state.rename_done();
        Ok(FakeFile { disk: self.clone(), inode })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let inode = state.live.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.live.insert(to.to_owned(), inode);
        state.rename_done();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.live.remove(name);
        state.rename_done();
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        if state.lies {
            return Ok(());
        }
        state.durable = state.live.clone();
        state.unsynced_names.clear();
        Ok(())
    }

    fn path_of(&self, name: &str) -> String {
        format!("fake/{name}")
    }
}

impl DiskFile for FakeFile {
    fn reserve(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let len = place(offset.saturating_add(len))?;
        state.check_room(self.inode, len)?;
        let inode = &mut state.inodes[self.inode];
        inode.live.resize(len.max(inode.live.len()), 0);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let start = place(offset)?;
        let copied = if state.copies_on_write { state.inodes[self.inode].live.len() + bytes.len() } else { 0 };
        state.check_room(self.inode, copied.max(start + bytes.len()))?;
        // A write that the cut hits is under way: any part of it may have reached the disk.
        let cut = state.step();
        if state.read_only {
            return cut;
        }
        let inode = &mut state.inodes[self.inode];
        inode.live.resize((start + bytes.len()).max(inode.live.len()), 0);
        inode.live[start..start + bytes.len()].copy_from_slice(bytes);
        inode.unsynced.push((start, bytes.to_vec()));
        cut
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.syncs += 1;
        if state.fail_sync_at == Some(state.syncs) {
            state.failed_syncs += 1;
            return Err(io::Error::other("bad sector"));
        }
        if state.lies {
            return Ok(());
        }
        let inode = &mut state.inodes[self.inode];
        inode.durable = inode.live.clone();
        inode.unsynced.clear();
        Ok(())
    }
}
