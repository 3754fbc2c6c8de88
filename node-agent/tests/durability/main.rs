//! What the real agent has asked of the disk when an answer leaves it, seen from outside by its system calls. That is the
//! last step of durability: a fake disk lies before it, and `kill -9` loses nothing that was never synced. Needs strace.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod server;
mod trace;

use std::collections::BTreeSet;
use std::path::Path;

use agent::{Home, parent};
use common::{deadline, parameters};
use futures::future::join_all;
use ipam_node_api::client::AgentClient;
use trace::Call;

async fn add(client: &AgentClient, container: &str) -> Result<String, tonic::Status> {
    client.allocate(parameters(&["blue"], container), deadline()).await.map(|allocated| allocated[0].ip.clone())
}

fn is_journal(path: &Path) -> bool {
    path.ends_with("store.d/journal")
}

/// The first request at or behind a line of the trace that names the container, and the first answer on its connection
/// after it.
fn exchange<'a>(calls: &'a [Call], container: &str, from: usize) -> (&'a Call, &'a Call) {
    let mut received = calls.iter().filter(|call| call.begin >= from && call.is_read());
    let request = received.find(|call| call.mentions(container)).expect("a request");
    let mut after = calls.iter().filter(|call| call.begin > request.end && call.descriptor == request.descriptor);
    (request, after.find(|call| call.answers()).expect("an answer"))
}

/// Between these two calls a record that names the container is written, and then the journal is synced.
fn assert_durable(calls: &[Call], container: &str, request: &Call, answer: &Call) {
    let between = |call: &&Call| call.begin > request.end && call.end < answer.begin && is_journal(&call.descriptor);
    let journal: Vec<&Call> = calls.iter().filter(between).collect();
    let record = journal.iter().find(|call| call.is_write() && call.mentions(container));
    let record = record.unwrap_or_else(|| panic!("no record of {container} before the answer"));
    let synced = journal.iter().any(|call| call.is_sync() && call.begin > record.end && call.result == 0);
    assert!(synced, "the record of {container} is not synced before the answer");
}

#[tokio::test]
async fn answers_leave_after_their_record_is_synced() {
    let home = Home::with_spec();
    let (agent, client) = home.serve(&[]).await;
    add(&client, "alone").await.unwrap();
    client.deallocate(parameters(&["blue"], "alone"), deadline()).await.unwrap();
    let crowd: Vec<String> = (0..8).map(|number| format!("crowd-{number}")).collect();
    let allocated = join_all(crowd.iter().map(async |name| (name, add(&client, name).await.unwrap()))).await;
    let calls = agent.stop().await;

    let (request, answer) = exchange(&calls, "alone", 0);
    assert_durable(&calls, "alone", request, answer);
    let (request, answer) = exchange(&calls, "alone", answer.end);
    assert_durable(&calls, "alone", request, answer);
    for (name, address) in &allocated {
        let (request, _) = exchange(&calls, name, answer.end);
        let mut answers = calls.iter().filter(|call| call.begin > request.end && call.answers());
        let answer = answers.find(|call| call.mentions(address)).expect("an answer with the address");
        assert_durable(&calls, name, request, answer);
    }
}

/// What a thread writes, syncs and changes in directories; the socket and the spool, which each start makes, apart.
fn effects(calls: &[Call], thread: u32) -> Vec<&Call> {
    let is_made_again = |call: &Call| call.mentions("/daemon.sock") || call.mentions("/spool");
    let of_socket = |call: &Call| call.changes_a_directory() && is_made_again(call);
    let has_effect = |call: &&Call| call.is_write() || call.is_sync() || call.changes_a_directory();
    calls.iter().filter(|call| call.thread == thread).filter(has_effect).filter(|call| !of_socket(call)).collect()
}

