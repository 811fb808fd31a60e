//! DefaultStorageClass, StorageObjectInUseProtection, PersistentVolumeClaimResize and DefaultIngressClass.

use serde_json::{Value, json};

use super::{Call, Operation, resources};
use crate::status::Result;
use crate::store::{ResourceId, Store};

/// Name of the newest class that an annotation marks as the default; of equally old ones, the first by name.
fn default_class(store: &Store, classes: &str, annotations: &[&str]) -> Option<String> {
    let snapshot = store.snapshot(&ResourceId::from(classes));
    let classes = snapshot.range(None, None).map(|o| o.value());
    let marked = classes.filter(|c| annotations.iter().any(|a| c["metadata"]["annotations"][*a] == "true"));
    let age = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    // In order of names, so that a later one has to be newer to win.
    let newest = marked.reduce(|best, next| if age(&next) > age(&best) { next } else { best })?;
    newest["metadata"]["name"].as_str().map(Into::into)
}

/// The name of the class of a claim or a volume, which may be empty; an annotation of old counts before the field.
pub fn class_of(object: &Value) -> Option<&str> {
    let annotated = object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].as_str();
    annotated.or(object["spec"]["storageClassName"].as_str())
}

/// The class for claims that do not say which they are to have.
pub fn default_storage_class_name(store: &Store) -> Option<String> {
    const MARKS: [&str; 2] =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    default_class(store, "storageclasses.storage.k8s.io", &MARKS)
}

pub fn default_storage_class(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !call.is("", "persistentvolumeclaims") || call.operation != Operation::Create || class_of(new).is_some() {
        return Ok(());
    }
    if let Some(class) = default_storage_class_name(&call.server.store) {
        new["spec"]["storageClassName"] = class.into();
    }
    Ok(())
}

pub fn default_ingress_class(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !call.is("networking.k8s.io", "ingresses") || call.operation != Operation::Create {
        return Ok(());
    }
    let annotated = !new["metadata"]["annotations"]["kubernetes.io/ingress.class"].is_null();
    if annotated || !new["spec"]["ingressClassName"].is_null() {
        return Ok(());
    }
    const MARKS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];
    if let Some(class) = default_class(&call.server.store, "ingressclasses.networking.k8s.io", &MARKS) {
        new["spec"]["ingressClassName"] = class.into();
    }
    Ok(())
}

/// Claims, volumes and classes of attributes stay until their protection controller has seen that nobody uses them.
pub fn protect(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if call.operation != Operation::Create {
        return Ok(());
    }
    let finalizer = match () {
        () if call.is("", "persistentvolumes") => "kubernetes.io/pv-protection",
        () if call.is("", "persistentvolumeclaims") => "kubernetes.io/pvc-protection",
        () if call.is("storage.k8s.io", "volumeattributesclasses") => "kubernetes.io/vac-protection",
        () => return Ok(()),
    };
    match new["metadata"].get_mut("finalizers").and_then(Value::as_array_mut) {
        Some(list) if list.iter().any(|f| f == finalizer) => {}
        Some(list) => list.push(finalizer.into()),
        None => new["metadata"]["finalizers"] = json!([finalizer]),
    }
    Ok(())
}

/// A claim grows only when it is bound and its class says that it can.
pub fn resize(call: &Call<'_>, new: &Value) -> Result<()> {
    let Some(old) = call.old.filter(|_| call.is("", "persistentvolumeclaims") && call.operation == Operation::Update)
    else {
        return Ok(());
    };
    let size = |claim: &Value| {
        let requests = resources::parse(&claim["spec"]["resources"]["requests"]);
        requests.get("storage").copied().unwrap_or_default()
    };
    if size(new) <= size(old) {
        return Ok(());
    }
    if old["status"]["phase"] != "Bound" {
        return Err(call.refuse(Some(new), "Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(new).filter(|c| !c.is_empty() && class_of(old) == Some(*c));
    let class = class.and_then(|c| call.server.store.get(&"storageclasses.storage.k8s.io".into(), "", c));
    if class.is_some_and(|c| c.value()["allowVolumeExpansion"] == true) {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
               support resize";
    Err(call.refuse(Some(new), why))
}
