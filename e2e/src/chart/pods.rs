//! Our daemons as the pods of a release would run them: with the arguments of its Deployment and DaemonSet, and as its service
//! accounts. Only what would clash on one machine, or is a mount, is put elsewhere: ports, the certificates' folder, the plugin.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::webhook::Webhook;
use super::{Release, grants};
use crate::cluster::{Agent, Operator};
use crate::eventually::eventually_blocking;
use crate::netns::Node;
use crate::{binaries, child};

/// How long helm may take to come to a Job.
const SOON: Duration = Duration::from_mins(1);

/// Starts a replica of the operator, and waits for nothing.
///
/// # Errors
/// When the release has no Deployment, or the process ends at once.
pub fn operator(release: &Release<'_>, webhook: Option<&Webhook>) -> Result<Operator> {
    Operator::launch(release.plane(), operator_arguments(release, webhook)?)
}

/// The command line of a replica of the operator, once its service account has all rights that the release grants.
///
/// # Errors
/// When the release has no Deployment, or the API server refuses a token.
pub fn operator_arguments(release: &Release<'_>, webhook: Option<&Webhook>) -> Result<Vec<String>> {
    let [deployment] = &release.objects("deployments")?[..] else {
        anyhow::bail!("the release has not one Deployment")
    };
    let template = &deployment["spec"]["template"];
    let account = account(template)?;
    grants::await_all(release, account)?;
    let container = Container::of(template, "/ipam-controller", |field| match field {
        "metadata.namespace" => Some(release.namespace().to_owned()),
        _ => None,
    })?;
    let mut arguments = container.arguments;
    let kubeconfig = release.plane().token(release.namespace(), account, None)?;
    arguments.push(format!("--kubeconfig={}", kubeconfig.display()));
    if let Some(webhook) = webhook {
        arguments.push(format!("--webhook-bind-address=127.0.0.1:{}", webhook.port()));
        if arguments.iter().any(|argument| argument.starts_with("--webhook-cert-dir=")) {
            arguments.push(format!("--webhook-cert-dir={}", webhook.certificates()));
        }
    }
    Ok(arguments)
}

/// Makes the agent's pod for a node out of the DaemonSet, as its controller does; answers the kubeconfig of a token that is
/// bound to the pod, as the kubelet mounts it.
///
/// # Errors
/// When the release has no DaemonSet, or the API server refuses the pod.
pub fn agent_pod(release: &Release<'_>, node: &str) -> Result<PathBuf> {
    let template = agent_template(release)?;
    let name = pod_name(node);
    let mut spec = template["spec"].clone();
    spec["nodeName"] = json!(node);
    let mut metadata = template["metadata"].clone();
    metadata["name"] = json!(name);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let kubectl = release.plane().kubectl();
    kubectl.run_with(&["create", "-n", release.namespace(), "--validate=strict", "-f", "-"], &pod.to_string())?;
    release.plane().token(release.namespace(), account(&template)?, Some(&name))
}

/// Starts the agent of a node with its pod's token, and waits for nothing.
///
/// # Errors
/// When the node lacks a folder that the pod mounts, the API server refuses the pod, or the process ends at once.
pub fn agent(release: &Release<'_>, node: &Node) -> Result<Agent> {
    let template = agent_template(release)?;
    grants::await_all(release, account(&template)?)?;
    for folder in host_folders(&template) {
        node.entrance().run(&["mkdir", "-p", &folder])?;
    }
    let kubeconfig = agent_pod(release, node.name())?;
    let container = agent_container(&template, release.namespace(), node.name())?;
    let mut arguments = container.arguments;
    arguments.push(format!("--kubeconfig={}", kubeconfig.display()));
    arguments.push(format!("--cni-nv-ipam-bin-file={}", binaries::build()?.plugin.display()));
    Agent::launch_as(node, &arguments, &container.environment)
}

/// The arguments that the pod template of the DaemonSet has for the agent of `node`.
///
/// # Errors
/// When the template runs another program.
pub fn agent_arguments(template: &Value, node: &str) -> Result<Vec<String>> {
    // No argument has the namespace of the pod.
    Ok(agent_container(template, "", node)?.arguments)
}

fn agent_container(template: &Value, namespace: &str, node: &str) -> Result<Container> {
    Container::of(template, "/ipam-node", |field| match field {
        "spec.nodeName" => Some(node.to_owned()),
        "metadata.name" => Some(pod_name(node)),
        "metadata.namespace" => Some(namespace.to_owned()),
        _ => None,
    })
}

/// The name of the agent's pod on a node.
fn pod_name(node: &str) -> String {
    format!("agent-{node}")
}

