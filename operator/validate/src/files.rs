//! The files that the command line names: themselves, and those in folders.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::tree::Limits;

/// Most manifests that are collected from folders. A folder with more is likely named by mistake.
const MAX_FILES: usize = 100_000;

/// How patterns match: `*` stays within a name, as in `.gitignore`.
const MATCH: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// A file to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The index of the argument that names it or its folder.
    pub(super) argument: usize,
    pub(super) path: PathBuf,
}

/// Which files are read.
pub(super) struct Selection<'a> {
    pub(super) recursive: bool,
    pub(super) excluded: &'a [Pattern],
}

impl Selection<'_> {
    /// All files of the arguments and their folders, ordered by argument and then by name. `complain` gets what cannot be read.
    pub(super) fn files(&self, arguments: &[PathBuf], complain: &mut impl FnMut(&Path, &io::Error)) -> Vec<Named> {
        let mut found = Vec::new();
        for (argument, path) in arguments.iter().enumerate() {
            if !is_stdin(path) && self.excludes(path, path) {
                continue;
            }
            if is_stdin(path) || !path.is_dir() {
                found.push(Named { argument, path: path.clone() });
                continue;
            }
            let mut files = Vec::new();
            if !self.folder(path, path, &mut files, complain) {
                complain(path, &io::Error::new(io::ErrorKind::NotFound, "it has no .yaml, .yml or .json file"));
            }
            found.extend(files.into_iter().map(|path| Named { argument, path }));
        }
        found
    }

    /// Collects the manifests of a folder below `root`. Returns whether it has any, excluded ones included.
    fn folder(
        &self,
        root: &Path,
        path: &Path,
        found: &mut Vec<PathBuf>,
        complain: &mut impl FnMut(&Path, &io::Error),
    ) -> bool {
        let entries = match fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => {
                complain(path, &error);
                return true;
            }
        };
        let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        let mut has_any = false;
        for path in paths {
            if found.len() >= MAX_FILES {
                complain(&path, &io::Error::other(format!("there are more than {MAX_FILES} files")));
                return true;
            }
            // Symbolic links to folders are not followed, because they may form a loop.
            let is_folder = path.is_dir();
            let is_wanted = if is_folder { self.recursive && !path.is_symlink() } else { is_manifest(&path) };
            if !is_wanted {
                continue;
            }
            if self.excludes(root, &path) {
                has_any = true;
            } else if is_folder {
                has_any |= self.folder(root, &path, found, complain);
            } else {
                has_any = true;
                found.push(path);
            }
        }
        has_any
    }

    /// Whether a pattern excludes the path: by its name if the pattern has no slash, else by the path as given or below the argument `root`.
    fn excludes(&self, root: &Path, path: &Path) -> bool {
        let below = path.strip_prefix(root).unwrap_or(path);
        let given = path.strip_prefix(".").unwrap_or(path);
        self.excluded.iter().any(|pattern| {
            if pattern.as_str().contains('/') {
                return [path, given, below].iter().any(|path| pattern.matches_path_with(path, MATCH));
            }
            path.file_name().is_some_and(|name| pattern.matches_path_with(Path::new(name), MATCH))
        })
    }
}

/// Whether the argument stands for standard input.
pub(super) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The content of a file, or one byte more than the limit, which shows that it is larger.
pub(super) fn read(path: &Path, limits: Limits) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(limits.bytes).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    if is_stdin(path) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|extension| matches!(extension, "yaml" | "yml" | "json"))
}
