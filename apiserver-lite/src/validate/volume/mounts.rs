//! How containers mount volumes, as files or as block devices.

use serde_json::Value;

use super::super::pod::Context;
use super::super::{list, text};
use super::descending;
use crate::field_error::Report;

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
            });
            // Of some things upstream names the list, not the mount.
            r.at("subPath", |r| descending(r, sub));
            if !sub.is_empty() && !expression.is_empty() {
                let why = "subPathExpr and subPath are mutually exclusive";
                r.index(index, |r| r.bad("subPathExpr", expression, why));
            }
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
