//! The format of NVIDIA's store, version 1 (behaviour.md §7).
//!
//! A file that cannot be read to its last entry, or whose checksum does not match its content, stops the start: addresses that it records
//! and this agent does not know would be allocated again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use ipam_core::addr::parse_addr;
use ipam_core::ledger::{Attachment, Change, Ledger, Owner, Reservation};
use ipam_core::{PoolKey, PoolKind};
use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;

use super::ImportError;

/// What names of CIDRPools begin with.
const CIDR_POOL: &str = "cidrpool/";

/// The file, with its fields in the order in which the reference writes them: the checksum is over that text.
#[derive(Serialize, Deserialize)]
struct File {
    version: i64,
    #[serde(default)]
    checksum: u32,
    #[serde(default)]
    pools: Option<BTreeMap<String, Pool>>,
}

#[derive(Serialize, Deserialize, Default)]
struct Pool {
    #[serde(default)]
    name: String,
    #[serde(default)]
    entries: Option<BTreeMap<String, Entry>>,
    #[serde(default)]
    last_pool_config: String,
    #[serde(default)]
    last_reserved_ip: String,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    container_id: String,
    interface_name: String,
    ip_address: String,
    #[serde(default)]
    metadata: Metadata,
    /// When it was given back, if it only waits for the end of a cooldown. Newer versions of the reference write it, and
    /// leave it out of the checksum for the sake of the older.
    #[serde(default, skip_serializing)]
    released_at: Option<String>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Metadata {
    create_time: String,
    pod_uuid: String,
    pod_name: String,
    pod_namespace: String,
    device_id: String,
    pool_config_snapshot: String,
}

impl File {
    /// FNV-1a of this as the reference writes it, with a checksum of 0 (behaviour.md §7).
    fn computed_checksum(&mut self) -> Result<u32, String> {
        let written = std::mem::take(&mut self.checksum);
        let text = self.written();
        self.checksum = written;
        Ok(text?.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    }

    /// The text as the reference writes it.
    fn written(&self) -> Result<String, String> {
        let mut text = Vec::new();
        let done = self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, AsGo));
        done.map_err(|error| error.to_string())?;
        String::from_utf8(text).map_err(|error| error.to_string())
    }

    fn verify(&mut self) -> Result<(), String> {
        let (written, computed) = (self.checksum, self.computed_checksum()?);
        if written == computed {
            return Ok(());
        }
        Err(format!("its checksum is {written}, but what it says has {computed}, so it was damaged or edited"))
    }
}

/// JSON without white space, and with the characters escaped that Go escapes for the sake of HTML.
struct AsGo;

impl Formatter for AsGo {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, tail) = rest.split_at(at);
            let mut after = tail.chars();
            let escaped = after.next().map_or(0, u32::from);
            write!(writer, "{plain}\\u{escaped:04x}")?;
            rest = after.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

/// The store of NVIDIA's agent that has what `ledger` has. Cooldowns and the names of networks have no place in it.
///
/// # Errors
/// The store cannot be encoded.
pub(crate) fn text(ledger: &Ledger) -> Result<String, String> {
    let mut pools = BTreeMap::<String, Pool>::new();
    for held in ledger.reservations() {
        let entries = pools.entry(key_of(&held.pool)).or_default().entries.get_or_insert_default();
        let Owner { container_id, if_name } = &held.owner;
        let mut name = format!("{container_id}_{if_name}");
        // A second address of one owner. That agent frees the one with the plain name.
        while entries.contains_key(&name) {
            name.push('+');
        }
        entries.insert(name, entry(&held));
    }
    for change in ledger.snapshot() {
        if let Change::Cursor { pool, addr } = change {
            pools.entry(key_of(&pool)).or_default().last_reserved_ip = addr.to_string();
        }
    }
    for (name, pool) in &mut pools {
        pool.name.clone_from(name);
        pool.entries.get_or_insert_default();
    }
    let mut file = File { version: 1, checksum: 0, pools: Some(pools) };
    file.checksum = file.computed_checksum()?;
    file.written()
}

/// The name of a pool in the file.
fn key_of(pool: &PoolKey) -> String {
    match pool.kind {
        PoolKind::IpPool => pool.name.clone(),
        PoolKind::CidrPool => format!("{CIDR_POOL}{}", pool.name),
    }
}

fn entry(held: &Reservation) -> Entry {
    let Reservation { owner, addr, attachment, created, .. } = held.clone();
    let metadata = Metadata {
        create_time: jiff::Timestamp::from_second(created).unwrap_or_default().to_string(),
        pod_uuid: attachment.pod_uid,
        pod_name: attachment.pod_name,
        pod_namespace: attachment.pod_namespace,
        device_id: attachment.device_id,
        pool_config_snapshot: String::new(),
    };
    let Owner { container_id, if_name: interface_name } = owner;
    Entry { container_id, interface_name, ip_address: addr.to_string(), metadata, released_at: None }
}

