//! `ipam-node store`: looks at the agent's store without the agent, changes it, and takes it to another program and back.
//!
//! What only reads needs no lock, and works beside an agent that runs. What writes takes the lock of the store, so that it is refused while an
//! agent runs. `release` lets a running agent do it.

mod accept_loss;
mod check;
mod compact;
mod confirm;
mod export;
mod import;
mod place;
mod release;
mod show;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Name of the command.
pub const NAME: &str = "store";

/// Look at the store of the agent on this node, repair it, or take it to another program
#[derive(Parser, Debug)]
#[command(name = "ipam-node store", bin_name = "ipam-node store")]
#[command(
    after_help = "Exit status: 0 done, 1 the store cannot be read or written, or is damaged, 2 wrong command line"
)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the addresses in use, and by which pods
    Show(show::Flags),
    /// Read the whole store, and print how far it has come; exit status 1 if it is damaged
    Check(check::Flags),
    /// Print the store in the format of nv-ipam, or write it where nv-ipam reads it
    Export(export::Flags),
    /// Take over the addresses of a store of nv-ipam or host-local
    Import(import::Flags),
    /// Free one address, as CNI DEL does
    Release(release::Flags),
    /// Replace the journal by one that has only what counts
    Compact(compact::Flags),
    /// Make addresses available that the last report has in use and the journal does not have
    AcceptLoss(accept_loss::Flags),
}

/// Runs the command; `args` are those after its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = std::iter::once(OsString::from(NAME)).chain(args);
    let flags = match Flags::try_parse_from(args) {
        Ok(flags) => flags,
        Err(usage) => return ipam_daemon::print_usage(&usage),
    };
    let done = match &flags.command {
        Command::Show(flags) => show::run(flags),
        Command::Check(flags) => check::run(flags),
        Command::Export(flags) => export::run(flags),
        Command::Import(flags) => import::run(flags),
        Command::Release(flags) => release::run(flags),
        Command::Compact(flags) => compact::run(flags),
        Command::AcceptLoss(flags) => accept_loss::run(flags),
    };
    match done.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            drop(writeln!(io::stderr(), "ipam-node store: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader, such as `head`, has ended.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| format!("cannot write to the standard output: {error}")),
    }
}
