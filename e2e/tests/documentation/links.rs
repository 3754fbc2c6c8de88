//! Checks that every relative link of a Markdown file leads to a file of the repository, and every anchor to a heading.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use ipam_e2e::binaries::workspace;

use crate::pages::{Page, all};
use crate::parts::Parts;

/// Place of a page → its anchors.
type Anchors = BTreeMap<String, BTreeSet<String>>;

#[test]
fn every_relative_link_and_anchor_resolves() {
    let pages = all();
    let anchors = anchors_of(&pages);
    let (mut broken, mut seen) = (Vec::new(), 0);
    for page in &pages {
        for target in Parts::of(page).links.iter().filter(|target| is_relative(target)) {
            seen += 1;
            if let Err(why) = resolve(&page.place, target, &anchors) {
                broken.push(format!("{}: {target}: {why}", page.place));
            }
        }
    }
    assert!(broken.is_empty(), "{} links are broken:\n{}", broken.len(), broken.join("\n"));
    assert!(seen > 100, "only {seen} links were found in {} pages", pages.len());
}

fn is_relative(target: &str) -> bool {
    !target.contains("://") && !target.starts_with("mailto:")
}

fn resolve(from: &str, target: &str, anchors: &Anchors) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let place = if path.is_empty() { from.to_owned() } else { joined(from, path)? };
    if !workspace().join(&place).exists() {
        return Err(format!("there is no {place}"));
    }
    match (anchor, anchors.get(&place)) {
        (Some(anchor), Some(known)) if !known.contains(anchor) => {
            Err(format!("{place} has no heading with the anchor {anchor}"))
        }
        (Some(_), None) => Err(format!("{place} is not a Markdown file, so it has no anchors")),
        _ => Ok(()),
    }
}

/// The place that a relative link of the page `from` leads to.
fn joined(from: &str, link: &str) -> Result<String, String> {
    let mut place = Path::new(from).parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir if place.pop() => {}
            _ => return Err("the link leads out of the repository".to_owned()),
        }
    }
    Ok(place.display().to_string())
}

fn anchors_of(pages: &[Page]) -> Anchors {
    pages.iter().map(|page| (page.place.clone(), anchors(page))).collect()
}

/// The anchors of a page's headings, as GitHub makes them: a second heading of the same text gets `-1`, and so on.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for heading in Parts::of(page).headings {
        let slug = slug(&heading);
        let count = times.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

/// Letters, digits, `-` and `_` stay, a space becomes `-`, all else is omitted.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn page(text: &str) -> Page {
    Page { place: "docs/README.md".to_owned(), text: text.to_owned() }
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# `Ready=False/Overlap`: what?\n## … restore [etcd](x.md) from a backup?\n### A b\n### A b\n#no\n";
    let expected = ["readyfalseoverlap-what", "-restore-etcd-from-a-backup", "a-b", "a-b-1"];
    assert_eq!(anchors(&page(text)), expected.map(str::to_owned).into());
}

#[test]
fn broken_link_or_anchor_is_an_error() {
    let known = page("# Known\n");
    let anchors = anchors_of(std::slice::from_ref(&known));
    let resolved = |target| resolve(&known.place, target, &anchors);
    for whole in ["#known", "README.md#known", "../Cargo.toml", "../crds/examples"] {
        assert_eq!(resolved(whole), Ok(()), "{whole}");
    }
    for broken in ["#unknown", "no-such-page.md", "../Cargo.toml#known", "../../outside.md"] {
        assert!(resolved(broken).is_err(), "{broken}");
    }
}
