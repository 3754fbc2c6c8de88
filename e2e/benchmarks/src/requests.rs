//! What the API server and etcd count: requests about our kinds, and what is written to etcd's disk.

use anyhow::{Context, Result, ensure};

use super::stage::Stage;

/// Counted since the servers began; watches are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Requests {
    /// Writes of an agent's report.
    pub(super) reports: u64,
    /// All other writes of our kinds.
    pub(super) writes: u64,
    /// Reads of our kinds.
    pub(super) reads: u64,
    /// Bytes that etcd wrote to its log on disk: `etcd_disk_wal_write_bytes_total`.
    pub(super) log_bytes: u64,
    /// Keys that etcd wrote: `etcd_mvcc_put_total`.
    pub(super) puts: u64,
}

impl Requests {
    pub(super) async fn so_far(stage: &Stage<'_>) -> Result<Self> {
        let text = stage.client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
        let mut requests = of_apiserver(&text)?;
        let etcd = stage.plane.etcd_metrics()?;
        requests.log_bytes = metric(&etcd, "etcd_disk_wal_write_bytes_total")?;
        requests.puts = metric(&etcd, "etcd_mvcc_put_total")?;
        Ok(requests)
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            reports: self.reports - before.reports,
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            log_bytes: self.log_bytes - before.log_bytes,
            puts: self.puts - before.puts,
        }
    }

    /// Requests of any kind.
    pub(super) fn all(self) -> u64 {
        self.reports + self.writes + self.reads
    }
}

fn of_apiserver(text: &str) -> Result<Requests> {
    let mut requests = Requests::default();
    let ours =
        |line: &&str| line.starts_with("apiserver_request_total{") && line.contains("group=\"nv-ipam.nvidia.com\"");
    for line in text.lines().filter(ours) {
        let count = value(line)?;
        let is = |label: &str| line.contains(label);
        if is("verb=\"WATCH\"") || is("verb=\"CONNECT\"") {
            continue;
        }
        if is("verb=\"GET\"") || is("verb=\"LIST\"") {
            requests.reads += count;
        } else if is("resource=\"ipamnodes\"") && is("subresource=\"status\"") {
            requests.reports += count;
        } else {
            requests.writes += count;
        }
    }
    Ok(requests)
}

/// The one sample of a metric without labels.
fn metric(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    value(line.with_context(|| format!("etcd has no metric {name}"))?)
}

/// A counter as Prometheus writes it, with an exponent if it is large.
fn value(line: &str) -> Result<u64> {
    let number = line.rsplit_once(' ').and_then(|(_, number)| number.parse::<f64>().ok());
    let number = number.with_context(|| format!("no number in {line:?}"))?;
    ensure!((0.0..9e15).contains(&number), "{line:?} is no counter");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "its range was just checked")]
    Ok(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const APISERVER: &str = "\
apiserver_request_total{group=\"\",resource=\"nodes\",verb=\"POST\"} 7
apiserver_request_total{group=\"nv-ipam.nvidia.com\",resource=\"ippools\",subresource=\"status\",verb=\"PUT\"} 2
apiserver_request_total{group=\"nv-ipam.nvidia.com\",resource=\"ipamnodes\",subresource=\"\",verb=\"POST\"} 3
apiserver_request_total{group=\"nv-ipam.nvidia.com\",resource=\"ipamnodes\",subresource=\"status\",verb=\"PATCH\"} 1e+01
apiserver_request_total{group=\"nv-ipam.nvidia.com\",resource=\"ipamnodes\",subresource=\"\",verb=\"LIST\"} 4
apiserver_request_total{group=\"nv-ipam.nvidia.com\",resource=\"ipamnodes\",subresource=\"\",verb=\"WATCH\"} 99
";

    #[test]
    fn reports_are_told_from_other_writes_and_reads() {
        let requests = of_apiserver(APISERVER).unwrap();
        assert_eq!((requests.reports, requests.writes, requests.reads, requests.all()), (10, 5, 4, 19));
        assert_eq!(requests.since(Requests { reports: 3, ..Requests::default() }).reports, 7);
    }

    #[test]
    fn a_metric_of_etcd_is_found_by_its_whole_name() {
        let text = "# TYPE a_total counter\na_total_more 1\na_total 1.234567e+06\n";
        assert_eq!(metric(text, "a_total").unwrap(), 1_234_567);
        assert!(metric(text, "b_total").is_err() && value("a NaN").is_err());
    }
}
