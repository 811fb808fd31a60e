//! Volumes of pods and persistent volumes, and how containers mount them.

use serde_json::Value;

use super::container::{PULL_POLICIES, field_reference, resource_reference};
use super::pod::Context;
use super::{amounts, claim, ip, list, selector, text};
use crate::field_error::Report;
use crate::names;

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
        "iscsi" => iscsi(r, source, "must be valid format starting with iqn, eui, or naa"),
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

fn key_to_path(report: &mut Report, item: &Value) {
    need_all(report, item, &["key", "path"]);
    report.at("path", |r| local_path(r, text(item, "path")));
    mode(report, item, "mode");
}

/// A file that shows a field or a resource; upstream names the list's path, not the item's.
fn downward(report: &mut Report, file: &Value) {
    const FIELDS: [&str; 5] =
        ["metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"];
    report.need(file, "path");
    report.at("path", |r| local_path(r, text(file, "path")));
    if file["fieldRef"].is_object() {
        report.at("fieldRef", |r| field_reference(r, &file["fieldRef"], &FIELDS));
        if file["resourceFieldRef"].is_object() {
            report.invalid("resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
        }
    } else if file["resourceFieldRef"].is_object() {
        report.at("resourceFieldRef", |r| resource_reference(r, &file["resourceFieldRef"], true));
    } else {
        report.required("one of fieldRef and resourceFieldRef is required");
    }
    mode(report, file, "mode");
}

fn projected(report: &mut Report, source: &Value) {
    mode(report, source, "defaultMode");
    let mut paths: Vec<&str> = Vec::new();
    for (index, source) in list(source, "sources").iter().enumerate() {
        let inside = |report: &mut Report, walk: &mut dyn FnMut(&mut Report)| {
            report.at("sources", |r| r.index(index, |r| walk(r)));
        };
        let clash = |report: &mut Report, path: &str, shown: &str, paths: &[&str]| {
            if !path.is_empty() && paths.contains(&path) {
                report.invalid(shown, "conflicting duplicate paths");
            }
        };
        let mut count = 0;
        for key in ["secret", "configMap"] {
            let Some(part) = source.get(key).filter(|p| p.is_object()) else { continue };
            count += 1;
            inside(report, &mut |r| {
                r.at(key, |r| {
                    r.need(part, "name");
                })
            });
            for (at, item) in list(part, "items").iter().enumerate() {
                inside(report, &mut |r| r.at(key, |r| r.at("items", |r| r.index(at, |r| key_to_path(r, item)))));
                let path = text(item, "path");
                clash(report, path, text(part, "name"), &paths);
                paths.push(path);
            }
        }
        if let Some(part) = source.get("downwardAPI").filter(|p| p.is_object()) {
            count += 1;
            for file in list(part, "items") {
                inside(report, &mut |r| r.at("downwardAPI", |r| downward(r, file)));
                let path = text(file, "path");
                clash(report, path, path, &paths);
                paths.push(path);
            }
        }
        if let Some(token) = source.get("serviceAccountToken").filter(|p| p.is_object()) {
            count += 1;
            inside(report, &mut |r| r.at("serviceAccountToken", |r| token_seconds(r, token)));
            if report.need(token, "path") {
                report.at("path", |r| local_path(r, text(token, "path")));
            }
        }
        if let Some(bundle) = source.get("clusterTrustBundle").filter(|p| p.is_object()) {
            count += 1;
            inside(report, &mut |r| r.at("clusterTrustBundle", |r| trust_bundle(r, bundle)));
            let path = text(bundle, "path");
            clash(report, path, path, &paths);
            paths.push(path);
        }
        if count > 1 {
            inside(report, &mut |r| r.forbidden("may not specify more than 1 volume type per source"));
        }
    }
}

fn token_seconds(report: &mut Report, token: &Value) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or(0);
    if seconds < 600 {
        report.bad("expirationSeconds", seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        report.bad("expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds");
    }
}

fn trust_bundle(report: &mut Report, bundle: &Value) {
    let said = |name: &str| bundle.get(name).and_then(Value::as_str);
    match (said("name"), said("signerName")) {
        (Some(_), Some(_)) => report.invalid(bundle, "only one of name and signerName may be used"),
        (Some(name), None) => {
            if name.is_empty() {
                report.miss("name", "must be a valid object name");
            }
            for why in names::dns_subdomain(&name.replace(':', ".")) {
                report.bad("name", name, format_args!("not a valid clustertrustbundlename: {why}"));
            }
            if bundle["labelSelector"].is_object() {
                let shown = selector::shown(&bundle["labelSelector"]);
                report.bad("labelSelector", shown, "labelSelector must be unset if name is specified");
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                report.miss("signerName", "must be a valid signer name");
            }
            report.at("signerName", |r| super::certificate::signer_name(r, signer));
            report.at("labelSelector", |r| selector::check(r, &bundle["labelSelector"]));
        }
        (None, None) => report.required("either name or signerName must be specified"),
    }
    report.need(bundle, "path");
    report.at("path", |r| local_path(r, text(bundle, "path")));
}

fn iscsi(report: &mut Report, source: &Value, first: &str) {
    report.need(source, "targetPortal");
    if report.need(source, "iqn") {
        initiator(report, "iqn", text(source, "iqn"), "must be valid format starting with iqn, eui, or naa");
    }
    if let Some(lun) = source["lun"].as_i64().filter(|l| !(0..=255).contains(l)) {
        report.bad("lun", lun, "must be between 0 and 255, inclusive");
    }
    if (source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true) && !source["secretRef"].is_object() {
        report.miss("secretRef", "");
    }
    if let Some(name) = source.get("initiatorName").and_then(Value::as_str) {
        initiator(report, "initiatorname", name, first);
    }
}

fn initiator(report: &mut Report, field: &str, name: &str, prefix: &str) {
    let fixed = |rest: &str, length: usize| rest.len() == length && rest.bytes().all(|b| b.is_ascii_alphanumeric());
    let good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => name.len() > 4 && fixed(&name[4..], 16),
        Some("naa") => name.len() > 4 && fixed(&name[4..], 32),
        _ => return report.bad(field, name, prefix),
    };
    if !good {
        report.bad(field, name, "must be valid format");
    }
}

