//! What pods hold on the node's own disks, for those pods alone that somebody asks about.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use proto::api::core::v1::Pod;
use proto::cri;

use super::disk_usage::{Asker, GivenUp, Held};
use super::{Places, Stats};
use crate::pod::labels;
use crate::pod::spec::PodExt;

/// Of one pod.
#[derive(Debug, Clone, Default)]
pub struct PodStorage {
    /// Empty directories and config maps, by the volume's name.
    pub volumes: BTreeMap<String, Held>,
    pub containers: BTreeMap<String, ContainerStorage>,
    /// Files of the pod itself.
    pub other: Held,
}

#[derive(Debug, Clone, Default)]
pub struct ContainerStorage {
    /// What it has written into its own file system; `None` where the runtime does not say.
    pub root: Option<Held>,
    pub logs: Option<Held>,
}

impl Stats {
    /// Counts what each pod holds, file by file. `with_layers` asks the runtime too, for what containers have written.
    pub async fn storage(&self, pods: &[Arc<Pod>], with_layers: bool) -> HashMap<String, PodStorage> {
        let layers = if with_layers { self.layers(name_of).await } else { HashMap::new() };
        let asker = Asker::default();
        let (places, given_up, pods) = (self.places.clone(), asker.given_up(), pods.to_vec());
        let counted = tokio::task::spawn_blocking(move || {
            let of = |pod: &Arc<Pod>| (pod.uid().to_owned(), count(pod, &places, &given_up, &layers));
            pods.iter().map(of).collect()
        });
        let counted = counted.await.unwrap_or_default();
        drop(asker);
        counted
    }
}

/// Pod and name of a container.
fn name_of(mut container: cri::ContainerAttributes) -> Option<(String, String)> {
    Some((container.labels.remove(labels::POD_UID)?, container.labels.remove(labels::CONTAINER_NAME)?))
}

fn count(pod: &Pod, places: &Places, given_up: &GivenUp, layers: &HashMap<(String, String), Held>) -> PodStorage {
    let held = |path: &Path| places.walks.held(path, given_up);
    let (uid, own) = (pod.uid(), places.root_dir.join("pods").join(pod.uid()));
    let volumes = pod.spec().volumes.iter().filter_map(|volume| {
        let source = volume.volume_source.as_ref()?;
        let place = |plugin: &str| own.join("volumes").join(plugin).join(&volume.name);
        let found = match source {
            s if s.empty_dir.is_some() => places.walks.look_awhile(&place("kubernetes.io~empty-dir"), given_up).0,
            s if s.config_map.is_some() => held(&place("kubernetes.io~configmap")),
            _ => return None,
        };
        Some((volume.name.clone(), found?))
    });
    let logs = crate::pod::sandbox_config::log_directory(pod, &places.pod_logs_dir);
    let containers = pod.spec().containers.iter().chain(&pod.spec().init_containers).map(|container| {
        let root = layers.get(&(uid.to_owned(), container.name.clone())).copied();
        (container.name.clone(), ContainerStorage { root, logs: held(&logs.join(&container.name)) })
    });
    let other = held(&own.join("etc-hosts")).unwrap_or_default();
    PodStorage { volumes: volumes.collect(), containers: containers.collect(), other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, EmptyDirVolumeSource, PodSpec, Volume, VolumeSource};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn volumes_logs_and_layers_are_counted_apart() {
        let dir = std::env::temp_dir().join(format!("node-agent-storage-{}", crate::backoff::random_below(u32::MAX)));
        let (root, logs) = (dir.join("root"), dir.join("logs"));
        let file = |path: &Path, bytes: usize| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![1; bytes]).unwrap();
        };
        file(&root.join("pods/u/volumes/kubernetes.io~empty-dir/v/f"), 100_000);
        file(&root.join("pods/u/volumes/kubernetes.io~secret/s/f"), 100_000);
        file(&logs.join("ns_p_u/c/0.log"), 50_000);
        let empty = VolumeSource { empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() };
        let secret = VolumeSource { secret: Some(Default::default()), ..Default::default() };
        let volume = |name: &str, source| Volume { name: name.into(), volume_source: Some(source) };
        let pod = Pod {
            metadata: Some(ObjectMeta {
                uid: "u".into(),
                name: "p".into(),
                namespace: "ns".into(),
                ..Default::default()
            }),
            spec: Some(PodSpec {
                containers: vec![Container { name: "c".into(), ..Default::default() }],
                volumes: vec![volume("v", empty), volume("s", secret)],
                ..Default::default()
            }),
            ..Default::default()
        };
        let layers = [(("u".to_owned(), "c".to_owned()), Held { bytes: 7, inodes: 1 })].into();
        let places = Places {
            node: String::new(),
            root_dir: root,
            pod_logs_dir: logs,
            drivers: Arc::default(),
            walks: Default::default(),
        };
        let asker = Asker::default();
        let found = count(&pod, &places, &asker.given_up(), &layers);
        assert_eq!(found.volumes.keys().collect::<Vec<_>>(), ["v"]);
        assert!(found.volumes["v"].bytes >= 100_000);
        let container = &found.containers["c"];
        assert!(container.logs.unwrap().bytes >= 50_000 && container.root == Some(Held { bytes: 7, inodes: 1 }));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
