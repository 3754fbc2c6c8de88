//! What is answered to which request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ipam_webhook::limits::Limits;
use serde_json::{Value, json};

use crate::hook::{Hook, IP_POOLS, PATIENCE, in_time, post, post2, review};

const CIDR_POOLS: &str = "/validate-nv-ipam-nvidia-com-v1alpha1-cidrpool";

async fn hook() -> Hook {
    Hook::start(Limits { body_bytes: 4096, ..Limits::default() }, Duration::ZERO).await
}

#[tokio::test]
async fn a_review_is_answered_with_its_uid_again_and_again_on_one_connection() {
    let hook = hook().await;
    let mut client = hook.client().await;
    for uid in ["u-1", "u-2"] {
        let answer = client.review(uid).await.unwrap();
        assert_eq!((answer.status, answer.closes), (StatusCode::OK, false));
        assert_eq!(answer.body["response"], json!({"uid": uid, "allowed": true}));
    }
}

#[tokio::test]
async fn every_request_gets_an_admission_review_with_a_fitting_status() {
    let hook = hook().await;
    let text = review("u-1", &json!([])).to_string();
    let with = |method: &str, path: &str, content_type: &str, body: String| {
        let request =
            Request::builder().method(method).uri(path).header("host", "x").header("content-type", content_type);
        request.body(Full::new(Bytes::from(body))).unwrap()
    };
    let json = "application/json; charset=utf-8";
    for (request, status, uid, part) in [
        (with("POST", IP_POOLS, json, text.clone()), 200, "u-1", ""),
        (with("PUT", IP_POOLS, json, text.clone()), 405, "u-1", "sent with POST"),
        (with("GET", IP_POOLS, json, String::new()), 405, "", "sent with POST"),
        (with("POST", "/validate", json, text.clone()), 404, "u-1", IP_POOLS),
        (with("POST", IP_POOLS, "text/plain", text.clone()), 415, "u-1", "application/json"),
        (with("POST", IP_POOLS, json, text[..text.len() - 1].to_owned()), 400, "u-1", "no AdmissionReview"),
        (with("POST", CIDR_POOLS, json, text.clone()), 200, "u-1", "this path reviews CIDRPool"),
        (with("POST", IP_POOLS, json, " ".repeat(5000)), 413, "", "4096 bytes"),
    ] {
        let what = format!("{} {}", request.method(), request.uri());
        let answer = hook.client().await.send(request).await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{what}: {answer:?}");
        assert_eq!(answer.body["kind"], "AdmissionReview", "{what}");
        assert_eq!(answer.body["response"]["uid"], uid, "{what}");
        assert_eq!(answer.body["response"]["allowed"], Value::Bool(part.is_empty()), "{what}");
        let message = answer.body["response"]["status"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(part), "{what}: {message:?} lacks {part:?}");
        assert_eq!(answer.closes, status != 200, "{what}");
    }
}

#[tokio::test]
async fn over_http_2_a_body_that_is_too_large_is_answered_and_the_connection_goes_on() {
    let hook = Hook::start(Limits::default(), Duration::ZERO).await;
    let mut client = hook.client2().await;
    for size in [(8 << 20) + 1, 20 << 20] {
        let (head, body) = in_time(client.send_request(post2(" ".repeat(size)))).await.unwrap().into_parts();
        let body: Value = serde_json::from_slice(&in_time(body.collect()).await.unwrap().to_bytes()).unwrap();
        assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(
            body["response"]["status"]["message"].as_str().unwrap().contains("larger than 8388608 bytes"),
            "{body}"
        );
        let next = in_time(client.send_request(post2(review("u-1", &json!([])).to_string()))).await.unwrap();
        assert_eq!(next.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn over_http_2_a_body_that_is_too_large_is_heard_out_before_its_stream_is_closed() {
    const PIECES: usize = 24 << 4;
    // Time enough for the slowest machine.
    let hook = Hook::start(Limits { body: PATIENCE, ..Limits::default() }, Duration::ZERO).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let pieces = futures::stream::iter((0..PIECES).map(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![b' '; 64 << 10])))
    }));
    let stream = TokioIo::new(hook.tls("h2").await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let request = post2(String::new()).map(|_| StreamBody::new(pieces));
    let answer = in_time(client.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let all = async {
        while sent.load(Ordering::Relaxed) < PIECES {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let heard = tokio::time::timeout(PATIENCE, all).await;
    assert!(heard.is_ok(), "{} of {PIECES} pieces were taken", sent.load(Ordering::Relaxed));
}

#[tokio::test]
async fn both_versions_of_http_are_served() {
    let hook = hook().await;
    let mut client = hook.client2().await;
    let requests = ["u-1", "u-2", "u-3"].map(|uid| client.send_request(post2(review(uid, &json!([])).to_string())));
    for (answer, uid) in in_time(futures::future::join_all(requests)).await.into_iter().zip(["u-1", "u-2", "u-3"]) {
        let body = in_time(answer.unwrap().into_body().collect()).await.unwrap().to_bytes();
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["response"]["uid"], uid);
    }
}

#[tokio::test]
async fn a_spec_of_a_megabyte_and_a_half_of_mistakes_is_answered_shortly() {
    let hook = Hook::start(Limits::default(), Duration::ZERO).await;
    let one = json!({"startIP": "10.0.0.9", "endIP": "10.0.0.1"});
    let text = review("u-1", &Value::Array(vec![one; 36_000])).to_string();
    assert!(text.len() > 1_500_000);
    let answer = hook.client().await.send(post(IP_POOLS, text)).await.unwrap();
    assert_eq!((answer.status, &answer.body["response"]["status"]["code"]), (StatusCode::OK, &json!(422)));
    assert!(answer.body.to_string().len() < 32 << 10);
    assert!(answer.body["response"]["status"]["message"].as_str().unwrap().starts_with("36000 mistakes"));
}
