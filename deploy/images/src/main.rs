//! `cargo images`: container images without Docker.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ipam_images::image::{Contents, IMAGES, Release, make, megabytes};
use ipam_images::platform::Platform;
use ipam_images::target_folder;

/// Builds the programs, and writes OCI archives of the images and their bills of materials.
#[derive(Parser)]
#[command(name = "cargo images")]
struct Options {
    /// Platforms of the images. The default is the one of this machine.
    #[arg(long, value_delimiter = ',', value_name = "PLATFORM")]
    platform: Vec<Platform>,
    /// Registry and path before the names of the images, as registry.example:5000/team.
    #[arg(long, default_value = "localhost")]
    registry: String,
    /// The tag of the images. The default is the version of the workspace.
    #[arg(long)]
    tag: Option<String>,
    /// The folder for the archives. The default is `images` in cargo's target folder.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let has_only = |text: &str, more: &str| {
        text.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || more.contains(it))
    };
    let registry = options.registry.trim_end_matches('/');
    ensure!(
        !registry.is_empty() && has_only(registry, "._-/:") && !registry.contains("//"),
        "--registry: {registry:?} is not a registry, as registry.example:5000/team"
    );
    let release = Release::of_the_workspace(registry, options.tag.as_deref())?;
    let tag = &release.version;
    ensure!(
        has_only(&tag.to_lowercase(), "._-") && !tag.starts_with(['.', '-']) && (1..=128).contains(&tag.len()),
        "--tag: {tag:?} is not a tag: use letters, digits, '.', '_' and '-', with a letter or digit first"
    );
    let folder = options.output.unwrap_or_else(|| target_folder().join("images"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut platforms = if options.platform.is_empty() { vec![Platform::of_this_machine()?] } else { options.platform };
    platforms.dedup();
    let contents = platforms.iter().map(|platform| Contents::build(*platform)).collect::<Result<Vec<_>>>()?;
    let mut out = std::io::stdout().lock();
    for image in &IMAGES {
        let made = make(image, &contents, &release, &folder)?;
        writeln!(out, "{}\n  {}\n  {}", made.name, made.path.display(), made.digest)?;
        for (platform, pulled, files) in made.sizes {
            writeln!(out, "  {platform}: {} MB to pull, {} MB of files", megabytes(pulled), megabytes(files))?;
        }
    }
    Ok(())
}
