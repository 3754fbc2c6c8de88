//! The flags of both daemons and of the operator's subcommands, as their own `--help` lists them, and the pages that do.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::process::{Command, ExitCode};

use ipam_daemon::Mistakes;
use ipam_e2e::child;
use ipam_operator::flags::Config;
use ipam_operator::release_pools;
use ipam_validate as validate;

use crate::pages::read;
use crate::parts::{Parts, Row};

const PAGE: &str = "docs/reference/flags.md";

/// Set in the environment of the test binary that this test starts: the subcommand whose help it prints.
const HELP_OF: &str = "NV_IPAM_PRINT_HELP_OF";

/// Long names of flags, each with its default.
type Flags = BTreeMap<String, Option<String>>;

#[test]
fn every_flag_of_the_operator_is_documented() {
    compare("ipam-controller", &of_operator(), &["Flags of both daemons", "ipam-controller", "Webhook"]);
}

#[test]
fn every_flag_of_the_agent_is_documented() {
    compare("ipam-node", &of_agent(), &["Flags of both daemons", "ipam-node", "CNI plugin"]);
}

/// The subcommands print their help and do not return it. So this test starts its own binary and reads its output.
#[test]
fn every_flag_of_the_subcommands_is_documented() {
    if let Ok(command) = std::env::var(HELP_OF) {
        assert_eq!(print_help(&command), ExitCode::SUCCESS);
        return;
    }
    let known = of_subcommand(release_pools::NAME);
    compare("release-pools", &known, &["ipam-controller release-pools"]);
    let rows = Parts::of(&read("docs/reference/validate.md")).rows;
    compare_rows("validate", &of_subcommand(validate::command::NAME), &rows, &["Options"]);
}

#[test]
fn no_page_names_a_flag_that_is_unknown() {
    let subcommands = [release_pools::NAME, validate::command::NAME].map(of_subcommand);
    let known: BTreeSet<String> =
        [of_operator(), of_agent()].into_iter().chain(subcommands).flat_map(BTreeMap::into_keys).collect();
    let mut unknown = Vec::new();
    for path in [PAGE, "docs/reference/validate.md"] {
        let page = read(path);
        let words = page.text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let flags = words.filter_map(|word| word.strip_prefix("--")).filter(|name| is_name(name));
        unknown.extend(flags.filter(|name| !known.contains(*name)).map(|name| format!("{path}: --{name}")));
    }
    assert_eq!(unknown, Vec::<String>::new());
}

/// Flags that clap adds, and those of kubectl.
const OTHERS: &[&str] = &["help", "version", "show-labels"];

/// Whether the text behind two dashes is the name of a flag of ours, and not a rule of a table.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase()) && !OTHERS.contains(&text)
}

/// The tables below `headings` list exactly the known flags, with their defaults.
fn compare(program: &str, known: &Flags, headings: &[&str]) {
    compare_rows(program, known, &Parts::of(&read(PAGE)).rows, headings);
}

fn compare_rows(program: &str, known: &Flags, rows: &[Row], headings: &[&str]) {
    assert!(!known.is_empty(), "{program} has no flags");
    let mut documented = Flags::new();
    for row in rows.iter().filter(|row| headings.contains(&row.heading.as_str())) {
        let [names, default, ..] = &row.cells[..] else { panic!("a row below {} has one cell", row.heading) };
        for name in names.spans.iter().filter_map(|span| span.strip_prefix("--")) {
            documented.insert(name.to_owned(), default.spans.first().cloned());
        }
    }
    assert_eq!(documented, *known, "{program}: flags and defaults documented (left) and known (right)");
}

fn of_operator() -> Flags {
    let help = Config::parse(["ipam-controller", "--help"].map(OsString::from)).unwrap_err();
    flags(&help.to_string())
}

fn of_agent() -> Flags {
    let args = ["ipam-node", "--help"].map(OsString::from);
    let help = ipam_daemon::flags::parse_known::<ipam_node_agent::flags::Flags>(args, &mut Mistakes::default());
    flags(&help.unwrap_err().to_string())
}

fn of_subcommand(name: &str) -> Flags {
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "flags::every_flag_of_the_subcommands_is_documented", "--nocapture"]);
    let output = child::output(own.env(HELP_OF, name)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    flags(&String::from_utf8(output.stdout).unwrap())
}

fn print_help(command: &str) -> ExitCode {
    let help = [OsString::from("--help")];
    if command == release_pools::NAME { release_pools::main(help) } else { validate::command::main(help) }
}

/// The flags of a help text, without `--help` and `--version`, which clap adds. An empty default counts as none.
fn flags(help: &str) -> Flags {
    let mut flags = Flags::new();
    let mut last = String::new();
    for line in help.lines().map(str::trim) {
        if line.starts_with('-') {
            let mut words = line.split([' ', ',', '=', '[', '<']);
            let Some(name) = words.find_map(|word| word.strip_prefix("--")) else { continue };
            name.clone_into(&mut last);
            if !["help", "version"].contains(&name) {
                flags.insert(name.to_owned(), None);
            }
        }
        if let (Some((_, rest)), Some(default)) = (line.split_once("[default: "), flags.get_mut(&last)) {
            let value = rest.trim_end_matches(']');
            *default = (value != "\"\"").then(|| value.to_owned());
        }
    }
    flags
}

#[test]
fn a_help_text_is_read() {
    let help = "  -v, --v <LEVEL>  Level [default: 0]\n --leader-elect[=<BOOL>]\n   Let it [default: false]\n -h, --help\n\
                --path <P>  See --other [default: \"\"]\n - text: a line\n";
    let flag = |name: &str, default: Option<&str>| (name.to_owned(), default.map(str::to_owned));
    assert_eq!(flags(help), [flag("v", Some("0")), flag("leader-elect", Some("false")), flag("path", None)].into());
}
