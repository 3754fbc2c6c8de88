//! A report as workflow commands of GitHub Actions, which show each finding beside its line.

use std::fmt::{self, Write};

use super::human;
use super::report::Report;

/// Writes a command for each finding, and the summary.
pub(super) fn write(report: &Report, out: &mut impl Write) -> fmt::Result {
    for error in &report.errors {
        let file = error.file.as_deref().map_or_else(String::new, |file| format!(" file={}", property(file)));
        writeln!(out, "::error{file}::{}", data(&error.message))?;
    }
    for finding in report.findings() {
        let command = if finding.is_error { "error" } else { "warning" };
        let (file, place) = (property(&finding.origin.file), finding.place);
        let title = if finding.subject.is_empty() { finding.rule } else { &finding.subject };
        writeln!(
            out,
            "::{command} file={file},line={},col={},title={}::{}",
            place.line,
            place.column,
            property(title),
            data(&finding.field_and_message())
        )?;
    }
    human::line(out, &human::summary(report))
}

/// The escapes of a command's text.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// The escapes of a command's property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
