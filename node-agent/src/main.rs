//! `ipam-node`: see the library.

use std::process::ExitCode;

// The system's allocator on purpose: one that maps its arenas in huge pages costs an idle agent 8 MiB more, on every node.
fn main() -> ExitCode {
    ipam_node_agent::run::main(std::env::args_os())
}
