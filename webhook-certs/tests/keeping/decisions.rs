//! Single decisions: when something is renewed, kept, retired, left alone.

use std::time::Duration;

use ipam_webhook_certs::self_managed::decide::{
    Cause, Configuration, Lives, OLD_AUTHORITIES, Secret, Step, Unfit, View, decide,
};

use crate::model::{DAY, LONG, World};

fn next(world: &World, who: usize) -> Step {
    next_after(world, who, LONG)
}

fn next_after(world: &World, who: usize, trusted_for: Duration) -> Step {
    let served = world.replicas[who].served.as_ref();
    let view = View { secret: &world.secret, configuration: &world.configuration, served, trusted_for };
    decide(&view, &Lives::default(), world.now)
}

#[test]
fn what_is_right_is_left_alone() {
    let world = World::settled();
    assert_eq!((next(&world, 0), next(&world, 1)), (Step::Rest, Step::Rest));
}

#[test]
fn a_leaf_is_replaced_when_two_thirds_of_its_life_are_over_and_its_ca_stays() {
    let mut world = World::settled();
    world.now += DAY * 60 - jiff::SignedDuration::from_secs(1);
    assert_eq!(next(&world, 0), Step::Rest);
    world.now += jiff::SignedDuration::from_secs(1);
    assert_eq!(next(&world, 0), Step::NewLeaf { cause: Cause::Due, names: Vec::new() });
    let signer = world.standing().signer().clone();
    world.settle();
    assert_eq!((world.standing().signer(), world.is_right()), (&signer, true));
}

#[test]
fn a_new_ca_stands_beside_the_old_one_until_the_last_leaf_of_that_has_ended_and_an_hour() {
    let mut world = World::settled();
    let old = world.standing().signer().clone();
    world.now = old.not_after - DAY * 240;
    world.settle();
    let last = world.standing().retire_after.unwrap();
    assert_eq!(world.standing().authorities[1..], [old]);
    assert_ne!(world.standing().signer(), &world.standing().authorities[1]);
    // The last leaf of the old CA is the one that the replicas made first thing at that time.
    assert!(last > world.now && last <= world.now + DAY * 90, "{last} at {}", world.now);
    world.now = world.now.max(last + jiff::SignedDuration::from_hours(1));
    world.settle();
    assert_eq!(world.standing().authorities.len(), 2, "clocks may be an hour apart");
    world.now += jiff::SignedDuration::from_secs(1);
    world.settle();
    assert_eq!((world.standing().authorities.len(), world.standing().retire_after), (1, None));
    assert!(world.is_right());
}

#[test]
fn where_the_end_of_the_last_leaf_is_not_noted_an_old_ca_stays_until_its_own_end() {
    let mut world = World::settled();
    let mut standing = world.standing().clone();
    let old = world.certificate(world.now, Duration::from_hours(24 * 400));
    standing.authorities.push(old.clone());
    world.put(Secret::Standing(standing));
    world.settle();
    world.now = old.not_after;
    world.settle();
    assert!(world.standing().authorities.contains(&old));
    world.now += jiff::SignedDuration::from_hours(2);
    world.settle();
    assert!(!world.standing().authorities.contains(&old));
}

#[test]
fn a_new_leaf_waits_for_the_api_servers_while_the_old_one_works_and_no_longer() {
    let mut world = World::settled();
    world.now += DAY * 61;
    for _ in 0..3 {
        world.advance(1, true);
    }
    assert_eq!(world.secrets_written, 2);
    assert_eq!(next_after(&world, 0, Duration::from_secs(9)), Step::Rest);
    assert_eq!(next_after(&world, 0, Duration::from_secs(10)), Step::Serve);
    world.restart(0);
    assert_eq!(next_after(&world, 0, Duration::ZERO), Step::Serve, "there is nothing to serve meanwhile");
}

#[test]
fn a_leaf_is_not_served_before_the_configuration_trusts_its_ca() {
    let mut world = World::new();
    while world.secrets_written == 0 {
        world.advance(0, true);
    }
    assert!(matches!(next(&world, 0), Step::Trust(_)));
    world.configuration = Configuration::Absent;
    assert_eq!(next(&world, 0), Step::Serve, "where there is no configuration nobody calls us");
}

#[test]
fn a_bundle_wiped_in_one_of_two_webhooks_is_restored() {
    let mut world = World::settled();
    let Configuration::Bundles(bundles) = &world.configuration else { unreachable!("it is settled") };
    let kept = bundles[0].clone();
    for bundles in [[kept.clone(), Vec::new()], [Vec::new(), kept.clone()]] {
        world.configure(bundles.into());
        assert_eq!(next(&world, 0), Step::Trust(kept.clone()));
    }
}

#[test]
fn what_others_keep_is_left_alone() {
    let mut world = World::settled();
    let right = world.configuration.clone();
    world.configuration = Configuration::Foreign("cert-manager".to_owned());
    assert_eq!(next(&world, 0), Step::Blocked("cert-manager".to_owned()));
    world.configuration = right;
    world.put(Secret::Foreign("OpenShift".to_owned()));
    assert_eq!(next(&world, 0), Step::Blocked("OpenShift".to_owned()));
}

#[test]
fn another_secret_put_in_place_of_ours_is_taken_without_distrusting_what_is_served_meanwhile() {
    let mut world = World::settled();
    let ours = world.standing().signer().clone();
    let mut other = World::settled();
    other.made = 100;
    let later = other.now + DAY;
    let mut standing = other.standing().clone();
    standing.authorities = vec![other.certificate(later, Duration::from_hours(24 * 700))];
    standing.leaf = Ok(other.certificate(later, Duration::from_hours(24 * 80)));
    world.put(Secret::Standing(standing.clone()));
    let Step::KeepAuthorities { keep, retire_after } = next(&world, 0) else { unreachable!("{:?}", next(&world, 0)) };
    assert_eq!((keep, retire_after), (vec![ours], Some(world.replicas[0].served.as_ref().unwrap().leaf.not_after)));
    world.settle();
    assert!(world.is_right());
    assert_eq!(world.standing().signer(), standing.signer());
}

#[test]
fn replicas_that_want_different_names_agree_on_a_leaf_that_has_them_all() {
    let mut world = World::settled();
    let mut standing = world.standing().clone();
    let names = vec!["old.kube-system.svc".to_owned()];
    standing.leaf = Err(Unfit { why: "not for new.kube-system.svc".to_owned(), names: names.clone() });
    world.put(Secret::Standing(standing));
    let cause = Cause::Damaged("not for new.kube-system.svc".to_owned());
    assert_eq!(next(&world, 0), Step::NewLeaf { cause, names });
}

#[test]
fn a_secret_that_is_deleted_again_and_again_does_not_gather_cas_without_end() {
    let mut world = World::settled();
    for _ in 0..3 * OLD_AUTHORITIES {
        world.put(Secret::Absent);
        world.settle();
    }
    assert_eq!(world.standing().authorities.len(), OLD_AUTHORITIES + 1);
    assert!(world.is_right());
}

#[test]
fn a_clock_that_was_years_ahead_leaves_nothing_that_is_not_replaced() {
    let mut world = World::new();
    let years = DAY * 365 * 20;
    world.now += years;
    world.settle();
    world.now -= years;
    assert!(matches!(next(&world, 0), Step::NewAuthority { cause: Cause::Invalid, .. }));
    world.settle();
    assert!(world.is_right());
}
