//! The table of one run in Markdown.

use super::finding::{COLUMNS, Finding};

/// The head, an empty line, and the rows.
pub(super) fn render(head: &[String], findings: &[Finding]) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let mut lines = head.to_vec();
    lines.push(String::new());
    lines.push(line(&COLUMNS.map(str::to_owned)));
    lines.push(line(&COLUMNS.map(|_| "---".to_owned())));
    lines.extend(findings.iter().map(|finding| line(&finding.cells())));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::Samples;

    #[test]
    fn a_table_has_its_head_and_one_line_per_row() {
        let row = |most| Finding::new("a", Samples::times([Duration::from_millis(2)])).at_most(most);
        let text = render(&["* Commit: x.".to_owned()], &[row(0.1), row(0.001)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["* Commit: x.", ""]);
        assert_eq!(lines[2], "| what | nv-ipam | aim | n | median | p90 | also | verdict |");
        assert_eq!(lines[4], "| a | – | ≤ 100 ms | 1 | 2 ms | 2 ms |  | met |");
        assert!(lines[5].ends_with("| **missed** |") && lines.len() == 6, "{text}");
    }
}
