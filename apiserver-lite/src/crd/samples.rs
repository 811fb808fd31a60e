//! Definitions and objects for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::resources;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::store::ObjectRef;
use crate::write::{self, Target, WriteOptions};

/// A definition of `foos.g.io` in a generation, whose first version is the stored one.
pub fn definition(generation: i64, versions: &[Value]) -> Value {
    let version = |(place, version): (usize, &Value)| {
        let mut version = version.clone();
        version["served"] = true.into();
        version["storage"] = (place == 0).into();
        version
    };
    let versions: Vec<Value> = versions.iter().enumerate().map(version).collect();
    let names = json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.g.io", "uid": "u", "generation": generation},
        "spec": {"group": "g.io", "scope": "Namespaced", "names": names, "versions": versions},
        "status": {"acceptedNames": names, "storedVersions": ["v1"]},
    })
}

/// A version whose spec has fields of text, of which clients select by some.
pub fn version(name: &str, fields: &[&str], selectable: &[&str]) -> Value {
    let mut properties = json!({});
    for field in fields {
        properties[*field] = json!({"type": "string"});
    }
    let spec = json!({"type": "object", "properties": properties});
    let paths: Vec<Value> = selectable.iter().map(|field| json!({"jsonPath": format!(".spec.{field}")})).collect();
    json!({"name": name, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
        "selectableFields": paths})
}

/// The served resource of a version.
pub fn served(definition: &Value, version: &str) -> Arc<Resource> {
    let all = resources(definition, 0, None);
    all.into_iter().find(|resource| *resource.version == *version).expect("it is served")
}

/// A kind in its first generation, and in its second in version `v1`, which nobody selects by, and `v2`, which selects by
/// color.
pub fn colors() -> [Arc<Resource>; 3] {
    let first = definition(1, &[version("v1", &["color"], &[])]);
    let second = definition(2, &[version("v1", &["color"], &[]), version("v2", &["color"], &["color"])]);
    [served(&first, "v1"), served(&second, "v1"), served(&second, "v2")]
}

pub fn color(name: &str, color: &str) -> Value {
    json!({"apiVersion": "g.io/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "default"},
        "spec": {"color": color}})
}

/// Creates an object as a client of a resource, whose version it is given.
pub async fn create(server: &ApiServer, resource: &Resource, mut value: Value) -> ObjectRef {
    value["apiVersion"] = resource.api_version().into();
    let options = WriteOptions::default();
    write::create(server, resource, "default", value, &options, &options.user).await.expect("a good object")
}

/// Gives an object another label, as a client of a resource.
pub async fn label(server: &ApiServer, resource: &Resource, name: &str, label: &str) -> ObjectRef {
    let target = Target { resource, subresource: "", namespace: "default", name };
    let options = WriteOptions::default();
    let labelled = write::update(server, target, &options, |_, old| {
        let mut value = old.clone();
        value["metadata"]["labels"]["l"] = label.into();
        Ok(value)
    });
    labelled.await.expect("it is there")
}