/// A store that was read.
#[derive(Debug)]
pub(super) struct Content {
    /// The file, locked as NVIDIA's agent locks it while it runs.
    pub(super) file: fs::File,
    pub(super) text: Vec<u8>,
    /// Its records.
    pub(super) records: Vec<Change>,
}

/// Locks and reads the file. `None` if there is no file, or the placeholder of this agent. NVIDIA's agent leaves an empty file before its
/// first write.
pub(super) fn read(path: &Path) -> Result<Option<Content>, ImportError> {
    let failed = |why: String| ImportError { path: path.display().to_string(), why };
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => {
            failed("another process has locked it; stop nv-ipam on this node first".to_owned())
        }
        fs::TryLockError::Error(error) => failed(error.to_string()),
    })?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|error| failed(error.to_string()))?;
    let records = if text.is_empty() { None } else { changes(&text).map_err(failed)? };
    Ok(records.map(|records| Content { file, text, records }))
}

/// `None` for the placeholder.
fn changes(text: &[u8]) -> Result<Option<Vec<Change>>, String> {
    let mut file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.version != 1 {
        return Err(format!("it is of version {}, only 1 is known", file.version));
    }
    if file.checksum == 0 && file.pools.as_ref().is_none_or(BTreeMap::is_empty) {
        return Ok(None);
    }
    file.verify()?;
    let mut changes = Vec::new();
    for (key, pool) in file.pools.unwrap_or_default() {
        let pool_key = match key.strip_prefix(CIDR_POOL) {
            Some(name) => PoolKey::new(PoolKind::CidrPool, name),
            None => PoolKey::new(PoolKind::IpPool, key.as_str()),
        };
        pool_changes(&pool_key, pool, &mut changes).map_err(|why| format!("pools[{key:?}]{why}"))?;
    }
    Ok(Some(changes))
}

fn pool_changes(key: &PoolKey, pool: Pool, changes: &mut Vec<Change>) -> Result<(), String> {
    let (mut holders, mut owners) = (BTreeSet::new(), BTreeSet::new());
    for (name, entry) in pool.entries.unwrap_or_default() {
        let released = entry.released_at.as_deref().map(seconds);
        let reservation = reservation(key, entry).map_err(|why| format!(".entries[{name:?}]: {why}"))?;
        if let Some(since) = released {
            if holders.insert(reservation.addr) {
                changes.push(Change::Cooling { pool: key.clone(), addr: reservation.addr, since });
            }
            continue;
        }
        let (is_new, is_only) = (holders.insert(reservation.addr), owners.insert(reservation.owner.clone()));
        changes.push(if is_new && is_only {
            Change::Reserve { reservation, moves_cursor: false }
        } else {
            // Two pods may use the address, or one pod two: it stays unavailable until all of them are gone.
            Change::Contested { reservation }
        });
    }
    // `<nil>` is how Go writes an address that is none, in some places.
    if !matches!(pool.last_reserved_ip.as_str(), "" | "<nil>") {
        let addr = address(&pool.last_reserved_ip).map_err(|why| format!(".last_reserved_ip: {why}"))?;
        changes.push(Change::Cursor { pool: key.clone(), addr });
    }
    Ok(())
}

/// A time of the file in Unix seconds; one that cannot be read is long ago.
fn seconds(time: &str) -> i64 {
    time.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second)
}

