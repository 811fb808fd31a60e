//! Groups that persistent volumes ask for: their containers run with them.
//!
//! Followed: kubelet `GetExtraSupplementalGroupsForPod`.

use std::collections::BTreeSet;

use proto::api::core::v1::{PersistentVolume, Pod};

use crate::pod::spec::PodExt;

use super::PodVolumes;

/// Says which group may use a volume that has owners of its own.
const ANNOTATION: &str = "pv.beta.kubernetes.io/gid";

/// The group of a volume; one that is no number is none.
pub fn of(volume: &PersistentVolume) -> Option<i64> {
    volume.metadata.as_ref()?.annotations.get(ANNOTATION)?.parse().ok()
}

/// Adds the groups of volumes to those of a pod, which begin with its `fsGroup`: they come next.
pub fn add(pod: &Pod, volumes: &PodVolumes, groups: &mut Vec<i64>) {
    let context = pod.spec().security_context.as_ref();
    let own = context.map_or(&[][..], |c| &c.supplemental_groups);
    let extra: BTreeSet<i64> = volumes.values().filter_map(|v| v.group).filter(|group| !own.contains(group)).collect();
    let at = usize::from(context.is_some_and(|c| c.fs_group.is_some())).min(groups.len());
    groups.splice(at..at, extra);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::MountSource;
    use proto::api::core::v1::{PodSecurityContext, PodSpec};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn groups_of_volumes_come_after_that_of_files_and_once() {
        let volume = |gid: &str| {
            let annotations = [(ANNOTATION.to_owned(), gid.to_owned())].into();
            PersistentVolume { metadata: Some(ObjectMeta { annotations, ..Default::default() }), ..Default::default() }
        };
        assert_eq!(
            (of(&volume("1234")), of(&volume("staff")), of(&PersistentVolume::default())),
            (Some(1234), None, None)
        );
        let source = |group| MountSource { group: Some(group), ..Default::default() };
        let volumes: PodVolumes =
            [("a".to_owned(), source(7)), ("b".to_owned(), source(5)), ("c".to_owned(), source(7))].into();
        let context = PodSecurityContext { fs_group: Some(1), supplemental_groups: vec![5, 9], ..Default::default() };
        let spec = PodSpec { security_context: Some(context), ..Default::default() };
        let mut groups = vec![1, 5, 9];
        add(&Pod { spec: Some(spec), ..Default::default() }, &volumes, &mut groups);
        assert_eq!(groups, [1, 7, 5, 9]);
        let mut groups = Vec::new();
        add(&Pod::default(), &volumes, &mut groups);
        assert_eq!(groups, [5, 7]);
    }
}
