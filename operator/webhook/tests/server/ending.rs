//! How the server, and a connection, comes to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use ipam_webhook::limits::Limits;
use ipam_webhook::shared::{Expiry, WallClock};
use serde_json::json;

use crate::hook::{Client, Hook, PATIENCE, in_time, post2, review};

#[tokio::test]
async fn a_server_that_is_leaving_answers_all_and_asks_its_clients_to_go() {
    let hook = Hook::start(Limits::default(), Duration::from_millis(500)).await;
    let mut old = hook.client().await;
    assert!(!old.review("u-1").await.unwrap().closes);
    hook.stop.cancel();
    let answer = old.review("u-2").await.unwrap();
    assert!(answer.closes && answer.body["response"]["uid"] == "u-2");
    // Somebody who has not heard of it yet.
    let mut new = hook.client().await;
    assert!(new.review("u-3").await.unwrap().closes);
    tokio::time::timeout(PATIENCE, hook.ended).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", hook.port)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_review_is_lost_while_a_server_ends_under_load() {
    let hook = Arc::new(Hook::start(Limits::default(), Duration::from_secs(1)).await);
    let load = (0..8).map(|worker| {
        let hook = hook.clone();
        tokio::spawn(async move {
            let mut answered = 0_u32;
            let mut client: Option<Client> = None;
            // As a balancer does it, connections are sent elsewhere once the server has said that it leaves: here, nowhere.
            loop {
                if client.is_none() && hook.stop.is_cancelled() {
                    return answered;
                }
                let mut own = match client.take() {
                    Some(own) => own,
                    None => hook.client().await,
                };
                let answer = own.review(&format!("{worker}-{answered}")).await.unwrap();
                assert_eq!(answer.body["response"]["uid"], format!("{worker}-{answered}"));
                answered += 1;
                client = (!answer.closes).then_some(own);
            }
        })
    });
    let load: Vec<_> = load.collect();
    hook.await_metric("webhook_review_duration_seconds_count", |count| count > 50).await;
    hook.stop.cancel();
    for worker in load {
        assert!(tokio::time::timeout(PATIENCE, worker).await.unwrap().unwrap() > 0);
    }
}

#[tokio::test]
async fn nothing_is_answered_on_a_connection_whose_certificate_has_ended() {
    let ends = SystemTime::now() + Duration::from_hours(1);
    let ended = Arc::new(AtomicBool::new(false));
    let clock = ended.clone();
    let before = ends - Duration::from_secs(1);
    let wall: WallClock = Arc::new(move || if clock.load(Ordering::Relaxed) { ends } else { before });
    let hook = Hook::with_clock(Limits::default(), Duration::ZERO, Arc::new(move || Some(ends)), wall).await;
    let (mut used, mut idle) = (hook.client().await, hook.client().await);
    assert!(used.review("u-1").await.is_ok());
    ended.store(true, Ordering::Relaxed);
    assert!(used.review("u-2").await.is_err() && idle.review("u-3").await.is_err());
}

#[tokio::test]
async fn a_clock_that_is_set_ahead_ends_connections_whose_certificate_has_ended_and_new_ones_are_served() {
    const HOUR: Duration = Duration::from_hours(1);
    let ahead = Arc::new(AtomicU32::new(0));
    let clock = ahead.clone();
    let wall: WallClock = Arc::new(move || SystemTime::now() + HOUR * clock.load(Ordering::Relaxed));
    // A certificate is renewed as soon as it has ended.
    let now = wall.clone();
    let expiry: Expiry = Arc::new(move || Some(now() + HOUR));
    let hook = Hook::with_clock(Limits::default(), Duration::ZERO, expiry, wall).await;
    let mut kept = hook.client().await;
    let (mut kept2, connection) = hook.client2_that_takes(None).await;
    let question = || post2(review("u-1", &json!([])).to_string());
    assert!(kept.review("u-1").await.is_ok() && in_time(kept2.send_request(question())).await.is_ok());
    ahead.store(24, Ordering::Relaxed);
    let ended = tokio::time::timeout(PATIENCE, connection).await;
    assert!(ended.is_ok(), "a connection whose certificate has ended is kept");
    assert!(in_time(kept2.send_request(question())).await.is_err() && kept.review("u-2").await.is_err());
    assert!(hook.client().await.review("u-3").await.is_ok());
    assert!(in_time(hook.client2().await.send_request(question())).await.is_ok());
}
