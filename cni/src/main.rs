//! The plugin's process: hands environment and standard input to the library, writes its answer, ends.

use std::io::Write;

use ipam_cni::{Defaults, Invocation, run};

fn main() {
    let invocation = Invocation { environment: std::env::vars_os().collect(), stdin: std::io::stdin().lock() };
    let outcome = run(invocation, &Defaults::default());
    // Whom could a failed write to standard error be reported to?
    let _ = std::io::stderr().write_all(outcome.stderr.as_bytes());
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(outcome.stdout.as_bytes()).and_then(|()| stdout.flush());
    // A result that did not reach the runtime is no success.
    end(if written.is_ok() { outcome.status } else { 1 });
}

#[expect(clippy::exit, reason = "the work is done; unwinding what the kernel frees anyway takes longer than the call")]
fn end(status: u8) -> ! {
    std::process::exit(i32::from(status))
}
