//! The command lines of etcd and kube-apiserver.

use std::path::Path;

use serde_json::json;

use super::{AUDIT_LOG, AUDIT_POLICY, ETCD_DATA, Purpose};
use crate::pki;

const ISSUER: &str = "https://kubernetes.default.svc";

/// The flags of an API server that serves on `port`.
pub(super) fn apiserver_flags(purpose: Purpose, state: &Path, port: u16, etcd: u16) -> Vec<String> {
    let pki = state.join("pki");
    let file = |name: &str| pki.join(name).display().to_string();
    let mut flags = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", etcd),
        "--bind-address=127.0.0.1".to_owned(),
        // The server publishes itself as an endpoint, which may not be a loopback address; nobody dials it.
        "--advertise-address=192.0.2.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--secure-port={}", port),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--client-ca-file={}", file(pki::CA)),
        format!("--service-account-issuer={ISSUER}"),
        format!("--service-account-key-file={}", file(pki::TOKEN_PUBLIC)),
        format!("--service-account-signing-key-file={}", file(pki::TOKEN_KEY)),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--allow-privileged=true".to_owned(),
        format!("--cert-dir={}", state.join("run").display()),
    ];
    if purpose != Purpose::Measurements {
        // Tests send bursts on purpose. Fairness between them is not what they test.
        flags.push("--max-requests-inflight=4000".to_owned());
        flags.push("--max-mutating-requests-inflight=2000".to_owned());
    }
    if purpose == Purpose::AuditedTests {
        flags.push(format!("--audit-policy-file={}", state.join(AUDIT_POLICY).display()));
        flags.push(format!("--audit-log-path={}", state.join(AUDIT_LOG).display()));
        // The line is there before the answer goes out.
        flags.push("--audit-log-mode=blocking-strict".to_owned());
    }
    flags
}

/// The flags of an etcd with its data in the run's folder.
pub(super) fn etcd_flags(purpose: Purpose, state: &Path, port: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
    let mut flags = vec![
        format!("--data-dir={}", state.join(ETCD_DATA).display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--log-level=warn".to_owned(),
    ];
    if purpose != Purpose::Measurements {
        // The data of a test need not outlive this machine. A kill -9 of etcd loses nothing without fsync either.
        flags.push("--unsafe-no-fsync".to_owned());
    }
    flags
}

/// Service accounts alone, and without bodies: who asked for what, and what was decided.
pub(super) fn audit_policy() -> serde_json::Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"], "omitManagedFields": true,
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
            {"level": "None"},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(purpose: Purpose) -> String {
        let state = Path::new("/state");
        [apiserver_flags(purpose, state, 1, 2), etcd_flags(purpose, state, 2, 3)].concat().join(" ")
    }

    #[test]
    fn measurements_sync_to_disk_and_keep_default_limits() {
        let measured = flags(Purpose::Measurements);
        assert!(!measured.contains("inflight") && !measured.contains("fsync"), "{measured}");
        for tested in [flags(Purpose::Tests), flags(Purpose::AuditedTests)] {
            assert!(
                tested.contains("--max-requests-inflight=4000") && tested.contains("--unsafe-no-fsync"),
                "{tested}"
            );
        }
    }

    #[test]
    fn only_audited_tests_keep_an_audit_log() {
        let audited = [Purpose::Tests, Purpose::AuditedTests, Purpose::Measurements]
            .map(|purpose| flags(purpose).contains("--audit-log-path="));
        assert_eq!(audited, [false, true, false]);
    }
}
