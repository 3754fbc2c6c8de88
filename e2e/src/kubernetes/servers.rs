//! The command lines of the control plane, which runs in the network namespace that joins the nodes.

use std::path::Path;

use crate::pki;

/// Address of the control plane on the network of the nodes.
pub(super) const ADDRESS: &str = "172.30.0.1";
/// ClusterIP of the Service `kubernetes`. The control plane has this address itself, so that pods need no kube-proxy.
pub(super) const SERVICE: &str = "10.96.0.1";
/// All ClusterIPs. Nodes route them to the control plane.
pub(super) const SERVICES: &str = "10.96.0.0/16";
/// The port of the API server is that of its Service.
pub(super) const PORT: u16 = 443;

pub(super) fn etcd(state: &Path) -> Vec<String> {
    vec![
        format!("--data-dir={}", state.join("etcd").display()),
        // The data of a test need not outlive this machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

pub(super) fn apiserver(state: &Path) -> Vec<String> {
    let pki = state.join("pki");
    let file = |name: &str| pki.join(name).display().to_string();
    vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--advertise-address={ADDRESS}"),
        format!("--secure-port={PORT}"),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--client-ca-file={}", file(pki::CA)),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file(pki::TOKEN_PUBLIC)),
        format!("--service-account-signing-key-file={}", file(pki::TOKEN_KEY)),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        format!("--kubelet-client-certificate={}", file("admin.crt")),
        format!("--kubelet-client-key={}", file("admin.key")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        // The API server finds the endpoint of a webhook's Service itself.
        "--enable-aggregator-routing=true".to_owned(),
        format!("--cert-dir={}", state.join("apiserver").display()),
    ]
}

pub(super) fn controller_manager(state: &Path) -> Vec<String> {
    let pki = state.join("pki");
    vec![
        format!("--kubeconfig={}", state.join("kube-controller-manager.kubeconfig").display()),
        format!("--service-account-private-key-file={}", pki.join(pki::TOKEN_KEY).display()),
        format!("--root-ca-file={}", pki.join(pki::CA).display()),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", state.join("controller-manager").display()),
    ]
}

pub(super) fn scheduler(state: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", state.join("kube-scheduler.kubeconfig").display()),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", state.join("scheduler").display()),
    ]
}
