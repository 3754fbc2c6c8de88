//! The table's place on the page: what stands between two markers is written by this program, the rest by people.

use anyhow::{Context, Result};

const BEGIN: &str = "<!-- The program writes what follows: cargo benchmarks --write -->";
const END: &str = "<!-- The program writes no further. -->";

/// The page with `table` between its markers.
///
/// # Errors
/// When the page has not both markers, in this order.
pub(super) fn with_table(page: &str, table: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("the page lacks the marker {BEGIN:?}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the page lacks the marker {END:?}"))?;
    Ok(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", table.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_e2e::binaries::workspace;

    #[test]
    fn only_the_text_between_the_markers_is_replaced() {
        let page = format!("# A\n{BEGIN}\nold\n{END}\n\n## B\n");
        let new = with_table(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("# A\n{BEGIN}\n\n| new |\n\n{END}\n\n## B\n"));
        assert_eq!(with_table(&new, "| new |").unwrap(), new);
    }

    #[test]
    fn a_page_without_markers_is_refused() {
        for page in ["", BEGIN, END, &format!("{END}{BEGIN}")] {
            assert!(with_table(page, "").is_err(), "{page}");
        }
    }

    #[test]
    fn the_page_of_the_repository_has_both_markers() {
        let page = std::fs::read_to_string(workspace().join(crate::PAGE)).unwrap();
        assert!(with_table(&page, "").is_ok());
    }
}
