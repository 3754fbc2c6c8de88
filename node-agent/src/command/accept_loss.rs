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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ipam_core::ledger::{Change, Ledger};
    use ipam_node_store::{Opened, Position, RealDirectory};

    use super::*;
    use crate::identity::Identity;
    use crate::note::{Noted, Start, Subject};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn the_position_that_the_agent_compares_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store_file = folder.path().join("store");
        let subject = Subject { node: "n1".into(), namespace: "pools".into() };
        let directory = crate::flags::directory_of(&store_file);
        let compared = [Change::Note { text: subject.text(&Noted::default()) }];
        Opened::read(RealDirectory::lock(&directory).unwrap(), |_| {}).unwrap().begin(compared).unwrap();
        let line = ["accept-loss", "--yes", "--store-file", store_file.to_str().unwrap()];
        run(&Line::parse_from(line).flags).unwrap();
        let journal = ipam_node_store::contents(&directory).unwrap().unwrap();
        assert_eq!(journal.position.epoch, 2, "the command begins another epoch");
        let mut ledger = Ledger::new(0);
        journal.changes.iter().for_each(|change| ledger.apply(change));
        let start = Start::new(subject, &mut ledger, journal.position, Identity::default());
        // The report of the agent can be later than this, and has grants as ended that the journal has as confirmed.
        assert_eq!(start.noted().uncompared, Some(Position { epoch: 1, sequence: 0 }));
        assert!(start.noted().accepts_loss);
    }
}
