//! The settings that come from more than one place: for each key the `ipam` section of standard input wins, then the
//! conf file, then the default (behaviour.md §6). Decides who wins; reads the conf file and nothing else.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipam_node_api::AgentAddress;
use ipam_node_api::v1::PoolType;
use serde_json::Value;

use crate::INPUT_MAX_BYTES;
use crate::error::{CniError, Code};
use crate::log::{Level, nonblock};
use crate::mistake::{Field, Mistakes, shown};

/// Name of the conf file in `confDir`.
pub const CONF_FILE: &str = "nv-ipam.conf";

/// Pools of one request; the agent takes no more.
const MAX_POOLS: usize = 2;

/// A day. No runtime waits longer for a plugin, and larger numbers could not be added to a clock.
const MAX_TIMEOUT_SECONDS: i64 = 86_400;

/// What holds when neither standard input nor the conf file says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `confDir`
    pub conf_dir: PathBuf,
    /// `logFile`
    pub log_file: PathBuf,
    /// `daemonSocket`
    pub daemon_socket: String,
    /// `daemonCallTimeoutSeconds`: for connecting and the call together.
    pub call_timeout: Duration,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            conf_dir: "/etc/cni/net.d/nv-ipam.d".into(),
            log_file: "/var/log/nv-ipam-cni.log".into(),
            daemon_socket: "unix:///var/lib/cni/nv-ipam/daemon.sock".to_owned(),
            call_timeout: Duration::from_secs(5),
        }
    }
}

/// The places a setting can stand in, strongest first.
#[derive(Debug, Clone)]
pub(crate) struct Layers<'a> {
    ipam: Field<'a>,
    file: Option<Field<'a>>,
}

impl<'a> Layers<'a> {
    /// `ipam` is that section of standard input, `file` the content of the conf file with its path.
    pub(crate) fn new(ipam: Field<'a>, file: Option<&'a (PathBuf, Value)>) -> Self {
        let file = file.map(|(path, value)| Field::document(&format!("{}: ", path.display()), value));
        Self { ipam, file }
    }

