//! Two replicas at once, from nothing; then everything that can be taken away is.

use ipam_e2e::ControlPlane;
use ipam_webhook_certs::Problem;
use ipam_webhook_certs::self_managed::decide::Lives;
use k8s_openapi::ByteString;
use kube::api::DeleteParams;
use serde_json::json;

use crate::cluster::{Cluster, SECRET};

/// Old certificates are given up at once: these tests look at what comes after.
fn lives() -> Lives {
    Lives { propagation: std::time::Duration::ZERO, ..Lives::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_that_start_at_once_end_with_one_ca_that_the_api_server_trusts() {
    let cluster = Cluster::new(ControlPlane::shared().unwrap()).await;
    let error = cluster.review().await.unwrap_err().to_string();
    assert!(error.contains("failed calling webhook"), "without certificates nothing is reviewed: {error}");
    let _running = cluster.start(lives());
    let (_, cas) = cluster.right("from nothing to the first review").await;
    assert_eq!(String::from_utf8(cas).unwrap().matches("BEGIN CERTIFICATE").count(), 1, "one CA");
    assert_eq!(cluster.metric("webhook_certificate_repairs_total{what=\"authority\"}"), 1, "one replica has won");
    assert_eq!(cluster.metric("webhook_certificate_swaps_total"), 2, "no other certificate was ever served");
    cluster.told("WebhookCAIssued").await;
    cluster.told("WebhookCABundleWritten").await;
    let secret = cluster.secret().await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_is_wiped_or_overwritten_and_a_secret_that_is_deleted_or_spoilt_heal_by_themselves() {
    let cluster = Cluster::new(ControlPlane::shared().unwrap()).await;
    let _running = cluster.start(lives());
    let (first, cas) = cluster.right("from nothing").await;
    for bundle in [&b""[..], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let written = cluster.metric("webhook_certificate_repairs_total{what=\"bundle\"}");
        cluster.overwrite_bundles(bundle).await;
        assert_eq!(cluster.right("a bundle is written again").await, (first.clone(), cas.clone()));
        assert!(cluster.metric("webhook_certificate_repairs_total{what=\"bundle\"}") > written);
    }

    cluster.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    let (second, cas) = cluster.right("a Secret is made again").await;
    assert_ne!(first, second);
    assert_eq!(String::from_utf8(cas).unwrap().matches("BEGIN CERTIFICATE").count(), 2, "the old CA is still trusted");

    let garbage = ByteString(b"\x00\xffgarbage".to_vec());
    cluster.change_secret(json!({"data": {"tls.crt": garbage, "tls.key": garbage}})).await;
    let (third, same) = cluster.right("a leaf is made again").await;
    assert_ne!(second, third);
    cluster.told("WebhookCertificateIssued").await;
    cluster.change_secret(json!({"data": {"ca.crt": garbage, "ca.key": garbage, "tls.crt": garbage}})).await;
    let (fourth, cas) = cluster.right("all is made again").await;
    assert_ne!(third, fourth);
    assert_ne!(same, cas);
    assert!(cluster.metric("webhook_certificate_repairs_total{what=\"authority\"}") >= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_a_year_ahead_on_one_replica_or_on_both_heals_by_itself() {
    let cluster = Cluster::new(ControlPlane::shared().unwrap()).await;
    let _running = cluster.start(lives());
    let (first, _) = cluster.right("from nothing").await;
    cluster.replicas[0].turn(365);
    // The certificate that it makes is one that the API server, whose clock is right, and the other replica take.
    let second = loop {
        let (serial, _) = cluster.right("one clock is ahead").await;
        if serial != first {
            break serial;
        }
    };
    cluster.replicas[0].turn(0);
    assert_eq!(cluster.right("the clock is right again").await.0, second, "nothing had to be replaced");
    for replica in &cluster.replicas {
        replica.turn(3 * 365);
    }
    let made = || cluster.metric("webhook_certificate_repairs_total{what=\"authority\"}");
    ipam_e2e::eventually("a CA is made in the future", crate::cluster::SOON, async || {
        if made() >= 2 { Ok(()) } else { Err(made()) }
    })
    .await
    .unwrap();
    for replica in &cluster.replicas {
        replica.turn(0);
    }
    cluster.right("a CA of the future is replaced").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_another_program_keeps_is_not_written_and_readiness_says_why() {
    let cluster = Cluster::new(ControlPlane::shared().unwrap()).await;
    let theirs = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET,
        "namespace": cluster.namespace, "annotations": {"cert-manager.io/certificate-name": "webhook"}}});
    let theirs = serde_json::from_value(theirs).unwrap();
    let created = cluster.secrets().create(&kube::api::PostParams::default(), &theirs).await.unwrap();
    let _running = cluster.start(lives());
    ipam_e2e::eventually("it is noticed", crate::cluster::SOON, async || {
        let problems: Vec<_> = cluster.replicas.iter().map(|replica| replica.certificates.last_problem()).collect();
        let blocked = problems.iter().all(|problem| matches!(problem, Some(Problem::Blocked(_))));
        if blocked { Ok(()) } else { Err(format!("{problems:?}")) }
    })
    .await
    .unwrap();
    let why = cluster.replicas[0].certificates.readiness().unwrap_err();
    assert!(why.contains("is kept by cert-manager") && why.contains("--webhook-certificates=files"), "{why}");
    assert_eq!(cluster.secret().await.unwrap().metadata.resource_version, created.metadata.resource_version);
    assert_eq!(cluster.bundles().await, [b"", b""]);
    cluster.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    cluster.right("out of the way, it goes on").await;
}
