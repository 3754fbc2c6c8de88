//! Reads a pool's spec from JSON field by field, so that a value of the wrong type hides no mistake beside it.
//!
//! The typed objects read all or nothing: one number in quotes, and nothing else is said. Whoever judges text that no API
//! server has seen, or an object that an older definition let in, reads it here. Unknown fields are passed over, as the
//! API server drops them. Nothing is judged but the types; the rest is `ipam-core`'s.

use std::collections::HashSet;

use ipam_core::hint::refused_field;
use ipam_core::spec::{
    CidrPoolSpec, CommonSpec, ExclusionSpec, IndexRangeSpec, IpPoolSpec, NodeSelectorSpec, NodeSelectorTermSpec,
    PoolSpec, RequirementSpec, StaticAllocationSpec,
};
use ipam_core::{Pool, PoolKind, Reason, Violation};
use serde_json::{Map, Value};

use crate::{CIDRPoolSpec, IPPoolSpec};

/// Reads and judges `spec`, the JSON of a pool's `spec` (null if there is none). `name` is the pool's name.
///
/// # Errors
/// All violations: those of the types, and those of `ipam-core` in fields that could be read.
pub fn judge(kind: PoolKind, name: &str, spec: &Value) -> Result<(PoolSpec, Pool), Vec<Violation>> {
    let (spec, unread) = read(kind, spec);
    let pool = parse(name, &spec, unread)?;
    Ok((spec, pool))
}

/// Judges a `spec` of which `unread` could not be read; both as [`read`] and [`read_text`] give them.
///
/// # Errors
/// As [`judge`]: of a field that could not be read nothing else is said.
pub fn parse(name: &str, spec: &PoolSpec, unread: Vec<Violation>) -> Result<Pool, Vec<Violation>> {
    match Pool::parse(name, spec) {
        Ok(pool) if unread.is_empty() => Ok(pool),
        Ok(_) => Err(unread),
        Err(mut judged) => {
            let fields: HashSet<&str> = unread.iter().map(|violation| violation.field.as_str()).collect();
            judged.retain(|violation| !and_above(&violation.field).any(|field| fields.contains(field)));
            judged.extend(unread);
            Err(judged)
        }
    }
}

/// As [`read`], from the text of the JSON; `None` if there is none.
///
/// The types are tried first, which costs a fraction of reading field by field; what they refuse is read so.
pub fn read_text(kind: PoolKind, text: Option<&str>) -> (PoolSpec, Vec<Violation>) {
    let Some(text) = text else { return read(kind, &Value::Null) };
    let typed = match kind {
        PoolKind::IpPool => serde_json::from_str(text).map(|spec: IPPoolSpec| spec.to_spec()),
        PoolKind::CidrPool => serde_json::from_str(text).map(|spec: CIDRPoolSpec| spec.to_spec()),
    };
    typed.map_or_else(|_| read_untyped(kind, text), |spec| (spec, Vec::new()))
}

/// Nothing can be said of the fields of a text that is no JSON, or that lies deeper than anyone reads.
fn read_untyped(kind: PoolKind, text: &str) -> (PoolSpec, Vec<Violation>) {
    match serde_json::from_str(text) {
        Ok(value) => read(kind, &value),
        Err(error) => {
            let (none, _) = read(kind, &Value::Null);
            (none, vec![Violation::new("spec", Reason::Malformed, format!("does not read as JSON: {error}"))])
        }
    }
}

/// The spec as far as it can be read, and what cannot be: a missing or wrong value is left empty or zero.
pub fn read(kind: PoolKind, spec: &Value) -> (PoolSpec, Vec<Violation>) {
    let mut found = Vec::new();
    let none = Map::new();
    let fields = match spec {
        Value::Object(fields) => fields,
        Value::Null => {
            found.push(Violation::new("spec", Reason::Required, "is missing"));
            &none
        }
        other => {
            found.push(wrong("spec", "an object", other));
            &none
        }
    };
    // The fields of a spec that is none are not missed one by one.
    let is_object = found.is_empty();
    let mut reader = Reader { found };
    let spec = match kind {
        PoolKind::IpPool => PoolSpec::Ip(reader.ip_pool(fields)),
        PoolKind::CidrPool => PoolSpec::Cidr(reader.cidr_pool(fields)),
    };
    if !is_object {
        reader.found.truncate(1);
    }
    (spec, reader.found)
}

