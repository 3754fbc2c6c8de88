//! Bodies of requests to the webhook, judged beside other pools, nodes and what they hold.

use std::sync::LazyLock;

use ipam_core::PoolKind;
use ipam_reconciler::cluster_cache::Labels;
use ipam_reconciler::objects::RawObject;
use ipam_reconciler::reconcile::Observed;
use ipam_webhook::answer;
use ipam_webhook::cache::AdmissionCache;
use ipam_webhook::judge::{RefusalStatus, Verdict, judge};
use ipam_webhook::review::{Operation, read};
use kube::runtime::watcher::Event;
use serde_json::{Value as Json, json};

use crate::cases::POOL;

/// Longest answer for each byte asked, and for none: it names mistakes, of which a body has only so many.
const LONGEST: usize = 200_000;

/// What the webhook knows: pools that are in the way of some of the seeds, one that may be shared, and nodes that hold
/// addresses of the pool that the table of cases is about, or have not told.
pub fn known() -> &'static AdmissionCache {
    static KNOWN: LazyLock<AdmissionCache> = LazyLock::new(|| {
        let mut known = AdmissionCache::new("kube-system");
        for (kind, name, spec, may_overlap) in [
            ("IPPool", "first", json!({"subnet": "10.1.0.0/16", "perNodeBlockSize": 4}), "false"),
            ("IPPool", "shared", json!({"subnet": "10.2.0.0/16", "perNodeBlockSize": 4}), "true"),
            ("CIDRPool", "routed", json!({"cidr": "fd01::/48", "perNodeNetworkPrefix": 64}), "false"),
        ] {
            let annotations = json!({"nv-ipam.nvidia.com/allow-overlap": may_overlap});
            let metadata =
                json!({"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations});
            let kind = PoolKind::from_kind(kind).unwrap_or(PoolKind::IpPool);
            hear(&mut known, &json!({"metadata": metadata, "spec": spec}), |object| Observed::Pool(kind, object));
        }
        for (node, flat, routed, reports) in [
            ("n1", ["10.0.0.1", "10.0.0.4"], ["10.0.0.0", "10.0.0.255"], json!([1, 2])),
            ("n2", ["10.0.0.5", "10.0.0.8"], ["10.0.1.0", "10.0.1.255"], json!([0, 0])),
            ("n3", ["fd00::1", "fd00::4"], ["fd00::", "fd00::ffff:ffff:ffff:ffff"], json!([])),
        ] {
            hear(&mut known, &ipam_node(node, [flat, routed], &reports), Observed::IpamNode);
            let labels = Labels::from([("rack".to_owned(), node.replace('n', "r"))]);
            known.observe(&Observed::Node(Event::Apply((node.to_owned(), labels.into()))));
        }
        known.observe(&Observed::Node(Event::InitDone));
        known
    });
    &KNOWN
}

fn hear(known: &mut AdmissionCache, object: &Json, what: impl Fn(Event<RawObject>) -> Observed) {
    let object: Result<RawObject, _> = serde_json::from_str(&object.to_string());
    assert!(object.is_ok(), "{:?}", object.as_ref().err());
    if let Ok(object) = object {
        known.observe(&what(Event::Apply(object)));
    }
}

/// An IPAMNode with blocks of an IPPool and of a CIDRPool. Its agent reports these counts, the first with the addresses, or
/// nothing.
fn ipam_node(name: &str, blocks: [[&str; 2]; 2], reports: &Json) -> Json {
    let entry = |at: usize| {
        let ([start, end], kind) = (blocks[at], ["IPPool", "CIDRPool"][at]);
        json!({"name": POOL, "poolType": kind, "grant": "6955b90000000001", "startIP": start, "endIP": end})
    };
    let with = |mut entry: Json, more: Json| {
        let (Some(entry_fields), Json::Object(more)) = (entry.as_object_mut(), more) else { return entry };
        entry_fields.extend(more);
        entry
    };
    let length = if blocks[1][0].contains(':') { 64 } else { 24 };
    let block = |at: usize| with(entry(at), json!({"state": "Active", "subnet": format!("{}/{length}", blocks[1][0])}));
    let report = |at: usize| {
        let held = json!([{"startIP": blocks[0][1], "endIP": blocks[0][1]}]);
        let held = if at == 0 && reports[at] == 1 { held } else { json!([]) };
        with(entry(at), json!({"used": reports[at], "capacity": 4, "held": held}))
    };
    let told = reports.as_array().map_or(0, Vec::len);
    json!({
        "metadata": {"name": name}, "spec": {"pools": [block(0), block(1)]},
        "status": {"pools": (0..told).map(report).collect::<Vec<_>>()},
    })
}

pub(super) fn run(data: &[u8]) {
    let known = known();
    for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
        match read(kind, data) {
            Err(unread) => {
                assert!(!unread.message.is_empty() && unread.message.len() < 5_000, "{} bytes", unread.message.len());
                check(&unread.uid, false, &answer::unread(&unread.uid, RefusalStatus::BadRequest, &unread.message));
            }
            Ok(review) => {
                let verdict = judge(&review, known);
                assert_eq!(verdict, judge(&review, known), "one review is judged in two ways");
                let changes_nothing = review
                    .new
                    .as_ref()
                    .zip(review.old.as_ref())
                    .is_some_and(|(new, old)| new.has_spec_of(old) && new.allow_overlap == old.allow_overlap);
                if review.status_only || review.operation == Operation::Delete || changes_nothing {
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
