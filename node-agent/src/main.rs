//! `ipam-node`: see the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ipam_node_agent::run::main(std::env::args_os())
}
