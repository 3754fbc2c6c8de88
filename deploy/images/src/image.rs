//! The images: their programs, their settings, and how large each may be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::archive::{self, File};
use crate::packages::{self, Package};
use crate::platform::Platform;
use crate::programs::Program;
use crate::{cargo, text_of, workspace};

/// One megabyte, as registries count it.
pub const MEGABYTE: u64 = 1_000_000;
/// The licence of musl, which is in each program.
const MUSL: &str = include_str!("../MUSL-LICENSE");
/// The user that the operator's image names. The chart and OpenShift name their own.
const USER: &str = "65532:65532";

/// An image that is made.
pub struct Definition {
    /// Its name in a registry.
    pub name: &'static str,
    programs: &'static [Program],
    /// The program that runs if the pod names none. NVIDIA's manifests and the chart name one.
    entrypoint: Option<Program>,
    description: &'static str,
    /// The most bytes that its files may have, on each platform.
    most: u64,
}

/// One image with all programs, as NVIDIA's manifests and the chart expect, and one for each daemon.
pub const IMAGES: [Definition; 3] = [
    Definition {
        name: "nv-ipam",
        programs: &Program::ALL,
        entrypoint: None,
        description: "Operator, node agent and CNI plugin of nv-ipam",
        most: 35 * MEGABYTE,
    },
    Definition {
        name: "nv-ipam-operator",
        programs: &[Program::Operator],
        entrypoint: Some(Program::Operator),
        description: "Operator of nv-ipam",
        most: 20 * MEGABYTE,
    },
    Definition {
        name: "nv-ipam-agent",
        programs: &[Program::Agent, Program::Plugin],
        entrypoint: Some(Program::Agent),
        description: "Node agent and CNI plugin of nv-ipam",
        most: 15 * MEGABYTE,
    },
];

/// What the images of one run have in common.
pub struct Release {
    /// The tag, and the version in the labels.
    pub version: String,
    /// Before the names of the images, without a slash at its end.
    pub registry: String,
    /// The commit; empty without a repository.
    pub revision: String,
    /// The time of the commit.
    pub created: String,
}

impl Release {
    /// The release of the sources as they are. A commit with changes has `-dirty` at its end.
    ///
    /// # Errors
    /// If git is there and fails at a repository.
    pub fn of_the_workspace(registry: &str, tag: Option<&str>) -> Result<Self> {
        let git = |arguments: &[&str]| {
            text_of(cargo::rustc_side("git").args(arguments).env("TZ", "UTC")).map(|said| said.trim().to_owned())
        };
        let mut revision = String::new();
        let mut created = "1970-01-01T00:00:00Z".to_owned();
        if workspace().join(".git").exists() {
            revision = git(&["rev-parse", "HEAD"])?;
            if !git(&["status", "--porcelain"])?.is_empty() {
                revision.push_str("-dirty");
            }
            created = git(&["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"])?;
        }
        let version = tag.unwrap_or(env!("CARGO_PKG_VERSION")).to_owned();
        Ok(Self { version, registry: registry.trim_end_matches('/').to_owned(), revision, created })
    }

    fn labels(&self, image: &Definition) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            ("title", image.name),
            ("description", image.description),
            ("version", &self.version),
            ("created", &self.created),
            ("licenses", env!("CARGO_PKG_LICENSE")),
            ("vendor", "nv-ipam in Rust"),
        ]);
        if !self.revision.is_empty() {
            labels.insert("revision", &self.revision);
        }
        labels.into_iter().map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned())).collect()
    }
}

/// What is in the images for one platform.
pub struct Contents {
    platform: Platform,
    programs: Vec<(Program, Vec<u8>)>,
    /// The packages of each program.
    packages: Vec<(Program, Vec<Package>)>,
    /// The licences of the standard library.
    of_rust: Vec<u8>,
    rust: String,
}

impl Contents {
    /// Builds the programs and lists what they are made of.
    ///
    /// # Errors
    /// If a tool is missing or the build fails.
    pub fn build(platform: Platform) -> Result<Self> {
        let (mut programs, mut packages) = (Vec::new(), Vec::new());
        for program in Program::ALL {
            let path = program.build(platform)?;
            programs.push((program, fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?));
            packages.push((program, packages::of(program, platform)?));
        }
        let root = text_of(cargo::rustc_side("rustc").args(["--print", "sysroot"]))?;
        let place = Path::new(root.trim()).join("share/doc/rust/COPYRIGHT-library.html");
        let of_rust = fs::read(&place)
            .with_context(|| format!("the toolchain has no licences of its library ({})", place.display()))?;
        Ok(Self { platform, programs, packages, of_rust, rust: packages::rust_version()? })
    }

