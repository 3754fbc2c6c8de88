//! The CNI protocol from the runtime's side: environment and configuration in, result or error out.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::child;

/// What a plugin answered instead of a result.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// An error as the CNI specification has it.
    #[error("{plugin} {command}: code {code}: {message}")]
    Refused {
        /// The plugin that was called.
        plugin: String,
        /// ADD, DEL, CHECK, STATUS, GC or VERSION.
        command: String,
        /// The specification's or the plugin's error code.
        code: i64,
        /// `msg` and, if there, `details`.
        message: String,
    },
    /// An answer that is not CNI.
    #[error("{plugin} {command}: {status}, not a CNI answer: stdout {stdout:?}, stderr {stderr:?}")]
    Gibberish {
        /// The plugin that was called.
        plugin: String,
        /// The verb.
        command: String,
        /// How the plugin ended.
        status: std::process::ExitStatus,
        /// All of stdout.
        stdout: String,
        /// All of stderr.
        stderr: String,
    },
    /// The plugin could not be run.
    #[error("{0}")]
    NotRun(String),
}

/// Runs a prepared plugin command with `config` on stdin. `Ok(Null)` stands for the empty answer of DEL, CHECK, STATUS and GC.
pub(super) fn exchange(plugin: &str, verb: &str, mut command: Command, config: &Value) -> Result<Value, CniError> {
    let not_run = |error: std::io::Error| CniError::NotRun(format!("{plugin} {verb}: {error}"));
    let mut child = command
        .env("CNI_COMMAND", verb)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin may answer without reading its configuration.
        let _ = stdin.write_all(config.to_string().as_bytes());
    }
    let output = child::finish(child, child::AMPLE).map_err(not_run)?;
    judge(plugin, verb, &output)
}

fn judge(plugin: &str, verb: &str, output: &std::process::Output) -> Result<Value, CniError> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer: Option<Value> = serde_json::from_str(&stdout).ok();
    match (output.status.success(), answer) {
        (true, Some(answer)) => Ok(answer),
        (true, None) if stdout.trim().is_empty() => Ok(Value::Null),
        (false, Some(error)) if error["code"].is_i64() => {
            let parts = [error["msg"].as_str(), error["details"].as_str()];
            let message = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
            let code = error["code"].as_i64().unwrap_or_default();
            Err(CniError::Refused { plugin: plugin.to_owned(), command: verb.to_owned(), code, message })
        }
        _ => Err(CniError::Gibberish {
            plugin: plugin.to_owned(),
            command: verb.to_owned(),
            status: output.status,
            stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{ExitStatus, Output};

    use super::*;

    fn output(code: i32, stdout: &str) -> Output {
        Output { status: ExitStatus::from_raw(code << 8), stdout: stdout.into(), stderr: Vec::new() }
    }

    #[test]
    fn an_error_object_becomes_its_code_and_message() {
        let error = judge("bridge", "ADD", &output(1, r#"{"code":11,"msg":"later","details":"full"}"#)).unwrap_err();
        let CniError::Refused { code, message, .. } = error else { panic!("{error}") };
        assert_eq!((code, message.as_str()), (11, "later; full"));
    }

    #[test]
    fn success_without_output_is_null_and_noise_is_an_error() {
        assert_eq!(judge("bridge", "DEL", &output(0, "")).unwrap(), Value::Null);
        assert!(matches!(judge("bridge", "ADD", &output(0, "hello")), Err(CniError::Gibberish { .. })));
        assert!(matches!(judge("bridge", "ADD", &output(2, "")), Err(CniError::Gibberish { .. })));
    }
}
