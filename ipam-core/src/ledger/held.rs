//! The reservations of one pool, by address and by owner.
//!
//! A node may have 100,000 addresses in use. So all texts of a reservation are in one piece of memory, and none is there twice.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::ops::Bound;

use hashbrown::HashTable;

use super::{Attachment, Owner, Reservation};
use crate::PoolKey;

/// One reservation for each address and each owner.
#[derive(Clone, Default, Debug)]
pub(super) struct Held {
    records: BTreeMap<IpAddr, Record>,
    /// The addresses of `records`, by the hash of their owners. Nothing depends on their order.
    by_owner: HashTable<IpAddr>,
}

impl Held {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn contains(&self, addr: IpAddr) -> bool {
        self.records.contains_key(&addr)
    }

    /// The address of the owner.
    pub(super) fn addr_of(&self, owner: &Owner) -> Option<IpAddr> {
        self.by_owner.find(hash(owner.parts()), |addr| is_of(&self.records, addr, owner)).copied()
    }

    /// The reservation of the address.
    pub(super) fn get(&self, pool: &PoolKey, addr: IpAddr) -> Option<Reservation> {
        Some(self.records.get(&addr)?.unpack(pool, addr))
    }

    /// Adds a reservation. It replaces that of the address; its owner must not have another one.
    pub(super) fn insert(&mut self, reservation: &Reservation) {
        let (addr, owner) = (reservation.addr, &reservation.owner);
        self.remove(addr);
        self.records.insert(addr, Record::new(reservation));
        let records = &self.records;
        let rehash = |addr: &IpAddr| records.get(addr).map_or(0, |record| hash(record.owner()));
        self.by_owner.insert_unique(hash(owner.parts()), addr, rehash);
    }

    /// Removes the reservation of the address.
    pub(super) fn remove(&mut self, addr: IpAddr) {
        let Some(record) = self.records.remove(&addr) else { return };
        if let Ok(entry) = self.by_owner.find_entry(hash(record.owner()), |other| *other == addr) {
            entry.remove();
        }
    }

    /// The addresses, in rising order.
    pub(super) fn addrs(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.records.keys().copied()
    }

    /// The addresses outside `first..=last`, in rising order.
    pub(super) fn outside(&self, first: IpAddr, last: IpAddr) -> impl Iterator<Item = IpAddr> + '_ {
        let below = self.records.range(..first);
        let above = self.records.range((Bound::Excluded(last), Bound::Unbounded));
        below.chain(above).map(|(addr, _)| *addr)
    }

    /// The reservations behind the address, in rising order; all without one.
    pub(super) fn behind(&self, pool: &PoolKey, addr: Option<IpAddr>) -> impl Iterator<Item = Reservation> {
        let from = addr.map_or(Bound::Unbounded, Bound::Excluded);
        self.records.range((from, Bound::Unbounded)).map(move |(addr, record)| record.unpack(pool, *addr))
    }
}

/// Whether the address is that of the owner.
fn is_of(records: &BTreeMap<IpAddr, Record>, addr: &IpAddr, owner: &Owner) -> bool {
    records.get(addr).is_some_and(|record| record.owner() == owner.parts())
}

fn hash(owner: (&str, &str)) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(owner)
}

/// All of a reservation but its pool and its address.
///
/// `created` in little endian, then the texts, each behind its length: one byte, or [`LONG`] and a `u32` in little endian.
#[derive(Clone, Debug)]
struct Record(Box<[u8]>);

/// Stands in front of the length of a text that is this long or longer.
const LONG: u8 = u8::MAX;

impl Record {
    fn new(reservation: &Reservation) -> Self {
        let Reservation { pool: _, owner, addr: _, attachment, created } = reservation;
        let Owner { container_id, if_name } = owner;
        let Attachment { pod_name, pod_namespace, pod_uid, device_id, network } = attachment;
        let texts = [container_id, if_name, pod_name, pod_namespace, pod_uid, device_id, network];
        let mut bytes = created.to_le_bytes().to_vec();
        for text in texts {
            match u8::try_from(text.len()) {
                Ok(length) if length < LONG => bytes.push(length),
                _ => {
                    bytes.push(LONG);
                    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
                }
            }
            bytes.extend(text.as_bytes());
        }
        Self(bytes.into_boxed_slice())
    }

