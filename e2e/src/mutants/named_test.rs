//! The test that must fail on a mutant, and how it is built and run in a tree.

use std::fmt;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::scratch::Scratch;

/// A test takes no longer than this, or it counts as one that hangs.
const LIMIT: Duration = Duration::from_mins(2);

/// A test as a patch's second line names it: `Test: PACKAGE TARGET NAME`, as in
/// `Test: ipam-core --test rules plan::nodes_are_served_in_name_order`. A target is `--lib` or `--test FILE`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NamedTest {
    /// The cargo package.
    pub package: String,
    /// The integration test's target; `None` for the unit tests of the library.
    pub target: Option<String>,
    /// The name that libtest prints.
    pub name: String,
}

impl fmt::Display for NamedTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { package, target, name } = self;
        match target {
            Some(target) => write!(f, "{package} --test {target} {name}"),
            None => write!(f, "{package} --lib {name}"),
        }
    }
}

/// What became of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Passed,
    Failed,
}

impl NamedTest {
    /// Reads what follows `Test: `.
    ///
    /// # Errors
    /// The text has another form.
    pub(super) fn read(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (package, target, name) = match words[..] {
            [package, "--lib", name] => (package, None, name),
            [package, "--test", target, name] => (package, Some(target.to_owned()), name),
            _ => bail!("must be \"Test: PACKAGE --lib NAME\" or \"Test: PACKAGE --test FILE NAME\""),
        };
        Ok(Self { package: package.to_owned(), target, name: name.to_owned() })
    }

    /// Whether both are in one executable.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        (&self.package, &self.target) == (&other.package, &other.target)
    }

    /// The function's name, without the modules that libtest adds.
    pub fn function(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or_default()
    }

    /// Whether a source of the target has a function of this name.
    ///
    /// # Errors
    /// The package's folder cannot be found or read.
    pub fn exists(&self, tree: &Path) -> Result<bool> {
        let package = folder_of(&self.package, tree)?;
        let sources = match &self.target {
            None => package.join("src"),
            Some(target) => Some(package.join("tests").join(target))
                .filter(|folder| folder.is_dir())
                .unwrap_or_else(|| package.join(format!("tests/{target}.rs"))),
        };
        has_function(&sources, &format!("fn {}(", self.function()))
    }

    /// Builds the test's executable in the scratch tree.
    pub(super) fn build(&self, scratch: &Scratch) -> Result<PathBuf> {
        let mut arguments = vec!["test", "--quiet", "--no-run", "--message-format=json-render-diagnostics"];
        let settings = not_optimized(&fs::read_to_string(scratch.tree().join("Cargo.toml"))?);
        arguments.extend(settings.iter().map(String::as_str));
        arguments.extend(["--package", &self.package]);
        match &self.target {
            Some(target) => arguments.extend(["--test", target]),
            None => arguments.push("--lib"),
        }
        let messages = scratch.cargo(&arguments)?;
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let tests = messages.filter(|message| message["profile"]["test"] == true);
        let executable = tests.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
        executable.with_context(|| format!("cargo built no executable for {self}"))
    }

    /// Runs the test alone, all cases of it. Neither a crash nor a hang counts as a failure: such a mutant proves nothing.
    pub(super) fn run(&self, executable: &Path, tree: &Path) -> Result<Outcome> {
        let folder = folder_of(&self.package, tree)?;
        let listed = started(Command::new(executable).arg("--list"), &folder)?;
        let cases = cases(&listed.said, &self.name);
        ensure!(!cases.is_empty(), "there is no test {self}");
        let mut command = Command::new(executable);
        command.args(["--exact", "--test-threads=1", "--color=never"]).args(cases);
        let Ended { code, said } = started(&mut command, &folder).with_context(|| self.to_string())?;
        outcome(code, &said).with_context(|| format!("{self} ended with {code:?}: {said}"))
    }
}

/// How a process ended; no code if a signal ended it.
struct Ended {
    code: Option<i32>,
    said: String,
}

/// Runs a test's executable as cargo does.
fn started(command: &mut Command, folder: &Path) -> Result<Ended> {
    let output = tempfile::NamedTempFile::new()?;
    let mut child = command
        .env("CARGO_MANIFEST_DIR", folder)
        .current_dir(folder)
        // A test that hangs ends with what it has started.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.reopen()?)
        .stderr(output.reopen()?)
        .spawn()
        .context("cannot start the test")?;
    let end = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL)?;
            child.wait()?;
            bail!("it has not ended after {} s", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&fs::read(output.path())?).into_owned();
    Ok(Ended { code: status.code(), said })
}

/// The tests of libtest's list that are this function: itself, or the cases that rstest makes of it.
fn cases<'a>(listed: &'a str, name: &str) -> Vec<&'a str> {
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    tests
        .filter(|test| *test == name || test.strip_prefix(name).is_some_and(|end| end.starts_with("::case_")))
        .collect()
}

