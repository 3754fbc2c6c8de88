//! What the chart refuses, with which words.

use ipam_e2e::chart::{self, helm};

use crate::stage::WAYS;

fn template(values: &[&str]) -> anyhow::Result<String> {
    let chart = chart::folder().display().to_string();
    let mut words = vec!["template", "nv-ipam", &chart, "--namespace", "net"];
    for value in values {
        words.extend(["--set", value]);
    }
    helm(&words)
}

/// Each value is refused, with all of its words.
fn assert_refused(cases: &[(&str, &[&str])]) {
    for (value, words) in cases {
        let said = template(&[value]).unwrap_err().to_string();
        for word in *words {
            assert!(said.contains(word), "{value}: {said} lacks {word}");
        }
    }
}

#[test]
fn strict_lint_has_nothing_to_say_in_any_way_to_have_certificates() {
    let chart = chart::folder().display().to_string();
    for way in WAYS {
        let said = helm(&["lint", &chart, "--strict", "--set", &format!("webhook.certificates={way}")]).unwrap();
        assert!(said.contains("0 chart(s) failed"), "{said}");
        assert!(!said.contains("[WARNING]") && !said.contains("[ERROR]"), "{said}");
    }
}

#[test]
fn a_mistyped_value_is_refused_with_its_path_and_what_would_be_right() {
    assert_refused(&[
        ("webhook.certificates=certmanager", &["/webhook/certificates", "'cert-manager'", "'self-managed'"][..]),
        ("webhook.certificate=none", &["/webhook", "'certificate'"]),
        ("operater.replicas=3", &["'operater'"]),
        ("operator.replicas=0", &["/operator/replicas", "minimum"]),
        ("operator.leaderElect=yess", &["/operator/leaderElect", "boolean"]),
        ("operator.logging.format=xml", &["/operator/logging/format", "'text'", "'json'"]),
        ("operator.featureGates.Foo=true", &["/operator/featureGates", "'Foo'"]),
        ("agent.cni.logLevel=loud", &["/agent/cni/logLevel", "'warning'"]),
        ("agent.metricsBindAddress=8080", &["/agent/metricsBindAddress", "want string"]),
        ("webhook.timeoutSeconds=60", &["/webhook/timeoutSeconds", "30"]),
        ("agent.storeFile=store", &["agent.storeFile \"store\" is no file in a folder of its own", "from the root"]),
        ("agent.bindAddress=/run/x.sock", &["agent.bindAddress \"/run/x.sock\"", "write unix:///FOLDER/NAME"]),
        ("agent.staleIpCheck.interval=5x", &["agent.staleIpCheck.interval \"5x\" is no duration", "1m30s"]),
        ("operator.metricsBindAddress=all", &["operator.metricsBindAddress \"all\"", "127.0.0.1:8080"]),
        ("poolsNamespace=Kube_System", &["poolsNamespace \"Kube_System\" is no name of a namespace"]),
        ("webhook.caBundle=-----BEGIN", &["webhook.caBundle \"-----BEGIN\"", "base64 -w0 ca.crt"]),
        ("image.repository=a:b:c", &["image.repository \"a:b:c\"", "without tag"]),
        ("operator.serviceAccount.name=nv-ipam-node", &["are both \"nv-ipam-node\"", "an account of its own"]),
        ("webhook.drain=30s", &["webhook.drain \"30s\"", "terminationGracePeriodSeconds 30", "a shorter drain"]),
        ("webhook.drain=26s", &["webhook.drain \"26s\" and the 5 s in which it finishes"]),
        ("webhook.drain=99999999999999h", &["webhook.drain \"99999999999999h\"", "a shorter drain"]),
        (
            "webhook.drain=1m30.5s,operator.terminationGracePeriodSeconds=90",
            &["webhook.drain \"1m30.5s\"", "terminationGracePeriodSeconds 90"],
        ),
        (
            "webhook.certificates=cert-manager,webhook.certManager.duration=59m,webhook.certManager.renewBefore=4m",
            &["duration \"59m\" is shorter than an hour", "renewBefore \"4m\" is shorter than five minutes"],
        ),
        ("webhook=null", &["'webhook'"]),
        ("webhook.certificates=null", &["/webhook", "'certificates'"]),
        ("operator.logging=null", &["/operator", "'logging'"]),
        ("agent.storeFile=null", &["/agent", "'storeFile'"]),
        ("agent.storeFile=/store", &["agent.storeFile \"/store\" is no file in a folder of its own"]),
        ("agent.bindAddress=unix:///x.sock", &["agent.bindAddress \"unix:///x.sock\"", "unix:///FOLDER/NAME"]),
        (
            "agent.cni.binDir=/opt/../x",
            &["agent.cni.binDir \"/opt/../x\" is no absolute path", "without \".\" and \"..\""],
        ),
        (
            "agent.podLabels.app\\.kubernetes\\.io/name=x",
            &["agent.podLabels has \"app.kubernetes.io/name\"", "leave it out"],
        ),
        (
            "webhook.certificates=cert-manager,webhook.certManager.duration=720h",
            &["webhook.certManager.renewBefore \"720h\"", "duration \"720h\"", "a third of the duration"],
        ),
        (
            "webhook.certificates=cert-manager,webhook.secretName=a-name-of-more-characters-than-the-common-name-of-a-ca-may-hav",
            &["has 62 characters", "write 61 at most"],
        ),
        (
            "webhook.certificates=self-managed,webhook.bindAddress=127.0.0.1:9443",
            &["no API server can reach it", "\":9443\""],
        ),
        (
            "webhook.certificates=self-managed,webhook.bindAddress=:9000,operator.metricsBindAddress=:9000",
            &["operator.metricsBindAddress \":9000\"", "one port"],
        ),
        ("agent.metricsBindAddress=:8081", &["agent.metricsBindAddress \":8081\"", "one port"]),
        ("operator.metricsBindAddress=:0", &["operator.metricsBindAddress \":0\" is no address"]),
        ("webhook.bindAddress=:65536", &["webhook.bindAddress \":65536\" is no address"]),
        ("agent.bindAddress=tcp://10.0.0.1:99999", &["agent.bindAddress \"tcp://10.0.0.1:99999\" is no address"]),
        ("operator.healthProbeBindAddress=127.0.0.1:8081", &["no kubelet can reach it", "\":8081\""]),
    ]);
}

