//! The log file of the plugin: one line per event, appended in one write, so that the lines of plugins running at the
//! same time do not mix.
//!
//! A log must never fail a call, and never touch standard output, where the protocol stands.

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// How important a line is, most talkative first; `logLevel` names the least important that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Verbose,
    Debug,
    Info,
    Warning,
    Error,
    Panic,
}

impl Level {
    const ALL: [Self; 6] = [Self::Verbose, Self::Debug, Self::Info, Self::Warning, Self::Error, Self::Panic];

    /// As they stand in `logLevel`, in the order of [`Level`].
    pub(crate) const NAMES: [&'static str; 6] = ["verbose", "debug", "info", "warning", "error", "panic"];

    /// The level named `text`, in any case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text))
    }

    fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The log of one call. Opened at the first line that is to be written.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    level: Level,
    /// Fields of the call, which every line carries: ` key=value key=value`.
    context: String,
    file: Option<File>,
    /// Why the file could not be used, once that is known. Nothing is tried again after that.
    failure: Option<String>,
}

impl Log {
    /// A log that writes lines of at least `level` to `path`.
    pub(crate) fn new(path: PathBuf, level: Level, context: &[(&str, &str)]) -> Self {
        let mut log = Self { path, level, context: String::new(), file: None, failure: None };
        for (key, value) in context {
            log.add_context(key, value);
        }
        log
    }

    /// Every line from now on carries this field as well.
    pub(crate) fn add_context(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            push_field(&mut self.context, key, value);
        }
    }

    /// Writes one line: time, level, message, fields of this line, fields of the call.
    pub(crate) fn line(&mut self, level: Level, message: &str, fields: &[(&str, &dyn fmt::Display)]) {
        if level < self.level || self.failure.is_some() {
            return;
        }
        let mut line = format!("{} [{}] {message}", timestamp(SystemTime::now()), level.name());
        for (key, value) in fields {
            push_field(&mut line, key, &value.to_string());
        }
        line.push_str(&self.context);
        line.push('\n');
        if let Err(error) = self.append(line.as_bytes()) {
            self.failure = Some(format!("cannot write the log file {}: {error}", self.path.display()));
        }
    }

    /// Why lines are missing, if they are.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => open(&self.path)?,
        };
        self.file.insert(file).write_all(line)
    }
}

/// `O_NONBLOCK`: opening a named pipe, of which nobody has the other end, would hold the call for ever.
pub(crate) fn nonblock() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0)
}

/// A log file of this size is kept under a dated name, and another one begins.
const FULL: u64 = if cfg!(test) { 1000 } else { 100 << 20 };
/// How many such files are kept.
const KEPT: usize = 5;

/// Opens for appending. Creates a missing folder.
fn open(path: &Path) -> io::Result<File> {
    let file = match append_to(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            append_to(path)?
        }
        opened => opened?,
    };
    if is_same_file(&file, rustix::stdio::stdout()) {
        return Err(io::Error::other("it is standard output, which belongs to the protocol"));
    }
    if file.metadata()?.len() < FULL {
        return Ok(file);
    }
    // A line in a file that is too large is better than none.
    Ok(rotate(path, &file).ok().flatten().unwrap_or(file))
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(nonblock()).open(path)
}

/// Keeps the full file under a dated name, and returns a new one. `None` if another plugin is doing that.
fn rotate(path: &Path, full: &File) -> io::Result<Option<File>> {
    if full.try_lock().is_err() {
        return Ok(None);
    }
    let (ours, current) = (full.metadata()?, fs::metadata(path)?);
    if (ours.dev(), ours.ino()) == (current.dev(), current.ino()) {
        let (stem, extension) = parts(path);
        let now = timestamp(SystemTime::now()).replace(':', "-");
        fs::rename(path, path.with_file_name(format!("{stem}-{now}{extension}")))?;
        remove_oldest(path)?;
    }
    append_to(path).map(Some)
}

/// The name of the file before and from its last dot.
fn parts(path: &Path) -> (String, String) {
    let text =
        |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = text(path.extension());
    (text(path.file_stem()), if extension.is_empty() { extension } else { format!(".{extension}") })
}

