//! The command line of the benchmark.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::{Context, Result, bail, ensure};

/// Most nodes of a cluster: three times as many get a block of the pool each.
const MOST_NODES: u32 = 30_000;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Options {
    Help,
    Run(Run),
}

/// What is measured, and where the table goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Size of the large clusters.
    pub(super) nodes: u32,
    /// Names of the rows.
    pub(super) names: BTreeSet<String>,
    /// Measures a tree that is not its commit.
    pub(super) allow_dirty: bool,
    /// Writes the table to the page too.
    pub(super) write: bool,
}

/// Reads the command line. `rows` are the names that there are; without any, all are measured.
///
/// # Errors
/// When an argument is unknown, or `--write` stands beside one that the page must not be made with.
pub(super) fn read(arguments: impl Iterator<Item = OsString>, rows: &[&str]) -> Result<Options> {
    let mut run = Run { nodes: super::NODES, names: BTreeSet::new(), allow_dirty: false, write: false };
    for word in arguments {
        let word = word.to_str().map(str::to_owned).with_context(|| format!("unknown argument {}", word.display()))?;
        match word.as_str() {
            "--help" | "-h" => return Ok(Options::Help),
            "--allow-dirty" => run.allow_dirty = true,
            "--write" => run.write = true,
            _ if word.starts_with("--nodes=") => run.nodes = nodes(&word)?,
            name if rows.contains(&name) => drop(run.names.insert(word)),
            _ => bail!("no row is named {word:?}\n{}", usage(rows)),
        }
    }
    if run.names.is_empty() {
        run.names = rows.iter().map(|row| (*row).to_owned()).collect();
    }
    let is_whole = run.names.len() == rows.len() && run.nodes == super::NODES && !run.allow_dirty;
    ensure!(is_whole || !run.write, "--write takes every row at full size of a clean commit");
    Ok(Options::Run(run))
}

fn nodes(word: &str) -> Result<u32> {
    let count = word.trim_start_matches("--nodes=");
    let number = count.parse().ok().filter(|count| (10..=MOST_NODES).contains(count));
    number.with_context(|| format!("--nodes={count}: must be an integer from 10 to {MOST_NODES}"))
}

/// What `--help` prints.
pub(super) fn usage(rows: &[&str]) -> String {
    format!(
        "usage: cargo benchmarks [OPTION... ROW...]\n\n  ROW            {}; all without any\n  \
         --nodes=N      size of the large clusters, {} without; the aims are for that size\n  \
         --allow-dirty  measures a tree with uncommitted changes; the table says DIRTY\n  \
         --write        writes the table to {} too\n",
        rows.join(" "),
        super::NODES,
        super::PAGE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [&str; 3] = ["plan", "join", "shim"];

    fn parse(words: &[&str]) -> Result<Run> {
        match read(words.iter().map(OsString::from), &ROWS)? {
            Options::Run(run) => Ok(run),
            Options::Help => bail!("help"),
        }
    }

    #[test]
    fn without_names_every_row_has_full_size() {
        let run = parse(&[]).unwrap();
        assert_eq!((run.nodes, run.names.len(), run.allow_dirty, run.write), (crate::NODES, 3, false, false));
    }

    #[test]
    fn rows_and_size_can_be_chosen() {
        let run = parse(&["join", "--nodes=70", "--allow-dirty"]).unwrap();
        assert_eq!((run.nodes, run.names, run.allow_dirty), (70, BTreeSet::from(["join".to_owned()]), true));
        assert_eq!(read([OsString::from("-h")].into_iter(), &ROWS).unwrap(), Options::Help);
    }

    #[test]
    fn unknown_words_are_named() {
        for wrong in ["joins", "--nodes=0", "--nodes=x", "--nods"] {
            let named = wrong.trim_start_matches("--nodes=");
            assert!(parse(&[wrong]).unwrap_err().to_string().contains(named), "{wrong}");
        }
    }

    #[test]
    fn the_page_takes_only_whole_and_clean_runs() {
        assert!(parse(&["--write"]).unwrap().write);
        for more in ["join", "--nodes=70", "--allow-dirty"] {
            assert!(parse(&["--write", more]).is_err(), "{more}");
        }
    }
}
