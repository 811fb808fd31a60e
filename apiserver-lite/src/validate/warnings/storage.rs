//! Warnings about volumes and claims to them.

use serde_json::Value;

use super::super::{has, list};
use super::{Found, OLD_VOLUMES};

impl Found {
    pub(super) fn class_annotation(&mut self, object: &Value) {
        const KEY: &str = "volume.beta.kubernetes.io/storage-class";
        if has(&object["metadata"]["annotations"], KEY) {
            let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
            self.add(format_args!("metadata.annotations[{KEY}]"), why);
        }
    }

    pub(super) fn volume(&mut self, object: &Value) {
        let spec = &object["spec"];
        let terms = &spec["nodeAffinity"]["required"];
        for (index, term) in list(terms, "nodeSelectorTerms").iter().enumerate() {
            self.expressions(format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]"), term);
        }
        self.class_annotation(object);
        const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
        if has(&object["metadata"]["annotations"], OPTIONS) {
            let why = "deprecated since v1.31; use \"mountOptions\" attribute instead";
            self.add(format_args!("metadata.annotations[{OPTIONS}]"), why);
        }
        if spec["persistentVolumeReclaimPolicy"] == "Recycle" {
            let why = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic \
                       provisioning.";
            self.add("spec.persistentVolumeReclaimPolicy", why);
        }
        for (source, why) in OLD_VOLUMES {
            if has(spec, source) {
                let shown = if source == "storageos" { "storageOS" } else { source };
                self.add(format_args!("spec.{shown}"), why);
            }
        }
        self.fraction("spec.capacity", &spec["capacity"], "storage");
    }
}
