//! The manifests on the pages are valid, as `ipam-controller validate --strict` says.

use std::collections::BTreeSet;

use ipam_validate::{Options, Report, validate};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use crate::pages::{Page, markdown, read};

const RECIPES: &str = "docs/operations/recipes.md";

/// The content of all YAML blocks of a page.
fn blocks(page: &Page) -> Vec<String> {
    let (mut blocks, mut in_yaml) = (Vec::new(), false);
    for event in Parser::new(&page.text) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) if &*language == "yaml" => {
                in_yaml = true;
                blocks.push(String::new());
            }
            Event::End(TagEnd::CodeBlock) => in_yaml = false,
            Event::Text(text) if in_yaml => blocks.last_mut().unwrap().push_str(&text),
            _ => {}
        }
    }
    blocks
}

/// The verdict on all YAML blocks of a page together.
fn report(page: &Page, options: &Options) -> Report {
    let blocks = blocks(page);
    validate(blocks.iter().map(|block| (page.place.as_str(), block.as_bytes())), options)
}

fn findings(report: &Report) -> Vec<String> {
    report.findings().iter().map(|finding| format!("{}: {}", finding.origin.file, finding.text())).collect()
}

/// Some blocks are parts of an object; they are skipped.
#[test]
fn manifests_on_all_pages_are_valid() {
    let options = Options { strict: true, only_pools: true, ..Options::default() };
    let (mut invalid, mut pools) = (Vec::new(), 0);
    for page in markdown() {
        let report = report(&page, &options);
        pools += report.pools.len();
        if !report.is_valid() {
            invalid.extend(findings(&report));
        }
    }
    assert!(invalid.is_empty(), "{}", invalid.join("\n"));
    assert!(pools > 10, "only {pools} pools were found");
}

#[test]
fn recipes_are_valid_together_without_warnings() {
    // The recipe for static addresses reserves whole blocks.
    let ignored = BTreeSet::from(["ExcludedBlocks".to_owned()]);
    let options = Options { strict: true, warnings_are_errors: true, ignored, ..Options::default() };
    let report = report(&read(RECIPES), &options);
    assert!(report.is_valid(), "{}", findings(&report).join("\n"));
    assert!(report.pools.len() > 8 && report.networks.len() > 6, "{report:?}");
}

#[test]
fn invalid_manifest_of_a_page_is_found() {
    let pool =
        "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: a}\nspec: {subnet: 10.0.0.0/33}\n";
    let page = Page { place: "page".to_owned(), text: format!("# A\n\n```yaml\n{pool}```\n\n```json\n{{\n```\n") };
    assert_eq!(blocks(&page), [pool]);
    let report = report(&page, &Options::default());
    assert!(!report.is_valid() && findings(&report)[0].starts_with("page: IPPool kube-system/a: spec."), "{report:?}");
}
