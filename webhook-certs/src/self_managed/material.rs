//! Parses and checks the contents of the Secret, and creates new keys and certificates for it.
//!
//! Decides whether a CA and a leaf can be used, whatever the time. Must trust only the content of the Secret: a leaf counts
//! only if the CA in the same Secret signed it. Accepts any bytes without a panic.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData as _,
};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{RootCertStore, crypto};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::decide::{Dated, Der, Lives, OLD_AUTHORITIES, Standing, Unfit};
use crate::pair::{self, Pair};

/// Keys of the Secret. The first two are what Secrets of type `kubernetes.io/tls` have.
pub(super) const CERTIFICATE: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
/// The CAs to trust; the first signs.
pub(super) const AUTHORITIES: &str = "ca.crt";
/// The key of the CA that signs.
pub(super) const AUTHORITY_KEY: &str = "ca.key";

/// Contents of the Secret, by key.
pub(super) type Data = BTreeMap<String, Vec<u8>>;

/// A CA that signs, with the other contents of the Secret.
pub(super) struct Material {
    pub(super) standing: Standing,
    /// The leaf with its key, if it is fit.
    pub(super) pair: Option<Pair>,
    authority_key: KeyPair,
}

impl Material {
    /// Parses a Secret. `names` are the DNS names that a leaf must have.
    ///
    /// # Errors
    /// Why no CA can be read.
    pub(super) fn read(data: &Data, retire_after: Option<Timestamp>, names: &[String]) -> Result<Self, String> {
        let value = |key: &str| data.get(key).map(Vec::as_slice).unwrap_or_default();
        let authorities = authorities(value(AUTHORITIES))?;
        let authority_key = authority_key(value(AUTHORITY_KEY), &authorities[0])?;
        let fit = fit_leaf(value(CERTIFICATE), value(KEY), &authorities[0], names);
        let (leaf, pair) = match fit {
            Ok((leaf, pair)) => (Ok(leaf), Some(pair)),
            Err(unfit) => (Err(unfit), None),
        };
        Ok(Self { standing: Standing { authorities, leaf, retire_after }, pair, authority_key })
    }

    /// A new CA, a leaf of it for `names`, and the old CAs that stay trusted.
    ///
    /// # Errors
    /// If the machine provides no random numbers.
    pub(super) fn create(
        names: &[String],
        keep: &[Dated],
        retire_after: Option<Timestamp>,
        lives: &Lives,
        now: Timestamp,
    ) -> Result<Data, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        // A name of its own for each CA: clients look a leaf's CA up by name.
        let name = format!("nv-ipam webhook CA {}", now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, now, lives.authority, lives);
        let der = params.self_signed(&key)?.der().clone();
        let authorities = std::iter::once(dated_of(&der)).flatten().chain(keep.iter().cloned()).collect();
        let unfit = Unfit { why: String::new(), names: Vec::new() };
        let standing = Standing { authorities, leaf: Err(unfit), retire_after };
        Self { standing, pair: None, authority_key: key }.with_new_leaf(names, lives, now)
    }

    /// The same CAs and a new leaf for `names`.
    ///
    /// # Errors
    /// If the machine provides no random numbers, or a name cannot be a DNS name.
    pub(super) fn with_new_leaf(&self, names: &[String], lives: &Lives, now: Timestamp) -> Result<Data, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, "nv-ipam webhook");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        // No leaf outlives its CA: nothing would verify it then.
        let left = self.standing.signer().not_after.duration_since(now);
        set_validity(&mut params, now, lives.leaf.min(left.try_into().unwrap_or_default()), lives);
        let signer = CertificateDer::from(self.standing.signer().der.to_vec());
        let leaf = params.signed_by(&key, &Issuer::from_ca_cert_der(&signer, &self.authority_key)?)?;
        let mut data = self.authorities(&self.standing.authorities[1..]);
        data.insert(CERTIFICATE.to_owned(), leaf.pem().into_bytes());
        data.insert(KEY.to_owned(), key.serialize_pem().into_bytes());
        Ok(data)
    }

    /// The CA that signs, with its key, and these others. The leaf is left out.
    pub(super) fn authorities(&self, others: &[Dated]) -> Data {
        let ders = std::iter::once(&self.standing.signer().der).chain(others.iter().map(|other| &other.der));
        let bundle = bundle(ders);
        let key = self.authority_key.serialize_pem();
        Data::from([(AUTHORITIES.to_owned(), bundle.into_bytes()), (AUTHORITY_KEY.to_owned(), key.into_bytes())])
    }
}

