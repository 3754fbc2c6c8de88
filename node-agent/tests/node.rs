//! The sentences of behaviour.md §4 and §5 that show at the wire.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use common::{Node, blue, deadline, green, parameters, with_gateway, with_index, with_ips};
use ipam_crds::{AddressRange, BlockState, NodeBlock, RouteDestination};
use ipam_node_agent::rpc::REASON_KEY;
use ipam_node_api::v1::{Attachment, IpamFeatures, IpamMetadata, IpamParameters, PoolType, ReleaseUnlistedRequest};
use tonic::{Code, Status};

fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, parts: &[&str]) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    for part in parts {
        assert!(status.message().contains(part), "{:?} lacks {part:?}", status.message());
    }
}

fn cidr(parameters: IpamParameters) -> IpamParameters {
    IpamParameters { pool_type: PoolType::Cidrpool.into(), ..parameters }
}

fn routes(list: &[&str]) -> Vec<RouteDestination> {
    list.iter().map(|dst| RouteDestination { dst: (*dst).to_owned() }).collect()
}

#[tokio::test]
async fn the_first_pod_gets_the_first_address_that_is_not_the_gateway_with_the_subnets_mask() {
    let node = Node::start(&[blue()]).await;
    let [info] = &node.add(parameters(&["blue"], "c1")).await.unwrap()[..] else { panic!() };
    assert_eq!(
        (info.pool.as_str(), info.ip.as_str(), info.gateway.as_str()),
        ("blue", "192.168.0.2/16", "192.168.0.1")
    );
    assert_eq!((info.pool_type, info.routes.len()), (i32::from(PoolType::Ippool), 0));
}

#[tokio::test]
async fn a_cidr_pool_answers_with_the_prefixs_mask_and_its_own_kind() {
    let node = Node::start(&[green()]).await;
    let [info] = &node.add(cidr(parameters(&["green"], "c1"))).await.unwrap()[..] else { panic!() };
    assert_eq!((info.ip.as_str(), info.gateway.as_str()), ("fd00:1::2/64", "fd00:1::1"));
    assert_eq!(info.pool_type, i32::from(PoolType::Cidrpool));
}

#[tokio::test]
async fn addresses_are_given_round_robin_and_the_place_survives_a_restart_with_nothing_held() {
    let node = Node::start(&[blue()]).await;
    assert_eq!(node.address(parameters(&["blue"], "c1")).await, "192.168.0.2/16");
    node.del(parameters(&["blue"], "c1")).await.unwrap();
    assert_eq!(node.address(parameters(&["blue"], "c2")).await, "192.168.0.3/16");
    node.del(parameters(&["blue"], "c2")).await.unwrap();
    let node = Node::open(node.stop().await).await;
    node.configure(&[blue()]).await;
    assert_eq!(node.address(parameters(&["blue"], "c3")).await, "192.168.0.4/16");
    assert_eq!(node.address(parameters(&["blue"], "c4")).await, "192.168.0.2/16", "the order wraps");
}

#[tokio::test]
async fn excluded_addresses_are_skipped_and_a_full_block_is_resource_exhausted() {
    let exclusions = vec![AddressRange { start_ip: "192.168.0.2".into(), end_ip: "192.168.0.3".into() }];
    let node = Node::start(&[NodeBlock { exclusions, ..blue() }]).await;
    assert_eq!(node.address(parameters(&["blue"], "c1")).await, "192.168.0.4/16");
    refused(node.add(parameters(&["blue"], "c2")).await, Code::ResourceExhausted, &["\"blue\"", "no free address"]);
}

#[tokio::test]
async fn a_static_request_takes_any_free_address_of_the_subnet_and_does_not_move_the_cursor() {
    let exclusions = vec![AddressRange { start_ip: "192.168.0.4".into(), end_ip: "192.168.0.4".into() }];
    let node = Node::start(&[NodeBlock { exclusions, ..blue() }]).await;
    for (container, ip) in [("far", "192.168.77.7"), ("excluded", "192.168.0.4"), ("gateway", "192.168.0.1")] {
        let [info] = &node.add(with_ips(parameters(&["blue"], container), &[ip])).await.unwrap()[..] else { panic!() };
        assert_eq!((info.ip.clone(), info.gateway.as_str()), (format!("{ip}/16"), "192.168.0.1"));
    }
    assert_eq!(node.address(parameters(&["blue"], "next")).await, "192.168.0.2/16");
    let taken = node.add(with_ips(parameters(&["blue"], "other"), &["192.168.77.7"])).await;
    refused(taken, Code::ResourceExhausted, &["192.168.77.7", "pod default/pod-far"]);
}

