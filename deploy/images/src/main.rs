//! `cargo images`: container images without Docker.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ipam_images::image::{Contents, IMAGES, Release, make, megabytes};
use ipam_images::platform::Platform;
use ipam_images::workspace;

/// Builds the programs, and writes OCI archives of the images and their bills of materials.
#[derive(Parser)]
#[command(name = "cargo images")]
struct Options {
    /// Platforms of the images. The default is the one of this machine.
    #[arg(long, value_delimiter = ',', value_name = "PLATFORM")]
    platform: Vec<Platform>,
    /// What the names of the images begin with.
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
    let is_name =
        |text: &str| !text.is_empty() && text.chars().all(|it| it.is_ascii_alphanumeric() || "._-/:".contains(it));
    ensure!(
        is_name(&options.registry),
        "--registry: {:?} is not the name of a registry, as registry.example:5000/team",
        options.registry
    );
    let release = Release::of_the_workspace(&options.registry, options.tag.as_deref())?;
    ensure!(
        is_name(&release.version) && !release.version.contains(['/', ':']) && release.version.len() <= 128,
        "--tag: {:?} is not a tag: use letters, digits, '.', '_' and '-'",
        release.version
    );
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), |folder| workspace().join(folder));
    let folder = options.output.unwrap_or_else(|| target.join("images"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let platforms = if options.platform.is_empty() { vec![Platform::of_this_machine()?] } else { options.platform };
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
