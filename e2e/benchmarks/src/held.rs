//! One agent with no address in use, with 10,000 and with 100,000: ADD, its record, restart and memory.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::runtime::Runtime;

use super::agent::Agent;
use super::calls::{SyncProbe, all, deadline, parameters};
use super::finding::Finding;
use super::lone::POOL;
use super::stage::Stage;
use super::stats::{Samples, Unit, number};

const NODE: &str = "held.example.org";
const ADDS: u32 = 1_000;
const RECORDS: u32 = 20;
const RESTARTS: u32 = 10;
/// Time that an ADD may take beyond one fdatasync.
const ADD_AIM: f64 = 0.000_15;
const RECORD_AIM: f64 = 512.0;
const MIB: f64 = 1024.0;

/// What is due with so many addresses in use.
struct Level {
    held: u32,
    /// Seconds from the start of the process to its first answer.
    restart: f64,
    /// KiB.
    memory: f64,
}

const LEVELS: [Level; 3] = [
    Level { held: 0, restart: 0.03, memory: 8.0 * MIB },
    Level { held: 10_000, restart: 0.05, memory: 12.0 * MIB },
    Level { held: 100_000, restart: 0.15, memory: 40.0 * MIB },
];

pub(super) fn measure(stage: &Stage<'_>) -> Result<Vec<Finding>> {
    let block = json!({
        "name": POOL, "poolType": "IPPool", "grant": "6500000000000001", "state": "Active", "subnet": "10.0.0.0/14",
        "gateway": "10.0.0.1", "startIP": "10.0.0.1", "endIP": "10.3.255.254",
    });
    stage.assign(NODE, &json!([block]))?;
    let mut agent = Agent::start(stage, NODE, stage.plane.port())?;
    agent.await_answers(stage.runtime)?;
    let (mut findings, mut held) = (Vec::new(), 0);
    for level in LEVELS {
        stage.runtime.block_on(all(&agent.address(), held..level.held, true))?;
        held = level.held;
        findings.extend(on_level(stage.runtime, &mut agent, &level)?);
    }
    Ok(findings)
}

fn on_level(runtime: &Runtime, agent: &mut Agent, level: &Level) -> Result<[Finding; 4]> {
    let named = |what: &str| match level.held {
        0 => format!("agent without an address in use: {what}"),
        held => format!("agent with {} addresses in use: {what}", thousands(held)),
    };
    let Adds { beyond, whole, syncs, kept } = adds(runtime, agent, level.held)?;
    let record = record_bytes(runtime, agent, level.held)?;
    agent.stop()?;
    let starts = (0..RESTARTS).map(|_| first_answer(runtime, agent)).collect::<Result<Vec<_>>>()?;
    agent.start_again()?;
    agent.await_answers(runtime)?;
    agent.meter().settle(Duration::from_secs(2))?;
    let memory = agent.meter().memory()?;
    let most = Unit::Memory.show(number(memory.most));
    let shown =
        format!("ADD {}, one fdatasync {}; on a kept connection ADD {}", whole.show(50), syncs.show(50), kept.show(50));
    Ok([
        Finding::new(named("ADD beyond one fdatasync, pairs by turns"), beyond).at_most(ADD_AIM).also(shown),
        Finding::new(named("bytes of the journal for an ADD"), record).at_most(RECORD_AIM),
        Finding::new(named("start of the process → first answer"), Samples::times(starts)).at_most(level.restart),
        Finding::new(named("memory after a restart"), Samples::counts(Unit::Memory, [memory.now]))
            .at_most(level.memory)
            .also(format!("at most {most}")),
    ])
}

/// 10000 as `10,000`.
fn thousands(number: u32) -> String {
    format!("{},{:03}", number / 1_000, number % 1_000)
}

struct Adds {
    /// Of each pair, how much longer than the fdatasync the ADD took.
    beyond: Samples,
    /// ADDs with a connection of their own, as a plugin makes it.
    whole: Samples,
    syncs: Samples,
    /// ADDs on one connection.
    kept: Samples,
}

/// ADDs, each behind an fdatasync of this program; each address is freed again, unmeasured.
fn adds(runtime: &Runtime, agent: &Agent, held: u32) -> Result<Adds> {
    let (mut probe, address) = (SyncProbe::new(agent)?, agent.address());
    let keeper = runtime.block_on(AgentClient::connect(&address, deadline()))?;
    let (mut beyond, mut whole, mut syncs, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in held..held + ADDS {
        let sync = probe.time()?;
        let (add, on_kept) = runtime.block_on(async {
            let began = Instant::now();
            let client = AgentClient::connect(&address, deadline()).await?;
            client.allocate(parameters(number), deadline()).await?;
            let add = began.elapsed();
            client.deallocate(parameters(number), deadline()).await?;
            let began = Instant::now();
            keeper.allocate(parameters(number), deadline()).await?;
            let on_kept = began.elapsed();
            keeper.deallocate(parameters(number), deadline()).await?;
            anyhow::Ok((add, on_kept))
        })?;
        beyond.push(add.saturating_sub(sync));
        whole.push(add);
        syncs.push(sync);
        kept.push(on_kept);
    }
    let [beyond, whole, syncs, kept] = [beyond, whole, syncs, kept].map(Samples::times);
    Ok(Adds { beyond, whole, syncs, kept })
}

/// How much the journal grows by an ADD.
fn record_bytes(runtime: &Runtime, agent: &Agent, held: u32) -> Result<Samples> {
    let folder = agent.home().join("store.d");
    let used = || {
        let contents = ipam_node_store::contents(&folder)?.context("the agent has no journal")?;
        anyhow::Ok((contents.position.epoch, contents.used))
    };
    // A compaction within the samples makes the journal shorter: then others are taken.
    for _ in 0..3 {
        let (before, mut grown) = (used()?, Vec::new());
        let (mut last, range) = (before.1, held..held + RECORDS);
        for number in range.clone() {
            runtime.block_on(all(&agent.address(), number..number + 1, true))?;
            let now = used()?.1;
            grown.push(u64::try_from(now.saturating_sub(last))?);
            last = now;
        }
        runtime.block_on(all(&agent.address(), range, false))?;
        if used()?.0 == before.0 {
            return Ok(Samples::counts(Unit::Bytes, grown));
        }
    }
    anyhow::bail!("the journal was compacted again and again")
}

/// An agent that is ended when it is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts the agent; answers how long it took to answer a call. Then ends it.
fn first_answer(runtime: &Runtime, agent: &Agent) -> Result<Duration> {
    let mut command: Command = agent.command()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let mut started = Started(command.spawn().context("cannot start the agent")?);
    let took = runtime.block_on(async {
        answer(&agent.address()).await?;
        anyhow::Ok(began.elapsed())
    })?;
    kill_process(Pid::from_child(&started.0), Signal::TERM)?;
    let status = started.0.wait()?;
    ensure!(status.success(), "the agent ended with {status}");
    Ok(took)
}

/// Waits until the agent answers a CHECK, whatever the answer.
async fn answer(address: &AgentAddress) -> Result<()> {
    let until = deadline();
    loop {
        if let Ok(client) = AgentClient::connect(address, until).await {
            match client.is_allocated(parameters(0), until).await {
                Err(status) if status.code() != tonic::Code::NotFound => {}
                _ => return Ok(()),
            }
        }
        ensure!(tokio::time::Instant::now() < until, "the agent does not answer");
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}