#[tokio::test]
async fn a_static_request_that_can_never_be_met_is_invalid() {
    let node = Node::start(&[blue()]).await;
    for (ip, part) in [
        ("192.168.0.0", "network address"),
        ("192.168.255.255", "broadcast address"),
        ("10.0.0.1", "is in no pool asked for"),
        ("192.168.0.3/16", "write the address alone"),
        ("", "must not be empty"),
    ] {
        let answer = node.add(with_ips(parameters(&["blue"], "c1"), &[ip])).await;
        refused(answer, Code::InvalidArgument, &["parameters.requested_ips[0]", part]);
    }
    let two = node.add(with_ips(parameters(&["blue"], "c1"), &["192.168.0.3", "192.168.0.4"])).await;
    refused(two, Code::InvalidArgument, &["one address is given per pool"]);
}

#[tokio::test]
async fn an_ipv4_mapped_request_means_the_ipv4_address() {
    let node = Node::start(&[blue()]).await;
    let answer = node.add(with_ips(parameters(&["blue"], "c1"), &["::ffff:192.168.0.3"])).await.unwrap();
    assert_eq!(answer[0].ip, "192.168.0.3/16");
}

#[tokio::test]
async fn the_gateway_can_be_the_pods_address_and_is_then_not_returned() {
    let with_routes = NodeBlock { routes: routes(&["10.0.0.0/8"]), default_gateway: Some(true), ..blue() };
    let node = Node::start(&[with_routes, NodeBlock { name: "bare".into(), gateway: None, ..blue() }]).await;
    let [info] = &node.add(with_gateway(parameters(&["blue"], "c1"))).await.unwrap()[..] else { panic!() };
    assert_eq!((info.ip.as_str(), info.gateway.as_str(), info.routes.len()), ("192.168.0.1/16", "", 0));
    let answer = node.add(with_gateway(parameters(&["bare"], "c2"))).await;
    refused(answer, Code::InvalidArgument, &["allocate_default_gateway", "needs a gateway"]);
}

#[tokio::test]
async fn an_index_counts_from_the_ranges_start_and_must_be_in_it_and_not_the_gateway() {
    let node = Node::start(&[blue()]).await;
    assert_eq!(node.address(with_index(parameters(&["blue"], "c1"), 3)).await, "192.168.0.4/16");
    for index in [-1, 4, i32::MAX, i32::MIN, 0] {
        let answer = node.add(with_index(parameters(&["blue"], "c2"), index)).await;
        refused(answer, Code::InvalidArgument, &["allocate_ip_with_index", &index.to_string()]);
    }
}

#[tokio::test]
async fn the_three_ways_to_choose_exclude_one_another() {
    let node = Node::start(&[blue()]).await;
    let base = || parameters(&["blue"], "c1");
    let both = IpamFeatures { allocate_default_gateway: true, allocate_ip_with_index: Some(2) };
    for parameters in [
        with_ips(with_gateway(base()), &["192.168.0.3"]),
        with_ips(with_index(base(), 2), &["192.168.0.3"]),
        IpamParameters { features: Some(both), ..base() },
    ] {
        refused(node.add(parameters).await, Code::InvalidArgument, &["cannot stand together"]);
    }
}

#[tokio::test]
async fn two_pools_are_given_in_order_and_all_or_nothing() {
    let small =
        NodeBlock { name: "small".into(), start_ip: "192.168.1.1".into(), end_ip: "192.168.1.1".into(), ..blue() };
    let node = Node::start(&[blue(), small]).await;
    let given = node.add(parameters(&["small", "blue"], "c1")).await.unwrap();
    let ips: Vec<_> = given.iter().map(|info| info.ip.as_str()).collect();
    assert_eq!(ips, ["192.168.1.1/16", "192.168.0.2/16"]);
    refused(node.add(parameters(&["blue", "small"], "c2")).await, Code::ResourceExhausted, &["\"small\""]);
    assert_eq!(node.address(parameters(&["blue"], "c3")).await, "192.168.0.3/16", "nothing was taken by the refusal");
}

