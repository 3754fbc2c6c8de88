//! Campaigns call by call, against a Lease that the test writes by hand.

use std::time::Duration;

use super::super::algorithm::RENEW_DEADLINE;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn wall() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn campaign(identity: &str, now: Instant) -> Campaign {
    Campaign::new(identity.to_owned(), "ns", now, Box::new(|| 0.5))
}

impl Campaign {
    fn asks(&mut self, now: Instant) -> Next {
        self.next(now, wall(), LeaseRequest::default())
    }
}

/// The Lease that `next` writes, at this version.
fn written(next: Next, version: &str) -> Lease {
    let (Next::Create(mut lease) | Next::Replace(mut lease)) = next else { panic!("writes nothing: {next:?}") };
    lease.metadata.resource_version = Some(version.to_owned());
    lease
}

fn no_answer<T>() -> Result<T, String> {
    Err("no answer".to_owned())
}

/// A campaign that leads since `start`, and its Lease.
fn leader(identity: &str, start: Instant) -> (Campaign, Lease) {
    let mut campaign = campaign(identity, start);
    assert_eq!(campaign.asks(start), Next::Read);
    campaign.was_read(Ok(None), start);
    let lease = written(campaign.asks(start), "1");
    campaign.was_written(Ok(lease.clone()), start);
    assert_eq!(campaign.leads_until(), Some(start + RENEW_DEADLINE));
    (campaign, lease)
}

#[test]
fn of_two_that_read_together_one_writes() {
    let start = Instant::now();
    let (mut one, mut other) = (campaign("one", start), campaign("other", start));
    for campaign in [&mut one, &mut other] {
        assert_eq!(campaign.asks(start), Next::Read);
        campaign.was_read(Ok(None), start);
    }
    let lease = written(one.asks(start), "1");
    assert!(matches!(other.asks(start), Next::Create(_)));
    one.was_written(Ok(lease.clone()), start);
    other.was_written(Err("already exists".to_owned()), start);
    // A write after a read is not tried again at once.
    assert_eq!(other.asks(start), Next::Wait(start + follow_pause(0.5)));
    assert_eq!((one.leads_until().is_some(), other.leads_until()), (true, None));
    let later = start + follow_pause(0.5);
    assert_eq!(other.asks(later), Next::Read);
    other.was_read(Ok(Some(lease)), later);
    assert_eq!(other.asks(later), Next::Wait(later + follow_pause(0.5)));
    assert_eq!(other.take_tried(), Some(Tried::Follows("one".to_owned())));
}

#[test]
fn a_leader_writes_without_a_read_and_reads_after_a_failure() {
    let start = Instant::now();
    let (mut leader, lease) = leader("one", start);
    let renewal = start + RETRY_PERIOD;
    assert_eq!(leader.asks(start + SECOND), Next::Wait(renewal));
    let sent = leader.asks(renewal);
    assert!(matches!(sent, Next::Replace(_)));
    leader.was_written(no_answer(), renewal);
    assert_eq!(leader.asks(renewal), Next::Read);
    // The write had taken effect.
    leader.was_read(Ok(Some(Lease { metadata: written(sent, "2").metadata, ..lease })), renewal + SECOND);
    assert_eq!(written(leader.asks(renewal + SECOND), "3").metadata.name, Some(LEASE_NAME.to_owned()));
    assert_eq!(leader.leads_until(), Some(start + RENEW_DEADLINE), "no renewal is known to have succeeded");
}

#[test]
fn a_leader_loses_at_the_deadline_however_its_calls_fail() {
    let start = Instant::now();
    let end = start + RENEW_DEADLINE;
    for hangs in [true, false] {
        let (mut leader, _) = leader("one", start);
        let (mut now, mut calls) = (start, 0);
        loop {
            match leader.asks(now) {
                Next::Wait(until) => now = until,
                Next::LeadershipLost(lost) => break assert_eq!((lost, now), (LeadershipLost::Deadline, end)),
                _ if hangs => calls += 1,
                Next::Read => leader.was_read(no_answer(), now),
                Next::Create(_) | Next::Replace(_) => leader.was_written(no_answer(), now),
            }
        }
        assert_eq!(calls, if hangs { 2 } else { 0 }, "one dead connection costs one call");
        assert_eq!(leader.asks(now), Next::LeadershipLost(LeadershipLost::Deadline), "for ever");
    }
}

