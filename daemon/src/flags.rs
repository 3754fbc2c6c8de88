//! The flags of behaviour.md §9 that both daemons have: raw as typed, then one conversion into useful types.
//!
//! Decides what a command line means and reports all of its errors at once. Reads nothing but the text of the flags.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Parser};

use crate::features::FeatureGates;
use crate::gosyntax;
use crate::listen::BindAddress;
use crate::logging::{Format, LogConfig, VModule};

/// Collects the errors of a command line, so that one run reports them all.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// Returns the value read from `--flag`, or records the error and returns `fallback`.
    pub fn take<T>(&mut self, flag: &str, typed: &str, read: Result<T, String>, fallback: T) -> T {
        read.unwrap_or_else(|why| {
            self.add(flag, typed, &why);
            fallback
        })
    }

    /// Records that `--flag typed` is invalid. `why` completes the sentence.
    pub fn add(&mut self, flag: &str, typed: &str, why: &str) {
        self.0.push(format!("--{flag} {typed:?} {why}"));
    }

    /// Returns `value` if no error was recorded.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid flags: {}", self.0.join("; "))
    }
}

impl std::error::Error for Mistakes {}

/// Prints clap's help or error message. Returns its exit code.
pub fn print_usage(usage: &clap::Error) -> ExitCode {
    // If the text cannot be written, there is nothing else to do.
    drop(usage.print());
    u8::try_from(usage.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The flags of both daemons as typed. Flatten into the daemon's own `Parser`.
#[derive(Args, Clone, Debug)]
pub struct CommonFlags {
    /// Maximum time between two flushes of buffered log lines
    #[arg(long, default_value = "5s", value_name = "DURATION", help_heading = "Logging")]
    log_flush_frequency: String,
    /// Alpha feature: in JSON format with split streams, buffer info lines up to this size (512, 1K, 2Ki, …); 0 buffers none.
    /// Needs the feature gate LoggingAlphaOptions
    #[arg(long, default_value = "0", value_name = "QUANTITY", help_heading = "Logging")]
    log_json_info_buffer_size: String,
    /// Alpha feature: in JSON format, write errors to stderr and the rest to stdout; without, all goes to stdout.
    /// Needs the feature gate LoggingAlphaOptions
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL", help_heading = "Logging")]
    log_json_split_stream: String,
    /// Alpha feature: in text format with split streams, buffer info lines up to this size (512, 1K, 2Ki, …); 0 buffers none.
    /// Needs the feature gate LoggingAlphaOptions
    #[arg(long, default_value = "0", value_name = "QUANTITY", help_heading = "Logging")]
    log_text_info_buffer_size: String,
    /// Alpha feature: in text format, write errors to stderr and the rest to stdout; without, all goes to stderr.
    /// Needs the feature gate LoggingAlphaOptions
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_name = "BOOL", help_heading = "Logging")]
    log_text_split_stream: String,
    /// "text" (to stderr) or "json" (gated by LoggingBetaOptions)
    #[arg(long, default_value = "text", value_name = "FORMAT", help_heading = "Logging")]
    logging_format: String,
    /// Log verbosity: 0 info, 1 to 4 debug, 5 and more trace; libraries from 6 on
    #[arg(short = 'v', long = "v", default_value = "0", value_name = "LEVEL", help_heading = "Logging")]
    verbosity: String,
    /// Verbosity by source file or module, as in "rpc=5,store/*=4" (text format only)
    #[arg(long, default_value = "", value_name = "PATTERN=N,…", help_heading = "Logging")]
    vmodule: String,
    /// Feature gates: AllAlpha, AllBeta, ContextualLogging (alpha), LoggingAlphaOptions (alpha),
    /// LoggingBetaOptions (beta, on)
    #[arg(long, default_value = "", value_name = "GATE=BOOL,…")]
    feature_gates: String,
    /// Path of a kubeconfig. Only required outside of a cluster
    #[arg(long, default_value = "", value_name = "PATH")]
    kubeconfig: String,
    /// Namespace of the pools
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    ippools_namespace: String,
    /// Where /healthz and /readyz are served; "0" turns them off
    #[arg(long, default_value = ":8081", value_name = "ADDRESS")]
    health_probe_bind_address: String,
    /// Where /metrics is served; "0" turns it off
    #[arg(long, default_value = ":8080", value_name = "ADDRESS")]
    metrics_bind_address: String,
}

