//! One pair at a time: what is taken, and what each mistake is told.

use ipam_webhook_certs::pair::{MAX_BYTES, MAX_CHAIN};
use ipam_webhook_certs::{File, Pair, Problem};
use jiff::Timestamp;
use rcgen::ExtendedKeyUsagePurpose;

use crate::pki::{Ca, Files, HOST, Leaf, key_file, now};

const P256: &str = key_file!("p256.pkcs8.pem");

fn refusal(files: &Files) -> String {
    files.parse().unwrap_err().to_string()
}

#[test]
fn every_encoding_of_a_key_is_taken() {
    let ca = Ca::new("ca");
    let cases = [
        ("rsa pkcs8", key_file!("rsa.pkcs8.pem"), key_file!("rsa.pkcs8.pem")),
        ("rsa pkcs1", key_file!("rsa.pkcs8.pem"), key_file!("rsa.pkcs1.pem")),
        ("p256 pkcs8", P256, P256),
        ("p256 sec1, after its parameters", P256, key_file!("p256.sec1.pem")),
        ("p384 pkcs8", key_file!("p384.pkcs8.pem"), key_file!("p384.pkcs8.pem")),
        ("p384 sec1, after its parameters", key_file!("p384.pkcs8.pem"), key_file!("p384.sec1.pem")),
        ("ed25519", key_file!("ed25519.pkcs8.pem"), key_file!("ed25519.pkcs8.pem")),
    ];
    for (name, signs, written) in cases {
        let mut files = ca.sign(&Leaf { key: Some(signs), ..Leaf::default() });
        written.clone_into(&mut files.key);
        assert!(files.parse().is_ok(), "{name}: {:?}", files.parse());
        files.key = written.replace('\n', "\r\n");
        assert!(files.parse().is_ok(), "{name}, lines as Windows ends them: {:?}", files.parse());
    }
}

#[test]
fn a_chain_and_a_leaf_with_its_ca_in_one_file_are_served_as_they_stand() {
    let ca = Ca::new("openshift-service-serving-signer");
    let leaf = ca.valid(7);
    let files = Files { certificates: format!("subject=leaf\n{}\n# its CA\n{}", leaf.certificates, ca.pem()), ..leaf };
    let pair = files.parse().unwrap();
    assert_eq!(pair.chain().len(), 2);
    assert_eq!(pair.chain()[1].as_ref(), ca.der());
    assert_eq!(pair.info().names, [HOST]);
    assert_eq!(
        (pair.info().issuer.as_str(), pair.info().serial.as_str()),
        ("CN=openshift-service-serving-signer", "07")
    );
}

#[test]
fn a_pair_says_from_when_until_when_it_is_valid_to_the_second() {
    let (from, until) = (now() + 100, now() + 200);
    let files = Ca::new("ca").sign(&Leaf { validity: (from, until), ..Leaf::default() });
    let pair = files.parse().unwrap();
    let at = |second| pair.info().valid_at(Timestamp::from_second(second).unwrap());
    assert!(matches!(at(from - 1), Err(Problem::NotYetValid { .. })));
    assert_eq!((at(from), at(until)), (Ok(()), Ok(())));
    let expired = at(until + 1).unwrap_err().to_string();
    assert!(expired.starts_with("the certificate in tls.crt expired at 2"), "{expired}");
}

#[test]
fn a_certificate_without_end_is_valid_today() {
    let year_9999 = 253_402_300_799;
    let files = Ca::new("ca").sign(&Leaf { validity: (now(), year_9999), ..Leaf::default() });
    assert_eq!(files.parse().unwrap().info().valid_at(Timestamp::now()), Ok(()));
}

#[test]
fn the_usage_must_allow_servers() {
    let ca = Ca::new("ca");
    let with = |usages| ca.sign(&Leaf { usages, ..Leaf::default() });
    assert!(with(vec![]).parse().is_ok(), "no extension, so every usage is allowed");
    assert!(with(vec![ExtendedKeyUsagePurpose::Any]).parse().is_ok());
    let both = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    assert!(with(both).parse().is_ok());
    assert_eq!(with(vec![ExtendedKeyUsagePurpose::ClientAuth]).parse(), Err(Problem::NotForServers));
}

#[test]
fn a_certificate_without_a_name_that_clients_read_is_refused() {
    let files = Ca::new("ca").sign(&Leaf { names: &[], ..Leaf::default() });
    assert_eq!(files.parse(), Err(Problem::Nameless));
}

#[test]
fn a_key_of_another_certificate_is_told_where_it_belongs() {
    let ca = Ca::new("ca");
    let (one, other) = (ca.valid(1), ca.valid(2));
    let mixed = Files { key: other.key.clone(), ..one.clone() };
    assert_eq!(mixed.parse(), Err(Problem::Mismatch { belongs_to: None }));
    let reversed = Files { certificates: format!("{}{}", ca.pem(), other.certificates), key: other.key };
    // The CA names no host, so it is not a server's certificate in any case; a second leaf is.
    assert!(reversed.parse().is_err());
    let second = Files { certificates: format!("{}{}", one.certificates, reversed.certificates), ..reversed };
    assert_eq!(second.parse(), Err(Problem::Mismatch { belongs_to: Some(3) }));
    assert!(refusal(&second).contains("but of certificate 3"), "{}", refusal(&second));
}

