//! The command line of `validate`, the files that it names, and the exit status: 0 if every pool is valid, 1 if something is
//! rejected, 2 if the command line is invalid, a file cannot be read, or an argument has no documents.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use super::{Judge, MAX_BYTES, Nodes, Options, human};

/// Name of the subcommand.
pub const NAME: &str = "validate";

/// Most manifests that are collected from folders. A folder with more is likely named by mistake.
const MAX_FILES: usize = 100_000;

/// Check manifests of IPPools and CIDRPools as the API server, the webhook and the operator would, without a cluster
#[derive(Parser, Debug)]
#[command(name = "ipam-controller validate", bin_name = "ipam-controller validate")]
#[command(
    after_help = "Exit status: 0 all pools are valid, 1 something is refused, 2 invalid flags, or a FILE that cannot be read or has \
                  no document. A FILE with other kinds alone, or with an empty list, is valid."
)]
struct Flags {
    /// Manifests: files, folders (their .yaml, .yml and .json files), or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Read subfolders, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Refuse unknown fields, instead of warning
    #[arg(long)]
    strict: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Namespace in which the operator serves pools; the default of manifests without a namespace
    #[arg(long, value_name = "NAMESPACE")]
    ippools_namespace: Option<String>,
    /// Print how many of N nodes would get a block
    #[arg(long, value_name = "N", conflicts_with = "node_list")]
    nodes: Option<usize>,
    /// Print which of these nodes would get a block: names with commas, or a file of Node objects or of lines as
    /// "kubectl get nodes --show-labels" prints them. Nodes without known labels count as selected
    #[arg(long, value_name = "NAMES|FILE")]
    node_list: Option<String>,
    /// Print which node would get which block
    #[arg(long)]
    explain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Output {
    /// A line for each error
    Text,
    /// One JSON object
    Json,
}

/// Runs the subcommand; `args` are those after its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = std::iter::once(OsString::from(NAME)).chain(args);
    let flags = match Flags::try_parse_from(args) {
        Ok(flags) => flags,
        Err(usage) => return ipam_daemon::print_usage(&usage),
    };
    match run(&flags, &mut io::stdout().lock()) {
        Ok(Verdict { readable: false, .. }) => ExitCode::from(2),
        Ok(Verdict { fine, .. }) => ExitCode::from(u8::from(!fine)),
        Err(mistakes) => {
            complain(&mistakes);
            ExitCode::from(2)
        }
    }
}

fn complain(what: &str) {
    drop(writeln!(io::stderr(), "ipam-controller validate: {what}"));
}

struct Verdict {
    fine: bool,
    readable: bool,
}

fn run(flags: &Flags, out: &mut impl Write) -> Result<Verdict, String> {
    let options = options(flags)?;
    let mut judge = Judge::new(&options);
    let readable = judge_all(flags, &mut judge);
    let report = judge.finish();
    let text = match flags.output {
        Output::Json => serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n",
        Output::Text => {
            let mut text = String::new();
            human::write(&report, &mut text).map_err(|error| error.to_string())?;
            text
        }
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| format!("cannot write: {error}"))?;
    Ok(Verdict { fine: report.is_fine(), readable })
}

/// Passes all files to `judge`. Returns whether everything that the command line names could be read and has a document.
fn judge_all(flags: &Flags, judge: &mut Judge<'_>) -> bool {
    let mut readable = true;
    let mut unreadable = |path: &Path, error: &io::Error| {
        readable = false;
        complain(&format!("cannot read {}: {error}", path.display()));
    };
    // Documents read for each argument. Some files of a folder may be empty.
    let mut documents: BTreeMap<usize, usize> = BTreeMap::new();
    for (named, path) in files(flags, &mut unreadable) {
        match read(&path) {
            Ok(bytes) => *documents.entry(named).or_default() += judge.add(&path.to_string_lossy(), &bytes),
            Err(error) => unreadable(&path, &error),
        }
    }
    for (named, path) in flags.files.iter().enumerate() {
        if documents.get(&named) == Some(&0) {
            readable = false;
            complain(&format!("no IPPool or CIDRPool in {}", path.display()));
        }
    }
    readable
}

/// Parses the flags, or returns all errors in them.
fn options(flags: &Flags) -> Result<Options, String> {
    let mut wrong = Vec::new();
    let mut nodes = None;
    if let Some(count) = flags.nodes {
        nodes = Nodes::numbered(count).map_err(|why| wrong.push(format!("--nodes {count} {why}"))).ok();
    }
    if let Some(list) = &flags.node_list {
        nodes = node_list(list).map_err(|why| wrong.push(format!("--node-list {list:?}: {why}"))).ok();
    }
    if flags.explain && flags.nodes.is_none() && flags.node_list.is_none() {
        wrong.push("--explain needs --nodes or --node-list: a plan is made for nodes".to_owned());
    }
    if let Some(namespace) = &flags.ippools_namespace
        && let Err(why) = ipam_daemon::flags::namespace(namespace)
    {
        wrong.push(format!("--ippools-namespace {namespace:?} {why}"));
    }
    let lists = flags.node_list.iter().filter(|list| *list == "-").count();
    if flags.files.iter().filter(|file| is_stdin(file)).count() + lists > 1 {
        wrong.push("- stands twice, but standard input can be read once".to_owned());
    }
    let namespace = flags.ippools_namespace.clone();
    if wrong.is_empty() {
        Ok(Options { strict: flags.strict, namespace, nodes, explain: flags.explain })
    } else {
        Err(wrong.join("; "))
    }
}

/// Reads the file if one of that name exists, else parses a list of names.
fn node_list(list: &str) -> Result<Nodes, String> {
    match read(Path::new(list)) {
        // It may be a pipe, which can be opened only once.
        Ok(bytes) => Nodes::from_file(list, &bytes),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
        Err(_) if list.contains('/') => Err("there is no file of this name".to_owned()),
        Err(_) => Nodes::named(list),
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The content of a file, or one byte more than `MAX_BYTES`, which shows that it is too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    if is_stdin(path) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// All files of the command line and its folders, ordered by argument and then by name. Each has the index of its argument.
fn files(flags: &Flags, complain: &mut impl FnMut(&Path, &io::Error)) -> Vec<(usize, PathBuf)> {
    let mut found = Vec::new();
    let mut named = Vec::new();
    for (place, path) in flags.files.iter().enumerate() {
        if !is_stdin(path) && path.is_dir() {
            let before = found.len();
            folder(path, flags.recursive, &mut found, complain);
            if found.len() == before {
                complain(path, &io::Error::new(io::ErrorKind::NotFound, "there is no .yaml, .yml or .json file in it"));
            }
        } else {
            found.push(path.clone());
        }
        named.resize(found.len(), place);
    }
    named.into_iter().zip(found).collect()
}

fn folder(path: &Path, recursive: bool, found: &mut Vec<PathBuf>, complain: &mut impl FnMut(&Path, &io::Error)) {
    let entries = match fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) => return complain(path, &error),
    };
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if found.len() >= MAX_FILES {
            return complain(&path, &io::Error::other("there are too many files"));
        }
        // Symbolic links to folders are not followed, because they may form a loop.
        let is_folder = path.is_dir();
        if is_folder && recursive && !path.is_symlink() {
            folder(&path, recursive, found, complain);
        } else if !is_folder && is_manifest(&path) {
            found.push(path);
        }
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|extension| matches!(extension, "yaml" | "yml" | "json"))
}
