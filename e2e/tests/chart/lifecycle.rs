//! Install, upgrade and uninstall by a real helm, on a control plane of its own: the definitions are the cluster's, not a
//! namespace's.

use std::fs;
use std::path::Path;

use ipam_e2e::chart::{self, Release};
use ipam_e2e::cluster::await_crds;
use ipam_e2e::{ControlPlane, eventually_blocking};
use serde_json::json;

use crate::stage::{SOON, WAYS, install_cert_manager_definitions, until};

/// What a release has in a cluster, apart from the definitions.
const KINDS: [&str; 14] = [
    "deployments",
    "daemonsets",
    "poddisruptionbudgets",
    "services",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "clusterroles",
    "clusterrolebindings",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "certificates.cert-manager.io",
    "issuers.cert-manager.io",
];

fn pool(name: &str, namespace: &str, spec: &serde_json::Value) -> String {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool", "metadata": metadata, "spec": spec})
        .to_string()
}

/// A chart as it was before IPPools had routes.
fn older_chart(at: &Path) {
    fs::create_dir_all(at.join("templates")).unwrap();
    fs::create_dir_all(at.join("files/crds")).unwrap();
    for folder in ["", "templates", "files/crds"] {
        for entry in fs::read_dir(chart::folder().join(folder)).unwrap().flatten() {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), at.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    let file = at.join("files/crds/nv-ipam.nvidia.com_ippools.yaml");
    let mut definition: serde_json::Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let schema = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    schema["properties"].as_object_mut().unwrap().remove("routes").unwrap();
    // Rules about what is not there would not compile.
    schema.as_object_mut().unwrap().remove("x-kubernetes-validations");
    fs::write(&file, serde_yaml::to_string(&definition).unwrap()).unwrap();
}

#[test]
fn upgrade_brings_new_definitions_and_uninstall_leaves_them_and_the_pools() {
    let plane = ControlPlane::start().unwrap();
    install_cert_manager_definitions(&plane);
    let older = tempfile::tempdir().unwrap();
    older_chart(older.path());
    plane.kubectl().run(&["create", "namespace", "net"]).unwrap();
    // Nobody here runs Jobs; what the one of an uninstall does has a test of its own.
    let none = ["webhook.certificates=none", "uninstall.releasePools=false"];
    let release = Release::install(&plane, "nv-ipam", "net", older.path(), &none).unwrap();
    await_crds(&plane).unwrap();
    let plain = pool("plain", "net", &json!({"subnet": "10.0.0.0/24", "perNodeBlockSize": 8}));
    plane.kubectl().apply(&plain).unwrap();
    let spec = json!({
        "subnet": "10.1.0.0/24", "perNodeBlockSize": 8, "gateway": "10.1.0.1", "routes": [{"dst": "10.9.0.0/16"}],
    });
    let routed = pool("routed", "net", &spec);
    let refused = plane.kubectl().apply(&routed).unwrap_err().to_string();
    assert!(refused.contains("routes"), "{refused}");

    let said = release.upgrade(&chart::folder(), &none).unwrap();
    assert!(said.contains("REVISION: 2") && said.contains("kubectl -n net get ippools"), "{said}");
    eventually_blocking("the new definition is in force", SOON, || plane.kubectl().apply(&routed)).unwrap();
    until(&release, "ippool", "plain", "is still there", |pool| pool["spec"]["subnet"] == "10.0.0.0/24");

    for way in WAYS {
        let value = format!("webhook.certificates={way}");
        release.upgrade(&chart::folder(), &[&value, none[1]]).unwrap_or_else(|error| panic!("{way}: {error:#}"));
        let webhooks = release.objects("validatingwebhookconfigurations").unwrap();
        assert_eq!(webhooks.len(), usize::from(way != "none"), "{way}");
        let issued = release.objects("certificates.cert-manager.io").unwrap();
        assert_eq!(issued.len(), if way == "cert-manager" { 2 } else { 0 }, "{way}");
    }

    release.uninstall().unwrap();
    for kind in KINDS {
        assert_eq!(release.objects(kind).unwrap(), Vec::<serde_json::Value>::new(), "{kind}");
    }
    assert_eq!(release.objects("customresourcedefinitions").unwrap().len(), 3);
    assert_eq!(release.object("ippool", "plain").unwrap()["spec"]["subnet"], "10.0.0.0/24");

    for way in WAYS {
        let value = format!("webhook.certificates={way}");
        let again = Release::install(&plane, "nv-ipam", "net", &chart::folder(), &[&value, none[1]]);
        let again = again.unwrap_or_else(|error| panic!("{way}, over the definitions that were left: {error:#}"));
        again.uninstall().unwrap();
    }
}
