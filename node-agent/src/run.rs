//! Wiring: from the command line to all tasks and back to an exit code.
//!
//! Decides the order of things. Start: flags, paths, log, store, allocator, saved blocks, socket, CNI plugin, then what
//! needs the API server. End: no new calls, those under way finish, the allocator's thread ends, the lock is let go.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ipam_core::ledger::Ledger;
use ipam_daemon::http::Check;
use ipam_daemon::{Mistakes, Shutdown, Site, cluster};
use ipam_node_api::spool::Spool;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::allocator::{Allocator, Ended, system_clock};
use crate::command;
use crate::contact::Offline;
use crate::flags::{Config, Flags};
use crate::gc::Collector;
use crate::identity::Identity;
use crate::import::{self, Import};
use crate::install::install;
use crate::metrics::Metrics;
use crate::note::{Start, Subject};
use crate::ready::Readiness;
use crate::reclaimer::Reclaimer;
use crate::room;
use crate::rpc::Rpc;
use crate::runtime::Runtime;
use crate::socket::Listener;
use crate::spool;
use crate::status::Reporter;
use crate::watch::{Blocks, FIRST_WORD, events};
use ipam_node_store::{Damaged, Opened, Position, Read, RealDirectory, Store as _, StoreError};

/// Time that calls under way have at the end.
const CALLS_GRACE: Duration = Duration::from_secs(3);
/// Time that everything together has at the end.
const GRACE: Duration = Duration::from_secs(10);

/// The program: runs until a signal, or until it cannot go on. 0 after an orderly end, 2 for a wrong command line, 1 else.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    let program = args.next();
    if args.next_if(|argument| argument == command::NAME).is_some() {
        return command::main(args);
    }
    let args = program.into_iter().chain(args);
    let mut mistakes = Mistakes::default();
    let config = match ipam_daemon::flags::parse_known::<Flags>(args, &mut mistakes) {
        Ok(flags) => flags.read(mistakes).and_then(|config| config.check_paths().map(|()| config)),
        Err(usage) => return ipam_daemon::print_usage(&usage),
    };
    let config = match config {
        Ok(config) => config,
        Err(mistakes) => return wrong_flags(&mistakes),
    };
    let log = config.common.log.install();
    let result = log.map_err(anyhow::Error::from).and_then(|flusher| {
        let result = start(&config);
        if let Err(error) = &result {
            error!(error = format!("{error:#}"), "ipam-node ends");
        }
        drop(flusher);
        result
    });
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn wrong_flags(mistakes: &Mistakes) -> ExitCode {
    use std::io::Write as _;
    drop(writeln!(std::io::stderr(), "ipam-node: {mistakes}"));
    ExitCode::from(2)
}

/// One thread for everything but the allocator: the agent is small and mostly waits.
fn start(config: &Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(run(config));
    // A task that hangs, for example in a name lookup, must not keep the process.
    runtime.shutdown_background();
    result
}

async fn run(config: &Config) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    info!(version = env!("CARGO_PKG_VERSION"), node = config.node, "ipam-node starts");
    let (metrics, registry) = Metrics::registered();
    let agent = Agent::open(config, metrics, Arc::new(registry), &shutdown).await?;
    shutdown.bounded(GRACE, agent.serve(config, &shutdown.stop)).await?
}

/// The agent, ready to serve.
struct Agent {
    allocator: Allocator,
    ended: Ended,
    listener: Listener,
    blocks: Blocks,
    in_force: watch::Receiver<Option<crate::watch::InForce>>,
    readiness: Readiness,
    metrics: Arc<Metrics>,
}

