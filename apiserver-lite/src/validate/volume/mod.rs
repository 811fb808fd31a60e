//! Volumes of pods and persistent volumes, and how containers mount them: [`projected`] and [`disks`] have rules of some
//! sources, [`persistent`] those of persistent volumes.

mod disks;
mod mounts;
mod persistent;
mod projected;

use serde_json::Value;

use super::container::PULL_POLICIES;
use super::{amounts, claim, ip, list, text};
pub use mounts::{devices, mounts};
pub use persistent::{is_persistent_source, persistent};

use crate::field_error::Report;
use crate::names;
use disks::{azure_disk, fibre_channel, iscsi, quobyte};
use projected::{downward, key_to_path, projected};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const ONE_TYPE: &str = "may not specify more than 1 volume type";
/// Sources in the order that upstream looks at them, each with the name that its path has in complaints.
const SOURCES: [(&str, &str, &str); 30] = [
    ("emptyDir", "emptyDir", "emptyDir"),
    ("hostPath", "hostPath", "hostPath"),
    ("gitRepo", "gitRepo", "gitRepo"),
    ("gcePersistentDisk", "persistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret", "secret"),
    ("nfs", "nfs", "nfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd", "rbd"),
    ("cinder", "cinder", "cinder"),
    ("cephfs", "cephfs", "cephFS"),
    ("quobyte", "quobyte", "quobyte"),
    ("downwardAPI", "downwardAPI", "downwarAPI"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("configMap", "configMap", "configMap"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("storageos", "storageos", "storageos"),
    ("projected", "projected", "projected"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("csi", "csi", "csi"),
    ("ephemeral", "ephemeral", "ephemeral"),
    ("image", "image", "image"),
];

/// Volumes of a pod. `pod` is the pod's name, empty for a template. Returns the names that containers may mount: those
/// of volumes without a complaint.
pub fn all<'a>(report: &mut Report, spec: &'a Value, pod: &str, is_pod: bool) -> Vec<&'a Value> {
    let volumes = list(spec, "volumes");
    let made = |claim: &str| {
        let own = |v: &Value| v["ephemeral"].is_object() && claim == format!("{pod}-{}", text(v, "name"));
        !pod.is_empty() && volumes.iter().any(own)
    };
    let mut good: Vec<&Value> = Vec::new();
    report.each(spec, "volumes", |r, volume| {
        let name = text(volume, "name");
        let sound = r.sound(|r| {
            source(r, volume, name, pod, is_pod);
            r.need_named(volume, "name", names::dns_label);
            if good.iter().any(|v| text(v, "name") == name) {
                r.at("name", |r| r.duplicate(name));
            }
        });
        if sound {
            good.push(volume);
        }
        let claim = text(&volume["persistentVolumeClaim"], "claimName");
        if made(claim) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            r.at("persistentVolumeClaim", |r| r.bad("claimName", claim, why));
        }
    });
    good
}

fn source(report: &mut Report, volume: &Value, name: &str, pod: &str, is_pod: bool) {
    let mut count = 0;
    for (key, shown, twice) in SOURCES {
        let Some(source) = volume.get(key).filter(|s| s.is_object()) else { continue };
        count += 1;
        if count > 1 {
            report.refuse(twice, ONE_TYPE);
        } else {
            report.at(shown, |r| one(r, key, source, is_pod));
            if key == "ephemeral" && !pod.is_empty() && !name.is_empty() {
                let claim = format!("{pod}-{name}");
                for why in names::dns_subdomain(&claim) {
                    report.bad("name", name, format_args!("PVC name \"{claim}\": {why}"));
                }
            }
        }
        if key == "iscsi" && source["initiatorName"].is_string() {
            long_portal(report, "name", name, name, text(source, "targetPortal"));
        }
    }
    if count == 0 {
        report.required("must specify a volume type");
    }
}

fn long_portal(report: &mut Report, field: &str, shown: &str, name: &str, portal: &str) {
    if name.len() + 1 + portal.len() > 64 {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                   iscsi.initiatorName is specified.";
        report.bad(field, shown, why);
    }
}

fn need_all(report: &mut Report, source: &Value, names: &[&str]) {
    for name in names {
        report.need(source, name);
    }
}

