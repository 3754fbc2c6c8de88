//! A report as SARIF 2.1.0, the format of code scanning.

use std::collections::BTreeSet;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::report::{Finding, Report, VERSION};

/// What a path in a URI cannot have.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The report as one SARIF log.
pub(super) fn log(report: &Report) -> Value {
    let findings = report.findings();
    let rules: BTreeSet<&str> = findings.iter().map(|finding| finding.rule).collect();
    let rules: Vec<Value> = rules.into_iter().map(|id| json!({"id": id})).collect();
    let notifications: Vec<Value> = report
        .errors
        .iter()
        .map(|error| {
            let mut notification = json!({"level": "error", "message": {"text": error.message}});
            if let Some(file) = &error.file {
                notification["locations"] = json!([{"physicalLocation": {"artifactLocation": {"uri": uri(file)}}}]);
            }
            notification
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "ipam-controller validate", "version": VERSION, "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "invocations": [{
                "executionSuccessful": report.errors.is_empty(),
                "toolExecutionNotifications": notifications,
            }],
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn result(finding: &Finding<'_>) -> Value {
    json!({
        "ruleId": finding.rule,
        "level": if finding.is_error { "error" } else { "warning" },
        "message": {"text": finding.text()},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": uri(&finding.origin.file)},
                "region": {"startLine": finding.place.line, "startColumn": finding.place.column},
            },
        }],
    })
}

/// A file's name as a URI: relative, as given, or absolute.
fn uri(file: &str) -> String {
    let file = file.strip_prefix("./").unwrap_or(file);
    let scheme = if Path::new(file).is_absolute() { "file://" } else { "" };
    format!("{scheme}{}", utf8_percent_encode(file, ESCAPED))
}
