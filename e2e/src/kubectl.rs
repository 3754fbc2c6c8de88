//! kubectl, as a person would use it, against one control plane.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::child;

/// A kubectl bound to one kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// The same program as somebody else.
    #[must_use]
    pub fn with(&self, kubeconfig: PathBuf) -> Self {
        Self { program: self.program.clone(), kubeconfig }
    }

    /// The program, for lines that a person can paste.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs it and answers stdout.
    ///
    /// # Errors
    /// When it fails; the message is what it said on stderr.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    /// Runs it with `input` on stdin and answers stdout.
    ///
    /// # Errors
    /// When it fails; the message is what it said on stderr.
    pub fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies a manifest, refusing fields that the API does not know.
    ///
    /// # Errors
    /// When the API server refuses it; the message is kubectl's.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with(&["apply", "--validate=strict", "-f", "-"], manifest)
    }

    /// Runs it and answers everything, for callers to whom a failure is the expected answer.
    ///
    /// # Errors
    /// When it cannot be run at all.
    pub fn output(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        // A thread, so that neither a long manifest nor long output can block the other.
        let writer = child.stdin.take().map(|mut stdin| {
            let input = input.to_owned();
            std::thread::spawn(move || stdin.write_all(input.as_bytes()))
        });
        let output = child::finish(child, child::AMPLE).context("kubectl does not end")?;
        if let Some(writer) = writer {
            // A kubectl that fails early does not read its stdin; its own message tells more than a broken pipe.
            let _ = writer.join();
        }
        Ok(output)
    }
}
