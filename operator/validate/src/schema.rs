//! Validates a spec by the API server's schema: types, required fields, limits, unknown fields.
//!
//! The schema is the one in the CustomResourceDefinition, so a rule there is a rule here. `ipam-core` checks patterns and CEL
//! rules, and has each of them in full. Validation continues after an error: a stand-in that no rule accepts as valid
//! replaces the invalid value, so that the rest can be validated.

use std::sync::LazyLock;

use ipam_core::hint::{refused_field, unknown_field_hint};
use ipam_core::{PoolKind, Reason};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use serde_json::{Map, Value as Json};

use super::report::Problem;
use super::tree::{Node, Place, Value, below, shortened};

/// The kind of error of a [`Finding`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grade {
    /// The value is missing or of the wrong type. Nothing at or below it was validated.
    Form,
    /// The value is beyond a limit, but was validated.
    Limit,
    /// The field is unknown. The API server drops it, unless it validates strictly.
    Unknown,
}

/// An error that the schema finds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) grade: Grade,
    pub(super) problem: Problem,
}

/// The schema of `spec` of one kind of pool.
fn of_spec(kind: PoolKind) -> &'static JSONSchemaProps {
    static SCHEMAS: LazyLock<[JSONSchemaProps; 2]> = LazyLock::new(|| {
        let [ip, cidr, _] = ipam_crds::custom_resource_definitions().map(|mut definition| {
            let version = definition.spec.versions.pop();
            let object = version.and_then(|version| version.schema?.open_api_v3_schema).unwrap_or_default();
            object.properties.and_then(|mut fields| fields.remove("spec")).unwrap_or_default()
        });
        [ip, cidr]
    });
    let [ip, cidr] = &*SCHEMAS;
    match kind {
        PoolKind::IpPool => ip,
        PoolKind::CidrPool => cidr,
    }
}

/// Validates `node`, the spec of a pool of `kind`. Errors of the spec as a whole are at `place`. The returned value has the
/// types that the schema requires.
pub(super) fn check(kind: PoolKind, node: &Node, place: Place) -> (Json, Vec<Finding>) {
    let mut checker = Checker { kind, found: Vec::new() };
    let value = checker.value(node, place, "spec", of_spec(kind));
    (value, checker.found)
}

struct Checker {
    kind: PoolKind,
    found: Vec<Finding>,
}

impl Checker {
    fn add(&mut self, grade: Grade, field: &str, reason: Reason, message: String, place: Place) {
        self.found.push(Finding { grade, problem: Problem { field: field.to_owned(), reason, message, place } });
    }

    fn value(&mut self, node: &Node, place: Place, path: &str, schema: &JSONSchemaProps) -> Json {
        match (schema.type_.as_deref(), &node.value) {
            (Some("object"), Value::Map(_)) => self.object(node, place, path, schema),
            (Some("array"), Value::List(_)) => self.array(node, place, path, schema),
            (Some("string"), Value::Text(text)) => self.text(text, place, path, schema),
            (Some("boolean"), Value::Bool(value, _)) => Json::Bool(*value),
            (Some("integer"), Value::Int(_) | Value::Float(..)) => self.integer(&node.value, place, path, schema),
            _ => {
                let (reason, message) = wrong_type(&node.value, schema);
                self.add(Grade::Form, path, reason, message, place);
                stand_in(schema)
            }
        }
    }

