//! Bodies of requests to the webhook.

use ipam_core::PoolKind;
use ipam_operator::webhook::answer;
use ipam_operator::webhook::judge::{RefusalStatus, Verdict, judge};
use ipam_operator::webhook::known::Known;
use ipam_operator::webhook::review::{Operation, read};
use serde_json::Value as Json;

/// Longest answer for each byte asked, and for none: it names mistakes, of which a body has only so many.
const LONGEST: usize = 200_000;

pub(super) fn run(data: &[u8]) {
    let known = Known::new("kube-system");
    for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
        match read(kind, data) {
            Err(unread) => {
                assert!(!unread.message.is_empty() && unread.message.len() < 5_000, "{} bytes", unread.message.len());
                check(&unread.uid, false, &answer::unread(&unread.uid, RefusalStatus::BadRequest, &unread.message));
            }
            Ok(review) => {
                let verdict = judge(&review, &known);
                assert_eq!(verdict, judge(&review, &known), "one review is judged in two ways");
                if review.status_only || review.operation == Operation::Delete {
                    assert!(verdict.refusal.is_none(), "refused: {review:?}");
                }
                words(&verdict);
                check(&review.uid, verdict.refusal.is_none(), &answer::answer(&review.uid, &review.key(), &verdict));
            }
        }
    }
}

/// A refusal says why, field by field, and does not grow with the values.
fn words(verdict: &Verdict) {
    let Some(refusal) = &verdict.refusal else { return };
    assert!(!refusal.message.is_empty());
    for violation in &refusal.violations {
        assert!(!violation.field.is_empty() && violation.message.len() < 2_000, "{violation:?}");
    }
}

/// Whatever is asked, an AdmissionReview with the uid of the question comes back.
fn check(uid: &str, allowed: bool, bytes: &[u8]) {
    assert!(bytes.len() < LONGEST + 6 * uid.len(), "an answer of {} bytes", bytes.len());
    let review: Json = serde_json::from_slice(bytes).unwrap_or_default();
    assert_eq!((&review["kind"], &review["apiVersion"]), (&"AdmissionReview".into(), &"admission.k8s.io/v1".into()));
    let response = &review["response"];
    assert_eq!((response["uid"].as_str(), response["allowed"].as_bool()), (Some(uid), Some(allowed)));
    if !allowed {
        let code = response["status"]["code"].as_u64();
        assert!(code.is_some_and(|code| (400..500).contains(&code)), "code {code:?}");
        assert!(response["status"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Json::as_str);
    // Beyond 4096 the API server cuts them (behaviour of the warning header).
    assert!(warnings.map(|warning| warning.chars().count()).sum::<usize>() <= 4096);
}
