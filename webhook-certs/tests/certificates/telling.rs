//! What the log says of a certificate, each piece of news once.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use ipam_webhook_certs::ServerCertificates;
use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::pki::{Ca, now};

/// Keeps what is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// What was logged since the last look.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(format!("{} ", event.metadata().level()));
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Offers what `files` hold twice, and answers what the log says of it.
fn offered(certificates: &ServerCertificates, files: &crate::pki::Files, log: &Log) -> Vec<String> {
    tracing::subscriber::with_default(log.clone(), || {
        for _ in 0..2 {
            certificates.offer(&files.parse());
        }
    });
    log.told()
}

#[test]
fn an_expiry_is_told_once_and_so_is_its_end() {
    let (ca, log) = (Ca::new("ca"), Log::default());
    let (served, broken) = (ca.valid(1), crate::pki::Files { key: String::new(), ..ca.valid(2) });
    let ahead = Arc::new(AtomicI64::new(0));
    let clock = ahead.clone();
    let certificates = ServerCertificates::new(Arc::new(move || {
        Timestamp::from_second(now() + clock.load(Ordering::Relaxed)).unwrap()
    }));
    let one = |files: &crate::pki::Files, level: &str, part: &str| {
        let told = offered(&certificates, files, &log);
        assert!(told.len() == 1 && told[0].starts_with(level) && told[0].contains(part), "{part}: {told:?}");
    };
    one(&served, "INFO", "the webhook serves this certificate");
    ahead.store(24 * 3600, Ordering::Relaxed);
    one(&served, "WARN", "expired at");
    ahead.store(0, Ordering::Relaxed);
    one(&served, "INFO", "is valid again");
    // While something else is found, its refusal says nothing of what is served.
    one(&broken, "WARN", "the webhook keeps the one valid until");
    ahead.store(24 * 3600, Ordering::Relaxed);
    one(&broken, "WARN", "the webhook refuses every handshake: the certificate in tls.crt expired at");
}
