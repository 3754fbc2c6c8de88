//! `ipam-node store export`: the way back to NVIDIA's agent.

use std::path::Path;

use clap::{Args, ValueEnum};

use super::place::{Place, Store};
use crate::files;
use crate::import::{Import, nv_ipam};
use ipam_node_store::RealDirectory;

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::NvIpamV1)]
    format: Format,
    /// Write --store-file, on which nv-ipam then starts, instead of printing. No agent may run
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// The store file of nv-ipam, version 1
    #[value(name = "nv-ipam-v1")]
    NvIpamV1,
}

/// The text of the store, or a sentence about where it was written.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let Format::NvIpamV1 = flags.format;
    if !flags.write {
        return text_of(&flags.place.read()?);
    }
    // Before the lock, which would make the folder.
    flags.place.read()?;
    let _lock = RealDirectory::lock(&flags.place.directory()).map_err(|error| error.to_string())?;
    let store = flags.place.read()?;
    let path = &flags.place.store_file;
    check_known(path, &store)?;
    files::replace(path, text_of(&store)?.as_bytes(), 0o600)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(format!(
        "{} has the {} addresses in use; nv-ipam starts on it. ipam-node imports it again when it starts\n",
        path.display(),
        store.ledger.in_use()
    ))
}

fn text_of(store: &Store) -> Result<String, String> {
    nv_ipam::text(&store.ledger).map_err(|error| format!("cannot encode the store: {error}"))
}

/// What is in the place of the file is not lost: the journal has it.
fn check_known(path: &Path, store: &Store) -> Result<(), String> {
    let import = Import::read(path).map_err(|error| error.to_string())?;
    if import.is_some_and(|import| import.has_news(&store.ledger)) {
        return Err(format!(
            "{} has addresses that the journal does not have. Start ipam-node once, which imports them, and stop it again",
            path.display()
        ));
    }
    Ok(())
}