/// The parsed flags of both daemons.
#[derive(Clone, PartialEq, Debug)]
pub struct Common {
    /// How to log.
    pub log: LogConfig,
    /// `--kubeconfig`, if given.
    pub kubeconfig: Option<PathBuf>,
    /// `--ippools-namespace`.
    pub namespace: String,
    /// `--health-probe-bind-address`.
    pub probes: BindAddress,
    /// `--metrics-bind-address`.
    pub metrics: BindAddress,
}

impl CommonFlags {
    /// Parses the flags. Errors go to `mistakes`, and a default replaces an invalid value.
    pub fn read(&self, mistakes: &mut Mistakes) -> Common {
        let gates = FeatureGates::parse(&self.feature_gates);
        let gates = mistakes.take("feature-gates", &self.feature_gates, gates, FeatureGates::default());
        if let Err(why) = namespace(&self.ippools_namespace) {
            mistakes.add("ippools-namespace", &self.ippools_namespace, &why);
        }
        let probes = BindAddress::parse(&self.health_probe_bind_address);
        let metrics = BindAddress::parse(&self.metrics_bind_address);
        Common {
            log: self.log(gates, mistakes),
            kubeconfig: (!self.kubeconfig.is_empty()).then(|| PathBuf::from(&self.kubeconfig)),
            namespace: self.ippools_namespace.clone(),
            probes: mistakes.take(
                "health-probe-bind-address",
                &self.health_probe_bind_address,
                probes,
                BindAddress::Off,
            ),
            metrics: mistakes.take("metrics-bind-address", &self.metrics_bind_address, metrics, BindAddress::Off),
        }
    }

    fn log(&self, gates: FeatureGates, mistakes: &mut Mistakes) -> LogConfig {
        let flush = gosyntax::duration(&self.log_flush_frequency);
        let verbosity = gosyntax::integer(&self.verbosity, 0, i64::from(i32::MAX));
        let defaults = LogConfig::default();
        let format = Format::parse(&self.logging_format);
        let format = mistakes.take("logging-format", &self.logging_format, format, Format::Text);
        let [text, json] = [
            ("text", &self.log_text_info_buffer_size, &self.log_text_split_stream),
            ("json", &self.log_json_info_buffer_size, &self.log_json_split_stream),
        ]
        .map(|(format, buffer, split)| streams(format, buffer, split, gates, mistakes));
        let (info_buffer, split_stream) = if format == Format::Json { json } else { text };
        let log = LogConfig {
            format,
            flush_every: mistakes.take("log-flush-frequency", &self.log_flush_frequency, flush, defaults.flush_every),
            info_buffer,
            split_stream,
            verbosity: mistakes.take("v", &self.verbosity, verbosity, 0),
            vmodule: mistakes.take("vmodule", &self.vmodule, VModule::parse(&self.vmodule), VModule::default()),
            spans: gates.contextual_logging,
        };
        self.check_gates(gates, &log, mistakes);
        log
    }

    /// Rejects options of a gate that is off, as NVIDIA's nv-ipam does, so that an alpha option is never used by accident.
    fn check_gates(&self, gates: FeatureGates, log: &LogConfig, mistakes: &mut Mistakes) {
        if log.format == Format::Json && !gates.logging_beta_options {
            mistakes.add("logging-format", &self.logging_format, "needs --feature-gates LoggingBetaOptions=true");
        }
        if log.format == Format::Json && !self.vmodule.is_empty() {
            mistakes.add("vmodule", &self.vmodule, "works with --logging-format text only");
        }
    }
}

