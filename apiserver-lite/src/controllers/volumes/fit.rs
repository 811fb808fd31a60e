//! Whether a volume fits a claim, and what cannot be done with one that was given back.

use serde_json::{Value, json};

use super::amount;
use crate::admission::storage::class_of;
use crate::status::quote;
use crate::store::ObjectRef;

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const HOST_PATH: &str = "kubernetes.io/host-path";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// Whether two specs have the same text there, nothing being `default`.
fn same(volume: &Value, claim: &Value, key: &str, default: &str) -> bool {
    volume[key].as_str().unwrap_or(default) == claim[key].as_str().unwrap_or(default)
}

pub(super) fn is_large_enough(volume: &Value, claim: &Value) -> bool {
    amount(&volume["spec"]["capacity"]["storage"]) >= super::wanted(claim)
}

pub(super) fn has_class(volume: &Value, claim: &Value) -> bool {
    class_of(volume).unwrap_or_default() == class_of(claim).unwrap_or_default()
}

pub(super) fn has_attributes_class(volume: &Value, claim: &Value) -> bool {
    same(&volume["spec"], &claim["spec"], "volumeAttributesClassName", "")
}

pub(super) fn has_volume_mode(volume: &Value, claim: &Value) -> bool {
    same(&volume["spec"], &claim["spec"], "volumeMode", "Filesystem")
}

pub(super) fn has_access_modes(volume: &Value, claim: &Value) -> bool {
    let offered = volume["spec"]["accessModes"].as_array();
    let mut modes = claim["spec"]["accessModes"].as_array().into_iter().flatten();
    modes.all(|mode| offered.is_some_and(|o| o.contains(mode)))
}

/// What the status of a claim says of the volume that it has.
pub(super) fn show(volume: &Value, status: &mut Value) {
    status["phase"] = "Bound".into();
    status["accessModes"] = volume["accessModes"].clone();
    // A volume that grew says so itself, and so does one that is given another class of attributes.
    if status["capacity"].is_null() {
        status["capacity"] = json!({"storage": volume["capacity"]["storage"]});
        if let Some(class) = volume["volumeAttributesClassName"].as_str().filter(|class| !class.is_empty()) {
            status["currentVolumeAttributesClassName"] = class.into();
        }
    }
}

/// Why a claim cannot have the volume that it names, in the words and the order of `checkVolumeSatisfyClaim`.
pub(super) fn mismatch(volume: &ObjectRef, value: &Value, claim: &Value) -> Option<String> {
    if volume.keys.deleting {
        return Some(format!("the volume is marked for deletion {}", quote(&volume.key.name)));
    }
    let why = match () {
        () if !is_large_enough(value, claim) => "requested PV is too small",
        () if !has_class(value, claim) => "storageClassName does not match",
        () if !has_attributes_class(value, claim) => "volumeAttributesClassName does not match",
        () if !has_volume_mode(value, claim) => "incompatible volumeMode",
        () if !has_access_modes(value, claim) => "incompatible accessMode",
        () => return None,
    };
    Some(why.to_owned())
}

/// Reason and text of the failure to do with a volume that was given back what its policy asks for; None where somebody
/// else does it or nothing is to be done. There are no plugins here that wipe or remove what is on a volume.
pub(super) fn reclaim_failure(name: &str, volume: &Value) -> Option<(&'static str, String)> {
    let annotation = |key: &str| volume["metadata"]["annotations"][key].as_str().filter(|text| !text.is_empty());
    if annotation(MIGRATED_TO).is_some() {
        return None;
    }
    match volume["spec"]["persistentVolumeReclaimPolicy"].as_str() {
        Some("Retain") | None => None,
        Some("Recycle") => Some(("VolumeFailedRecycle", "No recycler plugin found for the volume!".into())),
        Some("Delete") => match annotation(PROVISIONED_BY) {
            None | Some(HOST_PATH) if volume["spec"]["hostPath"].is_object() => {
                let path = volume["spec"]["hostPath"]["path"].as_str().unwrap_or_default();
                Some(("VolumeFailedDelete", folder_stays(path)))
            }
            Some(provisioner) if !provisioner.starts_with("kubernetes.io/") => None,
            Some(provisioner) => Some(("VolumeFailedDelete", format!("no volume plugin matched name: {provisioner}"))),
            None => {
                // There are plugins for these, which cannot remove anything.
                let why = match ["nfs", "local", "csi"].iter().any(|kind| volume["spec"][*kind].is_object()) {
                    true => "no deletable volume plugin matched",
                    false => "no volume plugin matched",
                };
                let name = quote(name);
                let text = format!("error getting deleter volume plugin for volume {name}: {why}");
                Some(("VolumeFailedDelete", text))
            }
        },
        Some(_) => Some(("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy".into())),
    }
}

