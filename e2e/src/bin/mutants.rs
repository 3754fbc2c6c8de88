//! Plays mutants of the real code in the simulator and in tests: see the module `mutants`.

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    ipam_e2e::mutants::main(std::env::args().skip(1))
}