/// Removes the oldest of the dated files. Their names are in the order of time.
fn remove_oldest(path: &Path) -> io::Result<()> {
    let (stem, extension) = parts(path);
    let is_dated = |name: &str| {
        let date = name.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&extension));
        date.is_some_and(|date| date.len() == "2026-01-01T00-00-00.000Z".len() && date.ends_with('Z'))
    };
    let names =
        fs::read_dir(path.parent().unwrap_or(path))?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut dated: Vec<_> = names.filter(|name| is_dated(name)).collect();
    dated.sort_unstable();
    for name in dated.iter().take(dated.len().saturating_sub(KEPT)) {
        fs::remove_file(path.with_file_name(name))?;
    }
    Ok(())
}

fn is_same_file(one: impl std::os::fd::AsFd, other: impl std::os::fd::AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// ` key=value`; a value that could be mistaken for something else is quoted and escaped, line ends above all.
fn push_field(line: &mut String, key: &str, value: &str) {
    let plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\'));
    // Writing to a String cannot fail.
    let _ = if plain { write!(line, " {key}={value}") } else { write!(line, " {key}={value:?}") };
}

/// RFC 3339 in UTC with milliseconds.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil_date(since.as_secs() / 86_400);
    let second = since.as_secs() % 86_400;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}.{:03}Z", second % 60, since.subsec_millis())
}

/// Year, month and day of the Gregorian calendar, from the number of days since 1970-01-01.
///
/// Years are counted from March, so that a leap day is the last day of its year, in eras of 400 years that all have the
/// same number of days.
fn civil_date(days_since_1970: u64) -> (u64, u64, u64) {
    const DAYS_OF_ERA: u64 = 146_097;
    const DAYS_FROM_0000_03_01_TO_1970: u64 = 719_468;
    let days = days_since_1970 + DAYS_FROM_0000_03_01_TO_1970;
    let (era, day_of_era) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc_over_leap_days_and_centuries() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_millis(1_234)), "1970-01-01T00:00:01.234Z");
    }

    #[test]
    fn lines_below_the_level_are_not_written_and_each_line_is_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::new(path.clone(), Level::Warning, &[("container", "c1"), ("netns", ""), ("args", "a\nb")]);
        log.line(Level::Info, "hidden", &[]);
        assert!(!path.exists(), "nothing to write, nothing to open");
        log.line(Level::Warning, "seen", &[("pools", &"a b"), ("code", &7)]);
        log.line(Level::Error, "seen too", &[]);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap().1).collect::<Vec<_>>();
        assert_eq!(
            lines,
            [
                r#"[warning] seen pools="a b" code=7 container=c1 args="a\nb""#,
                r#"[error] seen too container=c1 args="a\nb""#
            ]
        );
        assert_eq!(log.failure(), None);
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_remembered_as_a_failure() {
        let mut log = Log::new("/proc/nonexistent/log".into(), Level::Info, &[]);
        log.line(Level::Error, "lost", &[]);
        assert!(log.failure().unwrap().starts_with("cannot write the log file /proc/nonexistent/log: "));
    }

    #[test]
    fn a_missing_folder_is_created() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/log");
        Log::new(path.clone(), Level::Info, &[]).line(Level::Info, "seen", &[]);
        assert!(std::fs::read_to_string(path).unwrap().contains("[info] seen"));
    }

    #[test]
    fn a_full_file_is_kept_under_a_dated_name_and_the_oldest_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("cni.log"), directory.path().join("cni-notes.log"));
        std::fs::write(&other, "").unwrap();
        for year in 2001..=2006 {
            std::fs::write(directory.path().join(format!("cni-{year}-01-01T00-00-00.000Z.log")), "").unwrap();
        }
        let write = || Log::new(path.clone(), Level::Info, &[]).line(Level::Info, "seen", &[]);
        std::fs::write(&path, "x".repeat(usize::try_from(FULL).unwrap())).unwrap();
        write();
        write();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        let names =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let dated: Vec<_> = names.filter(|name| name.starts_with("cni-2")).collect();
        assert_eq!(dated.len(), KEPT, "{dated:?}");
        assert!(dated.iter().all(|name| !name.contains("2001")) && other.exists(), "{dated:?}");
    }

    #[test]
    fn a_pipe_without_a_reader_does_not_hold_the_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let mut log = Log::new(path, Level::Info, &[]);
        log.line(Level::Error, "lost", &[]);
        assert!(log.failure().is_some());
    }

    #[test]
    fn levels_are_read_in_any_case_and_stand_in_order() {
        assert_eq!(Level::parse("WARNING"), Some(Level::Warning));
        assert_eq!(Level::parse("loud"), None);
        assert!(Level::ALL.is_sorted());
        assert_eq!(Level::ALL.map(Level::name), Level::NAMES);
    }
}