    fn owner(&self) -> (&str, &str) {
        let mut texts = self.texts();
        (texts.text(), texts.text())
    }

    fn unpack(&self, pool: &PoolKey, addr: IpAddr) -> Reservation {
        let created = self.0.first_chunk().copied().map_or(0, i64::from_le_bytes);
        let mut texts = self.texts();
        let mut text = || texts.text().to_owned();
        let owner = Owner { container_id: text(), if_name: text() };
        let attachment =
            Attachment { pod_name: text(), pod_namespace: text(), pod_uid: text(), device_id: text(), network: text() };
        Reservation { pool: pool.clone(), owner, addr, attachment, created }
    }

    fn texts(&self) -> Texts<'_> {
        Texts(self.0.get(size_of::<i64>()..).unwrap_or_default())
    }
}

/// The texts of a record that are left to read.
struct Texts<'a>(&'a [u8]);

impl<'a> Texts<'a> {
    /// The next one; empty where a record has no more.
    fn text(&mut self) -> &'a str {
        let Some((&short, mut rest)) = self.0.split_first() else { return "" };
        let mut length = usize::from(short);
        if short == LONG
            && let Some((long, behind)) = rest.split_first_chunk()
        {
            length = usize::try_from(u32::from_le_bytes(*long)).unwrap_or(usize::MAX);
            rest = behind;
        }
        let (text, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        self.0 = behind;
        str::from_utf8(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PoolKind;

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![Just(String::new()), ".{0,6}", (253..258_usize).prop_map(|length| "x".repeat(length))]
    }

    fn reservation() -> impl Strategy<Value = Reservation> {
        let texts = prop::array::uniform7(text());
        (texts, any::<IpAddr>(), any::<i64>()).prop_map(|(texts, addr, created)| {
            let [container_id, if_name, pod_name, pod_namespace, pod_uid, device_id, network] = texts;
            let attachment = Attachment { pod_name, pod_namespace, pod_uid, device_id, network };
            let pool = PoolKey::new(PoolKind::IpPool, "a");
            Reservation { pool, owner: Owner { container_id, if_name }, addr, attachment, created }
        })
    }

    proptest! {
        #[test]
        fn a_reservation_is_the_same_when_it_is_read(reservation in reservation()) {
            let record = Record::new(&reservation);
            prop_assert_eq!(record.unpack(&reservation.pool, reservation.addr), reservation);
        }

        #[test]
        fn each_owner_is_found_by_its_name_after_any_sequence_of_changes(
            steps in prop::collection::vec((0..40_u8, 0..40_u8, any::<bool>()), 0..200),
        ) {
            let pool = PoolKey::new(PoolKind::IpPool, "a");
            let (mut held, mut model) = (Held::default(), BTreeMap::new());
            for (addr, owner, adds) in steps {
                let (addr, owner) = (IpAddr::from([10, 0, 0, addr]), Owner::new(format!("c{owner}"), "net1"));
                if adds && !model.values().any(|other| *other == owner) {
                    let attachment = Attachment::default();
                    held.insert(&Reservation { pool: pool.clone(), owner: owner.clone(), addr, attachment, created: 1 });
                    model.insert(addr, owner);
                } else {
                    held.remove(addr);
                    model.remove(&addr);
                }
                let read: BTreeMap<_, _> = held.behind(&pool, None).map(|it| (it.addr, it.owner)).collect();
                prop_assert_eq!(&read, &model);
                for (addr, owner) in &model {
                    prop_assert_eq!(held.addr_of(owner), Some(*addr));
                }
                prop_assert_eq!(held.by_owner.len(), model.len());
            }
        }
    }
}
