//! What a pod that runs has as a whole, as its status shows it.
//!
//! The kernel is asked, for a resize is done only when the pod's cgroup has what was allocated. Where it has what the pod
//! was given, the words of the spec show: a weight stands for many amounts of CPU. Memory that is requested is in no
//! cgroup. Of resources other than CPU and memory only those show that the pod itself names.
//!
//! Followed: kubelet `convertToAPIPodLevelResourcesStatus`. Limits: where a weight says something else than what was
//! given, the amount of CPU is known as well as weights tell it.

use proto::api::core::v1::{Pod, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::Format;

use crate::cgroups::{Found, Limits, cpu_shares, cpu_weight};
use crate::pod::resources::{MIN_SHARES, pod_amounts, shares_to_milli_cpu};
use crate::pod::spec::PodExt;

/// `pod` as it was given its resources, which made `given` the limits of its cgroup; `found` are those that it has, where
/// they are known.
pub fn in_use(pod: &Pod, given: &Limits, found: Option<Found>) -> ResourceRequirements {
    let mut out = pod.spec().resources.clone().unwrap_or_default();
    let sums = pod_amounts(pod);
    for name in ["cpu", "memory"] {
        for (list, sums) in [(&mut out.requests, &sums.requests), (&mut out.limits, &sums.limits)] {
            if let Some(sum) = sums.get(name) {
                list.insert(name.to_owned(), sum.clone());
            }
        }
    }
    let Some(found) = found else { return out };
    let cpu = |milli| Quantity { string: proto::quantity::Quantity::from_milli(milli, Format::DecimalSi).to_string() };
    if cpu_weight(given.cpu_shares.unwrap_or(MIN_SHARES)) != found.cpu_weight {
        out.requests.insert("cpu".to_owned(), cpu(shares_to_milli_cpu(cpu_shares(found.cpu_weight))));
    }
    if let Some((quota, period)) = found.cpu_quota.filter(|quota| given.cpu_quota != Some(*quota)) {
        out.limits.insert("cpu".to_owned(), cpu(quota.saturating_mul(1000) / period.max(1)));
    }
    if let Some(bytes) = found.memory {
        let bytes = proto::quantity::Quantity::from_integer(bytes, Format::BinarySi);
        out.limits.insert("memory".to_owned(), Quantity { string: bytes.to_string() });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::pod_limits;
    use crate::pod::resources::{NodeResources, ResourceList};
    use proto::api::core::v1::{Container, PodSpec};

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        entries.iter().map(|(k, v)| ((*k).to_owned(), Quantity { string: (*v).to_owned() })).collect()
    }

    fn requirements(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ResourceRequirements {
        ResourceRequirements { requests: list(requests), limits: list(limits), claims: vec![] }
    }

    #[test]
    fn what_the_kernel_has_shows_where_it_is_not_what_was_given() {
        let own = requirements(
            &[("cpu", "10m"), ("memory", "8Mi"), ("ephemeral-storage", "1Gi")],
            &[("cpu", "100m"), ("memory", "64M")],
        );
        let containers = vec![Container { resources: Some(own), ..Default::default() }];
        let pod = Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() };
        let given = pod_limits(&pod, &NodeResources::default(), 0);
        let requests = [("cpu", "10m"), ("memory", "8Mi")];
        let quota = Some((10_000, 100_000));
        let cases = [
            (None, requirements(&requests, &[("cpu", "100m"), ("memory", "64M")])),
            // As it was given: bytes are bytes, and weight 1 stands for ten thousandths of a CPU as well as for two.
            (Some((1, quota, Some(64_000_000))), requirements(&requests, &[("cpu", "100m"), ("memory", "62500Ki")])),
            // Limits that nobody has set are those of the spec.
            (Some((1, None, None)), requirements(&requests, &[("cpu", "100m"), ("memory", "64M")])),
            (
                Some((20, Some((20_000, 100_000)), Some(32 << 20))),
                requirements(&[("cpu", "489m"), ("memory", "8Mi")], &[("cpu", "200m"), ("memory", "32Mi")]),
            ),
        ];
        for (found, want) in cases {
            let found = found.map(|(cpu_weight, cpu_quota, memory)| Found { cpu_weight, cpu_quota, memory });
            assert_eq!(in_use(&pod, &given, found), want, "{found:?}");
        }
    }

    #[test]
    fn what_the_pod_names_itself_shows_whatever_it_is() {
        let whole = requirements(&[("cpu", "1")], &[("cpu", "2"), ("hugepages-2Mi", "4Mi")]);
        let spec = PodSpec { resources: Some(whole.clone()), ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let given = pod_limits(&pod, &NodeResources::default(), 0);
        assert_eq!(in_use(&pod, &given, None), whole);
    }
}
