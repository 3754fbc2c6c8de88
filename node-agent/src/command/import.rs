//! `ipam-node store import`: takes over the addresses of an older store that is in another place than the agent looks.

use std::path::PathBuf;

use clap::Args;
use ipam_core::ledger::Ledger;

use super::place::Place;
use crate::import::{Import, Preview};

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
    /// A store file of nv-ipam, or a folder of host-local with a folder for each pool
    #[arg(long, value_name = "PATH")]
    from: PathBuf,
    /// Only print what would be imported
    #[arg(long)]
    dry_run: bool,
}

/// Imports the store, or prints what that would do.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let import = if flags.from.is_dir() { Import::read_folders(&flags.from) } else { Import::read(&flags.from) };
    let import = import.map_err(|error| error.to_string())?;
    let Some(import) = import else { return Err(format!("{} has no store of nv-ipam", flags.from.display())) };
    if flags.dry_run {
        let ledger = flags.place.read_if_there()?.map_or_else(|| Ledger::new(0), |store| store.ledger);
        return Ok(text(&import.preview(&ledger), "would be imported"));
    }
    let store = flags.place.open_or_create()?;
    let preview = import.preview(&store.ledger);
    // The admin asks for what this store has, also for what was freed after an earlier import.
    let news = import.news(&store.ledger);
    store.commit(&news)?;
    Ok(text(&preview, "imported"))
}

fn text(preview: &Preview, done: &str) -> String {
    let Preview { new, known, conflicts } = preview;
    let mut lines = vec![format!("addresses {done}: {}", new.len())];
    lines.extend(new.iter().map(|address| format!("  {address}")));
    lines.push(format!("addresses that the journal has already: {known}"));
    if !conflicts.is_empty() {
        lines.push(format!("contested, so unavailable until both pods are gone: {}", conflicts.len()));
        lines.extend(conflicts.iter().map(|conflict| format!("  {conflict}")));
    }
    lines.join("\n") + "\n"
}
