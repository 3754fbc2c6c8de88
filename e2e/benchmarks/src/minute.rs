//! A minute of pods that begin and end on a large cluster, sampled in windows.
//!
//! ADDs and DELs run beside each other: a slow one delays no other pod. What each window really had is recorded, and a row whose pods came
//! too slowly misses its aim.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::finding::Finding;
use super::fleet::Member;
use super::large::{Large, STILL};
use super::meter::Meter;
use super::requests::Requests;
use super::stage::Stage;
use super::stats::{Samples, Unit, number};

const LASTS: Duration = Duration::from_mins(1);
/// Pods that end and pods that begin meanwhile: 20 a second.
pub(super) const PODS: u32 = 1_200;
const WINDOWS: u32 = 12;
/// The part of the pods a minute below which a row is behind.
const LEAST: f64 = 0.9;

/// When a pod is due, from the beginning.
fn due(pod: u32) -> Duration {
    LASTS * pod / PODS
}

/// When a window ends, from the beginning.
fn end(window: u32) -> Duration {
    LASTS * (window + 1) / WINDOWS
}

/// What happened in one window.
#[derive(Clone, Copy)]
struct Window {
    took: Duration,
    /// Pods that got their addresses.
    pods: u64,
    requests: Requests,
    /// Processor time of the operator.
    cpu: Duration,
}

impl Window {
    /// What `count` of this window is in a minute.
    fn per_minute(&self, count: f64) -> f64 {
        count * 60.0 / self.took.as_secs_f64()
    }
}

/// The windows of a minute.
pub(super) struct Minute(Vec<Window>);

impl Minute {
    /// Plays one on a cluster at rest. On each turn one pod begins and one ends, and `turn` does whatever else happens. Members that `turn`
    /// adds get no pods: they may not have their blocks yet.
    pub(super) fn play(
        large: &mut Large<'_>,
        members: &mut Vec<Member>,
        mut turn: impl AsyncFnMut(u32, &mut Vec<Member>) -> Result<()>,
    ) -> Result<Self> {
        let meter = large.meter();
        meter.settle(STILL)?;
        let stage = large.stage;
        stage.runtime.block_on(async {
            let settled: BTreeSet<String> = members.iter().map(|member| member.name.clone()).collect();
            let mut running = Running::default();
            let began = Instant::now();
            let mut windows = Windows::begin(stage, meter).await?;
            for number in 0..PODS {
                windows.until(began, due(number), stage, meter, &mut running).await?;
                members.append(&mut running.idle);
                running.beside(turn(number, members)).await?;
                members.append(&mut running.idle);
                pod(members, &settled, &mut running)?;
            }
            windows.until(began, LASTS, stage, meter, &mut running).await?;
            running.finish().await?;
            members.append(&mut running.idle);
            Ok(Self(windows.all))
        })
    }

    /// A row about this minute. It names the pods a minute that there really were, and misses its aim if these are too few.
    pub(super) fn row(&self, what: String, samples: Samples, also: &str) -> Finding {
        let (least, pods) = (number(PODS.into()) * LEAST, self.pods_per_minute());
        let unit = Unit::Of("pods a minute");
        let behind = if pods < least { "behind: " } else { "" };
        Finding::new(what, samples)
            .demand(format!("≥ {}", unit.show(least)), pods >= least)
            .also(format!("{behind}{}; {also}", unit.show(pods)))
    }

    /// Pods that got their addresses, of all windows together.
    fn pods_per_minute(&self) -> f64 {
        let (pods, took) = self.0.iter().fold((0, Duration::ZERO), |(pods, took), it| (pods + it.pods, took + it.took));
        if took.is_zero() { 0.0 } else { number(pods) * 60.0 / took.as_secs_f64() }
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
        let per_minute = |window: &Window| window.per_minute(number(window.requests.log_bytes) / 1e6);
        Samples::new(Unit::Of("MB a minute"), self.0.iter().map(per_minute))
    }

    /// Keys that etcd writes in a minute.
    pub(super) fn puts(&self) -> Samples {
        self.rates("keys a minute", |window| window.requests.puts)
    }

