//! A control plane to play with: `cargo run -p ipam-e2e --bin control-plane`. Prints where it is, and runs until it is ended.
//! With `--tools` it prints the programs that the tests use, with version and origin, and ends.

use std::io::Write;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|word| word == ipam_e2e::warden::AS_WARDEN).is_some() {
        return Ok(ipam_e2e::warden::main(arguments));
    }
    if arguments.next_if(|word| word == "--tools").is_some() {
        for line in ipam_e2e::assets::origins() {
            writeln!(std::io::stdout(), "{line}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let plane = ipam_e2e::ControlPlane::start()?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "export KUBECONFIG={}", plane.kubeconfig().display())?;
    writeln!(stdout, "kubectl: {}", plane.kubectl().program().display())?;
    stdout.flush()?;
    loop {
        std::thread::park();
    }
}
