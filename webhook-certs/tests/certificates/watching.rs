//! The watch of a directory: what it takes, what it keeps, what it says.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ipam_webhook_certs::{Problem, ServerCertificates, files, system_clock};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::mounted::Mounted;
use crate::pki::{Ca, Files, now};
use crate::tls::{self, Client};

/// Shorter than in earnest, so that the tests are.
pub(crate) const PERIOD: Duration = Duration::from_millis(5);

/// Watches until the guard is dropped.
pub(crate) fn watch(mounted: &Mounted, certificates: &ServerCertificates) -> DropGuard {
    let stop = CancellationToken::new();
    tokio::spawn(files::watch_every(PERIOD, mounted.path(), certificates.clone(), stop.clone()));
    stop.drop_guard()
}

/// Awaits a condition. The limit is for a machine that does nothing for a minute.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(PERIOD).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), met).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

fn serial(certificates: &ServerCertificates) -> String {
    certificates.current().map(|info| info.serial).unwrap_or_default()
}

fn metrics(certificates: &ServerCertificates) -> String {
    let mut registry = Registry::default();
    certificates.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

fn assert_told(certificates: &ServerCertificates, line: &str) {
    let text = metrics(certificates);
    assert!(text.lines().any(|told| told == line), "no line {line:?} in\n{text}");
}

#[tokio::test]
async fn a_secret_that_appears_late_is_served_without_a_restart() {
    let mut mounted = Mounted::empty();
    let certificates = ServerCertificates::new(system_clock());
    let _watch = watch(&mounted, &certificates);
    until("the lack is noticed", || certificates.last_problem().is_some()).await;
    let why = certificates.readiness().unwrap_err();
    assert!(why.contains("tls.crt cannot be read"), "{why}");
    assert!(!certificates.is_ready());
    mounted.swap(&Ca::new("ca").valid(1));
    until("it is served", || certificates.is_ready()).await;
    assert_eq!((certificates.readiness(), certificates.last_problem()), (Ok(()), None));
}

#[tokio::test]
async fn a_swapped_secret_and_overwritten_files_are_both_noticed() {
    let ca = Ca::new("ca");
    let mut mounted = Mounted::with(&ca.valid(1));
    let certificates = ServerCertificates::new(system_clock());
    let _watch = watch(&mounted, &certificates);
    until("the first is served", || serial(&certificates) == "01").await;
    mounted.swap(&ca.valid(2));
    until("the second is served", || serial(&certificates) == "02").await;
    let third = ca.valid(3);
    fs::write(mounted.path().join("tls.crt"), &third.certificates).unwrap();
    until("the half is noticed", || certificates.last_problem() == Some(Problem::Mismatch { belongs_to: None })).await;
    assert_eq!(serial(&certificates), "02");
    fs::write(mounted.path().join("tls.key"), &third.key).unwrap();
    until("the third is served", || serial(&certificates) == "03").await;
    assert_told(&certificates, "webhook_certificate_swaps_total 3");
}

#[tokio::test]
async fn what_cannot_be_served_leaves_the_old_one_serving_and_is_counted_once() {
    let ca = Ca::new("ca");
    let good = ca.valid(1);
    let spoilt = [
        ("mismatch", Files { key: ca.valid(2).key, ..ca.valid(3) }),
        ("pem", Files { certificates: good.certificates[..200].to_owned(), ..good.clone() }),
        ("expired", ca.expired(4)),
        ("certificate", Files { certificates: good.key.replace("PRIVATE KEY", "CERTIFICATE"), ..good.clone() }),
    ];
    let mut mounted = Mounted::with(&good);
    let certificates = ServerCertificates::new(system_clock());
    let _watch = watch(&mounted, &certificates);
    until("it is served", || certificates.is_ready()).await;
    for (reason, files) in &spoilt {
        mounted.swap(files);
        let told = || certificates.last_problem().map(|problem| problem.reason());
        until(reason, || told() == Some(reason)).await;
        assert_eq!((serial(&certificates).as_str(), certificates.readiness()), ("01", Ok(())));
    }
    mounted.swap(&good);
    until("all is well", || certificates.last_problem().is_none()).await;
    for (reason, _) in &spoilt {
        assert_told(&certificates, &format!("webhook_certificate_refusals_total{{reason=\"{reason}\"}} 1"));
    }
    assert_told(&certificates, "webhook_certificate_swaps_total 1");
}

#[tokio::test]
async fn a_directory_or_a_pipe_in_place_of_a_file_holds_nothing_up() {
    let mounted = Mounted::empty();
    fs::create_dir(mounted.path().join("tls.crt")).unwrap();
    let certificates = ServerCertificates::new(system_clock());
    let _watch = watch(&mounted, &certificates);
    let problem = || certificates.last_problem().map(|problem| problem.to_string()).unwrap_or_default();
    until("it is told", || problem().contains("it is not a regular file")).await;
    fs::remove_dir(mounted.path().join("tls.crt")).unwrap();
    fs::write(mounted.path().join("tls.crt"), Ca::new("ca").valid(1).certificates).unwrap();
    let made = std::process::Command::new("mkfifo").arg(mounted.path().join("tls.key")).status().unwrap();
    assert!(made.success());
    let pipe = |text: &str| text.starts_with("tls.key") && text.contains("it is not a regular file");
    until("the pipe is told", || pipe(&problem())).await;
}

#[tokio::test]
async fn when_the_served_one_expires_it_is_shown_to_nobody_and_a_newer_one_heals_without_a_restart() {
    let ca = Ca::new("ca");
    let mut mounted = Mounted::with(&ca.valid(1));
    let ahead = Arc::new(AtomicI64::new(0));
    let clock = ahead.clone();
    let certificates = ServerCertificates::new(Arc::new(move || {
        Timestamp::from_second(now() + clock.load(Ordering::Relaxed)).unwrap()
    }));
    let _watch = watch(&mounted, &certificates);
    until("it is served", || certificates.is_ready()).await;
    let server = tls::serve(&certificates).await;
    let client = Client::trusting(&[ca.pem()]);
    let mut open = client.connect(server).await.unwrap();

    ahead.store(365 * 24 * 3600, Ordering::Relaxed);
    assert!(client.connect(server).await.is_err(), "the clock is asked in the handshake itself");
    let why = certificates.readiness().unwrap_err();
    assert!(why.contains("expired at"), "{why}");
    assert_told(&certificates, "webhook_certificate_ready 0");
    open.ask(1).await.unwrap();

    let year = 365 * 24 * 3600;
    let leaf = crate::pki::Leaf { validity: (now() - 60, now() + 2 * year), serial: 2, ..Default::default() };
    mounted.swap(&ca.sign(&leaf));
    until("the newer one is served", || serial(&certificates) == "02").await;
    client.connect(server).await.unwrap();
    assert_told(&certificates, "webhook_certificate_ready 1");
    let not_after = certificates.current().unwrap().not_after.as_second();
    assert_told(&certificates, &format!("webhook_certificate_not_after_timestamp_seconds {not_after}"));
}

#[tokio::test]
async fn a_clock_that_jumps_and_comes_back_leaves_nothing_behind() {
    let mounted = Mounted::with(&Ca::new("ca").valid(1));
    let ahead = Arc::new(AtomicI64::new(0));
    let clock = ahead.clone();
    let certificates = ServerCertificates::new(Arc::new(move || {
        Timestamp::from_second(now() + clock.load(Ordering::Relaxed)).unwrap()
    }));
    let _watch = watch(&mounted, &certificates);
    until("it is served", || certificates.is_ready()).await;
    for (jump, reason) in [(365, "expired"), (-365, "not_yet_valid")] {
        ahead.store(jump * 24 * 3600, Ordering::Relaxed);
        until(reason, || certificates.last_problem().map(|problem| problem.reason()) == Some(reason)).await;
        assert!(!certificates.is_ready());
        ahead.store(0, Ordering::Relaxed);
        until("it is ready", || certificates.last_problem().is_none()).await;
        assert!(certificates.is_ready());
    }
    assert_told(&certificates, "webhook_certificate_swaps_total 1");
}
