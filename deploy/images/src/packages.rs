//! What the programs are made of: the bill of materials, and the licences of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::platform::Platform;
use crate::programs::Program;
use crate::{cargo, text_of};

/// A package of which code is in a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Package {
    /// As on crates.io.
    pub name: String,
    /// As on crates.io.
    pub version: String,
    /// An expression of SPDX.
    pub license: String,
    /// The folder with its sources.
    folder: PathBuf,
    /// Whether it is ours.
    is_own: bool,
}

/// The packages of which code is in a program, sorted.
///
/// # Errors
/// If cargo fails.
pub fn of(program: Program, platform: Platform) -> Result<Vec<Package>> {
    let metadata = text_of(cargo::command().args(["metadata", "--locked", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let known: BTreeMap<(String, String), Package> = (metadata["packages"].as_array().into_iter().flatten())
        .filter_map(read)
        .map(|package| ((package.name.clone(), package.version.clone()), package))
        .collect();
    let mut found = BTreeSet::new();
    let mut tree = cargo::command();
    tree.args(["tree", "--locked", "--package", program.package(), "--target", &platform.target()]);
    tree.args(["--edges=normal,no-proc-macro", "--prefix=none", "--format={p}"]);
    for line in text_of(&mut tree)?.lines() {
        // «NAME vVERSION (PLACE)»
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let version = words.next().unwrap_or_default().trim_start_matches('v').to_owned();
        let package = known.get(&(name, version));
        found.insert(package.with_context(|| format!("cargo metadata has no package {line}"))?.clone());
    }
    Ok(found.into_iter().collect())
}

fn read(package: &Value) -> Option<Package> {
    let field = |name: &str| package[name].as_str();
    Some(Package {
        name: field("name")?.to_owned(),
        version: field("version")?.to_owned(),
        // crates.io has allowed a slash for OR.
        license: field("license")?.split('/').map(str::trim).collect::<Vec<_>>().join(" OR "),
        folder: Path::new(field("manifest_path")?).parent()?.to_owned(),
        is_own: package["source"].is_null(),
    })
}

/// The version of rustc, whose standard library is in each program.
///
/// # Errors
/// If rustc fails.
pub fn rust_version() -> Result<String> {
    let said = text_of(cargo::rustc_side("rustc").arg("-V"))?;
    Ok(said.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// The bill of materials of an image, in the format of CycloneDX.
pub fn bill(image: &str, version: &str, rust: &str, packages: &[Package]) -> Value {
    let component = |package: &Package| {
        let Package { name, version, license, .. } = package;
        let purl = format!("pkg:cargo/{name}@{version}");
        let mut it = json!({
            "type": "library", "bom-ref": purl, "name": name, "version": version,
            "licenses": [{"expression": license}],
        });
        // Ours are not on crates.io.
        if !package.is_own {
            it["purl"] = json!(purl);
        }
        it
    };
    let mut components: Vec<Value> = packages.iter().map(component).collect();
    let purl = format!("pkg:generic/rust@{rust}");
    components.push(json!({
        "type": "library", "bom-ref": purl, "purl": purl, "name": "rust", "version": rust,
        "description": "Rust's standard library with musl",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }));
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": image, "name": image, "version": version}},
        "components": components,
    })
}

/// The licence texts of the packages of others. Each text stands once, below the packages that have it.
///
/// # Errors
/// If a file cannot be read.
pub fn licenses(packages: &[Package]) -> Result<String> {
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages.iter().filter(|package| !package.is_own) {
        let name = format!("{} {} ({})", package.name, package.version, package.license);
        let files = license_files(&package.folder)?;
        if files.is_empty() {
            users.entry("These packages contain no licence text.".to_owned()).or_default().push(name.clone());
        }
        for file in files {
            let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let text = String::from_utf8_lossy(&text).replace("\r\n", "\n").trim().to_owned();
            let users = users.entry(text).or_default();
            if !users.contains(&name) {
                users.push(name.clone());
            }
        }
    }
    let mut sections: Vec<String> =
        users.into_iter().map(|(text, users)| format!("{}\n\n{text}\n", users.join("\n"))).collect();
    sections.sort();
    Ok(sections.join(&format!("\n{}\n\n", "=".repeat(80))))
}

/// The files of a package that have a licence or a notice, sorted.
fn license_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let words = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_dir() && !["tests", "benches", "examples"].contains(&name.as_str()) {
            files.extend(license_files(&path)?);
        } else if path.is_file()
            && words.iter().any(|word| name.to_uppercase().starts_with(word))
            && path.extension().is_none_or(|extension| extension != "rs")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
