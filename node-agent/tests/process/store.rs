//! `ipam-node store`, and agents whose journal is damaged.

use super::*;

/// Flips a bit of the journal in the record that has this text.
fn damage(home: &Home, text: &str) {
    let journal = home.path("store.d/journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    let at = bytes.windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
}

#[tokio::test]
async fn what_is_before_the_damage_of_a_journal_is_served_and_nothing_allocated() {
    let home = Home::new().with_spec();
    let (mut agent, client) = home.start().await;
    for container in ["first", "second", "third"] {
        client.allocate(parameters(&["blue"], container), deadline()).await.unwrap();
    }
    agent.signal(Signal::KILL);
    agent.wait().await;
    damage(&home, "second");
    for _ in 0..2 {
        let (mut agent, client) = home.start_unready().await;
        client.is_allocated(parameters(&["blue"], "first"), deadline()).await.unwrap();
        let refused = client.allocate(parameters(&["blue"], "fourth"), deadline()).await.unwrap_err();
        let message = refused.message();
        assert!(
            message.contains("store.d/journal is damaged: record 2") && message.contains("move the file away"),
            "{message}"
        );
        client.deallocate(parameters(&["blue"], "first"), deadline()).await.unwrap();
        assert!(client.is_allocated(parameters(&["blue"], "first"), deadline()).await.is_err());
        client.deallocate(parameters(&["blue"], "second"), deadline()).await.unwrap();
        assert!(client.probe(deadline()).await.is_err(), "CNI STATUS fails");
        agent.signal(Signal::TERM);
        agent.wait().await;
    }
}

#[tokio::test]
async fn a_file_that_is_no_journal_keeps_no_pod_from_being_removed() {
    let home = Home::new();
    std::fs::create_dir(home.path("store.d")).unwrap();
    std::fs::write(home.path("store.d/journal"), "no journal").unwrap();
    let (_agent, client) = home.start_unready().await;
    client.deallocate(parameters(&["blue"], "any"), deadline()).await.unwrap();
}

/// Runs `ipam-node store`: exit code, stdout and stderr.
fn store(home: &Home, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipam-node"));
    let words = words.iter().map(|word| (*word).to_owned());
    common::run(command.arg("store").args(words).arg(format!("--store-file={}", home.path("store").display())))
}

#[tokio::test]
async fn the_store_is_shown_and_checked_beside_a_running_agent() {
    let home = Home::new().with_spec();
    let (mut agent, client) = home.start().await;
    for container in ["c1", "c2"] {
        client.allocate(parameters(&["blue"], container), deadline()).await.unwrap();
    }
    let (code, shown, stderr) = store(&home, &["show", "-o", "json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let containers: Vec<_> =
        shown["addresses"].as_array().unwrap().iter().map(|one| (&one["containerID"], &one["address"])).collect();
    assert_eq!(containers, [(&"c1".into(), &"192.168.0.2".into()), (&"c2".into(), &"192.168.0.3".into())]);
    let (_, yaml, _) = store(&home, &["show", "--output=yaml", "--address=192.168.0.3"]);
    assert!(yaml.contains("containerID: c2") && !yaml.contains("containerID: c1"), "{yaml}");
    for (filter, lines) in [("--pool=blue", 3), ("--pool=other", 1), ("--pod=absent", 1)] {
        assert_eq!(store(&home, &["show", filter]).1.lines().count(), lines, "{filter}");
    }
    let (code, text, _) = store(&home, &["check"]);
    assert!(code == Some(0) && text.contains("is intact") && text.contains("addresses in use: 2\n"), "{text}");

    let (code, _, stderr) = store(&home, &["export", "--write"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("in use by another process"), "{stderr}");
    agent.signal(Signal::TERM);
    agent.wait().await;
    damage(&home, "c1");
    let (code, _, stderr) = store(&home, &["check"]);
    assert!(code == Some(1) && stderr.contains("is damaged"), "{stderr}");
    let (code, _, stderr) = store(&Home::new(), &["show"]);
    assert!(code == Some(1) && stderr.contains("there is no journal in"), "{stderr}");
    assert_eq!(store(&home, &["what"]).0, Some(2));
}

#[tokio::test]
async fn an_address_is_released_by_the_agent_or_without_one() {
    let home = Home::new().with_spec();
    let (mut agent, client) = home.start().await;
    for container in ["c1", "c2", "c3"] {
        client.allocate(parameters(&["blue"], container), deadline()).await.unwrap();
    }
    let socket = format!("--bind-address=unix://{}", home.path("daemon.sock").display());
    let release = |address: &str, more: &[&str]| {
        let words = [&["release", "--address", address, &socket], more].concat();
        store(&home, &words)
    };
    let (code, _, stderr) = release("192.168.0.2", &[]);
    assert!(code == Some(1) && stderr.contains("pod default/pod-c1") && stderr.contains("Add --yes"), "{stderr}");
    let (code, _, stderr) = release("192.168.0.9", &["--yes"]);
    assert!(code == Some(1) && stderr.contains("192.168.0.9 is not in use on this node"), "{stderr}");
    let (code, done, stderr) = release("192.168.0.2", &["--yes", "--pool=blue"]);
    assert!(
        code == Some(0)
            && done.contains("released 192.168.0.2 of pod default/pod-c1 in IPPool blue (interface net1, sandbox c1)"),
        "{stderr}"
    );
    assert!(client.is_allocated(parameters(&["blue"], "c1"), deadline()).await.is_err(), "the agent did it");

    agent.signal(Signal::TERM);
    agent.wait().await;
    let (code, done, stderr) = release("192.168.0.3", &["--yes", "--container=c2"]);
    assert!(code == Some(0) && done.contains("released 192.168.0.3"), "{stderr}");
    assert_eq!(store(&home, &["show"]).1.lines().count(), 2, "c3 alone");
    let before = std::fs::read(home.path("store.d/journal")).unwrap();
    let (code, done, stderr) = store(&home, &["compact"]);
    assert!(code == Some(0) && done.contains("bytes used, before"), "{stderr}");
    assert_ne!(std::fs::read(home.path("store.d/journal")).unwrap(), before);
    let (mut agent, client) = home.start().await;
    assert!(client.is_allocated(parameters(&["blue"], "c2"), deadline()).await.is_err());
    client.is_allocated(parameters(&["blue"], "c3"), deadline()).await.unwrap();
    let (code, _, stderr) = store(&home, &["compact"]);
    assert!(code == Some(1) && stderr.contains("in use by another process"), "{stderr}");
    agent.signal(Signal::TERM);
    agent.wait().await;
    let (code, _, stderr) = store(&home, &["accept-loss"]);
    assert!(code == Some(1) && stderr.contains("assigned twice. Add --yes"), "{stderr}");
    assert_eq!(store(&home, &["accept-loss", "--yes"]).0, Some(0));
    let (_agent, client) = home.start().await;
    client.is_allocated(parameters(&["blue"], "c3"), deadline()).await.unwrap();
}

#[tokio::test]
async fn a_store_in_another_place_is_imported_by_a_command() {
    let home = Home::new().with_spec();
    let elsewhere = home.path("elsewhere");
    std::fs::write(&elsewhere, older_store(&[("old", "192.168.0.2")])).unwrap();
    let from = format!("--from={}", elsewhere.display());
    let journal = || std::fs::read(home.path("store.d/journal")).unwrap();
    let before = journal();
    let (code, text, stderr) = store(&home, &["import", &from, "--dry-run"]);
    assert!(code == Some(0) && text.contains("would be imported: 1\n"), "{text}{stderr}");
    assert_eq!(journal(), before, "nothing is written");
    let (code, text, stderr) = store(&home, &["import", &from]);
    assert!(code == Some(0) && text.contains("addresses imported: 1\n  IPPool blue 192.168.0.2 "), "{text}{stderr}");
    let (code, text, stderr) = store(&home, &["import", &from]);
    assert!(code == Some(0) && text.contains("imported: 0\n") && text.contains("already: 1\n"), "{text}{stderr}");
    // The same content again, after its address was freed by mistake.
    let (code, _, stderr) = store(&home, &["release", "--address=192.168.0.2", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, text, stderr) = store(&home, &["import", &from]);
    assert!(code == Some(0) && text.contains("addresses imported: 1\n"), "{text}{stderr}");
    let (_agent, client) = home.start().await;
    client.is_allocated(parameters(&["blue"], "old"), deadline()).await.unwrap();
    let (code, _, stderr) = store(&home, &["import", "--from=/nowhere"]);
    assert!(code == Some(1) && stderr.contains("/nowhere has no store of nv-ipam"), "{stderr}");
}

#[tokio::test]
async fn the_way_to_nvidias_agent_and_back_keeps_every_address() {
    let home = Home::new().with_spec();
    let older = older_store(&[("old", "192.168.0.2")]);
    std::fs::write(home.path("store"), &older).unwrap();
    let (mut agent, client) = home.start().await;
    client.allocate(parameters(&["blue"], "new"), deadline()).await.unwrap();
    agent.signal(Signal::TERM);
    agent.wait().await;

    let (_, printed, _) = store(&home, &["export", "--format=nv-ipam-v1"]);
    let (code, said, stderr) = store(&home, &["export", "--write"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(said.contains("has the 2 addresses in use"), "{said}");
    let written = std::fs::read_to_string(home.path("store")).unwrap();
    assert_eq!(written, printed);
    for part in
        ["\"old_net1\"", "\"new_net1\"", "\"ip_address\":\"192.168.0.3\"", "\"last_reserved_ip\":\"192.168.0.3\""]
    {
        assert!(written.contains(part), "{part} is not in {written}");
    }
    // That agent allocates and frees, and ours comes back.
    std::fs::write(home.path("store"), older_store(&[("old", "192.168.0.2"), ("theirs", "192.168.0.9")])).unwrap();
    let (code, _, stderr) = store(&home, &["export", "--write"]);
    assert!(code == Some(1) && stderr.contains("Start ipam-node once"), "{stderr}");
    let (_agent, client) = home.start().await;
    for (container, addr) in [("old", "192.168.0.2"), ("new", "192.168.0.3"), ("theirs", "192.168.0.9")] {
        client.is_allocated(with_ips(parameters(&["blue"], container), &[addr]), deadline()).await.unwrap();
    }
}
