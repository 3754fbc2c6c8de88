//! What an agent reads beside addresses: the note in its journal, and the older store.

#![expect(clippy::panic, reason = "a target panics where something does not hold")]

use std::fs;
use std::path::Path;

use ipam_core::ledger::{Change, Ledger};
use ipam_node_agent::identity::Identity;
use ipam_node_agent::import::Import;
use ipam_node_agent::note::{Noted, Start, Subject};
use ipam_node_agent::spec::NodeSpec;
use ipam_node_store::Position;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::node::allocates_soundly;
use super::store::{held, replayed, reserved_once};

/// First byte of an input: what it is.
const NOTE: u8 = 0;
const OLDER_STORE: u8 = 2;
/// Longest text about something that does not read, beyond that itself.
const LONGEST: usize = 2_000;

pub(super) fn run(data: &[u8]) {
    thread_local! {
        // Each replacement of a file is synced, which takes no time in memory.
        static FOLDER: Option<TempDir> = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).ok();
    }
    let Some((which, bytes)) = data.split_first() else { return };
    FOLDER.with(|folder| {
        let Some(folder) = folder else { panic!("no temporary folder") };
        if *which % 3 == OLDER_STORE {
            older_store(folder.path(), bytes);
        } else {
            note(&String::from_utf8_lossy(bytes));
        }
    });
}

fn put(path: &Path, bytes: &[u8]) {
    assert!(fs::write(path, bytes).is_ok(), "{} cannot be written", path.display());
}

fn subject() -> Subject {
    Subject { node: "node1".into(), namespace: "kube-system".into() }
}

fn note(text: &str) {
    let noted = match subject().read(text) {
        Ok(noted) => noted,
        Err(why) => {
            assert!(!why.is_empty() && why.len() < LONGEST + text.len());
            Noted::default()
        }
    };
    assert_eq!(subject().read(&subject().text(&noted)), Ok(noted.clone()), "what is noted is read as something else");
    allocates_soundly(&noted);
    let mut ledger = Ledger::new(0);
    ledger.apply(&Change::Note { text: text.to_owned() });
    let here = Identity { boot: Some("b".into()), ..Identity::default() };
    let first = Start::new(subject(), &mut ledger, Position { epoch: 5, sequence: 5 }, here.clone());
    let second = Start::new(subject(), &mut ledger, Position { epoch: 6, sequence: 0 }, here);
    assert_eq!(first.noted(), second.noted(), "a second start finds another position");
}

fn older_store(folder: &Path, bytes: &[u8]) {
    let path = folder.join("store");
    put(&path, bytes);
    let import = match Import::read(&path) {
        Ok(import) => import,
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < LONGEST + bytes.len(), "{} bytes", message.len());
            let Some(mended) = with_checksum(bytes, &message) else { return };
            put(&path, &mended);
            let Ok(import) = Import::read(&path) else { return };
            import
        }
    };
    let Some(import) = import else { return };
    let mut ledger = replayed(&[]);
    import.record(&mut ledger);
    let once: Vec<_> = ledger.snapshot().collect();
    import.record(&mut ledger);
    assert_eq!(once, ledger.snapshot().collect::<Vec<_>>(), "a second import changes something");
    reserved_once(&ledger);
    assert_eq!(held(&replayed(&once)), held(&ledger));
}

/// The file with the checksum that the refusal computed, so that what lies behind the checksum is tried, too.
fn with_checksum(bytes: &[u8], message: &str) -> Option<Vec<u8>> {
    let (_, rest) = message.split_once("but what it says has ")?;
    let computed: u32 = rest.split(',').next()?.parse().ok()?;
    let mut file: Value = serde_json::from_slice(bytes).ok()?;
    // The store reads an array as the fields in their order, too.
    file.as_object_mut()?.insert("checksum".to_owned(), json!(computed));
    Some(file.to_string().into_bytes())
}

/// Each as an agent writes it.
pub(super) fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let blocks = |bytes: &Vec<u8>| Ok(serde_json::from_slice::<Value>(bytes)?["spec"]["pools"].take());
    let blocks: Vec<Value> = super::node::seeds().iter().map(blocks).collect::<anyhow::Result<_>>()?;
    let mut seeds = Vec::new();
    for pools in blocks {
        let spec: NodeSpec = serde_json::from_value(json!({"uid": "u", "generation": 3, "blocks": pools}))?;
        let mut noted = Noted::first(spec);
        noted.uncompared = Some(Position { epoch: 3, sequence: 4 });
        seeds.push([&[NOTE], subject().text(&noted).as_bytes()].concat());
    }
    let entry = |container: &str, address: &str| {
        json!({"container_id": container, "interface_name": "net1", "ip_address": address, "metadata": {
            "create_time": "2024-01-02T03:04:05Z", "pod_uuid": "", "pod_name": container, "pod_namespace": "default",
            "device_id": "", "pool_config_snapshot": ""}})
    };
    let pool = json!({"name": "p", "entries": {"a_net1": entry("a", "10.0.0.2"), "b_net1": entry("b", "10.0.0.3")},
        "last_pool_config": "", "last_reserved_ip": "10.0.0.3"});
    let store = json!({"version": 1, "checksum": 0, "pools": {"p": pool, "cidrpool_q": pool}}).to_string();
    seeds.push([&[OLDER_STORE], store.as_bytes()].concat());
    Ok(seeds)
}
