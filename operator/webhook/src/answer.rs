//! Serializes answers: always an `AdmissionReview`, with the uid of the request if it had one.

use std::borrow::Cow;

use ipam_core::words::counted;
use ipam_core::{PoolKey, Reason, Violation};
use serde::Serialize;

use super::judge::{Refusal, RefusalStatus, VIOLATIONS_SHOWN, Verdict};
use super::review::REVIEW_VERSION;

/// Longest warning, in characters. The API server truncates longer ones if all warnings of an answer exceed 4096.
const WARNING_LENGTH: usize = 256;
/// Longest total of all warnings of an answer, in characters, for the same reason.
const WARNINGS_LENGTH: usize = 4096;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: &'a Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Cow<'a, str>>,
}

/// `Status` of meta/v1.
#[derive(Serialize)]
struct Status<'a> {
    metadata: Empty,
    #[serde(rename = "status")]
    outcome: &'static str,
    code: u16,
    reason: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct Details<'a> {
    name: &'a str,
    group: &'static str,
    kind: &'static str,
    causes: Vec<Cause<'a>>,
}

#[derive(Serialize)]
struct Cause<'a> {
    reason: &'static str,
    field: &'a str,
    message: Cow<'a, str>,
}

/// The answer to a review of the pool `key`.
pub fn answer(uid: &str, key: &PoolKey, verdict: &Verdict) -> Vec<u8> {
    let status = verdict.refusal.as_ref().map(|refusal| status(key, refusal));
    write(&Response { uid, allowed: verdict.refusal.is_none(), status, warnings: bounded(&verdict.warnings) })
}

/// The answer to a request that is not a review of a pool, or that was not reviewed.
pub fn unread(uid: &str, status: RefusalStatus, message: &str) -> Vec<u8> {
    let status = Status {
        metadata: Empty {},
        outcome: "Failure",
        code: status.code(),
        reason: status.as_str(),
        message,
        details: None,
    };
    write(&Response { uid, allowed: false, status: Some(status), warnings: Vec::new() })
}

fn write(response: &Response<'_>) -> Vec<u8> {
    let envelope = Envelope { api_version: REVIEW_VERSION, kind: "AdmissionReview", response };
    // The envelope has only strings, numbers and booleans, so serialization cannot fail.
    serde_json::to_vec(&envelope).unwrap_or_default()
}

fn status<'a>(key: &'a PoolKey, refusal: &'a Refusal) -> Status<'a> {
    let mut causes: Vec<_> = refusal.violations.iter().take(VIOLATIONS_SHOWN).map(cause).collect();
    if let Some(more) = refusal.violations.len().checked_sub(VIOLATIONS_SHOWN).filter(|more| *more > 0) {
        let message = format!("and {}", counted(more, "more mistake", "more mistakes")).into();
        causes.push(Cause { reason: "FieldValueInvalid", field: "spec", message });
    }
    let details = Details { name: &key.name, group: ipam_crds::GROUP, kind: key.kind.kind(), causes };
    Status {
        metadata: Empty {},
        outcome: "Failure",
        code: refusal.status.code(),
        reason: refusal.status.as_str(),
        message: &refusal.message,
        details: Some(details),
    }
}

fn cause(violation: &Violation) -> Cause<'_> {
    Cause {
        reason: cause_reason(violation.reason),
        field: &violation.field,
        message: violation.message.as_str().into(),
    }
}

/// The closest `CauseType` of meta/v1.
const fn cause_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Required => "FieldValueRequired",
        Reason::Duplicate => "FieldValueDuplicate",
        Reason::Unsupported => "FieldValueNotSupported",
        _ => "FieldValueInvalid",
    }
}

/// The warnings that the API server forwards in full. If some are omitted, the last entry has their number.
fn bounded(warnings: &[String]) -> Vec<Cow<'_, str>> {
    let mut room = WARNINGS_LENGTH - WARNING_LENGTH;
    let mut kept = Vec::new();
    for warning in warnings {
        let warning = shortened(warning);
        let Some(left) = room.checked_sub(warning.chars().count()) else { break };
        room = left;
        kept.push(warning);
    }
    if kept.len() < warnings.len() {
        let more = counted(warnings.len() - kept.len(), "more warning", "more warnings");
        kept.push(format!("and {more}").into());
    }
    kept
}

fn shortened(text: &str) -> Cow<'_, str> {
    if text.chars().nth(WARNING_LENGTH).is_none() {
        return text.into();
    }
    let kept: String = text.chars().take(WARNING_LENGTH - 1).collect();
    format!("{kept}…").into()
}

#[cfg(test)]
mod tests {
    use ipam_core::PoolKind;
    use serde_json::Value;

    use super::*;

    fn verdict(violations: usize, warnings: Vec<String>) -> Value {
        let one =
            |i| Violation::new(format!("spec.exclusions[{i}].endIP"), Reason::Inverted, "\"a\" lies before \"b\"");
        let violations: Vec<_> = (0..violations).map(one).collect();
        let refusal = (!violations.is_empty()).then(|| Refusal::of(violations));
        let bytes = answer("u-1", &PoolKey::new(PoolKind::IpPool, "p"), &Verdict { refusal, warnings });
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn a_pool_that_is_let_through_is_answered_with_the_uid_and_nothing_else() {
        let wanted =
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u-1","allowed":true}}"#;
        assert_eq!(verdict(0, Vec::new()), serde_json::from_str::<Value>(wanted).unwrap());
    }

    #[test]
    fn a_refusal_names_each_mistake_with_field_and_reason() {
        let status = verdict(2, Vec::new())["response"]["status"].clone();
        assert_eq!((&status["code"], &status["reason"]), (&422.into(), &"Invalid".into()));
        assert_eq!((&status["details"]["kind"], &status["details"]["name"]), (&"IPPool".into(), &"p".into()));
        let cause = &status["details"]["causes"][1];
        assert_eq!(cause["field"], "spec.exclusions[1].endIP");
        assert_eq!(cause["reason"], "FieldValueInvalid");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("2 mistakes:\n* spec.exclusions[0].endIP: \"a\""), "{message}");
    }

    #[test]
    fn thousands_of_mistakes_make_a_short_answer_that_says_how_many_there_are() {
        let status = verdict(30_000, Vec::new())["response"]["status"].clone();
        let causes = status["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.len(), VIOLATIONS_SHOWN + 1);
        assert_eq!(causes[VIOLATIONS_SHOWN]["message"], "and 29950 more mistakes");
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with("30000 mistakes:") && message.ends_with("and 29950 more"), "{message}");
        assert!(status.to_string().len() < 16 << 10);
    }

    #[test]
    fn warnings_stay_within_what_the_api_server_passes_on() {
        let long = verdict(0, vec!["ä".repeat(300); 40])["response"]["warnings"].clone();
        let long: Vec<String> = serde_json::from_value(long).unwrap();
        assert!(long.iter().all(|warning| warning.chars().count() <= WARNING_LENGTH));
        assert!(long.iter().map(|warning| warning.chars().count()).sum::<usize>() <= WARNINGS_LENGTH);
        assert!(long.last().unwrap().ends_with("more warnings"), "{long:?}");
        assert_eq!(verdict(0, vec!["a".into()])["response"]["warnings"], serde_json::json!(["a"]));
    }
}
