//! Images for the nodes: a busybox, which is also the sandbox of each pod.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ipam_images::archive::{self, File, Image};
use ipam_images::image::{Contents, IMAGES, Release, make};
use ipam_images::platform::Platform;

/// What keeps the namespaces of a pod.
pub(super) const PAUSE: &str = "localhost/pause:1";
/// An image with the one program `/busybox`.
pub const BUSYBOX: &str = "localhost/busybox:1";
/// What the chart names as its image.
pub const REPOSITORY: &str = "localhost/nv-ipam";

/// Writes the archives of the images that each cluster has.
pub(super) fn write(busybox: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let program = fs::read(busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
    let forever = ["/busybox", "sleep", "2147483647"].map(str::to_owned).to_vec();
    let mut archives = Vec::new();
    for (name, file, entrypoint) in [(PAUSE, "pause.tar", forever), (BUSYBOX, "busybox.tar", Vec::new())] {
        let image = Image {
            platform: Platform::of_this_machine()?,
            layers: vec![vec![File { path: "busybox".to_owned(), content: program.clone(), is_program: true }]],
            entrypoint,
            user: None,
            created: "1970-01-01T00:00:00Z".to_owned(),
            labels: BTreeMap::new(),
        };
        let path = folder.join(file);
        archive::write(&path, name, &[image])?;
        archives.push(path);
    }
    Ok(archives)
}

/// Builds our own image as it is shipped, with all programs. Answers the archive.
///
/// # Errors
/// If a build fails.
pub fn own(folder: &Path) -> Result<PathBuf> {
    let release = Release::of_the_workspace("localhost", None)?;
    let contents = Contents::build(Platform::of_this_machine()?)?;
    Ok(make(&IMAGES[0], &[contents], &release, folder)?.path)
}