#[test]
fn a_leader_whose_write_hangs_goes_on_whether_or_not_the_write_took_effect() {
    for took_effect in [true, false] {
        let start = Instant::now();
        let (mut leader, lease) = leader("one", start);
        let renewal = start + RETRY_PERIOD;
        let sent = written(leader.asks(renewal), "2");
        assert_eq!(leader.asks(renewal), Next::Wait(renewal + ANSWER));
        let again = renewal + ANSWER + RETRY_PERIOD;
        assert_eq!(leader.asks(renewal + ANSWER), Next::Wait(again));
        let retried = written(leader.asks(again), "3");
        if took_effect {
            leader.was_written(Err("conflict".to_owned()), again);
            assert_eq!(leader.asks(again), Next::Read);
            leader.was_read(Ok(Some(sent)), again);
            let retried = written(leader.asks(again), "3");
            leader.was_written(Ok(retried), again);
        } else {
            assert_eq!(lease.metadata.name, retried.metadata.name);
            leader.was_written(Ok(retried), again);
        }
        assert_eq!(leader.leads_until(), Some(again + RENEW_DEADLINE));
    }
}

#[test]
fn a_leader_that_reads_another_holder_is_lost() {
    let start = Instant::now();
    let (mut leader, mut lease) = leader("one", start);
    let now = start + RETRY_PERIOD;
    assert!(matches!(leader.asks(now), Next::Replace(_)));
    leader.was_written(Err("conflict".to_owned()), now);
    assert_eq!(leader.asks(now), Next::Read);
    lease.spec.as_mut().unwrap().holder_identity = Some("other".to_owned());
    leader.was_read(Ok(Some(lease)), now);
    assert_eq!(leader.leads_until(), None);
    assert_eq!(leader.asks(now), Next::LeadershipLost(LeadershipLost::Taken("other".to_owned())));
}

#[test]
fn a_leader_that_reads_a_released_lease_is_lost() {
    let start = Instant::now();
    let (mut campaign, mut lease) = leader("one", start);
    assert!(matches!(campaign.asks(start + 2 * SECOND), Next::Replace(_)));
    campaign.was_written(no_answer(), start + 2 * SECOND);
    assert_eq!(campaign.asks(start + 2 * SECOND), Next::Read);
    // The backup is from after a leader stopped: its Lease has no holder.
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = Some(String::new());
    }
    campaign.was_read(Ok(Some(lease)), start + 2 * SECOND);
    assert_eq!(campaign.asks(start + 2 * SECOND), Next::LeadershipLost(LeadershipLost::Restored));
}

#[test]
fn a_candidate_gives_up_a_call_and_takes_no_late_answer() {
    let start = Instant::now();
    let mut candidate = campaign("one", start);
    assert_eq!(candidate.asks(start), Next::Read);
    let end = start + ANSWER;
    assert_eq!(candidate.asks(start + SECOND), Next::Wait(end));
    assert_eq!(candidate.asks(end), Next::Wait(end + follow_pause(0.5)));
    candidate.was_read(Ok(None), end);
    assert_eq!(candidate.asks(end), Next::Wait(end + follow_pause(0.5)));
}

#[test]
fn a_lease_without_the_state_that_was_sent_is_altered() {
    let start = Instant::now();
    let (mut leader, _) = leader("one", start);
    leader.take_tried();
    let request = LeaseRequest { allocation: Some(AllocationState::Allocated), ..LeaseRequest::default() };
    let mut now = start;
    for (is_stripped, tried) in [(true, Tried::Altered), (false, Tried::Written)] {
        now += RETRY_PERIOD;
        let mut lease = written(leader.next(now, wall(), request), "2");
        if is_stripped {
            lease.metadata.annotations = None;
        }
        leader.was_written(Ok(lease), now);
        assert_eq!(leader.take_tried(), Some(tried));
    }
    assert_eq!(leader.state().allocation, AllocationState::Allocated);
}

#[test]
fn a_press_ends_the_pause_of_a_leader_alone() {
    let start = Instant::now();
    let (mut leader, lease) = leader("one", start);
    leader.press(start + SECOND);
    assert!(matches!(leader.asks(start + SECOND), Next::Replace(_)));
    let mut follower = campaign("other", start);
    assert_eq!(follower.asks(start), Next::Read);
    follower.was_read(Ok(Some(lease)), start);
    let pause = Next::Wait(start + follow_pause(0.5));
    assert_eq!(follower.asks(start), pause);
    follower.press(start + SECOND);
    assert_eq!(follower.asks(start + SECOND), pause);
}

#[test]
fn a_write_that_began_before_the_request_does_not_answer_it() {
    let start = Instant::now();
    let (mut one, _) = leader("one", start);
    let later = start + RETRY_PERIOD;
    let renewal = written(one.asks(later), "2");
    let request = LeaseRequest { confirm: 1, ..LeaseRequest::default() };
    assert!(matches!(one.next(later, wall(), request), Next::Wait(_)));
    one.was_written(Ok(renewal), later);
    assert_eq!(one.state().confirmed, 0);
    one.press(later);
    let next = written(one.next(later, wall(), request), "3");
    one.was_written(Ok(next), later);
    assert_eq!(one.state().confirmed, 1);
}