/// What libtest says of the cases of one test.
fn outcome(code: Option<i32>, said: &str) -> Option<Outcome> {
    let result = said.lines().find_map(|line| line.strip_prefix("test result: "))?;
    let count = |what: &str| {
        let counts = result.split([';', '.']).map(str::trim);
        counts.filter_map(|count| count.strip_suffix(what)).find_map(|count| count.trim().parse::<usize>().ok())
    };
    match (code, count("passed")?, count("failed")?, count("ignored")?) {
        (Some(0), 1.., 0, 0) => Some(Outcome::Passed),
        (Some(101), _, 1.., 0) => Some(Outcome::Failed),
        _ => None,
    }
}

/// Settings by which cargo optimizes none of our packages: one test is built sooner than they are. The simulator needs them fast.
fn not_optimized(manifest: &str) -> Vec<String> {
    let tables = manifest.lines().filter_map(|line| line.strip_prefix("[profile.dev.package.ipam-")?.strip_suffix(']'));
    tables.map(|package| format!("--config=profile.dev.package.ipam-{package}.opt-level=0")).collect()
}

/// Where a package of the workspace lies.
fn folder_of(package: &str, tree: &Path) -> Result<PathBuf> {
    let manifest = fs::read_to_string(tree.join("Cargo.toml"))?;
    let mut paths = manifest.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" = { path = \"")?;
        (name == package).then_some(rest.split('"').next()?)
    });
    let path = paths.next_back().with_context(|| format!("{package} is no package of the workspace"))?;
    Ok(tree.join(path))
}

fn has_function(place: &Path, head: &str) -> Result<bool> {
    if place.is_file() {
        let text = fs::read_to_string(place)?;
        return Ok(text.lines().any(|line| line.trim_start().trim_start_matches("async ").starts_with(head)));
    }
    for entry in fs::read_dir(place).with_context(|| format!("{} cannot be read", place.display()))? {
        if has_function(&entry?.path(), head)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_by_package_target_and_name() {
        for text in ["ipam-core --test rules plan::a", "ipam-operator --lib decide::tests::b::case_2"] {
            assert_eq!(NamedTest::read(text).unwrap().to_string(), text);
        }
        for wrong in ["", "ipam-core plan::a", "ipam-core --test plan::a", "ipam-core --bin x a"] {
            assert!(NamedTest::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_test_exists_only_in_its_own_target() {
        let tree = crate::binaries::workspace();
        let exists = |text: &str| NamedTest::read(text).unwrap().exists(&tree);
        assert!(exists("ipam-e2e --lib mutants::named_test::tests::a_test_exists_only_in_its_own_target").unwrap());
        assert!(exists("ipam-e2e --test contract a_row_that_names_tests_is_right").unwrap());
        assert!(!exists("ipam-e2e --lib a_row_that_names_tests_is_right").unwrap());
        assert!(exists("ipam-none --lib x").is_err());
    }

    #[test]
    fn each_optimized_package_of_ours_is_built_plainly() {
        let manifest =
            "[profile.dev.package.\"*\"]\n[profile.dev.package.ipam-core]\nopt-level = 2\n[profile.dev.package.jiff]\n";
        assert_eq!(not_optimized(manifest), ["--config=profile.dev.package.ipam-core.opt-level=0"]);
    }

    #[test]
    fn cases_belong_to_their_test() {
        let listed =
            "a::b: test\na::b::case_1: test\na::b::case_2_x: test\na::bc: test\nb: benchmark\n\n3 tests, 1 benchmark\n";
        assert_eq!(cases(listed, "a::b"), ["a::b", "a::b::case_1", "a::b::case_2_x"]);
        assert_eq!(cases(listed, "a"), [""; 0]);
    }

    #[test]
    fn only_tests_that_ran_have_an_outcome() {
        let result = |text: &str| {
            format!("\nrunning 1 test\ntest a ... ok\n\ntest result: {text}; 0 measured; 9 filtered out\n")
        };
        let passed = result("ok. 3 passed; 0 failed; 0 ignored");
        let failed = result("FAILED. 2 passed; 1 failed; 0 ignored");
        let none = result("ok. 0 passed; 0 failed; 0 ignored");
        let ignored = result("ok. 1 passed; 0 failed; 1 ignored");
        assert_eq!(outcome(Some(0), &passed), Some(Outcome::Passed));
        assert_eq!(outcome(Some(101), &failed), Some(Outcome::Failed));
        let odd = [(0, &none), (0, &ignored), (101, &passed), (0, &failed), (1, &failed)];
        assert!(odd.iter().all(|(code, said)| outcome(Some(*code), said).is_none()));
        assert!(outcome(None, &failed).is_none() && outcome(Some(101), "thread panicked").is_none());
    }
}
