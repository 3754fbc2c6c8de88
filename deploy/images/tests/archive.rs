//! What a runtime or a registry reads from an archive.

#![expect(clippy::unwrap_used, reason = "what a test needs and lacks is its failure")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use ipam_images::archive::{File, Image, write};
use ipam_images::platform::Platform;
use ring::digest::{SHA256, digest};
use serde_json::Value;

fn image(platform: Platform) -> Image {
    let file =
        |path: &str, content: &str, is_program| File { path: path.to_owned(), content: content.into(), is_program };
    Image {
        platform,
        layers: vec![vec![file("ipam-node", "a program", true)], vec![file("licenses/a/LICENSE", "words", false)]],
        entrypoint: vec!["/ipam-node".to_owned()],
        user: None,
        created: "2026-01-02T03:04:05Z".to_owned(),
        labels: BTreeMap::from([("org.opencontainers.image.version".to_owned(), "1".to_owned())]),
    }
}

/// The files of a tar archive: content and mode by path.
fn files(bytes: &[u8]) -> BTreeMap<String, (Vec<u8>, u32)> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        assert_eq!((entry.header().mtime().unwrap(), entry.header().uid().unwrap()), (0, 0));
        (entry.path().unwrap().display().to_string(), (content, entry.header().mode().unwrap()))
    });
    entries.collect()
}

fn sha256(content: &[u8]) -> String {
    let mut name = "sha256:".to_owned();
    for byte in digest(&SHA256, content).as_ref() {
        write!(name, "{byte:02x}").unwrap();
    }
    name
}

/// An archive that was read.
struct Layout(BTreeMap<String, (Vec<u8>, u32)>);

impl Layout {
    fn read(path: &Path) -> Self {
        Self(files(&std::fs::read(path).unwrap()))
    }

    /// The part that a descriptor names, of the size and the digest that it has.
    fn part(&self, descriptor: &Value) -> &[u8] {
        let name = descriptor["digest"].as_str().unwrap();
        let (content, _) = &self.0[&format!("blobs/{}", name.replace(':', "/"))];
        assert_eq!((sha256(content).as_str(), content.len() as u64), (name, descriptor["size"].as_u64().unwrap()));
        content
    }

    fn json(&self, descriptor: &Value) -> Value {
        serde_json::from_slice(self.part(descriptor)).unwrap()
    }

    fn top(&self) -> Value {
        let index: Value = serde_json::from_slice(&self.0["index.json"].0).unwrap();
        index["manifests"][0].clone()
    }
}

#[test]
fn an_archive_for_one_platform_has_what_its_descriptors_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.tar");
    let written = write(&path, "registry.example:5000/a/nv-ipam:1.2", &[image(Platform::Amd64)]).unwrap();
    let layout = Layout::read(&path);
    let top = layout.top();
    assert_eq!(top["digest"], written.digest);
    assert_eq!(top["annotations"]["io.containerd.image.name"], "registry.example:5000/a/nv-ipam:1.2");
    assert_eq!(top["annotations"]["org.opencontainers.image.ref.name"], "1.2");
    assert_eq!(top["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    let manifest = layout.json(&top);
    let config = layout.json(&manifest["config"]);
    assert_eq!((&config["os"], &config["architecture"]), (&"linux".into(), &"amd64".into()));
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/ipam-node"]));
    assert_eq!(config["config"]["Labels"], manifest["annotations"]);
    let mut pulled = manifest["config"]["size"].as_u64().unwrap();
    let mut all = BTreeMap::new();
    for (at, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
        pulled += layer["size"].as_u64().unwrap();
        let mut content = Vec::new();
        GzDecoder::new(layout.part(layer)).read_to_end(&mut content).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][at], sha256(&content));
        all.extend(files(&content));
    }
    assert_eq!(written.pulled, [pulled]);
    let modes: Vec<(&str, u32)> = all.iter().map(|(path, (_, mode))| (path.as_str(), *mode)).collect();
    assert_eq!(
        modes,
        [("ipam-node", 0o755), ("licenses/", 0o755), ("licenses/a/", 0o755), ("licenses/a/LICENSE", 0o644)]
    );
    assert_eq!(all["ipam-node"].0, b"a program");
}

#[test]
fn an_archive_for_two_platforms_has_an_index_of_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.tar");
    let written = write(&path, "localhost/nv-ipam:1", &Platform::ALL.map(image)).unwrap();
    let layout = Layout::read(&path);
    assert_eq!(layout.top()["digest"], written.digest);
    let index = layout.json(&layout.top());
    let of: Vec<&Value> = index["manifests"].as_array().unwrap().iter().map(|manifest| &manifest["platform"]).collect();
    assert_eq!(of[0], &serde_json::json!({"os": "linux", "architecture": "amd64"}));
    assert_eq!(of[1], &serde_json::json!({"os": "linux", "architecture": "arm64", "variant": "v8"}));
}

#[test]
fn the_same_files_make_the_same_archive() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = ["one", "two"].map(|name| {
        let path = folder.path().join(name);
        write(&path, "localhost/nv-ipam:1", &[image(Platform::Amd64)]).unwrap();
        std::fs::read(path).unwrap()
    });
    assert!(bytes[0] == bytes[1]);
}
