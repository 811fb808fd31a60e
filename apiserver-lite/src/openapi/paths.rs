//! Paths and operations of the registry.

use serde_json::{Map, Value, json};

use super::Format;
use super::schemas::Schemas;
use crate::resource::{Resource, Verbs};

/// Every path of some resources.
pub(super) fn all(resources: &[&Resource], format: Format, schemas: &mut Schemas) -> Value {
    let mut out = Map::new();
    for resource in resources {
        let root = match &*resource.group {
            "" => format!("/api/{}", resource.version),
            group => format!("/apis/{group}/{}", resource.version),
        };
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{root}{scope}/{}", resource.plural);
        let reference = schemas.of(resource);
        let mut of = |path: String, wanted: &[(Verbs, &str, &str)]| {
            let mut operations = Map::new();
            for (verb, method, action) in wanted {
                if resource.verbs.contains(*verb) {
                    operations.insert((*method).into(), operation(resource, action, &reference, format));
                }
            }
            if !operations.is_empty() {
                out.insert(path.into(), operations.into());
            }
        };
        if resource.namespaced {
            of(format!("{root}/{}", resource.plural), &[(Verbs::LIST, "get", "list")]);
        }
        of(
            format!("{collection}/{{name}}"),
            &[
                (Verbs::GET, "get", "get"),
                (Verbs::UPDATE, "put", "put"),
                (Verbs::PATCH, "patch", "patch"),
                (Verbs::DELETE, "delete", "delete"),
            ],
        );
        of(
            collection,
            &[
                (Verbs::LIST, "get", "list"),
                (Verbs::CREATE, "post", "post"),
                (Verbs::DELETE_COLLECTION, "delete", "deletecollection"),
            ],
        );
    }
    out.into()
}

fn parameter(name: &str, kind: &str, format: Format) -> Value {
    match format {
        Format::V2 => json!({"name": name, "in": "query", "type": kind, "uniqueItems": true}),
        Format::V3 => json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}}),
    }
}

const JSON: &str = "application/json";
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

fn operation(resource: &Resource, action: &str, reference: &Value, format: Format) -> Value {
    let mut parameters: Vec<Value> = match action {
        "post" | "put" | "patch" => {
            ["dryRun", "fieldManager", "fieldValidation"].map(|n| parameter(n, "string", format)).into()
        }
        "list" | "deletecollection" => ["continue", "fieldSelector", "labelSelector", "resourceVersion"]
            .map(|n| parameter(n, "string", format))
            .into(),
        _ => Vec::new(),
    };
    if action == "patch" {
        parameters.push(parameter("force", "boolean", format));
    }
    let gvk = json!({"group": &*resource.group, "version": &*resource.version, "kind": &*resource.kind});
    let id = format!("{action}{}{}{}", resource.group.replace('.', ""), resource.version, resource.kind);
    let mut out = json!({
        "operationId": id, "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk,
    });
    let media: &[&str] = if action == "patch" { &PATCHES } else { &[JSON] };
    let has_body = matches!(action, "post" | "put" | "patch");
    match format {
        Format::V2 => {
            if has_body {
                parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": reference}));
                out["consumes"] = json!(media);
            }
            out["produces"] = json!([JSON]);
            out["responses"] = json!({"200": {"description": "OK", "schema": reference}});
        }
        Format::V3 => {
            if has_body {
                let content: Map<_, _> = media.iter().map(|m| (*m, json!({"schema": reference}))).collect();
                out["requestBody"] = json!({"required": true, "content": content});
            }
            out["responses"] = json!({"200": {"description": "OK", "content": {JSON: {"schema": reference}}}});
        }
    }
    if !parameters.is_empty() {
        out["parameters"] = parameters.into();
    }
    out
}
