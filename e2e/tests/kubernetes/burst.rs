//! Many pods start and end at once. How long that takes is printed and not judged: it depends on the machine.
//!
//! `cargo test -p ipam-e2e --test kubernetes -- --nocapture burst`

use std::time::{Duration, Instant};

use ipam_e2e::eventually_blocking;
use ipam_e2e::kubernetes::Kubernetes;
use ipam_e2e::progress::say;

use crate::stage::{NAMESPACE, apply, install, ip_pool, stage};
use crate::workload::{PODS, assert_unique, attached, deployment, network, ready_within, shown, stores_have};

const PODS_A_NODE: usize = 200;
const ROUNDS: usize = 3;
/// Two nodes share the processors of one machine.
const PATIENCE: Duration = Duration::from_mins(20);

/// Puts a script in the place of the plugin. The script runs the plugin, and writes how many nanoseconds that took.
const TIMED: &str = r#"cd /opt/cni/bin
    [ -e nv-ipam.timed ] || mv nv-ipam nv-ipam.timed
    cat > nv-ipam.new <<'END'
#!/bin/sh
began=$(date +%s%N)
/opt/cni/bin/nv-ipam.timed
status=$?
echo "$CNI_COMMAND $(($(date +%s%N) - began))" >> /run/nv-ipam.times
exit $status
END
    chmod +x nv-ipam.new
    mv nv-ipam.new nv-ipam"#;

/// Takes the times of the plugin for a command on all nodes since the last call, in seconds, sorted.
fn take_times(cluster: &Kubernetes, command: &str) -> Vec<f64> {
    let mut all = Vec::new();
    for node in cluster.nodes() {
        let text = node.entrance().script("cat /run/nv-ipam.times; rm /run/nv-ipam.times").unwrap();
        let own = text.lines().filter_map(|line| line.strip_prefix(command)?.trim().parse::<f64>().ok());
        all.extend(own.map(|nanoseconds| nanoseconds / 1e9));
    }
    all.sort_by(f64::total_cmp);
    all
}

/// Seconds that the kubelets have waited for a call of the runtime, and how many calls there were.
fn runtime(cluster: &Kubernetes, call: &str) -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for node in cluster.nodes() {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", node.name());
        let text = cluster.kubectl().run(&["get", "--raw", &path]).unwrap();
        let value = |what: &str| -> f64 {
            let name = format!("kubelet_runtime_operations_duration_seconds_{what}{{operation_type=\"{call}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0.0, |value| value.parse().unwrap())
        };
        total = (total.0 + value("sum"), total.1 + value("count"));
    }
    total
}

#[test]
fn burst_of_pods_leaves_no_address_in_use() {
    let cluster = stage();
    install(&cluster, &[]);
    let replicas = PODS_A_NODE * cluster.nodes().len();
    let block = u32::try_from(PODS_A_NODE + 10).unwrap();
    apply(&cluster, &[ip_pool("burst", block), network("burst-net", "burst", "ippool")]);
    for node in cluster.nodes() {
        node.entrance().script(TIMED).unwrap();
    }
    for round in 1..=ROUNDS {
        let before = runtime(&cluster, "run_podsandbox");
        let began = Instant::now();
        apply(&cluster, &[deployment("burst", replicas, &["burst-net"])]);
        let pods = ready_within(&cluster, "burst", replicas, PATIENCE);
        let started = began.elapsed();
        assert_unique(&pods);
        assert_eq!(attached(&pods).len(), replicas);
        stores_have(&cluster, &attached(&pods));
        let after = runtime(&cluster, "run_podsandbox");
        let began = Instant::now();
        let words = ["delete", "deployment", "burst", "-n", PODS, "--cascade=foreground", "--timeout=20m"];
        cluster.kubectl().run(&words).unwrap();
        eventually_blocking("all addresses are free", PATIENCE, || {
            let left = shown(&cluster)?.len();
            anyhow::ensure!(left == 0, "{left} are in use");
            Ok(())
        })
        .unwrap();
        let ended = began.elapsed();

        let adds = take_times(&cluster, "ADD");
        let in_plugin: f64 = adds.iter().sum();
        let (in_runtime, sandboxes) = (after.0 - before.0, after.1 - before.1);
        say(&format!(
            "round {round}: {replicas} pods ready after {:.0} s and gone after {:.0} s; {} ADDs, median {:.1} ms, p90 {:.1} ms; \
             of {in_runtime:.1} s for {sandboxes} sandboxes, IPAM took {in_plugin:.2} s: {:.2} %",
            started.as_secs_f64(),
            ended.as_secs_f64(),
            adds.len(),
            1e3 * adds[adds.len() / 2],
            1e3 * adds[adds.len() * 9 / 10],
            100.0 * in_plugin / in_runtime,
        ));
    }
    for node in cluster.nodes() {
        node.entrance().script("cd /opt/cni/bin; mv nv-ipam.timed nv-ipam").unwrap();
    }
    cluster.kubectl().run(&["delete", "ippool", "burst", "-n", NAMESPACE, "--timeout=2m"]).unwrap();
}