/// Reads size of the info buffer and split of the streams for one format. Both need a feature gate.
fn streams(format: &str, buffer: &str, split: &str, gates: FeatureGates, mistakes: &mut Mistakes) -> (u64, bool) {
    let names = ["info-buffer-size", "split-stream"].map(|name| format!("log-{format}-{name}"));
    let size = mistakes.take(&names[0], buffer, gosyntax::bytes(buffer), 0);
    let is_split = mistakes.take(&names[1], split, gosyntax::boolean(split), false);
    let closed = "needs the feature gate, add --feature-gates LoggingAlphaOptions=true";
    for (name, typed, _) in [(&names[1], split, is_split), (&names[0], buffer, size > 0)].iter().filter(|one| one.2) {
        if !gates.logging_alpha_options {
            mistakes.add(name, typed, closed);
        }
    }
    (size, is_split)
}

/// Checks a namespace name: a DNS label of at most 63 characters.
pub fn namespace(text: &str) -> Result<(), String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends_well = !text.starts_with('-') && !text.ends_with('-');
    if (1..=63).contains(&text.len()) && ends_well && text.bytes().all(inner) {
        return Ok(());
    }
    Err("is no namespace; it takes 1 to 63 of a-z, 0-9 and '-', with '-' neither first nor last".to_owned())
}

/// Parses a command line as Go programs do. Of a repeated flag the last value counts, and `--version` may have a value. The
/// word after a flag is its value even if it starts with a dash, so that a mistyped value is reported as a value.
///
/// `--help` and `--version` are also returned as errors. [`clap::Error::print`] and [`clap::Error::exit_code`] distinguish them.
pub fn parse<F: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<F, clap::Error> {
    let dashes = |arg: Arg| if arg.get_action().takes_values() { arg.allow_hyphen_values(true) } else { arg };
    let command = F::command().args_override_self(true).version(env!("CARGO_PKG_VERSION")).mut_args(dashes);
    let mut matches = command.try_get_matches_from(args.into_iter().filter_map(plain_version))?;
    F::from_arg_matches_mut(&mut matches)
}

/// Like [`parse`], but unknown flags and a last flag without its value go to `mistakes`, so that they do not hide other errors.
pub fn parse_known<F: Parser>(
    args: impl IntoIterator<Item = OsString>,
    mistakes: &mut Mistakes,
) -> Result<F, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    loop {
        let error = match parse(args.clone()) {
            Ok(flags) => return Ok(flags),
            Err(error) => error,
        };
        // Each round removes one word, so the loop ends.
        if let Some(flag) = valueless(&error, &args) {
            mistakes.0.push(format!("{flag} is the last word, want a value behind it"));
            args.pop();
            continue;
        }
        let Some(ContextValue::String(unknown)) =
            error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)
        else {
            return Err(error);
        };
        let Some(place) = args.iter().skip(1).position(|arg| names(arg, unknown)) else { return Err(error) };
        args.remove(place + 1);
        let tip = match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(tip)) => format!("; did you mean {tip}?"),
            _ => String::new(),
        };
        // A manifest may have an empty word among its arguments, such as `args: [""]`.
        if !unknown.is_empty() {
            mistakes.0.push(format!("{unknown} is no flag of this program{tip}"));
        }
    }
}

/// The last word, if the error is that this flag lacks its value.
fn valueless(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let last = args.last()?.to_str().filter(|last| last.starts_with('-') && !last.contains('='))?;
    (error.kind() == ErrorKind::InvalidValue && value.is_empty()).then(|| last.to_owned())
}

