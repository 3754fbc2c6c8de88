//! The model of a Controller, which simulator and tests play, against kube-runtime's own: the same wakes lead to the same reconciles.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::unbounded;
use futures::stream::pending;
use ipam_reconciler::objects::NodeObject;
use ipam_reconciler::reconcile::Key;
use ipam_reconciler::reconcile::model::Model;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::Controller;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use tokio::time::Instant;

const KEYS: u8 = 4;
/// For so long keys are woken. What they do then ends by itself.
const LONGEST: u64 = 400;
const MILLISECOND: Duration = Duration::from_millis(1);

/// A begun reconcile: when, in milliseconds, and of which key.
type Begun = BTreeSet<(u64, u8)>;

/// What happens, and how long each reconcile takes and when it wants to be repeated.
struct Script {
    seed: u64,
    /// Milliseconds and keys.
    wakes: Vec<(u64, u8)>,
}

/// What a reconcile does.
struct Reconcile {
    takes: u64,
    again: Option<u64>,
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Odd times, so that nothing that is woken meets what is repeated.
        let mut wakes: Vec<_> = (0..60).map(|_| (2 * rng.u64(0..LONGEST / 2) + 1, rng.u8(0..KEYS))).collect();
        wakes.sort_unstable();
        Self { seed, wakes }
    }

    /// The reconcile of `key` that is its `number`th.
    fn reconcile(&self, key: u8, number: u64) -> Reconcile {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ (u64::from(key) << 32) ^ (number << 40));
        let takes = [0, 0, 1, 4, 20][rng.usize(0..5)];
        let again = if number < 40 { [None, None, Some(0), Some(7), Some(30)][rng.usize(0..5)] } else { None };
        Reconcile { takes, again }
    }
}

fn name(key: u8) -> String {
    format!("n{key}")
}

fn modelled(script: &Script) -> Begun {
    let start = std::time::Instant::now();
    let (mut model, mut begun) = (Model::default(), Begun::new());
    let mut counts = BTreeMap::<u8, u64>::new();
    let mut ends = BTreeMap::<u8, (u64, Option<u64>)>::new();
    let key_of = |key: u8| Key::Node(name(key));
    for now in 0..LONGEST * 10 {
        let at = |millis: u64| start + MILLISECOND * u32::try_from(millis).unwrap();
        for (_, key) in script.wakes.iter().filter(|(millis, _)| *millis == now) {
            model.wake(key_of(*key), at(now));
        }
        loop {
            let over: Vec<u8> = ends.iter().filter(|(_, (end, _))| *end <= now).map(|(key, _)| *key).collect();
            for key in over {
                let (_, again) = ends.remove(&key).unwrap();
                model.end(&key_of(key));
                if let Some(again) = again {
                    model.wake(key_of(key), at(now + again));
                }
            }
            let Some(next) = model.next(at(now)) else {
                if ends.values().any(|(end, _)| *end <= now) {
                    continue;
                }
                break;
            };
            let key = (0..KEYS).find(|key| key_of(*key) == next).unwrap();
            let number = counts.entry(key).or_default();
            let Reconcile { takes, again } = script.reconcile(key, *number);
            *number += 1;
            begun.insert((now, key));
            ends.insert(key, (now + takes, again));
            model.begin(next);
        }
    }
    begun
}

/// What the Controller shares with the test.
struct Context {
    script: Script,
    start: Instant,
    counts: Mutex<(BTreeMap<u8, u64>, Begun)>,
}

async fn reconcile(node: Arc<NodeObject>, context: Arc<Context>) -> Result<Action, Infallible> {
    let key = (0..KEYS).find(|key| node.metadata.name.as_deref() == Some(&name(*key))).unwrap();
    let Reconcile { takes, again } = {
        let mut shared = context.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (counts, begun) = &mut *shared;
        let number = counts.entry(key).or_default();
        let plan = context.script.reconcile(key, *number);
        *number += 1;
        begun.insert((u64::try_from(context.start.elapsed().as_millis()).unwrap(), key));
        plan
    };
    tokio::time::sleep(MILLISECOND * u32::try_from(takes).unwrap()).await;
    Ok(again.map_or_else(Action::await_change, |again| Action::requeue(Duration::from_millis(again))))
}

async fn real(script: Script) -> Begun {
    let mut writer = Writer::<NodeObject>::new(());
    writer.apply_watcher_event(&Event::Init);
    for key in 0..KEYS {
        let metadata = ObjectMeta { name: Some(name(key)), ..ObjectMeta::default() };
        writer.apply_watcher_event(&Event::InitApply(NodeObject { metadata }));
    }
    writer.apply_watcher_event(&Event::InitDone);
    let (wakes, woken) = unbounded();
    let context = Arc::new(Context { script, start: Instant::now(), counts: Mutex::default() });
    let controller = Controller::for_stream_with(pending(), writer.as_reader(), ()).reconcile_on(woken).run(
        reconcile,
        |_, never: &Infallible, _| match *never {},
        context.clone(),
    );
    let controller = tokio::spawn(controller.for_each(|_| futures::future::ready(())));
    for (millis, key) in &context.script.wakes {
        tokio::time::sleep_until(context.start + Duration::from_millis(*millis)).await;
        wakes.unbounded_send(ObjectRef::new(&name(*key))).unwrap();
    }
    tokio::time::sleep_until(context.start + Duration::from_millis(LONGEST * 10)).await;
    controller.abort();
    let shared = context.counts.lock().unwrap_or_else(PoisonError::into_inner);
    shared.1.clone()
}

#[tokio::test(start_paused = true)]
async fn the_model_reconciles_when_a_controller_does() {
    for seed in 0..200 {
        let script = Script::new(seed);
        let expected = modelled(&script);
        assert!(expected.len() > 40, "seed {seed}: {} reconciles", expected.len());
        let is = real(script).await;
        let differs: Vec<_> = is.symmetric_difference(&expected).take(5).collect();
        assert!(differs.is_empty(), "seed {seed}: {differs:?}; the Controller: {is:?}; the model: {expected:?}");
    }
}
