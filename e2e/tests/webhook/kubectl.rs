//! What a person sees who applies, edits and deletes pools.

use serde_json::json;

use crate::stage::Stage;

#[test]
fn a_good_pool_is_applied_and_a_bad_one_is_refused_with_every_mistake_in_words() {
    let stage = Stage::set("wh-apply");
    let good = stage.pool("IPPool", "good", &json!({"subnet": "10.1.0.0/24", "perNodeBlockSize": 4}));
    let (applied, said) = stage.apply(&good);
    assert!(applied, "{said}");
    // Both mistakes are of the kind that the CRD's own rules cannot see.
    let bad = stage.pool(
        "IPPool",
        "bad",
        &json!({"subnet": "fd00::/64", "perNodeBlockSize": 4, "exclusions": [
            {"startIP": "fd00::9", "endIP": "fd00::1"}, {"startIP": "fd00::19", "endIP": "fd00::11"}]}),
    );
    let (applied, said) = stage.apply(&bad);
    eprintln!("{said}");
    assert!(!applied);
    for part in
        ["The IPPool \"bad\" is invalid", "spec.exclusions[0].endIP", "spec.exclusions[1].endIP", "write the lower"]
    {
        assert!(said.contains(part), "{said:?} lacks {part:?}");
    }
}
