//! Paths and operations of the registry.

use serde_json::{Map, Value, json};

use super::Format;
use super::parameters::{Named, Parameters, body, body_schema};
use super::schemas::Schemas;
use crate::resource::{Resource, Verbs};

/// Every path of some resources.
pub(super) fn all(
    resources: &[&Resource],
    format: Format,
    schemas: &mut Schemas,
    parameters: &mut Parameters,
) -> Value {
    let mut out = Map::new();
    for resource in resources {
        let root = match &*resource.group {
            "" => format!("/api/{}", resource.version),
            group => format!("/apis/{group}/{}", resource.version),
        };
        let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{root}{scope}/{}", resource.plural);
        let mut of = |path: String, wanted: &[(Verbs, &str, &str)]| {
            let wanted = wanted.iter().filter(|(verb, ..)| resource.verbs.contains(*verb));
            let actions: Vec<(&str, &str)> = wanted.map(|(_, method, action)| (*method, *action)).collect();
            if !actions.is_empty() {
                let place = Place { resource, path: &path, format };
                let item = place.item(&actions, schemas, parameters);
                out.insert(path.into(), item);
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

const JSON: &str = "application/json";
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// A path of a resource.
struct Place<'a> {
    resource: &'a Resource,
    path: &'a str,
    format: Format,
}

impl Place<'_> {
    /// The operations of the path. Parameters that all of them have are the path's.
    fn item(&self, actions: &[(&str, &str)], schemas: &mut Schemas, parameters: &mut Parameters) -> Value {
        let custom = self.resource.custom;
        let mut asked: Vec<Named> = actions.iter().map(|(_, action)| parameters.of(action, custom)).collect();
        let mut common = asked.first().cloned().unwrap_or_default();
        common.retain(|name, _| asked.iter().all(|named| named.contains_key(name)));
        let mut item = Map::new();
        for ((method, action), mut own) in actions.iter().zip(asked.drain(..)) {
            own.retain(|name, _| !common.contains_key(name));
            item.insert((*method).into(), self.operation(action, own, schemas, parameters));
        }
        common.extend(parameters.of_path(self.path, self.resource));
        item.insert("parameters".into(), parameters.list(common));
        item.into()
    }

    fn operation(&self, action: &str, mut asked: Named, schemas: &mut Schemas, parameters: &mut Parameters) -> Value {
        let resource = self.resource;
        let answer = match action {
            "list" => schemas.list_of(resource),
            "deletecollection" => schemas.meta("Status"),
            "delete" if crate::write::returns_status(resource) => schemas.meta("Status"),
            _ => schemas.of(resource),
        };
        let mut out = json!({
            "operationId": self.id(action), "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind":
                {"group": &*resource.group, "version": &*resource.version, "kind": &*resource.kind},
        });
        // Only for types with merge keys there is the last one.
        let patches = if resource.custom { &PATCHES[..3] } else { &PATCHES };
        let media = if action == "patch" { patches } else { &[JSON] };
        let sent = body_schema(resource, action, schemas);
        match self.format {
            Format::V2 => {
                if let Some((schema, required)) = sent {
                    asked.insert("body".into(), body(&schema, required));
                    out["consumes"] = json!(media);
                }
                out["produces"] = json!([JSON]);
                out["responses"] = json!({"200": {"description": "OK", "schema": answer}});
            }
            Format::V3 => {
                if let Some((schema, required)) = sent {
                    let content: Map<_, _> = media.iter().map(|m| (*m, json!({"schema": schema}))).collect();
                    out["requestBody"] = json!({"content": content});
                    if required {
                        out["requestBody"]["required"] = true.into();
                    }
                }
                out["responses"] = json!({"200": {"description": "OK", "content": {JSON: {"schema": answer}}}});
            }
        }
        if !asked.is_empty() {
            out["parameters"] = parameters.list(asked);
        }
        out
    }

    /// A name that no other operation has, such as `readAppsV1NamespacedDeployment`.
    fn id(&self, action: &str) -> String {
        let resource = self.resource;
        let verb = match action {
            "get" => "read",
            "put" => "replace",
            "post" => "create",
            "deletecollection" => "delete",
            other => other,
        };
        let group = match &*resource.group {
            "" => "Core".to_owned(),
            group => group.trim_end_matches(".k8s.io").split(['.', '-']).map(capital).collect(),
        };
        let collection = if action == "deletecollection" { "Collection" } else { "" };
        let (before, after) = match resource.namespaced {
            true if self.path.contains("{namespace}") => ("Namespaced", ""),
            true => ("", "ForAllNamespaces"),
            false => ("", ""),
        };
        format!("{verb}{group}{}{collection}{before}{}{after}", capital(&resource.version), resource.kind)
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::resource::table;

    /// Paths and schemas of all that is built in.
    fn documents(format: Format) -> (Value, Value) {
        let resources = table::built_in();
        let all_of: Vec<&Resource> = resources.iter().collect();
        let (mut schemas, mut parameters) = (Schemas::new(format), Parameters::new(format));
        let paths = all(&all_of, format, &mut schemas, &mut parameters);
        (paths, schemas.finish())
    }

    #[test]
    fn a_list_answers_with_the_type_of_lists() {
        for (format, place) in [(Format::V2, "/schema"), (Format::V3, "/content/application~1json/schema")] {
            let (paths, schemas) = documents(format);
            let answer = |path: &str, method: &str| {
                paths[path][method]["responses"]["200"].pointer(place).cloned().unwrap_or_default()
            };
            let (one, some) = (
                "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
                "/apis/apps/v1/namespaces/{namespace}/deployments",
            );
            let deployments = "io.k8s.api.apps.v1.DeploymentList";
            let status = format.reference("io.k8s.apimachinery.pkg.apis.meta.v1.Status");
            assert_eq!(answer(some, "get"), format.reference(deployments));
            assert_eq!(answer("/apis/apps/v1/deployments", "get"), format.reference(deployments));
            assert_eq!(answer(some, "post"), format.reference("io.k8s.api.apps.v1.Deployment"));
            assert_eq!(answer(some, "delete"), status);
            assert_eq!(answer(one, "delete"), status);
            assert_eq!(
                answer("/api/v1/namespaces/{namespace}/pods/{name}", "delete"),
                format.reference("io.k8s.api.core.v1.Pod")
            );
            let list = &schemas[deployments];
            assert_eq!(list["required"], json!(["items"]));
            assert_eq!(
                list["x-kubernetes-group-version-kind"],
                json!([{"group": "apps", "version": "v1", "kind": "DeploymentList"}])
            );
            assert!(schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"].is_object());
            for resource in table::built_in().iter().filter(|r| r.verbs.contains(Verbs::LIST)) {
                let gvk =
                    json!([{"group": &*resource.group, "version": &*resource.version, "kind": &*resource.list_kind}]);
                let named = |schema: &&Value| schema["x-kubernetes-group-version-kind"] == gvk;
                assert!(schemas.as_object().into_iter().flat_map(Map::values).any(|s| named(&s)), "{gvk}");
            }
        }
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let (paths, _) = documents(Format::V3);
        let items = paths.as_object().into_iter().flat_map(Map::values).filter_map(Value::as_object);
        let all: Vec<&str> = items.flat_map(Map::values).filter_map(|op| op["operationId"].as_str()).collect();
        let names: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), names.len());
        for name in [
            "listCoreV1PodForAllNamespaces",
            "deleteAppsV1CollectionNamespacedDeployment",
            "readRbacAuthorizationV1ClusterRole",
            "replaceCoreV1NamespacedConfigMap",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn parameters_of_every_operation_are_those_of_the_path() {
        let (paths, _) = documents(Format::V3);
        let names = |list: &Value| {
            let all = list.as_array().into_iter().flatten();
            all.filter_map(|p| p["name"].as_str()).collect::<Vec<_>>().join(" ")
        };
        let item = &paths["/api/v1/namespaces/{namespace}/configmaps/{name}"];
        assert_eq!(names(&item["parameters"]), "name namespace pretty");
        assert_eq!(names(&item["patch"]["parameters"]), "dryRun fieldManager fieldValidation force");
        assert_eq!(item["get"]["parameters"], Value::Null);
        let list = &paths["/api/v1/nodes"];
        assert!(names(&list["get"]["parameters"]).contains("allowWatchBookmarks") && list["post"].is_object());
        assert!(names(&paths["/api/v1/pods"]["parameters"]).contains("allowWatchBookmarks"));
    }
}