    fn object(&mut self, node: &Node, place: Place, path: &str, schema: &JSONSchemaProps) -> Json {
        let mut fields = Map::new();
        let known = schema.properties.as_ref();
        let required: Vec<&str> = schema.required.iter().flatten().map(String::as_str).collect();
        for member in node.members() {
            let field = below(path, &member.name);
            if let (Some(why), false) = (refused_field(path, &member.name), matches!(member.node.value, Value::Null)) {
                self.add(Grade::Form, &field, Reason::Unsupported, why.to_owned(), member.at);
            } else if let Some(schema) = known.and_then(|known| known.get(&*member.name)) {
                if matches!(member.node.value, Value::Null) && !required.contains(&&*member.name) {
                    // The API server treats such a field as absent. Templates produce many of them.
                    continue;
                }
                let value = self.value(&member.node, member.place(), &field, schema);
                fields.insert(member.name.to_string(), value);
            } else {
                let message = self.unknown(path, &member.name);
                self.add(Grade::Unknown, &field, Reason::Unsupported, message, member.at);
            }
        }
        for name in required.into_iter().filter(|name| node.member(name).is_none()) {
            let field = known.and_then(|known| known.get(name));
            let message = format!("is required: {}", field.map_or_else(String::new, meaning));
            self.add(Grade::Form, &below(path, name), Reason::Required, message, place);
            fields.insert(name.to_owned(), field.map_or(Json::Null, stand_in));
        }
        Json::Object(fields)
    }

    fn unknown(&self, path: &str, name: &str) -> String {
        let hint = unknown_field_hint(self.kind, path, name).map_or_else(String::new, |hint| format!("; {hint}"));
        format!("is no field of {path}, and the API server would drop it{hint}")
    }

    fn array(&mut self, node: &Node, place: Place, path: &str, schema: &JSONSchemaProps) -> Json {
        let items = node.items();
        let most = schema.max_items.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        if items.len() > most {
            let message = format!("has {} entries; the API server takes {most} at most", items.len());
            self.add(Grade::Limit, path, Reason::OutOfRange, message, place);
        }
        let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items else { return Json::Array(Vec::new()) };
        let each = items.iter().enumerate();
        Json::Array(each.map(|(i, item)| self.value(item, item.at, &format!("{path}[{i}]"), schema)).collect())
    }

    fn text(&mut self, text: &str, place: Place, path: &str, schema: &JSONSchemaProps) -> Json {
        let most = schema.max_length.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        let length = text.chars().count();
        if length > most {
            let message = format!("{:?} has {length} characters; write {most} at most", shortened(text));
            self.add(Grade::Limit, path, Reason::OutOfRange, message, place);
        }
        Json::String(text.to_owned())
    }

    fn integer(&mut self, value: &Value, place: Place, path: &str, schema: &JSONSchemaProps) -> Json {
        let (first, last) = match schema.format.as_deref() {
            Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => (i64::MIN, i64::MAX),
        };
        let Some(number) = whole(value) else {
            let message = format!("{}, but no whole one; write for example 4", value.described());
            self.add(Grade::Form, path, Reason::Malformed, message, place);
            return stand_in(schema);
        };
        let Some(fitting) = i64::try_from(number).ok().filter(|number| (first..=last).contains(number)) else {
            let message = format!("{number} does not fit; write a number up to {last}");
            self.add(Grade::Form, path, Reason::OutOfRange, message, place);
            return stand_in(schema);
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "limits of the schema are small numbers; beyond 2^53 no limit is near"
        )]
        let exact = fitting as f64;
        if schema.minimum.is_some_and(|least| exact < least) || schema.maximum.is_some_and(|most| exact > most) {
            let limits = limits(schema.minimum, schema.maximum);
            self.add(
                Grade::Limit,
                path,
                Reason::OutOfRange,
                format!("{fitting} is out of range; write {limits}"),
                place,
            );
        }
        Json::from(fitting)
    }
}

/// The value as an integer. The API server also accepts 4.0 and 1e2, because JSON has only one type of number.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Int(number) => Some(*number),
        #[expect(clippy::cast_possible_truncation, reason = "the guard leaves whole numbers below 2^53 only")]
        Value::Float(number, _) if number.fract() == 0.0 && number.abs() < 9e15 => Some(*number as i128),
        _ => None,
    }
}

fn limits(least: Option<f64>, most: Option<f64>) -> String {
    match (least, most) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("{least} or more"),
        (None, Some(most)) => format!("{most} or less"),
        (None, None) => "another number".to_owned(),
    }
}

