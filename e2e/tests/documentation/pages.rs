//! The texts that are checked.

use std::fs;
use std::path::{Path, PathBuf};

use ipam_e2e::binaries::workspace;
use serde_json::Value;

/// A text of the project and where it stands, relative to the top folder.
pub(crate) struct Page {
    /// Path of the file; for a CRD the path of the field is appended.
    pub(crate) place: String,
    /// Markdown.
    pub(crate) text: String,
}

/// Pages outside `docs` and `e2e`. ARCHITECTURE.md and the pages of the crates are not checked yet.
const SINGLE_PAGES: [&str; 6] =
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "charts/nv-ipam/README.md", "deploy/README.md"];

/// The pages whose prose is checked.
pub(crate) fn markdown() -> Vec<Page> {
    let mut files: Vec<PathBuf> = SINGLE_PAGES.iter().map(|page| workspace().join(page)).collect();
    for folder in ["docs", "e2e"] {
        collect_markdown(&workspace().join(folder), &mut files);
    }
    files.sort();
    files.into_iter().map(|file| Page { text: fs::read_to_string(&file).unwrap(), place: relative(&file) }).collect()
}

/// Every Markdown file of the repository, without hidden folders and build output.
pub(crate) fn all() -> Vec<Page> {
    let mut files = Vec::new();
    collect_markdown(&workspace(), &mut files);
    files.sort();
    files.iter().map(|file| read(&relative(file))).collect()
}

/// The page at `place`, relative to the top folder.
pub(crate) fn read(place: &str) -> Page {
    let text = fs::read_to_string(workspace().join(place)).unwrap_or_else(|error| panic!("{place}: {error}"));
    Page { place: place.to_owned(), text }
}

/// Every description in the CRDs, which `kubectl explain` prints.
pub(crate) fn crd_descriptions() -> Vec<Page> {
    let mut pages = Vec::new();
    for name in ["ippools", "cidrpools", "ipamnodes"] {
        let file = workspace().join(format!("crds/nv-ipam.nvidia.com_{name}.yaml"));
        let crd: Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        collect_descriptions(&crd["spec"]["versions"], &relative(&file), &mut pages);
    }
    pages
}

fn collect_descriptions(value: &Value, place: &str, pages: &mut Vec<Page>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::String(text) if field == "description" => {
                        pages.push(Page { place: place.to_owned(), text: text.clone() });
                    }
                    value => collect_descriptions(value, &format!("{place}.{field}"), pages),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_descriptions(item, place, pages)),
        _ => {}
    }
}

fn collect_markdown(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let is_skipped = name.to_string_lossy().starts_with('.') || name == "target";
        if entry.file_type().unwrap().is_dir() {
            if !is_skipped {
                collect_markdown(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
}

fn relative(file: &Path) -> String {
    file.strip_prefix(workspace()).unwrap_or(file).display().to_string()
}

#[test]
fn pages_of_all_folders_are_found() {
    let found: Vec<_> = all().into_iter().map(|page| page.place).collect();
    for page in ["README.md", "ARCHITECTURE.md", "charts/nv-ipam/README.md", "docs/README.md", "e2e/behaviour.md"] {
        assert!(found.iter().any(|place| place == page), "{page} is not among {found:?}");
    }
}
