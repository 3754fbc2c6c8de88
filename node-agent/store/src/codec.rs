//! Changes as bytes: the payload of a record.
//!
//! Little endian; a text is a `u32` length and UTF-8; an address is 4 or 6 and its bytes. Every byte read is taken for
//! hostile: decoding never panics and never allocates more than the input is long.
//!
//! A payload begins with the version, whether the next record continues it, and the number of its changes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipam_core::ledger::{Attachment, Change, GrantStep, Owner, Reservation, SpecVersion};
use ipam_core::{GrantId, PoolKey, PoolKind};

/// Version of this encoding, the first byte of each payload.
const VERSION: u8 = 1;
/// Bytes in front of the changes of a payload.
pub(super) const HEADER: usize = 6;

const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CURSOR: u8 = 3;
const COOLING: u8 = 4;
const GRANT: u8 = 5;
const GRANTS_ENDED_TO: u8 = 6;
const SPEC: u8 = 7;
const CONTESTED: u8 = 8;
const IMPORTED: u8 = 9;
const NOTE: u8 = 10;

/// A payload in the making.
pub(super) struct Payload {
    out: Vec<u8>,
    count: u32,
}

impl Payload {
    pub(super) fn new() -> Self {
        Self { out: vec![0; HEADER], count: 0 }
    }

    pub(super) fn push(&mut self, change: &Change) {
        encode_change(&mut self.out, change);
        self.count = self.count.saturating_add(1);
    }

    /// Bytes so far.
    pub(super) const fn len(&self) -> usize {
        self.out.len()
    }

    /// The payload. `continues` says that the next record has more of the same.
    pub(super) fn finish(mut self, continues: bool) -> Vec<u8> {
        let [a, b, c, d] = self.count.to_le_bytes();
        self.out.splice(..HEADER, [VERSION, u8::from(continues), a, b, c, d]);
        self.out
    }
}

/// `changes` as a payload of one record.
pub(super) fn encode(changes: &[Change]) -> Vec<u8> {
    let mut payload = Payload::new();
    for change in changes {
        payload.push(change);
    }
    payload.finish(false)
}

/// Bytes that `changes` take in a payload, without its header.
pub(super) fn bytes(changes: &[Change]) -> usize {
    encode(changes).len() - HEADER
}

/// What a payload says.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Decoded {
    pub(super) changes: Vec<Change>,
    /// Whether the next record has more of the same.
    pub(super) continues: bool,
}

/// The changes of a payload, or what is wrong with it.
pub(super) fn decode(payload: &[u8]) -> Result<Decoded, String> {
    let mut input = Input(payload);
    match input.byte()? {
        VERSION => {}
        other => {
            return Err(format!("encoding version {other}, this agent knows {VERSION}; run the agent that wrote it"));
        }
    }
    let continues = input.flag()?;
    let count = input.u32()?;
    // The count is not believed beforehand: nearly every change takes at least 16 bytes.
    let mut changes = Vec::with_capacity(usize::try_from(count).unwrap_or(0).min(payload.len() / 16));
    for _ in 0..count {
        changes.push(decode_change(&mut input)?);
    }
    if input.0.is_empty() {
        Ok(Decoded { changes, continues })
    } else {
        Err(format!("{} bytes behind the last change", input.0.len()))
    }
}

fn encode_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Reserve { reservation, moves_cursor } => {
            out.extend([RESERVE, u8::from(*moves_cursor)]);
            encode_reservation(out, reservation);
        }
        Change::Release { pool, owner, at } => {
            out.push(RELEASE);
            encode_pool(out, pool);
            encode_owner(out, owner);
            out.extend(at.to_le_bytes());
        }
        Change::Cursor { pool, addr } => {
            out.push(CURSOR);
            encode_pool(out, pool);
            encode_addr(out, *addr);
        }
        Change::Cooling { pool, addr, since } => {
            out.push(COOLING);
            encode_pool(out, pool);
            encode_addr(out, *addr);
            out.extend(since.to_le_bytes());
        }
        Change::Grant { pool, id, step } => {
            out.push(GRANT);
            encode_pool(out, pool);
            out.extend(id.number().to_le_bytes());
            out.push(match step {
                GrantStep::Seen => 1,
                GrantStep::Confirmed => 2,
                GrantStep::Ended => 3,
                GrantStep::Idle => 4,
            });
        }
        Change::GrantsEndedTo { id } => {
            out.push(GRANTS_ENDED_TO);
            out.extend(id.number().to_le_bytes());
        }
        Change::Contested { reservation } => {
            out.push(CONTESTED);
            encode_reservation(out, reservation);
        }
        Change::Imported { source, digest } => {
            out.push(IMPORTED);
            encode_text(out, source);
            out.extend(digest);
        }
        Change::Spec { version } => {
            out.push(SPEC);
            out.extend(version.created.to_le_bytes());
            out.extend(version.generation.to_le_bytes());
        }
        Change::Note { text } => {
            out.push(NOTE);
            encode_text(out, text);
        }
    }
}