/// A path and all paths above it: `a.b[0]`, `a.b`, `a`.
fn and_above(field: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(field), |field| field.rfind(['.', '[']).map(|end| &field[..end]))
}

fn wrong(field: &str, wanted: &str, value: &Value) -> Violation {
    let what = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    let quotes = match value {
        Value::String(text) if wanted != "a text" && is_of(wanted, text) => "; leave the quotes out",
        Value::Number(_) | Value::Bool(_) if wanted == "a text" => "; put it in quotes",
        _ => "",
    };
    Violation::new(field, Reason::Malformed, format!("is {what}, but must be {wanted}{quotes}"))
}

/// Whether a text reads as what is wanted.
fn is_of(wanted: &str, text: &str) -> bool {
    match wanted {
        "an integer" => text.parse::<i64>().is_ok(),
        _ => wanted == "true or false" && matches!(text, "true" | "false"),
    }
}

type Fields = Map<String, Value>;

struct Reader {
    found: Vec<Violation>,
}

impl Reader {
    fn ip_pool(&mut self, fields: &Fields) -> IpPoolSpec {
        IpPoolSpec {
            subnet: self.required(fields, "spec", "subnet", Self::text),
            per_node_block_size: self.required(fields, "spec", "perNodeBlockSize", Self::integer),
            gateway: self.optional(fields, "spec", "gateway", Self::text),
            common: self.common(fields),
        }
    }

    fn cidr_pool(&mut self, fields: &Fields) -> CidrPoolSpec {
        CidrPoolSpec {
            cidr: self.required(fields, "spec", "cidr", Self::text),
            per_node_network_prefix: self.required(fields, "spec", "perNodeNetworkPrefix", Self::integer),
            gateway_index: self.optional(fields, "spec", "gatewayIndex", Self::integer),
            static_allocations: self.list(fields, "spec", "staticAllocations", |reader, at, entry| {
                StaticAllocationSpec {
                    node_name: reader.optional(entry, at, "nodeName", Self::text),
                    gateway: reader.optional(entry, at, "gateway", Self::text),
                    prefix: reader.required(entry, at, "prefix", Self::text),
                }
            }),
            common: self.common(fields),
        }
    }

    fn common(&mut self, fields: &Fields) -> CommonSpec {
        let right = self.optional(fields, "spec", "defaultGateway", Self::flag);
        let old = self.optional(fields, "spec", "defautGateway", Self::flag);
        CommonSpec {
            exclusions: self.list(fields, "spec", "exclusions", |reader, at, entry| ExclusionSpec {
                start_ip: reader.required(entry, at, "startIP", Self::text),
                end_ip: reader.required(entry, at, "endIP", Self::text),
            }),
            per_node_exclusions: self.list(fields, "spec", "perNodeExclusions", |reader, at, entry| IndexRangeSpec {
                start_index: reader.required(entry, at, "startIndex", Self::integer),
                end_index: reader.required(entry, at, "endIndex", Self::integer),
            }),
            node_selector: self.node_selector(fields),
            default_gateway: right == Some(true) || old == Some(true),
            deprecated_default_gateway: old.is_some(),
            routes: self
                .list(fields, "spec", "routes", |reader, at, entry| reader.required(entry, at, "dst", Self::text)),
        }
    }

    fn node_selector(&mut self, fields: &Fields) -> Option<NodeSelectorSpec> {
        const PATH: &str = "spec.nodeSelector";
        let value = fields.get("nodeSelector").filter(|value| !value.is_null())?;
        let Value::Object(selector) = value else {
            self.found.push(wrong(PATH, "an object", value));
            return None;
        };
        self.no_labels(selector, PATH);
        let terms = self.list(selector, PATH, "nodeSelectorTerms", |reader, at, term| {
            reader.no_labels(term, at);
            NodeSelectorTermSpec {
                match_expressions: reader.requirements(term, at, "matchExpressions"),
                match_fields: reader.requirements(term, at, "matchFields"),
            }
        });
        Some(NodeSelectorSpec { terms })
    }

