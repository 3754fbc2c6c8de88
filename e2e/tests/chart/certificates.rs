//! From nothing to the first refusal in each way to have certificates, and what goes on when nobody answers. Nothing is restarted.
//! (The real cert-manager has a test binary of its own, which is run by name: it costs minutes to build.)

use ipam_e2e::chart::service_ca::ServiceCa;
use ipam_e2e::chart::webhook::{Webhook, first_refusal};
use ipam_e2e::chart::{Release, folder, pods};
use ipam_e2e::cluster::Operator;
use ipam_e2e::eventually_blocking;
use serde_json::{Value, json};

use crate::stage::{SOON, account, plane, release};

/// A release with one operator, whose certificates are still to come.
fn started(prefix: &str, webhook: &Webhook, values: &[&str]) -> (Release<'static>, Operator) {
    let release = release(prefix, &[&[webhook.value().as_str()], values].concat());
    release.route_webhook().unwrap();
    let operator = pods::operator(&release, Some(webhook)).unwrap();
    (release, operator)
}

fn secret(release: &Release<'_>) -> Value {
    let [deployment] = &release.objects("deployments").unwrap()[..] else { panic!("not one Deployment") };
    let name =
        deployment["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].as_str().unwrap().to_owned();
    release.object("secret", &name).unwrap()
}

#[test]
fn self_managed_certificates_lead_from_nothing_to_the_first_refusal() {
    let webhook = Webhook::new(plane()).unwrap();
    let (release, mut operator) = started("self", &webhook, &["webhook.certificates=self-managed"]);
    first_refusal(&release, &mut operator).unwrap();
    for configuration in release.objects("validatingwebhookconfigurations").unwrap() {
        let webhooks = configuration["webhooks"].as_array().unwrap();
        assert!(webhooks.iter().all(|webhook| webhook["clientConfig"]["caBundle"].is_string()), "{configuration}");
    }
}

#[test]
fn openshifts_service_ca_leads_from_nothing_to_the_first_refusal() {
    let mut webhook = Webhook::new(plane()).unwrap();
    let (release, mut operator) = started("openshift", &webhook, &["webhook.certificates=openshift"]);
    ServiceCa::new().unwrap().serve(&release).unwrap();
    let secret = secret(&release);
    assert!(secret["data"].get("ca.crt").is_none());
    webhook.mount().show(&secret).unwrap();
    first_refusal(&release, &mut operator).unwrap();
}

#[test]
fn a_secret_and_a_bundle_of_ones_own_lead_from_nothing_to_the_first_refusal() {
    let (mut webhook, ca) = (Webhook::new(plane()).unwrap(), ServiceCa::new().unwrap());
    let bundle = format!("webhook.caBundle={}", ca.bundle().unwrap());
    let (release, mut operator) = started("files", &webhook, &["webhook.certificates=none", &bundle]);
    let services = release.objects("services").unwrap();
    let service = services[0]["metadata"]["name"].as_str().unwrap();
    webhook.mount().show(&ca.secret(service, release.namespace(), "mine").unwrap()).unwrap();
    first_refusal(&release, &mut operator).unwrap();
}

#[test]
fn upgrade_changes_the_maker_of_certificates_and_back() {
    let mut webhook = Webhook::new(plane()).unwrap();
    let (release, mut operator) = started("changed", &webhook, &["webhook.certificates=self-managed"]);
    first_refusal(&release, &mut operator).unwrap();
    for way in ["openshift", "self-managed"] {
        let way = format!("webhook.certificates={way}");
        release.upgrade(&folder(), &["crds.install=false", &webhook.value(), &way]).unwrap();
        drop(operator);
        operator = pods::operator(&release, Some(&webhook)).unwrap();
        ServiceCa::new().unwrap().serve(&release).unwrap();
        if way.ends_with("openshift") {
            webhook.mount().show(&secret(&release)).unwrap();
        }
        // Its pool is to be made anew: one that is there already is applied without a question.
        forget_pools(&release);
        first_refusal(&release, &mut operator).unwrap();
    }
    let ca = ServiceCa::new().unwrap();
    let bundle = format!("webhook.caBundle={}", ca.bundle().unwrap());
    let ours =
        ["crds.install=false", &webhook.value(), "webhook.certificates=none", "webhook.secretName=mine", &bundle];
    let refused = release.upgrade(&folder(), &ours).unwrap_err().to_string();
    assert!(refused.contains("conflict") && refused.contains(".clientConfig.caBundle"), "{refused}");
    // A release has its namespace's name here.
    let chart = folder().display().to_string();
    let sets: Vec<&str> = ours.iter().flat_map(|value| ["--set", value]).collect();
    release.helm(&[&["upgrade", release.namespace(), &chart, "--force-conflicts"], &sets[..]].concat()).unwrap();
    drop(operator);
    let service = release.objects("services").unwrap()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    webhook.mount().show(&ca.secret(&service, release.namespace(), "mine").unwrap()).unwrap();
    operator = pods::operator(&release, Some(&webhook)).unwrap();
    forget_pools(&release);
    first_refusal(&release, &mut operator).unwrap();
}

fn forget_pools(release: &Release<'_>) {
    plane().kubectl().run(&["delete", "ippools", "--all", "-n", release.namespace()]).unwrap();
}

fn pool(release: &Release<'_>, name: &str) -> String {
    json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool",
        "metadata": {"name": name, "namespace": release.namespace(), "finalizers": ["example.com/kept"]},
        "spec": {"subnet": "10.91.0.0/24", "perNodeBlockSize": 8},
    })
    .to_string()
}

