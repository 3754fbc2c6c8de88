//! The helper process of the harness. It decides when things end, and does inside a namespace what must happen inside:
//!
//! * `guard -- CMD`: runs CMD and kills it when stdin closes;
//! * `init [ORIGINALS DIR:NAME,NAME...]`: pid 1 of a pid namespace; it ends, and with it all inside, when stdin closes; the
//!   named entries of each DIR become the namespace's own;
//! * `sweep DIR`: removes DIR when stdin closes;
//! * `sweep-cgroups NAME`: removes the cgroups of this name when stdin closes;
//! * `relay FROM TO`: carries TCP connections across network namespaces by way of a Unix socket;
//! * `get HOST:PORT PATH`: one HTTP request, answer on stdout;
//! * `ping ADDRESS MILLISECONDS`: an ICMP echo, so that no ping program need be installed.
//!
//! The harness holds the other end of each stdin. The kernel closes it however the harness ends, SIGKILL included:
//! nothing here relies on the harness being able to clean up.

mod guard;
mod init;
mod ping;
pub(crate) mod relay;
mod shade;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// First argument by which the programs in [`SELF_SUFFICIENT`] act as a warden.
pub const AS_WARDEN: &str = "warden";
/// Programs that are started by `cargo run`, which builds no helper beside them: they are their own wardens.
const SELF_SUFFICIENT: [&str; 4] = ["demo", "control-plane", "bench", "outage"];

/// Runs the verb that `arguments` name; this is the `main` of the helper process.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            crate::progress::say(&format!("warden: {error:#}"));
            ExitCode::from(125)
        }
    }
}

fn dispatch(arguments: &[OsString]) -> Result<ExitCode> {
    let words: Vec<&str> =
        arguments.iter().map(|word| word.to_str().context("an argument is not UTF-8")).collect::<Result<_>>()?;
    match words.as_slice() {
        ["guard", "--", program, rest @ ..] => guard::run(program, rest),
        ["init", rest @ ..] => init::run(rest),
        ["sweep", directory] => guard::sweep(directory),
        ["sweep-cgroups", name] => guard::sweep_cgroups(name),
        ["relay", from, to] => relay::run(from, to),
        ["get", address, path] => get(address, path),
        ["ping", address, milliseconds] => ping::run(address, milliseconds),
        _ => bail!("no such verb, or wrong arguments: {words:?}"),
    }
}

/// The command that starts a warden; see [`words`].
///
/// # Errors
/// As [`words`].
pub fn command() -> Result<Command> {
    let words = words()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    Ok(command)
}

/// Program and leading arguments of a warden: this very program, or the helper which cargo puts beside the tests of this crate.
/// Never empty.
///
/// # Errors
/// When the helper is not there, that is, when the test was not built by cargo together with this crate's binaries.
pub fn words() -> Result<Vec<OsString>> {
    let here = std::env::current_exe().context("cannot tell the path of this program")?;
    if here.file_stem().is_some_and(|name| SELF_SUFFICIENT.iter().any(|own| name == *own)) {
        return Ok(vec![here.into(), AS_WARDEN.into()]);
    }
    let candidates: Vec<PathBuf> = here.ancestors().skip(1).take(2).map(|folder| folder.join("warden")).collect();
    match candidates.into_iter().find(|path| path.is_file()) {
        Some(path) => Ok(vec![path.into()]),
        None => {
            bail!("the helper `warden` is not beside {}: run `cargo build -p ipam-e2e --bins` first", here.display())
        }
    }
}

fn get(address: &str, path: &str) -> Result<ExitCode> {
    let (code, body) = crate::http::get(address, path)?;
    if code != 200 {
        bail!("{address}{path} answers {code}: {}", body.trim());
    }
    std::io::stdout().write_all(body.as_bytes()).context("the harness has gone")?;
    Ok(ExitCode::SUCCESS)
}

/// Blocks until the harness closes our stdin; what it writes is ignored.
fn wait_for_harness() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}
