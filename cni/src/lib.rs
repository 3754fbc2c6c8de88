//! The CNI plugin (nv-ipam): answers the runtime by asking the node agent for addresses.
//!
//! `environment`, `mistake`, `settings` and `plan` turn what the runtime says into one request; `call` sends it;
//! `result` and `error` write the answer. It keeps nothing between two calls, knows nothing about pools but their names,
//! and never speaks to the Kubernetes API. Standard output is the protocol: this library returns what belongs there
//! ([`Outcome`]), and only `main` writes it.

mod call;
mod environment;
mod error;
mod log;
mod mistake;
mod plan;
mod result;
mod settings;
mod version;

use std::ffi::OsString;
use std::fmt;
use std::time::Instant;

use environment::Environment;
use log::{Level, Log};
use mistake::{Field, Mistakes, shown};
use serde_json::Value;
use settings::Layers;

pub use error::{CniError, Code};
pub use ipam_node_api::v1::PoolType;
pub use mistake::member;
pub use plan::{NamedPools, named_pools};
pub use settings::{CONF_FILE, Defaults};
pub use version::{ResultForm, SpecVersion};

/// Longest input that is read. The list of attachments of GC grows with the pods of a node, nothing else does.
pub const INPUT_MAX_BYTES: u64 = 16 << 20;

/// What the runtime wants, as in `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Get addresses for an interface.
    Add,
    /// Give the addresses of an interface back.
    Del,
    /// Are the addresses of an interface still its own?
    Check,
    /// Could ADD be served?
    Status,
    /// Give back what interfaces hold that no longer exist.
    Gc,
    /// Which versions are spoken?
    Version,
}

impl Command {
    const ALL: [Self; 6] = [Self::Add, Self::Del, Self::Check, Self::Status, Self::Gc, Self::Version];

    /// The command written as `text`; only in capitals, as the specification has it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.as_str() == text)
    }

    /// As it stands in `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One start of the plugin: the environment, and how to read standard input.
#[derive(Debug)]
pub struct Invocation<R> {
    /// All variables of the process; those of CNI are picked out.
    pub environment: Vec<(OsString, OsString)>,
    /// Standard input. Read only when a command is set, so that a bare start does not wait for a terminal.
    pub stdin: R,
}

/// What is left for `main` to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// For standard output: empty, or one JSON document with a line end.
    pub stdout: String,
    /// For standard error: notes for a person, mostly empty.
    pub stderr: String,
    /// The exit status: 0, or 1 with an error on standard output.
    pub status: u8,
}

/// Serves one call.
pub fn run(mut invocation: Invocation<impl std::io::Read>, defaults: &Defaults) -> Outcome {
    let environment = Environment(&invocation.environment);
    if environment.raw("CNI_COMMAND").is_none() {
        return Outcome { stderr: about(), ..Outcome::default() };
    }
    let mut notes = Vec::new();
    let mut mistakes = Mistakes::default();
    let command = environment.command(&mut mistakes);
    // Read for every command, one that does not exist included: a caller who cannot write its configuration to the end
    // tells of a broken pipe instead of our error, and the answer should be in its version.
    let config = read_config(&mut invocation.stdin);
    let cni_version = config.as_ref().map_or_else(|_| SpecVersion::NEWEST.to_string(), spoken);
    let result = match (command, &config) {
        (None, _) => Err(CniError::of_mistakes(Code::InvalidEnvironment, &mistakes)),
        (Some(Command::Version), _) => result::version_result(&cni_version),
        (Some(_), Err(error)) => Err(error.clone()),
        (Some(command), Ok(config)) => serve(command, environment, config, defaults, &mut notes),
    };
    let (mut stdout, status) = match result {
        Ok(text) => (text, 0),
        Err(error) => (error.to_json(&cni_version), 1),
    };
    if !stdout.is_empty() {
        stdout.push('\n');
    }
    Outcome { stdout, stderr: notes.concat(), status }
}

/// What a person sees who starts the plugin by hand.
fn about() -> String {
    format!(
        "nv-ipam {}: CNI plugin for addresses from IPPools and CIDRPools. It is started by a container runtime, with \
         CNI_COMMAND set and a network configuration on standard input.\nCNI versions: {}\n",
        env!("CARGO_PKG_VERSION"),
        SpecVersion::list()
    )
}

fn read_config(stdin: &mut impl std::io::Read) -> Result<Value, CniError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read = stdin.take(INPUT_MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| CniError::new(Code::Io, format!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 > INPUT_MAX_BYTES {
        let message = format!("standard input: more than {INPUT_MAX_BYTES} bytes");
        return Err(CniError::new(Code::Decoding, message));
    }
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(value) => {
            let message =
                format!("standard input: want a network configuration as JSON object, found {}", shown(&value));
            Err(CniError::new(Code::Decoding, message))
        }
        Err(error) => Err(CniError::new(Code::Decoding, format!("standard input: not JSON: {error}"))),
    }
}

/// The version to put into an answer: the caller's own words, which it surely understands.
fn spoken(config: &Value) -> String {
    match member(config, "cniVersion") {
        None | Some(Value::Null) => SpecVersion::V0_1_0.to_string(),
        Some(Value::String(text)) if text.is_empty() => SpecVersion::V0_1_0.to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(_) => SpecVersion::NEWEST.to_string(),
    }
}

fn serve(
    command: Command,
    environment: Environment<'_>,
    config: &Value,
    defaults: &Defaults,
    notes: &mut Vec<String>,
) -> Result<String, CniError> {
    let started = Instant::now();
    let root = Field::document("", config);
    let mut log_mistakes = Mistakes::default();
    let ipam = root.object("ipam", &mut log_mistakes);
    let file = settings::read_conf_file(&ipam, defaults);
    let layers = Layers::new(ipam, file.as_ref().ok().and_then(Option::as_ref));
    let mut log = open_log(command, environment, &layers, defaults);
    log.line(Level::Debug, "asked", &[("config", config)]);

    let result = file.as_ref().map_err(Clone::clone).and_then(|_| {
        let version = plan::version(&root, command)?;
        let input = plan::Input { environment, config: &root, layers: &layers, defaults };
        let plan = plan::plan(command, &input)?;
        if !plan.overlooked.is_empty() {
            log.line(Level::Warning, "overlooked", &[("mistakes", &plan.overlooked)]);
        }
        log.add_context("pools", &plan.action.pools().join(","));
        log.line(Level::Debug, "asking the agent", &[("plan", &format_args!("{plan:?}"))]);
        call::call(version, plan, &mut log)
    });
    let duration = format_args!("{:?}", started.elapsed()).to_string();
    match &result {
        Ok(text) => log.line(Level::Info, "done", &[("result", text), ("duration", &duration)]),
        Err(error) => log.line(Level::Error, "failed", &[("error", error), ("duration", &duration)]),
    }
    notes.extend(log.failure().map(|failure| format!("nv-ipam: {failure}\n")));
    result
}

/// Wrong log settings are named with the other mistakes, where the command does not overlook them; the call is logged by
/// the defaults.
fn open_log(command: Command, environment: Environment<'_>, layers: &Layers<'_>, defaults: &Defaults) -> Log {
    let (path, level) = layers.log(defaults, &mut Mistakes::default(), &mut Mistakes::default());
    let variable = |name| environment.raw(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
    let (container, ifname, netns) = (variable("CNI_CONTAINERID"), variable("CNI_IFNAME"), variable("CNI_NETNS"));
    let context = [("command", command.as_str()), ("container", &container), ("ifname", &ifname), ("netns", &netns)];
    Log::new(path, level, &context)
}
