//! The command line of `validate`, and the exit status: 0 if everything is valid, 1 if something is invalid, 2 if the command
//! line is invalid, a file cannot be read, or pools are required and there are none.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use glob::Pattern;
use ipam_core::AdviceCode;
use ipam_core::hint::nearest;

use super::files::{Selection, is_stdin, read};
use super::tree::Limits;
use super::{Judge, Live, Nodes, Options, Report, WARNING_CODES, github, human, sarif};

/// Name of the subcommand.
pub const NAME: &str = "validate";

/// Check manifests of IPPools and CIDRPools as the API server, the webhook and the operator would, without a cluster
#[derive(Parser, Debug)]
#[command(name = "ipam-controller validate", bin_name = "ipam-controller validate")]
#[command(
    after_help = "Exit status: 0 everything is valid, 1 something is invalid, 2 invalid flags, a FILE that cannot be read or has no \
                  document, or no pool with --require-pools. A FILE with other kinds alone, or with an empty list, is valid."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Flags {
    /// Manifests: files, folders (their .yaml, .yml and .json files), or - for standard input
    #[arg(required_unless_present = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The same as FILE, as kubectl has it; can be repeated
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Read subfolders, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Leave out files and folders, as in .gitignore: by name, or by path if PATTERN has a slash; can be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Skip documents that are no Kubernetes objects, unless their file names the API group of pools
    #[arg(long)]
    only_pools: bool,
    /// Exit with status 2 if no pool is given
    #[arg(long)]
    require_pools: bool,
    /// Refuse unknown fields, instead of warning
    #[arg(long)]
    strict: bool,
    /// Exit with status 1 if there is a warning
    #[arg(long)]
    warnings_as_errors: bool,
    /// Leave out warnings with these codes; with commas, or repeated
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    ignore: Vec<String>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Namespace in which the operator serves pools; the default of manifests without a namespace
    #[arg(long, value_name = "NAMESPACE")]
    ippools_namespace: Option<String>,
    /// Compare with the pools of a cluster: the output of "kubectl get ippools,cidrpools,ipamnodes -A -o yaml", or - for standard input
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
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

impl Flags {
    /// The files of both forms.
    fn arguments(&self) -> Vec<PathBuf> {
        self.files.iter().chain(&self.filename).cloned().collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Output {
    /// A line for each error
    Text,
    /// One JSON object
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// Commands of GitHub Actions, which show each error beside its line
    Github,
}

/// Runs the subcommand; `args` are those after its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = std::iter::once(OsString::from(NAME)).chain(args);
    let flags = match Flags::try_parse_from(args) {
        Ok(flags) => flags,
        Err(usage) => return ipam_daemon::print_usage(&usage),
    };
    match run(&flags, &mut io::stdout().lock()) {
        Ok(status) => ExitCode::from(status),
        Err(errors) => {
            complain(&errors);
            ExitCode::from(2)
        }
    }
}

fn complain(what: &str) {
    drop(writeln!(io::stderr(), "ipam-controller validate: {what}"));
}

/// Validates and prints. Returns the exit status.
fn run(flags: &Flags, out: &mut impl Write) -> Result<u8, String> {
    let (options, excluded) = options(flags)?;
    let mut judge = Judge::new(&options);
    judge_all(flags, &excluded, &mut judge);
    let report = judge.finish();
    for error in &report.errors {
        complain(
            &error.file.as_ref().map_or_else(|| error.message.clone(), |file| format!("{file}: {}", error.message)),
        );
    }
    let text = printed(&report, flags.output).map_err(|error| error.to_string())?;
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| format!("cannot write: {error}"))?;
    Ok(match (report.errors.is_empty(), report.is_valid()) {
        (false, _) => 2,
        (true, false) => 1,
        (true, true) => 0,
    })
}

fn printed(report: &Report, output: Output) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    match output {
        Output::Text => human::write(report, &mut text)?,
        Output::Json => text = serde_json::to_string_pretty(report)? + "\n",
        Output::Sarif => text = serde_json::to_string_pretty(&sarif::log(report))? + "\n",
        Output::Github => github::write(report, &mut text)?,
    }
    Ok(text)
}

