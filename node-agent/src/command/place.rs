//! Where the store is, and what it has.

use std::path::{Path, PathBuf};

use clap::Args;
use ipam_core::ledger::Ledger;

use crate::flags::{STORE_FILE, directory_of};
use crate::store::{Contents, contents};

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
        let directory = self.directory();
        let journal = contents(&directory).map_err(|error| error.to_string())?;
        let Some(journal) = journal else { return Err(absent(&directory)) };
        // Addresses in their cooldown are no matter here.
        let mut ledger = Ledger::new(0);
        journal.changes.iter().for_each(|change| ledger.apply(change));
        Ok(Store { ledger, journal })
    }
}

fn absent(directory: &Path) -> String {
    format!(
        "there is no journal in {}; name the --store-file of the agent, on the node itself or in the agent's container",
        directory.display()
    )
}
