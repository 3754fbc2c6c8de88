//! Problems of a certificate or its key, with messages that name the file and what is expected.
//!
//! Nothing of a file's content goes into a message, beyond names and times: one of the two files is a private key.

use std::fmt;

use jiff::Timestamp;

/// One of the two files of a pair, by the key it has in a Secret of type `kubernetes.io/tls`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum File {
    /// `tls.crt`: the certificate of the server, then those that lead to its CA.
    Certificate,
    /// `tls.key`: the private key.
    Key,
}

impl File {
    /// The file's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Certificate => "tls.crt",
            Self::Key => "tls.key",
        }
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a pair is not served. Equal problems are reported once.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// The file is not there, or may not be read.
    #[error("{file} cannot be read: {why}")]
    Unreadable {
        /// Which file.
        file: File,
        /// The error message of the operating system.
        why: String,
    },
    /// The file is longer than any certificate or key.
    #[error("{file} is longer than {limit} bytes; it holds a certificate chain or one key, in PEM")]
    TooLong {
        /// Which file.
        file: File,
        /// The longest content that is read, in bytes.
        limit: usize,
    },
    /// The content is not PEM, or is cut off.
    #[error("{file} is not valid PEM: {why}")]
    Pem {
        /// Which file.
        file: File,
        /// What is wrong.
        why: &'static str,
    },
    /// The file lacks the expected PEM block.
    #[error("{file} holds no {wanted}{hint}")]
    Missing {
        /// Which file.
        file: File,
        /// The PEM block that is wanted.
        wanted: &'static str,
        /// What may have happened, with its punctuation.
        hint: &'static str,
    },
    /// The file has more certificates than a chain.
    #[error(
        "tls.crt holds more than {limit} certificates; it should hold the server's, then those that lead to its CA"
    )]
    TooMany {
        /// The longest chain that is taken.
        limit: usize,
    },
    /// A certificate does not parse.
    #[error("certificate {number} of tls.crt is not a valid X.509 certificate: {why}")]
    Certificate {
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        why: String,
    },
    /// The key is of a kind or size that cannot sign here.
    #[error(
        "tls.key holds a key that cannot be used: it must be RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, or Ed25519"
    )]
    Key,
    /// Certificate and key do not belong together.
    #[error("tls.key is not the key of the first certificate in tls.crt{}", of_another(*belongs_to))]
    Mismatch {
        /// The certificate of the chain that the key belongs to instead, counted from 1.
        belongs_to: Option<usize>,
    },
    /// The certificate may not be used by a server.
    #[error("the certificate in tls.crt is not for servers: its extended key usage lacks serverAuth")]
    NotForServers,
    /// The certificate names no host.
    #[error("the certificate in tls.crt has no subject alternative name: clients ignore the common name and need one")]
    Nameless,
    /// The certificate is not valid yet.
    #[error("the certificate in tls.crt is not valid before {not_before}, and now is {now}")]
    NotYetValid {
        /// Begin of the validity.
        not_before: Timestamp,
        /// The time of the check, which is ignored when two problems are compared.
        now: Judged,
    },
    /// The certificate has expired.
    #[error("the certificate in tls.crt expired at {not_after}, and now is {now}")]
    Expired {
        /// End of the validity.
        not_after: Timestamp,
        /// The time of the check, which is ignored when two problems are compared.
        now: Judged,
    },
    /// An obstacle prevents self-managed certificates. Nothing is done until it is removed.
    #[error("{0}")]
    Blocked(String),
    /// Self-managed certificates cannot be maintained, for example because the API server rejects a call or does not answer.
    #[error("the webhook's own certificates cannot be kept: {0}")]
    Unkept(String),
}

impl Problem {
    /// One word for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLong { .. } | Self::TooMany { .. } => "too_long",
            Self::Pem { .. } | Self::Missing { .. } => "pem",
            Self::Certificate { .. } => "certificate",
            Self::Key => "key",
            Self::Mismatch { .. } => "mismatch",
            Self::NotForServers | Self::Nameless => "usage",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::Expired { .. } => "expired",
            Self::Blocked(_) => "blocked",
            Self::Unkept(_) => "api",
        }
    }
}

fn of_another(belongs_to: Option<usize>) -> String {
    belongs_to.map_or_else(String::new, |number| {
        format!(
            " but of certificate {number}: the server's certificate must come first, then those that lead to its CA"
        )
    })
}

/// The time at which a certificate was checked. Equal to every other, because time alone is not a new problem.
#[derive(Clone, Copy, Debug)]
pub struct Judged(pub Timestamp);

impl PartialEq for Judged {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Judged {}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whole seconds, as in certificates.
        let whole = Timestamp::from_second(self.0.as_second()).unwrap_or(self.0);
        whole.fmt(f)
    }
}
