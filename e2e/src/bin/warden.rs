//! The harness's helper process; see the module `warden`.

fn main() -> std::process::ExitCode {
    ipam_e2e::warden::main(std::env::args_os().skip(1))
}
