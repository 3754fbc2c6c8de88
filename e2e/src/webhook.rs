//! What stands around the operator's webhook in a cluster: a CA, a mounted Secret that is exchanged as kubelet does it, and the
//! configuration that sends the API server's reviews there.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};
use serde_json::{Value, json};

use crate::cluster::Operator;
use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::ports::Port;

/// How long the API server may take to hear of a configuration; a second on an idle machine.
const FOLLOWS: Duration = Duration::from_mins(1);

/// Path of the reviews of each kind.
pub const PATHS: [(&str, &str); 2] = [
    ("ippools", "/validate-nv-ipam-nvidia-com-v1alpha1-ippool"),
    ("cidrpools", "/validate-nv-ipam-nvidia-com-v1alpha1-cidrpool"),
];

/// A CA that signs certificates for 127.0.0.1 and for `NAME` of a Service.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub struct Certificate {
    /// The chain.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When the parameters make no certificate.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// The CA's certificate in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate that is valid from a minute ago for `life` from now.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn issue(&self, life: Duration) -> Result<Certificate> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = SystemTime::now();
        params.not_before = (now - Duration::from_mins(1)).into();
        params.not_after = (now + life).into();
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.issuer).context("cannot sign a certificate")?;
        Ok(Certificate { certificate: signed.pem(), key: key.serialize_pem() })
    }
}

/// A directory with a Secret's files as kubelet mounts them: links to `..data/NAME`, and `..data` a link to what is current.
pub struct Mount {
    directory: PathBuf,
    count: u32,
}

impl Mount {
    /// An empty one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        for name in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(name), directory.join(name))?;
        }
        Ok(Self { directory: directory.to_owned(), count: 0 })
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Exchanges the files in one step.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn exchange(&mut self, content: &Certificate) -> Result<()> {
        self.count += 1;
        let data = self.directory.join(format!("..{}", self.count));
        fs::create_dir(&data)?;
        fs::write(data.join("tls.crt"), &content.certificate)?;
        fs::write(data.join("tls.key"), &content.key)?;
        let (new, current) = (self.directory.join("..data_tmp"), self.directory.join("..data"));
        let old = fs::read_link(&current).ok();
        symlink(data.file_name().context("no name")?, &new)?;
        fs::rename(&new, &current)?;
        old.map_or(Ok(()), |old| fs::remove_dir_all(self.directory.join(old)).context("cannot remove the old files"))
    }
}

/// An operator that serves reviews.
pub struct Replica {
    /// The operator.
    pub operator: Operator,
    port: Port,
}

impl Replica {
    /// Starts one for the pools of `namespace`, with the certificates in `directory`; `extra` are further flags.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start(plane: &ControlPlane, namespace: &str, directory: &Path, extra: &[&str]) -> Result<Self> {
        let port = Port::reserve()?;
        let own = [
            "--webhook".to_owned(),
            format!("--webhook-bind-address=127.0.0.1:{}", port.number()),
            format!("--webhook-cert-dir={}", directory.display()),
        ];
        let flags: Vec<&str> = own.iter().map(String::as_str).chain(extra.iter().copied()).collect();
        let operator = Operator::start(plane, namespace, &flags)?;
        Ok(Self { operator, port })
    }

    /// The TCP port of the reviews on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

/// Sends the API server's reviews of the pools of `namespace` to a port on 127.0.0.1, and waits until it does. What is not
/// answered is refused.
///
/// # Errors
/// When the API server refuses the configuration, or does not follow it in time.
pub fn register(plane: &ControlPlane, namespace: &str, port: u16, ca: &str) -> Result<()> {
    register_where(plane, namespace, port, ca, &json!([]))
}

/// The same, except that what the user `spared` does is not reviewed.
///
/// # Errors
/// As [`register`].
pub fn register_sparing(plane: &ControlPlane, namespace: &str, port: u16, ca: &str, spared: &str) -> Result<()> {
    let expression = format!("request.userInfo.username != '{spared}'");
    register_where(plane, namespace, port, ca, &json!([{"name": "not-spared", "expression": expression}]))
}

fn register_where(plane: &ControlPlane, namespace: &str, port: u16, ca: &str, conditions: &Value) -> Result<()> {
    plane.kubectl().apply(&configuration(namespace, port, ca, conditions).to_string())?;
    // The network overlaps nothing and fits no CEL rule either: only the webhook can refuse it.
    let spec = json!({"subnet": "fd00:1::/64", "perNodeBlockSize": 4,
        "exclusions": [{"startIP": "fd00:1::9", "endIP": "fd00:1::1"}]});
    let probe = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "spec": spec,
        "metadata": {"name": "probe", "namespace": namespace}});
    eventually_blocking("the API server asks the webhook", FOLLOWS, || {
        let output = plane.kubectl().output(&["create", "--dry-run=server", "-f", "-"], &probe.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(said.contains("lies before startIP"), "{said}");
        Ok(())
    })
}

fn configuration(namespace: &str, port: u16, ca: &str, conditions: &Value) -> Value {
    let webhooks = PATHS.map(|(resource, path)| {
        json!({
            "name": format!("{resource}.nv-ipam.nvidia.com"),
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": 10,
            "matchConditions": conditions,
            "clientConfig": {
                "url": format!("https://127.0.0.1:{port}{path}"),
                "caBundle": ByteString(ca.as_bytes().to_vec()),
            },
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{
                "apiGroups": ["nv-ipam.nvidia.com"], "apiVersions": ["v1alpha1"], "resources": [resource],
                "operations": ["CREATE", "UPDATE", "DELETE"], "scope": "Namespaced",
            }],
        })
    });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": format!("{namespace}.nv-ipam.nvidia.com")}, "webhooks": webhooks,
    })
}
