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

/// Writes everything into `directory`.
pub(crate) fn write(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    let ca = authority()?;
    fs::write(directory.join(CA), ca.pem())?;
    let names: Vec<String> = SERVER_NAMES.iter().map(|name| (*name).to_owned()).collect();
    let mut server = CertificateParams::new(names)?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    certify(directory, SERVER, server, "kube-apiserver", &ca)?;
    let mut admin = CertificateParams::new(Vec::new())?;
    admin.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // The group that the API server lets do everything before RBAC is asked.
    admin.distinguished_name.push(DnType::OrganizationName, "system:masters");
    certify(directory, ADMIN, admin, "admin", &ca)?;
    let tokens = KeyPair::generate()?;
    secret(&directory.join(TOKEN_KEY), &tokens.serialize_pem())?;
    fs::write(directory.join(TOKEN_PUBLIC), tokens.public_key_pem())?;
    Ok(())
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
