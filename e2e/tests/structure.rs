//! The structure of the crates: within a crate the modules of one folder use each other in one direction, and no shipped crate is too
//! large.
//!
//! A module may use what its folder's own file has, and that file may use its modules: they are one thing, told in parts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test needs and lacks is its failure")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{Visit, visit_macro, visit_path};
use syn::{Attribute, File, Item, Macro, UseTree};

/// The crates that are shipped, and what they are made of.
const CRATES: [&str; 12] = [
    "ipam-core",
    "crds",
    "daemon",
    "operator",
    "operator/reconciler",
    "operator/validate",
    "operator/webhook",
    "webhook-certs",
    "node-agent",
    "node-agent/api",
    "node-agent/store",
    "cni",
];
/// The crates that test the shipped ones. Their size has no bound.
const TEST_CRATES: [&str; 3] = ["e2e", "e2e/benchmarks", "e2e/simulator"];
/// The crates that make what is shipped of the programs.
const TOOL_CRATES: [&str; 1] = ["deploy/images"];
/// Most lines of a shipped crate without its tests.
const MOST_LINES: usize = 8040;

/// The path of a module in its crate; empty for the crate itself.
type Module = Vec<String>;
/// A module, and what it names.
type Uses = BTreeMap<Module, Names>;

/// What a module names.
#[derive(Default)]
struct Names {
    /// Paths that begin with `crate`, `self`, `super` or one of its modules.
    paths: BTreeSet<Vec<String>>,
    /// Names that it imports, and what they stand for. Its children can use them, and others those that are public.
    imported: BTreeMap<String, Vec<String>>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The modules in the files of `src`, without tests.
fn modules(src: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(src).unwrap().with_extension("");
                let mut module: Module = name.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                let is_own_file = |last: &String| ["mod", "lib"].contains(&last.as_str());
                module.pop_if(|last| is_own_file(last));
                if !module.iter().any(|part| part == "tests") && module != ["main"] {
                    found.insert(module, fs::read_to_string(&path).unwrap());
                }
            }
        }
    }
    found
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// The paths that a tree of `use` names. The name under which each is known comes first.
fn leaves(tree: &UseTree, mut before: Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, found);
        }
        UseTree::Group(group) => group.items.iter().for_each(|item| leaves(item, before.clone(), found)),
        UseTree::Glob(_) => found.push(("*".to_owned(), before)),
        UseTree::Name(name) => {
            before.push(name.ident.to_string());
            found.push((name.ident.to_string(), before));
        }
        UseTree::Rename(name) => {
            before.push(name.ident.to_string());
            found.push((name.rename.to_string(), before));
        }
    }
}

/// The paths among the tokens of a macro call: names with two colons between them.
fn paths_of_tokens(mut at: Cursor<'_>, found: &mut Vec<Vec<String>>) {
    let (mut path, mut colons) = (Vec::new(), 0);
    while let Some((_, next)) = at.token_tree() {
        if let Some((name, _)) = at.ident() {
            if colons != 2 {
                found.push(std::mem::take(&mut path));
            }
            path.push(name.to_string());
        }
        let is_colon = at.punct().is_some_and(|(mark, _)| mark.as_char() == ':');
        colons = if is_colon { colons + 1 } else { 0 };
        if let Some((inside, ..)) = at.any_group() {
            paths_of_tokens(inside, found);
        }
        at = next;
    }
    found.push(path);
}

/// Collects the paths in the code of a module.
struct Paths<'a> {
    children: &'a BTreeSet<String>,
    names: Names,
}

impl Paths<'_> {
    fn note(&mut self, path: Vec<String>) {
        let first = path.first().map(String::as_str).unwrap_or_default();
        if ["crate", "self", "super"].contains(&first) {
            self.names.paths.insert(path);
        } else if self.children.contains(first) {
            self.names.paths.insert(std::iter::once("self".to_owned()).chain(path).collect());
        }
    }
}

impl Visit<'_> for Paths<'_> {
    fn visit_item(&mut self, item: &Item) {
        match item {
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Use(line) if is_test(&line.attrs) => {}
            Item::Use(line) => {
                let mut found = Vec::new();
                leaves(&line.tree, Vec::new(), &mut found);
                for (name, path) in found {
                    self.names.imported.insert(name, path.clone());
                    self.note(path);
                }
            }
            other => syn::visit::visit_item(self, other),
        }
    }