/// The pod template of the release's DaemonSet.
///
/// # Errors
/// When it has not exactly one.
pub fn agent_template(release: &Release<'_>) -> Result<Value> {
    let [set] = &release.objects("daemonsets")?[..] else { anyhow::bail!("the release has not one DaemonSet") };
    Ok(set["spec"]["template"].clone())
}

/// Waits for a Job of the release and does what a cluster does with it: runs its program, as its service account and with its
/// arguments, and says in its status that it is complete. Answers what the program wrote.
///
/// # Errors
/// When there is no such Job in time, or the program fails.
pub fn complete_job(release: &Release<'_>) -> Result<String> {
    let job = eventually_blocking("the release has a Job", SOON, || match &release.objects("jobs")?[..] {
        [job] => Ok(job.clone()),
        jobs => anyhow::bail!("it has {}", jobs.len()),
    })?;
    let template = &job["spec"]["template"];
    let account = account(template)?;
    grants::await_all(release, account)?;
    let mut arguments = Container::of(template, "/ipam-controller", |_| None)?.arguments;
    let kubeconfig = release.plane().token(release.namespace(), account, None)?;
    arguments.push(format!("--kubeconfig={}", kubeconfig.display()));
    let output = child::output(Command::new(&binaries::build()?.controller).args(&arguments))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    let time = "2026-01-01T00:00:00Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "CompletionsReached", "lastTransitionTime": time, "lastProbeTime": time});
    let status = json!({"status": {
        "startTime": time, "completionTime": time, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
    }});
    let name = job["metadata"]["name"].as_str().context("a Job without a name")?;
    let words = ["patch", "job", name, "-n", release.namespace(), "--subresource=status", "--type=merge", "-p"];
    release.plane().kubectl().run(&[&words[..], &[&status.to_string()]].concat())?;
    Ok(said)
}

/// Folders of the node that a pod mounts at the same place.
pub fn host_folders(template: &Value) -> Vec<String> {
    let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let mounts = all(&template["spec"]["containers"][0]["volumeMounts"]);
    all(&template["spec"]["volumes"])
        .iter()
        .filter_map(|volume| {
            let path = volume["hostPath"]["path"].as_str()?;
            let here = |mount: &&Value| mount["name"] == volume["name"] && mount["mountPath"] == path;
            mounts.iter().find(here).map(|_| path.to_owned())
        })
        .collect()
}

/// The service account of a pod template.
///
/// # Errors
/// When it names none.
pub fn account(template: &Value) -> Result<&str> {
    template["spec"]["serviceAccountName"].as_str().context("a pod without a service account")
}

/// How the kubelet starts the first container of a pod.
struct Container {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Container {
    /// With `$(NAME)` replaced in the arguments, as the kubelet does; `field` answers for the downward API.
    fn of(template: &Value, program: &str, field: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let container = &template["spec"]["containers"][0];
        ensure!(container["command"] == json!([program]), "the container runs {}, not {program}", container["command"]);
        let mut environment = Vec::new();
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().context("a variable without a name")?;
            let path = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap_or_default();
            let value = variable["value"].as_str().map(str::to_owned).or_else(|| field(path));
            environment.push((name.to_owned(), value.with_context(|| format!("nothing is known of {name}: {path}"))?));
        }
        let words = container["args"].as_array().context("a container without arguments")?;
        let filled = words.iter().map(|word| {
            let text = word.as_str().context("an argument that is no string")?.to_owned();
            let fill = |text: String, (name, value): &(String, String)| text.replace(&format!("$({name})"), value);
            Ok(environment.iter().fold(text, fill))
        });
        let arguments: Vec<String> = filled.collect::<Result<_>>()?;
        let open = arguments.iter().find(|argument| argument.contains("$("));
        ensure!(open.is_none(), "{open:?} names a variable that the pod does not have");
        Ok(Self { arguments, environment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(args: &Value) -> Value {
        let env = json!([
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "PLAIN", "value": "x"},
        ]);
        json!({"spec": {"containers": [{"command": ["/p"], "args": args, "env": env}]}})
    }

    #[test]
    fn variables_are_filled_in_and_one_that_is_not_there_is_an_error() {
        let field = |path: &str| (path == "spec.nodeName").then(|| "n1".to_owned());
        let filled = Container::of(&pod(&json!(["--a=$(NODE)", "$(PLAIN)"])), "/p", field).unwrap();
        assert_eq!(filled.arguments, ["--a=n1", "x"]);
        let environment = [("NODE", "n1"), ("PLAIN", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(filled.environment, environment);
        let error = Container::of(&pod(&json!(["--a=$(NODES)"])), "/p", field).err().unwrap().to_string();
        assert!(error.contains("$(NODES)"), "{error}");
        assert!(Container::of(&pod(&json!([])), "/q", field).is_err());
    }
}