fn encode_reservation(out: &mut Vec<u8>, reservation: &Reservation) {
    let Reservation { pool, owner, addr, attachment, created } = reservation;
    let Attachment { pod_name, pod_namespace, pod_uid, device_id, network } = attachment;
    encode_pool(out, pool);
    encode_owner(out, owner);
    encode_addr(out, *addr);
    for text in [pod_name, pod_namespace, pod_uid, device_id, network] {
        encode_text(out, text);
    }
    out.extend(created.to_le_bytes());
}

fn encode_pool(out: &mut Vec<u8>, pool: &PoolKey) {
    out.push(match pool.kind {
        PoolKind::IpPool => 1,
        PoolKind::CidrPool => 2,
    });
    encode_text(out, &pool.name);
}

fn encode_owner(out: &mut Vec<u8>, owner: &Owner) {
    encode_text(out, &owner.container_id);
    encode_text(out, &owner.if_name);
}

fn encode_addr(out: &mut Vec<u8>, addr: IpAddr) {
    match addr {
        IpAddr::V4(v4) => {
            out.push(4);
            out.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            out.push(6);
            out.extend(v6.octets());
        }
    }
}

/// A text beyond 4 GiB cannot come here: a request is limited to kilobytes, and an object of the API server to megabytes.
fn encode_text(out: &mut Vec<u8>, text: &str) {
    out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(text.as_bytes());
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| format!("{count} bytes wanted where {} are left", self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| "length".to_owned())
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool, String> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("{other} where 0 or 1 is wanted")),
        }
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn grant(&mut self) -> Result<GrantId, String> {
        self.array().map(|bytes| GrantId::from_number(u64::from_le_bytes(bytes)))
    }

    fn grant_step(&mut self) -> Result<GrantStep, String> {
        match self.byte()? {
            1 => Ok(GrantStep::Seen),
            2 => Ok(GrantStep::Confirmed),
            3 => Ok(GrantStep::Ended),
            4 => Ok(GrantStep::Idle),
            other => Err(format!("unknown step of a grant {other}")),
        }
    }

    fn i64(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, String> {
        let len = usize::try_from(self.u32()?).map_err(|error| error.to_string())?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|error| format!("a text is not UTF-8: {error}"))
    }

    fn pool(&mut self) -> Result<PoolKey, String> {
        let kind = match self.byte()? {
            1 => PoolKind::IpPool,
            2 => PoolKind::CidrPool,
            other => return Err(format!("unknown kind of pool {other}")),
        };
        Ok(PoolKey::new(kind, self.text()?))
    }

    fn owner(&mut self) -> Result<Owner, String> {
        Ok(Owner { container_id: self.text()?, if_name: self.text()? })
    }

    fn addr(&mut self) -> Result<IpAddr, String> {
        match self.byte()? {
            4 => self.array().map(|octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets))),
            6 => self.array().map(|octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets))),
            other => Err(format!("unknown address family {other}")),
        }
    }

    fn reservation(&mut self) -> Result<Reservation, String> {
        let (pool, owner, addr) = (self.pool()?, self.owner()?, self.addr()?);
        let attachment = Attachment {
            pod_name: self.text()?,
            pod_namespace: self.text()?,
            pod_uid: self.text()?,
            device_id: self.text()?,
            network: self.text()?,
        };
        Ok(Reservation { pool, owner, addr, attachment, created: self.i64()? })
    }
}