    fn visit_macro(&mut self, call: &Macro) {
        let (tokens, mut found) = (TokenBuffer::new2(call.tokens.clone()), Vec::new());
        paths_of_tokens(tokens.begin(), &mut found);
        found.into_iter().filter(|path| path.len() > 1).for_each(|path| self.note(path));
        visit_macro(self, call);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.segments.len() > 1 {
            self.note(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit_path(self, path);
    }
}

fn uses(sources: &BTreeMap<Module, String>) -> Uses {
    let of_module = |(module, text): (&Module, &String)| {
        let file: File = syn::parse_file(text).unwrap_or_else(|error| panic!("{module:?}: {error}"));
        let child =
            |other: &Module| other.split_last().filter(|(_, parent)| *parent == module).map(|(name, _)| name.clone());
        let children = sources.keys().filter_map(child).collect();
        let mut paths = Paths { children: &children, names: Names::default() };
        paths.visit_file(&file);
        (module.clone(), paths.names)
    };
    sources.iter().map(of_module).collect()
}

/// The module in which the path that `from` names ends, behind what other modules pass on.
fn target(from: &Module, path: &[String], all: &Uses) -> Module {
    let (mut at, mut rest) = (from.clone(), path);
    while let Some((first, later)) = rest.split_first() {
        let child: Module = at.iter().chain([first]).cloned().collect();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ if all.contains_key(&child) => at = child,
            _ => match all[&at].imported.get(first) {
                // What another crate has under this name.
                Some(stands_for) if stands_for[0] != *first => {
                    let path: Vec<String> = stands_for.iter().chain(later).cloned().collect();
                    return target(&at, &path, all);
                }
                _ => break,
            },
        }
        rest = later;
    }
    at
}

/// Who uses whom among the modules of each folder, with one line of code as the reason.
fn siblings(all: &Uses) -> BTreeMap<Module, BTreeMap<(String, String), String>> {
    let mut folders: BTreeMap<Module, BTreeMap<(String, String), String>> = BTreeMap::new();
    for (from, names) in all {
        for path in &names.paths {
            let to = target(from, path, all);
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                let reason = format!("{} uses {}", from.join("::"), path.join("::"));
                let folder = folders.entry(from[..shared].to_vec()).or_default();
                folder.entry((user.clone(), used.clone())).or_insert(reason);
            }
        }
    }
    folders
}

/// The uses that are part of a circle.
fn circles(uses: &BTreeMap<(String, String), String>) -> Vec<&String> {
    let reaches = |from: &String, to: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            for (_, used) in uses.keys().filter(|(user, _)| user == at) {
                if used == to {
                    return true;
                }
                if seen.insert(used) {
                    next.push(used);
                }
            }
        }
        false
    };
    uses.iter().filter(|((user, used), _)| reaches(used, user)).map(|(_, reason)| reason).collect()
}

#[test]
fn modules_of_a_folder_use_each_other_in_one_direction() {
    let mut found = Vec::new();
    for name in CRATES.into_iter().chain(TOOL_CRATES).chain(TEST_CRATES) {
        let all = uses(&modules(&root().join(name).join("src")));
        assert!(!all.is_empty(), "{name}");
        for folder in siblings(&all).values() {
            found.extend(circles(folder).into_iter().map(|reason| format!("{name}: {reason}")));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The number of uses in circles of a crate of these modules.
fn uses_in_circles(sources: &[(&str, &str)]) -> usize {
    let name = |module: &str| module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let all = uses(&sources.iter().map(|(module, text)| (name(module), (*text).to_owned())).collect());
    siblings(&all).values().map(|folder| circles(folder).len()).sum()
}

#[test]
fn a_circle_behind_a_name_that_is_passed_on_is_found() {
    let mut sources = [
        ("", "mod a; mod b; mod c; pub use a::One;"),
        ("a", "use crate::b::Two; pub struct One;"),
        ("b", "pub struct Two; #[cfg(test)] mod tests { use crate::c::Three; }"),
        ("c", "fn three() -> crate::One { super::b::two() }"),
    ];
    assert_eq!(uses_in_circles(&sources), 0);
    sources[2].1 = "pub fn two() -> crate::One { crate::One }";
    assert_eq!(uses_in_circles(&sources), 2, "a uses b, and b uses a by the name that the crate passes on");
}

#[test]
fn a_circle_by_a_path_within_a_macro_call_is_found() {
    let mut sources =
        [("", "mod a; mod b;"), ("a", "use crate::b::Two;"), ("b", "fn two() { json!({\"one\": [one()]}) }")];
    assert_eq!(uses_in_circles(&sources), 0);
    sources[2].1 = "fn two() { json!({\"one\": [first: super::a::one()]}) }";
    assert_eq!(uses_in_circles(&sources), 2, "a uses b, and a macro call in b uses a");
}

#[test]
fn every_crate_of_the_workspace_is_looked_at() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find(|line| line.starts_with("members = ")).unwrap();
    let members: BTreeSet<&str> = members.split('"').skip(1).step_by(2).collect();
    assert_eq!(members, CRATES.into_iter().chain(TOOL_CRATES).chain(TEST_CRATES).collect());
}

/// The module of a shipped crate that only tests use. Its feature is off in what is shipped.
const TEST_SUPPORT: [&str; 2] = ["reconcile", "model"];

/// The lines before the tests at the end of a file.
fn without_tests(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().count()
}

#[test]
fn no_shipped_crate_is_too_large() {
    for name in CRATES {
        let shipped = modules(&root().join(name).join("src")).into_iter().filter(|(module, _)| module != &TEST_SUPPORT);
        let lines: usize = shipped.map(|(_, text)| without_tests(&text)).sum();
        assert!(lines <= MOST_LINES, "{name} has {lines} lines");
    }
}
