//! What an API server says about an object, judged by the generated schema alone: the structural conditions that the
//! definitions use, then the CEL rules. The API server stays the authority: the same cases are put to a real one.

use std::collections::{BTreeMap, BTreeSet};

use ipam_core::PoolKind;
use ipam_crds::{custom_resource_definitions, read};
use kube::core::cel::{CompiledSchema, ValidationError, ValidationErrors, Validator, cel, compile_schema};
use serde::Deserialize;
use serde_json::{Value, json};

/// One file of the table of cases; the loader of the doors (`ipam_e2e::cases`) is the strict one.
#[derive(Deserialize)]
pub(crate) struct CaseFile {
    pub(crate) kind: String,
    pub(crate) cases: Vec<Case>,
}

/// One spec and what is wrong with it, as far as one object shows it.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The pool's name, where that is what is judged.
    #[serde(default = "usual_name")]
    pub(crate) pool: String,
    pub(crate) spec: Value,
    /// The spec before, if there is one.
    pub(crate) old: Option<Value>,
    /// Which node has which block of it.
    #[serde(default)]
    blocks: BTreeMap<String, String>,
    /// Of which nodes it is being taken back.
    #[serde(default)]
    leaving: BTreeSet<String>,
    /// What nodes have reported: a number, or the addresses.
    #[serde(default)]
    held: BTreeMap<String, Value>,
    /// What the definition says.
    #[serde(default)]
    pub(crate) definition: Vec<Expected>,
    /// What everyone else says.
    #[serde(default)]
    refused: Vec<Refusal>,
    /// The rules are evaluated here by a stand-in for the API server, which reads some texts that the server does not.
    #[serde(default = "yes")]
    pub(crate) emulated: bool,
}

#[derive(Deserialize)]
struct Refusal {
    reason: String,
}

impl Case {
    /// Whether the spec alone is to be refused, by whoever knows all the rules.
    pub(crate) fn is_refused_by_itself(&self) -> bool {
        self.refused.iter().any(|refusal| !matches!(refusal.reason.as_str(), "Overlap" | "InUse"))
    }

    /// The pool as it is put, and as it was, both with the status that the operator had written.
    pub(crate) fn objects(&self, kind: &str) -> (Value, Option<Value>) {
        let Some(old) = &self.old else { return (json!({"spec": self.spec}), None) };
        let status = self.status(kind, old);
        (json!({"spec": self.spec, "status": status}), Some(json!({"spec": old, "status": status})))
    }

    fn status(&self, kind: &str, old: &Value) -> Value {
        let used = |held: &Value| held.as_array().map_or(held.as_u64().unwrap_or(0), |all| all.len() as u64);
        let ready = read::judge(PoolKind::from_kind(kind).unwrap(), "pool", old).is_ok();
        let (mut releasing, mut allocations) = (Vec::new(), Vec::new());
        for (node, block) in &self.blocks {
            let mut entry = allocation(node, block);
            if self.leaving.contains(node) {
                entry["since"] = "2026-01-01T00:00:00Z".into();
                releasing.push(entry);
            } else {
                allocations.push(entry);
            }
        }
        json!({
            "allocations": allocations,
            "releasing": releasing,
            "addresses": {"capacity": 1000, "used": self.held.values().map(used).sum::<u64>()},
            "conditions": [condition("Ready", ready)],
        })
    }
}

/// Who has which block, as a status says it: `FIRST-LAST`, `PREFIX` or `PREFIX via GATEWAY`.
pub(crate) fn allocation(node: &str, block: &str) -> Value {
    match (block.split_once('-'), block.split_once(" via ")) {
        (Some((first, last)), _) => json!({"nodeName": node, "startIP": first, "endIP": last}),
        (_, Some((prefix, gateway))) => json!({"nodeName": node, "prefix": prefix, "gateway": gateway}),
        _ => json!({"nodeName": node, "prefix": block}),
    }
}

pub(crate) fn condition(kind: &str, holds: bool) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn yes() -> bool {
    true
}

fn usual_name() -> String {
    "pool".to_owned()
}

/// An error that must be given.
#[derive(Deserialize, Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) field: String,
    pub(crate) message: String,
}

/// An error that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) field: String,
    pub(crate) message: String,
    /// Where the API server stops before it asks the CEL rules.
    blocking: bool,
}

pub(crate) fn case_files() -> Vec<CaseFile> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(files.len() >= 6, "{files:?}");
    files.iter().map(|path| serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()).collect()
}

/// The schema of a kind, as it is written into the YAML file, but for one thing: where a rule asks for an `oldSelf` that may
/// be absent, the stand-in has null, or the bare value.
pub(crate) fn schema_of(kind: &str) -> Value {
    let definition = custom_resource_definitions().into_iter().find(|found| found.spec.names.kind == kind).unwrap();
    let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
    let text = serde_json::to_string(schema).unwrap();
    serde_json::from_str(&text.replace("oldSelf.hasValue()", "(oldSelf != null)").replace("oldSelf.value()", "oldSelf"))
        .unwrap()
}

