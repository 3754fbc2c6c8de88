//! Pools and IPAMNodes outlive the operator that added its finalizers: an uninstall removes these, so that the objects, and their
//! definitions, can be deleted without an operator.

use std::process::Command;
use std::thread;

use ipam_e2e::chart::grants::{self, Grant, Used};
use ipam_e2e::chart::{self, Release, pods};
use ipam_e2e::cluster::await_crds;
use ipam_e2e::{ControlPlane, binaries, eventually_blocking};
use serde_json::{Value, json};

use crate::stage::{SOON, node, plane, pool, until};

const FINALIZER: &str = "nv-ipam.nvidia.com/pool-in-use";
const NODE_FINALIZER: &str = "nv-ipam.nvidia.com/node-in-use";

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
}

/// A pool of each kind whose block a node has, and whose agent has reported an address in use. It reports nothing more.
fn make_pools(release: &Release<'_>) {
    let specs = [
        ("IPPool", json!({"subnet": "10.95.0.0/24", "perNodeBlockSize": 4})),
        ("CIDRPool", json!({"cidr": "10.96.0.0/16", "perNodeNetworkPrefix": 24})),
    ];
    for (kind, spec) in specs {
        let mut object: Value = serde_json::from_str(&pool(kind, release.namespace(), "kept", spec, "g")).unwrap();
        object["metadata"]["finalizers"] = json!(["example.com/others"]);
        release.plane().kubectl().apply(&object.to_string()).unwrap();
        until(release, kind, "kept", "has given a block", |pool| {
            has_finalizer(pool, FINALIZER) && pool["status"]["allocations"][0]["nodeName"] == "n1"
        });
    }
    until(release, "ipamnode", "n1", "has both blocks", |object| {
        has_finalizer(object, NODE_FINALIZER) && object["spec"]["pools"].as_array().is_some_and(|all| all.len() == 2)
    });
    report_use(release);
}

/// Without a report about a block that was free, the operator would release it at once.
fn report_use(release: &Release<'_>) {
    let object = release.object("ipamnode", "n1").unwrap();
    let report = |entry: &Value| {
        let fields =
            ["name", "poolType", "grant", "startIP", "endIP"].map(|field| (field.to_owned(), entry[field].clone()));
        let counts = [("used", 1), ("capacity", 2)].map(|(field, count)| (field.to_owned(), json!(count)));
        Value::Object(fields.into_iter().chain(counts).collect())
    };
    let reports: Vec<Value> = object["spec"]["pools"].as_array().unwrap().iter().map(report).collect();
    let status = json!({"status": {"pools": reports}}).to_string();
    let words =
        ["patch", "ipamnode", "n1", "-n", release.namespace(), "--subresource=status", "--type=merge", "-p", &status];
    release.plane().kubectl().run(&words).unwrap();
}

/// `helm uninstall`, with the cluster's part in it; answers what the Job wrote.
fn uninstall(release: &Release<'_>) -> String {
    thread::scope(|scope| {
        let helm = scope.spawn(|| release.uninstall());
        let said = pods::complete_job(release);
        helm.join().unwrap().unwrap();
        said.unwrap()
    })
}

