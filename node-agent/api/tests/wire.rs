//! Pins the bytes on the wire: every field's number and type, the enum's values, and the paths of the methods.
//! The expected bytes are written by hand from the contract, so a change of the `.proto` cannot move both sides.

#![expect(clippy::unwrap_used, reason = "a failed precondition of a test is a failed test")]

use std::fmt::Debug;

use ipam_node_api::v1::ipam_garbage_service_server::{IpamGarbageService, IpamGarbageServiceServer};
use ipam_node_api::v1::ipam_service_server::{IpamService, IpamServiceServer};
use ipam_node_api::v1::*;
use prost::Message;
use tonic::codegen::{Body, Service, http};
use tonic::{Request, Response, Status};

/// A length-delimited field (wire type 2) with a number below 16.
fn bytes(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

/// A varint field (wire type 0) with a number below 16 and a value below 128.
fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn assert_wire<M: Message + Default + PartialEq + Debug>(message: &M, wire: &[Vec<u8>]) {
    let wire = wire.concat();
    assert_eq!(message.encode_to_vec(), wire);
    assert_eq!(&M::decode(wire.as_slice()).unwrap(), message);
}

#[test]
fn metadata_has_the_published_numbers_and_the_network_at_100() {
    let metadata = IpamMetadata {
        k8s_pod_name: "pod".into(),
        k8s_pod_namespace: "ns".into(),
        k8s_pod_uid: "uid".into(),
        device_id: "dev".into(),
        network_name: "net".into(),
    };
    // Number 100, wire type 2: 802 as a varint.
    let network = vec![0xA2, 0x06, 3, b'n', b'e', b't'];
    assert_wire(&metadata, &[bytes(1, "pod"), bytes(2, "ns"), bytes(3, "uid"), bytes(4, "dev"), network]);
}

#[test]
fn parameters_have_the_published_numbers() {
    let parameters = IpamParameters {
        pools: vec!["p1".into(), "p2".into()],
        cni_containerid: "cont".into(),
        cni_ifname: "net1".into(),
        metadata: Some(IpamMetadata { k8s_pod_name: "pod".into(), ..IpamMetadata::default() }),
        pool_type: PoolType::Cidrpool.into(),
        requested_ips: vec!["10.0.0.7".into()],
        features: Some(IpamFeatures { allocate_default_gateway: true, allocate_ip_with_index: None }),
    };
    let wire = [
        bytes(1, "p1"),
        bytes(1, "p2"),
        bytes(2, "cont"),
        bytes(3, "net1"),
        bytes(4, bytes(1, "pod")),
        varint(5, 2),
        bytes(6, "10.0.0.7"),
        bytes(7, varint(1, 1)),
    ];
    assert_wire(&parameters, &wire);
    let carried = bytes(1, wire.concat());
    assert_wire(&AllocateRequest { parameters: Some(parameters.clone()) }, std::slice::from_ref(&carried));
    assert_wire(&IsAllocatedRequest { parameters: Some(parameters.clone()) }, std::slice::from_ref(&carried));
    assert_wire(&DeallocateRequest { parameters: Some(parameters) }, &[carried]);
}

#[test]
fn index_zero_is_on_the_wire_because_it_is_not_the_same_as_no_index() {
    let features = |index| IpamFeatures { allocate_default_gateway: false, allocate_ip_with_index: index };
    assert_wire(&features(None), &[]);
    assert_wire(&features(Some(0)), &[varint(2, 0)]);
    // An int32 counts negative numbers as 64-bit varints, which a sint32 would not.
    assert_wire(&features(Some(-1)), &[vec![0x10], vec![0xFF; 9], vec![0x01]]);
}

#[test]
fn answers_have_the_published_numbers() {
    let allocation = AllocationInfo {
        pool: "p1".into(),
        ip: "10.0.0.2/24".into(),
        gateway: "10.0.0.1".into(),
        pool_type: PoolType::Ippool.into(),
        routes: vec![Route { dest: "0.0.0.0/0".into() }],
    };
    let wire =
        [bytes(1, "p1"), bytes(2, "10.0.0.2/24"), bytes(3, "10.0.0.1"), varint(4, 1), bytes(5, bytes(1, "0.0.0.0/0"))];
    assert_wire(&AllocateResponse { allocations: vec![allocation] }, &[bytes(1, wire.concat())]);
    assert_wire(&IsAllocatedResponse {}, &[]);
    assert_wire(&DeallocateResponse {}, &[]);
}

#[test]
fn garbage_collection_has_the_published_numbers() {
    let request = ReleaseUnlistedRequest {
        network_name: "net".into(),
        pools: vec!["p1".into()],
        pool_type: PoolType::Cidrpool.into(),
        valid_attachments: vec![Attachment { container_id: "c".into(), if_name: "i".into() }],
    };
    let attachment = [bytes(1, "c"), bytes(2, "i")].concat();
    assert_wire(&request, &[bytes(1, "net"), bytes(2, "p1"), varint(3, 2), bytes(4, attachment)]);
    assert_wire(&ReleaseUnlistedResponse { released: 9 }, &[varint(1, 9)]);
}

#[test]
fn pool_types_have_the_published_values() {
    let values = [PoolType::Unspecified, PoolType::Ippool, PoolType::Cidrpool].map(|kind| kind as i32);
    assert_eq!(values, [0, 1, 2]);
    let names = [PoolType::Unspecified, PoolType::Ippool, PoolType::Cidrpool].map(|kind| kind.as_str_name());
    assert_eq!(names, ["POOL_TYPE_UNSPECIFIED", "POOL_TYPE_IPPOOL", "POOL_TYPE_CIDRPOOL"]);
}

#[test]
fn a_peer_that_does_not_know_the_network_field_reads_the_rest() {
    /// The metadata as agents of the original nv-ipam know it.
    #[derive(Clone, PartialEq, Message)]
    struct OlderMetadata {
        #[prost(string, tag = "1")]
        k8s_pod_name: String,
        #[prost(string, tag = "4")]
        device_id: String,
    }
    let ours = IpamMetadata {
        k8s_pod_name: "pod".into(),
        device_id: "dev".into(),
        network_name: "net".into(),
        ..IpamMetadata::default()
    };
    let read = OlderMetadata::decode(ours.encode_to_vec().as_slice()).unwrap();
    assert_eq!(read, OlderMetadata { k8s_pod_name: "pod".into(), device_id: "dev".into() });
    assert_eq!(IpamMetadata::decode(read.encode_to_vec().as_slice()).unwrap().network_name, "");
}

struct Nothing;

#[tonic::async_trait]
impl IpamService for Nothing {
    async fn allocate(&self, _: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        Err(Status::aborted("reached"))
    }
    async fn is_allocated(&self, _: Request<IsAllocatedRequest>) -> Result<Response<IsAllocatedResponse>, Status> {
        Err(Status::aborted("reached"))
    }
    async fn deallocate(&self, _: Request<DeallocateRequest>) -> Result<Response<DeallocateResponse>, Status> {
        Err(Status::aborted("reached"))
    }
}

#[tonic::async_trait]
impl IpamGarbageService for Nothing {
    async fn release_unlisted(
        &self,
        _: Request<ReleaseUnlistedRequest>,
    ) -> Result<Response<ReleaseUnlistedResponse>, Status> {
        Err(Status::aborted("reached"))
    }
}

/// The gRPC status a mounted service answers with when an empty message is posted to `path`.
async fn status_at<S, B>(mut service: S, path: &str) -> i32
where
    S: Service<http::Request<tonic::body::Body>, Response = http::Response<B>>,
    S::Error: Debug,
    B: Body,
{
    let empty_message = tonic::body::Body::new(http_body_util::Full::new(tonic::codegen::Bytes::from_static(&[0; 5])));
    let request = http::Request::post(path).header("content-type", "application/grpc").body(empty_message).unwrap();
    let response = service.call(request).await.unwrap();
    response.headers()["grpc-status"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn methods_stand_at_the_published_paths() {
    const REACHED: i32 = tonic::Code::Aborted as i32;
    const ABSENT: i32 = tonic::Code::Unimplemented as i32;
    for method in ["Allocate", "IsAllocated", "Deallocate"] {
        let path = format!("/nvidia.ipam.node.v1.IPAMService/{method}");
        assert_eq!(status_at(IpamServiceServer::new(Nothing), &path).await, REACHED, "{path}");
    }
    let path = "/nvidia.ipam.node.v1.IPAMGarbageService/ReleaseUnlisted";
    assert_eq!(status_at(IpamGarbageServiceServer::new(Nothing), path).await, REACHED);
    assert_eq!(status_at(IpamServiceServer::new(Nothing), "/nvidia.ipam.node.v1.IPAMService/List").await, ABSENT);
}