/// `iqn.YYYY-MM.reversed.domain:identifier`.
fn is_iqn(name: &str) -> bool {
    let Some((date, rest)) = name.strip_prefix("iqn.").and_then(|n| n.split_once('.')) else { return false };
    let digits = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_digit());
    let dated = date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    dated
        && rest.split_once(':').is_some_and(|(domain, id)| {
            !domain.is_empty()
                && domain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
                && !id.is_empty()
                && !id.contains([',', ';', '*', '&', '$', '|'])
                && !id.contains(char::is_whitespace)
        })
}

fn fibre_channel(report: &mut Report, source: &Value) {
    let (names, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    if names.is_empty() && ids.is_empty() {
        report.miss("targetWWNs", "must specify either targetWWNs or wwids, but not both");
    }
    if !names.is_empty() && !ids.is_empty() {
        let why = "targetWWNs and wwids can not be specified simultaneously";
        report.bad("targetWWNs", &source["targetWWNs"], why);
    }
    if !names.is_empty() {
        match source["lun"].as_i64() {
            None => report.miss("lun", "lun is required if targetWWNs is specified"),
            Some(_) => report.between(source, "lun", 0, 255),
        }
    }
}

fn quobyte(report: &mut Report, source: &Value) {
    let why = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        report.miss("registry", why);
    } else if text(source, "tenant").len() >= 65 {
        report.miss("tenant", "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in registry.split(',') {
            let host = pair.rsplit_once(':').map(|(host, _)| host);
            if host.is_none_or(|h| h.contains(':') && !(h.starts_with('[') && h.ends_with(']'))) {
                report.bad("registry", registry, why);
            }
        }
    }
    report.need(source, "volume");
}

