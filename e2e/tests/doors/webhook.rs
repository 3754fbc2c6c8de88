//! The doors with a webhook: a running operator asked over TLS, and the real API server that asks it.
//!
//! On the wire a refusal has fields and messages, and of the reason only the API's own word, which is coarser; a warning is a
//! text. So both are held against what `ipam-core` says in full, and by it translated into the words of the table. The texts of
//! the table, which are written by hand, are compared as they come.

use ipam_core::{Advice, Reason, Violation};
use ipam_e2e::cases::{Case, Refusal, Warning, load};
use serde_json::Value;

use crate::core::{Said, say};
use crate::definition::{self, complaints};
use crate::objects::new;
use crate::server::{Reply, causes, edited};
use crate::stage::{Set, Stage};
use crate::verdict::{Verdict, assert_none, disagreement, expected, lacking};

/// The verdict in the table's words; what `ipam-core` does not say stands in it as it came.
fn read(said: &Said, refusal: Option<&Value>, warnings: &[String]) -> Verdict {
    let refusals = refusal.map(causes).unwrap_or_default();
    let refused = refusals.iter().map(|[field, reason, message]| {
        let is_it = |one: &&Violation| one.field == *field && one.message == *message && word(one.reason) == reason;
        let known = said.violations.iter().find(is_it).map(|violation| violation.reason.to_string());
        Refusal { field: field.clone(), reason: known.unwrap_or_else(|| format!("{reason}: {message}")) }
    });
    let warned = warnings.iter().map(|text| {
        let is_it = |one: &&Advice| match text.strip_suffix('…') {
            Some(beginning) => one.to_string().starts_with(beginning),
            None => one.to_string() == *text,
        };
        let known = said.advice.iter().chain(&said.of_nodes).find(is_it);
        let unknown = || Warning { field: text.clone(), code: String::new() };
        known.map_or_else(unknown, |one| Warning { field: one.field.clone(), code: one.code.to_string() })
    });
    Verdict { refused: refused.collect(), warned: warned.collect() }
}

/// The API's own word for a reason.
fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Required => "FieldValueRequired",
        Reason::Duplicate => "FieldValueDuplicate",
        Reason::Unsupported => "FieldValueNotSupported",
        _ => "FieldValueInvalid",
    }
}

/// What the table says, and for a cluster that has nodes what these make of it besides.
fn wanted(case: &Case, said: &Said) -> Verdict {
    let mut wanted = expected(case);
    if !case.fleet {
        wanted.warn(&said.of_nodes);
    }
    wanted
}

fn direct(stage: &Stage, case: &Case, set: &Set, said: &Said) -> Option<String> {
    let new = set.old.as_ref().map_or_else(|| new(case), |old| edited(old, &new(case)));
    let answer = stage.review(set.old.as_ref(), &new);
    let warnings: Vec<String> = serde_json::from_value(answer["warnings"].clone()).unwrap_or_default();
    let refusal = (answer["allowed"] != true).then_some(&answer["status"]);
    let causes = refusal.map(causes).unwrap_or_default();
    let texts = causes.iter().map(|[field, _, message]| format!("{field}: {message}")).chain(warnings.iter().cloned());
    let lacking = lacking(case, &texts.collect());
    lacking.or_else(|| disagreement(case, wanted(case, said), read(said, refusal, &warnings)))
}

fn through_the_api_server(stage: &Stage, case: &Case, set: &Set, said: &Said) -> Option<String> {
    let new = set.old.as_ref().map_or_else(|| new(case), |old| edited(old, &new(case)));
    let reply = stage.server.put_to_the_test(case, set.old.as_ref(), &new);
    let asked = reply.body["message"].as_str().is_some_and(|message| message.starts_with("admission webhook"));
    if reply.is_success() || asked {
        if !case.definition.is_empty() {
            return Some(format!("{}: the definition let it through", case.title()));
        }
        let Reply { body, warnings, .. } = &reply;
        return disagreement(case, wanted(case, said), read(said, asked.then_some(body), warnings));
    }
    definition::disagreement(case, complaints(&reply.body))
}

#[test]
fn the_webhook_gives_every_case_its_verdict_asked_directly_and_by_the_api_server() {
    let cases: Vec<Case> =
        load().unwrap().into_iter().enumerate().map(|(number, case)| case.of_pool(&format!("case-{number}"))).collect();
    let mut stage = Stage::build(&cases);
    let mut wrong = Vec::new();
    for case in &cases {
        let set = stage.set(case);
        let said = say(case, &|other| set.created[&other.name]);
        wrong.extend(direct(&stage, case, &set, &said).map(|what| format!("asked directly: {what}")));
        let reached = through_the_api_server(&stage, case, &set, &said);
        wrong.extend(reached.map(|what| format!("by the API server: {what}")));
    }
    assert_none(&wrong);
}
