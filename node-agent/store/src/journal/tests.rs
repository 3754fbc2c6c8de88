//! Crash, damage and full-disk tests of the journal, on a disk that can do all three on command.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ipam_core::ledger::{Attachment, Ledger, Owner, Reservation};
use ipam_core::{PoolKey, PoolKind};
use proptest::prelude::*;

use super::super::fake::FakeDisk;
use super::*;

/// Reads the journal as a restart does; the state is what the ledger makes of it.
fn open(disk: &FakeDisk) -> Result<(Journal<FakeDisk>, Ledger), StoreError> {
    open_with(disk, CHUNK)
}

/// The same with this many zeros written ahead in one go.
fn open_with(disk: &FakeDisk, chunk: usize) -> Result<(Journal<FakeDisk>, Ledger), StoreError> {
    let mut ledger = Ledger::new(60);
    let opened = Opened::read(disk.clone(), |change| ledger.apply(change))?.with_chunk(chunk);
    let journal = opened.begin(ledger.snapshot())?;
    Ok((journal, ledger))
}

/// All that the ledger has.
fn all(ledger: &Ledger) -> Vec<Change> {
    ledger.snapshot().collect()
}

fn reserve(number: u32) -> Change {
    let reservation = Reservation {
        pool: PoolKey::new(PoolKind::IpPool, "pool"),
        owner: Owner::new(format!("container-{number}"), "net1"),
        addr: std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into(),
        attachment: Attachment {
            pod_name: "p".repeat(usize::try_from(number % 300).unwrap()),
            ..Attachment::default()
        },
        created: 1_700_000_000,
    };
    Change::Reserve { reservation, moves_cursor: true }
}

fn release(number: u32) -> Change {
    let owner = Owner::new(format!("container-{number}"), "net1");
    Change::Release { pool: PoolKey::new(PoolKind::IpPool, "pool"), owner, at: 1_700_000_100 }
}

fn committed<D: Directory>(journal: &mut Journal<D>, ledger: &mut Ledger, changes: &[Change]) {
    journal.commit(changes).unwrap();
    for change in changes {
        ledger.apply(change);
    }
}

#[test]
fn a_restart_finds_the_position_that_was_told_last() {
    let disk = FakeDisk::default();
    assert_eq!(Opened::read(disk.clone(), |_| {}).unwrap().position(), Position::default(), "no journal");
    let mut before = Position::default();
    for number in 0..3 {
        let (mut journal, mut ledger) = open(&disk).unwrap();
        assert!(journal.position() > before, "an opening is progress");
        committed(&mut journal, &mut ledger, &[reserve(number)]);
        if number == 1 {
            journal.compact(&mut ledger.snapshot()).unwrap();
        }
        before = journal.position();
        drop(journal);
        assert_eq!(Opened::read(disk.clone(), |_| {}).unwrap().position(), before);
    }
}

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Change>),
    Compact,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0..40_u32, any::<bool>()).prop_map(|(n, give)| if give { reserve(n) } else { release(n) });
    let commit = prop::collection::vec(change, 1..4).prop_map(Step::Commit);
    prop::collection::vec(prop_oneof![5 => commit, 1 => Just(Step::Compact)], 1..7)
}

/// Runs a history until it ends or the power is cut. Returns the state that was acknowledged, and the one that a commit
/// under way at the cut would have made.
fn run(disk: &FakeDisk, steps: &[Step], chunk: usize) -> (Ledger, Ledger) {
    let Ok((mut journal, mut acknowledged)) = open_with(disk, chunk) else {
        return (Ledger::new(60), Ledger::new(60));
    };
    for step in steps {
        let mut next = acknowledged.clone();
        let done = match step {
            Step::Commit(changes) => {
                for change in changes {
                    next.apply(change);
                }
                journal.commit(changes)
            }
            Step::Compact => journal.compact(&mut acknowledged.snapshot()),
        };
        if done.is_err() {
            return (acknowledged, next);
        }
        acknowledged = next;
    }
    (acknowledged.clone(), acknowledged)
}

/// A cheap deterministic source of choices.
fn choices(mut seed: u64) -> impl FnMut() -> bool {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 63 == 1
    }
}

