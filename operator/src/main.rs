//! `ipam-controller`: assigns blocks of addresses to nodes. All code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_operator::run::main(std::env::args_os())
}