fn reservation(pool: &PoolKey, entry: Entry) -> Result<Reservation, String> {
    let created = seconds(&entry.metadata.create_time);
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

    /// Written in lines for the reader; the checksum is over the text without them.
    const FILE: &str = r#"{"version":1,"checksum":2030566228,"pools":{
        "blue":{"name":"blue","entries":{
            "c1_net1":{"container_id":"c1","interface_name":"net1","ip_address":"10.0.0.2",
            "metadata":{"create_time":"2024-01-02T03:04:05Z","pod_uuid":"u1","pod_name":"p1","pod_namespace":"n1",
            "device_id":"0000:03:00.0","pool_config_snapshot":"a\u0026b\u003c\u003e"}}},"last_pool_config":"","last_reserved_ip":"10.0.0.9"},
        "cidrpool/red":{"name":"cidrpool/red","entries":{
            "c2_eth0":{"container_id":"c2","interface_name":"eth0","ip_address":"fd00::5",
            "metadata":{"create_time":"","pod_uuid":"","pod_name":"","pod_namespace":"",
            "device_id":"","pool_config_snapshot":""}}},"last_pool_config":"","last_reserved_ip":""}}}"#;

    /// `FILE` with `from` replaced by `to`, and the checksum that it then has.
    fn edited(from: &str, to: &str) -> String {
        let text = FILE.replace(from, to);
        let mut file: File = serde_json::from_str(&text).unwrap();
        let (written, computed) = (file.checksum, file.computed_checksum().unwrap());
        text.replace(&written.to_string(), &computed.to_string())
    }

    #[test]
    fn every_reservation_and_the_place_of_the_round_robin_are_read() {
        let mut ledger = Ledger::new(0);
        for change in changes(FILE.as_bytes()).unwrap().unwrap() {
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
            ledger
                .snapshot()
                .any(|change| change == Change::Cursor { pool: blue.pool.clone(), addr: "10.0.0.9".parse().unwrap() })
        );
    }

    #[test]
    fn no_file_and_an_empty_file_hold_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        assert!(read(&path).unwrap().is_none());
        for text in ["", crate::import::PLACEHOLDER] {
            fs::write(&path, text).unwrap();
            assert!(read(&path).unwrap().is_none());
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_to_the_last_entry_stops_the_start() {
        for (text, part) in [
            (edited("10.0.0.2", "10.0.0.299"), "entries[\"c1_net1\"]"),
            (edited("\"version\":1", "\"version\":2"), "version 2"),
            ("{".to_owned(), ""),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            fs::write(&path, text).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("move it away"), "{message}");
        }
    }

    #[test]
    fn an_address_of_two_owners_and_an_owner_of_two_addresses_are_contested() {
        let second = r#","c3_x":{"container_id":"c3","interface_name":"x","ip_address":"10.0.0.2"}},"last_pool"#;
        let other = r#","x":{"container_id":"c1","interface_name":"net1","ip_address":"10.0.0.3"}},"last_pool"#;
        for (entry, container, address) in [(second, "c3", "10.0.0.2"), (other, "c1", "10.0.0.3")] {
            let found = changes(edited("},\"last_pool", entry).as_bytes()).unwrap().unwrap();
            let contested = found.iter().find_map(|change| match change {
                Change::Contested { reservation } => Some(reservation),
                _ => None,
            });
            let contested = contested.map(|it| (it.owner.container_id.as_str(), it.addr.to_string()));
            assert_eq!(contested, Some((container, address.to_owned())));
        }
    }

    #[test]
    fn what_is_exported_is_imported_again_without_a_difference() {
        let mut ledger = Ledger::new(0);
        for change in changes(FILE.as_bytes()).unwrap().unwrap() {
            ledger.apply(&change);
        }
        let (held, blue) = (ledger.reservations().collect::<Vec<_>>(), PoolKey::new(PoolKind::IpPool, "blue"));
        let contested = [
            Reservation { owner: Owner::new("c7", "<&>"), ..held[0].clone() },
            Reservation { addr: "10.0.0.77".parse().unwrap(), ..held[0].clone() },
        ];
        for reservation in contested {
            ledger.apply(&Change::Contested { reservation });
        }
        let text = text(&ledger).unwrap();
        let again = changes(text.as_bytes()).unwrap().unwrap();
        let mut imported = Ledger::new(0);
        for change in &again {
            imported.apply(change);
        }
        let sorted = |ledger: &Ledger| {
            let mut held: Vec<_> = ledger.reservations().collect();
            held.sort_by_key(|held| (held.pool.clone(), held.addr, held.owner.clone()));
            held
        };
        assert_eq!(sorted(&imported), sorted(&ledger));
        assert_eq!(sorted(&imported).len(), 4);
        assert!(
            imported
                .snapshot()
                .any(|change| change == Change::Cursor { pool: blue.clone(), addr: "10.0.0.9".parse().unwrap() })
        );
        let empty = super::text(&Ledger::new(0)).unwrap();
        assert_eq!(changes(empty.as_bytes()), Ok(Some(Vec::new())), "no placeholder: that agent starts on it");
    }

    #[test]
    fn a_damaged_or_edited_file_is_told_by_its_checksum() {
        for (from, to) in [("10.0.0.2", "10.0.0.3"), ("2030566228", "2030566229"), ("\"p1\"", "\"p2\"")] {
            let message = changes(FILE.replace(from, to).as_bytes()).unwrap_err();
            assert!(message.contains("checksum"), "{message}");
        }
        let message = changes(FILE.replace("\"checksum\":2030566228,", "").as_bytes()).unwrap_err();
        assert!(message.contains("its checksum is 0, but what it says has 2030566228"), "{message}");
    }

    #[test]
    fn an_address_that_only_cools_down_is_held_by_nobody_and_does_not_count_in_the_checksum() {
        let released =
            FILE.replace("a\\u0026b\\u003c\\u003e\"}", "a&b<>\"},\"released_at\":\"2024-01-02T03:04:06.5Z\"");
        assert_ne!(released, FILE);
        let found = changes(released.as_bytes()).unwrap().unwrap();
        let pool = PoolKey::new(PoolKind::IpPool, "blue");
        assert_eq!(found[0], Change::Cooling { pool, addr: "10.0.0.2".parse().unwrap(), since: 1_704_164_646 });
    }

    proptest! {
        #[test]
        fn hostile_files_never_panic(text in ".*", cut in any::<prop::sample::Index>()) {
            let _ = changes(text.as_bytes());
            prop_assert!(changes(&FILE.as_bytes()[..cut.index(FILE.len())]).is_err());
        }
    }
}