/// Passes all files to `judge`, and what cannot be read.
fn judge_all(flags: &Flags, excluded: &[Pattern], judge: &mut Judge<'_>) {
    let arguments = flags.arguments();
    let mut unreadable = Vec::new();
    let selection = Selection { recursive: flags.recursive, excluded };
    let files = selection.files(&arguments, &mut |path, error| {
        unreadable.push((path.to_string_lossy().into_owned(), format!("cannot be read: {error}")));
    });
    // Documents in the files of each argument that has any. Some files of a folder may be empty.
    let mut documents = vec![None; arguments.len()];
    for file in files {
        match read(&file.path, Limits::MANIFEST) {
            Ok(bytes) => {
                let count = judge.add(&file.path.to_string_lossy(), &bytes);
                if let Some(documents) = documents.get_mut(file.argument) {
                    *documents = Some(documents.unwrap_or(0) + count);
                }
            }
            Err(error) => {
                unreadable.push((file.path.to_string_lossy().into_owned(), format!("cannot be read: {error}")));
            }
        }
    }
    for (path, documents) in arguments.iter().zip(documents) {
        if documents == Some(0) && !flags.only_pools {
            unreadable.push((path.to_string_lossy().into_owned(), "has no document".to_owned()));
        }
    }
    for (file, message) in unreadable {
        judge.add_error(Some(file), message);
    }
}

/// Parses the flags, or returns all errors in them.
fn options(flags: &Flags) -> Result<(Options, Vec<Pattern>), String> {
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
    let files = flags.arguments();
    let inputs = files.iter().chain(&flags.against).filter(|file| is_stdin(file)).count() + lists;
    if inputs > 1 {
        wrong.push(format!("- is given {inputs} times, but standard input can be read once"));
    }
    let mut excluded = Vec::new();
    for text in &flags.exclude {
        let pattern = Pattern::new(text.strip_suffix('/').unwrap_or(text));
        excluded.extend(pattern.map_err(|why| wrong.push(format!("--exclude {text:?} must be a pattern: {why}"))));
    }
    wrong.extend(flags.ignore.iter().filter_map(|code| unknown_code(code)));
    let mut against = None;
    // Another wrong flag is cheaper to find than a large file is to read.
    if let Some(path) = flags.against.as_ref().filter(|_| inputs <= 1) {
        let live = read_live(path, nodes.as_ref());
        against = live.map_err(|why| wrong.push(format!("--against {}: {why}", path.display()))).ok();
    }
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    let options = Options {
        strict: flags.strict,
        namespace: flags.ippools_namespace.clone(),
        nodes,
        explain: flags.explain,
        only_pools: flags.only_pools,
        require_pools: flags.require_pools,
        warnings_are_errors: flags.warnings_as_errors,
        ignored: flags.ignore.iter().cloned().collect(),
        against: against.map(Arc::new),
    };
    Ok((options, excluded))
}

/// What is wrong with the code of a warning, if it does not exist.
fn unknown_code(code: &str) -> Option<String> {
    let codes: BTreeSet<&str> = AdviceCode::ALL.iter().map(|code| code.as_str()).chain(WARNING_CODES).collect();
    if codes.contains(code) {
        return None;
    }
    let hint = match nearest(code, codes.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("must be one of {}", codes.into_iter().collect::<Vec<_>>().join(", ")),
    };
    Some(format!("--ignore {code:?} is not the code of a warning; {hint}"))
}

fn read_live(path: &Path, nodes: Option<&Nodes>) -> Result<Live, String> {
    let bytes = read(path, Limits::CLUSTER).map_err(|error| format!("cannot be read: {error}"))?;
    Live::read(&path.to_string_lossy(), &bytes, nodes)
}

/// Reads the file if one of that name exists, else parses a list of names.
fn node_list(list: &str) -> Result<Nodes, String> {
    match read(Path::new(list), Limits::CLUSTER) {
        // It may be a pipe, which can be opened only once.
        Ok(bytes) => Nodes::from_file(list, &bytes),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
        Err(_) if list.contains('/') => Err("there is no file of this name".to_owned()),
        Err(_) => Nodes::named(list),
    }
}
