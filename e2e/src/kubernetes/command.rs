//! `cargo run -p ipam-e2e -- cluster up|down|status`: a cluster for people.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{Kubernetes, images};
use crate::assets::cache;
use crate::cgroups;
use crate::eventually::eventually_blocking;
use crate::kubectl::Kubectl;
use crate::lock::Lock;
use crate::progress::say;

/// The first argument.
pub const NAME: &str = "cluster";
/// How long a cluster may take to end.
const ENDS: Duration = Duration::from_mins(2);
const USAGE: &str = "usage: cargo run -p ipam-e2e -- cluster up [--nodes NUMBER] | down | status

  up      starts a cluster of 2 nodes in the background, with Multus and the image of nv-ipam
  down    ends it
  status  says where it is and what its nodes say";

/// Runs the command. The exit code is 0 if it succeeds.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = match words.as_slice() {
        ["up"] => up("2"),
        ["up", "--nodes", count] => up(count),
        ["serve", count] => serve(count),
        ["down"] => down(),
        ["status"] => status(),
        ["--help" | "-h"] => print(USAGE),
        _ => Err(anyhow::anyhow!("unknown arguments {words:?}\n{USAGE}")),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("cannot write to stdout")
}

fn file(name: &str) -> Result<PathBuf> {
    Ok(cache::base()?.join(name))
}

/// Held by the process that has the cluster.
fn lock() -> Result<Option<Lock>> {
    Lock::try_take(&file("cluster.lock")?)
}

/// What the process that has the cluster says of it. `None` if there is no cluster.
fn running() -> Result<Option<Value>> {
    if lock()?.is_some() {
        return Ok(None);
    }
    let text = fs::read(file("cluster.json")?).unwrap_or_default();
    Ok(Some(serde_json::from_slice(&text).unwrap_or_default()))
}

fn up(count: &str) -> Result<()> {
    if running()?.is_some() {
        print("There is a cluster already.")?;
        return status();
    }
    let log = file("cluster.log")?;
    let _ = fs::remove_file(file("cluster.json")?);
    let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([NAME, "serve", count])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(out)
        .spawn()
        .context("cannot start the cluster")?;
    let mut shown = 0;
    loop {
        let said = fs::read_to_string(&log).unwrap_or_default();
        // What it says is shown as it comes: a first build takes minutes.
        if let Some(more) = said.get(shown..).filter(|more| !more.is_empty()) {
            write!(std::io::stderr(), "{more}")?;
            shown = said.len();
        }
        if let Some(ended) = child.try_wait()? {
            bail!("the cluster did not start ({ended}); its log is {}", log.display());
        }
        if running()?.is_some_and(|said| said["kubeconfig"].is_string()) {
            return status();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Runs the cluster until a signal ends this process. All processes of the cluster end with it.
fn serve(count: &str) -> Result<()> {
    let _lock = lock()?.context("there is a cluster already")?;
    let count = count.parse().with_context(|| format!("--nodes {count}: write a number from 1 to 9"))?;
    // `cluster down` also ends a cluster that is starting.
    tell(&json!({"pid": std::process::id()}))?;
    let mut cluster = Kubernetes::start(count)?;
    cluster.import(&images::own(cluster.directory())?)?;
    let shells: Vec<Value> = (cluster.nodes().iter())
        .map(|node| json!({"name": node.name(), "shell": node.entrance().shell_line()}))
        .collect();
    tell(&json!({
        "pid": std::process::id(), "kubeconfig": cluster.kubeconfig(), "kubectl": cluster.kubectl().program(),
        "directory": cluster.directory(), "nodes": shells,
    }))?;
    loop {
        std::thread::park();
    }
}

/// Writes what other calls of this command read.
fn tell(said: &Value) -> Result<()> {
    let path = file("cluster.json")?;
    let part = path.with_added_extension("part");
    fs::write(&part, serde_json::to_vec(said)?)?;
    fs::rename(&part, &path).with_context(|| format!("cannot write {}", path.display()))
}

fn down() -> Result<()> {
    let Some(said) = running()? else { return print("There is no cluster.") };
    let pid = said["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    kill_process(pid.context("the cluster has just begun to start: run `cluster down` again")?, Signal::TERM)?;
    // A cluster that is starting has not said where its folder is. The janitors remove it all the same.
    let directory = said["directory"].as_str().map(PathBuf::from);
    eventually_blocking("the cluster ends", ENDS, || {
        ensure!(lock()?.is_some(), "its process runs");
        let Some(directory) = &directory else { return Ok(()) };
        ensure!(!directory.exists(), "{} is there", directory.display());
        cgroups::remove(&directory.file_name().unwrap_or_default().to_string_lossy())
    })?;
    let _ = fs::remove_file(file("cluster.json")?);
    print("The cluster has ended.")
}

fn status() -> Result<()> {
    let Some(said) = running()? else { return print("There is no cluster.") };
    let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
    if text("kubeconfig").is_empty() {
        return print("The cluster is starting.");
    }
    let kubectl = Kubectl::new(text("kubectl").into(), text("kubeconfig").into());
    print(&kubectl.run(&["get", "nodes", "-o", "wide"])?)?;
    print(&format!(
        "export KUBECONFIG={}\nkubectl: {}\nlogs: {}",
        text("kubeconfig"),
        text("kubectl"),
        text("directory")
    ))?;
    for node in said["nodes"].as_array().into_iter().flatten() {
        print(&format!(
            "a shell on {}: {}",
            node["name"].as_str().unwrap_or_default(),
            node["shell"].as_str().unwrap_or_default()
        ))?;
    }
    print(&format!(
        "install: helm install nv-ipam charts/nv-ipam --namespace kube-system --set image.repository={}",
        images::REPOSITORY
    ))
}