fn decode_change(input: &mut Input<'_>) -> Result<Change, String> {
    match input.byte()? {
        RESERVE => {
            let moves_cursor = input.flag()?;
            Ok(Change::Reserve { reservation: input.reservation()?, moves_cursor })
        }
        RELEASE => Ok(Change::Release { pool: input.pool()?, owner: input.owner()?, at: input.i64()? }),
        CURSOR => Ok(Change::Cursor { pool: input.pool()?, addr: input.addr()? }),
        COOLING => Ok(Change::Cooling { pool: input.pool()?, addr: input.addr()?, since: input.i64()? }),
        GRANT => Ok(Change::Grant { pool: input.pool()?, id: input.grant()?, step: input.grant_step()? }),
        GRANTS_ENDED_TO => Ok(Change::GrantsEndedTo { id: input.grant()? }),
        CONTESTED => Ok(Change::Contested { reservation: input.reservation()? }),
        IMPORTED => Ok(Change::Imported { source: input.text()?, digest: input.array()? }),
        SPEC => Ok(Change::Spec { version: SpecVersion { created: input.i64()?, generation: input.i64()? } }),
        NOTE => Ok(Change::Note { text: input.text()? }),
        other => Err(format!("unknown kind of change {other}")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_change() -> impl Strategy<Value = Change> {
        let pool = ("[a-z0-9.]{0,12}", any::<bool>())
            .prop_map(|(name, ip)| PoolKey::new(if ip { PoolKind::IpPool } else { PoolKind::CidrPool }, name));
        let owner = (".{0,8}", ".{0,5}").prop_map(|(container, interface)| Owner::new(container, interface));
        let parts = (pool, owner, any::<IpAddr>(), any::<i64>(), any::<bool>(), any::<[String; 5]>(), 0..13u8);
        parts.prop_map(|(pool, owner, addr, time, moves_cursor, texts, kind)| match kind {
            kind @ (0 | 10) => {
                let [pod_name, pod_namespace, pod_uid, device_id, network] = texts;
                let attachment = Attachment { pod_name, pod_namespace, pod_uid, device_id, network };
                let reservation = Reservation { pool, owner, addr, attachment, created: time };
                if kind == 0 {
                    Change::Reserve { reservation, moves_cursor }
                } else {
                    Change::Contested { reservation }
                }
            }
            12 => Change::Note { text: texts[0].clone() },
            11 => Change::Imported { source: texts[0].clone(), digest: [time.to_le_bytes()[0]; 32] },
            1 => Change::Release { pool, owner, at: time },
            2 => Change::Cursor { pool, addr },
            3 => Change::Cooling { pool, addr, since: time },
            8 => Change::Spec { version: SpecVersion { created: time, generation: time / 7 } },
            7 => Change::GrantsEndedTo { id: GrantId::from_number(time.unsigned_abs()) },
            kind => {
                let step = match kind {
                    4 => GrantStep::Seen,
                    5 => GrantStep::Confirmed,
                    6 => GrantStep::Ended,
                    _ => GrantStep::Idle,
                };
                Change::Grant { pool, id: GrantId::from_number(time.unsigned_abs()), step }
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_unchanged_and_as_long_as_its_changes(
            changes in prop::collection::vec(any_change(), 0..6),
        ) {
            let payload = encode(&changes);
            let promised: usize = changes.iter().map(|change| bytes(std::slice::from_ref(change))).sum();
            prop_assert_eq!(payload.len(), promised + HEADER);
            prop_assert_eq!(decode(&payload), Ok(Decoded { changes, continues: false }));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let mut versioned = vec![VERSION, 0, 1, 0, 0, 0];
            versioned.extend(bytes);
            let _ = decode(&versioned);
        }

        #[test]
        fn a_payload_cut_anywhere_is_refused(changes in prop::collection::vec(any_change(), 1..4), at in any::<prop::sample::Index>()) {
            let payload = encode(&changes);
            prop_assert!(decode(&payload[..at.index(payload.len())]).is_err());
        }
    }

    #[test]
    fn a_payload_of_a_newer_agent_is_named_as_such() {
        assert!(decode(&[9, 0, 0, 0, 0, 0]).unwrap_err().contains("version 9"));
    }
}
