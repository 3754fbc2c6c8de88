//! The platforms of the images.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

use crate::cargo::rustc_side;
use crate::text_of;

/// A platform that an image runs on, as `linux/amd64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Platform {
    /// Every platform.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];

    /// The platform of this machine.
    ///
    /// # Errors
    /// If no image is made for it.
    pub fn of_this_machine() -> Result<Self> {
        let all = Self::ALL.into_iter();
        let own = all.into_iter().find(|platform| platform.processor() == std::env::consts::ARCH);
        own.map_or_else(|| bail!("there are no images for {}: name one with --platform", std::env::consts::ARCH), Ok)
    }

    /// The architecture in the words of the OCI image specification.
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The variant of the architecture in the words of the OCI image specification.
    pub const fn variant(self) -> Option<&'static str> {
        match self {
            Self::Amd64 => None,
            Self::Arm64 => Some("v8"),
        }
    }

    /// The processor in the words of Rust and GCC.
    const fn processor(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// The target of rustc. It links statically.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.processor())
    }

    /// Installs Rust's standard library for this platform with rustup, unless it is there.
    ///
    /// # Errors
    /// If it is missing and rustup cannot install it.
    pub fn install(self) -> Result<()> {
        let target = self.target();
        if has_standard_library(&target)? {
            return Ok(());
        }
        let added = rustc_side("rustup").args(["target", "add", &target]).status();
        let is_added = added.is_ok_and(|status| status.success()) && has_standard_library(&target)?;
        ensure!(is_added, "the Rust target {target} is not installed: run `rustup target add {target}`");
        Ok(())
    }

    /// The tool of GCC that makes files for this platform: `cc` on a machine of this platform.
    ///
    /// # Errors
    /// If this needs a cross compiler that is not in PATH.
    fn tool(self, native: &str, of_gcc: &str) -> Result<String> {
        if self.processor() == std::env::consts::ARCH {
            return Ok(native.to_owned());
        }
        let name = format!("{}-linux-gnu-{of_gcc}", self.processor());
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let is_there = std::env::split_paths(&paths).any(|folder| folder.join(&name).is_file());
        let package = format!("gcc-{}-linux-gnu", self.processor().replace('_', "-"));
        ensure!(is_there, "a build for {self} needs {name}: install the package {package}");
        Ok(name)
    }

    /// Sets the C compiler, the archiver and the linker of a build. What the user has set stays.
    ///
    /// # Errors
    /// If a tool is missing.
    pub(crate) fn set_tools(self, build: &mut Command) -> Result<()> {
        let target = self.target();
        let of_cargo = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
        let of_c = target.replace('-', "_");
        let tools =
            [(format!("CC_{of_c}"), ("cc", "gcc")), (format!("AR_{of_c}"), ("ar", "ar")), (of_cargo, ("cc", "gcc"))];
        for (name, (native, of_gcc)) in tools {
            if std::env::var_os(&name).is_none() {
                build.env(name, self.tool(native, of_gcc)?);
            }
        }
        Ok(())
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "linux/{}", self.architecture())
    }
}

impl FromStr for Platform {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.map(|platform| platform.to_string());
        match Self::ALL.into_iter().find(|platform| platform.to_string() == text) {
            Some(platform) => Ok(platform),
            None => bail!("there are no images for {text:?}; there are: {}", known.join(", ")),
        }
    }
}

/// Whether Rust's standard library is installed for a target.
///
/// # Errors
/// If rustc does not start.
pub fn has_standard_library(target: &str) -> Result<bool> {
    let folder = text_of(rustc_side("rustc").args(["--print", "target-libdir", "--target", target]))?;
    let mut libraries = fs::read_dir(Path::new(folder.trim())).into_iter().flatten().flatten();
    Ok(libraries.any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_read_as_it_is_written() {
        for platform in Platform::ALL {
            assert_eq!(platform.to_string().parse::<Platform>().unwrap(), platform);
        }
        let error = "linux/s390x".parse::<Platform>().unwrap_err().to_string();
        assert_eq!(error, "there are no images for \"linux/s390x\"; there are: linux/amd64, linux/arm64");
    }
}
