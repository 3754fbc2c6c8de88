//! The four watches, as one stream. They never stop: what breaks is renewed with growing pauses, and said once.
//!
//! Pools are listed from the API server's store and not from its cache (no streaming list), so that a fresh start begins
//! with what is true. Nodes come as metadata, of which name and labels are passed on.

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use ipam_core::PoolKind;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error};
use kube::{Api, Client};

use crate::index::Labels;
use crate::objects::{Kind, NodeObject, RawObject};
use crate::reconcile::Observed;

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
    let events = watcher(api, watcher::Config::default()).default_backoff();
    told(events, name).map(move |event| event.map(&wrap)).boxed()
}

fn nodes(client: &Client) -> BoxStream<'static, Watched> {
    let api: Api<NodeObject> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default()).default_backoff();
    told(events, "nodes").map(|event| event.map(|event| Observed::Node(lean(event)))).boxed()
}

fn lean(event: Event<NodeObject>) -> Event<(String, Labels)> {
    fn parts(node: NodeObject) -> (String, Labels) {
        (node.metadata.name.unwrap_or_default(), node.metadata.labels.unwrap_or_default())
    }
    match event {
        Event::Apply(node) => Event::Apply(parts(node)),
        Event::Delete(node) => Event::Delete(parts(node)),
        Event::InitApply(node) => Event::InitApply(parts(node)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

/// Says when a watch breaks and when it works again, once each.
fn told<T: Send + 'static>(
    events: impl Stream<Item = Result<Event<T>, Error>> + Send + 'static,
    watch: &'static str,
) -> impl Stream<Item = Result<Event<T>, &'static str>> + Send {
    let mut broken = false;
    events.map(move |event| match event {
        // A list that begins has not worked yet.
        Ok(Event::Init) => Ok(Event::Init),
        Ok(event) => {
            if std::mem::take(&mut broken) {
                tracing::info!(watch, "watch works again");
            }
            Ok(event)
        }
        Err(error) => {
            if !std::mem::replace(&mut broken, true) && !is_expiry(&error) {
                tracing::warn!(watch, error = %crate::act::chain(&error), "watch broke, renewing it");
            }
            Err(watch)
        }
    })
}

/// A watch that was quiet for long is told that its version is gone. That is the normal course of things.
fn is_expiry(error: &Error) -> bool {
    matches!(error, Error::WatchError(status) if status.code == 410)
}
