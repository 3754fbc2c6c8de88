//! Archives of images in the layout of the OCI image specification 1.1, as containerd, Podman and Skopeo read them.
//!
//! The same input gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::platform::Platform;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A file of an image. It belongs to root, and its time is the start of 1970: a layer with the same files is the same layer.
pub struct File {
    /// From the root, without a slash at its start.
    pub path: String,
    /// All bytes.
    pub content: Vec<u8>,
    /// Whether it can be run.
    pub is_program: bool,
}

/// An image for one platform.
pub struct Image {
    /// What it runs on.
    pub platform: Platform,
    /// The files, a list for each layer.
    pub layers: Vec<Vec<File>>,
    /// The command line that runs if the pod names none; empty without one.
    pub entrypoint: Vec<String>,
    /// The user of the program if the pod names none, as `UID:GID`. Without one, it is root.
    pub user: Option<String>,
    /// When it was created, in RFC 3339.
    pub created: String,
    /// Labels of the image and annotations of its manifest.
    pub labels: BTreeMap<String, String>,
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The digest by which a registry knows the image: that of its manifest, or of its index if there are several platforms.
    pub digest: String,
    /// The bytes that a node pulls, for each platform.
    pub pulled: Vec<u64>,
}

/// The parts of an archive by digest.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Adds a part and describes it.
    fn add(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let name = sha256(&content);
        let descriptor = json!({"mediaType": kind, "digest": format!("sha256:{name}"), "size": content.len()});
        self.0.insert(name, content);
        descriptor
    }
}

/// Writes an image for one or more platforms as an archive. `name` is how the image is called, as `REGISTRY/NAME:TAG`. A file of this path
/// is replaced once the new one is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, name: &str, images: &[Image]) -> Result<Written> {
    let mut blobs = Blobs::default();
    let (mut manifests, mut pulled) = (Vec::new(), Vec::new());
    for image in images {
        let (manifest, bytes) = add_image(&mut blobs, image)?;
        manifests.push(manifest);
        pulled.push(bytes);
    }
    let mut top = match <[Value; 1]>::try_from(manifests) {
        Ok([manifest]) => manifest,
        Err(manifests) => {
            let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
            blobs.add(INDEX, serde_json::to_vec(&index)?)
        }
    };
    let written = Written { digest: top["digest"].as_str().unwrap_or_default().to_owned(), pulled };
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    top["annotations"] = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]});

    let mut archive = tar::Builder::new(Vec::new());
    add_file(&mut archive, "oci-layout", &serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?, 0o644)?;
    add_file(&mut archive, "index.json", &serde_json::to_vec(&index)?, 0o644)?;
    for (digest, content) in &blobs.0 {
        add_file(&mut archive, &format!("blobs/sha256/{digest}"), content, 0o644)?;
    }
    replace(path, &archive.into_inner()?)?;
    Ok(written)
}

/// Adds the parts of an image. Answers the descriptor of its manifest, and the bytes to pull.
fn add_image(blobs: &mut Blobs, image: &Image) -> Result<(Value, u64)> {
    let (mut layers, mut contents, mut history) = (Vec::new(), Vec::new(), Vec::new());
    for files in &image.layers {
        let layer = layer(files)?;
        contents.push(format!("sha256:{}", sha256(&layer)));
        let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
        packed.write_all(&layer)?;
        layers.push(blobs.add(LAYER, packed.finish()?));
        let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        history.push(json!({"created": image.created, "created_by": format!("cargo images: {}", names.join(" "))}));
    }
    let mut settings = json!({"WorkingDir": "/", "Labels": image.labels});
    if !image.entrypoint.is_empty() {
        settings["Entrypoint"] = json!(image.entrypoint);
    }
    if let Some(user) = &image.user {
        settings["User"] = json!(user);
    }
    let platform = platform(image.platform);
    let mut config = platform.clone();
    config["created"] = json!(image.created);
    config["config"] = settings;
    config["rootfs"] = json!({"type": "layers", "diff_ids": contents});
    config["history"] = json!(history);
    let config = blobs.add(CONFIG, serde_json::to_vec(&config)?);
    let size = |part: &Value| part["size"].as_u64().unwrap_or_default();
    let pulled = layers.iter().map(size).sum::<u64>() + size(&config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers, "annotations": image.labels,
    });
    let mut manifest = blobs.add(MANIFEST, serde_json::to_vec(&manifest)?);
    manifest["platform"] = platform;
    Ok((manifest, pulled))
}

fn platform(platform: Platform) -> Value {
    let mut it = json!({"os": "linux", "architecture": platform.architecture()});
    if let Some(variant) = platform.variant() {
        it["variant"] = json!(variant);
    }
    it
}

/// The files as an archive, each below its folders.
fn layer(files: &[File]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut folders = BTreeSet::new();
    for file in files {
        for (end, _) in file.path.match_indices('/') {
            let folder = file.path.get(..=end).unwrap_or_default();
            if folders.insert(folder) {
                let mut header = header(0, 0o755);
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, folder, std::io::empty())?;
            }
        }
        let mode = if file.is_program { 0o755 } else { 0o644 };
        add_file(&mut archive, &file.path, &file.content, mode)?;
    }
    Ok(archive.into_inner()?)
}

fn add_file(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) -> Result<()> {
    let mut header = header(u64::try_from(content.len())?, mode);
    archive.append_data(&mut header, path, content).with_context(|| format!("cannot add {path}"))
}

fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Writes a file beside its place, and moves it there.
///
/// # Errors
/// If the folder cannot be written.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let part = path.with_added_extension("part");
    let written = fs::write(&part, content).and_then(|()| fs::rename(&part, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The SHA-256 in hexadecimal digits.
pub(crate) fn sha256(content: &[u8]) -> String {
    let mut digits = String::new();
    for byte in digest(&SHA256, content).as_ref() {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}
