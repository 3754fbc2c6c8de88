//! Finds the pools among the objects of a document, including those in lists. It distinguishes other kinds from misspelled
//! ones, because it would otherwise skip a pool with a misspelled kind without an error.

use ipam_core::hint::nearest;
use ipam_core::{PoolKind, Reason};
use ipam_crds::{GROUP, VERSION};

use super::report::Problem;
use super::tree::{Node, Value, shortened};

/// The classification of an object.
pub(super) enum Object<'a> {
    /// A pool.
    Pool(PoolKind, &'a Node),
    /// A network of Multus, which may name pools.
    Network(&'a Node),
    /// The blocks of a node.
    IpamNode(&'a Node),
    /// An object of another kind, which is not validated.
    Other,
    /// An object that may be a pool, but cannot be identified, with the error.
    Stray(&'a Node, Problem),
}

/// The `apiVersion` and `kind` that a list provides for items without them.
#[derive(Clone, Copy, Default)]
struct Inherited<'a> {
    api_version: Option<&'a str>,
    kind: Option<&'a str>,
}

/// Calls `each` with all objects in `document`, and the position of those in a list.
pub(super) fn objects<'a>(document: &'a Node, each: &mut impl FnMut(Option<usize>, Object<'a>)) {
    open(document, Inherited::default(), None, &mut 0, each);
}

fn open<'a>(
    node: &'a Node,
    inherited: Inherited<'a>,
    item: Option<usize>,
    items: &mut usize,
    each: &mut impl FnMut(Option<usize>, Object<'a>),
) {
    let told = Told::of(node, inherited);
    let Told { api_version: Some(api_version), kind: Some(kind) } = told else {
        return each(item, Object::Stray(node, unnamed(node, told)));
    };
    let Some(singular) = kind.strip_suffix("List").filter(|_| is_list(api_version, kind)) else {
        return each(item, classify(node, api_version, kind));
    };
    let Some(list) = node.get("items") else { return };
    if !matches!(list.value, Value::List(_) | Value::Null) {
        let message = format!("{}, but a list is needed", list.value.described());
        let problem = Problem { field: "items".to_owned(), reason: Reason::Malformed, message, place: list.at };
        return each(item, Object::Stray(node, problem));
    }
    let inherited = match singular {
        "" => Inherited::default(),
        kind => Inherited { api_version: Some(api_version), kind: Some(kind) },
    };
    for object in list.items() {
        let position = *items;
        *items += 1;
        open(object, inherited, Some(position), items, each);
    }
}

fn is_list(api_version: &str, kind: &str) -> bool {
    (api_version == "v1" && kind == "List") || (group(api_version) == GROUP && kind != "List")
}

/// The `apiVersion` and `kind` of an object, its own or those of its list.
#[derive(Clone, Copy)]
struct Told<'a> {
    api_version: Option<&'a str>,
    kind: Option<&'a str>,
}

impl<'a> Told<'a> {
    fn of(node: &'a Node, inherited: Inherited<'a>) -> Self {
        let text = |name, otherwise| match node.get(name) {
            Some(node) => node.text().filter(|text| !text.is_empty()),
            None => otherwise,
        };
        let is_object = matches!(node.value, Value::Map(_));
        let text = |name, otherwise| if is_object { text(name, otherwise) } else { None };
        Self { api_version: text("apiVersion", inherited.api_version), kind: text("kind", inherited.kind) }
    }
}

fn unnamed(node: &Node, told: Told<'_>) -> Problem {
    if !matches!(node.value, Value::Map(_)) {
        let message = format!("{}, but a manifest is an object with apiVersion and kind", node.value.described());
        return Problem { field: String::new(), reason: Reason::Malformed, message, place: node.at };
    }
    let field = if told.kind.is_none() { "kind" } else { "apiVersion" };
    let (reason, message) = match node.get(field).filter(|given| given.value != Value::Null) {
        Some(given) => (Reason::Malformed, format!("{}, but a name is needed", given.value.described())),
        None => (Reason::Required, format!("is required; of a pool it is {}", example(field))),
    };
    Problem { field: field.to_owned(), reason, message, place: node.locate(field) }
}

/// Whether an object without `kind` or `apiVersion` may be a pool: the other of the two names one.
pub(super) fn may_be_a_pool(node: &Node) -> bool {
    let text = |name| node.get(name).and_then(Node::text).unwrap_or_default();
    group(text("apiVersion")) == GROUP || PoolKind::from_kind(text("kind")).is_some()
}

fn example(field: &str) -> String {
    if field == "kind" { "IPPool or CIDRPool".to_owned() } else { format!("{GROUP}/{VERSION}") }
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn classify<'a>(node: &'a Node, api_version: &str, kind: &str) -> Object<'a> {
    let stray = |field: &str, message| {
        let place = node.locate(field);
        Object::Stray(node, Problem { field: field.to_owned(), reason: Reason::Unsupported, message, place })
    };
    let pool = PoolKind::from_kind(kind);
    if group(api_version) == "k8s.cni.cncf.io" && kind == "NetworkAttachmentDefinition" {
        return Object::Network(node);
    }
    if group(api_version) != GROUP {
        let near = group(api_version).is_empty() || nearest(group(api_version), [GROUP]).is_some();
        return match pool.filter(|_| near) {
            Some(_) => {
                stray("apiVersion", format!("{:?} has no {kind}; write {GROUP}/{VERSION}", shortened(api_version)))
            }
            None => Object::Other,
        };
    }
    if kind == "IPAMNode" {
        return Object::IpamNode(node);
    }
    let Some(pool) = pool else {
        let meant = nearest(kind, ["IPPool", "CIDRPool"]).unwrap_or("IPPool or CIDRPool");
        return stray("kind", format!("{:?} is no kind of {GROUP}; write {meant}", shortened(kind)));
    };
    if api_version != format!("{GROUP}/{VERSION}") {
        return stray("apiVersion", format!("{:?} is not served; write {GROUP}/{VERSION}", shortened(api_version)));
    }
    Object::Pool(pool, node)
}
