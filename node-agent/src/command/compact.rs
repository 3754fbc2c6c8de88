//! `ipam-node store compact`.

use clap::Args;

use super::place::Place;

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
}

/// Replaces the journal by one that has only what counts.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let before = flags.place.read()?.journal;
    if !flags.place.open()?.commit(&[])? {
        return Err(format!("there is no space for a second file beside {}, so nothing was changed", before.file));
    }
    let after = flags.place.read()?.journal;
    Ok(format!(
        "{}: {} of {} bytes used, before {} of {}\n",
        after.file, after.used, after.bytes, before.used, before.bytes
    ))
}
