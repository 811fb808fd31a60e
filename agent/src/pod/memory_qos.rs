//! Memory that is kept for a pod, and where its containers begin to be slowed down (gate `MemoryQoS`, cgroup v2).
//!
//! `memory.high` lies between request and limit, so that a container which grows is throttled before it is killed. With
//! `memoryReservationPolicy: TieredReservation` requests of Guaranteed pods are kept for them whatever happens
//! (`memory.min`), those of Burstable pods as long as the kernel can (`memory.low`).
//!
//! Followed: `generateLinuxContainerResources` and the QoS container manager of the kubelet.

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod};

use super::resources::{QosClass, bytes_of, pod_totals, qos_class};

/// The gate's settings; there are none while it is off.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`, above 0 and at most 1.
    pub factor: f64,
    /// `memoryReservationPolicy: TieredReservation`.
    pub tiered: bool,
    /// What pods may have of the node: the limit of containers that have none.
    pub allocatable_bytes: i64,
    pub page_bytes: i64,
}

/// Memory that is kept for a cgroup, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// `memory.min`
    pub min: i64,
    /// `memory.low`
    pub low: i64,
}

impl MemoryQos {
    /// What the runtime is to write into the files of a container's cgroup.
    pub fn unified(&self, pod: &Pod, container: &Container) -> BTreeMap<String, String> {
        let own = container.resources.as_ref();
        let request = own.map_or(0, |r| bytes_of(&r.requests, "memory"));
        let limit = own.map_or(0, |r| bytes_of(&r.limits, "memory"));
        let mut files = BTreeMap::new();
        let kept = self.kept(qos_class(pod), request);
        for (file, bytes) in [("memory.min", kept.min), ("memory.low", kept.low)] {
            if bytes > 0 {
                files.insert(file.to_owned(), bytes.to_string());
            }
        }
        // Where request and limit are one there is nothing in between.
        if request != limit {
            let high = self.high(request, if limit == 0 { self.allocatable_bytes } else { limit });
            if high > request {
                files.insert("memory.high".to_owned(), high.to_string());
            }
        }
        files
    }

    /// What is kept for a pod as a whole; zero of what its class does not have.
    pub fn of_pod(&self, pod: &Pod) -> Kept {
        let request = pod_totals(pod).requests.get("memory").copied().unwrap_or(0) / 1000;
        self.kept(qos_class(pod), request)
    }

    fn kept(&self, class: QosClass, request: i64) -> Kept {
        match class {
            QosClass::Guaranteed if self.tiered => Kept { min: request, low: 0 },
            QosClass::Burstable if self.tiered => Kept { min: 0, low: request },
            _ => Kept::default(),
        }
    }

    /// The share of the way from request to limit that may be gone unhindered, in whole pages.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "as the kubelet computes it; the memory of a machine fits"
    )]
    fn high(&self, request: i64, limit: i64) -> i64 {
        if limit <= 0 || self.page_bytes <= 0 {
            return 0;
        }
        let (request, limit) = (request as f64, limit as f64);
        let pages = (request + (limit - request) * self.factor) / self.page_bytes as f64;
        (pages.floor() as i64).saturating_mul(self.page_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodSpec, ResourceRequirements};
    use proto::apimachinery::pkg::api::resource::Quantity;

    fn qos(tiered: bool) -> MemoryQos {
        MemoryQos { factor: 0.9, tiered, allocatable_bytes: 1 << 30, page_bytes: 4096 }
    }

    fn container(request: &str, limit: &str) -> Container {
        let list = |text: &str| {
            let quantity = Quantity { string: text.to_owned() };
            (!text.is_empty()).then(|| ("memory".to_owned(), quantity)).into_iter().collect()
        };
        let resources = ResourceRequirements { requests: list(request), limits: list(limit), claims: Vec::new() };
        Container { resources: Some(resources), ..Container::default() }
    }

    fn files(qos: &MemoryQos, class: &str, container: Container) -> Vec<(String, String)> {
        let spec = PodSpec { containers: vec![container.clone()], ..PodSpec::default() };
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        pod.status.get_or_insert_default().qos_class = class.into();
        qos.unified(&pod, &container).into_iter().collect()
    }

    fn high(bytes: i64) -> Vec<(String, String)> {
        vec![("memory.high".to_owned(), bytes.to_string())]
    }

    #[test]
    fn containers_are_slowed_down_before_their_limit() {
        let mib = 1 << 20;
        // 100 Mi + 0.9 * 100 Mi, and of that whole pages.
        assert_eq!(files(&qos(false), "Burstable", container("100Mi", "200Mi")), high(190 * mib));
        // 4 Ki + 0.9 * 6 Ki are 9.4 Ki.
        assert_eq!(files(&qos(false), "Burstable", container("4Ki", "10Ki")), high(8192));
    }

    #[test]
    fn without_a_limit_the_node_is_the_limit() {
        // 10 Mi + 0.9 * (1 Gi - 10 Mi), and of that whole pages.
        assert_eq!(files(&qos(false), "Burstable", container("10Mi", "")), high(967_413_760));
        assert!(files(&qos(false), "BestEffort", container("", "")).is_empty(), "nothing asked, nothing limited");
        assert!(files(&qos(false), "Guaranteed", container("1Gi", "1Gi")).is_empty());
        let tiny = MemoryQos { allocatable_bytes: 1 << 20, ..qos(false) };
        assert!(files(&tiny, "Burstable", container("10Mi", "")).is_empty(), "never below the request");
    }

    #[test]
    fn requests_are_kept_by_tier_where_the_policy_says_so() {
        let kept = |file: &str, bytes: i64| (file.to_owned(), bytes.to_string());
        let guaranteed = files(&qos(true), "Guaranteed", container("1Mi", "1Mi"));
        assert_eq!(guaranteed, [kept("memory.min", 1 << 20)]);
        let burstable = files(&qos(true), "Burstable", container("1Mi", "1Mi"));
        assert_eq!(burstable, [kept("memory.low", 1 << 20)]);
        let spec = PodSpec { containers: vec![container("1Mi", ""), container("2Mi", "")], ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        assert_eq!(qos(true).of_pod(&pod), Kept { min: 0, low: 3 << 20 });
        assert_eq!(qos(false).of_pod(&pod), Kept::default());
    }
}
