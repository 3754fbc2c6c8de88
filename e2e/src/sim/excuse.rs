//! What an admin has taken upon himself, so that the laws do not speak of it: blocks let go of by word or by time though pods
//! may hold them, and pools that were taken away against their finalizer or by a restore.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam_operator::pool::{FORCE_ALL, FORCE_RELEASE};

use super::admin::may_share;
use super::agent::Node;
use super::catalogue::POOLS;
use super::replica::Replica;
use super::server::Server;

/// How far the clocks of two replicas may be apart where blocks are let go of by time, with what is lost to whole seconds.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(34);

/// What is excused at the moment.
#[derive(Default)]
pub(super) struct Excuses {
    /// After how long the block of a Node that is gone is let go of; `None` is never.
    pub(super) grace: Option<Duration>,
    /// Pool and node of the blocks that were let go of.
    let_go: BTreeSet<(&'static str, String)>,
    /// Nodes that are gone, as far as any replica may think, and since when.
    gone: BTreeMap<String, Duration>,
    /// Pools that may vanish while pods hold addresses of them.
    unguarded: BTreeSet<String>,
    /// Whether the store was put back to an earlier state: what it says of who has which block need not be true.
    pub(super) put_back: bool,
    /// Whether the definitions were deleted: agents alone tell what was given before, of no block, and of all pools at once.
    undefined: bool,
    /// Pools whose status was wiped.
    wiped: BTreeSet<String>,
    /// Pairs of pools that were allowed to share addresses at some time: what they have in common since may stay for long.
    shared: BTreeSet<(&'static str, &'static str)>,
}

impl Excuses {
    /// Whether what the node holds of the pool may be given to others.
    pub(super) fn lets_go(&self, pool: &str, node: &str) -> bool {
        self.let_go.iter().any(|(of, who)| *of == pool && who == node)
    }

    /// Whether the pool may vanish while pods hold addresses of it.
    pub(super) fn leaves_unguarded(&self, pool: &str) -> bool {
        self.unguarded.contains(pool)
    }

    /// Whether the pool's status was wiped.
    pub(super) fn is_wiped(&self, pool: &str) -> bool {
        self.wiped.contains(pool)
    }

    /// Whether an address may be held of both pools.
    pub(super) fn may_share(&self, one: &str, other: &str) -> bool {
        one != other && self.shared.iter().any(|pair| *pair == (one, other) || *pair == (other, one))
    }

    /// An admin wipes the pool's status.
    pub(super) fn wipe(&mut self, pool: &str) {
        self.wiped.insert(pool.to_owned());
    }

    /// An admin takes the pool's finalizer off, or puts an earlier state of it in place.
    pub(super) fn unguard(&mut self, pool: &str) {
        self.unguarded.insert(pool.to_owned());
    }

    /// An admin deletes the definitions.
    pub(super) fn undefine(&mut self) {
        self.undefined = true;
        for (_, pool) in POOLS {
            self.unguard(pool);
        }
    }

    /// A Node leaves, or its IPAMNode is deleted by hand, of whose pods nothing tells any more since the definitions were deleted.
    pub(super) fn leaves_unheard(&mut self, server: &Server, node: &str) {
        if self.undefined && server.get("ipamnodes", node).is_none() {
            self.let_go.extend(POOLS.map(|(_, pool)| (pool, node.to_owned())));
        }
    }

    /// Looks at what there is now, and was since the version `since`. An excuse lasts until nothing is left of what it was for.
    pub(super) fn renew(
        &mut self,
        server: &Server,
        nodes: &[Node],
        replicas: &[Option<Replica>],
        since: u64,
        now: Duration,
    ) {
        if server.version() != since {
            self.read_annotations(server, since);
        }
        if let Some(grace) = self.grace {
            self.note_absences(server, nodes, replicas, now);
            let waited = grace.saturating_sub(CLOCKS_APART);
            let long_gone = self.gone.iter().filter(|(_, since)| now >= **since + waited).map(|(node, _)| node);
            self.let_go.extend(long_gone.flat_map(|node| POOLS.map(|(_, pool)| (pool, node.clone()))));
        }
        self.let_go.retain(|(pool, name)| {
            let is_named = POOLS.iter().filter(|(_, of)| of == pool).any(|(plural, of)| {
                let annotation = server.get(plural, of).map(|object| &object["metadata"]["annotations"][FORCE_RELEASE]);
                annotation.is_some_and(serde_json::Value::is_string)
            });
            let Some(node) = nodes.iter().find(|node| node.name == *name) else { return false };
            let is_over = node.has_noted_all(server) && !node.held().any(|(_, of, _)| of.name == *pool);
            is_named || self.gone.contains_key(name) || !is_over
        });
    }

    /// What admins have written on pools: nodes whose blocks are let go of (for `*` the operator writes their names), and which
    /// pools may share addresses.
    fn read_annotations(&mut self, server: &Server, since: u64) {
        let mut sharing = Vec::new();
        for (plural, pool) in POOLS {
            let now = server.get(plural, pool);
            sharing.extend(now.filter(|object| may_share(object)).map(|_| pool));
            let before = server.since(plural, since).iter().map(|event| &event.object);
            for object in before.chain(now).filter(|object| object["metadata"]["name"] == pool) {
                let named = object["metadata"]["annotations"][FORCE_RELEASE].as_str().unwrap_or_default().split(',');
                let nodes = named.filter(|name| !name.is_empty() && *name != FORCE_ALL);
                for node in nodes {
                    // Who is asked what he holds of any pool is let go of for all.
                    let of = POOLS.into_iter().map(|(_, of)| of).filter(|of| *of == pool || self.undefined);
                    self.let_go.extend(of.map(|of| (of, node.to_owned())));
                }
            }
        }
        for (place, one) in sharing.iter().enumerate() {
            self.shared.extend(sharing[place + 1..].iter().map(|other| (*one, *other)));
        }
    }

    fn note_absences(&mut self, server: &Server, nodes: &[Node], replicas: &[Option<Replica>], now: Duration) {
        let all_know = replicas.iter().flatten().all(|replica| replica.knows_nodes(server));
        for node in nodes {
            if server.get("nodes", &node.name).is_none() {
                self.gone.entry(node.name.clone()).or_insert(now);
            } else if all_know {
                self.gone.remove(&node.name);
            }
        }
    }
}
