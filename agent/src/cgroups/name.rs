//! Names of cgroups: one list of parts, written as a path or as systemd's slices.
//!
//! `kubepods`, `burstable`, `podUID` is `/kubepods/burstable/podUID` to the file system and
//! `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice` to systemd, where a dash in a part would
//! start another level and is written `_`.

use std::path::PathBuf;

use crate::pod::resources::QosClass;

/// Who makes cgroups: we, or systemd for us. Runtime and agent have to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

impl Driver {
    /// By the name in the configuration.
    pub fn named(name: &str) -> Self {
        if name == "systemd" { Driver::Systemd } else { Driver::Cgroupfs }
    }
}

/// A cgroup by the parts of its name, from the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// The tier's parent of all pods, below `root` (`cgroupRoot`, `/` or empty for the top).
    pub fn kubepods(root: &str) -> Self {
        Self::of_root(root).child("kubepods")
    }

    /// `cgroupRoot` itself.
    pub fn of_root(root: &str) -> Self {
        let parts = root.split('/').filter(|part| !part.is_empty());
        Self(parts.map(|part| part.trim_end_matches(".slice").to_owned()).collect())
    }

    /// One that somebody else has made, as a configuration names it: a path, of which systemd's slices are told by the last.
    pub fn existing(name: &str, driver: Driver) -> Self {
        let parts = |text: &str, by: char| text.split(by).filter(|p| !p.is_empty()).map(str::to_owned).collect();
        match driver {
            Driver::Cgroupfs => Self(parts(name, '/')),
            Driver::Systemd => {
                let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                let names: Vec<String> = parts(last.trim_end_matches(".slice"), '-');
                Self(names.into_iter().map(|part| part.replace('_', "-")).collect())
            }
        }
    }

    pub fn child(&self, part: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Self(parts)
    }

    /// Guaranteed pods lie right below the parent, the others in their tier's cgroup.
    pub fn tier(&self, class: QosClass) -> Self {
        match class {
            QosClass::Guaranteed => self.clone(),
            QosClass::Burstable => self.child("burstable"),
            QosClass::BestEffort => self.child("besteffort"),
        }
    }

    pub fn pod(&self, class: QosClass, uid: &str) -> Self {
        self.tier(class).child(&format!("pod{uid}"))
    }

    /// Below the mount point of the hierarchy.
    pub fn path(&self, driver: Driver) -> PathBuf {
        match driver {
            Driver::Cgroupfs => self.0.iter().collect(),
            Driver::Systemd => (1..=self.0.len()).map(|n| self.slice(n)).collect(),
        }
    }

    /// What the runtime is told: the path from the top of the hierarchy. Of systemd's slices a runtime wants the last one
    /// only and takes it from the path, as kubelets send it.
    pub fn for_runtime(&self, driver: Driver) -> String {
        format!("/{}", self.path(driver).display())
    }

    /// systemd's unit of the first `count` parts.
    pub fn slice(&self, count: usize) -> String {
        let escaped: Vec<String> = self.0.iter().take(count).map(|part| part.replace('-', "_")).collect();
        format!("{}.slice", escaped.join("-"))
    }

    /// How many parts the name has.
    pub fn depth(&self) -> usize {
        self.0.len()
    }
}

/// The uid in the file name of a pod's cgroup, of either driver.
pub fn pod_uid(file_name: &str) -> Option<String> {
    let plain = file_name.strip_suffix(".slice");
    let last = match plain {
        Some(slice) => slice.rsplit('-').next()?.replace('_', "-"),
        None => file_name.to_owned(),
    };
    last.strip_prefix("pod").filter(|uid| !uid.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn one_name_has_the_forms_of_both_drivers() {
        let pod = CgroupName::kubepods("/").pod(QosClass::Burstable, "12-ab");
        assert_eq!(pod.path(Driver::Cgroupfs), Path::new("kubepods/burstable/pod12-ab"));
        assert_eq!(pod.for_runtime(Driver::Cgroupfs), "/kubepods/burstable/pod12-ab");
        assert_eq!(
            pod.path(Driver::Systemd),
            Path::new("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice")
        );
        assert_eq!(
            pod.for_runtime(Driver::Systemd),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice"
        );
        let guaranteed = CgroupName::kubepods("/site.slice").pod(QosClass::Guaranteed, "1");
        assert_eq!(guaranteed.for_runtime(Driver::Systemd), "/site.slice/site-kubepods.slice/site-kubepods-pod1.slice");
        assert_eq!(guaranteed.for_runtime(Driver::Cgroupfs), "/site/kubepods/pod1");
    }

    #[test]
    fn what_somebody_else_has_made_is_found_by_its_path() {
        let path = |name: &str, driver| CgroupName::existing(name, driver).path(driver).display().to_string();
        assert_eq!(path("/system.slice", Driver::Cgroupfs), "system.slice");
        assert_eq!(path("a/b.slice/", Driver::Cgroupfs), "a/b.slice");
        assert_eq!(path("/system.slice", Driver::Systemd), "system.slice");
        assert_eq!(path("system", Driver::Systemd), "system.slice");
        assert_eq!(path("/a.slice/a-b_c.slice", Driver::Systemd), "a.slice/a-b_c.slice");
    }

    #[test]
    fn a_pod_is_known_by_its_cgroup_and_nothing_else_is() {
        assert_eq!(pod_uid("pod12-ab").as_deref(), Some("12-ab"));
        assert_eq!(pod_uid("kubepods-burstable-pod12_ab.slice").as_deref(), Some("12-ab"));
        assert_eq!(pod_uid("kubepods-besteffort.slice"), None);
        assert_eq!(pod_uid("pod"), None);
        assert_eq!(pod_uid("burstable"), None);
    }
}
