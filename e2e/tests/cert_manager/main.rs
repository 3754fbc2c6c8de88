//! The real cert-manager: its controllers and its CA injector, built from source, give the webhook of the chart its
//! certificates. Building them costs minutes, so this is no part of `cargo test`; it runs by name:
//! `cargo test -p ipam-e2e --test cert-manager`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use ipam_e2e::assets::{self, Tool};
use ipam_e2e::chart::webhook::{Webhook, first_refusal};
use ipam_e2e::chart::{self, Release, pods};
use ipam_e2e::cluster::await_crds;
use ipam_e2e::{ControlPlane, Process, eventually_blocking};

const SOON: Duration = Duration::from_mins(2);

/// cert-manager with its definitions.
fn cert_manager(plane: &ControlPlane) -> Process {
    let folder = assets::cert_manager_crds().unwrap();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "yaml") {
            let file = entry.path().display().to_string();
            plane.kubectl().run(&["apply", "--server-side", "-f", &file]).unwrap();
        }
    }
    await_crds(plane).unwrap();
    plane.kubectl().run(&["create", "namespace", "cert-manager"]).unwrap();
    let program = assets::path(Tool::CertManager).unwrap();
    let kubeconfig = format!("--cm-kubeconfig={}", plane.kubeconfig().display());
    Process::start("cert-manager", &program, &[kubeconfig], &plane.directory().join("cert-manager.log")).unwrap()
}

#[test]
fn cert_manager_leads_from_nothing_to_the_first_refusal_and_a_renewed_certificate_is_served() {
    let plane = ControlPlane::start().unwrap();
    let mut manager = cert_manager(&plane);
    plane.kubectl().run(&["create", "namespace", "net"]).unwrap();
    let mut webhook = Webhook::new(&plane).unwrap();
    let values = ["webhook.certificates=cert-manager", &webhook.value()];
    let release = Release::install(&plane, "nv-ipam", "net", &chart::folder(), &values).unwrap();
    await_crds(&plane).unwrap();
    release.route_webhook().unwrap();
    let mut operator = pods::operator(&release, Some(&webhook)).unwrap();
    let secret = || release.object("secret", "nv-ipam-webhook-cert-manager");
    let issued = manager.ready("the certificate is issued", SOON, secret).unwrap();
    webhook.mount().show(&issued).unwrap();
    first_refusal(&release, &mut operator).unwrap();

    // cert-manager issues another certificate when the Secret is gone; the operator takes what is mounted next, without a restart.
    plane.kubectl().run(&["delete", "secret", "nv-ipam-webhook-cert-manager", "-n", "net"]).unwrap();
    let renewed = eventually_blocking("another certificate is issued", SOON, || {
        let found = secret()?;
        if found["data"]["tls.crt"] == issued["data"]["tls.crt"] || found["data"]["tls.crt"].is_null() {
            anyhow::bail!("the old one");
        }
        Ok(found)
    })
    .unwrap();
    webhook.mount().show(&renewed).unwrap();
    first_refusal(&release, &mut operator).unwrap();
}