impl Agent {
    async fn open(
        config: &Config,
        metrics: Arc<Metrics>,
        registry: Arc<Registry>,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Self> {
        let readiness = Readiness::default();
        serve_http(config, &readiness, registry, &shutdown.stop).await?;
        // First the lock, so that this agent takes no socket from one of its kind that still ends. Then the socket, so that no other
        // agent serves when the older store is read. Callers wait meanwhile.
        let directory = RealDirectory::lock(&config.store_directory())?;
        let listener = Listener::bind(&config.bind)?;
        let (allocator, ended, start) = open_store(config, directory, &metrics)?;
        let (told, in_force) = watch::channel(None);
        let blocks = Blocks::new(allocator.clone(), start, readiness.clone(), told);
        let mut blocks = blocks.with_grace(config.replaced_machine_grace);
        blocks.load(FIRST_WORD).await;
        if let Some(spool) = Spool::of(&config.bind) {
            match spool.create() {
                Ok(()) => spool::apply(&spool, &allocator, &metrics).await,
                Err(error) => {
                    warn!(path = %spool.path().display(), %error, "there is no spool, so DEL fails while this agent is away");
                }
            }
        }
        Ok(Self { allocator, ended, listener, blocks, in_force, readiness, metrics })
    }

    /// Serves until `stop`, or until the store is broken.
    async fn serve(self, config: &Config, stop: &CancellationToken) -> anyhow::Result<()> {
        let Self { allocator, ended, listener, blocks, in_force, readiness, metrics } = self;
        let rpc = Rpc::new(allocator.clone(), readiness.clone(), Arc::clone(&metrics));
        // The socket takes connections since it was bound; from here on somebody answers.
        let replaced = listener.replaced();
        let serving = tokio::spawn(listener.serve(rpc, stop.clone()));
        readiness.set_serving(true);
        info!(address = %config.bind, "taking calls");
        install(&config.cni)?;
        let closing = allocator.clone();
        if let Some(spool) = Spool::of(&config.bind) {
            tokio::spawn(spool::follow(spool, allocator.clone(), Arc::clone(&metrics), stop.clone()));
        }
        tokio::spawn(room::follow(allocator.clone(), readiness.clone(), Arc::clone(&metrics), stop.clone()));
        let served = CancellationToken::new();
        let keeping = housekeeping(config.clone(), allocator, blocks, in_force, metrics, stop.clone(), served.clone());
        let (mut serving, mut keeping, mut ended) = (serving, tokio::spawn(keeping), ended);
        // Whichever ends first ends the agent: none of them does by itself before it is told to stop.
        let early = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            end = &mut ended => Some(store_end(end)),
            end = &mut serving => Some(end.map_err(anyhow::Error::from).and_then(|end| Ok(end?))),
            end = &mut keeping => Some(end.map_err(anyhow::Error::from).and_then(|end| end)),
            replaced = replaced => Some(Err(replaced.into())),
        };
        readiness.set_serving(false);
        stop.cancel();
        if let Some(early) = early {
            return early.and_then(|()| Err(anyhow!("a task ended that must not end by itself")));
        }
        if let Ok(end) = tokio::time::timeout(CALLS_GRACE, &mut serving).await {
            end?.context("the gRPC server failed")?;
        } else {
            // What is not acknowledged by now will be asked again; a connection that merely stays open is nobody's call.
            info!("connections are still open, leaving them");
        }
        served.cancel();
        keeping.await??;
        closing.close().await;
        store_end(ended.await)?;
        info!("ipam-node has ended");
        Ok(())
    }
}

type StoreEnd = Result<Result<(), StoreError>, tokio::sync::oneshot::error::RecvError>;

fn store_end(end: StoreEnd) -> anyhow::Result<()> {
    let end = end.map_err(|_| anyhow!("the allocator's thread died"))?;
    end.context("the store failed; nothing more is acknowledged")
}

async fn serve_http(
    config: &Config,
    readiness: &Readiness,
    registry: Arc<Registry>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let ready = readiness.clone();
    let ready: Check = Arc::new(move || ready.check());
    let probes = config.common.probes.bind().await.context("--health-probe-bind-address")?;
    let metrics = config.common.metrics.bind().await.context("--metrics-bind-address")?;
    tokio::spawn(Site::probes(Arc::new(|| Ok(())), ready).serve(probes, stop.clone()));
    tokio::spawn(Site::metrics(registry).serve(metrics, stop.clone()));
    Ok(())
}

