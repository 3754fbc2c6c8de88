//! `cargo demo`: see the module `demo`; and `cargo run -p ipam-e2e -- cluster`: see `kubernetes::command`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|word| word == ipam_e2e::warden::AS_WARDEN).is_some() {
        return ipam_e2e::warden::main(arguments);
    }
    if arguments.next_if(|word| word == ipam_e2e::kubernetes::command::NAME).is_some() {
        return ipam_e2e::kubernetes::command::main(arguments);
    }
    ipam_e2e::demo::main(arguments)
}