#[test]
fn a_mistyped_option_is_refused_with_its_path_and_what_would_be_right() {
    assert_refused(&[
        ("commonLabels.app\\.kubernetes\\.io/name=x", &["commonLabels has \"app.kubernetes.io/name\"", "leave it out"]),
        ("image.registry=https://a.example", &["image.registry \"https://a.example\"", "without scheme"]),
        ("image.digest=sha256:12", &["image.digest \"sha256:12\" is no digest"]),
        ("agent.image.digest=x12", &["agent.image.digest \"x12\" is no digest"]),
        ("operator.image.command=x", &["/operator/image", "'command'"]),
        ("agent.bindAddress=tcp://10.0.0.1:99", &["every process that reaches it", "write unix:///FOLDER/NAME"]),
        ("agent.bindAddress=tcp://127.0.0.1:99", &["loopback of the pod", "turn agent.hostNetwork on"]),
        (
            "operator.hostNetwork=true,agent.hostNetwork=true",
            &["operator.metricsBindAddress \":8080\" and agent.metricsBindAddress", "one port of the node"],
        ),
        ("extraPools[0].kind=Pool", &["/extraPools/0/kind", "'CIDRPool'"]),
        ("extraObjects[0].kind=Secret", &["/extraObjects/0", "'apiVersion'"]),
        ("monitoring.rules.disabled[0]=Other", &["has \"Other\", which is no alert", "NvIpamNoLeader"]),
        (
            "monitoring.serviceMonitor.create=true,monitoring.podMonitor.create=true",
            &["scrape each pod twice", "turn one off"],
        ),
        (
            "monitoring.podMonitor.create=true,agent.metricsBindAddress=127.0.0.1:8080",
            &["agent.metricsBindAddress \"127.0.0.1:8080\"", "no Prometheus can reach it"],
        ),
        ("monitoring.podMonitor.interval=soon", &["/monitoring/podMonitor/interval", "'soon'"]),
        (
            "networkPolicy.create=true,networkPolicy.egress.restrict=true,networkPolicy.egress.apiServerPorts=null",
            &["could not reach the API server", "as in [443, 6443]"],
        ),
        ("networkPolicy.create=true,operator.hostNetwork=true", &["no NetworkPolicy applies", "turn one off"]),
        ("networkPolicy.metricsFrom[0].cidr=10.0.0.0/8", &["/networkPolicy/metricsFrom/0", "'cidr'"]),
        ("operator.livenessProbe.path=/x", &["/operator/livenessProbe", "'path'"]),
        ("operator.podDisruptionBudget.maxUnavailable=x", &["/operator/podDisruptionBudget/maxUnavailable", "'x'"]),
        ("operator.podDisruptionBudget.minAvailable=2", &["no pod of 2 be evicted", "a lower minAvailable"]),
        ("operator.podDisruptionBudget.maxUnavailable=0", &["no pod of 2 be evicted", "a higher maxUnavailable"]),
        (
            "operator.podDisruptionBudget.minAvailable=1,operator.podDisruptionBudget.maxUnavailable=1",
            &["minAvailable and maxUnavailable", "give one of them"],
        ),
        (
            "operator.leaderElect=false,operator.replicas=1,operator.strategy.type=RollingUpdate",
            &["operator.strategy.type is \"RollingUpdate\"", "set the type to \"Recreate\""],
        ),
    ]);
}