    /// The winning value of `key`. Every layer is read, so that a wrong type in a losing one is named as well.
    fn winner<T>(&self, key: &str, mut read: impl FnMut(&Field<'a>) -> Option<T>) -> Option<(Field<'a>, T)> {
        let mut winner = None;
        for layer in std::iter::once(&self.ipam).chain(&self.file) {
            let field = layer.get(key);
            if let Some(value) = read(&field)
                && winner.is_none()
            {
                winner = Some((field, value));
            }
        }
        winner
    }

    fn text(&self, key: &str, mistakes: &mut Mistakes) -> Option<(Field<'a>, &'a str)> {
        self.winner(key, |field| field.text(mistakes))
    }

    /// How long to wait for the agent. 0 counts as absent, as in Go programs. A mistake in one layer leaves it to the next.
    pub(crate) fn timeout(&self, defaults: &Defaults, mistakes: &mut Mistakes) -> Duration {
        let timeout = self.winner("daemonCallTimeoutSeconds", |field| {
            field.whole(0..=MAX_TIMEOUT_SECONDS, mistakes).filter(|seconds| *seconds > 0)
        });
        timeout.map_or(defaults.call_timeout, |(_, seconds)| Duration::from_secs(seconds.unsigned_abs()))
    }

    /// Names a `confDir` that cannot be one; [`read_conf_file`] took the default's instead.
    pub(crate) fn check_conf_dir(&self, mistakes: &mut Mistakes) {
        let _ = self.ipam.get("confDir").text(mistakes);
    }

    /// Whether `poolName` must be written down.
    pub(crate) fn forces_pool_name(&self, mistakes: &mut Mistakes) -> bool {
        self.winner("forcePoolName", |field| field.flag(mistakes)).is_some_and(|(_, force)| force)
    }

    /// Where the agent is.
    pub(crate) fn agent(&self, defaults: &Defaults, mistakes: &mut Mistakes) -> Option<AgentAddress> {
        let (field, address) = match self.text("daemonSocket", mistakes) {
            Some((field, address)) => (field.path().to_owned(), address),
            None => ("daemonSocket".to_owned(), defaults.daemon_socket.as_str()),
        };
        match address.parse() {
            Ok(address) => Some(address),
            Err(error) => {
                mistakes.add(field, error);
                None
            }
        }
    }

    /// The pools by `args.cni.poolNames`, else `poolName`, else the network's name unless `force` forbids that.
    pub(crate) fn pool_names(
        &self,
        args: &Field<'a>,
        network: &str,
        force: bool,
        mistakes: &mut Mistakes,
    ) -> Vec<String> {
        let list = args.get("poolNames");
        let by_args = list.texts(mistakes).into_iter().map(|(_, name)| name.trim().to_owned()).collect::<Vec<_>>();
        let by_name = self.text("poolName", mistakes);
        let (field, names) = if list.is_present() && !by_args.is_empty() {
            (list, by_args)
        } else if let Some((field, text)) = by_name {
            (field, text.split(',').map(|name| name.trim().to_owned()).collect())
        } else if force {
            mistakes.add("ipam.poolName", "missing, and forcePoolName forbids to take the network's name instead");
            return Vec::new();
        } else {
            return vec![network.to_owned()];
        };
        check_names(&field, &names, mistakes);
        names
    }

    /// The kind of the pools by `args.cni.poolType`, else `poolType`, else IPPool.
    pub(crate) fn pool_type(&self, args: &Field<'a>, mistakes: &mut Mistakes) -> PoolType {
        let by_layers = self.text("poolType", mistakes);
        let by_args = args.get("poolType");
        let Some((field, text)) = by_args.text(mistakes).map(|text| (by_args.clone(), text)).or(by_layers) else {
            return PoolType::Ippool;
        };
        match text.to_ascii_lowercase().as_str() {
            "ippool" => PoolType::Ippool,
            "cidrpool" => PoolType::Cidrpool,
            _ => {
                mistakes.add(field.path(), format_args!("{text:?} is no kind of pool, want ippool or cidrpool"));
                PoolType::Unspecified
            }
        }
    }

    /// The log file and what goes into it. An unknown level is no reason to refuse a call.
    pub(crate) fn log(
        &self,
        defaults: &Defaults,
        mistakes: &mut Mistakes,
        overlooked: &mut Mistakes,
    ) -> (PathBuf, Level) {
        let file = self.text("logFile", mistakes).map_or_else(|| defaults.log_file.clone(), |(_, path)| path.into());
        let level = self.text("logLevel", mistakes).map_or(Level::Info, |(field, text)| {
            Level::parse(text).unwrap_or_else(|| {
                overlooked.add(field.path(), format_args!("{text:?} is no level, want {}", Level::NAMES.join(", ")));
                Level::Info
            })
        });
        (file, level)
    }
}

fn check_names(field: &Field<'_>, names: &[String], mistakes: &mut Mistakes) {
    if names.len() > MAX_POOLS {
        mistakes
            .add(field.path(), format_args!("{} pools ({}), want at most {MAX_POOLS}", names.len(), names.join(",")));
    }
    if names.iter().any(String::is_empty) {
        mistakes.add(field.path(), format_args!("{:?} has an empty pool name", names.join(",")));
    } else if names.iter().enumerate().any(|(at, name)| names[..at].contains(name)) {
        mistakes.add(
            field.path(),
            format_args!("{:?} names a pool twice, an interface gets one address per pool", names.join(",")),
        );
    }
}

/// The conf file of the directory that `ipam` names, with its path. `None` when there is none.
pub(crate) fn read_conf_file(ipam: &Field<'_>, defaults: &Defaults) -> Result<Option<(PathBuf, Value)>, CniError> {
    // A wrong type is named later, with the other mistakes; until then the default directory stands in.
    let dir = ipam.get("confDir").text(&mut Mistakes::default()).map_or(defaults.conf_dir.as_path(), Path::new);
    let path = dir.join(CONF_FILE);
    let bytes = match read_regular(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CniError::new(Code::Io, format!("cannot read {}: {error}", path.display()))),
    };
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(value) if value.is_object() => Ok(Some((path, value))),
        Ok(value) => Err(CniError::new(
            Code::Decoding,
            format!("{}: want a JSON object, found {}", path.display(), shown(&value)),
        )),
        Err(error) => Err(CniError::new(Code::Decoding, format!("{}: not JSON: {error}", path.display()))),
    }
}

/// The whole of a file. What is no file, such as a pipe that nobody writes to, and what is larger than a network configuration
/// may be, is an error: the runtime must not wait.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(nonblock()).open(path)?;
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !file.metadata()?.is_file() {
        return refuse("it is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(INPUT_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > INPUT_MAX_BYTES {
        return refuse(format!("it has more than {INPUT_MAX_BYTES} bytes"));
    }
    Ok(bytes)
}
