//! `ipam-node store show`.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use ipam_core::ledger::{Attachment, Ledger, Reservation};
use serde::Serialize;

use super::place::Place;

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
    /// Only addresses of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Only addresses of this pod
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pod: Option<String>,
    /// Only this address
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Output {
    /// One line for each address
    Table,
    /// The same with sandboxes, pod UIDs and devices
    Wide,
    /// One JSON object
    Json,
    /// The same in YAML
    Yaml,
}

/// The whole output in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    epoch: u64,
    sequence: u64,
    addresses: Vec<Row<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    kind: &'static str,
    pool: &'a str,
    address: IpAddr,
    namespace: &'a str,
    pod: &'a str,
    pod_uid: &'a str,
    #[serde(rename = "containerID")]
    container_id: &'a str,
    interface: &'a str,
    network: &'a str,
    #[serde(rename = "deviceID")]
    device_id: &'a str,
    created: String,
    /// An imported store has another owner of the address, or another address of the owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    contested: bool,
    #[serde(skip)]
    since: i64,
}

impl<'a> Row<'a> {
    fn new(ledger: &Ledger, held: &'a Reservation) -> Self {
        let Attachment { pod_name, pod_namespace, pod_uid, device_id, network } = &held.attachment;
        let same = |other: Option<Reservation>| other.as_ref() == Some(held);
        Self {
            kind: held.pool.kind.kind(),
            pool: &held.pool.name,
            address: held.addr,
            namespace: pod_namespace,
            pod: pod_name,
            pod_uid,
            container_id: &held.owner.container_id,
            interface: &held.owner.if_name,
            network,
            device_id,
            created: jiff::Timestamp::from_second(held.created).map_or_else(|_| String::new(), |time| time.to_string()),
            contested: !same(ledger.holder(&held.pool, held.addr)) || !same(ledger.held_by(&held.pool, &held.owner)),
            since: held.created,
        }
    }
}

impl Flags {
    fn wants(&self, held: &Reservation) -> bool {
        let Attachment { pod_name, pod_namespace, .. } = &held.attachment;
        let is_pod = |pod: &String| match pod.split_once('/') {
            Some((namespace, name)) => namespace == pod_namespace && name == pod_name,
            None => pod == pod_name,
        };
        self.pool.as_ref().is_none_or(|pool| *pool == held.pool.name)
            && self.pod.as_ref().is_none_or(is_pod)
            && self.address.is_none_or(|address| address == held.addr)
    }
}

/// The addresses in use.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let store = flags.place.read()?;
    let held: Vec<_> = store.ledger.reservations().filter(|held| flags.wants(held)).collect();
    let addresses: Vec<_> = held.iter().map(|held| Row::new(&store.ledger, held)).collect();
    let position = store.journal.position;
    let shown = Shown { epoch: position.epoch, sequence: position.sequence, addresses };
    match flags.output {
        Output::Table => Ok(table(&shown.addresses, false, jiff::Timestamp::now().as_second())),
        Output::Wide => Ok(table(&shown.addresses, true, jiff::Timestamp::now().as_second())),
        Output::Json => serde_json::to_string_pretty(&shown).map(|text| text + "\n").map_err(|error| error.to_string()),
        Output::Yaml => serde_yaml::to_string(&shown).map_err(|error| error.to_string()),
    }
}

/// As kubectl prints a table.
fn table(addresses: &[Row<'_>], is_wide: bool, now: i64) -> String {
    if addresses.is_empty() {
        return "no address is in use\n".to_owned();
    }
    let mut head = vec!["KIND", "POOL", "ADDRESS", "NAMESPACE", "POD", "INTERFACE", "NETWORK", "AGE"];
    if is_wide {
        head.extend(["CONTAINER", "POD UID", "DEVICE"]);
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for one in addresses {
        let address = if one.contested { format!("{} (contested)", one.address) } else { one.address.to_string() };
        let mut row =
            [one.kind, one.pool, &address, one.namespace, one.pod, one.interface, one.network].map(cell).to_vec();
        row.push(age(now.saturating_sub(one.since)));
        if is_wide {
            row.extend([one.container_id, one.pod_uid, one.device_id].map(cell));
        }
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// What a request has sent is shown in one line, whatever it is.
fn cell(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.escape_debug().to_string() }
}

/// A time span as kubectl shows it, with one or two units.
fn age(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..0 => "<invalid>".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => format!("{minutes}m{}s", seconds % 60),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => format!("{hours}h{}m", minutes % 60),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use ipam_core::ledger::{Change, Owner};
    use ipam_core::{PoolKey, PoolKind};

    use super::*;

    fn reservation(container: &str, address: &str, pod: &str) -> Reservation {
        let attachment = Attachment { pod_name: pod.into(), pod_namespace: "ai".into(), ..Attachment::default() };
        let pool = PoolKey::new(PoolKind::IpPool, "blue");
        Reservation {
            pool,
            owner: Owner::new(container, "net1"),
            addr: address.parse().unwrap(),
            attachment,
            created: 1000,
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_address_and_no_control_character() {
        let mut ledger = Ledger::new(0);
        for held in [reservation("c1", "10.0.0.2", "train-0"), reservation("c2", "10.0.0.10", "\u{1b}[2J\n")] {
            ledger.apply(&Change::Reserve { reservation: held, moves_cursor: false });
        }
        ledger.apply(&Change::Contested { reservation: reservation("c3", "10.0.0.2", "other") });
        let held: Vec<_> = ledger.reservations().collect();
        let addresses: Vec<_> = held.iter().map(|held| Row::new(&ledger, held)).collect();
        let text = table(&addresses, false, 1000 + 4000);
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "KIND POOL ADDRESS NAMESPACE POD INTERFACE NETWORK AGE",
                "IPPool blue 10.0.0.2 ai train-0 net1 <none> 66m",
                "IPPool blue 10.0.0.10 ai \\u{1b}[2J\\n net1 <none> 66m",
                "IPPool blue 10.0.0.2 (contested) ai other net1 <none> 66m",
            ]
        );
        assert!(table(&addresses, true, 5000).lines().nth(1).unwrap().contains(" c1 "));
        assert_eq!(table(&[], false, 0), "no address is in use\n");
    }

    #[test]
    fn ages_have_the_units_of_kubectl() {
        for (seconds, text) in [
            (-1, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (3600, "60m"),
            (10_860, "3h1m"),
            (100_000, "27h"),
            (200_000, "2d7h"),
            (700_000, "8d"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