    /// Processor seconds of the operator in a minute.
    pub(super) fn cpu(&self) -> Samples {
        let per_minute = |window: &Window| window.per_minute(window.cpu.as_secs_f64());
        Samples::new(Unit::Of("CPU s a minute"), self.0.iter().map(per_minute))
    }

    fn rates(&self, unit: &'static str, read: fn(&Window) -> u64) -> Samples {
        let per_minute = |window: &Window| window.per_minute(number(read(window)));
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

    /// Works until this time from the beginning. Windows that end by then end at their time.
    async fn until(
        &mut self,
        began: Instant,
        time: Duration,
        stage: &Stage<'_>,
        meter: Meter,
        running: &mut Running<Member>,
    ) -> Result<()> {
        while let Some(end) = self.next_end().filter(|end| *end <= time) {
            running.until(began + end).await?;
            self.next(stage, meter, running).await?;
        }
        running.until(began + time).await
    }

    /// When the next window ends, from the beginning.
    fn next_end(&self) -> Option<Duration> {
        let ended = u32::try_from(self.all.len()).ok()?;
        (ended < WINDOWS).then(|| end(ended))
    }

    async fn next(&mut self, stage: &Stage<'_>, meter: Meter, running: &mut Running<Member>) -> Result<()> {
        let next = running.beside(Self::begin(stage, meter)).await?;
        let (took, requests) = (next.began.duration_since(self.began), next.requests.since(self.requests));
        let pods = std::mem::take(&mut running.begun);
        self.all.push(Window { took, pods, requests, cpu: next.cpu.since(&self.cpu) });
        *self = Self { all: std::mem::take(&mut self.all), ..next };
        Ok(())
    }
}

/// An ADD or DEL that runs. It owns the member until it ends.
type Call<T> = Pin<Box<dyn Future<Output = Result<Done<T>>>>>;

/// A call that has ended.
struct Done<T> {
    member: T,
    is_add: bool,
}

/// The calls that run.
struct Running<T> {
    calls: FuturesUnordered<Call<T>>,
    /// Members whose calls have ended.
    idle: Vec<T>,
    /// ADDs that have ended since this was last read.
    begun: u64,
}

impl<T> Default for Running<T> {
    fn default() -> Self {
        Self { calls: FuturesUnordered::new(), idle: Vec::new(), begun: 0 }
    }
}

impl<T: 'static> Running<T> {
    fn start(&mut self, is_add: bool, call: impl Future<Output = Result<T>> + 'static) {
        self.calls.push(Box::pin(async move { Ok(Done { member: call.await?, is_add }) }));
    }

    fn ended(&mut self, done: Done<T>) {
        self.begun += u64::from(done.is_add);
        self.idle.push(done.member);
    }

    /// Does `work` while the calls go on.
    async fn beside<R>(&mut self, work: impl Future<Output = Result<R>>) -> Result<R> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(done) = self.calls.next() => self.ended(done?),
                result = &mut work => return result,
            }
        }
    }

    /// Lets the calls go on until this time.
    async fn until(&mut self, time: Instant) -> Result<()> {
        self.beside(async {
            sleep_until(time).await;
            Ok(())
        })
        .await
    }

    /// Waits until each call has ended.
    async fn finish(&mut self) -> Result<()> {
        while let Some(done) = self.calls.next().await {
            self.ended(done?);
        }
        Ok(())
    }
}

/// A pod begins on one node and one ends on another.
fn pod(members: &mut Vec<Member>, settled: &BTreeSet<String>, running: &mut Running<Member>) -> Result<()> {
    let begins = take(members, |member| settled.contains(&member.name));
    ensure!(begins.is_some(), "no agent is idle and has its blocks for sure");
    let ends = take(members, |member| settled.contains(&member.name) && member.holds());
    for (is_add, member) in [(true, begins), (false, ends)] {
        let Some(mut member) = member else { continue };
        running.start(is_add, async move {
            if is_add {
                member.add().await?;
            } else {
                member.remove().await?;
            }
            Ok(member)
        });
    }
    Ok(())
}

