//! The CNI plugin's ADD as a runtime calls it, by turns with the cheapest program there is.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::agent::Agent;
use super::finding::Finding;
use super::lone::{Lone, POOL};
use super::stats::{Samples, Unit};
use ipam_e2e::binaries;

const RUNS: u32 = 500;
/// The first runs fill the page cache and are not counted.
const WARM_UP: u32 = 20;
const RATIO_AIM: f64 = 1.4;
/// Plugins of a wave.
const WAVE: u32 = 500;
/// Of them, those that run at a time.
const AT_ONCE: u32 = 32;
const WAVES: u32 = 5;
const WAVE_AIM: f64 = 1.1;

pub(super) fn measure(lone: &mut Lone<'_>) -> Result<Vec<Finding>> {
    let plugin = &binaries::build()?.plugin;
    let config = configuration(&lone.agent)?;
    let (mut adds, mut nothings) = (Vec::new(), Vec::new());
    for number in 0..WARM_UP + RUNS {
        let (nothing, _) = timed(Path::new("/bin/true"), "ADD", number, &config)?;
        let (add, answer) = timed(plugin, "ADD", number, &config)?;
        let answer: Value = serde_json::from_slice(&answer).context("ADD answers no JSON")?;
        ensure!(answer["ips"][0]["address"].is_string(), "ADD answers {answer}");
        if number >= WARM_UP {
            adds.push(add);
            nothings.push(nothing);
        }
    }
    for number in 0..WARM_UP + RUNS {
        timed(plugin, "DEL", number, &config)?;
    }
    let waves = waves(plugin, &config)?;
    let ratios = adds.iter().zip(&nothings).map(|(add, nothing)| add.div_duration_f64(*nothing));
    let ratios = Samples::new(Unit::Ratio, ratios);
    let (adds, nothings) = (Samples::times(adds), Samples::times(nothings));
    Ok(vec![
        Finding::new("plugin ADD against `/bin/true`, pairs by turns", ratios)
            .reference("8.7 ×")
            .at_most(RATIO_AIM)
            .also(format!("ADD {}, p99 {}; `/bin/true` {}", adds.show(50), adds.show(99), nothings.show(50))),
        waves,
    ])
}

/// Many plugins at a time, as when a node starts all its pods.
fn waves(plugin: &Path, config: &Path) -> Result<Finding> {
    let (mut ratios, mut adds) = (Vec::new(), Vec::new());
    for _ in 0..WAVES {
        let nothing = wave(Path::new("/bin/true"), "ADD", config)?;
        let add = wave(plugin, "ADD", config)?;
        wave(plugin, "DEL", config)?;
        ratios.push(add.div_duration_f64(nothing));
        adds.push(add);
    }
    let what = format!("{WAVE} plugins, {AT_ONCE} at a time, against as many of `/bin/true`");
    let took = Samples::times(adds).show(50);
    Ok(Finding::new(what, Samples::new(Unit::Ratio, ratios))
        .reference("7–8 ×")
        .at_most(WAVE_AIM)
        .also(format!("all plugins {took}")))
}

/// How long all programs of a wave take together.
fn wave(program: &Path, verb: &str, config: &Path) -> Result<Duration> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let starter = |first: u32| {
            let mut numbers = (first..WAVE).step_by(AT_ONCE as usize);
            move || numbers.try_for_each(|number| timed(program, verb, number, config).map(drop))
        };
        let starters: Vec<_> = (0..AT_ONCE).map(|first| scope.spawn(starter(first))).collect();
        starters.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow!("a thread has panicked"))?)
    })?;
    Ok(began.elapsed())
}

/// The network configuration as a runtime gives it on stdin, in a file.
fn configuration(agent: &Agent) -> Result<std::path::PathBuf> {
    let path = agent.home().join("net.conf");
    let config = json!({
        "cniVersion": "1.0.0", "name": "bench", "type": "macvlan",
        "ipam": {
            "type": "nv-ipam", "poolName": POOL, "daemonSocket": agent.address().to_string(),
            "confDir": agent.home(), "logFile": agent.home().join("cni.log"),
        },
    });
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// From the start of the program until its end has been seen and its output read; and the output.
fn timed(program: &Path, verb: &str, number: u32, config: &Path) -> Result<(Duration, Vec<u8>)> {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", format!("{number:064x}"))
        .env("CNI_IFNAME", "eth9")
        .env("CNI_NETNS", "/var/run/netns/none")
        .env("CNI_PATH", "/opt/cni/bin")
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-{number};K8S_POD_UID=u-{number}"),
        )
        .stdin(Stdio::from(File::open(config)?))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let began = Instant::now();
    let output = command.spawn().with_context(|| format!("cannot start {}", program.display()))?.wait_with_output()?;
    let took = began.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{} {verb}: {}: {said}", program.display(), output.status);
    Ok((took, output.stdout))
}
