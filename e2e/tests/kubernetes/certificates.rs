//! The webhook gets its certificates from the operator, from cert-manager, and from the operator again, in one release.
//!
//! OpenShift's service CA cannot run here. The tests of the chart have a program in its place.

use ipam_e2e::assets::{self, Tool};
use ipam_e2e::kubernetes::Kubernetes;
use ipam_e2e::{Process, eventually_blocking};

use crate::stage::{NAMESPACE, SOON, apply, install, ip_pool, stage};

/// The real cert-manager. It needs no more of the cluster than the API server.
fn cert_manager(cluster: &Kubernetes) -> Process {
    let folder = assets::cert_manager_crds().unwrap().display().to_string();
    cluster.kubectl().run(&["apply", "--server-side", "-f", &folder]).unwrap();
    cluster.kubectl().run(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=1m"]).unwrap();
    cluster.kubectl().run(&["create", "namespace", "cert-manager"]).unwrap();
    let kubeconfig = format!("--cm-kubeconfig={}", cluster.kubeconfig().display());
    let log = cluster.directory().join("cert-manager.log");
    Process::start("cert-manager", &assets::path(Tool::CertManager).unwrap(), &[kubeconfig], &log).unwrap()
}

/// Waits until the webhook refuses a pool that overlaps another. No rule of the CRD sees two pools.
fn await_refusal(cluster: &Kubernetes, maker: &str) {
    let pool = ip_pool("second", 8).to_string();
    let words = ["create", "--dry-run=server", "-f", "-"];
    let refused = eventually_blocking(&format!("a pool is refused with certificates of {maker}"), SOON, || {
        let output = cluster.kubectl().output(&words, &pool)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(said.contains("admission webhook") && said.contains("IPPool \"first\""), "{said}");
        Ok(())
    });
    refused.unwrap();
}

/// The CA by which the API server trusts the webhook.
fn authority(cluster: &Kubernetes) -> String {
    let words = ["validatingwebhookconfigurations", "-l", "app.kubernetes.io/name=nv-ipam"];
    let found = cluster.get(&words).unwrap();
    found["items"][0]["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn webhook_serves_certificates_of_each_maker() {
    let cluster = stage();
    install(&cluster, &[]);
    apply(&cluster, &[ip_pool("first", 8)]);
    await_refusal(&cluster, "the operator");
    let of_the_operator = authority(&cluster);

    let _manager = cert_manager(&cluster);
    install(&cluster, &["webhook.certificates=cert-manager"]);
    await_refusal(&cluster, "cert-manager");
    let of_cert_manager = authority(&cluster);
    assert_ne!(of_cert_manager, of_the_operator);

    install(&cluster, &[]);
    await_refusal(&cluster, "the operator again");
    assert_ne!(authority(&cluster), of_cert_manager);
    cluster.kubectl().run(&["delete", "ippool", "first", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
