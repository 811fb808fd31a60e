//! Why pods do not have their volumes, as events tell it.

/// Why a volume cannot be had; the text is that of the `FailedMount` event. Trying again later may help.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
    SetUp { volume: String, why: String },
    /// A volume that no node has yet, or another has.
    #[error("AttachVolume.Attach failed for volume {volume:?} : {why}")]
    Attach { volume: String, why: String },
    /// A volume that cannot be made ready for the pods of this node.
    #[error("MountVolume.MountDevice failed for volume {volume:?} : {why}")]
    Device { volume: String, why: String },
    /// A volume that may not be used from this node.
    #[error("MountVolume.NodeAffinity check failed for volume {volume:?} : {why}")]
    Affinity { volume: String, why: String },
    /// What some volumes are cannot be told. Names in order with spaces between; `why` is of all of them.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{unmounted}], unattached volumes=[{unattached}], \
         failed to process volumes=[{unprocessed}]: {why}"
    )]
    Unprocessed { unmounted: String, unattached: String, unprocessed: String, why: String },
    /// A container's mount of a volume, or its removal.
    #[error("{0}")]
    Mount(String),
}

impl VolumeError {
    /// What one volume is cannot be told.
    pub fn unprocessed(volume: &str, why: String) -> Self {
        let volume = volume.to_owned();
        VolumeError::Unprocessed { unmounted: volume.clone(), unattached: String::new(), unprocessed: volume, why }
    }
}

/// What is told of a pod whose volumes cannot all be had: each failed mount by itself, and those that never came to a
/// mount in one sentence that names all that is missing. `failed` has the pod's names of the volumes.
///
/// Followed: kubelet `WaitForAttachAndMount`; mounts tell of themselves.
pub fn all_told(failed: Vec<(&str, VolumeError)>) -> Vec<VolumeError> {
    let names = |of: &dyn Fn(&VolumeError) -> bool| {
        let mut names: Vec<&str> = failed.iter().filter(|(_, error)| of(error)).map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.join(" ")
    };
    let unmounted = names(&|_| true);
    let unattached = names(&|error| matches!(error, VolumeError::Attach { .. }));
    let unprocessed = names(&|error| matches!(error, VolumeError::Unprocessed { .. }));
    let (mut told, mut reasons) = (Vec::new(), Vec::new());
    for (_, error) in failed {
        match error {
            VolumeError::Unprocessed { why, .. } => reasons.push(why),
            error => told.push(error),
        }
    }
    if !reasons.is_empty() {
        reasons.sort_unstable();
        reasons.dedup();
        told.push(VolumeError::Unprocessed { unmounted, unattached, unprocessed, why: reasons.join("; ") });
    }
    told
}

/// What is told of a pod that has been without volumes for long, where each of `errors` is of one volume. What some are that
/// cannot be told is told at once.
pub fn timed_out(errors: &[VolumeError]) -> Option<String> {
    let name = |error: &VolumeError| match error {
        VolumeError::SetUp { volume, .. }
        | VolumeError::Attach { volume, .. }
        | VolumeError::Device { volume, .. }
        | VolumeError::Affinity { volume, .. } => Some(volume.clone()),
        VolumeError::Unprocessed { .. } | VolumeError::Mount(_) => None,
    };
    let mut unmounted: Vec<String> = errors.iter().map(name).collect::<Option<_>>()?;
    let attach = errors.iter().filter(|error| matches!(error, VolumeError::Attach { .. }));
    let mut unattached: Vec<String> = attach.filter_map(name).collect();
    unmounted.sort_unstable();
    unattached.sort_unstable();
    let told = VolumeError::Unprocessed {
        unmounted: unmounted.join(" "),
        unattached: unattached.join(" "),
        unprocessed: String::new(),
        why: "context deadline exceeded".into(),
    };
    Some(told.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_tell_of_themselves_and_the_rest_in_one_sentence() {
        let set_up = VolumeError::SetUp { volume: "cm".into(), why: "configmap \"x\" not found".into() };
        let attach = VolumeError::Attach { volume: "pv".into(), why: "not yet".into() };
        let failed = vec![
            ("z", VolumeError::unprocessed("z", "error processing PVC n/z: PVC is not bound".into())),
            ("cm", set_up.clone()),
            ("disk", attach.clone()),
            ("b", VolumeError::unprocessed("b", "error processing PVC n/b: PVC is not bound".into())),
        ];
        let late = [attach.clone(), set_up.clone()];
        assert_eq!(
            timed_out(&late).as_deref(),
            Some(
                "Unable to attach or mount volumes: unmounted volumes=[cm pv], unattached volumes=[pv], failed to \
                 process volumes=[]: context deadline exceeded"
            )
        );
        assert!(timed_out(&all_told(failed.clone())).is_none());
        let told: Vec<String> = all_told(failed).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "MountVolume.SetUp failed for volume \"cm\" : configmap \"x\" not found",
                "AttachVolume.Attach failed for volume \"pv\" : not yet",
                "Unable to attach or mount volumes: unmounted volumes=[b cm disk z], unattached volumes=[disk], failed to \
                 process volumes=[b z]: error processing PVC n/b: PVC is not bound; error processing PVC n/z: PVC is not \
                 bound",
            ]
        );
        let told = all_told(vec![("cm", VolumeError::SetUp { volume: "cm".into(), why: "no".into() })]);
        assert_eq!(told.len(), 1);
    }
}