/// The changes of directories in a trace, as `CALL NAME`. After each the next thing that its thread does is to sync the
/// directory, and before a file gets the name of another it is synced.
fn durable_changes(calls: &[Call]) -> BTreeSet<String> {
    let mut changes = BTreeSet::new();
    for thread in calls.iter().map(|call| call.thread).collect::<BTreeSet<_>>() {
        let effects = effects(calls, thread);
        for (index, change) in effects.iter().enumerate().filter(|(_, call)| call.changes_a_directory()) {
            let target = change.path(change.strings.len() - 1);
            let next = effects.get(index + 1).expect("a sync of the directory");
            let synced = next.is_sync() && next.result == 0 && next.descriptor == parent(&target);
            assert!(synced, "{} {} is followed by {next:?}", change.name, target.display());
            if change.is_rename() {
                let of_source = |call: &&&Call| call.descriptor == change.path(0);
                // A file that this process has not written is of an earlier one, which synced it.
                let last = effects[..index].iter().rfind(of_source);
                let is_synced = last.is_none_or(|last| last.is_sync() && last.result == 0);
                assert!(is_synced, "{} is renamed after {last:?}", target.display());
            }
            let name = target.file_name().unwrap().display().to_string();
            // The kept copy of an imported store has the time in its name.
            let name = name.split_once(".imported-").map_or(name.as_str(), |(imported, _)| imported);
            changes.insert(format!("{} {name}", change.name));
        }
    }
    changes
}

#[tokio::test]
async fn each_change_of_a_directory_is_synced() {
    let home = Home::new(Some(server::start()));
    home.save_host_local("blue", "192.168.0.3", "imported\nnet1");
    let (agent, client) = home.serve(&[]).await;
    let allocated = add(&client, "first").await.unwrap();
    let calls = agent.stop().await;
    let changes = durable_changes(&calls);
    let expected = [
        "mkdir store.d",
        "rename journal",
        "rename nv-ipam",
        "rename nv-ipam.conf",
        "rename host-local",
        "rename store",
    ];
    assert_eq!(changes, expected.map(str::to_owned).into());

    // The block is on disk before an address of it leaves.
    let is_of_journal = |call: &&Call| is_journal(&call.descriptor);
    let recorded =
        calls.iter().filter(is_of_journal).find(|call| call.is_write() && call.mentions("\"blue\"")).expect("a record");
    let answer = calls.iter().find(|call| call.answers() && call.mentions(&allocated)).expect("an answer");
    let synced =
        |call: &Call| call.is_sync() && call.begin > recorded.end && call.end < answer.begin && call.result == 0;
    assert!(calls.iter().filter(is_of_journal).any(synced));
}

