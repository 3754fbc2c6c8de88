//! Certificates from a directory: a mounted Secret, or files that an admin puts there.
//!
//! Decides when the two files have changed and belong together. Must never watch the files themselves: a mounted Secret is
//! replaced by swapping the symbolic link `..data` next to them, and some file systems report no changes. So it reads the
//! bytes again every second, which costs a few system calls.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::pair::{MAX_BYTES, Pair};
use crate::problem::{File, Problem};
use crate::served::ServerCertificates;

/// How often the files are read.
pub const PERIOD: Duration = Duration::from_secs(1);

/// How often a pair that changes during the read is read before it is used as it is.
const TRIES: u32 = 3;

/// Offers `tls.crt` and `tls.key` of `directory` to `certificates` until `stop` is cancelled. The first read is immediate.
/// The directory need not exist yet.
pub async fn watch(directory: PathBuf, certificates: ServerCertificates, stop: CancellationToken) {
    watch_every(PERIOD, directory, certificates, stop).await;
}

/// [`watch`] with another period.
pub async fn watch_every(
    period: Duration,
    directory: PathBuf,
    certificates: ServerCertificates,
    stop: CancellationToken,
) {
    let mut reader = Some(Reader { directory, seen: None });
    while let Some(mut current) = reader.take() {
        let certificates = certificates.clone();
        // On the runtime's own threads a hanging network mount would hold up every connection.
        let looked = tokio::task::spawn_blocking(move || {
            current.look(&certificates);
            current
        });
        tokio::select! {
            () = stop.cancelled() => return,
            // The task cannot panic. If the runtime shuts down, this loop ends too.
            looked = looked => reader = looked.ok(),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
    }
}

struct Reader {
    directory: PathBuf,
    /// The contents read last, and the result of parsing them.
    seen: Option<(Contents, Result<Pair, Problem>)>,
}

#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificates: Result<Vec<u8>, Problem>,
    key: Result<Vec<u8>, Problem>,
}

impl Reader {
    /// Reads the files and offers the pair. Parses only new contents, but always offers, because certificates become valid
    /// and expire.
    fn look(&mut self, certificates: &ServerCertificates) {
        let contents = self.read();
        let parsed = match self.seen.take() {
            Some((seen, parsed)) if seen == contents => parsed,
            _ => contents.parse(),
        };
        certificates.offer(&parsed);
        self.seen = Some((contents, parsed));
    }

    /// Both files at one moment. If they are swapped between the two reads, the second read of the first file shows it.
    fn read(&self) -> Contents {
        let mut certificates = read(&self.directory, File::Certificate);
        for _ in 1..TRIES {
            let key = read(&self.directory, File::Key);
            let again = read(&self.directory, File::Certificate);
            if again == certificates {
                return Contents { certificates, key };
            }
            certificates = again;
        }
        let key = read(&self.directory, File::Key);
        Contents { certificates, key }
    }
}

impl Contents {
    fn parse(&self) -> Result<Pair, Problem> {
        let certificates = self.certificates.as_ref().map_err(Clone::clone)?;
        let key = self.key.as_ref().map_err(Clone::clone)?;
        Pair::parse(certificates, key)
    }
}

fn read(directory: &Path, file: File) -> Result<Vec<u8>, Problem> {
    let path = directory.join(file.name());
    let unreadable = |error: io::Error| Problem::Unreadable { file, why: format!("{}: {error}", path.display()) };
    // Opening a pipe would wait for its writer.
    if !fs::metadata(&path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    // One byte beyond the limit tells a file that is too long from one that just fits.
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    fs::File::open(&path).and_then(|opened| opened.take(limit).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}