/// The kinds with their schemas, as they are written into the YAML files.
pub(crate) fn schemas() -> Vec<(String, Value)> {
    custom_resource_definitions()
        .into_iter()
        .map(|definition| {
            let kind = definition.spec.names.kind.clone();
            let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
            (kind, serde_json::to_value(schema).unwrap())
        })
        .collect()
}

/// Calls `look` for every object of a schema with its path.
pub(crate) fn each_schema(schema: &Value, path: &str, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            each_schema(property, &format!("{path}.{name}"), look);
        }
    }
    if schema["items"].is_object() {
        each_schema(&schema["items"], &format!("{path}[]"), look);
    }
}

/// Judges objects of one kind.
pub(crate) struct Judge {
    schema: Value,
    rules: CompiledSchema,
    validator: Validator,
}

impl Judge {
    pub(crate) fn of(kind: &str) -> Self {
        let schema = schema_of(kind);
        Self { rules: compile_schema(&schema), schema, validator: Validator::new() }
    }

    /// All errors of a new `object`, as the API server would give them.
    pub(crate) fn judge(&self, object: &Value) -> Vec<Found> {
        self.judge_edit(object, None)
    }

    /// All errors of `object`, which was `old` before.
    pub(crate) fn judge_edit(&self, object: &Value, old: Option<&Value>) -> Vec<Found> {
        let mut found = Vec::new();
        check_structure(&self.schema, object, "", &mut found);
        if !found.iter().any(|error| error.blocking) {
            let errors = self.broken_rules(object, old).into_iter();
            found.extend(errors.map(|error| Found {
                // The stand-in begins the path of a rule at the root with a dot.
                field: error.field_path.trim_start_matches('.').to_owned(),
                message: error.message,
                blocking: false,
            }));
        }
        found
    }

    /// The CEL rules that `object`, which was `old` before, breaks, whatever else is wrong with it.
    pub(crate) fn broken_rules(&self, object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
        self.validator
            .validate_compiled(&self.rules, object, old)
            .err()
            .map(ValidationErrors::into_vec)
            .unwrap_or_default()
    }
}

/// The type of a value in the schema's words; a number without a fraction is an integer.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::Null => "null",
    }
}

fn check_structure(schema: &Value, value: &Value, path: &str, found: &mut Vec<Found>) {
    if schema["type"].as_str().is_some_and(|wanted| wanted != type_of(value)) {
        push(found, path, "must be of type", true);
        return;
    }
    match value {
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    push(found, &join(path, name), "Required value", true);
                }
            }
            for (name, field) in fields {
                check_structure(&schema["properties"][name], field, &join(path, name), found);
            }
        }
        Value::Array(items) => check_list(schema, items, path, found),
        Value::Number(number) => check_number(schema, number.as_f64().unwrap(), path, found),
        Value::String(text) => check_text(schema, text, path, found),
        Value::Bool(_) | Value::Null => {}
    }
}

fn check_list(schema: &Value, items: &[Value], path: &str, found: &mut Vec<Found>) {
    if schema["maxItems"].as_u64().is_some_and(|most| items.len() as u64 > most) {
        push(found, path, "Too many", true);
    }
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let key: Vec<String> = keys.iter().map(|&key| item[key].to_string()).collect();
        if !keys.is_empty() && !seen.insert(key) {
            push(found, &format!("{path}[{index}]"), "Duplicate value", false);
        }
        check_structure(&schema["items"], item, &format!("{path}[{index}]"), found);
    }
}

fn check_number(schema: &Value, number: f64, path: &str, found: &mut Vec<Found>) {
    if schema["minimum"].as_f64().is_some_and(|least| number < least) {
        push(
            found,
            path,
            &format!("should be greater than or equal to {}", schema["minimum"].as_f64().unwrap()),
            false,
        );
    }
    if schema["maximum"].as_f64().is_some_and(|most| number > most) {
        push(found, path, &format!("should be less than or equal to {}", schema["maximum"].as_f64().unwrap()), false);
    }
}

fn check_text(schema: &Value, text: &str, path: &str, found: &mut Vec<Found>) {
    if schema["maxLength"].as_u64().is_some_and(|most| text.chars().count() as u64 > most) {
        push(found, path, "Too long", true);
    }
    if schema["pattern"].as_str().is_some_and(|pattern| !matches(pattern, text)) {
        push(found, path, "should match", false);
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut context = cel::Context::default();
    context.add_variable_from_value("text", text.to_owned());
    context.add_variable_from_value("pattern", pattern.to_owned());
    let program = cel::Program::compile("text.matches(pattern)").unwrap();
    program.execute(&context).unwrap() == cel::Value::Bool(true)
}

fn push(found: &mut Vec<Found>, field: &str, message: &str, blocking: bool) {
    found.push(Found { field: field.to_owned(), message: message.to_owned(), blocking });
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
