//! Inputs to begin with: what users write, in the form that each target reads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{CertificateParams, KeyPair};

use serde_json::{Value as Json, json};

use super::pem::BETWEEN;
use crate::cases::{self, Case, POOL};

/// The corpus that is kept in the repository.
pub fn corpus_folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// The seeds of a target and its kept corpus, in a fixed order. Keys in the seeds of `pem` are new each time, so that no
/// private key needs to be kept.
///
/// # Errors
/// A file that cannot be read; a target without seeds.
pub fn corpus(target: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut corpus = seeds(target)?;
    corpus.extend(files(&corpus_folder(target))?);
    Ok(corpus)
}

/// What a target begins with when nothing was found yet.
///
/// # Errors
/// As [`corpus`].
pub fn seeds(target: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match target {
        "manifest" => {
            let mut all = files(&root.join("crds/examples"))?;
            // The table with its comments, and each pool by itself.
            all.extend(files(&root.join("e2e/cases"))?);
            for (old, new) in cases::load()?.iter().map(pools) {
                all.push(format!("{}---\n{}", old.as_ref().map_or(String::new(), yaml), yaml(&new)).into_bytes());
            }
            Ok(all)
        }
        "spec" => {
            let manifests = files(&root.join("crds/examples"))?;
            let examples = manifests.iter().map(|manifest| json(manifest));
            let cases = cases::load()?;
            let cases = cases.iter().map(|case| serde_json::to_vec(&pools(case).1).map_err(anyhow::Error::from));
            examples.chain(cases).collect()
        }
        "pem" => pairs(),
        "review" => {
            let manifests = files(&root.join("crds/examples"))?;
            let examples = manifests.iter().map(|manifest| Ok(reviews(&json(manifest)?)));
            let examples: Vec<_> = examples.collect::<anyhow::Result<_>>()?;
            let of_cases = cases::load()?;
            Ok(examples.into_iter().flatten().chain(of_cases.iter().map(review_of)).collect())
        }
        "cluster" => super::cluster::seeds(),
        "cni" => Ok(super::cni::seeds()),
        "files" => super::files::seeds(),
        "grpc" => Ok(super::grpc::seeds()),
        "lease" => Ok(super::lease::seeds()),
        "node" => Ok(super::node::seeds()),
        "store" => Ok(super::store::seeds()),
        // Its bytes are throws of a dice; a few lengths will do.
        "selector" => Ok((0_u8..64).map(|n| (0..n).map(|i| i.wrapping_mul(37).wrapping_add(n)).collect()).collect()),
        _ => anyhow::bail!("there is no target {target:?}"),
    }
}

fn files(folder: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let told = || folder.display().to_string();
    let entries = fs::read_dir(folder).with_context(told)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    paths.iter().filter(|path| path.is_file()).map(|path| fs::read(path).with_context(told)).collect()
}

fn json(manifest: &[u8]) -> anyhow::Result<Vec<u8>> {
    let object: serde_json::Value = serde_yaml::from_slice(manifest)?;
    Ok(serde_json::to_vec(&object)?)
}

fn yaml(object: &Json) -> String {
    serde_yaml::to_string(object).unwrap_or_default()
}

/// The pool of a case before and after, each with who has which block.
fn pools(case: &Case) -> (Option<Json>, Json) {
    let kind = case.kind().kind();
    let allocation = |(node, block): (&String, &String)| match (block.split_once('-'), block.split_once(" via ")) {
        (Some((first, last)), _) => json!({"nodeName": node, "startIP": first, "endIP": last}),
        (_, Some((prefix, gateway))) => json!({"nodeName": node, "prefix": prefix, "gateway": gateway}),
        _ => json!({"nodeName": node, "prefix": block}),
    };
    let status = json!({"allocations": case.blocks.iter().map(allocation).collect::<Vec<_>>()});
    let object = |spec: &Json, allow_overlap: Option<&String>| {
        let mut metadata = json!({"name": POOL, "namespace": "kube-system"});
        if let Some(value) = allow_overlap {
            metadata["annotations"] = json!({"nv-ipam.nvidia.com/allow-overlap": value});
        }
        let version = "nv-ipam.nvidia.com/v1alpha1";
        let nodes: Vec<&String> = case.blocks.keys().collect();
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": status, "nodes": nodes})
    };
    let old = case.old.as_ref().map(|old| object(old, case.old_allow_overlap.as_ref()));
    (old, object(&case.spec, case.allow_overlap.as_ref()))
}

/// The case as the API server asks about it.
fn review_of(case: &Case) -> Vec<u8> {
    let (old, new) = pools(case);
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let old = old.unwrap_or_default().to_string();
    review(case.kind().kind(), operation, "", &new.to_string(), &old)
}

fn review(kind: &str, operation: &str, subresource: &str, new: &str, old: &str) -> Vec<u8> {
    let kind = format!(r#"{{"group":"nv-ipam.nvidia.com","version":"v1alpha1","kind":"{kind}"}}"#);
    let request = format!(
        r#""uid":"u","kind":{kind},"namespace":"kube-system","operation":"{operation}","subResource":"{subresource}""#
    );
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{{request},"object":{new},"oldObject":{old}}}}}"#
    )
    .into_bytes()
}

/// The pool created, changed and deleted, and its status written.
fn reviews(pool: &[u8]) -> Vec<Vec<u8>> {
    let pool = String::from_utf8_lossy(pool);
    let kind = if pool.contains("CIDRPool") { "CIDRPool" } else { "IPPool" };
    let smaller = pool.replace("/16", "/24").replace("/24\"", "/25\"");
    vec![
        review(kind, "CREATE", "", &pool, "null"),
        review(kind, "UPDATE", "", &smaller, &pool),
        review(kind, "UPDATE", "status", &pool, &pool),
        review(kind, "DELETE", "", "null", &pool),
    ]
}

/// Pairs as they are issued: a leaf alone, a leaf with its CA, one file with all, and the key of another leaf.
fn pairs() -> anyhow::Result<Vec<Vec<u8>>> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key)?;
    let issuer = rcgen::Issuer::new(ca, &ca_key);
    let mut pairs = Vec::new();
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let key = KeyPair::generate_for(algorithm)?;
        let params =
            CertificateParams::new(vec!["nv-ipam-webhook.kube-system.svc".to_owned(), "127.0.0.1".to_owned()])?;
        let leaf = params.signed_by(&key, &issuer)?.pem();
        let (key, other) = (key.serialize_pem(), ca_key.serialize_pem());
        let chain = format!("{leaf}{}", ca_certificate.pem());
        pairs.push(joined(&leaf, &key));
        pairs.push(joined(&chain, &key));
        pairs.push(format!("{key}{chain}").into_bytes());
        pairs.push(joined(&leaf, &other));
    }
    Ok(pairs)
}

fn joined(certificates: &str, key: &str) -> Vec<u8> {
    [certificates.as_bytes(), &[BETWEEN], key.as_bytes()].concat()
}