#[tokio::test]
async fn container_and_interface_are_a_pair() {
    let node = Node::start(&[blue()]).await;
    let owner = |container: &str, ifname: &str| IpamParameters {
        cni_ifname: ifname.to_owned(),
        ..parameters(&["blue"], container)
    };
    let first = node.address(owner("a_b", "c")).await;
    assert_ne!(node.address(owner("a", "b_c")).await, first);
    node.del(owner("a", "b_c")).await.unwrap();
    node.check(owner("a_b", "c")).await.unwrap();
}

#[tokio::test]
async fn routes_come_with_a_gateway_only_sorted_and_without_doubles() {
    let list = routes(&["20.0.0.0/8", "10.0.0.0/8", "20.0.0.0/8"]);
    let with = NodeBlock { routes: list.clone(), default_gateway: Some(true), ..blue() };
    let without = NodeBlock { name: "bare".into(), gateway: None, routes: list, ..blue() };
    let node = Node::start(&[with, without]).await;
    let dests = |infos: Vec<ipam_node_api::v1::AllocationInfo>| {
        infos[0].routes.iter().map(|route| route.dest.clone()).collect::<Vec<_>>()
    };
    let found = dests(node.add(parameters(&["blue"], "c1")).await.unwrap());
    assert_eq!(found, ["0.0.0.0/0", "10.0.0.0/8", "20.0.0.0/8"]);
    assert_eq!(dests(node.add(parameters(&["bare"], "c1")).await.unwrap()), Vec::<String>::new());
}

#[tokio::test]
async fn a_repeated_add_gets_the_same_and_another_wish_is_already_exists() {
    let node = Node::start(&[blue()]).await;
    let first = node.add(parameters(&["blue"], "c1")).await.unwrap();
    assert_eq!(node.add(parameters(&["blue"], "c1")).await.unwrap(), first);
    let same = with_ips(parameters(&["blue"], "c1"), &["192.168.0.2"]);
    assert_eq!(node.add(same).await.unwrap(), first);
    let other = node.add(with_ips(parameters(&["blue"], "c1"), &["192.168.0.3"])).await;
    refused(other, Code::AlreadyExists, &["192.168.0.2", "192.168.0.3"]);
}

