//! Checks that every relative link of a Markdown file leads to a file of the repository, and every anchor to a heading.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use ipam_e2e::binaries::workspace;

use crate::pages::{Page, all};

#[test]
fn every_relative_link_and_anchor_resolves() {
    let pages = all();
    let anchors: BTreeMap<&Path, BTreeSet<String>> =
        pages.iter().map(|page| (page.path.as_path(), anchors(page))).collect();
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in &pages {
        for (line, target) in links(page) {
            seen += 1;
            if let Err(why) = resolve(&page.path, &target, &anchors) {
                broken.push(format!("{}:{line}: {target}: {why}", page.path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{} links are broken:\n{}", broken.len(), broken.join("\n"));
    assert!(seen > 20, "only {seen} links were found in {} pages", pages.len());
}

fn resolve(from: &Path, target: &str, anchors: &BTreeMap<&Path, BTreeSet<String>>) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let file = if path.is_empty() { from.to_owned() } else { joined(from, path)? };
    if !workspace().join(&file).exists() {
        return Err(format!("there is no {}", file.display()));
    }
    match (anchor, anchors.get(file.as_path())) {
        (Some(anchor), Some(known)) if !known.contains(anchor) => {
            Err(format!("{} has no heading with the anchor {anchor}", file.display()))
        }
        (Some(_), None) => Err(format!("{} is not a Markdown file, so it has no anchors", file.display())),
        _ => Ok(()),
    }
}

/// The file that a relative link of the page `from` leads to, counted from the root of the repository.
fn joined(from: &Path, link: &str) -> Result<PathBuf, String> {
    let mut file = from.parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => file.push(name),
            Component::CurDir => {}
            Component::ParentDir if file.pop() => {}
            _ => return Err("the link leads out of the repository".to_owned()),
        }
    }
    Ok(file)
}

/// The targets of all links of a page but those to other sites, each with its line.
fn links(page: &Page) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line, text) in page.prose() {
        let text: String = text.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let inline = text.match_indices("](").filter_map(|(at, _)| text[at + 2..].split_once(')'));
        let inline = inline.map(|(target, _)| target);
        let reference = text.starts_with('[').then(|| text.split_once("]: ")).flatten().map(|(_, target)| target);
        let targets = inline.chain(reference).filter_map(|target| target.split_whitespace().next());
        let is_ours = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
        links.extend(targets.filter(is_ours).map(|target| (line, target.to_owned())));
    }
    links
}

/// The anchors of a page's headings, as GitHub makes them, and those written as `<a id="…">`.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in page.prose() {
        let written = line.match_indices("<a id=\"").filter_map(|(at, mark)| line[at + mark.len()..].split_once('"'));
        anchors.extend(written.map(|(id, _)| id.to_owned()));
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        if !(1..=6).contains(&level) || !line[level..].starts_with(' ') {
            continue;
        }
        let slug = slug(line[level..].trim());
        let count = times.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

/// The anchor of a heading, by GitHub's rule: keep letters, digits, `-` and `_`, replace a space by `-`, omit the rest.
/// A link counts as its text.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn page(text: &str) -> Page {
    Page { path: "docs/README.md".into(), text: text.to_owned() }
}

#[test]
fn links_in_code_and_to_other_sites_do_not_count() {
    let text = "[a](b.md#c) `[no](no.md)` ![d](e.png \"f\") [g](https://h)\n```\n[no](no.md)\n```\n[i]: j.md\n";
    let expected = [(1, "b.md#c"), (1, "e.png"), (5, "j.md")].map(|(line, target)| (line, target.to_owned()));
    assert_eq!(links(&page(text)), expected);
}

#[test]
fn anchors_are_made_as_github_makes_them() {
    let text = "# `Ready=False/Overlap`: what?\n## … restore [etcd](x.md) from a backup?\n### A b\n### A b\n#no\n";
    let expected = ["readyfalseoverlap-what", "-restore-etcd-from-a-backup", "a-b", "a-b-1"];
    assert_eq!(anchors(&page(text)), expected.map(str::to_owned).into());
}

#[test]
fn a_broken_link_or_anchor_is_named() {
    let known = page("# Known\n");
    let anchors = BTreeMap::from([(known.path.as_path(), anchors(&known))]);
    let resolved = |target| resolve(&known.path, target, &anchors);
    for whole in ["#known", "README.md#known", "../Cargo.toml", "../crds/examples"] {
        assert_eq!(resolved(whole), Ok(()), "{whole}");
    }
    for broken in ["#unknown", "no-such-page.md", "../Cargo.toml#known", "../../outside.md"] {
        assert!(resolved(broken).is_err(), "{broken}");
    }
}