fn azure_disk(report: &mut Report, source: &Value) {
    need_all(report, source, &["diskName", "diskURI"]);
    report.maybe_choice(source, "cachingMode", &["None", "ReadOnly", "ReadWrite"]);
    report.maybe_choice(source, "kind", &["Dedicated", "Managed", "Shared"]);
    let uri = text(source, "diskURI");
    let managed = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    let blob = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    match text(source, "kind") {
        "" => {}
        "Managed" if uri.starts_with("/subscriptions/") => {}
        "Managed" => report.at("diskURI", |r| r.not_supported(uri, &[managed])),
        _ if uri.starts_with("https://") => {}
        _ => report.at("diskURI", |r| r.not_supported(uri, &[blob])),
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

/// Where a container mounts its volumes.
pub fn mounts(report: &mut Report, item: &Value, context: &Context) {
    let mut seen: Vec<&str> = Vec::new();
    let devices = list(item, "volumeDevices");
    for (index, mount) in list(item, "volumeMounts").iter().enumerate() {
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
        report.at("volumeMounts", |r| {
            r.index(index, |r| {
                r.need(mount, "name");
                if !context.has_volume(name) {
                    r.at("name", |r| r.not_found(name));
                }
                r.need(mount, "mountPath");
                if seen.contains(&path) {
                    r.bad("mountPath", path, "must be unique");
                }
                seen.push(path);
                if devices.iter().any(|d| text(d, "name") == name) {
                    r.bad("name", name, "must not already exist in volumeDevices");
                }
                if devices.iter().any(|d| text(d, "devicePath") == path) {
                    r.bad("mountPath", path, "must not already exist as a path in volumeDevices");
                }
                if !sub.is_empty() && !expression.is_empty() {
                    r.bad("subPathExpr", expression, "subPathExpr and subPath are mutually exclusive");
                }
            });
            // From here on upstream names the list, not the mount.
            r.at("subPath", |r| descending(r, sub));
            r.at("subPathExpr", |r| descending(r, expression));
            r.maybe_choice(mount, "mountPropagation", &["Bidirectional", "HostToContainer", "None"]);
            let propagation = text(mount, "mountPropagation");
            if propagation == "Bidirectional" && item["securityContext"]["privileged"] != true {
                let why = "Bidirectional mount propagation is available only to privileged containers";
                r.refuse("mountPropagation", why);
            }
            if ["Enabled", "IfPossible"].contains(&text(mount, "recursiveReadOnly")) {
                if mount["readOnly"] != true {
                    r.refuse("recursiveReadOnly", "may only be specified when readOnly is true");
                }
                if !["", "None"].contains(&propagation) {
                    let why = "may only be specified when mountPropagation is None or not specified";
                    r.refuse("recursiveReadOnly", why);
                }
            }
            r.maybe_choice(mount, "recursiveReadOnly", &["Disabled", "Enabled", "IfPossible"]);
        });
    }
}

/// Block devices of a container.
pub fn devices(report: &mut Report, item: &Value, context: &Context) {
    let (mut names, mut paths): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mounts = list(item, "volumeMounts");
    report.each(item, "volumeDevices", |r, device| {
        let (name, path) = (text(device, "name"), text(device, "devicePath"));
        r.need(device, "name");
        if names.contains(&name) {
            r.bad("name", name, "must be unique");
        }
        match context.volume(name) {
            None => r.at("name", |r| r.not_found(name)),
            Some(volume) if volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null() => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                r.bad("name", name, why);
            }
            Some(_) => {}
        }
        r.need(device, "devicePath");
        if paths.contains(&path) {
            r.bad("devicePath", path, "must be unique");
        }
        if path.split('/').any(|part| part == "..") {
            r.bad("devicePath", path, "can not contain backsteps ('..')");
        } else {
            paths.push(path);
        }
        if mounts.iter().any(|m| text(m, "name") == name) {
            r.bad("name", name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|m| text(m, "mountPath") == path) {
            r.bad("devicePath", path, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.push(name);
        }
    });
}

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
            "iscsi" => {
                iscsi(r, source, "must be valid format");
                if source["initiatorName"].is_string() {
                    let portal = text(source, "targetPortal");
                    long_portal(r, "targetportal", portal, name, portal);
                }
                r.with(source, "secretRef", |r, s| {
                    r.need(s, "name");
                });
            }
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
                    r.named(source, "endpointsNamespace", names::dns_label);
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

/// A nameserver or another address in a list.
pub fn address(report: &mut Report, text: &str) {
    report.complaints(text, ip::complaints(text));
}