#[tokio::test]
async fn a_failed_sync_of_the_journal_ends_the_agent() {
    for error in ["EIO", "ENOSPC"] {
        let home = Home::with_spec();
        // strace counts for each thread: the second sync of the one that commits.
        let (mut agent, client) = home.serve(&["-e", &format!("inject=fdatasync:error={error}:when=2")]).await;
        let before = add(&client, "before").await.unwrap();
        add(&client, "first").await.unwrap_err();
        assert_eq!(agent.end().await, Some(1), "{error}");
        assert!(home.log().contains("the store failed; nothing more is acknowledged"), "{}", home.log());
        let calls = agent.calls();
        let failed = calls.iter().find(|call| call.is_sync() && call.result < 0).expect("a failed sync");
        assert!(!calls.iter().any(|call| call.begin > failed.end && is_journal(&call.descriptor)), "{error}: no retry");

        let (agent, client) = home.serve(&[]).await;
        assert_eq!(add(&client, "before").await.unwrap(), before);
        let again = add(&client, "first").await.unwrap();
        let allocated = BTreeSet::from([before, again, add(&client, "second").await.unwrap()]);
        assert_eq!(allocated.len(), 3);
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_failed_sync_at_the_start_ends_the_agent() {
    for (place, call, reason) in [
        ("store.d", "fsync", "cannot sync the directory of"),
        ("", "fsync", "cannot sync the parent of"),
        ("store.d/journal.new", "fdatasync", "cannot sync"),
    ] {
        let home = Home::with_spec();
        let place = home.path(place);
        let fault = format!("inject={call}:error=EIO");
        let mut agent = home.start(&["-P", place.to_str().unwrap().trim_end_matches('/'), "-e", &fault]);
        assert_eq!(agent.end().await, Some(1), "{}", place.display());
        let log = home.log();
        assert!(log.contains(reason) && log.contains("Input/output error"), "{}: {log}", place.display());
    }
}

#[tokio::test]
async fn without_fallocate_the_journal_is_filled_with_zeros() {
    let home = Home::with_spec();
    let (agent, client) = home.serve(&["-e", "inject=fallocate:error=EOPNOTSUPP"]).await;
    let allocated = add(&client, "first").await.unwrap();
    let calls = agent.stop().await;
    let refused: Vec<_> = calls.iter().filter(|call| call.name == "fallocate").collect();
    assert!(!refused.is_empty() && refused.iter().all(|call| call.result < 0), "{refused:?}");
    let zeros = calls
        .iter()
        .any(|call| call.is_write() && call.descriptor.ends_with("journal.new") && call.result > 256 * 1024);
    assert!(zeros, "the room is taken by writing");
    let (agent, client) = home.serve(&[]).await;
    assert_eq!(add(&client, "first").await.unwrap(), allocated);
    agent.stop().await;
}

#[tokio::test]
async fn without_room_to_write_an_agent_refuses_add_and_says_why() {
    let home = Home::with_spec();
    let faults = ["-e", "inject=fallocate:error=ENOSPC", "-e", "inject=pwrite64:error=ENOSPC"];
    // Before it has missed the API server, it refuses for another reason.
    let has_blocks =
        async |client: &AgentClient| add(client, "first").await.is_err_and(|it| it.code() != tonic::Code::Unavailable);
    let (agent, client) = home.serve_until(&faults, has_blocks).await;
    let refused = add(&client, "first").await.unwrap_err();
    assert!(refused.message().contains("no space left for the journal"), "{refused}");
    agent.stop().await;
    assert!(!home.path("store.d/journal.new").exists(), "what was begun takes no room");
}

#[tokio::test]
async fn interrupted_writes_and_syncs_are_repeated() {
    let home = Home::with_spec();
    // strace counts for each thread: the second of each of the one that commits.
    let faults = ["-e", "inject=pwrite64:error=EINTR:when=2", "-e", "inject=fdatasync:error=EINTR:when=2"];
    let (agent, client) = home.serve(&faults).await;
    add(&client, "before").await.unwrap();
    let allocated = add(&client, "first").await.unwrap();
    let calls = agent.stop().await;
    assert_eq!(calls.iter().filter(|call| call.result < 0 && is_journal(&call.descriptor)).count(), 2);
    let (request, answer) = exchange(&calls, "first", 0);
    assert_durable(&calls, "first", request, answer);
    let (agent, client) = home.serve(&[]).await;
    assert_eq!(add(&client, "first").await.unwrap(), allocated);
    agent.stop().await;
}

#[tokio::test]
async fn a_short_write_is_continued_where_it_ended() {
    const WRITTEN: i64 = 8;
    let home = Home::with_spec();
    let (agent, client) = home.serve(&["-e", "inject=pwrite64:retval=8:when=2"]).await;
    add(&client, "before").await.unwrap();
    add(&client, "first").await.unwrap();
    let calls = agent.stop().await;
    let writes: Vec<_> = calls.iter().filter(|call| call.is_write() && is_journal(&call.descriptor)).collect();
    let [_, short, rest] = writes[..] else { panic!("{writes:?}") };
    assert_eq!((short.result, rest.bytes()), (WRITTEN, short.bytes()[8..].to_vec()));
    let [from, to] = [short, rest].map(|call| call.last.parse::<i64>().unwrap());
    assert_eq!(from + WRITTEN, to);
}
