//! What the programs are made of: the bill of materials, and the licences of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::platform::Platform;
use crate::programs::Program;
use crate::{cargo, text_of, workspace};

/// How the bill of materials names musl.
const MUSL: &str = "musl";

/// A package of which code is in a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Package {
    /// As on crates.io.
    pub name: String,
    /// As on crates.io.
    pub version: String,
    /// An expression of SPDX.
    pub license: String,
    /// The SHA-256 of what crates.io has, in hexadecimal; `None` for our own.
    checksum: Option<String>,
    /// Where its sources are kept, in the package's words.
    repository: String,
    /// The names and versions of the packages that it uses.
    uses: Vec<(String, String)>,
    /// The folder with its sources.
    folder: PathBuf,
    /// Whether it is ours.
    pub is_own: bool,
}

/// The packages of which code is in a program, sorted.
///
/// # Errors
/// If cargo fails.
pub fn of(program: Program, platform: Platform) -> Result<Vec<Package>> {
    let filter = format!("--filter-platform={}", platform.target());
    let metadata = text_of(cargo::command().args(["metadata", "--locked", "--format-version=1", &filter]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let lock = fs::read_to_string(workspace().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let uses = uses(&metadata);
    let mut known: BTreeMap<(String, String), Package> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let Some(mut read) = read(package) else { continue };
        read.checksum = checksum(&lock, &read.name, &read.version);
        read.uses = uses.get(text(&package["id"])).cloned().unwrap_or_default();
        known.insert((read.name.clone(), read.version.clone()), read);
    }
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// For the ID of each package, the names and versions of those that it uses.
fn uses(metadata: &Value) -> BTreeMap<&str, Vec<(String, String)>> {
    let all = || metadata["packages"].as_array().into_iter().flatten();
    let names: BTreeMap<&str, (String, String)> =
        all().map(|it| (text(&it["id"]), (text(&it["name"]).to_owned(), text(&it["version"]).to_owned()))).collect();
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let used = |node: &Value| {
        let used = node["dependencies"].as_array().into_iter().flatten();
        used.filter_map(|id| names.get(text(id)).cloned()).collect()
    };
    nodes.map(|node| (text(&node["id"]), used(node))).collect()
}

/// The checksum of a package in Cargo.lock.
fn checksum(lock: &str, name: &str, version: &str) -> Option<String> {
    let head = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    let entry = lock.split("[[package]]").find(|entry| entry.trim_start().starts_with(&head))?;
    let line = entry.lines().find_map(|line| line.strip_prefix("checksum = "))?;
    Some(line.trim_matches('"').to_owned())
}

fn read(package: &Value) -> Option<Package> {
    let field = |name: &str| package[name].as_str();
    Some(Package {
        name: field("name")?.to_owned(),
        version: field("version")?.to_owned(),
        // crates.io has allowed a slash for OR.
        license: field("license")?.split('/').map(str::trim).collect::<Vec<_>>().join(" OR "),
        checksum: None,
        repository: text(&package["repository"]).trim_end_matches('/').trim_end_matches(".git").to_owned(),
        uses: Vec::new(),
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

/// The bill of materials of an image, in the format of CycloneDX. `created` is the time of the commit.
pub fn bill(image: &str, version: &str, created: &str, rust: &str, packages: &[Package]) -> Value {
    let purl_of = |name: &str, version: &str| format!("pkg:cargo/{name}@{version}");
    let component = |package: &Package| {
        let Package { name, version, license, .. } = package;
        let purl = purl_of(name, version);
        let mut it = json!({
            "type": "library", "bom-ref": purl, "name": name, "version": version,
            "licenses": [{"expression": license}],
        });
        // Ours are not on crates.io.
        if !package.is_own {
            it["purl"] = json!(purl);
        }
        if let Some(checksum) = &package.checksum {
            it["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        it
    };
    let mut components: Vec<Value> = packages.iter().map(component).collect();
    let purl = format!("pkg:generic/rust@{rust}");
    components.push(json!({
        "type": "library", "bom-ref": purl, "purl": purl, "name": "rust", "version": rust,
        "description": "Rust's standard library",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }));
    components.push(json!({
        "type": "library", "bom-ref": MUSL, "name": "musl", "description": "The C library in Rust's standard library",
        "licenses": [{"license": {"id": "MIT"}}],
    }));
    let is_here =
        |(name, version): &&(String, String)| packages.iter().any(|it| it.name == *name && it.version == *version);
    let edges = |package: &Package| {
        let used = package.uses.iter().filter(is_here).map(|(name, version)| purl_of(name, version));
        json!({"ref": purl_of(&package.name, &package.version), "dependsOn": used.collect::<BTreeSet<_>>()})
    };
    let mut dependencies: Vec<Value> = packages.iter().map(edges).collect();
    let own = packages.iter().filter(|package| package.is_own);
    let of_image: Vec<String> = own.map(|it| purl_of(&it.name, &it.version)).chain([purl.clone()]).collect();
    dependencies.push(json!({"ref": image, "dependsOn": of_image}));
    dependencies.push(json!({"ref": purl, "dependsOn": [MUSL]}));
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": created, "component": {"type": "container", "bom-ref": image, "name": image, "version": version}},
        "components": components,
        "dependencies": dependencies,
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
        let mut files = license_files(&package.folder)?;
        // Packages of one repository have one licence, and some of them come without its text.
        let mut beside = packages.iter().filter(|it| !it.repository.is_empty() && it.repository == package.repository);
        while let (true, Some(other)) = (files.is_empty(), beside.next()) {
            files = license_files(&other.folder)?;
        }
        if files.is_empty() {
            ensure!(
                package.license.split(' ').any(|word| word == env!("CARGO_PKG_LICENSE")),
                "{name} contains no licence text, and it is not that of the file LICENSE"
            );
            let same = "These packages contain no licence text. Theirs is that of the file LICENSE.".to_owned();
            users.entry(same).or_default().push(name.clone());
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
