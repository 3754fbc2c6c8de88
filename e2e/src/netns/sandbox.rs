//! The outermost namespaces, the fabric that joins the nodes, and the host's end of the relay to the API server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::entrance::{Entrance, Holder, need};
use crate::control_plane::ControlPlane;
use crate::process::Process;
use crate::warden;

/// What must be installed, each with its package.
const PROGRAMS: [(&str, &str); 3] = [("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")];
const RELAY_READY: Duration = Duration::from_secs(20);

/// Namespaces with an Ethernet segment for nodes. All nodes, pods and processes inside end when it is dropped.
pub struct Sandbox {
    holder: Holder,
    _relay: Process,
    relay_socket: PathBuf,
    api_port: u16,
    directory: PathBuf,
}

impl Sandbox {
    /// Makes the namespaces; the nodes in them will reach the API server of `plane`.
    ///
    /// # Errors
    /// In one line, when a program is missing or this machine lets us have neither root nor a user namespace.
    pub fn start(plane: &ControlPlane) -> Result<Self> {
        need(&PROGRAMS)?;
        let holder = namespaces()?;
        holder.entrance().script(
            "ip link set lo up
             ip link add fabric type bridge mcast_snooping 0
             ip link set fabric up",
        )?;
        let directory = folder(plane)?;
        let relay_socket = directory.join("api.sock");
        let words = relay_words(&relay_socket, plane.port())?;
        let mut relay =
            Process::start("relay to the API server", Path::new(&words[0]), &words[1..], &directory.join("relay.log"))?;
        await_relay(&mut relay)?;
        Ok(Self { holder, _relay: relay, relay_socket, api_port: plane.port(), directory })
    }

    /// Fails, in one line, where [`start`](Self::start) would: to be asked before anything that takes long.
    ///
    /// # Errors
    /// When a program is missing or this machine lets us have neither root nor a user namespace.
    pub fn possible() -> Result<()> {
        need(&PROGRAMS)?;
        namespaces().map(|_| ())
    }

    /// The way in.
    pub fn entrance(&self) -> &Entrance {
        self.holder.entrance()
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Arguments of `warden relay` inside a node.
    pub(super) fn node_relay(&self) -> [String; 3] {
        let socket = self.relay_socket.display();
        ["relay".to_owned(), format!("tcp:127.0.0.1:{}", self.api_port), format!("unix:{socket}")]
    }
}

/// A folder of its own below the control plane's, which several sandboxes may share.
fn folder(plane: &ControlPlane) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let folder = plane.directory().join(format!("s{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

fn relay_words(socket: &Path, port: u16) -> Result<Vec<OsString>> {
    let ends = ["relay".to_owned(), format!("unix:{}", socket.display()), format!("tcp:127.0.0.1:{port}")];
    Ok(warden::words()?.into_iter().chain(ends.map(OsString::from)).collect())
}

pub(crate) fn await_relay(relay: &mut Process) -> Result<()> {
    let log = relay.log().to_owned();
    relay.ready("it listens", RELAY_READY, || match std::fs::read_to_string(&log) {
        Ok(text) if text.contains(warden::relay::LISTENING) => Ok(()),
        _ => Err("not yet"),
    })
}

/// As root if we may, else in a user namespace of our own.
fn namespaces() -> Result<Holder> {
    let mut reasons = Vec::new();
    if rustix::process::geteuid().is_root() {
        match attempt(false) {
            Ok(holder) => return Ok(holder),
            Err(error) => reasons.push(format!("as root: {error:#}")),
        }
    }
    attempt(true).map_err(|error| {
        reasons.push(format!("in a user namespace: {error:#}"));
        anyhow!(
            "network namespaces need root or user namespaces, and this machine gives neither ({}): run as root, or allow user \
             namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns)",
            reasons.join("; ")
        )
    })
}

fn attempt(rootless: bool) -> Result<Holder> {
    let mut command = Command::new("unshare");
    if rootless {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(UNSHARE).args(warden::words()?).arg("init");
    Holder::start(command, 1, rootless)
}

/// A pid namespace dies with its pid 1, and that with `unshare`; no mount travels out.
pub(crate) const UNSHARE: [&str; 8] =
    ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private", "--"];