#[test]
fn what_just_fits_is_taken() {
    let issuer = "webhook.certManager.issuerRef.kind=Issuer,webhook.certManager.issuerRef.name=ours";
    let long = "webhook.certificates=cert-manager,webhook.secretName=a-name-of-more-characters-than-the-common-name-of-a-ca-may-hav";
    for values in [
        "webhook.drain=25s",
        "webhook.drain=1m30s,operator.terminationGracePeriodSeconds=95",
        "agent.cni.binDir=/opt/..x/.y/z",
        "agent.bindAddress=tcp://127.0.0.1:99,agent.hostNetwork=true",
        "operator.resources=null,agent.tolerations=null,operator.terminationGracePeriodSeconds=null",
        // Without a webhook nobody drains.
        "webhook.certificates=none,webhook.drain=1h",
        "webhook.certificates=cert-manager,webhook.certManager.duration=721h",
        "webhook.certificates=cert-manager,webhook.secretName=a-name-of-more-characters-than-the-common-name-of-a-ca-may-ha",
        &format!("{long},{issuer}"),
    ] {
        let rendered = template(&[values]);
        assert!(rendered.is_ok(), "{values}: {rendered:?}");
    }
}

#[test]
fn an_image_is_named_by_tag_or_by_digest() {
    for (tag, image) in [("1.2.3", "nv-ipam:1.2.3"), ("sha256:0123abcd", "nv-ipam@sha256:0123abcd")] {
        let rendered = template(&[&format!("image.tag={tag}")]).unwrap();
        assert!(rendered.contains(image), "{image} is missing");
    }
}

#[test]
fn values_that_contradict_each_other_are_all_named_at_once() {
    let said = template(&[
        "operator.replicas=2",
        "operator.leaderElect=false",
        "webhook.certificates=cert-manager",
        "webhook.caBundle=LS0tLS1CRUdJTg==",
        "agent.logging.vmodule=rpc=5",
        "operator.logging.splitStream=true",
        "agent.bindAddress=unix:///run/other.sock",
        "agent.cni.confDir=conf",
        "operator.releasedBlockGrace=soon",
    ])
    .unwrap_err()
    .to_string();
    for words in [
        "turn leaderElect on, or set replicas to 1",
        "leave caBundle empty, or set certificates to \"none\"",
        "agent.logging.vmodule works with agent.logging.format \"text\" only",
        "add operator.featureGates.LoggingAlphaOptions: true",
        "write the same address in both",
        "agent.cni.confDir \"conf\" is no absolute path",
        "operator.releasedBlockGrace \"soon\" is no duration",
    ] {
        assert!(said.contains(words), "{said} lacks {words}");
    }
    let said = template(&["webhook.certificates=none", "webhook.secretName=mine"]).unwrap_err().to_string();
    assert!(said.contains("as webhook.caBundle"), "{said}");
}

#[test]
fn an_api_server_that_is_too_old_is_refused() {
    let chart = chart::folder().display().to_string();
    let said = helm(&["template", "nv-ipam", &chart, "--kube-version", "1.32.9"]).unwrap_err().to_string();
    assert!(said.contains(">=1.33.0-0"), "{said}");
}
