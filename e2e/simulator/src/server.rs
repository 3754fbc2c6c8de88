//! A model of the API server: versions, conditional writes, finalizers, and a history that watches read at their own pace.
//!
//! It has the objects that the operator and the agents use, by plural and name, and does not validate their content. It
//! handles versions like the real one. A write that names another version than the current one conflicts. A write that
//! changes nothing makes no version. `spec` and `status` are written separately. An object with finalizers is deleted
//! only when the last one is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::activity::{Activity, error_name};
use super::answer::failure;
use super::object::Object;

/// Where pools and IPAMNodes live.
pub(super) const NAMESPACE: &str = "kube-system";

/// How much a restore increases versions.
pub(super) const RESTORE_BUMP: u64 = 1_000_000;

/// How an object changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The object exists, new or changed.
    Applied,
    /// The object is deleted.
    Deleted,
}

/// One entry of the history.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// The version that the change made.
    pub(super) version: u64,
    /// What happened.
    pub(super) change: Change,
    /// The object after the change, or its last state.
    pub(super) object: Arc<Object>,
}

/// The plurals that the model knows.
pub(super) const PLURALS: [&str; 5] = ["ippools", "cidrpools", "ipamnodes", "nodes", "leases"];

/// All objects by name, for each of [`PLURALS`].
type Objects = [BTreeMap<String, Arc<Object>>; PLURALS.len()];

fn place(plural: &'static str) -> usize {
    PLURALS.iter().position(|known| *known == plural).unwrap_or_default()
}

/// The state of the server.
#[derive(Clone, Default, Debug)]
pub(super) struct Server {
    objects: Objects,
    /// All objects of the backup that was restored last.
    restored: Objects,
    version: u64,
    /// The version of the last change to anything but a lease.
    news: u64,
    /// Requests of replicas, except those about leases.
    requests: u64,
    lease_requests: u64,
    uids: u64,
    errors: Activity,
    /// How often a backup was restored.
    restores: u64,
    /// The changes, for each of [`PLURALS`].
    history: [Vec<Event>; PLURALS.len()],
    /// The name and each gateway of all IPPools that ever existed. No restore takes this back.
    gateways: BTreeSet<(String, String)>,
}

impl Backup {
    /// All objects of a kind.
    pub(super) fn list(&self, plural: &'static str) -> impl Iterator<Item = &Arc<Object>> {
        self.objects[place(plural)].values()
    }
}

/// A copy of all objects, like a backup of etcd.
#[derive(Clone, Debug)]
pub(super) struct Backup {
    objects: Objects,
    /// The version of the last change to anything but a lease.
    news: u64,
}

/// Why a request was refused: HTTP code and message.
pub(super) type Refused = (u16, String);

impl Server {
    /// An object.
    pub(super) fn get(&self, plural: &'static str, name: &str) -> Option<&Arc<Object>> {
        self.objects[place(plural)].get(name)
    }

    /// All objects of a kind, by name.
    pub(super) fn list(&self, plural: &'static str) -> impl Iterator<Item = &Arc<Object>> {
        self.objects[place(plural)].values()
    }

    /// The version of the last change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The version of the last change that any law is about: renewals of leases are not.
    pub(super) fn news(&self) -> u64 {
        self.news
    }

    /// The number of requests so far, those about leases and events not counted.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// An agent writes its report, by a call of this server.
    pub(super) fn count_report(&mut self) {
        self.requests += 1;
    }

    /// The number of requests about leases so far.
    pub(super) fn lease_requests(&self) -> u64 {
        self.lease_requests
    }

    /// The number of uids made so far.
    pub(super) fn uids(&self) -> u64 {
        self.uids
    }

    /// Counts an error that the API server returns in place of the answer, by the kind of request. `is_done` is whether it does the
    /// request.
    pub(super) fn count_error(&mut self, request: &Request<Vec<u8>>, code: u16, is_done: bool) {
        let path = request.uri().path();
        let object =
            ["pools", "ipamnodes", "leases"].into_iter().find(|object| path.contains(object)).unwrap_or("other");
        let part = if path.ends_with("/status") { "/status" } else { "" };
        self.errors.add(error_name(&format!("{} {object}{part}", request.method()), code, is_done), 1);
    }

