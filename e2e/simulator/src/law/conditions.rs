//! The conditions of a pool are those that the model expects, once all has settled.

use serde_json::Value;

use super::condition;
use super::seen::{Seen, claims};
use crate::broken::{Broken, broken};
use crate::layout::Layout;

/// Checks Ready, Exhausted, Degraded and Releasing, and the observed generation.
pub(super) fn agree(seen: &Seen<'_>, layout: &Layout) -> Result<(), Broken> {
    let object = seen.object(layout);
    let wrong = |what: &str, got: &Value| {
        broken("conditions-agree", format!("{} is to say {what}, and says {got}", layout.key))
    };
    if object["status"]["observedGeneration"] != object["metadata"]["generation"] {
        return wrong("which generation it has observed", &object["status"]);
    }
    let Some(ready) = condition(object, "Ready") else { return wrong("whether it is Ready", &object["status"]) };
    let expected = ready_reason(seen, layout);
    let is_other = ready["reason"] != expected;
    let waits = is_other && expected == "Valid" && ready["reason"] == "EditDeferred" && gateway_may_wait(seen, layout);
    let waits = seen.leaves_out("conditions-agree", &[("the gateway may be in use", waits)]);
    if is_other && !waits {
        return wrong(&format!("Ready for {expected}"), ready);
    }
    if (ready["status"] == "True") != (ready["reason"] == "Valid") {
        return wrong("Ready with a reason that agrees", ready);
    }
    if layout.is_frozen() {
        return Ok(());
    }
    let is_exhausted = condition(object, "Exhausted").is_some_and(|it| it["status"] == "True");
    let unserved = seen.unserved(layout);
    if is_exhausted != (seen.serves(layout) && !unserved.is_empty()) {
        return wrong(&format!("whether {unserved:?} have no block"), &object["status"]["conditions"]);
    }
    let contradicts = condition(object, "Degraded").is_some_and(|it| it["reason"] == "DuplicateAddress");
    if contradicts && !seen.is_contradicted(layout) {
        return wrong("no DuplicateAddress", &object["status"]["conditions"]);
    }
    if !contradicts && seen.serves(layout) && seen.is_reported_twice(layout) {
        return wrong("DuplicateAddress", &object["status"]["conditions"]);
    }
    let releasing = condition(object, "Releasing").map_or(&Value::Null, |it| &it["reason"]);
    if (*releasing == "BlocksInUse") == claims(object, "releasing").is_empty() {
        return wrong("whether blocks are Releasing", &object["status"]);
    }
    Ok(())
}

/// The expected reason of Ready.
fn ready_reason(seen: &Seen<'_>, layout: &Layout) -> &'static str {
    if layout.is_deleting {
        return "Deleting";
    }
    if seen.is_overlapped(layout) {
        return "Overlap";
    }
    if !layout.is_valid {
        return "InvalidSpec";
    }
    let is_of_the_spec = |(node, range): &(String, _)| layout.block_of(node, range).is_some();
    let is_outdated = claims(seen.object(layout), "allocations").iter().any(|claim| !is_of_the_spec(claim));
    if is_outdated { "EditDeferred" } else { "Valid" }
}

/// Whether the gateway of a block may be in use, so that nodes keep the previous one and the pool reports that.
fn gateway_may_wait(seen: &Seen<'_>, layout: &Layout) -> bool {
    let mut blocks = claims(seen.object(layout), "allocations").into_iter();
    blocks.any(|(node, range)| layout.block_of(&node, &range).is_some_and(|block| seen.gateway_waits(layout, block)))
}