#[test]
fn with_nobody_to_answer_only_those_wait_who_make_or_change_a_pool() {
    let (webhook, ca) = (Webhook::new(plane()).unwrap(), ServiceCa::new().unwrap());
    let release = release("away", &["webhook.certificates=none"]);
    let (kubectl, namespace) = (plane().kubectl(), release.namespace());
    kubectl.apply(&pool(&release, "old")).unwrap();
    let bundle = format!("webhook.caBundle={}", ca.bundle().unwrap());
    let values = ["crds.install=false", "webhook.certificates=none", &bundle, &webhook.value()];
    release.upgrade(&ipam_e2e::chart::folder(), &values).unwrap();
    release.route_webhook().unwrap();
    let said = eventually_blocking("the API server asks the webhook", SOON, || {
        let dry_run = kubectl.run_with(&["create", "--dry-run=server", "-f", "-"], &pool(&release, "new"));
        dry_run.err().ok_or("it does not")
    });
    assert!(said.unwrap().to_string().contains("failed calling webhook"));
    let change = |patch: &str, words: &[&str]| {
        let base = ["patch", "ippool", "old", "-n", namespace, "--type=merge", "-p", patch];
        kubectl.run(&[&base, words].concat())
    };
    let grown = r#"{"spec": {"subnet": "10.91.0.0/23"}}"#;
    assert!(change(grown, &[]).unwrap_err().to_string().contains("failed calling webhook"));
    let annotated = r#"{"metadata": {"annotations": {"nv-ipam.nvidia.com/allow-overlap": "true"}}}"#;
    assert!(change(annotated, &[]).is_err(), "this annotation changes what a pool means");

    change(r#"{"metadata": {"labels": {"a": "b"}, "annotations": {"nv-ipam.nvidia.com/force-release": "n1"}}}"#, &[])
        .unwrap();
    change(r#"{"status": {"blocks": {"total": 1, "free": 1}}}"#, &["--subresource=status"]).unwrap();
    let operator = format!("--as=system:serviceaccount:{namespace}:{}", account(&release, "operator"));
    let allowed = ["create", "rolebinding", "all", "-n", namespace, "--clusterrole=cluster-admin"];
    let subject = format!("--serviceaccount={namespace}:{}", account(&release, "operator"));
    kubectl.run(&[&allowed[..], &[&subject]].concat()).unwrap();
    eventually_blocking("the operator is never asked about", SOON, || change(grown, &[&operator])).unwrap();
    kubectl.run(&["delete", "ippool", "old", "-n", namespace, "--wait=false"]).unwrap();
    change(r#"{"metadata": {"finalizers": null}}"#, &[]).unwrap();
    assert!(release.object("ippool", "old").is_err(), "it is gone");
}