#[test]
fn keys_too_weak_or_unknown_are_refused_by_what_would_do() {
    let leaf = Ca::new("ca").valid(1);
    for key in [key_file!("rsa-1024.pkcs1.pem"), key_file!("p521.sec1.pem")] {
        let files = Files { key: key.to_owned(), ..leaf.clone() };
        assert_eq!(files.parse(), Err(Problem::Key));
    }
}

#[test]
fn each_mistake_in_a_file_is_told_by_the_files_name() {
    let good = Ca::new("ca").valid(1);
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let certificate = |text: String| Files { certificates: text, key: good.key.clone() };
    let key = |text: String| Files { certificates: good.certificates.clone(), key: text };
    let cases = [
        (certificate(String::new()), "tls.crt holds no certificate (a PEM block BEGIN CERTIFICATE): it is empty"),
        (certificate(good.key.clone()), "the two files may be swapped"),
        (certificate(half(&good.certificates)), "tls.crt is not valid PEM: a block has no END line"),
        (certificate(good.certificates.replace('M', "*")), "tls.crt is not valid PEM: a block is not base64"),
        (certificate(good.certificates.replacen("TE-----", "TE----", 1)), "does not end with five dashes"),
        (certificate(good.key.replace("PRIVATE KEY", "CERTIFICATE")), "certificate 1 of tls.crt is not a valid X.509"),
        (key(String::new()), "tls.key holds no private key"),
        (key(good.certificates.clone()), "the two files may be swapped"),
        (key(half(&good.key)), "tls.key is not valid PEM: a block has no END line"),
        (key(key_file!("encrypted.pem").to_owned()), "an encrypted one"),
        (key(good.certificates.replace("CERTIFICATE", "PRIVATE KEY")), "tls.key holds a key that cannot be used"),
    ];
    for (files, wanted) in cases {
        let told = refusal(&files);
        assert!(told.contains(wanted), "{told:?} should say {wanted:?}");
    }
}

#[test]
fn a_broken_certificate_further_up_the_chain_is_told_by_its_number() {
    let ca = Ca::new("ca");
    let leaf = ca.valid(1);
    let broken = leaf.key.replace("PRIVATE KEY", "CERTIFICATE");
    let files = Files { certificates: format!("{}{}{broken}", leaf.certificates, ca.pem()), ..leaf };
    assert!(refusal(&files).starts_with("certificate 3 of tls.crt"), "{}", refusal(&files));
}

#[test]
fn files_beyond_all_measure_are_refused_unread() {
    let good = Ca::new("ca").valid(1);
    let many = Files { certificates: good.certificates.repeat(MAX_CHAIN + 1), ..good.clone() };
    assert_eq!(many.parse(), Err(Problem::TooMany { limit: MAX_CHAIN }));
    let enough = Files { certificates: good.certificates.repeat(MAX_CHAIN), ..good.clone() };
    assert!(enough.parse().is_ok());
    let long = "#".repeat(MAX_BYTES + 1);
    let crt = Pair::parse(long.as_bytes(), good.key.as_bytes());
    assert_eq!(crt, Err(Problem::TooLong { file: File::Certificate, limit: MAX_BYTES }));
    let key = Pair::parse(good.certificates.as_bytes(), long.as_bytes());
    assert_eq!(key, Err(Problem::TooLong { file: File::Key, limit: MAX_BYTES }));
}

#[test]
fn bytes_of_every_kind_and_every_cut_are_judged_without_panic() {
    let good = Ca::new("ca").valid(1);
    for cut in 0..good.certificates.len() - 1 {
        let cut_off = Pair::parse(&good.certificates.as_bytes()[..cut], good.key.as_bytes());
        // Only the line break at the very end may be lacking.
        assert!(cut_off.is_err(), "cut at {cut}");
    }
    for at in 0..good.certificates.len() {
        let mut flipped = good.certificates.clone().into_bytes();
        flipped[at] ^= 0x15;
        drop(Pair::parse(&flipped, good.key.as_bytes()));
    }
    let binary: Vec<u8> = (0..=255).cycle().take(4096).collect();
    assert!(Pair::parse(&binary, &binary).is_err());
}

#[test]
fn neither_log_nor_message_shows_a_key() {
    let good = Ca::new("ca").valid(1);
    let pair = good.parse().unwrap();
    let secret = good.key.lines().nth(1).unwrap();
    assert!(!format!("{pair:?}").contains(secret));
    let spoilt =
        Files { key: good.key.replacen("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY", 1), ..good.clone() };
    assert!(!format!("{:?}", spoilt.parse()).contains(secret));
}
