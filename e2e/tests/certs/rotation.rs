//! What is replaced in its time, or because its Secret is gone, is replaced without one failed review.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipam_e2e::{ControlPlane, eventually};
use ipam_webhook_certs::self_managed::decide::Lives;
use kube::api::DeleteParams;

use crate::cluster::{Cluster, SECRET, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_ca_and_a_deleted_secret_are_replaced_under_reviews_none_of_which_fails() {
    let cluster = Cluster::new(ControlPlane::shared().unwrap()).await;
    // A CA whose third begins while the API server, by its own clock, still takes all certificates.
    let lives = Lives { authority: Duration::from_hours(24 * 150), ..Lives::default() };
    let _running = cluster.start(lives);
    cluster.right("from nothing").await;
    let (reviews, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let load = async {
        loop {
            if let Err(error) = cluster.review().await {
                failures.lock().unwrap().push(error.to_string());
            }
            reviews.fetch_add(1, Ordering::Relaxed);
        }
    };
    tokio::select! {
        () = load => {}
        () = accidents(&cluster, &reviews) => {}
    }
    assert_eq!(failures.into_inner().unwrap(), Vec::<String>::new());
}

async fn accidents(cluster: &Cluster, reviews: &AtomicUsize) {
    let leaf = || cluster.metric("webhook_certificate_repairs_total{what=\"certificate\"}");
    let authority = || cluster.metric("webhook_certificate_repairs_total{what=\"authority\"}");
    let turn = |days| cluster.replicas.iter().for_each(|replica| replica.turn(days));

    turn(61);
    await_count("the leaf is replaced", &leaf, 1).await;
    settled(cluster, reviews, "the new leaf is served").await;
    turn(101);
    await_count("the CA is replaced", &authority, 2).await;
    let cas = settled(cluster, reviews, "a leaf of the new CA is served").await;
    assert_eq!(cas.matches("BEGIN CERTIFICATE").count(), 2, "the old CA is still trusted");
    cluster.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    await_count("another CA is made", &authority, 3).await;
    let cas = settled(cluster, reviews, "a leaf of the third CA is served").await;
    assert_eq!(cas.matches("BEGIN CERTIFICATE").count(), 3);
    turn(101 + 61);
    await_count("the leaf of the third CA is replaced", &leaf, 2).await;
    settled(cluster, reviews, "its second leaf is served").await;
    // A day beyond the end of the last leaf that the older CAs have signed.
    turn(101 + 91);
    cluster.told("WebhookCARetired").await;
    let cas = settled(cluster, reviews, "the old CAs are gone").await;
    assert_eq!(cas.matches("BEGIN CERTIFICATE").count(), 1);
}

async fn await_count(what: &str, count: &(dyn Fn() -> u64 + Sync), wanted: u64) {
    eventually(what, SOON, async || if count() >= wanted { Ok(()) } else { Err(count()) }).await.unwrap();
}

/// All is right, and some more reviews have been asked for since. Returns the CAs.
async fn settled(cluster: &Cluster, reviews: &AtomicUsize, what: &str) -> String {
    let (_, cas) = cluster.right(what).await;
    let seen = reviews.load(Ordering::Relaxed);
    let more = async || match reviews.load(Ordering::Relaxed) - seen {
        0..10 => Err("too few reviews"),
        _ => Ok(()),
    };
    eventually("reviews go on", SOON, more).await.unwrap();
    String::from_utf8(cas).unwrap()
}
