//! A minute of pods that begin and end on a large cluster, sampled in windows.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep_until};

use super::fleet::Member;
use super::large::{Large, STILL};
use super::meter::Meter;
use super::requests::Requests;
use super::stage::Stage;
use super::stats::{Samples, Unit, number};

const LASTS: Duration = Duration::from_mins(1);
/// Pods that end and pods that begin meanwhile.
pub(super) const PODS: u32 = 1_000;
const WINDOWS: u32 = 12;

/// What happened in one window.
#[derive(Clone, Copy)]
struct Window {
    took: Duration,
    requests: Requests,
    /// Processor time of the operator.
    cpu: Duration,
}

/// The windows of a minute.
pub(super) struct Minute(Vec<Window>);

impl Minute {
    /// Plays one on a cluster at rest. On each turn one pod begins and one ends, and `turn` does whatever else happens. The last
    /// `young` members are left alone, for they may not have their blocks yet.
    pub(super) fn play(
        large: &mut Large<'_>,
        members: &mut Vec<Member>,
        young: usize,
        mut turn: impl AsyncFnMut(u32, &mut Vec<Member>) -> Result<()>,
    ) -> Result<Self> {
        let meter = large.meter();
        meter.settle(STILL)?;
        let stage = large.stage;
        stage.runtime.block_on(async {
            let began = Instant::now();
            let mut windows = Windows::begin(stage, meter).await?;
            for number in 0..PODS {
                sleep_until(began + LASTS * number / PODS).await;
                if number > 0 && number % (PODS / WINDOWS) == 0 {
                    windows.next(stage, meter).await?;
                }
                turn(number, members).await?;
                pod(members, young).await?;
            }
            Ok(Self(windows.all))
        })
    }

    /// Requests about our kinds in a minute.
    pub(super) fn requests(&self) -> Samples {
        self.rates("a minute", |window| window.requests.all())
    }

    /// Reports of agents in a minute.
    pub(super) fn reports(&self) -> Samples {
        self.rates("a minute", |window| window.requests.reports)
    }

    /// Other writes of our kinds in a minute.
    pub(super) fn writes(&self) -> Samples {
        self.rates("a minute", |window| window.requests.writes)
    }

    /// Megabytes that etcd writes to its log in a minute.
    pub(super) fn log(&self) -> Samples {
        let per_minute = |window: &Window| number(window.requests.log_bytes) / 1e6 * 60.0 / window.took.as_secs_f64();
        Samples::new(Unit::Of("MB a minute"), self.0.iter().map(per_minute))
    }

    /// Keys that etcd writes in a minute.
    pub(super) fn puts(&self) -> Samples {
        self.rates("keys a minute", |window| window.requests.puts)
    }

    /// Processor seconds of the operator in a minute.
    pub(super) fn cpu(&self) -> Samples {
        let per_minute = |window: &Window| window.cpu.as_secs_f64() * 60.0 / window.took.as_secs_f64();
        Samples::new(Unit::Of("CPU s a minute"), self.0.iter().map(per_minute))
    }

    fn rates(&self, unit: &'static str, read: fn(&Window) -> u64) -> Samples {
        let per_minute = |window: &Window| number(read(window)) * 60.0 / window.took.as_secs_f64();
        Samples::new(Unit::Of(unit), self.0.iter().map(per_minute))
    }
}

struct Windows {
    all: Vec<Window>,
    began: Instant,
    requests: Requests,
    cpu: super::meter::Cpu,
}

impl Windows {
    async fn begin(stage: &Stage<'_>, meter: Meter) -> Result<Self> {
        let requests = Requests::so_far(stage).await?;
        Ok(Self { all: Vec::new(), began: Instant::now(), requests, cpu: meter.cpu()? })
    }

    async fn next(&mut self, stage: &Stage<'_>, meter: Meter) -> Result<()> {
        let next = Self::begin(stage, meter).await?;
        let (took, requests) = (next.began.duration_since(self.began), next.requests.since(self.requests));
        self.all.push(Window { took, requests, cpu: next.cpu.since(&self.cpu) });
        *self = Self { all: std::mem::take(&mut self.all), ..next };
        Ok(())
    }
}

/// A pod begins on one node and one ends on another.
async fn pod(members: &mut [Member], young: usize) -> Result<()> {
    let settled = members.len().saturating_sub(young);
    ensure!(settled > 0, "no agent has its blocks for sure");
    members[fastrand::usize(..settled)].add().await?;
    let begin = fastrand::usize(..settled);
    let place = (0..settled).map(|step| (begin + step) % settled).find(|place| members[*place].holds());
    match place {
        Some(place) => members[place].remove().await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_scaled_to_a_minute() {
        let requests = Requests { reports: 10, writes: 2, reads: 3, log_bytes: 2_000_000, puts: 4 };
        let window = Window { took: Duration::from_secs(5), requests, cpu: Duration::from_millis(100) };
        let minute = Minute(vec![window]);
        let shown =
            [minute.requests(), minute.reports(), minute.writes(), minute.puts()].map(|samples| samples.show(50));
        assert_eq!(shown, ["180 a minute", "120 a minute", "24 a minute", "48 keys a minute"]);
        assert_eq!(
            (minute.log().show(50), minute.cpu().show(50)),
            ("24 MB a minute".into(), "1.2 CPU s a minute".into())
        );
    }
}
