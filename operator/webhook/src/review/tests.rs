//! Bodies as the API server sends them, and as it never does.

use serde_json::{Value, json};

use super::*;

fn body(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut review = json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "u-1", "operation": "CREATE", "namespace": "pools", "name": "p", "dryRun": false,
            "kind": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "kind": "IPPool"},
            "resource": {"group": "nv-ipam.nvidia.com", "version": "v1alpha1", "resource": "ippools"},
            "userInfo": {"username": "admin"}, "options": null, "oldObject": null,
            "object": {"metadata": {"name": "p"}, "spec": {"subnet": "10.0.0.0/24", "perNodeBlockSize": 4}},
        },
    });
    change(&mut review);
    review.to_string().into_bytes()
}

fn unread(change: impl FnOnce(&mut Value)) -> Unread {
    read(PoolKind::IpPool, &body(change)).unwrap_err()
}

#[test]
fn a_review_as_the_api_server_sends_it_is_read() {
    let review = read(PoolKind::IpPool, &body(|_| {})).unwrap();
    assert_eq!((review.uid.as_str(), review.operation, review.namespace.as_str()), ("u-1", Operation::Create, "pools"));
    assert_eq!(review.key(), PoolKey::new(PoolKind::IpPool, "p"));
    assert!(review.old.is_none() && review.new.unwrap().unread.is_empty());
}

#[test]
fn a_review_of_something_else_is_told_what_is_reviewed_here() {
    for (path, value, part) in [
        ("/request/kind/kind", "CIDRPool", "this path reviews IPPool"),
        ("/request/kind/group", "apps", "not IPPool of apps/v1alpha1"),
        ("/request/kind/version", "v1", "correct the path or the rules"),
        ("/request/subResource", "scale", "\"scale\" is none that pools have"),
        ("/request/operation", "CONNECT", "\"CONNECT\" is not reviewed"),
        ("/request/operation", "UPDATE", "UPDATE without request.oldObject"),
        ("/request/object", "text", "request.object is no object"),
    ] {
        let unread = unread(|review| {
            review["request"]["subResource"] = json!("");
            *review.pointer_mut(path).unwrap() = json!(value);
        });
        assert!(unread.is_review && unread.uid == "u-1", "{unread:?}");
        assert!(unread.message.contains(part), "{:?} lacks {part:?}", unread.message);
    }
}

#[test]
fn what_is_no_review_is_told_so_and_keeps_its_uid_where_it_has_one() {
    for (path, value) in [("/kind", "Pod"), ("/apiVersion", "admission.k8s.io/v1beta1")] {
        let unread = unread(|review| *review.pointer_mut(path).unwrap() = json!(value));
        assert!(!unread.is_review && unread.uid == "u-1" && unread.message.contains(value), "{unread:?}");
    }
    for request in [json!(null), json!(7), json!({"uid": ""}), json!({"uid": 7}), json!({"uid": "x".repeat(300)})] {
        let unread = unread(|review| review["request"] = request.clone());
        assert!(unread.uid.is_empty() && !unread.message.is_empty(), "{request}");
    }
    let doubled = br#"{"kind":"AdmissionReview","kind":"x","request":{"uid":"u-2"}}"#;
    assert_eq!(read(PoolKind::IpPool, doubled).unwrap_err().uid, "u-2");
}

#[test]
fn wherever_a_body_breaks_off_after_its_uid_the_uid_is_salvaged() {
    let whole = body(|_| {});
    let text = String::from_utf8(whole.clone()).unwrap();
    let uid_ends = text.find("\"u-1\"").unwrap() + "\"u-1\"".len();
    for end in 0..whole.len() {
        let unread = read(PoolKind::IpPool, &whole[..end]).unwrap_err();
        let expected = if end >= uid_ends { "u-1" } else { "" };
        assert_eq!(unread.uid, expected, "{}", &text[..end]);
    }
}

#[test]
fn bytes_that_are_no_text_and_nesting_without_end_are_refused_like_anything_else() {
    for hostile in [vec![0xff; 64], vec![0; 64], vec![b'['; 1 << 20], b"{\"request\":".repeat(1 << 16), Vec::new()] {
        let unread = read(PoolKind::IpPool, &hostile).unwrap_err();
        assert!(unread.uid.is_empty() && unread.message.len() < 400, "{}", unread.message);
    }
}

#[test]
fn a_spec_or_status_that_does_not_read_leaves_a_review_to_be_judged() {
    let review = read(
        PoolKind::IpPool,
        &body(|review| {
            review["request"]["object"]["spec"] = json!({"subnet": 7});
            review["request"]["object"]["status"] = json!("nonsense");
        }),
    );
    let new = review.unwrap().new.unwrap();
    let unread: Vec<&str> = new.unread.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(unread, ["spec.subnet", "spec.perNodeBlockSize"]);
    assert!(new.claims.is_empty());
}
