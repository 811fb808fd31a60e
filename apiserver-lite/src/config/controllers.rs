//! Which controllers run, as kube-controller-manager's `--controllers` says it. Unlike there, `*` means all: those for
//! bootstrap tokens, too, which kubeadm has to switch on for a cluster that nodes can join.

use super::{ConfigError, bad};

/// Names of kube-controller-manager's controllers: the name and its older alias, empty where it has none.
const KNOWN: &[(&str, &str)] = &[
    ("bootstrap-signer-controller", "bootstrapsigner"),
    ("certificatesigningrequest-approving-controller", "csrapproving"),
    ("certificatesigningrequest-cleaner-controller", "csrcleaner"),
    ("certificatesigningrequest-signing-controller", "csrsigning"),
    ("clusterrole-aggregation-controller", "clusterrole-aggregation"),
    ("cronjob-controller", "cronjob"),
    ("daemonset-controller", "daemonset"),
    ("deployment-controller", "deployment"),
    ("device-taint-eviction-controller", ""),
    ("disruption-controller", "disruption"),
    ("endpoints-controller", "endpoint"),
    ("endpointslice-controller", "endpointslice"),
    ("endpointslice-mirroring-controller", "endpointslicemirroring"),
    ("ephemeral-volume-controller", "ephemeral-volume"),
    ("garbage-collector-controller", "garbagecollector"),
    ("horizontal-pod-autoscaler-controller", "horizontalpodautoscaling"),
    ("job-controller", "job"),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", ""),
    ("legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner"),
    ("namespace-controller", "namespace"),
    ("node-ipam-controller", "nodeipam"),
    ("node-lifecycle-controller", "nodelifecycle"),
    ("node-route-controller", "route"),
    ("persistentvolume-attach-detach-controller", "attachdetach"),
    ("persistentvolume-binder-controller", "persistentvolume-binder"),
    ("persistentvolume-expander-controller", "persistentvolume-expander"),
    ("persistentvolume-protection-controller", "pv-protection"),
    ("persistentvolumeclaim-protection-controller", "pvc-protection"),
    ("pod-garbage-collector-controller", "podgc"),
    ("podcertificaterequest-cleaner-controller", ""),
    ("podgroup-protection-controller", ""),
    ("replicaset-controller", "replicaset"),
    ("replicationcontroller-controller", "replicationcontroller"),
    ("resourceclaim-controller", "resource-claim-controller"),
    ("resourcequota-controller", "resourcequota"),
    ("root-ca-certificate-publisher-controller", "root-ca-cert-publisher"),
    ("selinux-warning-controller", ""),
    ("service-cidr-controller", ""),
    ("service-lb-controller", "service"),
    ("serviceaccount-controller", "serviceaccount"),
    ("serviceaccount-token-controller", "serviceaccount-token"),
    ("statefulset-controller", "statefulset"),
    ("storage-version-migrator-controller", ""),
    ("storageversion-garbage-collector-controller", "storage-version-gc"),
    ("taint-eviction-controller", ""),
    ("token-cleaner-controller", "tokencleaner"),
    ("ttl-after-finished-controller", "ttl-after-finished"),
    ("ttl-controller", "ttl"),
    ("validatingadmissionpolicy-status-controller", ""),
    ("volumeattributesclass-protection-controller", ""),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controllers(Vec<String>);

impl Controllers {
    /// Reads the list; aliases become names.
    ///
    /// # Errors
    /// A name that no controller has.
    pub(super) fn parse(list: &[String]) -> Result<Self, ConfigError> {
        let mut out = Vec::new();
        for entry in list.iter().map(|e| e.trim()).filter(|e| !e.is_empty()) {
            let (sign, name) = entry.strip_prefix('-').map_or(("", entry), |name| ("-", name));
            let known = KNOWN.iter().find(|(n, alias)| *n == name || *alias == name);
            match known {
                _ if name == "*" => out.push(format!("{sign}*")),
                Some((name, _)) => out.push(format!("{sign}{name}")),
                None => return Err(bad("controllers", format!("{name:?} is not in the list of known controllers"))),
            }
        }
        Ok(Controllers(out))
    }

    /// Controllers that the list names to have them run, beside `*`.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).filter(|n| !n.starts_with('-') && *n != "*")
    }

    /// Whether a controller (by its name, not an alias) shall run.
    pub fn enabled(&self, name: &str) -> bool {
        let mut all = false;
        for entry in &self.0 {
            match entry.as_str() {
                "*" => all = true,
                "-*" => all = false,
                entry if entry == name => return true,
                entry if entry.strip_prefix('-') == Some(name) => return false,
                _ => {}
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Controllers {
        let list: Vec<String> = text.split(',').map(Into::into).collect();
        Controllers::parse(&list).expect("known names")
    }

    #[test]
    fn single_names_win_over_all() {
        assert!(parse("*").enabled("job-controller"));
        assert!(!parse("*,-job").enabled("job-controller"));
        assert!(!parse("-*").enabled("job-controller"));
        assert!(parse("-*,job-controller").enabled("job-controller"));
        assert!(!parse("job").enabled("cronjob-controller"));
        assert!(parse("*").enabled("token-cleaner-controller"));
        assert!(!parse("*,-tokencleaner").enabled("token-cleaner-controller"));
    }
}