fn mode(report: &mut Report, object: &Value, name: &str) {
    if let Some(mode) = object[name].as_i64().filter(|m| !(0..=0o777).contains(m)) {
        report.bad(name, mode, MODE);
    }
}

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// One source of a volume, alike in pods and persistent volumes.
fn one(report: &mut Report, kind: &str, source: &Value, is_pod: bool) {
    let r = report;
    match kind {
        "emptyDir" if amounts::quantity(&source["sizeLimit"]).is_some_and(|q| q.sign() < 0) => {
            r.refuse("sizeLimit", "SizeLimit field must be a valid resource quantity");
        }
        "hostPath" if r.need(source, "path") => {
            r.at("path", |r| no_backsteps(r, text(source, "path")));
            r.maybe_choice(source, "type", &HOST_PATH_TYPES);
        }
        "gitRepo" => {
            r.need(source, "repository");
            r.at("directory", |r| descending(r, text(source, "directory")));
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            r.need(source, if kind == "gcePersistentDisk" { "pdName" } else { "volumeID" });
            if let Some(partition) = source["partition"].as_i64().filter(|p| !(0..=255).contains(p)) {
                r.bad("partition", partition, "must be between 1 and 255, inclusive");
            }
        }
        "secret" | "configMap" => {
            r.need(source, if kind == "secret" { "secretName" } else { "name" });
            mode(r, source, "defaultMode");
            r.each(source, "items", key_to_path);
        }
        "nfs" => {
            need_all(r, source, &["server", "path"]);
            let path = text(source, "path");
            if !path.starts_with('/') {
                r.bad("path", path, "must be an absolute path");
            }
        }
        "iscsi" => iscsi(r, source, None),
        "glusterfs" => need_all(r, source, &["endpoints", "path"]),
        "flocker" => {
            let (name, uuid) = (text(source, "datasetName"), text(source, "datasetUUID"));
            if name.is_empty() && uuid.is_empty() {
                r.required("one of datasetName and datasetUUID is required");
            }
            if !name.is_empty() && !uuid.is_empty() {
                r.invalid("resource", "datasetName and datasetUUID can not be specified simultaneously");
            }
            if name.contains('/') {
                r.bad("datasetName", name, "must not contain '/'");
            }
        }
        "persistentVolumeClaim" => {
            r.need(source, "claimName");
        }
        "rbd" => {
            if list(source, "monitors").is_empty() {
                r.miss("monitors", "");
            }
            r.need(source, "image");
        }
        "cinder" => {
            r.need(source, "volumeID");
            r.with(source, "secretRef", |r, s| {
                r.need(s, "name");
            });
        }
        "cephfs" if list(source, "monitors").is_empty() => r.miss("monitors", ""),
        "quobyte" => quobyte(r, source),
        "downwardAPI" => {
            mode(r, source, "defaultMode");
            list(source, "items").iter().for_each(|file| downward(r, file));
        }
        "fc" => fibre_channel(r, source),
        "flexVolume" => {
            r.need(source, "driver");
            for key in source["options"].as_object().into_iter().flatten().map(|(key, _)| key) {
                let domain = key.split_once('/').map_or(key.as_str(), |(domain, _)| domain);
                let dotted = format!(".{}", domain.to_lowercase());
                if dotted.ends_with(".kubernetes.io") || dotted.ends_with(".k8s.io") {
                    let why = "kubernetes.io and k8s.io namespaces are reserved";
                    r.at("options", |r| r.key(key, |r| r.invalid(key.as_str(), why)));
                }
            }
        }
        "azureFile" => need_all(r, source, &["secretName", "shareName"]),
        "vsphereVolume" => {
            r.need(source, "volumePath");
        }
        "photonPersistentDisk" => {
            r.need(source, "pdID");
        }
        "portworxVolume" => {
            r.need(source, "volumeID");
        }
        "azureDisk" => azure_disk(r, source),
        "storageos" => {
            r.need_named(source, "volumeName", names::dns_label);
            r.named(source, "volumeNamespace", names::dns_label);
            r.with(source, "secretRef", |r, s| {
                r.need(s, "name");
            });
        }
        "projected" => projected(r, source),
        "scaleIO" => need_all(r, source, &["gateway", "system", "volumeName"]),
        "csi" => {
            r.at("driver", |r| driver(r, text(source, "driver")));
            r.with(source, "nodePublishSecretRef", |r, s| {
                r.need(s, "name");
            });
            let secret = text(&source["nodePublishSecretRef"], "name");
            if !secret.is_empty() {
                r.at("name", |r| r.complaints(secret, names::dns_subdomain(secret)));
            }
        }
        "ephemeral" => match source.get("volumeClaimTemplate").filter(|t| t.is_object()) {
            None => r.miss("volumeClaimTemplate", ""),
            Some(template) => r.at("volumeClaimTemplate", |r| {
                r.at("metadata", |r| claim::template_metadata(r, &template["metadata"]));
                r.at("spec", |r| claim::spec(r, &template["spec"]));
            }),
        },
        "image" => {
            if is_pod {
                r.need(source, "reference");
            }
            r.choice(source, "pullPolicy", &PULL_POLICIES);
        }
        _ => {}
    }
}

/// The name of a CSI driver: a DNS subdomain of 63 characters, in which upper case counts as lower.
pub fn driver(report: &mut Report, name: &str) {
    if name.is_empty() {
        report.required("");
    }
    if name.len() > 63 {
        report.too_long(63);
    }
    report.complaints(name, names::dns_subdomain(&name.to_lowercase()));
}

/// `..` leads out of where a path belongs.
pub fn no_backsteps(report: &mut Report, path: &str) {
    if path.split('/').any(|part| part == "..") {
        report.invalid(path, "must not contain '..'");
    }
}

/// A relative path that stays inside.
pub fn descending(report: &mut Report, path: &str) {
    if path.starts_with('/') {
        report.invalid(path, "must be a relative path");
    }
    no_backsteps(report, path);
}

/// As [`descending`], and not one of the names that volumes keep for themselves.
pub fn local_path(report: &mut Report, path: &str) {
    descending(report, path);
    if path.starts_with("..") && !path.starts_with("../") {
        report.invalid(path, "must not start with '..'");
    }
}

/// A nameserver or another address in a list.
pub fn address(report: &mut Report, text: &str) {
    ip::check(report, text);
}
