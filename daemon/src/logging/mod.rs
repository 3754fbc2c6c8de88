//! Log lines as klog writes them: text to stderr, or JSON to stdout (errors to stderr when the stream is split).
//!
//! Decides which line is written where and how. A log line that cannot be written is dropped: a full disk under a container's
//! log must not stop the allocation of addresses.

mod format;
mod output;
mod vmodule;

use std::time::Duration;

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use format::Lines;
pub use output::Flusher;
use output::Output;
pub use vmodule::VModule;

/// `--logging-format`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// klog's: `I1121 19:20:18.123456   12345 rpc.rs:12] "message" key="value"`.
    Text,
    /// One object per line: `ts` (Unix milliseconds), `level`, `caller`, `msg`, `v` (0 info, 1 debug, 5 trace), fields.
    Json,
}

impl Format {
    /// Reads the flag. The message completes the sentence "VALUE …".
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("is no log format; write \"text\" or \"json\"".to_owned()),
        }
    }
}

/// How to log; the default is that of the flags.
#[derive(Clone, PartialEq, Debug)]
pub struct LogConfig {
    /// `--logging-format`.
    pub format: Format,
    /// `--log-flush-frequency`: longest time that a line stays in the buffer. Without a buffer it has no effect.
    pub flush_every: Duration,
    /// `--log-text-info-buffer-size` or `--log-json-info-buffer-size` in bytes; 0 writes each line at once.
    pub info_buffer: u64,
    /// `--log-text-split-stream` or `--log-json-split-stream`.
    pub split_stream: bool,
    /// `-v`: see [`LogConfig::allows`].
    pub verbosity: i64,
    /// `--vmodule`: adds to `verbosity` where it matches, never takes away.
    pub vmodule: VModule,
    /// Feature gate ContextualLogging: lines carry the fields of the spans around them.
    pub spans: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: Format::Text,
            flush_every: Duration::from_secs(5),
            info_buffer: 0,
            split_stream: false,
            verbosity: 0,
            vmodule: VModule::default(),
            spans: false,
        }
    }
}

impl LogConfig {
    /// Whether a line of this origin is written. This project's own lines: info always, debug from 1, trace from 5. Lines of
    /// libraries are mostly of use to their authors only: warnings always, info from 6, debug from 8, trace from 10. The
    /// client's lines about failed calls, and those of the watcher about each try, need 6: their callers log a failure once.
    pub fn allows(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let verbosity = self.verbosity.max(self.vmodule.level(metadata.module_path().unwrap_or(target)));
        let ours = target.starts_with("ipam");
        if ["kube_client::client::builder", "kube_runtime::watcher"].contains(&target) && verbosity < 6 {
            // The client logs each failed call without its name, and the watcher each try of a watch. Their callers log both, once.
            return false;
        }
        let most = match (ours, verbosity) {
            (true, ..=0) | (false, 6..=7) => Level::INFO,
            (true, 1..=4) | (false, 8..=9) => Level::DEBUG,
            (true, _) | (false, 10..) => Level::TRACE,
            (false, _) => Level::WARN,
        };
        *metadata.level() <= most
    }

    /// The most verbose level that any origin may reach.
    fn ceiling(&self) -> LevelFilter {
        match self.verbosity.max(self.vmodule.highest()) {
            ..=0 => LevelFilter::INFO,
            1..=4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }

    fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self, output: Output) -> impl Layer<S> + use<S> {
        let (config, ceiling) = (self.clone(), self.ceiling());
        let lines = Lines::new(self.format, self.spans, output);
        lines.with_filter(filter_fn(move |metadata| config.allows(metadata)).with_max_level_hint(ceiling))
    }

    /// Makes this the process's log. Keep the flusher until the end: dropping it writes what is buffered.
    pub fn install(&self) -> Result<Flusher, TryInitError> {
        let output = Output::new(self);
        let flusher = Flusher::start(output.clone(), self);
        tracing_subscriber::registry().with(self.layer(output)).try_init()?;
        Ok(flusher)
    }
}

#[cfg(test)]
mod tests {
    use super::output::tests::captured;
    use super::*;

