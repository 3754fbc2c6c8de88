//! Reports of an agent on a real API server: which of them it takes.

use ipam_crds::{IPAMNode, IPAMNodeSpec, IPAMNodeStatus, LedgerPosition};
use ipam_node_agent::status::{Outcome, status_patch};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};

use crate::stage::plane;

async fn create(api: &Api<IPAMNode>) -> IPAMNode {
    api.create(
        &PostParams::default(),
        &IPAMNode::new("n1", IPAMNodeSpec { pools: Vec::new(), ..IPAMNodeSpec::default() }),
    )
    .await
    .unwrap()
}

/// The report of the journal's epoch `epoch` that replaces this version of the object.
fn report(object: &IPAMNode, epoch: i64) -> serde_json::Value {
    let metadata = &object.metadata;
    let ledger = Some(LedgerPosition { epoch, sequence: 0 });
    let status = IPAMNodeStatus { ledger, ..IPAMNodeStatus::default() };
    status_patch(metadata.uid.as_deref().unwrap(), metadata.resource_version.as_deref().unwrap(), &status)
}

async fn write(api: &Api<IPAMNode>, report: &serde_json::Value) -> Result<IPAMNode, kube::Error> {
    let patch: Patch<()> = Patch::Json(serde_json::from_value(report.clone()).unwrap());
    api.patch_status("n1", &PatchParams::default(), &patch).await
}

async fn epoch(api: &Api<IPAMNode>) -> Option<i64> {
    api.get("n1").await.unwrap().status.and_then(|status| status.ledger).map(|ledger| ledger.epoch)
}

#[tokio::test]
async fn a_late_report_replaces_neither_a_later_one_nor_that_of_another_object() {
    let plane = plane();
    let namespace = plane.namespace("reports").unwrap();
    let api: Api<IPAMNode> = Api::namespaced(plane.client().await.unwrap(), &namespace);
    let first = create(&api).await;
    let late = report(&first, 1);
    let second = write(&api, &report(&first, 2)).await.unwrap();
    let refused = write(&api, &late).await.unwrap_err();
    assert_eq!(Outcome::from(&refused), Outcome::Conflict, "{refused}");
    assert_eq!(epoch(&api).await, Some(2));
    // The answer tells the version that the next report replaces.
    let third = write(&api, &report(&second, 3)).await.unwrap();
    assert_eq!(epoch(&api).await, Some(3));

    api.delete("n1", &DeleteParams::default()).await.unwrap();
    create(&api).await;
    for report in [late, report(&third, 4)] {
        let refused = write(&api, &report).await.unwrap_err();
        assert_eq!(Outcome::from(&refused), Outcome::Refused, "{refused}");
        assert_eq!(epoch(&api).await, None);
    }
}