/// These CAs in PEM, as in `ca.crt` and in a `caBundle`.
pub(super) fn bundle<'a>(ders: impl Iterator<Item = &'a Der>) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    ders.map(|der| pem::encode_config(&pem::Pem::new("CERTIFICATE", der.to_vec()), config)).collect()
}

/// The certificates of a `caBundle`; none if it is not PEM.
pub(super) fn bundled(pem: &[u8]) -> Vec<Der> {
    let chain = pair::certificates(pem).unwrap_or_default();
    chain.iter().map(|der| Der::from(der.as_ref())).collect()
}

fn authorities(pem: &[u8]) -> Result<Vec<Dated>, String> {
    let chain = pair::certificates(pem).map_err(|problem| problem.to_string().replace(CERTIFICATE, AUTHORITIES))?;
    if chain.len() > OLD_AUTHORITIES + 1 {
        return Err(format!(
            "ca.crt holds {} certificates, more than {} are never kept",
            chain.len(),
            OLD_AUTHORITIES + 1
        ));
    }
    let dated = |(at, der): (usize, &CertificateDer<'static>)| {
        dated_of(der).ok_or_else(|| format!("certificate {} of ca.crt is not one of a CA", at + 1))
    };
    chain.iter().enumerate().map(dated).collect()
}

fn dated_of(der: &CertificateDer<'_>) -> Option<Dated> {
    let (_, certificate) = X509Certificate::from_der(der).ok().filter(|(rest, _)| rest.is_empty())?;
    let validity = certificate.validity();
    certificate.is_ca().then(|| Dated {
        der: Der::from(der.as_ref()),
        not_before: pair::timestamp(validity.not_before),
        not_after: pair::timestamp(validity.not_after),
    })
}

fn authority_key(pem: &[u8], signer: &Dated) -> Result<KeyPair, String> {
    let text = str::from_utf8(pem).ok().filter(|text| text.len() <= pair::MAX_BYTES);
    // The parser's error message may quote the key.
    let key = text.and_then(|text| KeyPair::from_pem(text).ok());
    let key = key.ok_or("ca.key holds no private key in PKCS#8")?;
    let (_, certificate) = X509Certificate::from_der(&signer.der).map_err(|_| "ca.crt does not parse")?;
    let public = certificate.public_key().raw == key.subject_public_key_info();
    if public { Ok(key) } else { Err("ca.key is not the key of the first certificate in ca.crt".to_owned()) }
}

fn fit_leaf(certificate: &[u8], key: &[u8], signer: &Dated, names: &[String]) -> Result<(Dated, Pair), Unfit> {
    let unfit = |why: String| Unfit { why, names: Vec::new() };
    let pair = Pair::parse(certificate, key).map_err(|problem| unfit(problem.to_string()))?;
    let der = &pair.chain()[0];
    let parsed = ParsedCertificate::try_from(der).map_err(|error| unfit(error.to_string()))?;
    signed_by(&parsed, pair.info().not_after, signer).map_err(unfit)?;
    if let Some(lacking) = names.iter().find(|name| !is_for(&parsed, name)) {
        let why = format!("the certificate in tls.crt is not for {lacking}");
        return Err(Unfit { why, names: pair.info().names.clone() });
    }
    let (not_before, not_after) = (pair.info().not_before, pair.info().not_after);
    Ok((Dated { der: Der::from(der.as_ref()), not_before, not_after }, pair))
}

/// Verifies the leaf at the time of its own expiry, so that the present time does not matter and no leaf outlives its CA.
fn signed_by(leaf: &ParsedCertificate<'_>, end: Timestamp, signer: &Dated) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(signer.der.to_vec())).map_err(|error| format!("ca.crt: {error}"))?;
    let end = u64::try_from(end.as_second()).map_err(|_| "the certificate in tls.crt ended before 1970".to_owned())?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(end));
    let algorithms = crypto::ring::default_provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(leaf, &roots, &[], at, algorithms)
        .map_err(|error| format!("the certificate in tls.crt is not one of the first CA in ca.crt: {error}"))
}

fn is_for(leaf: &ParsedCertificate<'_>, name: &str) -> bool {
    ServerName::try_from(name).is_ok_and(|name| verify_server_name(leaf, &name).is_ok())
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, life: Duration, lives: &Lives) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
    params.not_before = epoch + now.saturating_sub(lives.backdate);
    params.not_after = epoch + (now + life);
}

#[cfg(test)]
mod tests;