fn wrong_type(value: &Value, schema: &JSONSchemaProps) -> (Reason, String) {
    let wanted = match schema.type_.as_deref() {
        Some("object") => "an object",
        Some("array") => "a list",
        Some("integer") => "a whole number",
        Some("boolean") => "true or false",
        _ => "a text",
    };
    match value {
        Value::Null => {
            (Reason::Required, format!("has no value; write {wanted}, or leave the field out if it may be absent"))
        }
        Value::Bool(_, text) | Value::Float(_, text) if wanted == "a text" => (Reason::Malformed, quoted(value, text)),
        Value::Int(number) if wanted == "a text" => (Reason::Malformed, quoted(value, &number.to_string())),
        Value::Text(text) if unquoted(text, schema) => (
            Reason::Malformed,
            format!("{}, but {wanted} is needed; write {} without quotes", value.described(), shortened(text)),
        ),
        other => (Reason::Malformed, format!("{}, but {wanted} is needed", other.described())),
    }
}

fn quoted(value: &Value, text: &str) -> String {
    format!(
        "{} in YAML, but a text is needed; if it is meant so write it in quotes: \"{}\"",
        value.described(),
        shortened(text)
    )
}

/// Whether the text would be valid without quotes.
fn unquoted(text: &str, schema: &JSONSchemaProps) -> bool {
    match (schema.type_.as_deref(), super::scalar::resolve(text)) {
        (Some("integer"), value) => whole(&value).is_some(),
        (Some("boolean"), Value::Bool(..)) => true,
        _ => false,
    }
}

/// A value of the right type that every rule of `ipam-core` rejects or treats as empty. The field still counts as present, so
/// that rules of other fields do not report it as missing.
fn stand_in(schema: &JSONSchemaProps) -> Json {
    match schema.type_.as_deref() {
        Some("object") => {
            let field = |name: &String| {
                let field = schema.properties.as_ref().and_then(|known| known.get(name));
                (name.clone(), field.map_or(Json::Null, stand_in))
            };
            Json::Object(schema.required.iter().flatten().map(field).collect())
        }
        Some("array") => Json::Array(Vec::new()),
        Some("integer") => Json::from(-1),
        Some("boolean") => Json::Bool(false),
        _ => Json::from("?"),
    }
}

/// The first sentence of a field's description.
fn meaning(schema: &JSONSchemaProps) -> String {
    let text = schema.description.as_deref().unwrap_or_default();
    let end = text.find(['.', '\n']).unwrap_or(text.len());
    let mut first = text[..end].chars();
    first.next().map_or_else(String::new, |letter| letter.to_lowercase().chain(first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keywords that [`Checker`] reads.
    const READ: [&str; 9] =
        ["type", "format", "minimum", "maximum", "maxLength", "maxItems", "required", "properties", "items"];
    /// Keywords without a rule, and those whose rules `ipam-core` has.
    const LEFT: [&str; 8] = [
        "description",
        // Of a field that is rejected as a whole.
        "additionalProperties",
        "pattern",
        "x-kubernetes-validations",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "default",
    ];

    fn keywords(schema: &Json, found: &mut impl FnMut(&str)) {
        for (keyword, value) in schema.as_object().unwrap() {
            found(keyword);
            match keyword.as_str() {
                "properties" => value.as_object().unwrap().values().for_each(|field| keywords(field, found)),
                "items" => keywords(value, found),
                _ => {}
            }
        }
    }

    #[test]
    fn every_keyword_of_the_schemas_is_read_or_left_to_the_core_on_purpose() {
        for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
            let schema = serde_json::to_value(of_spec(kind)).unwrap();
            assert!(schema["properties"].as_object().unwrap().len() > 5, "{kind} has no schema");
            keywords(&schema, &mut |keyword| {
                assert!(READ.contains(&keyword) || LEFT.contains(&keyword), "{kind}: nobody judges {keyword:?}");
            });
        }
    }
}
