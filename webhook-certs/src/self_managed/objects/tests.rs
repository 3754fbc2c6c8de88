use serde_json::json;

use super::*;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_bundle_is_written_into_every_webhook_and_nothing_else_is_touched() {
    let written = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "ours", "resourceVersion": "7"}, "fieldOfTomorrow": [1],
    "webhooks": [
        {"name": "a", "clientConfig": {"service": {"name": "s"}, "caBundle": "AAAA"}, "newer": true},
        {"name": "b", "clientConfig": {"url": "https://x"}},
    ]});
    let mut changed = object(written.clone());
    let ders = [Der::from(&b"one"[..]), Der::from(&b"two"[..])];
    trust(&mut changed, &ders);
    let bundle = json!(ByteString(material::bundle(ders.iter()).into_bytes()));
    let mut wanted = written;
    wanted["webhooks"][0]["clientConfig"]["caBundle"] = bundle.clone();
    wanted["webhooks"][1]["clientConfig"]["caBundle"] = bundle;
    assert_eq!(serde_json::to_value(&changed).unwrap(), wanted);
    assert_eq!(configuration(Some(&changed)), Configuration::Bundles(vec![ders.to_vec(), ders.to_vec()]));
}

#[test]
fn a_configuration_of_any_shape_is_read_without_panic() {
    for webhooks in [json!(null), json!(7), json!([null, {"clientConfig": 1}, {"clientConfig": {"caBundle": "%"}}])] {
        let mut odd = object(json!({"metadata": {}, "webhooks": webhooks}));
        assert!(matches!(configuration(Some(&odd)), Configuration::Bundles(_)));
        trust(&mut odd, &[]);
    }
    assert_eq!(configuration(None), Configuration::Absent);
}

#[test]
fn what_others_inject_or_keep_is_seen_unless_they_are_told_not_to() {
    let annotated = |annotation: &str, value: &str| {
        object(json!({"metadata": {"name": "ours", "annotations": {annotation: value}}, "webhooks": []}))
    };
    for (annotation, value) in
        [("cert-manager.io/inject-ca-from", "ns/certificate"), ("service.beta.openshift.io/inject-cabundle", "true")]
    {
        let Configuration::Foreign(why) = configuration(Some(&annotated(annotation, value))) else {
            unreachable!("{annotation} is not seen")
        };
        assert!(why.contains(annotation) && why.contains("ours"), "{why}");
    }
    let off = annotated("service.beta.openshift.io/inject-cabundle", "false");
    assert_eq!(configuration(Some(&off)), Configuration::Bundles(Vec::new()));
}

#[test]
fn a_secret_holds_what_is_written_and_keeps_its_labels() {
    let mut secret = new_secret("kube-system", "cert");
    let labels = secret.metadata.labels.clone();
    let until: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    fill(&mut secret, Data::from([("a".to_owned(), vec![1])]), Some(until));
    assert_eq!((data(&secret), retire_after(&secret)), (Data::from([("a".to_owned(), vec![1])]), Some(until)));
    fill(&mut secret, Data::from([("b".to_owned(), vec![2])]), None);
    assert_eq!((data(&secret), retire_after(&secret)), (Data::from([("b".to_owned(), vec![2])]), None));
    assert_eq!(secret.metadata.labels, labels);
    assert_eq!(secret_keeper(&secret), None);
}