    /// The one field that is no unknown one: it is declared to be refused.
    fn no_labels(&mut self, fields: &Fields, path: &str) {
        const NAME: &str = "matchLabels";
        if let (Some(why), true) = (refused_field(path, NAME), fields.get(NAME).is_some_and(|value| !value.is_null())) {
            self.found.push(Violation::new(format!("{path}.{NAME}"), Reason::Unsupported, why));
        }
    }

    fn requirements(&mut self, term: &Fields, path: &str, name: &str) -> Vec<RequirementSpec> {
        self.list(term, path, name, |reader, at, requirement| RequirementSpec {
            key: reader.required(requirement, at, "key", Self::text),
            operator: reader.required(requirement, at, "operator", Self::text),
            values: reader.values(requirement, at),
        })
    }

    fn values(&mut self, requirement: &Fields, path: &str) -> Vec<String> {
        let field = format!("{path}.values");
        let items = match requirement.get("values") {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.found.push(wrong(&field, "a list", other));
                return Vec::new();
            }
        };
        let each = items.iter().enumerate();
        each.map(|(i, value)| self.text(&format!("{field}[{i}]"), value).unwrap_or_default()).collect()
    }

    /// A list of objects; what is none is passed over, as an empty one would bring further complaints.
    fn list<T>(
        &mut self,
        fields: &Fields,
        path: &str,
        name: &str,
        read: impl Fn(&mut Self, &str, &Fields) -> T,
    ) -> Vec<T> {
        let field = format!("{path}.{name}");
        let items = match fields.get(name) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.found.push(wrong(&field, "a list", other));
                return Vec::new();
            }
        };
        let none = Map::new();
        let mut all = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let at = format!("{field}[{i}]");
            match item {
                Value::Object(entry) => all.push(read(self, &at, entry)),
                other => {
                    // The entry keeps its place, so that the paths of those behind it stay right.
                    let before = self.found.len();
                    all.push(read(self, &at, &none));
                    self.found.truncate(before);
                    self.found.push(wrong(&at, "an object", other));
                }
            }
        }
        all
    }

    fn required<T: Default>(
        &mut self,
        fields: &Fields,
        path: &str,
        name: &str,
        read: fn(&mut Self, &str, &Value) -> Option<T>,
    ) -> T {
        match fields.get(name) {
            None | Some(Value::Null) => {
                self.missing(path, name);
                T::default()
            }
            Some(value) => read(self, &format!("{path}.{name}"), value).unwrap_or_default(),
        }
    }

    fn optional<T>(
        &mut self,
        fields: &Fields,
        path: &str,
        name: &str,
        read: fn(&mut Self, &str, &Value) -> Option<T>,
    ) -> Option<T> {
        let value = fields.get(name).filter(|value| !value.is_null())?;
        read(self, &format!("{path}.{name}"), value)
    }

    fn missing(&mut self, path: &str, name: &str) {
        self.found.push(Violation::new(format!("{path}.{name}"), Reason::Required, "is missing"));
    }

    fn text(&mut self, field: &str, value: &Value) -> Option<String> {
        let text = value.as_str().map(str::to_owned);
        self.or_wrong(text, field, "a text", value)
    }

    fn integer(&mut self, field: &str, value: &Value) -> Option<i64> {
        self.or_wrong(value.as_i64(), field, "an integer", value)
    }

    fn flag(&mut self, field: &str, value: &Value) -> Option<bool> {
        self.or_wrong(value.as_bool(), field, "true or false", value)
    }

    fn or_wrong<T>(&mut self, read: Option<T>, field: &str, wanted: &str, value: &Value) -> Option<T> {
        if read.is_none() {
            self.found.push(wrong(field, wanted, value));
        }
        read
    }
}
