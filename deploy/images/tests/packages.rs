//! The bill of materials and the licences, of what each program is really built from.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail the test")]

use std::collections::BTreeSet;

use ipam_images::packages::{bill, licenses, of};
use ipam_images::platform::Platform;
use ipam_images::programs::Program;
use serde_json::Value;

fn texts<'a>(all: &'a Value, field: &str) -> Vec<&'a str> {
    all.as_array().unwrap().iter().map(|it| it[field].as_str().unwrap()).collect()
}

#[test]
fn a_bill_names_each_package_with_its_checksum_and_what_it_uses() {
    for program in Program::ALL {
        let packages = of(program, Platform::of_this_machine().unwrap()).unwrap();
        let bill = bill("image", "1.2.3", "2026-01-02T03:04:05Z", "1.95.0", &packages);
        let components = bill["components"].as_array().unwrap();
        assert_eq!(components.len(), packages.len() + 2, "the packages, Rust's library and musl");
        for component in
            components.iter().filter(|it| it["purl"].as_str().is_some_and(|it| it.starts_with("pkg:cargo/")))
        {
            let hash = component["hashes"][0]["content"].as_str().unwrap_or_default();
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{component}");
        }
        let known: BTreeSet<&str> = texts(&bill["components"], "bom-ref").into_iter().chain(["image"]).collect();
        let edges = bill["dependencies"].as_array().unwrap();
        assert_eq!(edges.len() + 1, known.len(), "each component but musl has its line");
        let mut used = BTreeSet::from(["image"]);
        for edge in edges {
            assert!(known.contains(edge["ref"].as_str().unwrap()), "{edge}");
            used.extend(edge["dependsOn"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()));
        }
        assert_eq!(used, known, "each component is used by another one or by the image");
    }
}

#[test]
fn each_package_of_others_has_a_licence_text() {
    for program in Program::ALL {
        let packages = of(program, Platform::of_this_machine().unwrap()).unwrap();
        let text = licenses(&packages).unwrap();
        let missing: Vec<&str> =
            packages.iter().filter(|it| !it.is_own && !text.contains(&it.name)).map(|it| it.name.as_str()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