    /// The errors that were returned, by kind of request.
    pub(super) const fn errors(&self) -> &Activity {
        &self.errors
    }

    /// How often a backup was restored.
    pub(super) fn restores(&self) -> u64 {
        self.restores
    }

    /// The changes of objects of `plural` after `version`, oldest first.
    pub(super) fn since(&self, plural: &'static str, version: u64) -> &[Event] {
        let history = &self.history[place(plural)];
        &history[history.partition_point(|event| event.version <= version)..]
    }

    /// The object as it was before `version`.
    pub(super) fn before(&self, plural: &'static str, name: &str, version: u64) -> Option<&Arc<Object>> {
        let history = &self.history[place(plural)];
        let earlier = &history[..history.partition_point(|event| event.version < version)];
        match earlier.iter().rfind(|event| event.object["metadata"]["name"] == name) {
            Some(last) => (last.change == Change::Applied).then_some(&last.object),
            None => self.restored[place(plural)].get(name),
        }
    }

    /// A copy of all objects.
    pub(super) fn backup(&self) -> Backup {
        Backup { objects: self.objects.clone(), news: self.news }
    }

    /// Whether anything but a lease has changed since the backup.
    pub(super) fn differs_from(&self, backup: &Backup) -> bool {
        self.news != backup.news
    }

    /// Restores a backup like `etcdutl snapshot restore --bump-revision`: versions continue, history does not.
    pub(super) fn restore(&mut self, backup: &Backup) {
        self.version += RESTORE_BUMP;
        self.restores += 1;
        self.news = self.version;
        self.objects.clone_from(&backup.objects);
        self.restored.clone_from(&backup.objects);
        self.history.iter_mut().for_each(Vec::clear);
    }

    /// Creates an object.
    pub(super) fn create(&mut self, plural: &'static str, mut object: Value) -> Result<Arc<Object>, Refused> {
        let name = text(&object, "/metadata/name");
        if self.get(plural, &name).is_some() {
            return Err((409, format!("{plural} {name:?} already exists")));
        }
        self.uids += 1;
        object["metadata"]["uid"] = format!("uid-{}", self.uids).into();
        object["metadata"]["generation"] = 1.into();
        // Ages order pools; one second each keeps them apart.
        object["metadata"]["creationTimestamp"] = timestamp(self.uids).into();
        if let Some(map) = object.as_object_mut() {
            map.remove("status");
        }
        tidy(&mut object);
        Ok(self.put(plural, &name, object))
    }

    /// Replaces an object, or its status alone.
    pub(super) fn replace(&mut self, plural: &'static str, status: bool, new: &Value) -> Result<Arc<Object>, Refused> {
        let name = text(new, "/metadata/name");
        if plural == "leases" && self.get(plural, &name).is_none() {
            // The real server's update of a Lease creates one that is not there, whatever version it names.
            return self.create(plural, new.clone());
        }
        let old = self.found(plural, &name)?;
        if text(new, "/metadata/resourceVersion").is_empty() {
            return Err((422, "metadata.resourceVersion must be specified for an update".to_owned()));
        }
        precondition(&old, new)?;
        let mut object = (**old).clone();
        if status {
            object["status"] = new["status"].clone();
        } else {
            for field in ["finalizers", "annotations", "labels"] {
                object["metadata"][field] = new["metadata"][field].clone();
            }
            object["spec"] = new["spec"].clone();
        }
        self.update(plural, &name, &old, object)
    }

    /// Merges a patch into an object, or into its status alone.
    pub(super) fn merge(
        &mut self,
        plural: &'static str,
        name: &str,
        status: bool,
        patch: &Value,
    ) -> Result<Arc<Object>, Refused> {
        let old = self.found(plural, name)?;
        precondition(&old, &json!({"metadata": {"resourceVersion": patch["metadata"]["resourceVersion"]}}))?;
        // The uid in a patch is no precondition, but may not change.
        precondition(&old, patch).map_err(|(_, why)| (422, why))?;
        let mut patched = (**old).clone();
        json_patch::merge(&mut patched, patch);
        self.patched(plural, name, status, &old, patched)
    }

