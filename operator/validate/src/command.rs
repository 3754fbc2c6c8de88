//! The command line of `validate`, the files it names, and the exit status: 0 when every pool is fine, 1 when something is
//! refused, 2 when the command line is wrong, a file cannot be read, or what is named holds nothing at all.

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

/// Files and folders that are walked through at most. More is a folder that nobody meant.
const MAX_FILES: usize = 100_000;

/// Judge manifests of IPPools and CIDRPools as the API server, the webhook and the operator would, without any of them
#[derive(Parser, Debug)]
#[command(name = "ipam-controller validate", bin_name = "ipam-controller validate")]
#[command(
    after_help = "Exit status: 0 all pools are fine, 1 something is refused, 2 wrong usage, or a FILE that cannot be read or has \
                  no document in it. A FILE of other kinds alone, or of an empty list, is fine."
)]
struct Flags {
    /// Manifests: files, folders (their .yaml, .yml and .json files), or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look into folders of folders too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Refuse fields that nobody knows, instead of a warning
    #[arg(long)]
    strict: bool,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Namespace in which the operator serves pools; manifests without one are taken to be applied there
    #[arg(long, value_name = "NAMESPACE")]
    ippools_namespace: Option<String>,
    /// Say how many of so many nodes would get a block
    #[arg(long, value_name = "N", conflicts_with = "node_list")]
    nodes: Option<usize>,
    /// Say which of these nodes would get a block: names with commas, or a file of Node objects or of lines as
    /// "kubectl get nodes --show-labels" prints them. Without labels every node counts as selected
    #[arg(long, value_name = "NAMES|FILE")]
    node_list: Option<String>,
    /// Print the plan: which node would get which block
    #[arg(long)]
    explain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Output {
    /// A line for each mistake
    Text,
    /// One JSON object
    Json,
}

/// Runs the subcommand; `args` are those behind its name.
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

/// Gives `judge` all files; answers whether there was something to read in all that the command line names.
fn judge_all(flags: &Flags, judge: &mut Judge<'_>) -> bool {
    let mut readable = true;
    let mut unreadable = |path: &Path, error: &io::Error| {
        readable = false;
        complain(&format!("cannot read {}: {error}", path.display()));
    };
    // What was read of each that is named. A folder may have empty files beside others.
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

/// What the flags mean, or all that is wrong with them.
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

/// A file if there is one of that name, else names.
fn node_list(list: &str) -> Result<Nodes, String> {
    match read(Path::new(list)) {
        // It may be a pipe, which can be opened but once.
        Ok(bytes) => Nodes::from_file(list, &bytes),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
        Err(_) if list.contains('/') => Err("there is no file of this name".to_owned()),
        Err(_) => Nodes::named(list),
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The content of a file, a byte more than is allowed at most: enough to see that it is too large.
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

/// The files meant, folders opened, in the order of the command line and of names; each with the place of its name there.
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
        // A link to a folder is not followed: it may lead back to where it stands.
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
