//! Handshakes of verifying clients, without a pause, while the Secret is swapped.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ipam_webhook_certs::{ServerCertificates, system_clock};

use crate::mounted::Mounted;
use crate::pki::{Ca, Files};
use crate::tls::{self, Client};
use crate::watching::{until, watch};

const CLIENTS: usize = 8;
const SWAPS: u64 = 20;
/// Each swap stands for at least so many handshakes more.
const PER_SWAP: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_handshakes_during_twenty_swaps_all_succeed_under_valid_certificates() {
    let (one, other) = (Ca::new("one"), Ca::new("other"));
    let mut mounted = Mounted::with(&one.valid(100));
    let certificates = ServerCertificates::new(system_clock());
    let _watch = watch(&mounted, &certificates);
    until("it is served", || certificates.is_ready()).await;
    let server = tls::serve(&certificates).await;
    let storm = Storm::default();
    let client = Client::trusting(&[one.pem(), other.pem()]);
    let mut kept = client.connect(server).await.unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(storm.clone().rage(client.clone(), server))).collect();
    let mut fit = 1;
    until("the first certificate is met", || storm.met() == fit).await;

    for swap in 0..SWAPS {
        let ca = if swap % 2 == 0 { &other } else { &one };
        let unfit = match swap % 5 {
            1 => Some(Files { key: one.valid(2).key, ..ca.valid(3) }),
            3 => Some(ca.expired(4)),
            _ => None,
        };
        let serial = 101 + swap;
        mounted.swap(&unfit.clone().unwrap_or_else(|| ca.valid(serial)));
        let noticed = || match &unfit {
            Some(_) => certificates.last_problem().is_some(),
            None => certificates.current().is_some_and(|info| info.serial == format!("{serial:02x}")),
        };
        until("the swap is noticed", noticed).await;
        let seen = storm.count();
        fit += usize::from(unfit.is_none());
        // A handshake may have begun before the swap: the certificate itself is awaited as well.
        until("more handshakes", || storm.count() >= seen + PER_SWAP && storm.met() == fit).await;
        kept.ask(7).await.expect("a connection outlives every swap");
    }
    storm.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(*storm.failures.lock().unwrap(), Vec::<String>::new());
    assert!(storm.count() >= PER_SWAP * 20);
    assert_eq!((fit, storm.met()), (13, 13), "the first certificate and the twelve fit ones, and no other");
}

/// What all clients have met.
#[derive(Clone, Default)]
struct Storm {
    over: Arc<AtomicBool>,
    handshakes: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    leaves: Arc<Mutex<BTreeSet<Vec<u8>>>>,
}

impl Storm {
    fn count(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }

    /// Certificates that were met.
    fn met(&self) -> usize {
        self.leaves.lock().unwrap().len()
    }

    async fn rage(self, client: Client, server: std::net::SocketAddr) {
        while !self.over.load(Ordering::Relaxed) {
            // The client verifies the validity by the clock of the machine, so an expired certificate is a failure.
            let met = async {
                let mut connection = client.connect(server).await?;
                connection.ask(1).await?;
                Ok::<_, std::io::Error>(connection.leaf())
            };
            match met.await {
                Ok(leaf) => drop(self.leaves.lock().unwrap().insert(leaf.to_vec())),
                Err(error) => self.failures.lock().unwrap().push(error.to_string()),
            }
            self.handshakes.fetch_add(1, Ordering::Relaxed);
        }
    }
}
