//! Every order of the calls of two replicas, with an accident at every moment.

use std::collections::HashSet;

use ipam_webhook_certs::self_managed::decide::Secret;

use crate::model::{DAY, World};

/// What may happen once, between any two calls.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Accident {
    SecretDeleted,
    SecretSpoilt,
    LeafSpoilt,
    BundleWiped,
    BundleOfOthers,
    ReplicaRestarts,
    /// One replica's clock jumps ahead by a year; the other's is right, and so is the API server's.
    ClockAhead,
    ClockBehind,
    /// Time passes until the leaf, or the CA, is to be replaced.
    LeafDue,
    AuthorityDue,
}

use Accident::*;

impl Accident {
    fn befall(self, world: &mut World) {
        match self {
            SecretDeleted => world.put(Secret::Absent),
            SecretSpoilt => world.put(Secret::Damaged("spoilt".to_owned())),
            LeafSpoilt => world.spoil_leaf(),
            BundleWiped => world.configure(vec![Vec::new(), Vec::new()]),
            BundleOfOthers => {
                let other = world.certificate(world.now, std::time::Duration::from_hours(24)).der;
                world.configure(vec![vec![other], Vec::new()]);
            }
            ReplicaRestarts => world.restart(0),
            ClockAhead => world.replicas[0].ahead = DAY * 365,
            ClockBehind => world.replicas[0].ahead = -DAY * 365,
            LeafDue => world.now += DAY * 61,
            AuthorityDue => world.now = world.standing().signer().not_after - DAY * 240,
        }
    }
}

/// Every state that can be reached from `world` with these accidents, each at any time. `holds` is asked in each, and from
/// each in which all accidents are over the replicas must come to rest with everything right.
fn explore(world: World, accidents: &[Accident], holds: impl Fn(&World)) -> usize {
    let mut seen = HashSet::new();
    let mut waiting = vec![(world, 0)];
    while let Some((world, over)) = waiting.pop() {
        if !seen.insert((world.clone(), over)) {
            continue;
        }
        holds(&world);
        for who in 0..2 {
            for patient in [false, true] {
                let mut next = world.clone();
                if next.advance(who, patient) {
                    waiting.push((next, over));
                }
            }
        }
        if let Some(accident) = accidents.get(over) {
            let mut next = world.clone();
            accident.befall(&mut next);
            waiting.push((next, over + 1));
        } else {
            let mut end = world.clone();
            end.settle();
            assert!(end.is_right(), "after {accidents:?}, from {world:?}, all came to rest at {end:?}");
        }
    }
    seen.len()
}

/// In no state does a replica show what the API server does not accept.
fn always_accepted(world: &World) {
    for who in 0..2 {
        assert!(world.accepts(who), "replica {who} shows what is not trusted: {world:?}");
    }
}

#[test]
fn two_replicas_that_start_at_once_end_with_one_ca_in_every_order_of_their_calls() {
    let states = explore(World::new(), &[], |world| {
        always_accepted(world);
        assert!(world.secrets_written <= 1, "a second Secret was written: {world:?}");
    });
    assert!(states > 50, "{states} states are too few to be all orders");
}

#[test]
fn no_accident_of_the_secret_or_of_time_makes_a_replica_show_what_is_not_trusted() {
    for accident in [SecretDeleted, SecretSpoilt, LeafSpoilt, ReplicaRestarts, LeafDue, AuthorityDue] {
        explore(World::settled(), &[accident], always_accepted);
    }
}

#[test]
fn two_accidents_in_a_row_are_healed_without_showing_what_is_not_trusted() {
    let accidents = [SecretDeleted, LeafSpoilt, LeafDue, AuthorityDue];
    for first in accidents {
        for second in accidents {
            explore_if_it_applies(first, second);
        }
    }
}

/// A leaf can be spoilt, and a CA be due, only where there is one. And of a CA that came and went with its Secret while it did
/// not look a replica knows nothing: a Secret with a new CA is deleted when both have taken that.
fn explore_if_it_applies(first: Accident, second: Accident) {
    if first == SecretDeleted || (first, second) == (AuthorityDue, SecretDeleted) {
        let mut world = World::settled();
        first.befall(&mut world);
        world.settle();
        explore(world, &[second], always_accepted);
    } else {
        explore(World::settled(), &[first, second], always_accepted);
    }
}

#[test]
fn a_bundle_that_is_wiped_or_overwritten_is_written_again_whatever_else_happens() {
    // What is taken away from outside cannot be trusted until it is given back; so only the end is judged.
    for lost in [BundleWiped, BundleOfOthers] {
        for other in [LeafDue, SecretDeleted, ReplicaRestarts] {
            explore(World::settled(), &[lost, other], |_| {});
        }
        explore(World::new(), &[lost], |_| {});
    }
}

#[test]
fn a_clock_that_is_a_year_off_makes_no_certificate_that_the_others_refuse_and_starts_no_war() {
    explore(World::new(), &[ClockAhead], always_accepted);
    for clock in [ClockAhead, ClockBehind] {
        explore(World::settled(), &[clock], always_accepted);
        explore(World::settled(), &[clock, LeafDue], always_accepted);
    }
}

#[test]
fn what_a_clock_a_year_behind_makes_is_replaced_by_a_replica_whose_clock_is_right() {
    explore(World::new(), &[ClockBehind], |_| {});
}
