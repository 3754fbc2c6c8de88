//! Whether the CustomResourceDefinitions in the cluster have the fields that the operator relies on.
//!
//! The API server drops a field that the definition does not have, and answers as if it were stored. With a definition of NVIDIA's
//! nv-ipam, or of an earlier version, a block that is being released would so become free. Therefore the operator does not start to
//! work before the fields are there, and ends when they go. Where the schemas cannot be read, nothing is checked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Request;
use ipam_core::words::listed;
use ipam_crds::{GROUP, VERSION, custom_resource_definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use kube::Client;
use serde_json::{Map, Value};

/// Between two looks while fields are missing, or the schemas cannot be read.
const SOON: Duration = Duration::from_secs(3);
/// Between two looks while all is well. Until the next look, an operator works with whatever definitions were applied meanwhile.
const LATER: Duration = Duration::from_mins(1);
/// How long an answer is awaited.
const ANSWER: Duration = Duration::from_secs(10);
/// Fields of one kind that a message names.
const MOST_FIELDS: usize = 4;

/// The definitions lack fields.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the CustomResourceDefinitions are not of this version: {0}. Install those of this version, as the chart does with crds.install=true"
)]
pub struct FieldsMissing(String);

/// What is known of the definitions in the cluster.
#[derive(Debug, Default)]
pub struct Definitions {
    missing: Mutex<Option<FieldsMissing>>,
}

impl Definitions {
    /// Whether no field is known to be missing.
    ///
    /// # Errors
    /// At least one is.
    pub fn check(&self) -> Result<(), String> {
        self.missing().as_ref().map_or(Ok(()), |missing| Err(missing.to_string()))
    }

    /// Waits while fields or kinds are missing.
    pub async fn complete(&self, client: &Client) {
        while let Some(missing) = look(client).await.ok().and_then(Found::missing) {
            if self.missing().replace(missing.clone()).as_ref() != Some(&missing) {
                tracing::error!("{missing}");
            }
            tokio::time::sleep(SOON).await;
        }
        self.missing().take();
    }