    fn packages(&self, image: &Definition) -> Vec<Package> {
        let of_image = self.packages.iter().filter(|(program, _)| image.programs.contains(program));
        let mut all: Vec<Package> = of_image.flat_map(|(_, packages)| packages.clone()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The bill of materials of an image.
    fn bill(&self, image: &Definition, release: &Release) -> Result<Vec<u8>> {
        let bill = packages::bill(image.name, &release.version, &release.created, &self.rust, &self.packages(image));
        Ok(serde_json::to_vec_pretty(&bill)?)
    }

    /// The image for this platform: a layer for each program, so that images share them, and one for the texts.
    fn image(&self, image: &Definition, release: &Release) -> Result<archive::Image> {
        let programs = self.programs.iter().filter(|(program, _)| image.programs.contains(program));
        let file = |path: &str, content: Vec<u8>, is_program| File { path: path.to_owned(), content, is_program };
        let mut layers: Vec<Vec<File>> =
            programs.map(|(program, content)| vec![file(program.name(), content.clone(), true)]).collect();
        let own = fs::read(workspace().join("LICENSE")).context("cannot read LICENSE")?;
        let others = packages::licenses(&self.packages(image))?.into_bytes();
        let mut texts = vec![file("licenses/LICENSE", own, false), file("licenses/THIRD-PARTY", others, false)];
        texts.push(file("licenses/RUST-STANDARD-LIBRARY.html", self.of_rust.clone(), false));
        texts.push(file("licenses/MUSL", MUSL.into(), false));
        texts.push(file(&format!("sbom/{}.cdx.json", image.name), self.bill(image, release)?, false));
        layers.push(texts);
        Ok(archive::Image {
            platform: self.platform,
            layers,
            entrypoint: image.entrypoint.map(|program| format!("/{}", program.name())).into_iter().collect(),
            user: (image.entrypoint == Some(Program::Operator)).then(|| USER.to_owned()),
            created: release.created.clone(),
            labels: release.labels(image),
        })
    }
}

/// An image that was made.
pub struct Made {
    /// As `REGISTRY/NAME:TAG`.
    pub name: String,
    /// The archive.
    pub path: PathBuf,
    /// What a registry knows it by.
    pub digest: String,
    /// For each platform: the bytes to pull, and those of the files.
    pub sizes: Vec<(Platform, u64, u64)>,
}

/// Writes the archive of an image, and its bills of materials, to a folder.
///
/// # Errors
/// If the files of the image are larger than they may be, or the folder cannot be written.
pub fn make(image: &Definition, contents: &[Contents], release: &Release, folder: &Path) -> Result<Made> {
    let mut images = Vec::new();
    for of_platform in contents {
        images.push(of_platform.image(image, release)?);
        let name = format!("{}.{}.cdx.json", image.name, of_platform.platform.architecture());
        archive::replace(&folder.join(name), &of_platform.bill(image, release)?)?;
    }
    let mut sizes = Vec::new();
    for one in &images {
        let bytes = one.layers.iter().flatten().map(|file| file.content.len()).sum::<usize>();
        let bytes = u64::try_from(bytes)?;
        let (has, most) = (megabytes(bytes), image.most / MEGABYTE);
        ensure!(
            bytes <= image.most,
            "{} for {}: its files have {has} MB, at most {most} MB are allowed",
            image.name,
            one.platform
        );
        sizes.push((one.platform, bytes));
    }
    let name = format!("{}/{}:{}", release.registry, image.name, release.version);
    let path = folder.join(format!("{}.tar", image.name));
    let written = archive::write(&path, &name, &images)?;
    let sizes = sizes.into_iter().zip(written.pulled).map(|((platform, files), pulled)| (platform, pulled, files));
    Ok(Made { name, path, digest: written.digest, sizes: sizes.collect() })
}

/// Bytes in megabytes, with one digit behind the point.
pub fn megabytes(bytes: u64) -> String {
    let tenths = bytes.div_ceil(MEGABYTE / 10);
    format!("{}.{}", tenths / 10, tenths % 10)
}
