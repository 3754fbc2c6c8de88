//! Pods that come and go: ADDs and DELs at a steady rate, each made once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Value, json};

use super::book::Book;
use super::scene::{Held, POOLS, Scene};
use crate::netns::{CniError, Pod};

/// Callers on each node, whose calls may overlap.
const CALLERS: usize = 2;
/// Interfaces that a caller has at most; it adds and removes by turns once it has them all.
const INTERFACES: usize = 10;

/// The callers.
pub(super) struct Load {
    book: Arc<Book>,
    stop: Arc<AtomicBool>,
    callers: Vec<(String, JoinHandle<VecDeque<Interface>>)>,
}

/// An interface that has an address.
struct Interface {
    name: String,
    pool: usize,
    address: String,
}

impl Load {
    /// Begins with `rate` calls a second in all.
    pub(super) fn begin(scene: &Scene<'_>, rate: u32) -> Result<Self> {
        let (book, stop) = (Arc::new(Book::default()), Arc::new(AtomicBool::new(false)));
        let mut callers = Vec::new();
        let count = scene.nodes().len() * CALLERS;
        let pause = Duration::from_secs(u64::try_from(count)?) / rate;
        for node in scene.nodes() {
            for number in 0..CALLERS {
                let name = format!("{}-{number}", node.name());
                let pod = node.pod("default", &name, &format!("uid-{name}"))?;
                let caller =
                    Caller { pod, book: book.clone(), stop: stop.clone(), pause, held: VecDeque::new(), made: 0 };
                let thread = std::thread::Builder::new().name(name).spawn(move || caller.run())?;
                callers.push((node.name().to_owned(), thread));
            }
        }
        Ok(Self { book, stop, callers })
    }

    /// What came of the calls so far.
    pub(super) fn book(&self) -> &Book {
        &self.book
    }

    /// Ends the calls; what is held stays held.
    pub(super) fn end(mut self) -> Result<(Arc<Book>, Held)> {
        self.stop.store(true, Ordering::SeqCst);
        let mut held = Held::new();
        for (node, caller) in self.callers.drain(..) {
            let kept = caller.join().map_err(|_| anyhow!("a caller on {node} panicked"))?;
            let of_node = held.entry(node).or_default();
            for interface in kept {
                *of_node.entry(POOLS[interface.pool].1).or_default() += 1;
            }
        }
        Ok((self.book.clone(), held))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Caller {
    pod: Pod,
    book: Arc<Book>,
    stop: Arc<AtomicBool>,
    pause: Duration,
    held: VecDeque<Interface>,
    made: usize,
}

impl Caller {
    fn run(mut self) -> VecDeque<Interface> {
        let began = Instant::now();
        for number in 0_u32.. {
            // By the clock and not after each other, so that a slow call does not lower the rate.
            std::thread::sleep((self.pause * number).saturating_sub(began.elapsed()));
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            if self.held.len() < INTERFACES { self.add() } else { self.remove() }
        }
        self.held
    }

    fn add(&mut self) {
        let (pool, name) = (self.made % POOLS.len(), format!("net{}", self.made));
        self.made += 1;
        match self.call("ADD", &name, pool) {
            Ok(answer) => match address(&answer) {
                Ok(address) => {
                    self.book.given(&address, &format!("{}/{name}", self.pod.name()));
                    self.held.push_back(Interface { name, pool, address });
                }
                Err(error) => self.book.failed(format!("{} {name}: {error:#}", self.pod.name())),
            },
            Err(error) => self.book.failed(format!("{} {name}: {error}", self.pod.name())),
        }
    }

    fn remove(&mut self) {
        let Some(oldest) = self.held.pop_front() else { return };
        self.book.returned(&oldest.address);
        if let Err(error) = self.call("DEL", &oldest.name, oldest.pool) {
            self.book.failed(format!("{} {}: {error}", self.pod.name(), oldest.name));
        }
    }

    fn call(&self, verb: &str, interface: &str, pool: usize) -> Result<Value, CniError> {
        let (kind, name) = POOLS[pool];
        let network = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "nv-ipam",
            "ipam": {"type": "nv-ipam", "poolName": name, "poolType": kind.trim_end_matches('s')},
        });
        let began = Instant::now();
        let answer = self.pod.cni(verb, interface, &network);
        self.book.called(began.elapsed());
        answer
    }
}

fn address(answer: &Value) -> Result<String> {
    let address = answer["ips"][0]["address"].as_str().and_then(|text| text.split('/').next());
    address.map(str::to_owned).with_context(|| format!("no address in {answer}"))
}
