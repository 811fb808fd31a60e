//! Lists of all that the runtime has, of which only who it is, whose it is and how it is are read.
//!
//! They are asked for every second or two, and most of their bytes are annotations, images and names that nobody looks at
//! there: what a message here lacks is passed over unread.

use prost::Message;
use proto::cri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

use super::CriClient;
use super::calls::{Result, counted, within};

/// A label.
#[derive(Clone, PartialEq, Message)]
pub struct Label {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Of a [`cri::PodSandbox`].
#[derive(Clone, PartialEq, Message)]
pub struct ListedSandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(enumeration = "cri::PodSandboxState", tag = "3")]
    pub state: i32,
    #[prost(message, repeated, tag = "5")]
    pub labels: Vec<Label>,
}

/// Of a [`cri::Container`].
#[derive(Clone, PartialEq, Message)]
pub struct ListedContainer {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(enumeration = "cri::ContainerState", tag = "6")]
    pub state: i32,
    #[prost(message, repeated, tag = "8")]
    pub labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    items: Vec<ListedSandbox>,
}

#[derive(Clone, PartialEq, Message)]
struct Containers {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ListedContainer>,
}

impl CriClient {
    /// All sandboxes.
    ///
    /// # Errors
    /// Those of [`CriClient::list_pod_sandboxes`].
    pub async fn all_sandboxes(&self) -> Result<Vec<ListedSandbox>> {
        let path = "/runtime.v1.RuntimeService/ListPodSandbox";
        let listed: Sandboxes = self.all("list_podsandbox", path, cri::ListPodSandboxRequest::default()).await?;
        Ok(listed.items)
    }

    /// All containers.
    ///
    /// # Errors
    /// Those of [`CriClient::list_containers`].
    pub async fn all_containers(&self) -> Result<Vec<ListedContainer>> {
        let path = "/runtime.v1.RuntimeService/ListContainers";
        let listed: Containers = self.all("list_containers", path, cri::ListContainersRequest::default()).await?;
        Ok(listed.containers)
    }

    async fn all<Q, A>(&self, operation: &str, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        counted(operation, async {
            let mut service = self.lists.clone();
            let not_ready = |e| tonic::Status::unknown(format!("Service was not ready: {e}"));
            service.ready().await.map_err(not_ready)?;
            let codec = ProstCodec::<Q, A>::default();
            Ok(service.unary(within(request, self.timeout), PathAndQuery::from_static(path), codec).await?.into_inner())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn of_a_list_is_read_what_is_looked_at() {
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let label = vec![Label { name: "a".into(), value: "b".into() }];
        let ready = cri::PodSandboxState::SandboxNotready as i32;
        let sandbox = cri::PodSandbox {
            id: "s".into(),
            state: ready,
            labels: labels.clone(),
            metadata: Some(cri::PodSandboxMetadata { name: "n".into(), ..Default::default() }),
            annotations: labels.clone(),
            created_at: 7,
            runtime_handler: "h".into(),
        };
        let bytes = cri::ListPodSandboxResponse { items: vec![sandbox] }.encode_to_vec();
        let read = Sandboxes::decode(&bytes[..]).expect("a list");
        assert_eq!(read.items, [ListedSandbox { id: "s".into(), state: ready, labels: label.clone() }]);

        let exited = cri::ContainerState::ContainerExited as i32;
        let container = cri::Container {
            id: "c".into(),
            pod_sandbox_id: "s".into(),
            state: exited,
            labels: labels.clone(),
            annotations: labels,
            image: Some(cri::ImageSpec { image: "i".into(), ..Default::default() }),
            image_ref: "r".into(),
            created_at: 7,
            ..Default::default()
        };
        let bytes = cri::ListContainersResponse { containers: vec![container] }.encode_to_vec();
        let read = Containers::decode(&bytes[..]).expect("a list");
        assert_eq!(read.containers, [ListedContainer { id: "c".into(), state: exited, labels: label }]);
    }
}
