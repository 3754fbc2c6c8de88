//! What holds when neither standard input nor a conf file says otherwise (behaviour.md §1 and §6), as literals.

use std::path::Path;
use std::time::Duration;

use ipam_cni::{CONF_FILE, Defaults};

#[test]
fn without_any_setting_the_places_and_the_timeout_of_the_reference_hold() {
    let Defaults { conf_dir, log_file, daemon_socket, call_timeout } = Defaults::default();
    assert_eq!(conf_dir.join(CONF_FILE), Path::new("/etc/cni/net.d/nv-ipam.d/nv-ipam.conf"));
    assert_eq!(log_file, Path::new("/var/log/nv-ipam-cni.log"));
    assert_eq!(daemon_socket, "unix:///var/lib/cni/nv-ipam/daemon.sock");
    assert_eq!(call_timeout, Duration::from_secs(5));
}
