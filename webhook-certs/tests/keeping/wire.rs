//! The calls themselves: which, in which order, and what an answer that is an error comes to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use ipam_webhook_certs::self_managed::decide::Lives;
use ipam_webhook_certs::self_managed::{SelfManaged, Settings};
use ipam_webhook_certs::{Problem, ServerCertificates, system_clock};
use kube::client::Body;
use serde_json::json;
use tokio_util::sync::CancellationToken;

fn settings() -> Settings {
    Settings {
        namespace: "kube-system".to_owned(),
        secret: "cert".to_owned(),
        configuration: "ours".to_owned(),
        names: vec!["webhook.kube-system.svc".to_owned()],
        instance: "test".to_owned(),
        period: Duration::from_hours(1),
        lives: Lives::default(),
    }
}

/// Nothing is there, and nothing may be written.
fn answer(request: &Request<Body>) -> Response<Body> {
    let (code, reason) = if request.method() == "GET" { (404, "NotFound") } else { (403, "Forbidden") };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": format!("{reason}: by the test")});
    Response::builder().status(code).body(Body::from(status.to_string().into_bytes())).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_configuration_is_read_before_the_secret_and_a_refused_write_is_told_and_not_hammered() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let heard = calls.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        heard.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
        std::future::ready(Ok::<_, Infallible>(answer(&request)))
    });
    let certificates = ServerCertificates::new(system_clock());
    let keeping = SelfManaged::new(kube::Client::new(service, "default"), settings(), certificates.clone());
    let stop = CancellationToken::new();
    // Within the pause to the next look.
    let stopped = tokio::time::timeout(Duration::from_mins(1), keeping.run(stop)).await;
    assert!(stopped.is_err());
    let configuration = "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/ours";
    let secret = "/api/v1/namespaces/kube-system/secrets";
    // A bundle is written at the version of a configuration that was read before the Secret; otherwise a replica that slept
    // between the two could take back what a newer Secret has brought.
    let wanted = [configuration.to_owned(), format!("GET {secret}/cert"), format!("POST {secret}")];
    assert_eq!(*calls.lock().unwrap(), wanted);
    let Some(Problem::Unkept(why)) = certificates.last_problem() else {
        unreachable!("{:?}", certificates.last_problem())
    };
    assert_eq!(why, "Forbidden: by the test (403)");
    assert!(!certificates.is_ready());
}