    fn lines(config: &LogConfig) -> (String, String) {
        captured(config, |output| {
            let subscriber = tracing_subscriber::registry().with(config.layer(output));
            tracing::subscriber::with_default(subscriber, || {
                let span = tracing::info_span!("rpc", container = "c1");
                let _entered = span.enter();
                tracing::info!(pool = "blue", used = 3, "address given");
                tracing::error!(error = "disk \"full\"\n", "cannot write");
                tracing::debug!("detail");
                tracing::trace!("minutiae");
                tracing::info!(target: "kube_runtime::controller", "library info");
                tracing::warn!(target: "kube_runtime::controller", "library warning");
                tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403");
                tracing::error!(target: "kube_client::client::builder", "failed with error client error (Connect)");
            });
        })
    }

    #[test]
    fn text_goes_to_stderr_in_the_form_of_klog() {
        let (out, err) = lines(&LogConfig::default());
        assert_eq!(out, "");
        let first = err.lines().next().unwrap();
        assert!(first.starts_with('I') && first.contains("mod.rs:"), "{first}");
        assert!(first.ends_with("] \"address given\" pool=\"blue\" used=3"), "{first}");
        assert!(!err.contains("client error"), "{err}");
        assert!(err.contains("] \"cannot write\" error=\"disk \\\"full\\\"\\n\""), "{err}");
    }

    #[test]
    fn json_is_one_object_a_line_on_stdout() {
        let (out, err) = lines(&LogConfig { format: Format::Json, ..LogConfig::default() });
        assert_eq!(err, "");
        let line: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
        assert_eq!((line["msg"].as_str(), line["v"].as_i64()), (Some("address given"), Some(0)));
        assert_eq!((line["pool"].as_str(), line["used"].as_i64()), (Some("blue"), Some(3)));
        assert!(line["ts"].as_f64().unwrap() > 1e12 && line["caller"].as_str().unwrap().contains("mod.rs:"));
        assert!(out.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    }

    #[test]
    fn a_split_stream_has_errors_on_stderr_and_the_rest_on_stdout() {
        let (out, err) = lines(&LogConfig { format: Format::Json, split_stream: true, ..LogConfig::default() });
        assert!(err.contains("cannot write") && !out.contains("cannot write"));
        assert!(out.contains("address given") && !err.contains("address given"));
    }

    #[test]
    fn an_info_buffer_holds_lines_back_until_it_is_flushed() {
        let config =
            LogConfig { format: Format::Json, split_stream: true, info_buffer: 1 << 20, ..LogConfig::default() };
        let (out, _) = captured(&config, |output| {
            let mut held = output.clone();
            let subscriber = tracing_subscriber::registry().with(config.layer(output));
            tracing::subscriber::with_default(subscriber, || tracing::info!("held back"));
            assert!(!held.written_to_stdout().contains("held back"));
            held.flush();
            assert!(held.written_to_stdout().contains("held back"));
        });
        assert!(out.contains("held back"));
    }

    #[test]
    fn verbosity_opens_our_lines_first_and_those_of_libraries_late() {
        let at = |verbosity| lines(&LogConfig { verbosity, ..LogConfig::default() }).1;
        for (verbosity, said, unsaid) in [(0, "library warning", "detail"), (1, "detail", "minutiae")] {
            let lines = at(verbosity);
            assert!(lines.contains(said) && !lines.contains(unsaid), "{lines}");
        }
        assert!(!at(5).contains("watch list error") && at(6).contains("watch list error"));
        assert!(at(5).contains("minutiae") && !at(5).contains("library info") && at(6).contains("library info"));
    }

    #[test]
    fn vmodule_opens_one_module_only() {
        let vmodule = |text| LogConfig { vmodule: VModule::parse(text).unwrap(), ..LogConfig::default() };
        assert!(lines(&vmodule("logging*=1")).1.contains("detail") || lines(&vmodule("tests=1")).1.contains("detail"));
        assert!(!lines(&vmodule("rpc=5")).1.contains("detail"));
    }

    #[test]
    fn contextual_logging_adds_the_fields_of_the_spans() {
        let (_, err) = lines(&LogConfig { spans: true, ..LogConfig::default() });
        assert!(err.lines().next().unwrap().contains("container=\"c1\""), "{err}");
        assert!(!lines(&LogConfig::default()).1.contains("container"));
    }
}