/// Whether the word is this flag, with or without a value.
fn names(arg: &OsString, flag: &str) -> bool {
    arg.to_str().and_then(|arg| arg.strip_prefix(flag)).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// `--version=true` is `--version`, and `--version=false` is nothing.
fn plain_version(arg: OsString) -> Option<OsString> {
    let value = arg.to_str().and_then(|arg| arg.strip_prefix("--version=")).map(gosyntax::boolean);
    match value {
        Some(Ok(true)) => Some("--version".into()),
        Some(Ok(false)) => None,
        _ => Some(arg),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Parser, Debug)]
    #[command(name = "daemon")]
    struct Flags {
        #[command(flatten)]
        common: CommonFlags,
    }

    fn read(args: &[&str]) -> Result<Common, String> {
        let args = std::iter::once("daemon").chain(args.iter().copied()).map(OsString::from);
        let flags: Flags = parse(args).map_err(|error| error.to_string())?;
        let mut mistakes = Mistakes::default();
        let common = flags.common.read(&mut mistakes);
        mistakes.into_result(common).map_err(|mistakes| mistakes.to_string())
    }

    fn refused(args: &[&str], parts: &[&str]) {
        let message = read(args).unwrap_err();
        for part in parts {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn without_flags_the_defaults_of_the_reference_hold() {
        let common = read(&[]).unwrap();
        assert_eq!(common.log, LogConfig::default());
        assert_eq!(common.log.flush_every, Duration::from_secs(5));
        assert_eq!((common.namespace.as_str(), common.kubeconfig), ("kube-system", None));
        assert_eq!(common.probes, BindAddress::parse(":8081").unwrap());
        assert_eq!(common.metrics, BindAddress::parse(":8080").unwrap());
    }

    #[test]
    fn log_flush_frequency_takes_a_go_duration() {
        assert_eq!(read(&["--log-flush-frequency=1m30s"]).unwrap().log.flush_every, Duration::from_secs(90));
        refused(&["--log-flush-frequency", "5"], &["--log-flush-frequency \"5\" is no duration"]);
    }

    #[test]
    fn log_json_info_buffer_size_takes_a_quantity_behind_its_gate() {
        let gate = "--feature-gates=LoggingAlphaOptions=true";
        assert_eq!(
            read(&[gate, "--logging-format=json", "--log-json-info-buffer-size", "2Ki"]).unwrap().log.info_buffer,
            2048
        );
        refused(&["--log-json-info-buffer-size=2Ki"], &["LoggingAlphaOptions=true"]);
        refused(&[gate, "--log-json-info-buffer-size=2X"], &["\"2X\" is no size"]);
    }

    #[test]
    fn the_flags_of_the_text_format_are_those_of_json() {
        let gate = "--feature-gates=AllAlpha=true";
        let text = ["--log-text-split-stream", "--log-text-info-buffer-size=2Ki"];
        let log = read(&[&[gate][..], &text].concat()).unwrap().log;
        assert_eq!((log.split_stream, log.info_buffer), (true, 2048));
        let json = read(&[&[gate, "--logging-format=json"][..], &text].concat()).unwrap().log;
        assert_eq!((json.split_stream, json.info_buffer), (false, 0), "of the other format");
        refused(
            &text,
            &["--log-text-split-stream \"true\"", "--log-text-info-buffer-size \"2Ki\"", "LoggingAlphaOptions=true"],
        );
    }

    #[test]
    fn an_empty_word_is_no_flag_and_no_error() {
        let args = ["daemon", "", "--v=1", "--vmodule", ""].map(OsString::from);
        let mut mistakes = Mistakes::default();
        let flags: Flags = parse_known(args, &mut mistakes).unwrap();
        let common = flags.common.read(&mut mistakes);
        assert_eq!(mistakes.into_result(common).unwrap().log.verbosity, 1);
    }

    #[test]
    fn log_json_split_stream_is_a_go_boolean_behind_its_gate() {
        let gate = "--feature-gates=AllAlpha=true";
        assert!(read(&[gate, "--logging-format=json", "--log-json-split-stream"]).unwrap().log.split_stream);
        assert!(!read(&[gate, "--log-json-split-stream=f"]).unwrap().log.split_stream);
        refused(&["--log-json-split-stream"], &["LoggingAlphaOptions=true"]);
        refused(&[gate, "--log-json-split-stream=maybe"], &["\"maybe\" is no boolean"]);
    }

    #[test]
    fn logging_format_is_text_or_json_behind_its_gate() {
        assert_eq!(read(&["--logging-format=json"]).unwrap().log.format, Format::Json);
        refused(&["--logging-format=xml"], &["\"xml\"", "text", "json"]);
        refused(&["--logging-format=json", "--feature-gates=LoggingBetaOptions=false"], &["LoggingBetaOptions=true"]);
    }

    #[test]
    fn verbosity_is_v_in_short_and_long_form() {
        for args in [&["-v", "4"][..], &["-v4"], &["-v=4"], &["--v=4"], &["--v", "4"]] {
            assert_eq!(read(args).unwrap().log.verbosity, 4, "{args:?}");
        }
        refused(&["--v=x"], &["--v \"x\" is no whole number"]);
    }

    #[test]
    fn vmodule_takes_pattern_and_level_pairs_in_text_format() {
        assert!(!read(&["--vmodule=rpc=5,store*=4"]).unwrap().log.vmodule.is_empty());
        refused(&["--vmodule=rpc"], &["--vmodule \"rpc\"", "pattern=N"]);
        refused(&["--vmodule=rpc=5", "--logging-format=json"], &["text only"]);
    }

    #[test]
    fn feature_gates_must_be_known() {
        refused(&["--feature-gates=Foo=true"], &["\"Foo\" is no known gate", "ContextualLogging"]);
        assert!(read(&["--feature-gates=ContextualLogging=true"]).unwrap().log.spans);
    }

    #[test]
    fn version_is_printed_and_is_no_failure() {
        for version in ["--version", "--version=true", "--version=1"] {
            let error = parse::<Flags>(["daemon", version].map(OsString::from)).unwrap_err();
            assert_eq!(error.exit_code(), 0);
            assert!(error.to_string().contains(env!("CARGO_PKG_VERSION")));
        }
        assert!(read(&["--version=false"]).is_ok());
        assert!(read(&["--version=maybe"]).is_err());
    }

    #[test]
    fn an_unknown_flag_hides_no_other() {
        let mut mistakes = Mistakes::default();
        let args = ["daemon", "--kubeconfg=/k", "--what", "--v=7"].map(OsString::from);
        let flags: Flags = parse_known(args, &mut mistakes).unwrap();
        assert_eq!(flags.common.read(&mut mistakes).log.verbosity, 7);
        let message = mistakes.into_result(()).unwrap_err().to_string();
        for part in ["--kubeconfg is no flag", "did you mean --kubeconfig?", "--what is no flag"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn kubeconfig_is_a_path_and_empty_is_as_absent() {
        assert_eq!(read(&["--kubeconfig=/k"]).unwrap().kubeconfig, Some(PathBuf::from("/k")));
        assert_eq!(read(&["--kubeconfig="]).unwrap().kubeconfig, None);
    }

    #[test]
    fn ippools_namespace_must_be_a_namespace() {
        assert_eq!(read(&["--ippools-namespace=pools"]).unwrap().namespace, "pools");
        for wrong in ["", "Pools", "-a", "a.b"] {
            refused(&[&format!("--ippools-namespace={wrong}")], &["is no namespace"]);
        }
    }

    #[test]
    fn bind_addresses_may_be_off_and_must_be_addresses() {
        let common = read(&["--health-probe-bind-address=0", "--metrics-bind-address", "127.0.0.1:0"]).unwrap();
        assert_eq!(common.probes, BindAddress::Off);
        assert_ne!(common.metrics, BindAddress::Off);
        refused(
            &["--health-probe-bind-address=x", "--metrics-bind-address=:99999"],
            &["--health-probe-bind-address \"x\"", "--metrics-bind-address \":99999\""],
        );
    }

    #[test]
    fn of_a_flag_given_twice_the_last_counts_and_all_mistakes_are_told_at_once() {
        assert_eq!(read(&["--v=1", "--v=3"]).unwrap().log.verbosity, 3);
        refused(&["--v=x", "--logging-format=y", "--log-flush-frequency=z"], &["\"x\"", "\"y\"", "\"z\""]);
    }
}
