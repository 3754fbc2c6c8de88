//! Sees each version of a pool's status, also one that the next replaces at once.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::TryStreamExt as _;
use ipam_e2e::{ControlPlane, eventually_blocking};
use kube::core::WatchEvent;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::api::{Api, IPPOOLS, SOON, text};

/// A watch of one IPPool, from when it begins until it is dropped.
pub(crate) struct Witness {
    pool: String,
    seen: Arc<Mutex<Seen>>,
    _runtime: Runtime,
}

/// What the versions until now had.
#[derive(Default, Debug)]
struct Seen {
    /// The version of the last one.
    version: String,
    /// Each type of condition that was true once, with the message that it had first.
    held: BTreeMap<String, String>,
    /// Why nothing more is seen.
    ended: Option<String>,
}

impl Seen {
    fn look(&mut self, pool: &Value) {
        self.version = text(&pool["metadata"]["resourceVersion"]);
        for condition in pool["status"]["conditions"].as_array().into_iter().flatten() {
            if condition["status"] == "True" {
                self.held.entry(text(&condition["type"])).or_insert_with(|| text(&condition["message"]));
            }
        }
    }
}

impl Witness {
    /// Begins with the pool as it is now.
    pub(crate) fn of(plane: &ControlPlane, api: &Api, pool: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        let first = api.get(IPPOOLS, pool);
        let from = text(&first["metadata"]["resourceVersion"]);
        let path = format!("{}?watch=1&fieldSelector=metadata.name%3D{pool}&resourceVersion={from}", api.path(IPPOOLS));
        let seen = Arc::new(Mutex::new(Seen::default()));
        seen.lock().unwrap().look(&first);
        let shared = Arc::clone(&seen);
        runtime.spawn(async move {
            let why = watch(&client, &path, &shared).await.err();
            let why = why.map_or_else(|| "the API server ended the watch".to_owned(), |error| error.to_string());
            shared.lock().unwrap().ended = Some(why);
        });
        Self { pool: pool.to_owned(), seen, _runtime: runtime }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// No version until now had this condition.
    pub(crate) fn ensure_never(&self, condition: &str) {
        let seen = self.seen();
        assert_eq!(seen.ended, None, "{}", self.pool);
        assert_eq!(seen.held.get(condition), None, "{condition} of {} was True", self.pool);
    }

    /// The same once all versions until now have arrived.
    pub(crate) fn finish(self, api: &Api, condition: &str) {
        let now = text(&api.get(IPPOOLS, &self.pool)["metadata"]["resourceVersion"]);
        let reached = || {
            let seen = self.seen();
            let is_seen = seen.version.parse::<u64>().unwrap() >= now.parse().unwrap();
            if is_seen || seen.ended.is_some() { Ok(()) } else { Err(seen.version.clone()) }
        };
        eventually_blocking(&format!("version {now} of {} is seen", self.pool), SOON, reached).unwrap();
        self.ensure_never(condition);
    }
}

async fn watch(client: &kube::Client, path: &str, seen: &Mutex<Seen>) -> Result<(), kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let mut events = pin!(client.request_events::<Value>(request).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(pool) | WatchEvent::Modified(pool) | WatchEvent::Deleted(pool) => {
                seen.lock().unwrap().look(&pool);
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        }
    }
    Ok(())
}
