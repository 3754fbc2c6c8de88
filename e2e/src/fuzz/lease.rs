//! The Lease of the operator's election, as anybody may have written it.

use std::time::{Duration, Instant};

use ipam_operator::election::algorithm::{Candidate, RENEW_DEADLINE, Step};
use ipam_reconciler::allocation_state::{ALLOCATION_STATE, AllocationState};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

pub(super) fn run(data: &[u8]) {
    let Ok(lease) = serde_json::from_slice::<Lease>(data) else { return };
    // By the clock of who renewed it last, and by one for which that is long ago.
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    if let Some(MicroTime(renewed)) = renewed {
        taken_over(&lease, renewed, |read, written| read == written);
    }
    taken_over(&lease, Timestamp::UNIX_EPOCH, |read, written| read <= written);
}

/// The Lease is taken over at this time, if it can be. `says` compares what it says of blocks before and after.
fn taken_over(lease: &Lease, wall: Timestamp, says: fn(AllocationState, AllocationState) -> bool) {
    let now = Instant::now();
    let mut candidate = Candidate::new("us".to_owned(), "ns", "lease");
    candidate.observe(Some(lease.clone()), now);
    assert_eq!(candidate.leads_until(), None, "one leads by what was only read");
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(15);
    let is_others = !holder.is_empty() && holder != "us";
    let first = candidate.step(now, wall);
    assert_eq!(matches!(first, Step::Follow { .. }), is_others && seconds > 0, "{first:?}");
    // Seen unchanged for its own duration, a lease of another is over.
    let later = now + Duration::from_secs(seconds);
    candidate.observe(Some(lease.clone()), later);
    match candidate.step(later, wall) {
        Step::Replace(written) => {
            let (before, after) = (AllocationState::of(lease), AllocationState::of(&written));
            assert!(says(before, after), "the Lease says {after:?} of blocks given, after {before:?}");
            replaced(candidate, lease, written, later);
        }
        other => assert_eq!(Some(other), None, "a lease that is over is not taken"),
    }
}

/// Nothing of others is lost by our write.
fn replaced(mut candidate: Candidate, read: &Lease, written: Lease, now: Instant) {
    let others = |lease: &Lease| {
        let mut metadata = lease.metadata.clone();
        metadata.annotations.get_or_insert_default().remove(ALLOCATION_STATE);
        metadata
    };
    assert_eq!(others(read), others(&written));
    let spec = written.spec.clone().unwrap_or_default();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("us"), Some(15)));
    assert!(spec.lease_transitions >= read.spec.as_ref().and_then(|spec| spec.lease_transitions));
    candidate.wrote(written.clone(), now, now);
    assert_eq!(candidate.leads_until(), Some(now + RENEW_DEADLINE));
    let mut other = Candidate::new("other".to_owned(), "ns", "lease");
    other.observe(Some(written.clone()), now);
    assert!(matches!(other.step(now, Timestamp::UNIX_EPOCH), Step::Follow { .. }), "two lead by one lease");
    let released = candidate.release(Timestamp::UNIX_EPOCH);
    assert_eq!(released.as_ref().map(AllocationState::of), Some(AllocationState::of(&written)));
    // Another writes over it.
    let mut taken = written;
    taken.spec.get_or_insert_default().holder_identity = Some("thief".to_owned());
    candidate.observe(Some(taken), now);
    assert_eq!(candidate.leads_until(), None, "one leads by a lease of another");
}

/// Leases of a leader, of one who gave it up, of another implementation, and one without anything.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let spec = json!({"holderIdentity": "host_1", "leaseDurationSeconds": 15, "leaseTransitions": 3,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:09.123456Z"});
    let mut given_up = spec.clone();
    given_up["holderIdentity"] = json!("");
    given_up["leaseDurationSeconds"] = json!(1);
    let lease = |spec: &serde_json::Value, given: &str| {
        let annotations = json!({ALLOCATION_STATE: given, "other.example/mark": "kept"});
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec, "metadata": {
            "name": "dd1643cf.nvidia.com", "namespace": "kube-system", "uid": "u", "resourceVersion": "41",
            "labels": {"a": "b"}, "annotations": annotations}})
    };
    let all =
        [lease(&spec, "Allocated"), lease(&given_up, "Recovering"), lease(&spec, "maybe"), json!({"metadata": {}})];
    all.iter().map(|lease| lease.to_string().into_bytes()).collect()
}