fn is_one_of(found: &Ledger, acknowledged: &Ledger, under_way: &Ledger) -> bool {
    let found = all(found);
    found == all(acknowledged) || found == all(under_way)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_power_cut_at_any_step_loses_nothing_acknowledged_and_halves_nothing(
        steps in steps(),
        seed in any::<u64>(),
        // With few zeros ahead, a record is longer than they are.
        chunk in prop_oneof![Just(CHUNK), Just(256)],
    ) {
        let whole = FakeDisk::default();
        run(&whole, &steps, chunk);
        for cut in 0..=whole.steps() {
            let disk = FakeDisk::default();
            disk.cut_at(cut);
            let (acknowledged, under_way) = run(&disk, &steps, chunk);
            for variant in 0..4 {
                let mut choose = choices(seed ^ (variant << 32) ^ u64::try_from(cut).unwrap());
                let found = disk.after_cut(&mut choose);
                // The power fails again while the agent starts, before it comes up at last.
                let again = found.after_cut(&mut || true);
                again.cut_at(usize::try_from(variant).unwrap() + 1);
                drop(open(&again));
                for image in [found, again.after_cut(&mut choose)] {
                    image.fill();
                    let (mut journal, ledger) = open(&image).unwrap();
                    prop_assert!(is_one_of(&ledger, &acknowledged, &under_way), "cut at {cut}, variant {variant}");
                    // Without room for a new file, a release is taken and not recorded.
                    let mut more = ledger.clone();
                    committed(&mut journal, &mut more, &[release(0)]);
                    let expected = if journal.is_waiting() { ledger } else { more };
                    image.set_room(None);
                    let (mut journal, mut found) = open(&image).unwrap();
                    prop_assert_eq!(all(&found), all(&expected));
                    committed(&mut journal, &mut found, &[release(0)]);
                    prop_assert_eq!(all(&open(&image).unwrap().1), all(&found));
                }
            }
        }
    }
}

/// A journal of some commits, its bytes, and the states after each commit.
fn written() -> (FakeDisk, Vec<Ledger>) {
    let disk = FakeDisk::default();
    let (mut journal, mut ledger) = open(&disk).unwrap();
    let mut states = Vec::new();
    for number in 1..=6 {
        committed(&mut journal, &mut ledger, &[reserve(number), release(number / 2)]);
        states.push(ledger.clone());
    }
    (disk, states)
}

fn used(file: &[u8]) -> usize {
    file.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

#[test]
fn a_bit_flipped_anywhere_is_refused_or_costs_at_most_what_a_crash_may() {
    let (disk, states) = written();
    let file = disk.bytes(FILE);
    let [.., before_last, last] = &states[..] else { unreachable!("six commits") };
    let (mut refused, mut dropped) = (0, 0);
    for at in 0..used(&file) + 64 {
        let mut damaged = file.clone();
        damaged[at] ^= 1 << (at % 8);
        disk.overwrite(FILE, damaged);
        match open(&disk) {
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged { .. }), "offset {at}: {error}");
                refused += 1;
            }
            Ok((_, ledger)) if all(&ledger) == all(last) => {}
            Ok((_, ledger)) => {
                assert_eq!(all(&ledger), all(before_last), "offset {at}");
                dropped += 1;
            }
        }
    }
    // Only the last record cannot be told from a write that a crash has cut off.
    assert!(refused > 3 * dropped && dropped > 0, "{refused} refused, {dropped} dropped");
}

#[test]
fn a_file_cut_short_anywhere_is_refused_unless_only_zeros_are_lost() {
    let (disk, states) = written();
    let file = disk.bytes(FILE);
    let used = used(&file);
    for len in (0..used + 2 * record::HEADER).chain([file.len() - 1]) {
        disk.overwrite(FILE, file[..len].to_vec());
        match open(&disk) {
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged { .. }), "{len} bytes: {error}");
                assert!(
                    ["move the file away", "Do not put an older copy"]
                        .iter()
                        .all(|part| error.to_string().contains(part)),
                    "{error}"
                );
            }
            Ok((_, ledger)) => {
                assert!(len >= used + record::HEADER, "{len} bytes");
                assert_eq!(all(&ledger), all(states.last().unwrap()), "{len} bytes");
            }
        }
    }
}

#[test]
fn a_hole_before_an_intact_record_is_damage_and_says_where() {
    let (disk, _) = written();
    let mut file = disk.bytes(FILE);
    let third = (0..3).fold(MAGIC.len(), |at, _| at + record::at(&file, at).unwrap().size());
    file[third..third + record::HEADER].fill(0);
    disk.overwrite(FILE, file);
    let message = open(&disk).unwrap_err().to_string();
    assert!(message.contains(&format!("record 3 at offset {third} is unreadable")), "{message}");
    assert!(message.contains("record 4 at offset"), "{message}");
}

