//! An uninstall with pools in use, and the way back.

use serde_json::json;

use crate::stage::{NAMESPACE, apply, install, ip_pool, stage, uninstall};
use crate::workload::{assert_unique, attached, delete, deployment, network, ready, stores_have};

#[test]
fn pods_keep_their_addresses_through_uninstall_and_reinstall() {
    let cluster = stage();
    install(&cluster, &[]);
    apply(
        &cluster,
        &[ip_pool("kept", 20), network("kept-net", "kept", "ippool"), deployment("before", 6, &["kept-net"])],
    );
    let before = ready(&cluster, "before", 6);
    uninstall(&cluster);
    // No finalizer blocks the deletion of the pool any more. Its status stays as it is.
    let kept = cluster.get(&["ippool", "kept", "-n", NAMESPACE]).unwrap();
    assert_eq!(kept["metadata"]["finalizers"], json!(null), "{kept}");
    assert_eq!(kept["status"]["allocations"].as_array().map(Vec::len), Some(2), "{kept}");

    install(&cluster, &[]);
    apply(&cluster, &[deployment("after", 6, &["kept-net"])]);
    let after = ready(&cluster, "after", 6);
    let again = ready(&cluster, "before", 6);
    assert_eq!(attached(&again), attached(&before));
    let all = [before, after].concat();
    assert_unique(&all);
    stores_have(&cluster, &attached(&all));
    delete(&cluster, "before");
    delete(&cluster, "after");
    stores_have(&cluster, &[]);
    cluster.kubectl().run(&["delete", "ippool", "kept", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