/// Reads the journal, imports the store of NVIDIA's agent, and starts the allocator with both. Returns also what the journal has
/// noted.
fn open_store(
    config: &Config,
    directory: RealDirectory,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Allocator, Ended, Start)> {
    let mut ledger = Ledger::new(config.cooldown_seconds);
    let opened = match Opened::read_or_damaged(directory, |change| ledger.apply(change))? {
        Read::Intact(opened) => opened,
        Read::Damaged(damaged) => return open_damaged(config, ledger, damaged, metrics),
    };
    let before = opened.position();
    let imports = [Import::read_host_local(&config.store_file)?, Import::read(&config.store_file)?];
    for import in imports.iter().flatten() {
        import.record(&mut ledger);
    }
    let mut start = begun(config, &mut ledger, before);
    let journal = opened.begin(ledger.snapshot())?;
    // On a full disk the journal goes on without what was imported, so the stores stay.
    if journal.position().epoch > before.epoch {
        start = start.recorded();
        imports.iter().flatten().for_each(Import::put_away);
    }
    import::reserve_place(&config.store_file);
    info!(held = ledger.in_use(), "store open");
    let (allocator, ended) = Allocator::start(ledger, Box::new(journal), system_clock(), Arc::clone(metrics))?;
    Ok((allocator, ended, start))
}

/// The note with which the agent begins: that of the ledger, whose journal has come to `position`.
fn begun(config: &Config, ledger: &mut Ledger, position: Position) -> Start {
    let subject = Subject { node: config.node.clone(), namespace: config.common.namespace.clone() };
    let here = Identity::read([config.boot_id_file.as_path()], config.system_uuid_files.iter().map(PathBuf::as_path));
    Start::new(subject, ledger, position, here)
}

/// Starts the allocator with a ledger of what is before the damage of the journal. It imports nothing, because nothing can be recorded.
fn open_damaged(
    config: &Config,
    mut ledger: Ledger,
    damaged: Damaged<RealDirectory>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Allocator, Ended, Start)> {
    error!("{}", damaged.error());
    let start = begun(config, &mut ledger, damaged.position());
    let store = Box::new(damaged.into_store());
    let (allocator, ended) = Allocator::start(ledger, store, system_clock(), Arc::clone(metrics))?;
    Ok((allocator, ended, start))
}

/// Namespace and name of the agent's pod, where its manifest tells them.
fn own_pod() -> Option<(String, String)> {
    let [namespace, name] =
        ["POD_NAMESPACE", "POD_NAME"].map(|name| std::env::var(name).ok().filter(|it| !it.is_empty()));
    namespace.zip(name)
}

/// Everything that needs the API server, whose absence stops none of the calls: the checks of pods until `stop`, the watch until all
/// calls are `served`. Then comes the last report.
async fn housekeeping(
    config: Config,
    allocator: Allocator,
    blocks: Blocks,
    in_force: watch::Receiver<Option<crate::watch::InForce>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    served: CancellationToken,
) -> anyhow::Result<()> {
    let client = cluster::shared_client(config.common.kubeconfig.as_deref(), &metrics.requests).await?;
    let (node, namespace) = (&config.node, &config.common.namespace);
    let (sender, reclaims) = mpsc::channel(1);
    let reclaimer = Reclaimer::new(client.clone(), node, config.stale, own_pod(), in_force.clone(), sender);
    let reporter = Reporter::new(client.clone(), namespace, node, allocator.clone(), in_force, Arc::clone(&metrics));
    let relist = reporter.relist();
    let collector =
        Collector::new(client.clone(), node, config.stale, allocator, Arc::clone(&metrics)).of_pod(own_pod());
    let collector = collector.with_runtime(config.runtime.clone().map(Runtime::new));
    let (client, limit) = match config.offline_limit.map(|limit| Offline::watch(client.clone(), limit)) {
        Some((client, limit)) => (client, Some(limit)),
        None => (client, None),
    };
    let blocks = blocks.with_reclaims(reclaims);
    let watching = blocks.follow(events(client, namespace, node, relist), limit, metrics, served.clone());
    tokio::join!(watching, reporter.run(served), collector.run(stop.clone()), reclaimer.run(stop));
    Ok(())
}
