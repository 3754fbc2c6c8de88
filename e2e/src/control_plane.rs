//! A real etcd and kube-apiserver on loopback, RBAC on, with an administrator's kubeconfig and real service-account tokens.
//!
//! There is no controller manager: nothing makes default service accounts, finishes a namespace's deletion or collects what an
//! owner left. Pods are accepted without a service account for that reason.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

mod servers;

use crate::assets::{self, Tool};
use crate::kubectl::Kubectl;
use crate::pki;
use crate::ports::Port;
use crate::process::Process;
use crate::state::StateDir;

/// Enough for a machine under heavy load; about four seconds on an idle one.
const READY: Duration = Duration::from_mins(2);
const AUDIT_POLICY: &str = "audit-policy.json";
const AUDIT_LOG: &str = "audit.log";
/// etcd's folder in the run's.
const ETCD_DATA: &str = "etcd";

/// A control plane. It ends when dropped; a [`shared`](Self::shared) one ends with the process.
pub struct ControlPlane {
    // Fields are dropped in this order: the server before its store, both before their directory.
    apiserver: Mutex<Option<Process>>,
    etcd: Mutex<Option<Process>>,
    kubectl: Kubectl,
    port: Port,
    etcd_port: Port,
    etcd_peer: Port,
    purpose: Purpose,
    state: StateDir,
}

/// What a control plane is for, which decides some flags of its servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// Tests: etcd does not sync to the disk, and the API server takes any number of requests at a time.
    Tests,
    /// Tests that read what service accounts asked for.
    AuditedTests,
    /// Measurements: etcd and the API server as users run them.
    Measurements,
}

impl ControlPlane {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// When a tool is missing and cannot be built, or a server does not become ready; the message carries the end of its log.
    pub fn start() -> Result<Self> {
        Self::start_for(Purpose::Tests)
    }