#[test]
fn a_long_snapshot_has_several_records_and_no_part_of_it_is_ever_taken_for_all() {
    let disk = FakeDisk::default();
    let (mut journal, mut ledger) = open(&disk).unwrap();
    committed(&mut journal, &mut ledger, &(100..200).map(reserve).collect::<Vec<_>>());
    journal.compact(&mut ledger.snapshot()).unwrap();
    let end = journal.bytes();
    let written = disk.bytes(FILE);
    assert_eq!(all(&open(&disk).unwrap().1), all(&ledger));
    let starts = std::iter::successors(Some(MAGIC.len()), |at| Some(at + record::at(&written, *at)?.size()));
    let starts: Vec<_> = starts.take_while(|at| *at < end).collect();
    assert!(starts.len() > 2, "{starts:?}");
    for start in starts {
        for lost in [start..start + record::HEADER, start..end] {
            let mut file = written.clone();
            file[lost].fill(0);
            disk.overwrite(FILE, file);
            let refused = open(&disk).unwrap_err().to_string();
            assert!(refused.contains(&format!("offset {start}")), "{start}: {refused}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), as_journal in any::<bool>()) {
        if as_journal {
            bytes.splice(0..0, MAGIC);
        }
        let disk = FakeDisk::default();
        disk.overwrite(FILE, bytes);
        prop_assert!(open(&disk).is_err());
    }
}

#[test]
fn after_a_failed_sync_nothing_is_accepted_and_no_sync_is_tried_again() {
    let disk = FakeDisk::default();
    let (mut journal, _) = open(&disk).unwrap();
    disk.fail_sync_at(disk.syncs() + 1);
    assert!(matches!(journal.commit(&[reserve(1)]), Err(StoreError::Io { .. })));
    let syncs = disk.syncs();
    for refused in
        [journal.commit(&[reserve(2)]), journal.make_room(10, Room::Release), journal.compact(&mut std::iter::empty())]
    {
        assert!(matches!(refused, Err(StoreError::Io { .. })));
    }
    assert_eq!(disk.syncs(), syncs);
}

#[test]
fn a_full_disk_is_refused_before_anything_is_written_and_releases_have_room_left() {
    let disk = FakeDisk::default();
    let (mut journal, mut ledger) = open(&disk).unwrap();
    disk.set_room(Some(disk.bytes(FILE).len()));
    let mut given = 0;
    while journal.make_room(1000, Room::Release).is_ok() {
        committed(&mut journal, &mut ledger, &[reserve(given)]);
        given += 1;
    }
    assert!(given > 10, "what is zero-filled ahead is used up first");
    let refused = journal.make_room(1_000, Room::Release).unwrap_err();
    assert!(refused.is_harmless() && refused.to_string().contains("no space left"), "{refused}");
    assert!(journal.compact(&mut ledger.snapshot()).unwrap_err().is_harmless());
    journal.make_room(100, Room::Release).unwrap();
    committed(&mut journal, &mut ledger, &[release(0)]);
    disk.set_room(None);
    journal.make_room(1_000, Room::Release).unwrap();
    committed(&mut journal, &mut ledger, &[reserve(given)]);
    assert_eq!(all(&open(&disk).unwrap().1), all(&ledger));
}

#[test]
fn a_journal_over_its_quota_works_once_there_is_room() {
    let disk = FakeDisk::default();
    disk.set_quota();
    let (mut journal, mut ledger) = open(&disk).unwrap();
    committed(&mut journal, &mut ledger, &[reserve(1), reserve(2)]);
    // The zeros that are there take the next record, and not one that is larger than they are.
    disk.fill();
    let refused = journal.make_room(2 * CHUNK, Room::Other { spare: 0 }).unwrap_err();
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    committed(&mut journal, &mut ledger, &[release(1)]);
    drop(journal);
    let (mut journal, mut ledger) = open(&disk).unwrap();
    assert!(journal.is_waiting(), "a start needs room for a new file");
    let refused = journal.make_room(100, Room::Other { spare: 0 }).unwrap_err();
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    committed(&mut journal, &mut ledger, &[release(2)]);
    disk.set_room(None);
    journal.compact(&mut ledger.snapshot()).unwrap();
    committed(&mut journal, &mut ledger, &[reserve(3)]);
    assert_eq!(all(&open(&disk).unwrap().1), all(&ledger));
}

#[test]
fn a_journal_that_cannot_be_written_takes_releases_until_it_can() {
    let make: [fn(&FakeDisk); 2] = [|disk| disk.set_read_only(true), FakeDisk::fill];
    for make_unwritable in make {
        let disk = FakeDisk::default();
        let (mut journal, mut ledger) = open(&disk).unwrap();
        committed(&mut journal, &mut ledger, &[reserve(1), reserve(2)]);
        let position = journal.position();
        drop(journal);
        make_unwritable(&disk);
        for _ in 0..2 {
            let (mut journal, mut found) = open(&disk).unwrap();
            assert_eq!(all(&found), all(&ledger), "a release was not durable");
            assert!(journal.is_waiting());
            let refused = journal.make_room(100, Room::Other { spare: 0 }).unwrap_err();
            assert!(refused.is_harmless(), "{refused}");
            journal.make_room(100, Room::Release).unwrap();
            committed(&mut journal, &mut found, &[release(1)]);
            assert_eq!(journal.position(), position, "the start is not recorded, so its journal is not a later one");
            assert!(journal.compact(&mut found.snapshot()).unwrap_err().is_harmless());
            assert!(journal.is_waiting());
        }
        let (mut journal, mut found) = open(&disk).unwrap();
        let before = journal.position();
        committed(&mut journal, &mut found, &[release(1)]);
        disk.set_read_only(false);
        disk.set_room(None);
        journal.compact(&mut found.snapshot()).unwrap();
        assert!(!journal.is_waiting() && journal.position() > before);
        committed(&mut journal, &mut found, &[reserve(3)]);
        assert_eq!(all(&open(&disk).unwrap().1), all(&found));
    }
}

#[test]
fn a_first_start_on_a_disk_that_takes_nothing_says_what_it_lacks() {
    let disk = FakeDisk::default();
    disk.set_read_only(true);
    let (mut journal, found) = open(&disk).unwrap();
    let refused = journal.make_room(100, Room::Other { spare: 0 }).unwrap_err();
    assert!(matches!(refused, StoreError::ReadOnly { .. }), "{refused}");
    disk.set_read_only(false);
    disk.set_room(Some(0));
    let (mut journal, _) = open(&disk).unwrap();
    let refused = journal.make_room(100, Room::Other { spare: 0 }).unwrap_err();
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    disk.set_room(None);
    journal.compact(&mut found.snapshot()).unwrap();
    assert!(!journal.is_waiting());
}

#[test]
fn compaction_is_wanted_when_the_history_outgrows_the_state_and_keeps_the_state() {
    let disk = FakeDisk::default();
    let (mut journal, mut ledger) = open(&disk).unwrap();
    let mut commits = 0;
    while !journal.wants_compaction() {
        committed(&mut journal, &mut ledger, &[reserve(commits % 50), release(commits % 50)]);
        commits += 1;
    }
    assert!(commits > 100);
    let before = disk.bytes(FILE).len();
    journal.compact(&mut ledger.snapshot()).unwrap();
    assert!(disk.bytes(FILE).len() < before / 2 && !journal.wants_compaction());
    committed(&mut journal, &mut ledger, &[reserve(99)]);
    assert_eq!(all(&open(&disk).unwrap().1), all(&ledger));
}

#[test]
fn a_compaction_without_room_is_not_tried_again_with_each_commit() {
    let disk = FakeDisk::default();
    let (mut journal, mut ledger) = open(&disk).unwrap();
    while !journal.wants_compaction() {
        committed(&mut journal, &mut ledger, &[reserve(7), release(7)]);
    }
    disk.set_room(Some(disk.bytes(FILE).len()));
    assert!(journal.compact(&mut ledger.snapshot()).unwrap_err().is_harmless());
    assert!(!journal.wants_compaction());
    disk.set_room(None);
    let mut commits = 0;
    while !journal.wants_compaction() {
        committed(&mut journal, &mut ledger, &[reserve(7), release(7)]);
        commits += 1;
    }
    assert!(commits > 10, "only after as many commits as make it worth its cost");
    journal.compact(&mut ledger.snapshot()).unwrap();
    assert_eq!(all(&open(&disk).unwrap().1), all(&ledger));
}

#[test]
fn each_opening_has_a_new_epoch_so_that_older_bytes_are_never_taken_for_records() {
    let disk = FakeDisk::default();
    let epochs: Vec<_> = (0..3).map(|_| open(&disk).unwrap().0.epoch).collect();
    assert_eq!(epochs, [1, 2, 3]);
}

#[test]
fn a_record_of_another_epoch_ends_the_history() {
    let (disk, states) = written();
    let file = disk.bytes(FILE);
    let (mut end, mut next) = (MAGIC.len(), 0);
    while let Some(found) = record::at(&file, end) {
        (end, next) = (end + found.size(), found.sequence + 1);
    }
    let epoch = record::at(&file, MAGIC.len()).unwrap().epoch;
    for other in [epoch - 1, epoch + 1] {
        let stray = record::encode(other, next, &codec::encode(&[reserve(39)]));
        let mut file = file.clone();
        file[end..end + stray.len()].copy_from_slice(&stray);
        disk.overwrite(FILE, file);
        assert_eq!(all(&open(&disk).unwrap().1), all(states.last().unwrap()), "epoch {other}");
    }
}

/// A folder in memory that counts the bytes written into its files.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Folder>>);

#[derive(Default)]
struct Folder {
    files: BTreeMap<String, Arc<Mutex<Vec<u8>>>>,
    written: usize,
}

/// One of its files.
struct CountedFile {
    folder: Counted,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Directory for Counted {
    type File = CountedFile;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().files.get(name).map(|bytes| bytes.lock().unwrap().clone()))
    }

    fn create(&self, name: &str) -> io::Result<CountedFile> {
        self.0.lock().unwrap().files.insert(name.to_owned(), Arc::default());
        let bytes = Arc::clone(&self.0.lock().unwrap().files[name]);
        Ok(CountedFile { folder: self.clone(), bytes })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let files = &mut self.0.lock().unwrap().files;
        let file = files.remove(from).unwrap();
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().unwrap().files.remove(name);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn path_of(&self, name: &str) -> String {
        name.to_owned()
    }
}

impl DiskFile for CountedFile {
    fn reserve(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let mut file = self.bytes.lock().unwrap();
        let len = file.len().max(start + bytes.len());
        file.resize(len, 0);
        file[start..start + bytes.len()].copy_from_slice(bytes);
        self.folder.0.lock().unwrap().written += bytes.len();
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_day_of_pods_writes_three_times_its_records_at_most() {
    let directory = Counted::default();
    let mut ledger = Ledger::new(0);
    let opened = Opened::read(directory.clone(), |_| {}).unwrap().with_chunk(256 * 1024);
    let mut journal = opened.begin(ledger.snapshot()).unwrap();
    let (mut records, mut largest) = (0, 0);
    for pod in 0..20_000_u32 {
        let add = Change::Reserve { reservation: of_a_pod(pod), moves_cursor: true };
        let owner = of_a_pod(pod.saturating_sub(200)).owner;
        let del = Change::Release { pool: PoolKey::new(PoolKind::IpPool, "pool"), owner, at: 1_700_000_000 };
        let changes = if pod < 200 { vec![add] } else { vec![add, del] };
        for change in changes {
            let before = journal.bytes();
            committed(&mut journal, &mut ledger, &[change]);
            records += journal.bytes() - before;
            largest = largest.max(journal.bytes() - before);
            if journal.wants_compaction() {
                journal.compact(&mut ledger.snapshot()).unwrap();
            }
        }
    }
    let written = directory.0.lock().unwrap().written;
    assert!(journal.position().epoch > 5, "the journal was compacted");
    assert!(written <= 3 * records, "{written} bytes for {records} bytes of records");
    assert!(largest <= 512, "{largest} bytes for the record of one address");
}

/// The reservation of a pod whose texts have the usual lengths.
fn of_a_pod(number: u32) -> Reservation {
    let Change::Reserve { reservation, .. } = reserve(number) else { unreachable!() };
    let attachment = Attachment {
        pod_name: format!("training-worker-7f9c5d{number:08}"),
        pod_namespace: "machine-learning".to_owned(),
        pod_uid: format!("00000000-0000-4000-8000-{number:012x}"),
        network: "rdma-network".to_owned(),
        ..Attachment::default()
    };
    Reservation { owner: Owner::new(format!("{number:064x}"), "net1"), attachment, ..reservation }
}
