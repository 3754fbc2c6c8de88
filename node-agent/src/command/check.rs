//! `ipam-node store check`.

use std::collections::BTreeSet;

use clap::Args;

use super::place::Place;
use ipam_node_store::Position;

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
}

/// What the journal has; an error if it cannot be read to its last record.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let store = flags.place.read()?;
    let pools: BTreeSet<_> = store.ledger.reservations().map(|held| held.pool).collect();
    let Position { epoch, sequence } = store.journal.position;
    let mut text = format!(
        "{} is intact: epoch {epoch}, sequence {sequence}, {} of {} bytes used\naddresses in use: {}\npools with addresses in use: {}\n",
        store.journal.file,
        store.journal.used,
        store.journal.bytes,
        store.ledger.in_use(),
        pools.len()
    );
    if store.journal.is_torn {
        text.push_str(
            "behind the last record is one that was cut off; no answer depends on it, and the next start drops it\n",
        );
    }
    Ok(text)
}