fn take_off_the_others_finalizer(release: &Release<'_>) {
    for kind in ["ippool", "cidrpool"] {
        let words = ["patch", kind, "kept", "-n", release.namespace(), "--type=merge", "-p"];
        release.plane().kubectl().run(&[&words[..], &[r#"{"metadata":{"finalizers":null}}"#]].concat()).unwrap();
    }
}

/// The Job has no right that it does not need and lacks none. Its roles are gone by now: `granted` are those it had.
fn assert_rights(release: &Release<'_>) {
    let used = Used::read(release).unwrap();
    let of_job = |words: &str| words.contains("-uninstall:");
    let forbidden: Vec<&String> = used.forbidden.iter().filter(|call| of_job(call)).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
    let all = ["ippools", "cidrpools", "ipamnodes"].into_iter().flat_map(|it| [(it, "list"), (it, "patch")]);
    for (resource, verb) in all {
        let grant = Grant {
            account: "nv-ipam-uninstall".to_owned(),
            namespace: Some(release.namespace().to_owned()),
            group: "nv-ipam.nvidia.com".to_owned(),
            resource: resource.to_owned(),
            name: None,
            verb: verb.to_owned(),
        };
        assert!(used.needed(&grant), "nothing needed {grant}");
    }
}

#[test]
fn an_uninstall_lets_go_of_pools_and_definitions_though_nobody_reports_their_blocks_empty() {
    let plane = ControlPlane::start_audited().unwrap();
    plane.kubectl().run(&["create", "namespace", "net"]).unwrap();
    node(&plane, "n1", &json!({"group": "g"}));
    for keeps in [true, false] {
        let values = ["webhook.certificates=none".to_owned(), format!("crds.keep={keeps}")];
        let values = values.each_ref().map(String::as_str);
        let release = Release::install(&plane, "nv-ipam", "net", &chart::folder(), &values).unwrap();
        await_crds(&plane).unwrap();
        // It goes on running without its rights, as a pod does that takes its time to end.
        let mut operator = pods::operator(&release, None).unwrap();
        operator.await_ready().unwrap();
        make_pools(&release);
        assert!(grants::of(&release).unwrap().iter().all(|grant| grant.account != "nv-ipam-uninstall"));

        let said = uninstall(&release);
        for object in ["IPPool kept", "CIDRPool kept", "IPAMNode n1"] {
            assert!(said.contains(&format!("{object} released")), "{said}");
        }
        for kind in ["jobs", "serviceaccounts", "roles", "rolebindings"] {
            assert_eq!(release.objects(kind).unwrap(), [] as [Value; 0], "{kind}");
        }
        for kind in ["ippool", "cidrpool"] {
            let pool = release.object(kind, "kept").unwrap();
            assert!(!has_finalizer(&pool, FINALIZER) && has_finalizer(&pool, "example.com/others"), "{pool}");
            assert_eq!(pool["metadata"]["deletionTimestamp"].is_null(), keeps, "{pool}");
        }
        if keeps {
            assert!(!has_finalizer(&release.object("ipamnode", "n1").unwrap(), NODE_FINALIZER));
        }
        take_off_the_others_finalizer(&release);
        if keeps {
            plane.kubectl().run(&["delete", "ippool,cidrpool", "kept", "-n", "net", "--timeout=60s"]).unwrap();
        } else {
            eventually_blocking("the definitions go", SOON, || {
                match release.objects("customresourcedefinitions")?.len() {
                    0 => Ok(()),
                    left => Err(anyhow::anyhow!("{left} are there")),
                }
            })
            .unwrap();
        }
        assert_rights(&release);
    }
}

/// `ipam-controller release-pools` by an admin; whether it succeeded, and what it said.
fn release_pools(plane: &ControlPlane, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(&binaries::build().unwrap().controller);
    command.arg("release-pools").args(arguments).arg(format!("--kubeconfig={}", plane.kubeconfig().display()));
    let output = ipam_e2e::child::output(&mut command).unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn pools_of_a_namespace_that_is_going_away_are_let_go_of_by_one_command() {
    let plane = plane();
    let namespace = plane.namespace("stuck").unwrap();
    let kubectl = |words: &[&str]| plane.kubectl().run(&[words, &["-n", &namespace]].concat()).unwrap();
    for name in ["stays", "goes"] {
        let spec = json!({"subnet": "10.97.0.0/24", "perNodeBlockSize": 4});
        let mut object: Value = serde_json::from_str(&pool("IPPool", &namespace, name, spec, "nobody")).unwrap();
        object["metadata"]["finalizers"] = json!([FINALIZER]);
        plane.kubectl().apply(&object.to_string()).unwrap();
    }
    for name in ["stays", "goes"] {
        let metadata = json!({"name": name, "namespace": namespace, "finalizers": [NODE_FINALIZER]});
        let object = json!({"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode", "metadata": metadata,
            "spec": {"pools": []}});
        plane.kubectl().apply(&object.to_string()).unwrap();
    }
    // As it stands once somebody has deleted the namespace, of which no controller runs here: its objects are being deleted.
    kubectl(&["delete", "ippool,ipamnode", "goes", "--wait=false"]);
    let of_namespace = format!("--ippools-namespace={namespace}");
    let (done, said) = release_pools(plane, &[&of_namespace]);
    for words in ["IPPool goes released", "IPAMNode goes released", "2 objects released"] {
        assert!(done && said.contains(words), "{said}");
    }
    let left = kubectl(&["get", "ippools,ipamnodes", "-o", "name"]);
    let expected = ["ippool.nv-ipam.nvidia.com/stays", "ipamnode.nv-ipam.nvidia.com/stays"];
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), expected);
    let finalizers = |kind| kubectl(&["get", kind, "stays", "-o", "jsonpath={.metadata.finalizers}"]);
    assert!(finalizers("ippool").contains(FINALIZER), "only those that are being deleted");
    assert!(finalizers("ipamnode").contains(NODE_FINALIZER), "only those that are being deleted");
    assert!(release_pools(plane, &[&of_namespace, "--all"]).0);
    assert_eq!((finalizers("ippool"), finalizers("ipamnode")), (String::new(), String::new()));
    assert!(release_pools(plane, &[&of_namespace, "--all"]).1.contains("0 objects released"));
    let (done, said) = release_pools(plane, &["--ippools-namespace=Kube_System"]);
    assert!(!done && said.contains("--ippools-namespace \"Kube_System\""), "{said}");
}
