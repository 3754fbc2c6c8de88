//! OpenShift's service CA, as it can be seen from outside: a certificate for each annotated Service, as a Secret with a PKCS#1 RSA
//! key, the signer behind the leaf and no `ca.crt`; and its bundle for each annotated webhook configuration.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

use super::Release;
use crate::control_plane::ControlPlane;

const WANTED: &str = "service.beta.openshift.io/serving-cert-secret-name";
const SIGNED: &str = "service.beta.openshift.io/serving-cert-signed-by";
const INJECT: &str = "service.beta.openshift.io/inject-cabundle";
const EXPIRY: &str = "service.beta.openshift.io/expiry";
const FROM_NAME: &str = "service.beta.openshift.io/originating-service-name";
const FROM_UID: &str = "service.beta.openshift.io/originating-service-uid";

/// Two years.
const LIFE: Duration = Duration::from_hours(2 * 365 * 24);

/// One key in both forms: that in which it can sign here, and that in which the real one hands it out.
const KEY_TO_READ: &str = include_str!("../../../webhook-certs/tests/certificates/keys/rsa.pkcs8.pem");
const KEY_TO_WRITE: &str = include_str!("../../../webhook-certs/tests/certificates/keys/rsa.pkcs1.pem");

/// A signer of certificates for Services.
pub struct ServiceCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl ServiceCa {
    /// A new one.
    ///
    /// # Errors
    /// When the parameters make no certificate.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "openshift-service-serving-signer");
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Its own certificate, as `caBundle` wants it: PEM in base64.
    ///
    /// # Errors
    /// Never in practice: when text makes no JSON.
    pub fn bundle(&self) -> Result<String> {
        base64(&self.issuer.pem())
    }

    /// A Secret with a leaf for a Service.
    ///
    /// # Errors
    /// When the parameters make no certificate.
    pub fn secret(&self, service: &str, namespace: &str, name: &str) -> Result<Value> {
        let host = format!("{service}.{namespace}.svc");
        let mut params = CertificateParams::new(vec![host.clone(), format!("{host}.cluster.local")])?;
        params.distinguished_name.push(DnType::CommonName, host);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = SystemTime::now();
        (params.not_before, params.not_after) = (now.into(), (now + LIFE).into());
        let expiry = jiff::Timestamp::try_from(now + LIFE)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let key = KeyPair::from_pem(KEY_TO_READ).context("the RSA key")?;
        let leaf = params.signed_by(&key, &self.issuer)?.pem();
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": namespace, "annotations": {EXPIRY: expiry}},
            "data": {"tls.crt": base64(&format!("{leaf}{}", self.issuer.pem()))?, "tls.key": base64(KEY_TO_WRITE)?},
        }))
    }

    /// Does once for a release what the controller does all the time.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn serve(&self, release: &Release<'_>) -> Result<()> {
        for service in release.objects("services")? {
            if let Some(secret) = service["metadata"]["annotations"][WANTED].as_str() {
                self.certify(release, &service, secret)?;
            }
        }
        for configuration in release.objects("validatingwebhookconfigurations")? {
            if configuration["metadata"]["annotations"][INJECT] == "true" {
                self.inject(release.plane(), &configuration)?;
            }
        }
        Ok(())
    }

    fn certify(&self, release: &Release<'_>, service: &Value, name: &str) -> Result<()> {
        let (uid, service) = (&service["metadata"]["uid"], service["metadata"]["name"].as_str().context("a name")?);
        let mut secret = self.secret(service, release.namespace(), name)?;
        let annotations = &mut secret["metadata"]["annotations"];
        (annotations[FROM_NAME], annotations[FROM_UID]) = (service.into(), uid.clone());
        secret["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Service", "name": service, "uid": uid}]);
        let kubectl = release.plane().kubectl();
        kubectl.run_with(&["create", "-f", "-"], &secret.to_string())?;
        let signed = format!("{SIGNED}=openshift-service-serving-signer");
        kubectl.run(&["annotate", "service", service, "-n", release.namespace(), &signed])?;
        Ok(())
    }

    fn inject(&self, plane: &ControlPlane, configuration: &Value) -> Result<()> {
        let count = configuration["webhooks"].as_array().map_or(0, Vec::len);
        let bundle = self.bundle()?;
        let steps: Vec<Value> = (0..count)
            .map(|at| json!({"op": "add", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": bundle}))
            .collect();
        let name = configuration["metadata"]["name"].as_str().context("a configuration without a name")?;
        let words = ["patch", "validatingwebhookconfiguration", name, "--type=json", "-p", &json!(steps).to_string()];
        plane.kubectl().run(&words).map(|_| ())
    }
}

fn base64(text: &str) -> Result<String> {
    let value = serde_json::to_value(ByteString(text.as_bytes().to_vec()))?;
    value.as_str().map(str::to_owned).context("bytes are written as a string")
}
