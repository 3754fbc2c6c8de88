//! From a command line to a running operator and back to an exit code.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::Either;
use futures::{FutureExt as _, StreamExt as _};
use ipam_daemon::{Shutdown, Site, cluster};
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api_writer::ApiWriter;
use crate::controllers::{Controllers, Watches};
use crate::definitions::{self, Definitions};
use crate::election::marker::{MarkerWriter, marker};
use crate::election::{Election, Leadership, identity};
use crate::events::EventPublisher;
use crate::flags::{Config, FlagError};
use crate::metrics::Metrics;
use crate::release_pools;
use crate::watch::{FirstLists, Watched};
use ipam_webhook::Webhook;
use ipam_webhook::cache::AdmissionCache;

/// Time for calls under way to end after a stop signal. With the pause between renewals it stays within the renew deadline, so
/// the process writes nothing while another leader may write.
const GRACE: Duration = Duration::from_secs(7);

/// The exit code for invalid flags, found by clap or by this crate. The node agent has the same.
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
    // One thread: the work is mostly waiting for the API server, and each further thread has its own heap.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(run(config));
    runtime.shutdown_background();
    ended
}

async fn run(config: Config) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Arc::new(Metrics::default());
    let client = cluster::shared_client(config.common.kubeconfig.as_deref(), &metrics.requests).await?;
    let identity = identity().context("cannot make up an identity")?;
    let namespace = config.common.namespace.clone();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %namespace, %identity, "starting");

    let (definitions, lists) = (Arc::new(Definitions::default()), Arc::new(FirstLists::default()));
    let webhook = match &config.webhook {
        Some(webhook) => Some(Webhook::start(webhook, &namespace, shutdown.stop.clone()).await?),
        None => None,
    };
    // Reviews are judged by the events of the watches. So the work ends after the last review.
    let stop = CancellationToken::new();
    serve(&config, &metrics, (&definitions, &lists), webhook.as_ref(), &stop).await?;
    if let Some(webhook) = &webhook {
        webhook.keep_certificates(client.clone(), identity.clone(), stop.clone());
    }

    let (lead, told) = watch::channel(if config.elect_in.is_some() { Leadership::No } else { Leadership::Always });
    let actor = ApiWriter::new(client.clone(), namespace.clone(), identity.clone(), told);
    let known = webhook.as_ref().map(Webhook::known);
    let watches = watches(client.clone(), namespace, lists, known);
    let definitions = Checked { definitions, client };
    let (marker, keeper) = marker();
    let controllers = Controllers::new(config.settings, actor, watches, marker, metrics.clone());
    let election = match config.elect_in {
        Some(namespace) => {
            // A renewal must not wait behind other calls, nor on a connection that is dead.
            let own = cluster::client(config.common.kubeconfig.as_deref(), &metrics.requests).await?;
            let events = EventPublisher::new(own.clone(), identity.clone());
            Either::Left(Election::new(own, &namespace, identity, keeper, events))
        }
        None => Either::Right(keeper),
    };
    let work = work(controllers, election, lead, definitions, stop.clone());
    let grace = GRACE + webhook.as_ref().map_or(Duration::ZERO, Webhook::longest_end);
    shutdown.bounded(grace, Box::pin(together(work, webhook, &shutdown.stop, &stop))).await??;
    tracing::info!("stopped");
    Ok(())
}

/// Returns the watches. The webhook's cache gets the same events as the Controllers.
fn watches(
    client: Client,
    namespace: String,
    lists: Arc<FirstLists>,
    known: Option<Arc<RwLock<AdmissionCache>>>,
) -> Watches {
    Box::new(move || {
        let streams = crate::watch::all(&client, &namespace, &lists);
        let Some(known) = &known else { return streams };
        let told = streams.into_iter().map(|stream| {
            let known = known.clone();
            stream.inspect(move |event| hear(&known, event)).boxed()
        });
        futures::stream::select_all(told)
    })
}

fn hear(known: &RwLock<AdmissionCache>, event: &Watched) {
    if let Ok(event) = event {
        known.write().unwrap_or_else(PoisonError::into_inner).observe(event);
    }
}

/// Runs the work and the webhook. Whichever ends first ends the other: reviews first, then the work.
async fn together(
    work: impl Future<Output = anyhow::Result<()>>,
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
        // A process that lost the leadership ends its work, and the webhook ends its reviews as at any other stop.
        stop.cancel();
        ended
    };
    let (reviewed, worked) = tokio::join!(reviews, work);
    worked.and(reviewed)
}

/// Runs the Controllers, in an election if there is one, until `stop`. The Lease is released after the last call has ended. Without
/// an election, no Lease keeps the allocation state after this process. The work begins once the CustomResourceDefinitions have all
/// fields, and ends with an error if they no longer have them.
async fn work(
    controllers: Controllers,
    election: Either<Election, MarkerWriter>,
    lead: watch::Sender<Leadership>,
    Checked { definitions, client }: Checked,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if stop.run_until_cancelled(definitions.complete(&client)).await.is_none() {
        return Ok(());
    }
    let lost = stop.run_until_cancelled(definitions::lost(&client));
    let lost = lost.map(|lost| lost.map_or(Ok(()), |missing| Err(anyhow::Error::from(missing))));
    let controllers = controllers.run(lead.subscribe(), stop.clone());
    let mut election = match election {
        Either::Left(election) => election,
        Either::Right(keeper) => {
            tokio::try_join!(controllers.map(Ok), keeper.grant_all().map(Ok), lost)?;
            return Ok(());
        }
    };
    let elected = async { Ok(election.run(&lead, &stop).await?) };
    tokio::try_join!(elected, controllers.map(Ok), lost)?;
    election.release().await;
    Ok(())
}

/// The definitions, and the client that reads them.
struct Checked {
    definitions: Arc<Definitions>,
    client: Client,
}

async fn serve(
    config: &Config,
    metrics: &Metrics,
    (definitions, lists): (&Arc<Definitions>, &Arc<FirstLists>),
    webhook: Option<&Webhook>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (definitions, lists) = (definitions.clone(), lists.clone());
    let reviews = webhook.map(Webhook::readiness);
    let ready = move || {
        definitions.check()?;
        lists.check()?;
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
