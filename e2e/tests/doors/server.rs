//! A real API server, asked by plain requests, so that what it answers is seen as it comes.

use std::sync::OnceLock;

use http::{Method, Request};
use http_body_util::BodyExt as _;
use ipam_e2e::ControlPlane;
use ipam_e2e::cases::Case;
use ipam_e2e::cluster::install_crds;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::objects::nodes;

/// Who prepares what a case needs. No webhook is asked about what this user does.
pub(crate) const STAGEHAND: &str = "stagehand";

/// A client for one namespace of the API server.
pub(crate) struct Server {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) runtime: Runtime,
    pub(crate) namespace: String,
    client: kube::Client,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) body: Value,
    /// The warnings in its headers.
    pub(crate) warnings: Vec<String>,
}

impl Reply {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl Server {
    /// With the definitions of the repository and the Nodes of the table, and a namespace of its own.
    pub(crate) fn start(prefix: &str) -> Self {
        static READY: OnceLock<()> = OnceLock::new();
        let plane = ControlPlane::shared().unwrap();
        READY.get_or_init(|| install_crds(plane).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        let server = Self { plane, runtime, namespace: plane.namespace(prefix).unwrap(), client };
        for node in nodes() {
            let reply = server.ask(&Method::POST, "/api/v1/nodes", &node, None);
            assert!(reply.is_success() || reply.code == 409, "{reply:?}");
        }
        server
    }

    /// What the server answers to the administrator.
    pub(crate) fn send(&self, method: &Method, path: &str, body: &Value) -> Reply {
        self.ask(method, path, body, None)
    }

    /// What becomes of an object that the stagehand sends; it must succeed.
    pub(crate) fn prepare(&self, method: &Method, path: &str, body: &Value) -> Value {
        let reply = self.ask(method, path, body, Some(STAGEHAND));
        assert!(reply.is_success(), "{method} {path} {body}: {reply:?}");
        reply.body
    }

    fn ask(&self, method: &Method, path: &str, body: &Value, user: Option<&str>) -> Reply {
        let kind = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let mut request = Request::builder().method(method).uri(path).header("content-type", kind);
        if let Some(user) = user {
            request = request.header("impersonate-user", user).header("impersonate-group", "system:masters");
        }
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = request.body(Body::from(bytes)).unwrap();
        self.runtime.block_on(async {
            let response = self.client.send(request).await.unwrap();
            let warnings =
                response.headers().get_all("warning").iter().map(|value| warning(value.as_bytes())).collect();
            let code = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap();
            Reply { code, body, warnings }
        })
    }

    /// Path of the namespace's objects of a kind; also of one object, with its name behind.
    pub(crate) fn path(&self, kind: &str) -> String {
        let plural = kind.to_lowercase();
        format!("/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/{}/{plural}s", self.namespace)
    }

    /// Puts an object with its status there.
    pub(crate) fn put(&self, object: &Value) -> Value {
        let path = self.path(object["kind"].as_str().unwrap());
        let mut made = self.prepare(&Method::POST, &path, object);
        if object["status"].is_null() {
            return made;
        }
        made["status"] = object["status"].clone();
        let name = made["metadata"]["name"].as_str().unwrap();
        self.prepare(&Method::PUT, &format!("{path}/{name}/status"), &made)
    }

    /// Asks about a case, without effect: to create its pool, or to change `old`, which is there, into it.
    pub(crate) fn put_to_the_test(&self, case: &Case, old: Option<&Value>, new: &Value) -> Reply {
        let path = self.path(case.kind().kind());
        // A field that nobody knows is the schema's to drop; its warning is not ours.
        let options = "dryRun=All&fieldValidation=Ignore";
        match old {
            None => self.send(&Method::POST, &format!("{path}?{options}"), new),
            Some(_) => self.send(&Method::PUT, &format!("{path}/{}?{options}", case.pool), new),
        }
    }
}

/// `old` as an edit makes it: another spec, and the annotations of `new`.
pub(crate) fn edited(old: &Value, new: &Value) -> Value {
    let mut edited = old.clone();
    edited["spec"] = new["spec"].clone();
    edited["metadata"]["annotations"] = new["metadata"]["annotations"].clone();
    edited
}

/// The text of a warning header (RFC 7234 section 5.5): code, agent, and the text as a quoted string.
fn warning(value: &[u8]) -> String {
    let value = std::str::from_utf8(value).unwrap();
    let quoted = value.splitn(3, ' ').nth(2).and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    let mut text = String::new();
    let mut characters = quoted.unwrap().chars();
    while let Some(character) = characters.next() {
        text.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    text
}

/// The causes of a refusal: field, reason and message of each. A refusal without causes is one of no field.
pub(crate) fn causes(status: &Value) -> Vec<[String; 3]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if causes.is_empty() {
        return vec![[String::new(), text(&status["reason"]), text(&status["message"])]];
    }
    causes.iter().map(|cause| [&cause["field"], &cause["reason"], &cause["message"]].map(text)).collect()
}

#[test]
fn a_warning_is_read_as_it_was_written() {
    assert_eq!(warning(br#"299 - "spec.cidr: \"10.0.0.1\" has \\ in it""#), r#"spec.cidr: "10.0.0.1" has \ in it"#);
    let none = json!({"reason": "BadRequest", "message": "no"});
    assert_eq!(causes(&none), [["", "BadRequest", "no"].map(str::to_owned)]);
}
