//! What must never come into the plugin's tree: it is loaded for every interface of every pod.

use std::time::Duration;

use assert_cmd::Command;

#[test]
fn the_plugin_depends_on_no_kubernetes_client_no_tls_and_no_argument_parser() {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--package",
            "ipam-cni",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // Another cargo may hold the lock of the package cache for a while.
        .timeout(Duration::from_mins(5))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8_lossy(&tree.stdout);
    let names = text.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>();
    assert!(names.contains(&"ipam-node-api"), "not the tree of the plugin: {text}");
    for never in
        ["kube", "kube-client", "k8s-openapi", "ipam-core", "ipam-crds", "rustls", "ring", "clap", "tracing-subscriber"]
    {
        assert!(!names.contains(&never), "{never} is in the tree of the plugin");
    }
}
