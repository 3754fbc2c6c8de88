//! The four watches, as one stream. They never stop: a broken watch is renewed after a short pause, and logged once.
//!
//! Objects are listed from etcd and not from the API server's cache (no streaming list), so that a new process begins with
//! the current state. Nodes are read as metadata. Only name, labels and the reason to leave are passed on.

use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use ipam_core::PoolKind;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error};
use kube::{Api, Client};
use tokio::time::Instant;

use ipam_reconciler::cluster_cache::{CORDON, Leaving, NodeMeta};
use ipam_reconciler::objects::{Kind, NodeObject, RawObject};
use ipam_reconciler::reconcile::Observed;

/// The name of the watch of Nodes.
pub const NODES: &str = "nodes";
/// The resources that are watched.
pub const RESOURCES: [&str; 4] = ["ippools", "cidrpools", "ipamnodes", NODES];

/// An event, or the name of the watch that broke.
pub type Watched = Result<Observed, &'static str>;

/// All watches of an operator for the pools of `namespace`.
pub fn all(client: &Client, namespace: &str) -> SelectAll<BoxStream<'static, Watched>> {
    let pools = [("ippools", PoolKind::IpPool), ("cidrpools", PoolKind::CidrPool)].map(|(name, kind)| {
        objects(client, namespace, Kind::Pool(kind), name, move |event| Observed::Pool(kind, event))
    });
    let ipam_nodes = objects(client, namespace, Kind::IpamNode, "ipamnodes", Observed::IpamNode);
    futures::stream::select_all(pools.into_iter().chain([ipam_nodes, nodes(client)]))
}

fn objects(
    client: &Client,
    namespace: &str,
    kind: Kind,
    name: &'static str,
    wrap: impl Fn(Event<RawObject>) -> Observed + Send + 'static,
) -> BoxStream<'static, Watched> {
    let api: Api<RawObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let events = watcher(api, watcher::Config::default()).backoff(Pauses::default());
    told(events, name).map(move |event| event.map(&wrap)).boxed()
}

fn nodes(client: &Client) -> BoxStream<'static, Watched> {
    let api: Api<NodeObject> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default()).backoff(Pauses::default());
    told(events, NODES).map(|event| event.map(|event| Observed::Node(lean(event)))).boxed()
}

fn lean(event: Event<NodeObject>) -> Event<(String, NodeMeta)> {
    fn parts(node: NodeObject) -> (String, NodeMeta) {
        let cordon = node.metadata.annotations.as_ref().and_then(|all| all.get(CORDON));
        let leaving = if node.metadata.deletion_timestamp.is_some() {
            Some(Leaving::Terminating)
        } else {
            cordon.filter(|value| *value == "true").map(|_| Leaving::Cordoned)
        };
        let labels = node.metadata.labels.unwrap_or_default().into();
        (node.metadata.name.unwrap_or_default(), NodeMeta { labels, leaving })
    }
    match event {
        Event::Apply(node) => Event::Apply(parts(node)),
        Event::Delete(node) => Event::Delete(parts(node)),
        Event::InitApply(node) => Event::InitApply(parts(node)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
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

/// Logs when a watch breaks and when it works again, once each.
fn told<T: Send + 'static>(
    events: impl Stream<Item = Result<Event<T>, Error>> + Send + 'static,
    watch: &'static str,
) -> impl Stream<Item = Result<Event<T>, &'static str>> + Send {
    let mut broken = false;
    events.map(move |event| match event {
        // A list that begins has not succeeded yet.
        Ok(Event::Init) => Ok(Event::Init),
        Ok(event) => {
            if std::mem::take(&mut broken) {
                tracing::info!(watch, "watch works again");
            }
            Ok(event)
        }
        Err(error) => {
            if !std::mem::replace(&mut broken, true) && !is_expiry(&error) {
                tracing::warn!(watch, error = %ipam_daemon::chain(&error), "watch broke, renewing it");
            }
            Err(watch)
        }
    })
}

/// Whether the version of the watch has expired. That is normal for a watch that had no event for long.
fn is_expiry(error: &Error) -> bool {
    matches!(error, Error::WatchError(status) if status.code == 410)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let Event::Apply((name, meta)) = lean(Event::Apply(node)) else { panic!("another event") };
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