    /// Applies a JSON patch to an object, or to its status alone.
    pub(super) fn json_patch(
        &mut self,
        plural: &'static str,
        name: &str,
        status: bool,
        patch: Value,
    ) -> Result<Arc<Object>, Refused> {
        let old = self.found(plural, name)?;
        let mut patched = (**old).clone();
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|error| (400, error.to_string()))?;
        json_patch::patch(&mut patched, &patch).map_err(|error| (422, error.to_string()))?;
        precondition(&old, &patched)?;
        self.patched(plural, name, status, &old, patched)
    }

    fn patched(
        &mut self,
        plural: &'static str,
        name: &str,
        status: bool,
        old: &Arc<Object>,
        mut new: Value,
    ) -> Result<Arc<Object>, Refused> {
        // What the subresource does not write keeps its value.
        let kept: &[&str] = if status { &["spec", "metadata"] } else { &["status"] };
        for field in kept {
            new[*field] = old[*field].clone();
        }
        for field in ["uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"] {
            new["metadata"][field] = old["metadata"][field].clone();
        }
        self.update(plural, name, old, new)
    }

    /// Deletes an object, or marks it as being deleted if it has finalizers.
    pub(super) fn delete(&mut self, plural: &'static str, name: &str, preconditions: &Value) -> Result<(), Refused> {
        let old = self.found(plural, name)?;
        precondition(&old, &json!({ "metadata": preconditions }))?;
        if finalizers(&old).is_empty() {
            self.remove(plural, name);
        } else if old["metadata"]["deletionTimestamp"].is_null() {
            let mut object = (**old).clone();
            object["metadata"]["deletionTimestamp"] = timestamp(self.uids).into();
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = (generation + 1).into();
            self.put(plural, name, object);
        }
        Ok(())
    }

    /// Deletes all objects of a kind, whatever their finalizers; returns them.
    pub(super) fn sweep(&mut self, plural: &'static str) -> Vec<Arc<Object>> {
        let all: Vec<Arc<Object>> = self.list(plural).cloned().collect();
        for object in &all {
            self.remove(plural, &text(object, "/metadata/name"));
        }
        all
    }

    fn found(&self, plural: &'static str, name: &str) -> Result<Arc<Object>, Refused> {
        self.get(plural, name).cloned().ok_or_else(|| (404, format!("{plural} {name:?} not found")))
    }

    fn update(
        &mut self,
        plural: &'static str,
        name: &str,
        old: &Arc<Object>,
        mut object: Value,
    ) -> Result<Arc<Object>, Refused> {
        tidy(&mut object);
        let is_terminating = !object["metadata"]["deletionTimestamp"].is_null();
        if is_terminating && finalizers(&object).iter().any(|new| !finalizers(old).contains(new)) {
            return Err((422, "no new finalizers can be added if the object is being deleted".to_owned()));
        }
        if object == ***old {
            return Ok(old.clone());
        }
        if object["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = (generation + 1).into();
        }
        if is_terminating && finalizers(&object).is_empty() {
            self.remove(plural, name);
            return Ok(Arc::new(Object::new(object)));
        }
        Ok(self.put(plural, name, object))
    }

    /// Whether the address is or was the gateway of the IPPool.
    pub(super) fn has_been_gateway(&self, pool: &str, address: &str) -> bool {
        self.gateways.contains(&(pool.to_owned(), address.to_owned()))
    }

    fn put(&mut self, plural: &'static str, name: &str, mut object: Value) -> Arc<Object> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if let Some(gateway) = object["spec"]["gateway"].as_str().filter(|_| plural == "ippools") {
            self.gateways.insert((name.to_owned(), gateway.to_owned()));
        }
        let object = Arc::new(Object::new(object));
        self.objects[place(plural)].insert(name.to_owned(), object.clone());
        let event = Event { version: self.version, change: Change::Applied, object: object.clone() };
        self.note(plural, event);
        object
    }

    fn note(&mut self, plural: &'static str, event: Event) {
        if plural != "leases" {
            self.news = event.version;
        }
        self.history[place(plural)].push(event);
    }

    fn remove(&mut self, plural: &'static str, name: &str) {
        let Some(old) = self.objects[place(plural)].remove(name) else { return };
        self.version += 1;
        let mut last = (**old).clone();
        last["metadata"]["resourceVersion"] = self.version.to_string().into();
        let event = Event { version: self.version, change: Change::Deleted, object: Arc::new(Object::new(last)) };
        self.note(plural, event);
    }

    /// Answers a request as it comes over the wire.
    pub(super) fn answer(&mut self, request: &Request<Vec<u8>>) -> Response<Vec<u8>> {
        let accepts = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (code, body) = match self.serve(request) {
            Ok(object) if accepts.contains("PartialObjectMetadata") => {
                (200, format!("{{\"metadata\":{}}}", object["metadata"]))
            }
            Ok(object) => (200, object.to_string()),
            Err((code, message)) => (code, failure(code, &message).to_string()),
        };
        let mut response = Response::new(body.into_bytes());
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response
    }

    fn serve(&mut self, request: &Request<Vec<u8>>) -> Result<Arc<Object>, Refused> {
        let body: Value = match request.body().as_slice() {
            [] => Value::Null,
            bytes => serde_json::from_slice(bytes).map_err(|error| (400, error.to_string()))?,
        };
        let path = request.uri().path();
        if path.ends_with("/events") {
            return Ok(Arc::new(Object::new(body)));
        }
        let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let place = words.iter().position(|word| PLURALS.contains(word)).ok_or((404, format!("no {path}")))?;
        let plural = PLURALS.into_iter().find(|plural| *plural == words[place]).ok_or((404, format!("no {path}")))?;
        let counts = if plural == "leases" { &mut self.lease_requests } else { &mut self.requests };
        *counts += 1;
        let (name, status) = (words.get(place + 1).copied(), words.get(place + 2) == Some(&"status"));
        let patch_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        match (request.method(), name) {
            (&Method::GET, Some(name)) => self.found(plural, name),
            (&Method::POST, None) => self.create(plural, body),
            (&Method::PUT, Some(_)) => self.replace(plural, status, &body),
            (&Method::PATCH, Some(name)) if patch_type == Some("application/json-patch+json") => {
                self.json_patch(plural, name, status, body)
            }
            (&Method::PATCH, Some(name)) => self.merge(plural, name, status, &body),
            (&Method::DELETE, Some(name)) => self
                .delete(plural, name, &body["preconditions"])
                .map(|()| Arc::new(Object::new(failure(200, "deleted")))),
            (method, _) => Err((405, format!("no {method} of {path}"))),
        }
    }
}

/// Checks that uid and resourceVersion, as far as they are named, are those of the object.
fn precondition(object: &Value, named: &Value) -> Result<(), Refused> {
    for field in ["uid", "resourceVersion"] {
        let wanted = &named["metadata"][field];
        if wanted.as_str().is_some_and(|wanted| !wanted.is_empty()) && *wanted != object["metadata"][field] {
            return Err((409, format!("{field} is {}, not {wanted}", object["metadata"][field])));
        }
    }
    Ok(())
}

fn finalizers(object: &Value) -> &[Value] {
    object["metadata"]["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A text in an object; empty if there is none.
pub(super) fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn timestamp(second: u64) -> String {
    format!("2026-01-01T{:02}:{:02}:{:02}Z", second / 3600 % 24, second / 60 % 60, second % 60)
}

/// Drops what the real server does not keep.
fn tidy(object: &mut Value) {
    drop_nulls(object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || *value == json!({});
        metadata.retain(|_, value| !is_empty(value));
    }
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}
