//! Clients that begin and do not go on.

use std::convert::Infallible;
use std::time::Duration;

use http::StatusCode;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ipam_webhook::limits::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::hook::{Hook, IP_POOLS, PATIENCE, in_time, post2, review};

/// How long a review may take beside clients that stall, its connection included.
const NO_DELAY: Duration = Duration::from_secs(1);

/// Reads until the other side closes.
async fn rest(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    // How it ends does not matter: a reset is an end, too.
    drop(tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("it is never cut off"));
    String::from_utf8_lossy(&text).into_owned()
}

fn half_a_request(body: &str) -> String {
    format!(
        "POST {IP_POOLS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{body}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_handshakes_and_five_hundred_bodies_that_stall_delay_nobody_and_are_cut_off() {
    const EACH: usize = 500;
    let limits = Limits {
        handshake: Duration::from_secs(5),
        body: Duration::from_secs(15),
        all_body_bytes: EACH * 1000,
        ..Limits::default()
    };
    let hook = Hook::start(limits, Duration::ZERO).await;
    let mut bodies = Vec::new();
    for _ in 0..EACH {
        let mut stream = hook.tls("http/1.1").await.unwrap();
        stream.write_all(half_a_request(&"x".repeat(2000)).as_bytes()).await.unwrap();
        bodies.push(stream);
    }
    let mut handshakes = Vec::new();
    for _ in 0..EACH {
        let mut stream = hook.tcp().await.unwrap();
        stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        handshakes.push(stream);
    }
    // Others come through meanwhile, each on a connection of its own; handshake and review together take milliseconds.
    for uid in ["u-1", "u-2", "u-3", "u-4", "u-5"] {
        let asking = async { hook.client().await.review(uid).await.unwrap() };
        let answer = tokio::time::timeout(NO_DELAY, asking).await.expect("the stalled clients delay a review");
        assert_eq!(answer.body["response"]["uid"], uid);
    }
    assert!(hook.metric("webhook_connections") <= 1024);
    // There is room for half of what they have sent: the older ones had to give it up.
    hook.await_metric("webhook_cut_off_total{reason=\"evicted\"}", |count| count >= 100).await;
    for stream in &mut handshakes {
        assert_eq!(rest(stream).await, "");
    }
    for stream in &mut bodies {
        let said = rest(stream).await;
        assert!(said.starts_with("HTTP/1.1 503") || said.starts_with("HTTP/1.1 408"), "{said:?}");
    }
    hook.await_metric("webhook_connections", |count| count < 10).await;
    assert_eq!(hook.metric("webhook_reviews_in_flight"), 0);
}

#[tokio::test]
async fn half_a_head_is_cut_off_while_a_connection_without_a_request_is_kept() {
    let limits = Limits { head: Duration::from_millis(300), ..Limits::default() };
    let hook = Hook::start(limits, Duration::ZERO).await;
    let mut idle = hook.client().await;
    let mut half = hook.tls("http/1.1").await.unwrap();
    half.write_all(b"POST / HTTP/1.1\r\nHost:").await.unwrap();
    assert_eq!(rest(&mut half).await, "");
    assert_eq!(hook.metric("webhook_cut_off_total{reason=\"stalled\"}"), 1);
    // It has been idle for longer than half a head may take.
    assert_eq!(idle.review("u-1").await.unwrap().body["response"]["uid"], "u-1");
}

/// While it lives, no judgement ends: the lock that each needs is held by a thread of its own.
struct Stopped {
    go_on: std::sync::mpsc::Sender<()>,
    holding: std::thread::JoinHandle<()>,
}

impl Stopped {
    fn all_judgements(hook: &Hook) -> Self {
        let known = hook.known.clone();
        let ((held, is_held), (go_on, wait)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let holding = std::thread::spawn(move || {
            let _lock = known.write().unwrap();
            held.send(()).unwrap();
            // Ends with the sender.
            let _ = wait.recv();
        });
        is_held.recv_timeout(PATIENCE).expect("another thread keeps the lock");
        Self { go_on, holding }
    }

    fn go_on(self) {
        drop(self.go_on);
        self.holding.join().unwrap();
    }
}

/// A whole review that is followed by so many blanks, on a connection of its own.
async fn send_whole(hook: &Hook, size: usize) -> impl tokio::io::AsyncRead + Unpin + use<> {
    let mut stream = hook.tls("http/1.1").await.unwrap();
    let review = crate::hook::review("u-1", &serde_json::json!([])).to_string();
    let head = format!(
        "POST {IP_POOLS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    );
    stream.write_all(format!("{head}{review:<size$}").as_bytes()).await.unwrap();
    stream
}

const EVICTED: &str = "webhook_cut_off_total{reason=\"evicted\"}";

#[tokio::test(flavor = "multi_thread")]
async fn whole_bodies_that_wait_for_their_turn_take_no_more_than_the_room_for_all() {
    let limits = Limits { aside_bytes: 100, large_bytes: 1000, all_body_bytes: 30_000, ..Limits::default() };
    let hook = Hook::start(limits, Duration::ZERO).await;
    let stopped = Stopped::all_judgements(&hook);
    let mut streams = Vec::new();
    // One is being judged and two wait; for each further one the one that waits for longer makes room.
    for number in 1..=6_u64 {
        streams.push(send_whole(&hook, 9_000).await);
        hook.await_metric("webhook_reviews_in_flight", |count| count >= number.min(3)).await;
        hook.await_metric(EVICTED, |count| count >= number.saturating_sub(3)).await;
    }
    assert_eq!(hook.metric(EVICTED), 3);
    stopped.go_on();
    let mut answers = Vec::new();
    for stream in &mut streams {
        answers.push(rest(stream).await);
    }
    let count = |status: &str| answers.iter().filter(|said| said.starts_with(status)).count();
    assert_eq!((count("HTTP/1.1 200"), count("HTTP/1.1 503")), (3, 3), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_waits_for_its_turn_for_a_bounded_time_and_never_for_larger_ones() {
    let turn = Duration::from_millis(300);
    let limits = Limits { aside_bytes: 100, large_bytes: 5_000, turn, ..Limits::default() };
    let hook = Hook::start(limits, Duration::ZERO).await;
    let stopped = Stopped::all_judgements(&hook);
    let mut large = vec![send_whole(&hook, 9_000).await];
    hook.await_metric("webhook_reviews_in_flight", |count| count == 1).await;
    let mut middle = send_whole(&hook, 3_000).await;
    hook.await_metric("webhook_reviews_in_flight", |count| count == 2).await;
    for _ in 0..3 {
        large.push(send_whole(&hook, 9_000).await);
    }
    // Those that came after the middle one have waited for as long as anybody may.
    hook.await_metric("webhook_cut_off_total{reason=\"busy\"}", |count| count >= 3).await;
    stopped.go_on();
    assert!(rest(&mut middle).await.starts_with("HTTP/1.1 200"), "a lane of its own");
    let mut refused = 0;
    for stream in &mut large {
        refused += usize::from(rest(stream).await.contains("took all places"));
    }
    assert_eq!(refused, 3);
}

#[tokio::test]
async fn an_http_2_connection_on_which_nothing_is_asked_is_cut_off() {
    let limits = Limits { head: Duration::from_millis(300), ..Limits::default() };
    let hook = Hook::start(limits, Duration::ZERO).await;
    let mut silent = hook.tls("h2").await.unwrap();
    rest(&mut silent).await;
    assert_eq!(hook.metric("webhook_cut_off_total{reason=\"stalled\"}"), 1);
}

#[tokio::test]
async fn a_client_that_takes_no_answers_is_cut_off_when_there_is_no_room_for_more_requests() {
    const ROOM: usize = 8;
    let hook = Hook::start(Limits { requests: ROOM, ..Limits::default() }, Duration::ZERO).await;
    // Its answer is as long as they come.
    let question = || post2(review("u-1", &vec![json!({"startIP": "x", "endIP": "y"}); 50].into()).to_string());
    // All but the last byte of an answer is taken, too.
    let mut whole = hook.client2().await;
    let answer = in_time(whole.send_request(question())).await.unwrap().into_body();
    let length = u32::try_from(in_time(answer.collect()).await.unwrap().to_bytes().len()).unwrap();
    drop(whole);
    for window in [0, 1, length - 1] {
        let (mut client, mut connection) = hook.client2_that_takes(Some(window)).await;
        let mut heads = Vec::new();
        for _ in 0..ROOM {
            // Heads come whatever the client says that it takes.
            heads.push(in_time(client.send_request(question())).await.unwrap());
        }
        let (mut other, _) = hook.client2_that_takes(None).await;
        assert_eq!(in_time(other.send_request(question())).await.unwrap().status(), StatusCode::OK);
        let ended = tokio::time::timeout(PATIENCE, &mut connection).await;
        assert!(ended.is_ok(), "a client that takes {window} bytes of each answer is kept");
        let answer = in_time(other.send_request(question())).await.unwrap();
        assert!(in_time(answer.into_body().collect()).await.is_ok(), "one that takes its answers is cut off");
        drop(heads);
    }
}

#[tokio::test]
async fn a_request_that_is_given_up_for_others_is_told_so() {
    const ROOM: usize = 8;
    let hook = Hook::start(Limits { requests: ROOM, body: PATIENCE, ..Limits::default() }, Duration::ZERO).await;
    let stream = TokioIo::new(hook.tls("h2").await.unwrap());
    let (mut slow, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let never = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let answer = tokio::spawn(slow.send_request(post2(String::new()).map(|_| StreamBody::new(never))));
    hook.await_metric("webhook_reviews_in_flight", |count| count == 1).await;
    let (mut client, _connection) = hook.client2_that_takes(Some(0)).await;
    let mut heads = Vec::new();
    for _ in 0..ROOM {
        // The last one may be cut off: the slow client's answer needs a place, too.
        heads.push(in_time(client.send_request(post2(review("u-1", &json!([])).to_string()))).await);
    }
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("it is never given up").unwrap();
    assert_eq!(answer.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn when_all_places_are_taken_a_stalled_handshake_makes_room() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let hook = Hook::start(limits, Duration::ZERO).await;
    let mut stalled = Vec::new();
    for _ in 0..8 {
        stalled.push(hook.tcp().await.unwrap());
    }
    assert_eq!(hook.client().await.review("u-1").await.unwrap().body["response"]["uid"], "u-1");
    assert_eq!(rest(&mut stalled[0]).await, "", "the oldest went first");
}

#[tokio::test]
async fn noise_instead_of_tls_does_no_harm() {
    let hook = Hook::start(Limits::default(), Duration::ZERO).await;
    let mut stream = hook.tcp().await.unwrap();
    stream.write_all(format!("GET {IP_POOLS} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    rest(&mut stream).await;
    hook.await_metric("webhook_handshake_failures_total{reason=\"error\"}", |count| count == 1).await;
    assert!(hook.client().await.review("u-1").await.is_ok());
}
