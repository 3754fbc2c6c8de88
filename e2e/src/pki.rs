//! The keys of one control plane: a CA, the API server's certificate, an administrator's, and the pair that signs service-account
//! tokens. Made anew for every run and never leaving its directory.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

/// File names inside the directory.
pub(crate) const CA: &str = "ca.crt";
pub(crate) const SERVER: &str = "apiserver";
pub(crate) const ADMIN: &str = "admin";
pub(crate) const TOKEN_KEY: &str = "service-account.key";
pub(crate) const TOKEN_PUBLIC: &str = "service-account.pub";

/// Names under which the API server is reached, from the host, from nodes (by relay) and from pods.
const SERVER_NAMES: [&str; 6] = [
    "127.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// A client of the API server, by a certificate: its file, its name and its group.
pub(crate) struct Client<'a> {
    /// The files are called `FILE.crt` and `FILE.key`.
    pub file: &'a str,
    /// The user.
    pub name: &'a str,
    /// A group, or none if it is empty.
    pub group: &'a str,
}

/// The group that the API server lets do everything before RBAC is asked.
const ADMINS: &str = "system:masters";

/// Writes everything into `directory`. The API server has `more` names besides its usual ones.
pub(crate) fn write(directory: &Path, more: &[&str], clients: &[Client<'_>]) -> Result<()> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    let ca = authority()?;
    fs::write(directory.join(CA), ca.pem())?;
    let names: Vec<String> = SERVER_NAMES.iter().chain(more).map(|name| (*name).to_owned()).collect();
    let mut server = CertificateParams::new(names)?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    certify(directory, SERVER, server, "kube-apiserver", &ca)?;
    for client in [Client { file: ADMIN, name: "admin", group: ADMINS }].iter().chain(clients) {
        let mut params = CertificateParams::new(Vec::new())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !client.group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, client.group);
        }
        certify(directory, client.file, params, client.name, &ca)?;
    }
    let tokens = KeyPair::generate()?;
    secret(&directory.join(TOKEN_KEY), &tokens.serialize_pem())?;
    fs::write(directory.join(TOKEN_PUBLIC), tokens.public_key_pem())?;
    Ok(())
}

/// Writes a kubeconfig for a server. It is YAML, of which JSON is a part.
pub(crate) fn write_kubeconfig(path: &Path, server: &str, directory: &Path, user: &Value) -> Result<()> {
    let cluster = json!({"server": server, "certificate-authority": directory.join(CA)});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "e2e", "preferences": {},
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": user}],
    });
    fs::write(path, serde_json::to_vec_pretty(&config)?).with_context(|| format!("cannot write {}", path.display()))
}

/// The user of a kubeconfig, by the certificate of a client.
pub(crate) fn user(directory: &Path, file: &str) -> Value {
    json!({
        "client-certificate": directory.join(format!("{file}.crt")),
        "client-key": directory.join(format!("{file}.key")),
    })
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "nv-ipam-e2e");
    CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("cannot make the CA")
}

fn certify(
    directory: &Path,
    file: &str,
    mut params: CertificateParams,
    name: &str,
    ca: &CertifiedIssuer<'_, KeyPair>,
) -> Result<()> {
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, ca).with_context(|| format!("cannot sign the certificate of {name}"))?;
    fs::write(directory.join(format!("{file}.crt")), certificate.pem())?;
    secret(&directory.join(format!("{file}.key")), &key.serialize_pem())
}

fn secret(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let mut file = fs::File::options().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
