//! The four watches, as one stream. They never stop: a broken watch is renewed after a short pause, and logged once.
//!
//! Objects are listed from etcd and not from the API server's cache (no streaming list), so that a new process begins with
//! the current state. Nodes are read as metadata. Only name, labels and the reason to leave are passed on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use ipam_core::PoolKind;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error};
use kube::{Api, Client};
use tokio::time::Instant;

use ipam_reconciler::cluster_cache::NodeMeta;
use ipam_reconciler::objects::{Kind, NodeObject, RawObject};
use ipam_reconciler::reconcile::{Observed, map_event};

/// The name of the watch of Nodes.
pub const NODES: &str = "nodes";
/// The resources that are watched.
pub const RESOURCES: [&str; 4] = ["ippools", "cidrpools", "ipamnodes", NODES];

/// An event, or the name of the watch that broke.
pub type Watched = Result<Observed, &'static str>;

/// Different causes that are logged until a watch works again.
const MOST_CAUSES: usize = 4;

/// All watches of an operator for the pools of `namespace`. They note in `lists` what has arrived.
pub fn all(client: &Client, namespace: &str, lists: &Arc<FirstLists>) -> SelectAll<BoxStream<'static, Watched>> {
    let pools = [("ippools", PoolKind::IpPool), ("cidrpools", PoolKind::CidrPool)].map(|(name, kind)| {
        objects(client, namespace, Kind::Pool(kind), name, lists, move |event| Observed::Pool(kind, event))
    });
    let ipam_nodes = objects(client, namespace, Kind::IpamNode, "ipamnodes", lists, Observed::IpamNode);
    futures::stream::select_all(pools.into_iter().chain([ipam_nodes, nodes(client, lists)]))
}

fn objects(
    client: &Client,
    namespace: &str,
    kind: Kind,
    name: &'static str,
    lists: &Arc<FirstLists>,
    wrap: impl Fn(Event<RawObject>) -> Observed + Send + 'static,
) -> BoxStream<'static, Watched> {
    let api: Api<RawObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let events = watcher(api, watcher::Config::default()).backoff(Pauses::default());
    told(events, name, Arc::clone(lists)).map(move |event| event.map(&wrap)).boxed()
}

fn nodes(client: &Client, lists: &Arc<FirstLists>) -> BoxStream<'static, Watched> {
    let api: Api<NodeObject> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default()).backoff(Pauses::default());
    let lean = |event| Observed::Node(map_event(&event, NodeMeta::of));
    told(events, NODES, Arc::clone(lists)).map(move |event| event.map(lean)).boxed()
}

/// Pauses before a broken watch is renewed. They stay short: four watches are no load for a failing API server, and the
/// operator needs its events as soon as it is back.
#[derive(Default)]
struct Pauses {
    failures: u32,
    last: Option<Instant>,
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this long without a failure the next one counts as the first.
const CALM: Duration = Duration::from_secs(10);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| last + CALM <= now) {
            self.failures = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        Some(pause)
    }
}

impl Backoff for Pauses {
    /// Does nothing. It is called at each event, also at the start of a list, which is not a success yet.
    fn reset(&mut self) {}
}

/// Logs each cause for which a watch breaks, once until it works again, and when it does. Notes the first list.
fn told<T: Send + 'static>(
    events: impl Stream<Item = Result<Event<T>, Error>> + Send + 'static,
    watch: &'static str,
    lists: Arc<FirstLists>,
) -> impl Stream<Item = Result<Event<T>, &'static str>> + Send {
    let mut causes = BTreeSet::new();
    events.map(move |event| match event {
        // A list that begins has not succeeded yet.
        Ok(Event::Init) => Ok(Event::Init),
        Ok(event) => {
            if !std::mem::take(&mut causes).is_empty() {
                tracing::info!(watch, "watch works again");
            }
            if matches!(event, Event::InitDone) {
                lists.arrived(watch);
            }
            Ok(event)
        }
        Err(error) => {
            if !is_expiry(&error) {
                let error = ipam_daemon::chain(&error);
                lists.failed(watch, &error);
                if causes.len() < MOST_CAUSES && causes.insert(error.clone()) {
                    tracing::warn!(watch, error, "watch broke, renewing it");
                }
            }
            Err(watch)
        }
    })
}

