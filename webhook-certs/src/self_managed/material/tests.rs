use super::*;
use crate::pair::MAX_CHAIN;

const NAMES: [&str; 2] = ["nv-ipam-webhook.kube-system.svc", "nv-ipam-webhook.kube-system.svc.cluster.local"];

fn names() -> Vec<String> {
    NAMES.map(str::to_owned).to_vec()
}

fn now() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

fn made() -> Data {
    Material::create(&names(), &[], None, &Lives::default(), now()).unwrap()
}

fn read(data: &Data) -> Result<Material, String> {
    Material::read(data, None, &names())
}

/// Why no CA can be read.
fn damage(data: &Data) -> String {
    read(data).err().expect("it should be damaged")
}

/// What is wrong with the leaf of a Secret whose CA is sound.
fn unfit(data: &Data) -> Unfit {
    read(data).unwrap().standing.leaf.unwrap_err()
}

fn with(key: &str, value: impl AsRef<[u8]>) -> Data {
    let mut data = made();
    data.insert(key.to_owned(), value.as_ref().to_vec());
    data
}

#[test]
fn what_is_made_can_be_read_and_lives_as_long_as_it_should() {
    let material = read(&made()).unwrap();
    let lives = Lives::default();
    let leaf = material.standing.leaf.clone().unwrap();
    assert_eq!(material.standing.authorities.len(), 1);
    assert_eq!(leaf.not_after, now() + lives.leaf);
    assert_eq!(leaf.not_before, now() - lives.backdate);
    assert_eq!(material.standing.signer().not_after, now() + lives.authority);
    assert_eq!(material.pair.unwrap().info().names, NAMES);
}

#[test]
fn a_new_leaf_is_one_of_the_same_ca_and_old_cas_stay_after_it() {
    let old = read(&made()).unwrap().standing.authorities;
    let until = Some(now() + Lives::default().leaf);
    let first = Material::create(&names(), &old, until, &Lives::default(), now()).unwrap();
    let first = Material::read(&first, until, &names()).unwrap();
    let second = first.with_new_leaf(&names(), &Lives::default(), now()).unwrap();
    let second = Material::read(&second, until, &names()).unwrap();
    assert_eq!(first.standing.authorities, second.standing.authorities);
    assert_eq!(second.standing.authorities[1..], old);
    assert_ne!(first.standing.leaf, second.standing.leaf);
    assert!(second.standing.leaf.is_ok());
}

#[test]
fn no_leaf_outlives_its_ca() {
    let material = read(&made()).unwrap();
    let signer = material.standing.signer().clone();
    let late = signer.not_after - Duration::from_hours(24);
    let data = material.with_new_leaf(&names(), &Lives::default(), late).unwrap();
    assert_eq!(read(&data).unwrap().standing.leaf.unwrap().not_after, signer.not_after);
}

#[test]
fn a_ca_that_cannot_be_used_is_told_by_what_is_wrong() {
    let other = made();
    let cases = [
        (Data::new(), "ca.crt holds no certificate"),
        (with(AUTHORITIES, "garbage"), "ca.crt holds no certificate"),
        (with(AUTHORITIES, &other[CERTIFICATE]), "certificate 1 of ca.crt is not one of a CA"),
        (with(AUTHORITIES, other[AUTHORITIES].repeat(OLD_AUTHORITIES + 2)), "ca.crt holds 9 certificates"),
        (with(AUTHORITIES, other[AUTHORITIES].repeat(MAX_CHAIN + 1)), "holds more than 32 certificates"),
        (with(AUTHORITY_KEY, ""), "ca.key holds no private key"),
        (with(AUTHORITY_KEY, [0xff, 0x00]), "ca.key holds no private key"),
        (with(AUTHORITY_KEY, &other[AUTHORITY_KEY]), "ca.key is not the key of the first certificate in ca.crt"),
    ];
    for (data, wanted) in cases {
        let told = damage(&data);
        assert!(told.contains(wanted), "{told:?} should say {wanted:?}");
    }
}

#[test]
fn a_leaf_that_cannot_be_used_leaves_the_ca_as_it_is() {
    let other = made();
    let cases = [
        (with(CERTIFICATE, "garbage"), "tls.crt holds no certificate"),
        (with(KEY, &other[KEY]), "tls.key is not the key"),
        (with(CERTIFICATE, &other[CERTIFICATE]), "tls.key is not the key"),
    ];
    for (data, wanted) in cases {
        let told = unfit(&data).why;
        assert!(told.contains(wanted), "{told:?} should say {wanted:?}");
    }
    let mut of_another = made();
    of_another.extend([CERTIFICATE, KEY].map(|key| (key.to_owned(), other[key].clone())));
    assert!(unfit(&of_another).why.contains("is not one of the first CA in ca.crt"), "{:?}", unfit(&of_another));
}

#[test]
fn a_leaf_for_other_names_is_unfit_and_says_which_it_has() {
    let more = [names(), vec!["more.kube-system.svc".to_owned()]].concat();
    let unfit = Material::read(&made(), None, &more).unwrap().standing.leaf.unwrap_err();
    assert_eq!(unfit.why, "the certificate in tls.crt is not for more.kube-system.svc");
    assert_eq!(unfit.names, NAMES);
}

#[test]
fn a_secret_cut_off_or_altered_anywhere_is_judged_without_panic() {
    let good = made();
    for (key, value) in &good {
        for at in (0..value.len()).step_by(7) {
            let mut cut = good.clone();
            cut.insert(key.clone(), value[..at].to_vec());
            drop(read(&cut));
            let mut flipped = good.clone();
            flipped.entry(key.clone()).and_modify(|value| value[at] ^= 0x11);
            drop(read(&flipped));
        }
    }
}

#[test]
fn a_bundle_reads_as_what_it_was_written_from_and_nonsense_as_none() {
    let ders: Vec<Der> =
        [made(), made()].iter().map(|data| read(data).unwrap().standing.signer().der.clone()).collect();
    assert_eq!(bundled(bundle(ders.iter()).as_bytes()), ders);
    assert_eq!(bundled(b"nonsense"), Vec::<Der>::new());
}
