//! The reference's store file, version 1 (behaviour.md §7): what it holds must never be given again.
//!
//! Read once, at the first start on a node, and never written: the original stays for a way back. A file that cannot be
//! read to the last entry stops the start, since what it holds and nobody knows would be given twice.

use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use std::collections::BTreeMap;

use ipam_core::addr::parse_addr;
use ipam_core::ledger::{Attachment, Change, Owner, Reservation};
use ipam_core::{PoolKey, PoolKind};
use serde::Deserialize;

/// Why the file's reservations are not known.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} looks like the store of another nv-ipam but cannot be taken over: {why}. Starting without it would give \
     addresses that pods hold; repair the file, or move it away once every pod that uses these pools is gone from this node"
)]
pub struct TakeoverError {
    path: String,
    why: String,
}

#[derive(Deserialize)]
struct File {
    version: i64,
    #[serde(default)]
    pools: Option<BTreeMap<String, Pool>>,
}

#[derive(Deserialize)]
struct Pool {
    #[serde(default)]
    entries: Option<BTreeMap<String, Entry>>,
    #[serde(default)]
    last_reserved_ip: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    container_id: String,
    interface_name: String,
    ip_address: String,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    create_time: String,
    pod_uuid: String,
    pod_name: String,
    pod_namespace: String,
    device_id: String,
}

/// What the file holds, as changes; empty if there is none. An empty file is the reference's before its first write.
pub fn read(path: &Path) -> Result<Vec<Change>, TakeoverError> {
    let failed = |why: String| TakeoverError { path: path.display().to_string(), why };
    let text = match fs::read(path) {
        Ok(text) if text.is_empty() => return Ok(Vec::new()),
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error.to_string())),
    };
    changes(&text).map_err(failed)
}

fn changes(text: &[u8]) -> Result<Vec<Change>, String> {
    let file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.version != 1 {
        return Err(format!("it is of version {}, only 1 is known", file.version));
    }
    let mut changes = Vec::new();
    let mut holders = BTreeMap::new();
    for (key, pool) in file.pools.unwrap_or_default() {
        let pool_key = match key.strip_prefix("cidrpool/") {
            Some(name) => PoolKey::new(PoolKind::CidrPool, name),
            None => PoolKey::new(PoolKind::IpPool, key.as_str()),
        };
        for (name, entry) in pool.entries.unwrap_or_default() {
            let reservation =
                reservation(&pool_key, entry).map_err(|why| format!("pools[{key:?}].entries[{name:?}]: {why}"))?;
            if let Some(other) = holders.insert((pool_key.clone(), reservation.addr), name.clone()) {
                return Err(format!("pools[{key:?}]: {} is held by {other:?} and {name:?}", reservation.addr));
            }
            changes.push(Change::Reserve { reservation, moves_cursor: false });
        }
        if let Some(text) = pool.last_reserved_ip.filter(|text| !text.is_empty() && text != "<nil>") {
            let addr = address(&text).map_err(|why| format!("pools[{key:?}].last_reserved_ip: {why}"))?;
            changes.push(Change::Cursor { pool: pool_key, addr });
        }
    }
    Ok(changes)
}

fn reservation(pool: &PoolKey, entry: Entry) -> Result<Reservation, String> {
    let created = entry.metadata.create_time.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second);
    Ok(Reservation {
        pool: pool.clone(),
        owner: Owner::new(entry.container_id, entry.interface_name),
        addr: address(&entry.ip_address)?,
        attachment: Attachment {
            pod_name: entry.metadata.pod_name,
            pod_namespace: entry.metadata.pod_namespace,
            pod_uid: entry.metadata.pod_uuid,
            device_id: entry.metadata.device_id,
            network: String::new(),
        },
        created,
    })
}

fn address(text: &str) -> Result<IpAddr, String> {
    parse_addr(text).map_err(|why| format!("{text:?} {why}"))
}

#[cfg(test)]
mod tests {
    use ipam_core::ledger::Ledger;
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = r#"{"version":1,"checksum":123,"pools":{
        "blue":{"name":"blue","entries":{"c1_net1":{"container_id":"c1","interface_name":"net1","ip_address":"10.0.0.2",
            "metadata":{"create_time":"2024-01-02T03:04:05Z","pod_uuid":"u1","pod_name":"p1","pod_namespace":"n1",
            "device_id":"0000:03:00.0","pool_config_snapshot":"x"}}},"last_pool_config":"","last_reserved_ip":"10.0.0.9"},
        "cidrpool/red":{"name":"cidrpool/red","entries":{"c2_eth0":{"container_id":"c2","interface_name":"eth0",
            "ip_address":"fd00::5","metadata":{}}},"last_reserved_ip":""}}}"#;

    #[test]
    fn every_reservation_and_the_place_of_the_round_robin_are_taken_over() {
        let mut ledger = Ledger::new(0);
        for change in changes(FILE.as_bytes()).unwrap() {
            ledger.apply(&change);
        }
        let held: Vec<_> = ledger.reservations().map(|held| (held.pool.to_string(), held.addr.to_string())).collect();
        assert_eq!(
            held,
            [("IPPool \"blue\"".into(), "10.0.0.2".into()), ("CIDRPool \"red\"".into(), "fd00::5".into())]
        );
        let blue = ledger.reservations().next().unwrap();
        assert_eq!((blue.attachment.pod_uid.as_str(), blue.created), ("u1", 1_704_164_645));
        assert!(
            ledger.snapshot().contains(&Change::Cursor { pool: blue.pool.clone(), addr: "10.0.0.9".parse().unwrap() })
        );
    }

    #[test]
    fn no_file_and_an_empty_file_hold_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        assert_eq!(read(&path).unwrap(), []);
        fs::write(&path, "").unwrap();
        assert_eq!(read(&path).unwrap(), []);
    }

    #[test]
    fn a_file_that_cannot_be_read_to_the_last_entry_stops_the_start() {
        let bad_address = FILE.replace("10.0.0.2", "10.0.0.299");
        let twice = FILE.replace(
            "fd00::5\",\"metadata\":{}}",
            "fd00::5\"},\"c3_x\":{\"container_id\":\"c3\",\"interface_name\":\"x\",\"ip_address\":\"fd00::5\"}",
        );
        let newer = FILE.replace("\"version\":1", "\"version\":2");
        for (text, part) in
            [(&bad_address, "entries[\"c1_net1\"]"), (&newer, "version 2"), (&twice.clone(), ""), (&"{".into(), "")]
        {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            fs::write(&path, text).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("move it away"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn hostile_files_never_panic(text in ".*", cut in any::<prop::sample::Index>()) {
            let _ = changes(text.as_bytes());
            prop_assert!(changes(&FILE.as_bytes()[..cut.index(FILE.len())]).is_err());
        }
    }
}