    /// Starts one as users run it, for measurements. etcd syncs each write to the disk. The API server has its default limits of
    /// requests in flight.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_durable() -> Result<Self> {
        Self::start_for(Purpose::Measurements)
    }

    /// The same with an audit log of all that service accounts ask for: see [`audit`](Self::audit).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_audited() -> Result<Self> {
        Self::start_for(Purpose::AuditedTests)
    }

    fn start_for(purpose: Purpose) -> Result<Self> {
        assets::ensure(&assets::CONTROL_PLANE)?;
        let state = StateDir::create()?;
        pki::write(&state.join("pki"), &[], &[])?;
        let (port, etcd_port, etcd_peer) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let etcd = start_etcd(purpose, &state, &etcd_port, &etcd_peer)?;
        let kubeconfig = state.join("kubeconfig");
        let user = pki::user(&state.join("pki"), pki::ADMIN);
        write_kubeconfig(&kubeconfig, &state, &port, &user)?;
        let kubectl = Kubectl::new(assets::path(Tool::Kubectl)?, kubeconfig);
        if purpose == Purpose::AuditedTests {
            std::fs::write(state.join(AUDIT_POLICY), servers::audit_policy().to_string())?;
        }
        let (apiserver, etcd) = (Mutex::new(None), Mutex::new(Some(etcd)));
        let plane = Self { apiserver, etcd, kubectl, port, etcd_port, etcd_peer, purpose, state };
        plane.start_apiserver()?;
        Ok(plane)
    }

    /// The one control plane of this test binary, started by whoever asks first. Tests keep apart by namespace; a test whose
    /// operator must not see other tests' Nodes takes a control plane of its own.
    ///
    /// # Errors
    /// When it could not be started; every later call gets the same message.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| Self::start().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    /// The administrator's kubeconfig file. It is valid inside nodes as well.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// TCP port of the API server on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The directory of this run: logs, keys, and room for the caller's own files.
    pub fn directory(&self) -> &Path {
        self.state.path()
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A client as the administrator. It belongs to the async runtime of the caller: take a new one in each test.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }

    /// Makes a namespace that nobody else uses; its name begins with `prefix`.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn namespace(&self, prefix: &str) -> Result<String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.kubectl.run(&["create", "namespace", &name])?;
        Ok(name)
    }

    /// What service accounts have asked for so far, as audit.k8s.io/v1 events in the order of their answers. A watch is there
    /// from its beginning. Every request that was answered before this call is in it.
    ///
    /// # Errors
    /// When this control plane was not started by [`start_audited`](Self::start_audited).
    pub fn audit(&self) -> Result<Vec<serde_json::Value>> {
        let text =
            std::fs::read_to_string(self.state.join(AUDIT_LOG)).context("this control plane keeps no audit log")?;
        // The last line may be half written.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).context("a line of the audit log is no JSON")).collect()
    }

    /// A kubeconfig by a real token of one hour for a service account that is there already. With a pod, the token is bound
    /// to it as one that a kubelet mounts, and names the pod's node.
    ///
    /// # Errors
    /// When the API server refuses the token.
    pub fn token(&self, namespace: &str, account: &str, pod: Option<&str>) -> Result<PathBuf> {
        let bound = pod.map(|pod| format!("--bound-object-name={pod}"));
        let mut words = vec!["create", "token", account, "--namespace", namespace, "--duration=1h"];
        if let Some(bound) = &bound {
            words.extend(["--bound-object-kind=Pod", bound]);
        }
        let token = self.kubectl.run(&words)?;
        let path = self.state.join(format!("{namespace}.{account}.{}.kubeconfig", pod.unwrap_or_default()));
        write_kubeconfig(&path, &self.state, &self.port, &json!({"token": token.trim()}))?;
        Ok(path)
    }

    /// A kubeconfig for a service account, by a real token of one hour. The account is made when it does not exist.
    ///
    /// # Errors
    /// When the API server refuses the account or the token.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}});
        self.kubectl.apply(&account.to_string())?;
        self.token(namespace, name, None)
    }

    /// Kills the API server. Its store stays, so [`start_apiserver`](Self::start_apiserver) finds everything again.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill_apiserver(&self) -> Result<()> {
        match self.apiserver().take() {
            Some(mut process) => process.kill().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Starts the API server, on the same port as before, and waits until it is ready. Nothing happens when it runs.
    ///
    /// # Errors
    /// When it does not become ready; the message carries the end of its log.
    pub fn start_apiserver(&self) -> Result<()> {
        let mut slot = self.apiserver();
        if slot.is_some() {
            return Ok(());
        }
        let arguments =
            servers::apiserver_flags(self.purpose, self.state.path(), self.port.number(), self.etcd_port.number());
        let log = self.state.join("kube-apiserver.log");
        let mut process = Process::start("kube-apiserver", &assets::path(Tool::KubeApiserver)?, &arguments, &log)?;
        await_ready(&mut process, &self.kubeconfig())?;
        *slot = Some(process);
        Ok(())
    }

    /// Keeps a copy of all that etcd has now. The API server is away for a moment.
    ///
    /// # Errors
    /// When something cannot be copied or started again.
    pub fn backup(&self) -> Result<()> {
        self.with_etcd_stopped(copy_folder)
    }

    /// Puts etcd back to the last [`backup`](Self::backup) and starts the API server anew, as one does after a disaster.
    ///
    /// # Errors
    /// When there is no backup, or something cannot be copied or started again.
    pub fn restore(&self) -> Result<()> {
        self.with_etcd_stopped(|data, copy| copy_folder(copy, data))
    }

    fn with_etcd_stopped(&self, then: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
        self.kill_apiserver()?;
        let mut slot = self.etcd.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut process) = slot.take() {
            process.kill()?;
        }
        then(&self.state.join(ETCD_DATA), &self.state.join("etcd.copy"))?;
        *slot = Some(start_etcd(self.purpose, &self.state, &self.etcd_port, &self.etcd_peer)?);
        drop(slot);
        self.start_apiserver()
    }

    /// Makes etcd forget its history, as the API server does every five minutes: no watch can go on where it was.
    ///
    /// # Errors
    /// When etcd refuses.
    pub fn compact(&self) -> Result<()> {
        let now = self.etcd("range", &json!({"key": "AA=="}))?;
        let revision = &now["header"]["revision"];
        self.etcd("compaction", &json!({"revision": revision, "physical": true})).map(drop)
    }

    /// etcd's own metrics, in the text format of Prometheus.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub fn etcd_metrics(&self) -> Result<String> {
        let address = format!("127.0.0.1:{}", self.etcd_port.number());
        let (code, text) = crate::http::get(&address, "/metrics")?;
        ensure!(code == 200, "etcd answers {code} to /metrics");
        Ok(text)
    }

    /// A call of etcd's API, as its JSON gateway has it.
    fn etcd(&self, call: &str, body: &serde_json::Value) -> Result<serde_json::Value> {
        let address = format!("127.0.0.1:{}", self.etcd_port.number());
        let (code, answer) = crate::http::post(&address, &format!("/v3/kv/{call}"), &body.to_string())?;
        ensure!(code == 200, "etcd answers {code} to {call}: {}", answer.trim());
        serde_json::from_str(&answer).with_context(|| format!("etcd answers no JSON to {call}: {answer:?}"))
    }

    fn apiserver(&self) -> MutexGuard<'_, Option<Process>> {
        // A panic elsewhere leaves the slot as it was: whole.
        self.apiserver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client for a kubeconfig file; it belongs to the async runtime of the caller.
///
/// # Errors
/// When the file cannot be read or names what is not there.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

fn start_etcd(purpose: Purpose, state: &StateDir, port: &Port, peer: &Port) -> Result<Process> {
    let arguments = servers::etcd_flags(purpose, state.path(), port.number(), peer.number());
    Process::start("etcd", &assets::path(Tool::Etcd)?, &arguments, &state.join("etcd.log"))
}

/// Makes `to` a copy of the folder `from`.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    std::fs::create_dir(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let (entry, target) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if entry.is_dir() {
            copy_folder(&entry, &target)?;
        } else {
            std::fs::copy(&entry, &target).with_context(|| format!("cannot copy {}", entry.display()))?;
        }
    }
    Ok(())
}

fn write_kubeconfig(path: &Path, state: &StateDir, port: &Port, user: &serde_json::Value) -> Result<()> {
    pki::write_kubeconfig(path, &format!("https://127.0.0.1:{}", port.number()), &state.join("pki"), user)
}

/// Asks `/readyz` until it says ok. On a thread of its own: the caller may or may not be inside an async runtime.
fn await_ready(process: &mut Process, kubeconfig: &Path) -> Result<()> {
    let answer = std::thread::scope(|scope| {
        let asker = scope.spawn(|| -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = runtime.block_on(client(kubeconfig))?;
            process.ready("/readyz", READY, || runtime.block_on(readyz(&client)))
        });
        asker.join()
    });
    answer.map_err(|_| anyhow!("the thread that waited for kube-apiserver panicked"))?
}

async fn readyz(client: &kube::Client) -> Result<()> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    client.request_text(request).await.map(|_| ()).map_err(Into::into)
}
