//! `ipam-controller release-pools`: removes the operator's finalizers from pools and IPAMNodes while no operator runs.
//!
//! The chart calls it at the end of an uninstall. An admin calls it when a namespace or a CustomResourceDefinition waits for
//! objects that no operator releases. It does not check whether addresses are in use: an IPAMNode that is not being deleted stays,
//! and an operator that is installed later reads it. It must not touch the finalizers of others, or anything else of an object.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use futures::{StreamExt as _, stream};
use ipam_core::words::counted;
use ipam_crds::{CIDRPool, IPAMNode, IPPool};
use ipam_daemon::cluster;
use ipam_daemon::metrics::Requests;
use kube::api::{Api, ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde_json::json;

use ipam_reconciler::{ipam_node, pool};

/// Name of the subcommand.
pub const NAME: &str = ipam_reconciler::pool::RELEASE_POOLS;

/// Calls under way at one time: an uninstall of 5,000 nodes must end within the time that the chart allows the Job.
const AT_ONCE: usize = 32;
/// Rounds over all objects. If finalizers are left after these, other clients still change the objects, and the command fails.
const ROUNDS: u32 = 10;
/// Objects on one page of a list.
const PAGE: u32 = 500;

/// Remove the finalizers nv-ipam.nvidia.com/pool-in-use and nv-ipam.nvidia.com/node-in-use from pools and IPAMNodes, so that
/// they can be deleted without an operator
#[derive(Parser, Debug)]
#[command(name = "ipam-controller release-pools", bin_name = "ipam-controller release-pools")]
#[command(after_help = "While an operator runs, annotate the pool instead: nv-ipam.nvidia.com/force-release=NODE. \
    Exit status: 0 no finalizer is left, 1 some are left, 2 invalid flags.")]
struct Flags {
    /// Also from pools and IPAMNodes that are not being deleted; stop the operator first
    #[arg(long)]
    all: bool,
    /// Namespace of the pools
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    ippools_namespace: String,
    /// Path of a kubeconfig. Default: KUBECONFIG, the pod's service account, or ~/.kube/config
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
}

/// Runs the subcommand with the arguments after its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = std::iter::once(OsString::from(NAME)).chain(args);
    let flags = match Flags::try_parse_from(args) {
        Ok(flags) => flags,
        Err(usage) => return ipam_daemon::print_usage(&usage),
    };
    if let Err(why) = ipam_daemon::flags::namespace(&flags.ippools_namespace) {
        say(&format!("--ippools-namespace {:?}: {why}", flags.ippools_namespace));
        return ExitCode::from(2);
    }
    match run(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a message to stderr. A failure to print is ignored.
fn say(what: &str) {
    drop(writeln!(std::io::stderr(), "ipam-controller {NAME}: {what}"));
}

fn run(flags: &Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let client = cluster::client(flags.kubeconfig.as_deref(), &Requests::default()).await?;
        release(&client, &flags.ippools_namespace, flags.all).await
    });
    runtime.shutdown_background();
    let count = done?;
    say(&format!("{} released in namespace {}", counted(count, "object", "objects"), flags.ippools_namespace));
    Ok(())
}

/// Removes our finalizers from the pools and IPAMNodes of a namespace that are being deleted, or from all. Returns how many had one.
///
/// # Errors
/// When a call fails, or another client adds the finalizer again.
pub async fn release(client: &Client, namespace: &str, all: bool) -> Result<usize> {
    let flat = release_kind(Api::<IPPool>::namespaced(client.clone(), namespace), pool::FINALIZER, all).await?;
    let routed = release_kind(Api::<CIDRPool>::namespaced(client.clone(), namespace), pool::FINALIZER, all).await?;
    let nodes = Api::<IPAMNode>::namespaced(client.clone(), namespace);
    Ok(flat + routed + release_kind(nodes, ipam_node::FINALIZER, all).await?)
}

async fn release_kind<K>(api: Api<K>, finalizer: &str, all: bool) -> Result<usize>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let kind = K::kind(&());
    let mut released = std::collections::BTreeSet::new();
    for _ in 0..ROUNDS {
        let sealed = sealed(&api, finalizer, all).await.with_context(|| format!("cannot list {}", K::plural(&())))?;
        if sealed.is_empty() {
            return Ok(released.len());
        }
        let api = &api;
        let calls = stream::iter(sealed).map(|object| async move {
            let result = take_off(api, &object, finalizer).await;
            (object.name_any(), result)
        });
        let mut calls = std::pin::pin!(calls.buffer_unordered(AT_ONCE));
        while let Some((name, result)) = calls.next().await {
            match result {
                Ok(()) => {
                    say(&format!("{kind} {name} released"));
                    released.insert(name);
                }
                // The object was changed or deleted since the list. The next round lists it again.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot release {kind} {name}")),
            }
        }
    }
    bail!(
        "{finalizer} is still on some {} after {ROUNDS} rounds: an operator or agents still change them; stop the operator, then \
         run this again",
        K::plural(&())
    )
}

/// Returns the metadata of the objects that have the finalizer; nothing if the CRD does not exist.
async fn sealed<K>(api: &Api<K>, finalizer: &str, all: bool) -> kube::Result<Vec<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut found = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list_metadata(&page).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            list => list?,
        };
        found.extend(list.items.into_iter().filter(|object| {
            let is_meant = all || object.metadata.deletion_timestamp.is_some();
            is_meant && object.finalizers().iter().any(|has| has == finalizer)
        }));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Removes the finalizer at the listed version, so that a finalizer that another client has added since stays.
async fn take_off<K>(api: &Api<K>, object: &PartialObjectMeta<K>, finalizer: &str) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let others: Vec<&String> = object.finalizers().iter().filter(|has| *has != finalizer).collect();
    let patch = json!({"metadata": {"resourceVersion": object.metadata.resource_version, "finalizers": others}});
    api.patch_metadata(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}
