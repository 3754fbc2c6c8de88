//! Where the store is, and what it has. Reads it beside an agent, or opens it for a change while no agent runs.

use std::path::{Path, PathBuf};

use clap::Args;
use ipam_core::ledger::{Change, Ledger};

use crate::flags::{STORE_FILE, directory_of};
use crate::note;
use ipam_node_store::{Contents, Opened, Position, RealDirectory, Store as _, StoreError, contents};

/// Which store.
#[derive(Args, Debug)]
pub(super) struct Place {
    /// The agent's --store-file
    #[arg(long, default_value = STORE_FILE, value_name = "PATH")]
    pub(super) store_file: PathBuf,
}

/// A store that was read.
pub(super) struct Store {
    /// What the agent goes by.
    pub(super) ledger: Ledger,
    /// The journal.
    pub(super) journal: Contents,
}

impl Place {
    /// The folder of the journal.
    pub(super) fn directory(&self) -> PathBuf {
        directory_of(&self.store_file)
    }

    /// Reads the journal. An agent may go on writing it.
    pub(super) fn read(&self) -> Result<Store, String> {
        self.read_if_there()?.ok_or_else(|| absent(&self.directory()))
    }

    /// Reads the journal. `None` if there is none.
    pub(super) fn read_if_there(&self) -> Result<Option<Store>, String> {
        let journal = contents(&self.directory()).map_err(|error| error.to_string())?;
        let store = journal.map(|journal| {
            // Addresses in their cooldown are no matter here.
            let mut ledger = Ledger::new(0);
            journal.changes.iter().for_each(|change| ledger.apply(change));
            Store { ledger, journal }
        });
        Ok(store)
    }

    /// Opens the store for a change.
    pub(super) fn open(&self) -> Result<Writable, Refused> {
        // Before the lock, which would make the folder.
        self.read()?;
        self.open_or_create()
    }

    /// The same. Without a store it begins a new one.
    pub(super) fn open_or_create(&self) -> Result<Writable, Refused> {
        let directory = RealDirectory::lock(&self.directory())?;
        // All cooldowns stay: the agent's flag decides how long they are.
        let mut ledger = Ledger::new(i64::MAX);
        let opened = Opened::read(directory, |change| ledger.apply(change))?;
        Ok(Writable { ledger, opened })
    }
}

/// Why a store cannot be changed.
#[derive(Debug)]
pub(super) enum Refused {
    /// An agent, or another command, uses it.
    InUse(String),
    /// Another reason.
    Failed(String),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked { .. } => Self::InUse(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::InUse(why) | Refused::Failed(why) => why,
        }
    }
}

/// A store that no agent uses.
pub(super) struct Writable {
    /// What the agent goes by.
    pub(super) ledger: Ledger,
    opened: Opened<RealDirectory>,
}

impl Writable {
    /// Makes `changes` durable. Returns whether the journal is a new file, which needs space for a second one.
    pub(super) fn commit(mut self, changes: &[Change]) -> Result<bool, String> {
        let before = self.opened.position();
        for change in changes {
            self.ledger.apply(change);
        }
        // A new file begins a new epoch. The agent still compares the position before it with the report.
        let note = note::opened_at(&self.ledger, before);
        if let Some(change) = &note {
            self.ledger.apply(change);
        }
        let mut journal = self.opened.begin(self.ledger.snapshot()).map_err(|error| error.to_string())?;
        let Position { epoch, .. } = journal.position();
        if epoch > before.epoch {
            return Ok(true);
        }
        let changes: Vec<_> = changes.iter().cloned().chain(note).collect();
        journal.commit(&changes).map_err(|error| error.to_string())?;
        Ok(false)
    }
}

fn absent(directory: &Path) -> String {
    format!(
        "there is no journal in {}; name the --store-file of the agent, on the node itself or in the agent's container",
        directory.display()
    )
}