/// The first lists of the watches that have not arrived yet. Nothing is decided before the last of them.
#[derive(Debug)]
pub struct FirstLists(Mutex<BTreeMap<&'static str, String>>);

impl Default for FirstLists {
    fn default() -> Self {
        Self(Mutex::new(RESOURCES.map(|watch| (watch, String::new())).into()))
    }
}

impl FirstLists {
    fn missing(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrived(&self, watch: &str) {
        let mut missing = self.missing();
        if missing.remove(watch).is_some() && missing.is_empty() {
            tracing::info!("the caches are in sync");
        }
    }

    fn failed(&self, watch: &str, error: &str) {
        self.missing().get_mut(watch).into_iter().for_each(|cause| error.clone_into(cause));
    }

    /// Which lists are missing, and why. Once all have arrived, none is missing any more: a watch that breaks is no reason to refuse reviews,
    /// because no other process would answer them.
    ///
    /// # Errors
    /// At least one is.
    pub fn check(&self) -> Result<(), String> {
        let missing = self.missing();
        let named = missing.iter().map(|(watch, cause)| match cause.as_str() {
            "" => (*watch).to_owned(),
            cause => format!("{watch} ({cause})"),
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() { Ok(()) } else { Err(format!("waiting for the first list of {}", named.join(", "))) }
    }
}

/// Whether the version of the watch has expired. That is normal for a watch that had no event for long.
fn is_expiry(error: &Error) -> bool {
    matches!(error, Error::WatchError(status) if status.code == 410)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_reconciler::cluster_cache::{CORDON, Leaving};

    #[test]
    fn lists_that_are_missing_are_named_with_their_cause() {
        let lists = FirstLists::default();
        lists.arrived(NODES);
        lists.failed("ipamnodes", "the server could not find the requested resource (404)");
        lists.failed(NODES, "later");
        let missing = lists.check().unwrap_err();
        let expected = "waiting for the first list of cidrpools, ipamnodes (the server could not find the requested resource (404)), ippools";
        assert_eq!(missing, expected);
        for watch in ["cidrpools", "ipamnodes", "ippools"] {
            lists.arrived(watch);
        }
        assert_eq!(lists.check(), Ok(()));
    }

    #[tokio::test]
    async fn each_cause_is_logged_once_and_an_expired_version_is_none() {
        let status = |code: u16| -> Error {
            let status = serde_json::json!({"code": code, "message": code.to_string()});
            Error::WatchError(serde_json::from_value(status).unwrap())
        };
        let lists = Arc::new(FirstLists::default());
        let events =
            [Err(status(410)), Err(status(403)), Err(status(403)), Err(status(503)), Ok(Event::<()>::InitDone)];
        let seen: Vec<_> = told(futures::stream::iter(events), NODES, Arc::clone(&lists)).collect().await;
        assert_eq!(seen.iter().filter(|event| event.is_err()).count(), 4);
        assert_eq!(lists.check().unwrap_err(), "waiting for the first list of cidrpools, ipamnodes, ippools");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_renewed_within_a_second_however_long_the_server_was_away() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.next(), Some(FIRST_PAUSE));
        for _ in 0..100 {
            let pause = pauses.next().unwrap();
            assert!(pause <= LONGEST_PAUSE);
            tokio::time::advance(pause).await;
            pauses.reset();
        }
        assert_eq!(pauses.next(), Some(LONGEST_PAUSE), "events alone do not make it impatient");
        tokio::time::advance(CALM).await;
        assert_eq!(pauses.next(), Some(FIRST_PAUSE));
    }

    fn read(metadata: &serde_json::Value) -> NodeMeta {
        let node = serde_json::from_value(serde_json::json!({ "metadata": metadata })).unwrap();
        let (name, meta) = NodeMeta::of(&node);
        assert_eq!(name, "n1");
        meta
    }

    #[test]
    fn a_node_with_a_deletion_timestamp_is_terminating() {
        let deleted = serde_json::json!({"name": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["example.com/drain"], "annotations": {CORDON: "true"}});
        assert_eq!(read(&deleted).leaving, Some(Leaving::Terminating));
        assert_eq!(read(&serde_json::json!({"name": "n1"})).leaving, None);
    }

    #[test]
    fn only_the_value_true_cordons_a_node() {
        let cordoned = |annotations: &serde_json::Value| {
            let meta = read(&serde_json::json!({"name": "n1", "annotations": annotations}));
            meta.leaving == Some(Leaving::Cordoned)
        };
        assert!(cordoned(&serde_json::json!({CORDON: "true"})));
        for other in ["false", "True", "yes", ""] {
            assert!(!cordoned(&serde_json::json!({CORDON: other})), "{other:?}");
        }
        assert!(!cordoned(&serde_json::json!({"another": "true"})));
    }
}
