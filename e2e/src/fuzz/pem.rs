//! `tls.crt` and `tls.key` of the webhook.

use ipam_webhook_certs::pair::Pair;

/// Stands between the two files in one input.
pub(super) const BETWEEN: u8 = 0;
/// Longest text about what is wrong.
const LONGEST: usize = 5_000;

pub(super) fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == BETWEEN);
    let (certificates, key) = at.map_or((data, data), |at| (&data[..at], &data[at + 1..]));
    match Pair::parse(certificates, key) {
        Ok(pair) => {
            assert!(!pair.chain().is_empty());
            assert!(pair.info().names.len() <= 64, "too many names are kept");
            assert_eq!(Ok(&pair), Pair::parse(certificates, key).as_ref(), "the same pair is read in two ways");
        }
        Err(problem) => {
            let told = problem.to_string();
            assert!(!told.is_empty() && told.len() < LONGEST, "{} bytes", told.len());
            let text = String::from_utf8_lossy(key);
            let secrets = text.lines().filter(|line| line.len() >= 16 && !line.contains("-----"));
            for secret in secrets.filter(|line| line.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)))
            {
                assert!(!told.contains(secret), "a piece of the key is told: {told}");
            }
        }
    }
}
