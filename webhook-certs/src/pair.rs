//! A certificate chain and its private key, parsed from PEM and found to belong together.
//!
//! Checks everything about a pair that needs no clock, and whether it is valid at a given time. Pure: reads no file and no
//! clock. Accepts any bytes: work and memory are bounded by [`MAX_BYTES`] and [`MAX_CHAIN`], and nothing panics.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

use crate::problem::{Judged, Problem};

mod pem;

/// The longest file that is looked at. A Secret is limited to 1 MiB by the API server.
pub const MAX_BYTES: usize = 1 << 20;

/// The longest chain. Public CAs use three or four; a bundle of root certificates in place of a chain has more than a hundred.
pub const MAX_CHAIN: usize = 32;

/// Most names of a certificate that are shown. It may have hundreds.
const MAX_NAMES: usize = 16;

/// Longest text taken over from a certificate, in characters.
const MAX_TEXT: usize = 256;

/// A chain and its key. The key matches the first certificate, which is for servers and names a host.
#[derive(Clone)]
pub struct Pair {
    key: Arc<CertifiedKey>,
    info: Arc<CertificateInfo>,
}

/// The facts of a certificate for logs and metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateInfo {
    /// Valid from this second on.
    pub not_before: Timestamp,
    /// Valid up to and including this second.
    pub not_after: Timestamp,
    /// DNS names and IP addresses that it is for, at most 16 of them.
    pub names: Vec<String>,
    /// Distinguished name of the CA that signed it.
    pub issuer: String,
    /// Serial number, in hexadecimal.
    pub serial: String,
}

impl CertificateInfo {
    /// Whether it is valid at this time, and if not why.
    pub fn valid_at(&self, now: Timestamp) -> Result<(), Problem> {
        // Certificates count whole seconds, and the last one belongs to them (RFC 5280, 4.1.2.5).
        if now.as_second() < self.not_before.as_second() {
            return Err(Problem::NotYetValid { not_before: self.not_before, now: Judged(now) });
        }
        if now.as_second() > self.not_after.as_second() {
            return Err(Problem::Expired { not_after: self.not_after, now: Judged(now) });
        }
        Ok(())
    }
}

impl Pair {
    /// Parses the contents of `tls.crt` and `tls.key`: any chain, leaf first; a key in PKCS#1, PKCS#8 or SEC1.
    /// [`CertificateInfo::valid_at`] checks the validity.
    ///
    /// # Errors
    /// The first thing that makes the pair unfit to serve.
    pub fn parse(certificates: &[u8], key: &[u8]) -> Result<Self, Problem> {
        let chain = pem::chain(certificates)?;
        let key = pem::key(key)?;
        let read = read_all(&chain);
        if let Err(broken @ Problem::Certificate { .. }) = read {
            return Err(broken);
        }
        let key = any_supported_type(&key).map_err(|_| Problem::Key)?;
        let key = CertifiedKey::new(chain, key);
        // Checked before other errors of the first certificate: a CA in the first place has no names either.
        agree(&key)?;
        let info = read?;
        Ok(Self { key: Arc::new(key), info: Arc::new(info) })
    }

    /// The facts of the leaf for logs and metrics.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// The certificate and key that rustls serves.
    pub fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }

    /// The leaf, then what leads to its CA.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Two pairs with the same chain are the same: one public key has one private key.
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.chain() == other.chain()
    }
}

impl Eq for Pair {}

/// The certificates of a file in their order, without any checks.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Problem> {
    pem::chain(pem)
}

/// Parses every certificate, because a client would reject an invalid one. Returns the facts of the first.
fn read_all(chain: &[CertificateDer<'static>]) -> Result<CertificateInfo, Problem> {
    let mut leaf = None;
    for (at, der) in chain.iter().enumerate() {
        let broken = |why: String| Problem::Certificate { number: at + 1, why: bounded(&why) };
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|error| broken(error.to_string()))?;
        if !rest.is_empty() {
            return Err(broken(format!("something else stands behind its end (bytes: {})", rest.len())));
        }
        if at == 0 {
            leaf = Some(describe(&certificate, &broken)?);
        }
    }
    leaf.ok_or(pem::NO_CERTIFICATE)
}

fn describe(leaf: &X509Certificate<'_>, broken: &dyn Fn(String) -> Problem) -> Result<CertificateInfo, Problem> {
    let usage = leaf.extended_key_usage().map_err(|error| broken(error.to_string()))?;
    // Without the extension every usage is allowed (RFC 5280, 4.2.1.12).
    if usage.is_some_and(|usage| !usage.value.server_auth && !usage.value.any) {
        return Err(Problem::NotForServers);
    }
    let names = leaf.subject_alternative_name().map_err(|error| broken(error.to_string()))?;
    let names: Vec<String> =
        names.iter().flat_map(|names| &names.value.general_names).filter_map(host).take(MAX_NAMES).collect();
    if names.is_empty() {
        return Err(Problem::Nameless);
    }
    Ok(CertificateInfo {
        not_before: timestamp(leaf.validity().not_before),
        not_after: timestamp(leaf.validity().not_after),
        names,
        issuer: bounded(&leaf.issuer().to_string()),
        serial: hex(leaf.raw_serial()),
    })
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(bounded(name)),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|octets| std::net::IpAddr::from(octets).to_string());
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(|octets| std::net::IpAddr::from(octets).to_string())).ok()
        }
        _ => None,
    }
}

fn agree(key: &CertifiedKey) -> Result<(), Problem> {
    match key.keys_match() {
        // Every key of the provider has a known public key. A key without one is not rejected for that.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(Error::InconsistentKeys(_)) => Err(Problem::Mismatch { belongs_to: owner(key) }),
        Err(error) => Err(Problem::Certificate { number: 1, why: bounded(&error.to_string()) }),
    }
}

/// The certificate that the key belongs to, counted from 1, when the chain is in the wrong order.
fn owner(key: &CertifiedKey) -> Option<usize> {
    let belongs = |der: &CertificateDer<'static>| CertifiedKey::new(vec![der.clone()], key.key.clone()).keys_match();
    key.cert.iter().position(|der| belongs(der).is_ok()).map(|at| at + 1)
}

/// Converts a time. "Without end" is the last second of the year 9999 (RFC 5280, 4.1.2.5), which is slightly later than the
/// latest timestamp.
pub(crate) fn timestamp(time: ASN1Time) -> Timestamp {
    let nearest = if time.timestamp() < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(time.timestamp()).unwrap_or(nearest)
}

/// Text from a certificate, truncated and without control characters, which would garble a log.
fn bounded(text: &str) -> String {
    text.chars().take(MAX_TEXT).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16);
    bytes.iter().take(MAX_TEXT / 2).flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).flatten().collect()
}
