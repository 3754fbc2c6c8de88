//! A CA and what it signs, with validities and keys as a test wants them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_webhook_certs::{Pair, Problem};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// The host that every leaf is for, unless a test says otherwise.
pub(crate) const HOST: &str = "nv-ipam-webhook.kube-system.svc";

/// A key file of this folder.
macro_rules! key_file {
    ($name:literal) => {
        include_str!(concat!("keys/", $name))
    };
}
pub(crate) use key_file;

pub(crate) struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// What a leaf is to be like.
pub(crate) struct Leaf<'a> {
    pub(crate) names: &'a [&'a str],
    /// Seconds since 1970.
    pub(crate) validity: (i64, i64),
    pub(crate) usages: Vec<ExtendedKeyUsagePurpose>,
    /// PKCS#8 PEM; a fresh P-256 key if absent.
    pub(crate) key: Option<&'a str>,
    pub(crate) serial: u64,
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        Self {
            names: &[HOST],
            validity: (now() - 3600, now() + 3600),
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth],
            key: None,
            serial: 1,
        }
    }
}

/// Contents of `tls.crt` and `tls.key`.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) certificates: String,
    pub(crate) key: String,
}

impl Files {
    pub(crate) fn parse(&self) -> Result<Pair, Problem> {
        Pair::parse(self.certificates.as_bytes(), self.key.as_bytes())
    }
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2100, 1, 1));
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn der(&self) -> &[u8] {
        self.issuer.der()
    }

    pub(crate) fn sign(&self, leaf: &Leaf<'_>) -> Files {
        let key = leaf.key.map_or_else(|| KeyPair::generate().unwrap(), |pem| KeyPair::from_pem(pem).unwrap());
        let names: Vec<String> = leaf.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(leaf.serial.into());
        params.extended_key_usages.clone_from(&leaf.usages);
        set_validity(&mut params, leaf.validity);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Files { certificates: certificate.pem(), key: key.serialize_pem() }
    }

    /// A leaf for [`HOST`] that is valid now.
    pub(crate) fn valid(&self, serial: u64) -> Files {
        self.sign(&Leaf { serial, ..Leaf::default() })
    }

    /// A leaf that expired an hour ago.
    pub(crate) fn expired(&self, serial: u64) -> Files {
        self.sign(&Leaf { serial, validity: (now() - 7200, now() - 3600), ..Leaf::default() })
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

fn set_validity(params: &mut CertificateParams, (from, until): (i64, i64)) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(u64::try_from(from).unwrap());
    params.not_after = epoch + Duration::from_secs(u64::try_from(until).unwrap());
}
