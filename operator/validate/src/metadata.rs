//! What the API server requires of an object outside its spec: `metadata`, and the names of top-level fields.

use ipam_core::hint::nearest;
use ipam_core::overlap::ALLOW_OVERLAP_ANNOTATION;
use ipam_core::{Reason, names};

use super::report::Problem;
use super::schema::{Finding, Grade};
use super::tree::{Member, Node, Place, Value, below, shortened};

/// Fields of a pool.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Fields of ObjectMeta.
const META: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The metadata of a pool that validation uses.
#[derive(Default)]
pub(super) struct Metadata {
    /// Empty if it is missing or cannot be read.
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// Value of [`ALLOW_OVERLAP_ANNOTATION`].
    pub(super) allow_overlap: Option<String>,
}

/// Validates `object` except its spec.
pub(super) fn check(object: &Node) -> (Metadata, Vec<Finding>) {
    let mut found = Found(Vec::new());
    found.unknown("", object, &FIELDS);
    let mut metadata = Metadata::default();
    match object.member("metadata") {
        Some(member) if matches!(member.node.value, Value::Map(_)) => {
            read(&member.node, member.at, &mut metadata, &mut found);
        }
        Some(member) if member.node.value != Value::Null => {
            let message = format!("{}, but an object with a name is needed", member.node.value.described());
            found.add("metadata", Reason::Malformed, message, member.place());
        }
        _ => found.add("metadata.name", Reason::Required, "is required".to_owned(), object.at),
    }
    (metadata, found.0)
}

fn read(node: &Node, place: Place, metadata: &mut Metadata, found: &mut Found) {
    found.unknown("metadata", node, &META);
    let name = found.text(node, "name");
    let generated = found.text(node, "generateName").filter(|text| !text.is_empty());
    match (name, generated) {
        (Some(name), _) if !name.is_empty() => found.name(name, node),
        (None, Some(prefix)) => found.name(&format!("{prefix}x"), node),
        _ if node.get("name").is_some_and(|name| !matches!(name.value, Value::Null | Value::Text(_))) => {}
        _ => found.add("metadata.name", Reason::Required, "is required".to_owned(), place),
    }
    name.or(generated).unwrap_or_default().clone_into(&mut metadata.name);
    metadata.namespace = found.text(node, "namespace").filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(Err(why)) = metadata.namespace.as_deref().map(ipam_daemon::flags::namespace) {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let message = format!("{:?} {why}", shortened(namespace));
        found.add("metadata.namespace", Reason::Malformed, message, node.locate("namespace"));
    }
    found.texts(node, "labels", names::is_label_key, names::is_label_value);
    found.texts(node, "annotations", |key| names::is_label_key(&key.to_ascii_lowercase()), |_| true);
    let annotations = node.get("annotations");
    let allows = annotations.and_then(|annotations| annotations.get(ALLOW_OVERLAP_ANNOTATION)?.text());
    metadata.allow_overlap = allows.map(str::to_owned);
}

struct Found(Vec<Finding>);

impl Found {
    fn add(&mut self, field: &str, reason: Reason, message: String, place: Place) {
        let problem = Problem { field: field.to_owned(), reason, message, place };
        self.0.push(Finding { grade: Grade::Form, problem });
    }

    fn unknown(&mut self, path: &str, node: &Node, known: &[&str]) {
        for member in node.members().iter().filter(|member| !known.contains(&&*member.name)) {
            let of = if path.is_empty() { "a pool" } else { path };
            let meant = nearest(&member.name, known.iter().copied());
            let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
            let message = format!("is no field of {of}, and the API server would drop it{hint}");
            let field = below(path, &member.name);
            let problem = Problem { field, reason: Reason::Unsupported, message, place: member.at };
            self.0.push(Finding { grade: Grade::Unknown, problem });
        }
    }

    /// The text in the field `name` of metadata. Adds an error for a value of another type.
    fn text<'a>(&mut self, node: &'a Node, name: &str) -> Option<&'a str> {
        let member = node.member(name)?;
        match &member.node.value {
            Value::Text(text) => return Some(text),
            Value::Null => {}
            other => self.add(&below("metadata", name), Reason::Malformed, not_a_text(other), member.place()),
        }
        None
    }

    fn name(&mut self, name: &str, node: &Node) {
        if !names::is_dns_subdomain(name) {
            let message = format!(
                "{:?} is no name of an object: write up to 253 lower case letters, digits, \"-\" and \".\", a letter or \
                 digit first and last",
                shortened(name)
            );
            self.add("metadata.name", Reason::Malformed, message, node.locate("name"));
        }
    }

    /// Validates a map of strings: labels or annotations.
    fn texts(&mut self, node: &Node, name: &str, key: impl Fn(&str) -> bool, value: impl Fn(&str) -> bool) {
        let Some(member) = node.member(name).filter(|member| member.node.value != Value::Null) else { return };
        let path = below("metadata", name);
        if !matches!(member.node.value, Value::Map(_)) {
            let message = format!("{}, but an object is needed", member.node.value.described());
            return self.add(&path, Reason::Malformed, message, member.place());
        }
        for Member { name, at, node } in member.node.members() {
            let field = below(&path, name);
            if !key(name) {
                let message = format!(
                    "{:?} is no key: write up to 63 letters, digits, \"-\", \"_\" and \".\", with a DNS \
                                       name and \"/\" before it if wanted",
                    shortened(name)
                );
                self.add(&field, Reason::Malformed, message, *at);
            }
            match &node.value {
                Value::Text(text) if value(text) => {}
                Value::Text(text) => {
                    let message = format!(
                        "{:?} is no value of a label: write up to 63 letters, digits, \"-\", \"_\" and \".\"",
                        shortened(text)
                    );
                    self.add(&field, Reason::Malformed, message, node.at);
                }
                // kubectl omits a null value.
                Value::Null => {}
                other => self.add(&field, Reason::Malformed, not_a_text(other), node.at),
            }
        }
    }
}

fn not_a_text(value: &Value) -> String {
    format!("{}, but a text is needed; write it in quotes", value.described())
}
