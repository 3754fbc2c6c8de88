//! The benchmark table: `cargo benchmarks`; see the crate `ipam_benchmarks`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|word| word == ipam_e2e::warden::AS_WARDEN).is_some() {
        return ipam_e2e::warden::main(arguments);
    }
    ipam_benchmarks::main(arguments)
}
