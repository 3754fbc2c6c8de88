//! The door behind all doors as a cluster has it: a running operator, and pools that came in while no webhook was there.

use std::time::Duration;

use http::Method;
use ipam_e2e::cases::{Case, load};
use ipam_e2e::cluster::Operator;
use ipam_e2e::eventually_blocking;
use serde_json::Value;

use crate::objects;
use crate::reconcile::names_mistakes;
use crate::server::Server;
use crate::verdict::assert_none;

/// How long the operator may take to say what is wrong; a moment on an idle machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn says_what_is_wrong(server: &Server, case: &Case) -> Result<(), String> {
    let path = format!("{}/{}", server.path(case.kind().kind()), case.pool);
    let pool = server.send(&Method::GET, &path, &Value::Null).body;
    let mut conditions = pool["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready").ok_or("no condition yet")?;
    if (ready["status"].as_str(), ready["reason"].as_str()) != (Some("False"), Some("InvalidSpec")) {
        return Err(ready.to_string());
    }
    names_mistakes(case, ready["message"].as_str().unwrap_or_default())
}

#[test]
fn a_running_operator_names_every_mistake_that_the_definition_lets_in() {
    let server = Server::start("operated");
    let _operator = Operator::start(server.plane, &server.namespace, &[]).unwrap();
    let let_in = |case: &Case| case.is_invalid() && case.definition.is_empty() && case.old.is_none();
    let cases = load().unwrap().into_iter().filter(let_in).enumerate();
    // Pools with such specs contend for no addresses: all of them can stand side by side.
    let cases: Vec<Case> = cases.map(|(number, case)| case.of_pool(&format!("case-{number}"))).collect();
    assert!(cases.len() >= 11, "{}", cases.len());
    for case in &cases {
        server.put(&objects::new(case));
    }
    let wrong = cases.iter().filter_map(|case| {
        let said = eventually_blocking(&case.title(), PATIENCE, || says_what_is_wrong(&server, case));
        said.err().map(|error| format!("{error:#}"))
    });
    assert_none(&wrong.collect::<Vec<_>>());
}
