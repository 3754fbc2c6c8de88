//! Elections against a Lease server of few lines, with the clock under control.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::algorithm::RETRY_PERIOD;
use ipam_reconciler::allocation_state::{ALLOCATION_STATE, AllocationState, LeaseRequest};

use super::marker::{MarkerHandle, marker};
use super::*;

/// One Lease, replaced only at its version.
#[derive(Clone, Default)]
struct LeaseServer {
    lease: Arc<Mutex<(u64, Option<Value>)>>,
    /// The Kubernetes Events that were created.
    events: Arc<Mutex<Vec<Value>>>,
    /// Cancelled when a write arrives, before it is answered.
    stop_on_write: Arc<Mutex<Option<CancellationToken>>>,
    away: Arc<std::sync::atomic::AtomicBool>,
}

impl LeaseServer {
    fn client(&self) -> Client {
        let (service, handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = self.clone();
        tokio::spawn(async move {
            let mut handle = pin!(handle);
            while let Some((request, respond)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (status, answer) = if parts.uri.path() == "/apis/events.k8s.io/v1/namespaces/ns/events" {
                    let event: Value = serde_json::from_slice(&body).unwrap();
                    server.events.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
                    (StatusCode::CREATED, event)
                } else {
                    server.answer(&parts.method, &body)
                };
                // The candidate meets whatever the write has brought about before it meets the answer.
                tokio::task::yield_now().await;
                let answer = Body::from(answer.to_string().into_bytes());
                respond.send_response(Response::builder().status(status).body(answer).unwrap());
            }
        });
        Client::new(service, "ns")
    }

    fn answer(&self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
        let refuse = |status: StatusCode| {
            let reason = status.canonical_reason().unwrap_or_default().replace(' ', "");
            (
                status,
                json!({"kind": "Status", "status": "Failure", "code": status.as_u16(), "message": "no", "reason": reason}),
            )
        };
        if self.away.load(std::sync::atomic::Ordering::SeqCst) {
            return refuse(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let mut held = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        if *method == Method::GET {
            return held.1.clone().map_or_else(|| refuse(StatusCode::NOT_FOUND), |lease| (StatusCode::OK, lease));
        }
        if let Some(stop) = self.stop_on_write.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.cancel();
        }
        let mut sent: Value = serde_json::from_slice(body).unwrap();
        let current = held.1.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        let based_on = (*method == Method::PUT).then(|| sent["metadata"]["resourceVersion"].clone());
        if based_on != current {
            return refuse(StatusCode::CONFLICT);
        }
        held.0 += 1;
        sent["metadata"]["resourceVersion"] = json!(held.0.to_string());
        sent["metadata"]["uid"] = json!("uid-of-the-lease");
        held.1 = Some(sent.clone());
        (StatusCode::OK, sent)
    }

    fn holder(&self) -> Value {
        let held = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.as_ref().map_or(Value::Null, |lease| lease["spec"]["holderIdentity"].clone())
    }

    /// Starts a candidate; tells when it leads, and how it ended.
    fn stand(&self, identity: &str, stop: &CancellationToken) -> Standing {
        let (marker, keeper) = marker();
        let (client, identity) = (self.client(), identity.to_owned());
        let events = EventPublisher::new(client.clone(), identity.clone());
        let mut election = Election::new(client, "ns", identity, keeper, events);
        let (sender, leads) = watch::channel(Leadership::No);
        let stop = stop.clone();
        let ended = tokio::spawn(async move {
            let ended = election.run(&sender, &stop).await;
            if ended.is_ok() {
                election.release().await;
            }
            ended
        });
        Standing { marker, leads, ended }
    }

    fn state(&self) -> Value {
        let held = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.as_ref().map_or(Value::Null, |lease| lease["metadata"]["annotations"][ALLOCATION_STATE].clone())
    }

    fn writes(&self) -> u64 {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Standing {
    marker: MarkerHandle,
    leads: watch::Receiver<Leadership>,
    ended: tokio::task::JoinHandle<Result<(), LeadershipLost>>,
}

impl Standing {
    async fn leads(&mut self) {
        tokio::time::timeout(Duration::from_mins(2), self.leads.wait_for(|lead| lead.holds(now())))
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_other_follows_until_the_lease_is_released() {
    let (server, stop, other_stop) = (LeaseServer::default(), CancellationToken::new(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    let mut second = server.stand("second", &other_stop);
    assert_eq!(server.holder(), "first");
    assert_eq!(*second.leads.borrow(), Leadership::No);
    stop.cancel();
    first.ended.await.unwrap().unwrap();
    assert_eq!(server.holder(), "", "released");
    second.leads().await;
    assert_eq!(server.holder(), "second");
    other_stop.cancel();
    second.ended.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_while_we_are_told_to_stop_is_given_up() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    *server.stop_on_write.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop.clone());
    let first = server.stand("first", &stop);
    first.ended.await.unwrap().unwrap();
    assert_eq!(server.holder(), "", "neither never taken nor still held");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_reads_anothers_name_in_the_lease_ends() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    {
        let mut held = server.lease.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 += 1;
        let version = held.0.to_string();
        let lease = held.1.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = json!("usurper");
        lease["metadata"]["resourceVersion"] = json!(version);
    }
    assert_eq!(first.ended.await.unwrap(), Err(LeadershipLost::Taken("usurper".into())));
    assert_eq!(*first.leads.borrow(), Leadership::No, "at once, for whoever is about to act");
}

#[tokio::test(start_paused = true)]
async fn who_leads_may_act_until_the_deadline_and_renews_it() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    for _ in 0..30 {
        let lead = *first.leads.borrow();
        assert!(lead.holds(now()) && !lead.holds(now() + RENEW_DEADLINE), "{lead:?} at {:?}", now());
        tokio::time::sleep(RETRY_PERIOD).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_ends_at_the_renew_deadline() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    let led = now();
    server.away.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(first.ended.await.unwrap(), Err(LeadershipLost::Deadline));
    let led = now() - led;
    assert!(led <= RENEW_DEADLINE + Duration::from_secs(1), "led for {led:?}");
    assert!(led + RETRY_PERIOD >= RENEW_DEADLINE, "gave up after {led:?}");
    assert!(!first.leads.borrow().holds(now()), "nobody acts upon it any more");
}

#[tokio::test(start_paused = true)]
async fn a_leader_publishes_one_event_on_its_lease() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    let _follows = server.stand("second", &stop);
    tokio::time::sleep(RENEW_DEADLINE * 3).await;
    let events = server.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let [event] = &events[..] else { panic!("{events:#?}") };
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": "ns", "name": LEASE_NAME,
        "uid": "uid-of-the-lease"});
    assert_eq!((&event["type"], &event["reason"]), (&json!("Normal"), &json!("LeaderElection")));
    assert_eq!((&event["note"], &event["regarding"]), (&json!("first became leader"), &lease));
    assert_eq!(
        (&event["reportingController"], &event["reportingInstance"]),
        (&json!("nv-ipam-controller"), &json!("first"))
    );
}

#[test]
fn two_processes_never_share_an_identity() {
    let (one, other) = (identity().unwrap(), identity().unwrap());
    assert_ne!(one, other);
    assert_eq!(one.split_once('_').unwrap().1.len(), 36);
}

fn saying(allocation: AllocationState) -> LeaseRequest {
    LeaseRequest { allocation: Some(allocation), ..LeaseRequest::default() }
}

#[tokio::test(start_paused = true)]
async fn a_requested_state_is_written_at_once() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    let began = now();
    let states = [
        (AllocationState::Allocated, json!("Allocated")),
        (AllocationState::Recovering, json!("Recovering")),
        (AllocationState::Allocated, json!("Allocated")),
        (AllocationState::NoneAllocated, Value::Null),
    ];
    for (state, annotation) in states {
        first.marker.send(saying(state));
        first.marker.changed().await;
        assert_eq!((first.marker.state().allocation, server.state()), (state, annotation));
    }
    assert_eq!(now(), began);
}

#[tokio::test(start_paused = true)]
async fn a_word_that_cannot_be_written_floods_nobody_and_the_next_leader_reads_it_in_the_end() {
    let (server, stop, other_stop) = (LeaseServer::default(), CancellationToken::new(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    server.away.store(true, std::sync::atomic::Ordering::SeqCst);
    first.marker.send(saying(AllocationState::Recovering));
    tokio::time::sleep(RETRY_PERIOD * 2).await;
    assert_eq!(first.marker.state().allocation, AllocationState::NoneAllocated);
    server.away.store(false, std::sync::atomic::Ordering::SeqCst);
    tokio::time::sleep(RETRY_PERIOD).await;
    assert_eq!(first.marker.state().allocation, AllocationState::Recovering);
    stop.cancel();
    first.ended.await.unwrap().unwrap();
    let mut second = server.stand("second", &other_stop);
    second.leads().await;
    assert_eq!(second.marker.state().allocation, AllocationState::Recovering, "known as soon as it leads");
    other_stop.cancel();
    second.ended.await.unwrap().unwrap();
    assert_eq!(server.state(), json!("Recovering"));
}

#[tokio::test(start_paused = true)]
async fn one_more_write_that_a_leader_asks_for_is_made_at_once_and_answers_what_was_asked_before_it() {
    let (server, stop) = (LeaseServer::default(), CancellationToken::new());
    let mut first = server.stand("first", &stop);
    first.leads().await;
    assert_eq!(first.marker.state().confirmed, 0, "it was not asked for");
    let (began, writes) = (now(), server.writes());
    first.marker.send(LeaseRequest { confirm: 1, ..saying(AllocationState::NoneAllocated) });
    first.marker.changed().await;
    assert_eq!((first.marker.state().confirmed, server.writes(), now()), (1, writes + 1, began));
    server.away.store(true, std::sync::atomic::Ordering::SeqCst);
    first.marker.send(LeaseRequest { confirm: 2, ..saying(AllocationState::NoneAllocated) });
    tokio::time::sleep(RETRY_PERIOD * 2).await;
    assert_eq!(first.marker.state().confirmed, 1, "a write that failed confirms nothing");
}