/// Takes any of those that are `fit`.
fn take<T>(all: &mut Vec<T>, fit: impl Fn(&T) -> bool) -> Option<T> {
    let begin = if all.is_empty() { return None } else { fastrand::usize(..all.len()) };
    let place = (0..all.len()).map(|step| (begin + step) % all.len()).find(|place| fit(&all[*place]))?;
    Some(all.swap_remove(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_scaled_to_a_minute() {
        let requests = Requests { reports: 10, writes: 2, reads: 3, log_bytes: 2_000_000, puts: 4 };
        let window = Window { took: Duration::from_secs(5), pods: 80, requests, cpu: Duration::from_millis(100) };
        let minute = Minute(vec![window]);
        let shown =
            [minute.requests(), minute.reports(), minute.writes(), minute.puts()].map(|samples| samples.show(50));
        assert_eq!(shown, ["180 a minute", "120 a minute", "24 a minute", "48 keys a minute"]);
        assert_eq!(
            (minute.log().show(50), minute.cpu().show(50)),
            ("24 MB a minute".into(), "1.2 CPU s a minute".into())
        );
    }

    fn minute(windows: &[(u64, u64)]) -> Minute {
        let window = |&(pods, seconds)| {
            let requests = Requests { reports: 0, writes: 0, reads: 0, log_bytes: 0, puts: 0 };
            Window { took: Duration::from_secs(seconds), pods, requests, cpu: Duration::ZERO }
        };
        Minute(windows.iter().map(window).collect())
    }

    #[test]
    fn a_row_with_nine_tenths_of_its_pods_is_met_and_one_with_fewer_is_behind() {
        let cells = |windows: &[(u64, u64)]| {
            let minute = minute(windows);
            minute.row("a".to_owned(), minute.requests(), "b").cells()
        };
        // The second window took twice its time.
        let cells_met = cells(&[(90, 5), (180, 10)]);
        assert_eq!(
            [&cells_met[2], &cells_met[6], &cells_met[7]],
            ["≥ 1080 pods a minute", "1080 pods a minute; b", "met"]
        );
        let cells_missed = cells(&[(100, 5), (100, 10)]);
        assert_eq!([&cells_missed[6], &cells_missed[7]], ["behind: 800 pods a minute; b", "**missed**"]);
        assert_eq!(cells(&[])[7], "**missed**");
    }

    #[test]
    fn windows_of_five_seconds_have_all_pods() {
        let ends: Vec<Duration> = (0..WINDOWS).map(end).collect();
        assert_eq!((ends[0], ends[WINDOWS as usize - 1]), (Duration::from_secs(5), LASTS));
        let pods = |window: usize| {
            let begins = if window == 0 { Duration::ZERO } else { ends[window - 1] };
            (0..PODS).filter(|pod| (begins..ends[window]).contains(&due(*pod))).count()
        };
        let pods: Vec<usize> = (0..ends.len()).map(pods).collect();
        assert!(pods.iter().all(|pods| *pods == 100), "{pods:?}");
        assert_eq!(pods.iter().sum::<usize>(), PODS as usize);
    }

    #[tokio::test]
    async fn a_call_that_does_not_end_delays_no_other() {
        let mut running = Running::default();
        let (end, slow) = tokio::sync::oneshot::channel();
        running.start(true, async { Ok(slow.await?) });
        running.start(true, async { Ok("add") });
        running.start(false, async { Ok("del") });
        running.until(Instant::now()).await.unwrap();
        running.idle.sort_unstable();
        assert_eq!((running.idle.as_slice(), running.begun), (&["add", "del"][..], 1));
        end.send("slow").unwrap();
        running.finish().await.unwrap();
        assert_eq!((running.idle.last(), running.begun), (Some(&"slow"), 2));
    }

    #[test]
    fn any_of_those_that_fit_is_taken() {
        let mut all = vec![1, 2, 3, 4];
        let mut taken = [take(&mut all, |it| it % 2 == 0), take(&mut all, |it| it % 2 == 0)];
        taken.sort_unstable();
        assert_eq!((taken, take(&mut all, |it| it % 2 == 0)), ([Some(2), Some(4)], None));
        all.sort_unstable();
        assert_eq!(all, [1, 3]);
    }
}