/// Why a folder of a node is not removed. Upstream removes those below `/tmp`, on the machine of its controllers, for tests
/// on a single node; nothing here removes files of a machine.
fn folder_stays(path: &str) -> String {
    match path.split_once("/tmp/") {
        Some((_, rest)) if !rest.is_empty() => {
            format!("hostPath volumes are not deleted here: remove {path} on its node, then the volume")
        }
        _ => format!("host_path deleter only supports /tmp/.+ but received provided {path}"),
    }
}

/// Whether a volume was made on demand and goes when nobody needs it.
pub(super) fn is_made_to_go(volume: &Value) -> bool {
    !volume["metadata"]["annotations"][PROVISIONED_BY].is_null()
        && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
}

/// Takes a volume back from a claim that has another one; a user who chose the claim still means that name.
pub(super) fn unbind(volume: &mut Value) {
    let chosen = !volume["metadata"]["annotations"][super::BY_CONTROLLER].is_null();
    let remove = |place: &mut Value, key: &str| drop(place.as_object_mut().and_then(|map| map.remove(key)));
    if !chosen {
        return remove(&mut volume["spec"]["claimRef"], "uid");
    }
    remove(&mut volume["spec"], "claimRef");
    remove(&mut volume["metadata"]["annotations"], super::BY_CONTROLLER);
    if volume["metadata"]["annotations"].as_object().is_some_and(|map| map.is_empty()) {
        remove(&mut volume["metadata"], "annotations");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controllers::volumes::{BY_CONTROLLER, suits};
    use crate::store::Key;

    fn volume(spec: Value) -> (ObjectRef, Value) {
        let resource = crate::resource::Resources::built_in().lookup("", "v1", "persistentvolumes").expect("served");
        let mut value = json!({"metadata": {"name": "v"}, "spec": spec, "status": {"phase": "Available"}});
        let fields = crate::resource::fields::of(&resource, &value);
        let encoded = crate::store::encode(&resource, &mut value, fields, None);
        (encoded.unsaved(Key::new("", "v"), ""), value)
    }

    fn claim(change: &Value) -> Value {
        let mut claim = json!({"metadata": {"namespace": "n", "name": "c", "uid": "u"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        for (key, value) in change.as_object().into_iter().flatten() {
            claim["spec"][key] = value.clone();
        }
        claim
    }

    #[test]
    fn a_claim_shows_what_its_volume_was_made_with_and_keeps_what_became_of_it() {
        let volume = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": "gold"});
        let mut status = json!({"phase": "Pending"});
        show(&volume, &mut status);
        let shown = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "currentVolumeAttributesClassName": "gold"});
        assert_eq!(status, shown);
        let mut other = volume;
        (other["capacity"]["storage"], other["volumeAttributesClassName"]) = ("2Gi".into(), "silver".into());
        show(&other, &mut status);
        assert_eq!(status, shown);
    }

    /// A claim was bound to whatever volume it named.
    #[test]
    fn a_named_volume_has_to_fit_the_claim() {
        let (object, value) = volume(json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}));
        let why = |change: Value| {
            let claim = claim(&change);
            assert_eq!(suits(&object, &value, &claim), mismatch(&object, &value, &claim).is_none());
            mismatch(&object, &value, &claim).unwrap_or_default()
        };
        assert_eq!(why(json!({})), "");
        assert_eq!(why(json!({"resources": {"requests": {"storage": "2Gi"}}})), "requested PV is too small");
        assert_eq!(why(json!({"storageClassName": "fast"})), "storageClassName does not match");
        let other = json!({"volumeAttributesClassName": "gold"});
        assert_eq!(why(other), "volumeAttributesClassName does not match");
        assert_eq!(why(json!({"volumeMode": "Block"})), "incompatible volumeMode");
        assert_eq!(why(json!({"accessModes": ["ReadWriteMany"]})), "incompatible accessMode");
    }

    #[test]
    fn a_volume_kept_for_a_claim_has_to_be_large_enough_as_well() {
        let kept = json!({"namespace": "n", "name": "c"});
        let spec = json!({"capacity": {"storage": "1Gi"}, "claimRef": kept, "storageClassName": "other"});
        let (object, value) = volume(spec);
        assert!(suits(&object, &value, &claim(&json!({}))), "its class does not matter");
        assert!(!suits(&object, &value, &claim(&json!({"resources": {"requests": {"storage": "2Gi"}}}))));
    }

    #[test]
    fn a_volume_is_taken_back_from_a_claim_that_has_another_one() {
        let reference = json!({"name": "c", "uid": "u"});
        let mut by_us = json!({"metadata": {"annotations": {BY_CONTROLLER: "yes"}},
            "spec": {"claimRef": reference}});
        unbind(&mut by_us);
        assert_eq!(by_us, json!({"metadata": {}, "spec": {}}));
        let mut by_user = json!({"metadata": {}, "spec": {"claimRef": reference}});
        unbind(&mut by_user);
        assert_eq!(by_user["spec"]["claimRef"], json!({"name": "c"}));
        let made = json!({"metadata": {"annotations": {PROVISIONED_BY: "d"}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        assert!(is_made_to_go(&made) && !is_made_to_go(&by_user));
    }

    #[test]
    fn what_nobody_can_delete_or_recycle_has_failed() {
        let said = |policy: &str, by: &str| {
            let value = json!({"metadata": {"annotations": {PROVISIONED_BY: by}},
                "spec": {"persistentVolumeReclaimPolicy": policy}});
            reclaim_failure("v", &value)
        };
        assert_eq!(said("Retain", ""), None);
        assert_eq!(said("Delete", "driver.example.com"), None, "its provisioner does it");
        let text = "error getting deleter volume plugin for volume \"v\": no volume plugin matched";
        assert_eq!(said("Delete", ""), Some(("VolumeFailedDelete", text.to_owned())));
        let by_source = |spec: Value, by: &str| {
            let mut value = json!({"metadata": {"annotations": {PROVISIONED_BY: by}}, "spec": spec});
            value["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
            reclaim_failure("v", &value).expect("nobody does it").1
        };
        let text = "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched";
        assert_eq!(by_source(json!({"local": {"path": "/disk"}}), ""), text);
        assert_eq!(by_source(json!({"nfs": {"server": "s", "path": "/"}}), ""), text);
        let text = "host_path deleter only supports /tmp/.+ but received provided /srv/v";
        assert_eq!(by_source(json!({"hostPath": {"path": "/srv/v"}}), ""), text);
        assert_eq!(by_source(json!({"hostPath": {"path": "/srv/v"}}), HOST_PATH), text);
        let text = "hostPath volumes are not deleted here: remove /tmp/v on its node, then the volume";
        assert_eq!(by_source(json!({"hostPath": {"path": "/tmp/v"}}), ""), text);
        let recycle = said("Recycle", "driver.example.com").expect("nobody does it");
        assert_eq!(recycle, ("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned()));
    }
}