    fn missing(&self) -> MutexGuard<'_, Option<FieldsMissing>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the missing fields once two looks in a row miss some: of several API servers, one can have an older document for a moment.
/// A CRD that does not exist lacks no field: the operator runs on, and it may be created again.
pub async fn lost(client: &Client) -> FieldsMissing {
    let (mut is_missing, mut is_unreadable) = (false, false);
    loop {
        let pause = match look(client).await {
            Ok(found) if found.lacking.is_empty() => {
                (is_missing, is_unreadable) = (false, false);
                LATER
            }
            Ok(found) if is_missing => return FieldsMissing(found.lacking.join(", ")),
            Ok(_) => {
                is_missing = true;
                SOON
            }
            Err(error) => {
                if !std::mem::replace(&mut is_unreadable, true) {
                    tracing::warn!(
                        error,
                        "the schemas of the CustomResourceDefinitions cannot be read, so their fields are not checked"
                    );
                }
                SOON
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// What the API server says of our kinds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Found {
    /// Which fields each kind lacks.
    lacking: Vec<String>,
    /// Kinds that do not exist, by their plural.
    absent: Vec<String>,
}

impl Found {
    /// All that is missing.
    fn missing(self) -> Option<FieldsMissing> {
        let absent = self.absent.into_iter().map(|plural| format!("{plural} does not exist"));
        let all: Vec<String> = self.lacking.into_iter().chain(absent).collect();
        (!all.is_empty()).then(|| FieldsMissing(all.join(", ")))
    }
}

/// Reads the schemas. Every authenticated client may do that.
async fn look(client: &Client) -> Result<Found, String> {
    let request = Request::get(format!("/openapi/v3/apis/{GROUP}/{VERSION}")).body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    let answer = tokio::time::timeout(ANSWER, client.request(request)).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", ANSWER.as_secs()))?;
    let document: Value = answer.map_err(|error| ipam_daemon::chain(&error))?;
    found_in(&document)
}

/// What each kind lacks in the OpenAPI document of the API server.
///
/// # Errors
/// The document has none of our kinds: it may be incomplete for a moment.
fn found_in(document: &Value) -> Result<Found, String> {
    let no_schemas = Map::new();
    let schemas = document["components"]["schemas"].as_object().unwrap_or(&no_schemas);
    let mut all = Found::default();
    let mut any = false;
    for definition in custom_resource_definitions() {
        let kind = definition.spec.names.kind;
        let is_of_kind = |schema: &&Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds
                .into_iter()
                .flatten()
                .any(|it| it["group"] == GROUP && it["version"] == VERSION && it["kind"] == *kind)
        };
        let Some(found) = schemas.values().find(is_of_kind) else {
            all.absent.push(definition.spec.names.plural);
            continue;
        };
        any = true;
        if keeps_unknown(found) {
            continue;
        }
        let ours = definition.spec.versions.into_iter().find_map(|version| version.schema?.open_api_v3_schema);
        let mut missing = Vec::new();
        // The specs of pools are the admin's. What the operator and the agents write must be stored.
        let written = if kind == "IPAMNode" { &["spec", "status"][..] } else { &["status"] };
        for (name, schema) in ours.iter().flat_map(properties) {
            if written.contains(&name.as_str()) {
                compare(name, schema, &found["properties"][name], &mut missing);
            }
        }
        if !missing.is_empty() {
            let missing = listed(missing.into_iter(), MOST_FIELDS);
            all.lacking.push(format!("{} lacks {missing}", definition.spec.names.plural));
        }
    }
    if any { Ok(all) } else { Err("no schema of our kinds".to_owned()) }
}

/// Whether the API server stores all fields, whatever the schema has.
fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

fn properties(schema: &JSONSchemaProps) -> impl Iterator<Item = (&String, &JSONSchemaProps)> {
    schema.properties.iter().flatten()
}

/// Collects the paths that `found` lacks. A field of which the server keeps everything lacks nothing.
fn compare(path: &str, ours: &JSONSchemaProps, found: &Value, missing: &mut Vec<String>) {
    if !found.is_object() {
        return missing.push(path.to_owned());
    }
    if keeps_unknown(found) {
        return;
    }
    for (name, schema) in properties(ours) {
        compare(&format!("{path}.{name}"), schema, &found["properties"][name], missing);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &ours.items {
        compare(&format!("{path}[]"), items, &found["items"], missing);
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// The document of an API server with the definitions of this version.
    fn document() -> Value {
        let schemas = custom_resource_definitions().map(|definition| {
            let kind = definition.spec.names.kind;
            let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
            let mut schema = serde_json::to_value(schema).unwrap();
            schema["x-kubernetes-group-version-kind"] = json!([{"group": GROUP, "version": VERSION, "kind": kind}]);
            (format!("com.nvidia.nv-ipam.v1alpha1.{kind}"), schema)
        });
        json!({"components": {"schemas": Map::from_iter(schemas)}})
    }

    fn without(kind: &str, pointer: &str, field: &str) -> Value {
        let mut document = document();
        let schema = &mut document["components"]["schemas"][format!("com.nvidia.nv-ipam.v1alpha1.{kind}")];
        let parent = schema.pointer_mut(pointer).unwrap();
        parent.as_object_mut().unwrap().remove(field).unwrap();
        document
    }

    fn lacking(document: &Value) -> Vec<String> {
        let found = found_in(document).unwrap();
        assert_eq!(found.absent, Vec::<String>::new());
        found.lacking
    }

    #[test]
    fn the_definitions_of_this_version_lack_nothing() {
        assert_eq!(found_in(&document()), Ok(Found::default()));
    }

    #[test]
    fn each_missing_field_is_named_with_its_kind_and_path() {
        let entry = "/properties/spec/properties/pools/items/properties";
        for (kind, pointer, field, said) in [
            ("IPPool", "/properties", "status", "ippools lacks status"),
            ("CIDRPool", "/properties/status/properties", "releasing", "cidrpools lacks status.releasing"),
            ("IPAMNode", entry, "grant", "ipamnodes lacks spec.pools[].grant"),
        ] {
            assert_eq!(lacking(&without(kind, pointer, field)), [said]);
        }
        assert_eq!(lacking(&without("IPPool", "/properties/spec/properties", "routes")), Vec::<String>::new());
    }

    #[test]
    fn a_definition_that_keeps_unknown_fields_lacks_nothing() {
        for keeps in ["/properties/status", ""] {
            let mut document = without("IPPool", keeps, "properties");
            let schema = &mut document["components"]["schemas"]["com.nvidia.nv-ipam.v1alpha1.IPPool"];
            schema.pointer_mut(keeps).unwrap()["x-kubernetes-preserve-unknown-fields"] = json!(true);
            assert_eq!(lacking(&document), Vec::<String>::new(), "{keeps}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fields_are_lost_once_two_looks_in_a_row_miss_them() {
        let (service, mut requests) = tower_test::mock::pair::<Request<Body>, http::Response<Body>>();
        let client = Client::new(service, "pools");
        let older = || without("IPPool", "/properties/status/properties", "releasing");
        let serving = tokio::spawn(async move {
            let mut looks = [document(), older(), document(), older(), json!({}), older()].into_iter();
            while let Some((_, answer)) = requests.next_request().await {
                let document = looks.next().unwrap();
                answer.send_response(http::Response::new(Body::from(document.to_string().into_bytes())));
            }
            looks.len()
        });
        let lost = lost(&client).await;
        drop(client);
        assert_eq!(serving.await.unwrap(), 0, "it has looked at all of them");
        assert!(lost.to_string().contains("ippools lacks status.releasing"), "{lost}");
    }

    /// NVIDIA's manifests have no IPAMNodes.
    #[test]
    fn a_kind_that_does_not_exist_is_missing_and_lacks_no_field() {
        let mut document = without("IPPool", "/properties/status/properties", "releasing");
        document["components"]["schemas"].as_object_mut().unwrap().remove("com.nvidia.nv-ipam.v1alpha1.IPAMNode");
        let found = found_in(&document).unwrap();
        assert_eq!(found.lacking, ["ippools lacks status.releasing"]);
        let said = found.missing().unwrap().to_string();
        assert!(said.contains("ippools lacks status.releasing, ipamnodes does not exist."), "{said}");
        assert_eq!(found_in(&json!({})), Err("no schema of our kinds".to_owned()), "it may be incomplete");
    }
}
