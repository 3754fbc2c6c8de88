//! Parses the bytes of an `AdmissionReview` (admission.k8s.io/v1) into a [`Review`], or into the reason why it cannot be
//! reviewed.
//!
//! A pure function of the bytes: it never panics, reads each byte a bounded number of times, and keeps only what a decision
//! needs. It recovers the uid of an invalid body if there is one, because an answer without the uid is useless.

use std::borrow::Cow;
use std::cell::RefCell;

use ipam_core::{PoolKey, PoolKind};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::pool_object::ReviewedPool;

/// The only version that this server supports.
pub const REVIEW_VERSION: &str = "admission.k8s.io/v1";
/// Longest uid that is accepted, in bytes. The API server's have 36 characters.
const UID_LENGTH: usize = 256;
/// Longest quotation of a client's input in an answer, in characters.
const QUOTE_LENGTH: usize = 100;

/// The operation on a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// The pool is created.
    Create,
    /// The pool is updated.
    Update,
    /// The pool is deleted.
    Delete,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Create, Self::Update, Self::Delete];

    /// The value of the metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// A request to review an operation on a pool.
#[derive(Debug)]
pub struct Review {
    /// The uid of the request, which the answer repeats.
    pub uid: String,
    /// Kind of the pool.
    pub kind: PoolKind,
    /// The operation on the pool.
    pub operation: Operation,
    /// The pool's namespace.
    pub namespace: String,
    /// Whether the status alone is being written.
    pub status_only: bool,
    /// The pool as it is to be; absent for DELETE.
    pub new: Option<ReviewedPool>,
    /// The pool as it is; absent for CREATE.
    pub old: Option<ReviewedPool>,
}

impl Review {
    /// The key of the pool under review.
    pub fn key(&self) -> PoolKey {
        let name = self.new.as_ref().or(self.old.as_ref()).map_or("", |draft| &draft.name);
        PoolKey::new(self.kind, name)
    }
}

/// Why a body cannot be reviewed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// The uid, if one was found; else empty.
    pub uid: String,
    /// Whether the body is a complete review, but not one that this path supports. It is then answered with HTTP 200 like any
    /// other review, because the API server shows the message of no other status to users.
    pub is_review: bool,
    /// The error, and what is expected instead.
    pub message: String,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, rename = "apiVersion")]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Gvk<'a>,
    #[serde(borrow, default)]
    sub_resource: Cow<'a, str>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(default)]
struct Gvk<'a> {
    #[serde(borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

/// Reads a review of pools of `kind`, which the path of the request names.
///
/// # Errors
/// If the body is not a review, or reviews something else.
pub fn read(kind: PoolKind, body: &[u8]) -> Result<Review, Unread> {
    let salvaged = |message: String| Unread { uid: salvage_uid(body), is_review: false, message };
    let envelope: Envelope<'_> = serde_json::from_slice(body)
        .map_err(|error| salvaged(format!("the body is no AdmissionReview in JSON: {}", cut(&error.to_string()))))?;
    if envelope.kind != "AdmissionReview" || envelope.api_version != REVIEW_VERSION {
        return Err(salvaged(format!(
            "the body is a {:?} of {:?}; this server reviews AdmissionReview of {REVIEW_VERSION:?}, set \
             admissionReviewVersions: [v1]",
            cut(&envelope.kind),
            cut(&envelope.api_version)
        )));
    }
    let text = envelope.request.map_or("null", RawValue::get);
    let request: Request<'_> = serde_json::from_str(text)
        .map_err(|error| salvaged(format!("request of the AdmissionReview: {}", cut(&error.to_string()))))?;
    if request.uid.is_empty() || request.uid.len() > UID_LENGTH {
        return Err(salvaged(format!("request.uid must have 1 to {UID_LENGTH} characters")));
    }
    review(kind, &request).map_err(|message| Unread { uid: request.uid.into_owned(), is_review: true, message })
}

fn review(kind: PoolKind, request: &Request<'_>) -> Result<Review, String> {
    let wanted = Gvk { group: ipam_crds::GROUP.into(), version: ipam_crds::VERSION.into(), kind: kind.kind().into() };
    if request.kind != wanted {
        let Gvk { group, version, kind: name } = &request.kind;
        return Err(format!(
            "this path reviews {} of {}/{}, not {} of {}/{}; correct the path or the rules of the webhook configuration",
            kind.kind(),
            ipam_crds::GROUP,
            ipam_crds::VERSION,
            cut(name),
            cut(group),
            cut(version)
        ));
    }
    if !matches!(&*request.sub_resource, "" | "status") {
        let name = cut(&request.sub_resource);
        return Err(format!("the subresource {name:?} is none that pools have; they have \"status\" alone"));
    }
    let operation = match &*request.operation {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        other => return Err(format!("the operation {:?} is not reviewed; CREATE, UPDATE and DELETE are", cut(other))),
    };
    let drafted = |field: &str, object: Option<&RawValue>| match object.map(RawValue::get) {
        None | Some("null") => Err(format!("{} without request.{field}", request.operation)),
        Some(text) => draft(kind, field, text).map(Some),
    };
    let is_new = operation != Operation::Delete;
    Ok(Review {
        uid: request.uid.clone().into_owned(),
        kind,
        operation,
        namespace: request.namespace.clone().into_owned(),
        status_only: request.sub_resource == "status",
        new: if is_new { drafted("object", request.object)? } else { None },
        old: if operation == Operation::Create { None } else { drafted("oldObject", request.old_object)? },
    })
}

fn draft(kind: PoolKind, field: &str, text: &str) -> Result<ReviewedPool, String> {
    ReviewedPool::read(kind, text).map_err(|error| format!("request.{field} is no object: {}", cut(&error.to_string())))
}

/// The beginning of a client's input, for messages.
fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(QUOTE_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// `request.uid` of an invalid body, wherever its JSON breaks off; empty if there is none.
pub fn salvage_uid(body: &[u8]) -> String {
    let found = RefCell::new(String::new());
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    // The caller reports the error, if any. Only the uid found before it counts here.
    drop(Within { path: &["request", "uid"], found: &found }.deserialize(&mut deserializer));
    let uid = found.into_inner();
    if uid.len() > UID_LENGTH { String::new() } else { uid }
}

/// Follows `path` through nested objects and stores the string at its end.
struct Within<'a> {
    path: &'a [&'a str],
    found: &'a RefCell<String>,
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if self.path.is_empty() {
            text.clone_into(&mut self.found.borrow_mut());
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match self.path.split_first() {
                Some((first, rest)) if *first == key => {
                    map.next_value_seed(Within { path: rest, found: self.found })?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
