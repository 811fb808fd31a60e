//! Sources of persistent volumes.

use serde_json::Value;

use super::super::text;
use super::disks::iscsi;
use super::{ONE_TYPE, driver, no_backsteps, one};
use crate::field_error::Report;
use crate::names;

/// Sources that a persistent volume may have, in upstream's order.
const PERSISTENT: [(&str, &str, &str); 22] = [
    ("hostPath", "hostPath", "hostPath"),
    ("gcePersistentDisk", "persistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("nfs", "nfs", "nfs"),
    ("rbd", "rbd", "rbd"),
    ("quobyte", "quobyte", "quobyte"),
    ("cephfs", "cephfs", "cephFS"),
    ("iscsi", "iscsi", "iscsi"),
    ("cinder", "cinder", "cinder"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("local", "local", "local"),
    ("storageos", "storageos", "storageos"),
    ("csi", "csi", "csi"),
];

/// Keys of a persistent volume's spec that are its source.
pub fn is_persistent_source(key: &str) -> bool {
    PERSISTENT.iter().any(|(name, ..)| *name == key)
}

/// The source of a persistent volume.
pub fn persistent(report: &mut Report, spec: &Value, name: &str) {
    let mut count = 0;
    for (key, shown, twice) in PERSISTENT {
        let Some(source) = spec.get(key).filter(|s| s.is_object()) else { continue };
        count += 1;
        if count > 1 {
            report.refuse(twice, ONE_TYPE);
            continue;
        }
        report.at(shown, |r| match key {
            "local" => {
                if r.need(source, "path") {
                    r.at("path", |r| no_backsteps(r, text(source, "path")));
                }
            }
            "iscsi" => iscsi(r, source, Some(name)),
            "csi" => persistent_csi(r, source),
            _ => {
                one(r, key, source, false);
                if ["cinder", "storageos"].contains(&key) {
                    r.with(source, "secretRef", |r, s| {
                        r.need(s, "namespace");
                    });
                }
                if key == "azureFile" && source["secretNamespace"] == "" {
                    r.miss("secretNamespace", "");
                }
                if key == "glusterfs" {
                    r.with(source, "endpointsNamespace", |r, namespace| match namespace.as_str() {
                        Some("") => {
                            r.invalid("", "if the endpointnamespace is set, it must be a valid namespace name");
                        }
                        said => r.complaints(said.unwrap_or_default(), names::dns_label(said.unwrap_or_default())),
                    });
                }
            }
        });
        if key == "local" && !spec["nodeAffinity"].is_object() {
            report.miss("nodeAffinity", "Local volume requires node affinity");
        }
    }
    if count == 0 {
        report.required("must specify a volume type");
    }
}

fn persistent_csi(report: &mut Report, source: &Value) {
    report.at("driver", |r| driver(r, text(source, "driver")));
    report.need(source, "volumeHandle");
    for name in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        report.with(source, name, |r, secret| {
            r.need_named(secret, "name", names::dns_subdomain);
            r.need_named(secret, "namespace", names::dns_label);
        });
    }
}