#[tokio::test]
async fn an_answer_stays_short_however_long_the_nonsense_and_however_many_the_pools() {
    let many: Vec<_> = (0..400).map(|n| NodeBlock { name: format!("a-pool-of-a-busy-node-{n}"), ..blue() }).collect();
    let node = Node::start(&many).await;
    let asking = |ips: Vec<String>| IpamParameters { requested_ips: ips, ..parameters(&["blue"], "c1") };
    for (ips, code, part) in [
        (vec!["ü".repeat(200_000)], Code::InvalidArgument, "parameters.requested_ips[0]"),
        (vec!["x".to_owned(); 100_000], Code::InvalidArgument, "parameters.requested_ips[1]"),
        (Vec::new(), Code::NotFound, "no IPPool \"blue\" on this node"),
    ] {
        let refused = node.add(asking(ips)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
        assert!(refused.message().len() <= 2100, "{} bytes", refused.message().len());
    }
}

#[tokio::test]
async fn all_mistakes_of_a_request_are_told_at_once_by_their_fields_and_reasons() {
    let node = Node::start(&[blue()]).await;
    let wrong = IpamParameters {
        pools: vec![String::new(), "b".into()],
        pool_type: 9,
        requested_ips: vec!["x".into()],
        metadata: Some(IpamMetadata::default()),
        features: Some(IpamFeatures { allocate_default_gateway: true, allocate_ip_with_index: Some(1) }),
        ..IpamParameters::default()
    };
    let status = node.add(wrong).await.unwrap_err();
    let fields = [
        "parameters.pools[0]: ",
        "parameters.cni_containerid: ",
        "parameters.cni_ifname: ",
        "parameters.metadata.k8s_pod_name: ",
        "parameters.metadata.k8s_pod_namespace: ",
        "parameters.pool_type: ",
        "parameters.requested_ips[0]: ",
        "parameters.features.allocate_ip_with_index: ",
    ];
    for field in fields {
        assert!(status.message().contains(field), "{:?} lacks {field:?}", status.message());
    }
    let reasons = status.metadata().get(REASON_KEY).unwrap().to_str().unwrap();
    assert_eq!(reasons, "Conflict,Malformed,Required,Unsupported");
}

#[tokio::test]
async fn no_pools_or_one_pool_twice_is_invalid_and_an_unknown_pool_is_not_found() {
    let node = Node::start(&[blue()]).await;
    let three = node.add(parameters(&["blue", "red", "green"], "c1")).await;
    refused(three, Code::InvalidArgument, &["parameters.pools: names 3 pools"]);
    refused(node.add(parameters(&[], "c1")).await, Code::InvalidArgument, &["parameters.pools"]);
    refused(node.add(parameters(&["blue", "blue"], "c1")).await, Code::InvalidArgument, &["parameters.pools[1]"]);
    refused(node.add(parameters(&["red"], "c1")).await, Code::NotFound, &["\"red\"", "\"blue\""]);
    refused(node.add(cidr(parameters(&["blue"], "c1"))).await, Code::NotFound, &["CIDRPool \"blue\""]);
}

#[tokio::test]
async fn an_unspecified_pool_type_means_ippool() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    let named = IpamParameters { pool_type: PoolType::Ippool.into(), ..parameters(&["blue"], "c1") };
    node.check(named).await.unwrap();
}

#[tokio::test]
async fn a_call_without_metadata_is_refused_for_add_and_served_for_check_and_del() {
    let node = Node::start(&[blue()]).await;
    let bare = || IpamParameters { metadata: None, ..parameters(&["blue"], "c1") };
    refused(node.add(bare()).await, Code::InvalidArgument, &["parameters.metadata.k8s_pod_name"]);
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    node.check(bare()).await.unwrap();
    node.del(bare()).await.unwrap();
    refused(node.check(bare()).await, Code::NotFound, &["\"c1\""]);
}

#[tokio::test]
async fn releasing_something_unknown_succeeds_and_needs_no_pool() {
    let node = Node::start(&[]).await;
    node.del(parameters(&["blue"], "c1")).await.unwrap();
    refused(node.del(IpamParameters::default()).await, Code::InvalidArgument, &["parameters.pools", "cni_ifname"]);
}

#[tokio::test]
async fn what_is_held_is_released_also_after_the_pool_is_gone_from_the_node() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    node.configure(&[]).await;
    node.check(parameters(&["blue"], "c1")).await.unwrap();
    node.del(parameters(&["blue"], "c1")).await.unwrap();
    node.configure(&[blue()]).await;
    refused(node.check(parameters(&["blue"], "c1")).await, Code::NotFound, &[]);
}

#[tokio::test]
async fn check_compares_the_addresses_that_the_caller_believes_in() {
    let node = Node::start(&[blue()]).await;
    node.add(parameters(&["blue"], "c1")).await.unwrap();
    node.check(with_ips(parameters(&["blue"], "c1"), &["10.9.9.9", "192.168.0.2"])).await.unwrap();
    let wrong = node.check(with_ips(parameters(&["blue"], "c1"), &["192.168.0.3"])).await;
    refused(wrong, Code::NotFound, &["192.168.0.2", "192.168.0.3"]);
}

