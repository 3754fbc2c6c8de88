//! The sandboxes that the container runtime has, by CRI (`runtime.v1`).
//!
//! The runtime alone knows whether a sandbox still exists. The messages here have only the fields that the agent reads, with the numbers of
//! CRI's `api.proto`.

use std::collections::HashSet;
use std::time::Duration;

use http::uri::PathAndQuery;
use ipam_node_api::AgentAddress;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

/// How long one call may take, with its connection.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest answer in bytes, as of the kubelet.
const LONGEST: usize = 16 * 1024 * 1024;
const LIST: PathAndQuery = PathAndQuery::from_static("/runtime.v1.RuntimeService/ListPodSandbox");

/// A request without a filter: all sandboxes, also those that do not run any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ListPodSandboxRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodSandboxMetadata>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

/// The sandboxes that a runtime has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sandboxes {
    ids: HashSet<String>,
    /// Namespaces and names of their pods.
    pods: HashSet<(String, String)>,
}

impl Sandboxes {
    /// Whether the runtime has the sandbox.
    pub fn has(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    /// Whether this can be the runtime of the agent's node: it has the agent's own pod, by namespace and name. Without that, it has any.
    pub fn is_credible(&self, own: Option<&(String, String)>) -> bool {
        own.map_or(!self.ids.is_empty(), |own| self.pods.contains(own))
    }
}

impl From<ListPodSandboxResponse> for Sandboxes {
    fn from(response: ListPodSandboxResponse) -> Self {
        let mut sandboxes = Self::default();
        for PodSandbox { id, metadata } in response.items {
            sandboxes.ids.insert(id);
            sandboxes.pods.extend(metadata.map(|pod| (pod.namespace, pod.name)));
        }
        sandboxes
    }
}

/// The runtime of the agent's node.
#[derive(Clone, Debug)]
pub struct Runtime {
    endpoint: AgentAddress,
}

impl Runtime {
    /// The runtime that serves CRI at `endpoint`. Connects to it only for a call.
    pub const fn new(endpoint: AgentAddress) -> Self {
        Self { endpoint }
    }

    /// Lists all sandboxes.
    ///
    /// # Errors
    /// The runtime cannot be reached, does not answer in time, or answers with an error.
    pub async fn sandboxes(&self) -> Result<Sandboxes, String> {
        let of = |error: &str| format!("container runtime at {}: {error}", self.endpoint);
        match tokio::time::timeout(TIMEOUT, self.list()).await {
            Ok(answer) => answer.map(Sandboxes::from).map_err(|error| of(&format!("{error:#}"))),
            Err(_) => Err(of(&format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }

    async fn list(&self) -> anyhow::Result<ListPodSandboxResponse> {
        let channel = Endpoint::from_shared(self.endpoint.to_string())?.connect().await?;
        let mut client = Grpc::new(channel).max_decoding_message_size(LONGEST);
        client.ready().await?;
        let codec = ProstCodec::default();
        let request = Request::new(ListPodSandboxRequest {});
        Ok(client.unary(request, LIST, codec).await?.into_inner())
    }
}

#[cfg(test)]
impl<'a> FromIterator<&'a str> for Sandboxes {
    fn from_iter<T: IntoIterator<Item = &'a str>>(ids: T) -> Self {
        Self { ids: ids.into_iter().map(str::to_owned).collect(), pods: HashSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// One sandbox with all fields of CRI, also those that the agent does not read.
    const ANSWER: &[u8] = b"\x0a\x2c\x0a\x02s1\x12\x10\x0a\x05agent\x12\x02u1\x1a\x03sys\x18\x01\x20\x80\x94\xeb\xdc\x03\x2a\x06\x0a\x01a\x12\x01b\x3a\x04runc";

    #[test]
    fn an_answer_with_more_fields_than_are_read_is_decoded() {
        let sandboxes = Sandboxes::from(ListPodSandboxResponse::decode(ANSWER).unwrap());
        assert!(sandboxes.has("s1") && !sandboxes.has("s2"));
        let pod = |name: &str| Some(("sys".to_owned(), name.to_owned()));
        assert!(sandboxes.is_credible(pod("agent").as_ref()) && !sandboxes.is_credible(pod("other").as_ref()));
        assert!(sandboxes.is_credible(None) && !Sandboxes::default().is_credible(None));
    }
}
