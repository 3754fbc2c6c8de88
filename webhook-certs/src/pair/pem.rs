//! Extracts the expected PEM blocks from the bytes of a file. Size is limited before anything is decoded.

use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{MAX_BYTES, MAX_CHAIN};
use crate::problem::{File, Problem};

/// The problem of a file without any certificate.
pub(super) const NO_CERTIFICATE: Problem =
    Problem::Missing { file: File::Certificate, wanted: "certificate (a PEM block BEGIN CERTIFICATE)", hint: "" };

/// Every certificate, in the order of the file.
pub(super) fn chain(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Problem> {
    short(bytes, File::Certificate)?;
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        if chain.len() == MAX_CHAIN {
            return Err(Problem::TooMany { limit: MAX_CHAIN });
        }
        chain.push(certificate.map_err(|error| broken(&error, File::Certificate))?);
    }
    if chain.is_empty() { Err(no_certificate(bytes)) } else { Ok(chain) }
}

/// The first private key. As in Go, parameters of a curve may precede it.
pub(super) fn key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, Problem> {
    short(bytes, File::Key)?;
    match PrivateKeyDer::from_pem_slice(bytes) {
        Ok(key) => Ok(key),
        Err(Error::NoItemsFound) => Err(no_key(bytes)),
        Err(error) => Err(broken(&error, File::Key)),
    }
}

fn short(bytes: &[u8], file: File) -> Result<(), Problem> {
    if bytes.len() > MAX_BYTES { Err(Problem::TooLong { file, limit: MAX_BYTES }) } else { Ok(()) }
}

fn no_certificate(bytes: &[u8]) -> Problem {
    let hint = if bytes.is_empty() {
        ": it is empty"
    } else if contains(bytes, b"PRIVATE KEY-----") {
        ", but a private key: the two files may be swapped"
    } else {
        return NO_CERTIFICATE;
    };
    Problem::Missing { file: File::Certificate, wanted: "certificate (a PEM block BEGIN CERTIFICATE)", hint }
}

fn no_key(bytes: &[u8]) -> Problem {
    let hint = if bytes.is_empty() {
        ": it is empty"
    } else if contains(bytes, b"BEGIN ENCRYPTED PRIVATE KEY") {
        ", but an encrypted one: there is nobody to ask for its password"
    } else if contains(bytes, b"BEGIN CERTIFICATE") {
        ", but a certificate: the two files may be swapped"
    } else {
        ""
    };
    let wanted = "private key (a PEM block BEGIN PRIVATE KEY, BEGIN RSA PRIVATE KEY or BEGIN EC PRIVATE KEY)";
    Problem::Missing { file: File::Key, wanted, hint }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// The problem of invalid PEM. The parser's error message is not used, because it may quote the file.
fn broken(error: &Error, file: File) -> Problem {
    let why = match error {
        Error::MissingSectionEnd { .. } => "a block has no END line, as if the file were half written",
        Error::IllegalSectionStart { .. } => "a BEGIN line does not end with five dashes",
        Error::Base64Decode(_) => "a block is not base64",
        _ => "a block cannot be decoded",
    };
    Problem::Pem { file, why }
}