#[tokio::test]
async fn a_block_that_is_being_released_gives_nothing_new_and_serves_what_is_held() {
    let node = Node::start(&[blue()]).await;
    let first = node.add(parameters(&["blue"], "c1")).await.unwrap();
    node.configure(&[NodeBlock { state: BlockState::Releasing, ..blue() }]).await;
    assert_eq!(node.add(parameters(&["blue"], "c1")).await.unwrap(), first);
    refused(node.add(parameters(&["blue"], "c2")).await, Code::ResourceExhausted, &["takes its block", "back"]);
    node.del(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn before_the_blocks_are_known_the_agent_is_unavailable_but_releases() {
    let node = Node::open(tempfile::tempdir().unwrap()).await;
    refused(node.add(parameters(&["blue"], "c1")).await, Code::Unavailable, &["not known yet"]);
    assert_eq!(node.client.probe(deadline()).await.unwrap_err().code(), Code::Unavailable);
    node.del(parameters(&["blue"], "c1")).await.unwrap();
    node.configure(&[blue()]).await;
    node.client.probe(deadline()).await.unwrap();
}

fn on_network(network: &str, container: &str) -> IpamParameters {
    let parameters = parameters(&["blue"], container);
    let metadata = parameters.metadata.clone().map(|m| IpamMetadata { network_name: network.into(), ..m });
    IpamParameters { metadata, ..parameters }
}

#[tokio::test]
async fn garbage_collection_of_a_network_releases_only_what_that_network_does_not_list() {
    let node = Node::start(&[NodeBlock { end_ip: "192.168.0.99".into(), ..blue() }, green()]).await;
    for parameters in [on_network("a", "gone"), on_network("a", "kept"), on_network("b", "gone"), on_network("", "old")]
    {
        let container = format!("{}-{}", parameters.cni_containerid, parameters.metadata.clone().unwrap().network_name);
        node.add(IpamParameters { cni_containerid: container, ..parameters }).await.unwrap();
    }
    let unlisted = ReleaseUnlistedRequest {
        network_name: "a".into(),
        pools: vec!["blue".into()],
        valid_attachments: vec![Attachment { container_id: "kept-a".into(), if_name: "net1".into() }],
        ..ReleaseUnlistedRequest::default()
    };
    assert_eq!(node.client.release_unlisted(unlisted.clone(), deadline()).await.unwrap(), 1);
    refused(node.check(parameters(&["blue"], "gone-a")).await, Code::NotFound, &[]);
    for held in ["kept-a", "gone-b", "old-"] {
        node.check(parameters(&["blue"], held)).await.unwrap();
    }
    let half = Attachment { container_id: "c".into(), ..Attachment::default() };
    let wrong = ReleaseUnlistedRequest { valid_attachments: vec![half], ..ReleaseUnlistedRequest::default() };
    let answer = node.client.release_unlisted(wrong, deadline()).await;
    refused(answer, Code::InvalidArgument, &["network_name", "pools", "valid_attachments[0].if_name"]);
}

#[tokio::test]
async fn hostile_bytes_on_the_socket_harm_nobody_else() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let node = Node::start(&[blue()]).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frames: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        preface,
        &[&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0x7f, 0xff, 0xff, 0xff]].concat(),
        &[&preface[..], &[0, 0, 4, 1, 0x24, 0, 0, 0, 1, 1, 2, 3, 4]].concat(),
    ];
    for bytes in frames {
        let mut stream = tokio::net::UnixStream::connect(node.socket()).await.unwrap();
        // The agent may hang up before all is written; either is an answer.
        drop(stream.write_all(bytes).await);
        drop(stream.shutdown().await);
        let closed = tokio::time::timeout_at(deadline(), stream.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "the agent keeps the connection open after {} hostile bytes", bytes.len());
    }
    node.add(parameters(&["blue"], "c1")).await.unwrap();
}

#[tokio::test]
async fn a_request_without_parameters_is_invalid_and_tells_the_plugin_that_the_agent_is_well() {
    let node = Node::start(&[blue()]).await;
    node.client.probe(deadline()).await.unwrap();
    let mut bare = IpamParameters { metadata: None, ..IpamParameters::default() };
    bare.pools.clear();
    refused(node.check(bare).await, Code::InvalidArgument, &["parameters.pools"]);
}

#[tokio::test]
async fn texts_beyond_their_bound_are_refused_and_not_stored() {
    let node = Node::start(&[blue()]).await;
    let long = IpamParameters { cni_containerid: "c".repeat(2000), ..parameters(&["blue"], "c1") };
    refused(node.add(long).await, Code::InvalidArgument, &["parameters.cni_containerid", "2000 bytes"]);
    assert!(node.allocator.reservations().await.unwrap().is_empty());
}
