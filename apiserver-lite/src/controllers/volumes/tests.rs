//! Volumes of a pod that has a node, against a server in memory.

use super::*;

async fn begin() -> Client {
    let client = Client::new(crate::serve::testing::server().await, "system:kube-scheduler", "test");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"zone": "a"}}});
    client.create("nodes", "", node).await.expect("a node");
    client
}

/// A volume that anybody could have, in a zone or everywhere.
async fn volume(client: &Client, name: &str, zone: Option<&str>) {
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/v"}}});
    if let Some(zone) = zone {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        volume["spec"]["nodeAffinity"]["required"] = json!({"nodeSelectorTerms": [term]});
    }
    client.create(VOLUMES, "", volume).await.expect("a volume");
    let written = client.update_status(VOLUMES, "", name, |volume| {
        volume["status"]["phase"] = "Available".into();
        Ok(())
    });
    written.await.expect("written");
}

async fn claim(client: &Client, volume: Option<&str>) {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}});
    if let Some(volume) = volume {
        claim["spec"]["volumeName"] = volume.into();
    }
    client.create(CLAIMS, "default", claim).await.expect("a claim");
}

/// What a provisioner or the binder does at last.
async fn bind(client: &Client, volume: &str) {
    let written = client.update(CLAIMS, "default", "c", |claim| {
        claim["spec"]["volumeName"] = volume.into();
        claim["metadata"]["annotations"][COMPLETED] = "yes".into();
        Ok(())
    });
    written.await.expect("written");
}

/// Gives a claim a volume that is there, or has one made, and waits for that.
async fn prepare(client: &Client, volume: Option<&str>) -> std::result::Result<(), String> {
    let choices = [Choice { claim: "c".into(), volume: volume.map(Into::into) }];
    let given = give(client, "default", &choices, "a").await;
    given.map_err(|error| error.to_string())?;
    wait(client, "default", &choices, "a").await.map_err(|error| error.to_string())
}

const ELSEWHERE: &str = "pv \"v\" node affinity doesn't match node \"a\": no matching NodeSelectorTerms";

/// The pod was bound to a node where it could not start, and stayed there.
#[tokio::test]
async fn a_pod_does_not_go_where_the_volume_that_was_made_for_it_cannot_be_used() {
    for (zone, works) in [("a", true), ("b", false)] {
        let client = begin().await;
        claim(&client, None).await;
        volume(&client, "v", Some(zone)).await;
        // Reserved, so that it is not chosen: it comes as one that is made does.
        let written = client.update(VOLUMES, "", "v", |volume| {
            volume["spec"]["claimRef"] = json!({"namespace": "default", "name": "other"});
            Ok(())
        });
        written.await.expect("written");
        let provisioner = async {
            while promised(&client.get(CLAIMS, "default", "c").expect("it is there").value()).is_none() {
                tokio::task::yield_now().await;
            }
            bind(&client, "v").await;
        };
        let (prepared, ()) = tokio::join!(prepare(&client, None), provisioner);
        match works {
            true => assert_eq!(prepared, Ok(())),
            false => assert!(prepared.expect_err("it cannot be used").contains(ELSEWHERE)),
        }
    }
}

/// One that no claim needs was given away for good.
#[tokio::test]
async fn a_claim_that_names_its_volume_gets_no_other_one() {
    let client = begin().await;
    volume(&client, "free", None).await;
    volume(&client, "v", Some("b")).await;
    claim(&client, Some("v")).await;
    assert!(prepare(&client, None).await.expect_err("it cannot be used").contains(ELSEWHERE));
    for name in ["free", "v"] {
        let volume = client.get(VOLUMES, "", name).expect("it is there").value();
        assert!(!volume["spec"]["claimRef"].is_object(), "{volume}");
    }
    let claim = client.get(CLAIMS, "default", "c").expect("it is there").value();
    assert_eq!(promised(&claim), None);
}

/// Another volume was taken in place of the one that was counted on, or one was asked for that nobody makes.
#[tokio::test]
async fn a_claim_gets_the_volume_that_was_chosen_for_it_and_no_other_one() {
    let client = begin().await;
    volume(&client, "free", None).await;
    volume(&client, "v", Some("a")).await;
    claim(&client, None).await;
    let binder = async {
        while !client.get(VOLUMES, "", "v").expect("it is there").value()["spec"]["claimRef"].is_object() {
            tokio::task::yield_now().await;
        }
        bind(&client, "v").await;
    };
    let (prepared, ()) = tokio::join!(prepare(&client, Some("v")), binder);
    assert_eq!(prepared, Ok(()));
    let free = client.get(VOLUMES, "", "free").expect("it is there").value();
    assert!(!free["spec"]["claimRef"].is_object(), "{free}");

    let client = begin().await;
    claim(&client, None).await;
    assert!(prepare(&client, Some("v")).await.expect_err("it is gone").contains("\"v\" not found"));
    let claim = client.get(CLAIMS, "default", "c").expect("it is there").value();
    assert_eq!(promised(&claim), None);
}
