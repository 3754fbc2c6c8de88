//! Certificates from a directory: a mounted Secret, or files that an admin puts there.
//!
//! Decides when the two files have changed and belong together. Must never watch the files themselves: a mounted Secret is
//! replaced by swapping the symbolic link `..data` beside them, and on some file systems nobody tells of a change. So the
//! bytes are read again every second, which costs a few system calls.

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

/// How often a pair that changes under the reader is read again before it is judged as it is.
const TRIES: u32 = 3;

/// Feeds `certificates` with `tls.crt` and `tls.key` of `directory` until `stop`. The first look is taken at once; the
/// directory need not exist yet.
pub async fn watch(directory: PathBuf, certificates: ServerCertificates, stop: CancellationToken) {
    watch_every(PERIOD, directory, certificates, stop).await;
}

/// [`watch`] at another pace.
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
            // It cannot panic; if the runtime is going away, so are we.
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
    /// What was read last, and what it was found to be.
    seen: Option<(Contents, Result<Pair, Problem>)>,
}

#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificates: Result<Vec<u8>, Problem>,
    key: Result<Vec<u8>, Problem>,
}

impl Reader {
    /// Parses only what is new; offers always, for time makes a certificate valid or expired.
    fn look(&mut self, certificates: &ServerCertificates) {
        let contents = self.read();
        let parsed = match self.seen.take() {
            Some((seen, parsed)) if seen == contents => parsed,
            _ => contents.parse(),
        };
        certificates.offer(&parsed);
        self.seen = Some((contents, parsed));
    }

    /// The two files of one moment: a swap between the two reads shows when the first is read again.
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
