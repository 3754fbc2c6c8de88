//! `ipam-node store accept-loss`.

use clap::Args;

use super::confirm::Confirm;
use super::place::Place;
use crate::note;

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    confirm: Confirm,
}

/// Makes available what the node's last report has in use and the journal does not have.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let store = flags.place.open()?;
    let change = note::accepting_loss(&store.ledger)?;
    flags.confirm.ask(
        "Addresses that the last report has in use, and that the journal does not have, become available when the agent starts. If pods \
         still use them, they can be assigned twice.",
    )?;
    store.commit(&[change])?;
    Ok("the agent takes its journal for complete when it starts\n".to_owned())
}
