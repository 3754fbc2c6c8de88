//! `ipam-controller`: gives blocks of addresses to nodes. Everything is in the library.

use std::process::ExitCode;

/// Gives memory of a burst back to the system, which glibc's allocator does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ipam_operator::run::main(std::env::args_os())
}
