//! What Multus writes to a pod about its interfaces: the annotation `k8s.v1.cni.cncf.io/network-status`.

use std::net::IpAddr;

use serde::Deserialize;

/// The annotation.
pub(crate) const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    ips: Vec<String>,
}

/// The addresses of the interface by the annotation's value; none if it does not name the interface or cannot be read.
pub(crate) fn addresses_of(status: &str, interface: &str) -> Vec<IpAddr> {
    let interfaces: Vec<Interface> = serde_json::from_str(status).unwrap_or_default();
    let ips = interfaces.iter().filter(|it| it.interface == interface).flat_map(|it| &it.ips);
    ips.filter_map(|ip| address(ip)).collect()
}

/// The addresses of all interfaces by the annotation's value; `None` if one of them cannot be read.
pub(crate) fn all_addresses(status: &str) -> Option<Vec<IpAddr>> {
    let interfaces: Vec<Interface> = serde_json::from_str(status).ok()?;
    interfaces.iter().flat_map(|it| &it.ips).map(|ip| address(ip)).collect()
}

/// Without the prefix length, which some versions write.
fn address(ip: &str) -> Option<IpAddr> {
    ip.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_one_interface_are_read() {
        let status = r#"[{"name":"cni","interface":"eth0","ips":["10.244.0.9"],"mac":"aa:bb","default":true,"dns":{},"gateway":["\u003cnil\u003e"]},
            {"name":"default/rdma","interface":"net1","ips":["192.168.0.2","fd00::2/64","x"],"dns":{}},{"name":"other"}]"#;
        let read = |interface| addresses_of(status, interface).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(read("net1"), ["192.168.0.2", "fd00::2"]);
        assert_eq!(read("net2"), [""; 0]);
        for status in ["", "{}", "[1]", r#"[{"interface":"net1","ips":"10.0.0.1"}]"#] {
            assert_eq!(addresses_of(status, "net1"), [] as [IpAddr; 0], "{status}");
        }
    }

    #[test]
    fn the_addresses_of_a_pod_are_those_of_all_interfaces_or_unknown() {
        let read = |status| all_addresses(status).map(|all| all.iter().map(IpAddr::to_string).collect::<Vec<_>>());
        let status =
            r#"[{"interface":"eth0","ips":["10.244.0.9"]},{"name":"x"},{"interface":"net1","ips":["fd00::2/64"]}]"#;
        assert_eq!(read(status), Some(vec!["10.244.0.9".to_owned(), "fd00::2".to_owned()]));
        assert_eq!(read("[]"), Some(Vec::new()));
        for status in ["", "{}", r#"[{"ips":["10.0.0.x"]}]"#, r#"[{"ips":"10.0.0.1"}]"#] {
            assert_eq!(read(status), None, "{status}");
        }
    }
}
