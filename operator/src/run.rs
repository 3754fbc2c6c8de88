//! From a command line to a running operator and back to an exit code.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::Either;
use futures::{FutureExt as _, StreamExt as _};
use ipam_daemon::{Shutdown, Site, cluster};
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::act::Actor;
use crate::controllers::{Controllers, Watches};
use crate::election::mark::{Keeper, mark};
use crate::election::{Election, Lead, Lost, identity};
use crate::flags::{Config, FlagError};
use crate::metrics::Metrics;
use crate::release_pools;
use crate::watch::Watched;
use ipam_webhook::Webhook;
use ipam_webhook::known::Known;

/// Time for calls under way to end once we are told to stop. With the pause between renewals it stays within the renew
/// deadline, so that nothing is written that another leader might write.
const GRACE: Duration = Duration::from_secs(7);

/// The exit code for wrong flags, whether clap finds them wrong or we do; the node agent's is the same.
const WRONG_FLAGS: u8 = 2;

/// Runs the operator to its end.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    let program = args.next();
    if args.next_if(|argument| argument == ipam_validate::command::NAME).is_some() {
        return ipam_validate::command::main(args);
    }
    if args.next_if(|argument| argument == release_pools::NAME).is_some() {
        return release_pools::main(args);
    }
    let args = program.into_iter().chain(args);
    let config = match Config::parse(args) {
        Ok(config) => config,
        Err(FlagError::Usage(usage)) => return ipam_daemon::print_usage(&usage),
        Err(error) => {
            complain(&error);
            return ExitCode::from(WRONG_FLAGS);
        }
    };
    let flusher = match config.common.log.install() {
        Ok(flusher) => flusher,
        Err(error) => {
            complain(&error);
            return ExitCode::FAILURE;
        }
    };
    let ended = run_to_end(config);
    if let Err(error) = &ended {
        tracing::error!("{error:#}");
    }
    drop(flusher);
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn complain(error: &dyn std::error::Error) {
    drop(writeln!(std::io::stderr(), "ipam-controller: {error}"));
}

fn run_to_end(config: Config) -> anyhow::Result<()> {
    // One thread: the work is waiting for the API server, and each thread more has its own heap.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(run(config));
    runtime.shutdown_background();
    ended
}

async fn run(config: Config) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Arc::new(Metrics::default());
    let client = cluster::client(config.common.kubeconfig.as_deref(), &metrics.requests).await?;
    let identity = identity().context("cannot make up an identity")?;
    let namespace = config.common.namespace.clone();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %namespace, %identity, "starting");

    let synced = Arc::new(AtomicBool::new(false));
    let webhook = match &config.webhook {
        Some(webhook) => Some(Webhook::start(webhook, &namespace, shutdown.stop.clone()).await?),
        None => None,
    };
    // What is told while reviews are still taken is what they are judged by: the work ends after them.
    let stop = CancellationToken::new();
    serve(&config, &metrics, &synced, webhook.as_ref(), &stop).await?;
    if let Some(webhook) = &webhook {
        webhook.keep_certificates(client.clone(), identity.clone(), stop.clone());
    }

    let (lead, told) = watch::channel(if config.elect_in.is_some() { Lead::No } else { Lead::Always });
    let actor = Actor::new(client.clone(), namespace.clone(), identity.clone(), told);
    let known = webhook.as_ref().map(Webhook::known);
    let watches = watches(client.clone(), namespace, known);
    let (mark, keeper) = mark();
    let controllers = Controllers::new(config.settings, actor, watches, mark, metrics, synced);
    let election = match config.elect_in {
        Some(namespace) => Either::Left(Election::new(client, &namespace, identity, keeper)),
        None => Either::Right(keeper),
    };
    let work = work(controllers, election, lead, stop.clone());
    let grace = GRACE + webhook.as_ref().map_or(Duration::ZERO, Webhook::longest_end);
    shutdown.bounded(grace, Box::pin(together(work, webhook, &shutdown.stop, &stop))).await??;
    tracing::info!("stopped");
    Ok(())
}

/// The watches, through which the webhook hears what the Controllers hear.
fn watches(client: Client, namespace: String, known: Option<Arc<RwLock<Known>>>) -> Watches {
    Box::new(move || {
        let streams = crate::watch::all(&client, &namespace);
        let Some(known) = &known else { return streams };
        let told = streams.into_iter().map(|stream| {
            let known = known.clone();
            stream.inspect(move |event| hear(&known, event)).boxed()
        });
        futures::stream::select_all(told)
    })
}

fn hear(known: &RwLock<Known>, event: &Watched) {
    if let Ok(event) = event {
        known.write().unwrap_or_else(PoisonError::into_inner).observe(event);
    }
}

/// Runs the work and the webhook. Whichever ends first ends the other: reviews first, then the work.
async fn together(
    work: impl Future<Output = Result<(), Lost>>,
    webhook: Option<Webhook>,
    stop: &CancellationToken,
    stop_work: &CancellationToken,
) -> anyhow::Result<()> {
    let reviews = async {
        let ended = if let Some(webhook) = webhook {
            webhook.ended().await
        } else {
            stop.cancelled().await;
            Ok(())
        };
        stop_work.cancel();
        anyhow::Ok(ended?)
    };
    let work = async {
        let ended = work.await;
        // One who lost the lead works no more, but lets go of the API servers' reviews as anyone does.
        stop.cancel();
        anyhow::Ok(ended?)
    };
    let (reviewed, worked) = tokio::join!(reviews, work);
    worked.and(reviewed)
}

/// Runs the Controllers, in an election if there is one, until `stop`. The Lease is given up after the last call ended. Without an
/// election nothing outlives this process that would say of blocks given.
async fn work(
    controllers: Controllers,
    election: Either<Election, Keeper>,
    lead: watch::Sender<Lead>,
    stop: CancellationToken,
) -> Result<(), Lost> {
    let controllers = controllers.run(lead.subscribe(), stop.clone());
    let mut election = match election {
        Either::Left(election) => election,
        Either::Right(keeper) => {
            tokio::join!(controllers, keeper.grant_all());
            return Ok(());
        }
    };
    tokio::try_join!(election.run(&lead, &stop), controllers.map(Ok))?;
    election.release().await;
    Ok(())
}

async fn serve(
    config: &Config,
    metrics: &Metrics,
    synced: &Arc<AtomicBool>,
    webhook: Option<&Webhook>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let synced = synced.clone();
    let reviews = webhook.map(Webhook::readiness);
    let ready = move || {
        let synced = synced.load(Ordering::Relaxed);
        synced.then_some(()).ok_or_else(|| "caches are not in sync yet".to_owned())?;
        reviews.as_ref().map_or(Ok(()), |reviews| reviews())
    };
    let mut registry = ipam_daemon::metrics::registry(&metrics.requests);
    let own = metrics.register(&mut registry);
    if let Some(webhook) = webhook {
        webhook.register(own);
    }
    let probes = config.common.probes.bind().await.context("--health-probe-bind-address")?;
    let scrapes = config.common.metrics.bind().await.context("--metrics-bind-address")?;
    for (what, listener) in [("probes", &probes), ("metrics", &scrapes)] {
        if let Some(address) = listener.as_ref().and_then(|listener| listener.local_addr().ok()) {
            tracing::info!(%address, "serving {what}");
        }
    }
    tokio::spawn(Site::probes(Arc::new(|| Ok(())), Arc::new(ready)).serve(probes, stop.clone()));
    tokio::spawn(Site::metrics(Arc::new(registry)).serve(scrapes, stop.clone()));
    Ok(())
}
