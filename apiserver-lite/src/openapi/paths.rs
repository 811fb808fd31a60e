//! Paths and operations of the registry.

use serde_json::{Map, Value, json};

use super::Format;
use super::media::{consumed, produced};
use super::parameters::{Named, Parameters, body, body_schema};
use super::routes::{self, Action, Route};
use super::schemas::Schemas;
use crate::resource::Resource;

/// A document in the making.
pub(super) struct Draft {
    pub format: Format,
    /// Whether clients may speak CBOR.
    pub cbor: bool,
    pub schemas: Schemas,
    pub parameters: Parameters,
    paths: Map<String, Value>,
}

/// A response without a body, which every operation can have.
const UNAUTHORIZED: (&str, &str) = ("401", "Unauthorized");

impl Draft {
    pub fn new(format: Format, cbor: bool) -> Self {
        let (schemas, parameters) = (Schemas::new(format), Parameters::new(format));
        Draft { format, cbor, schemas, parameters, paths: Map::new() }
    }

    /// Adds every path of a resource.
    pub fn add(&mut self, resource: &Resource) {
        for route in routes::of(resource) {
            let item = self.item(&route);
            self.paths.insert(route.path.into(), item);
        }
    }

    /// Adds a path that is of no resource.
    pub fn add_path(&mut self, path: String, item: Value) {
        self.paths.insert(path.into(), item);
    }

    /// Paths, schemas and, in the older format, parameters.
    pub fn finish(self) -> [Value; 3] {
        [self.paths.into(), self.schemas.finish(), self.parameters.finish()]
    }

    /// The operations of a path. Parameters that all of them have are the path's.
    fn item(&mut self, route: &Route<'_>) -> Value {
        let asked: Vec<Named> = route.operations.iter().map(|(_, action)| self.parameters.of(route, *action)).collect();
        let mut common = asked.first().cloned().unwrap_or_default();
        common.retain(|name, _| asked.iter().all(|named| named.contains_key(name)));
        let mut item = Map::new();
        for ((method, action), mut own) in route.operations.iter().zip(asked) {
            own.retain(|name, _| !common.contains_key(name));
            item.insert((*method).into(), self.operation(route, method, *action, own));
        }
        common.extend(self.parameters.of_path(route));
        item.insert("parameters".into(), self.parameters.list(common));
        item.into()
    }

    fn operation(&mut self, route: &Route<'_>, method: &str, action: Action, mut asked: Named) -> Value {
        let resource = route.resource;
        let answer = self.answer(route, action);
        let mut out = json!({
            "description": route.description(method, action),
            "operationId": route.id(method, action),
            "tags": [routes::tag(&resource.group, &resource.version)],
            "x-kubernetes-action": action.name(),
            "x-kubernetes-group-version-kind": route.group_version_kind(),
        });
        let sent = body_schema(route, action, &mut self.schemas);
        let consumed = consumed(route, action, self.cbor);
        if self.format == Format::V2 {
            out["consumes"] = json!(consumed);
        }
        match (sent, self.format) {
            (Some((schema, required)), Format::V2) => drop(asked.insert("body".into(), body(&schema, required))),
            (Some((schema, required)), Format::V3) => {
                out["requestBody"] = json!({"content": content(&consumed, &schema)});
                if required {
                    out["requestBody"]["required"] = true.into();
                }
            }
            (None, _) => {}
        }
        if !asked.is_empty() {
            out["parameters"] = self.parameters.list(asked);
        }
        self.answers(&mut out, codes(action, resource.custom), &produced(route, action, self.cbor), &answer);
        out
    }

    /// Writes down how an operation may answer: codes with what they mean, media types, and a schema.
    pub fn answers(&self, operation: &mut Value, codes: &[(&str, &str)], media: &[&str], schema: &Value) {
        let (member, mut body) = match self.format {
            Format::V2 => ("schema", schema.clone()),
            Format::V3 => ("content", content(media, schema)),
        };
        // The same for all codes: documents are large enough without copies.
        body.share();
        let mut responses = Map::new();
        for (code, text) in codes {
            let mut response = json!({"description": text});
            response[member] = body.clone();
            responses.insert((*code).into(), response);
        }
        responses.insert(UNAUTHORIZED.0.into(), json!({"description": UNAUTHORIZED.1}));
        operation["responses"] = responses.into();
        if self.format == Format::V2 {
            operation["produces"] = json!(media);
            operation["schemes"] = json!(["https"]);
        }
    }

    /// The schema of what an operation answers.
    fn answer(&mut self, route: &Route<'_>, action: Action) -> Value {
        let resource = route.resource;
        match action {
            _ if route.is_text(action) => json!({"type": "string"}),
            Action::List => self.schemas.list_of(resource),
            Action::Watch | Action::WatchList => self.schemas.meta("WatchEvent"),
            Action::DeleteCollection => self.schemas.meta("Status"),
            Action::Delete if tells_status(resource) => self.schemas.meta("Status"),
            _ => self.schemas.of_route(route),
        }
    }
}

/// The same schema for each of some media types.
fn content(media: &[&str], schema: &Value) -> Value {
    let mut one = json!({"schema": schema});
    one.share();
    media.iter().map(|name| (*name, one.clone())).collect::<Map<_, _>>().into()
}

/// Whether the document says that a delete answers with a `Status`. Upstream's says so of namespaces too, which answer
/// with themselves while they are being emptied.
fn tells_status(resource: &Resource) -> bool {
    crate::write::returns_status(resource) || resource.group.is_empty() && &*resource.plural == "namespaces"
}

/// Codes of answers, and what they mean.
fn codes(action: Action, custom: bool) -> &'static [(&'static str, &'static str)] {
    const ALL: [(&str, &str); 3] = [("200", "OK"), ("201", "Created"), ("202", "Accepted")];
    match action {
        Action::Post => &ALL,
        // An apply creates also what is custom, but its document does not say so.
        Action::Patch if custom => &ALL[..1],
        Action::Put | Action::Patch => &ALL[..2],
        Action::Delete => &[ALL[0], ALL[2]],
        _ => &ALL[..1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Verbs, table};

    /// Paths and schemas of all that is built in.
    fn documents(format: Format) -> (Value, Value) {
        let mut draft = Draft::new(format, false);
        table::built_in().iter().for_each(|resource| draft.add(resource));
        let [paths, schemas, _] = draft.finish();
        (paths, schemas)
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
            assert_eq!(answer("/api/v1/namespaces/{name}", "delete"), status);
            for (path, method, expected) in [
                ("/api/v1/namespaces/{namespace}/pods/{name}", "delete", "io.k8s.api.core.v1.Pod"),
                ("/api/v1/namespaces/{namespace}/pods/{name}/binding", "post", "io.k8s.api.core.v1.Binding"),
                ("/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post", "io.k8s.api.policy.v1.Eviction"),
                (
                    "/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
                    "post",
                    "io.k8s.api.authentication.v1.TokenRequest",
                ),
                ("/api/v1/watch/pods", "get", "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"),
            ] {
                assert_eq!(answer(path, method), format.reference(expected), "{method} {path}");
            }
            let scale = answer(&format!("{one}/scale"), "put");
            assert_eq!(scale, format.reference("io.k8s.api.autoscaling.v1.Scale"));
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
    fn every_verb_has_its_codes() {
        let (paths, _) = documents(Format::V2);
        let codes = |path: &str, method: &str| {
            let responses = paths[path][method]["responses"].as_object();
            let mut codes: Vec<&str> = responses.into_iter().flatten().map(|(code, _)| code.as_str()).collect();
            codes.sort_unstable();
            codes.join(" ")
        };
        const MAPS: &str = "/api/v1/namespaces/{namespace}/configmaps";
        const POD: &str = "/api/v1/namespaces/{namespace}/pods/{name}";
        for (path, method, expected) in [
            (MAPS.to_owned(), "get", "200 401"),
            (MAPS.to_owned(), "post", "200 201 202 401"),
            (MAPS.to_owned(), "delete", "200 401"),
            (format!("{MAPS}/{{name}}"), "get", "200 401"),
            (format!("{MAPS}/{{name}}"), "put", "200 201 401"),
            (format!("{MAPS}/{{name}}"), "patch", "200 201 401"),
            (format!("{MAPS}/{{name}}"), "delete", "200 202 401"),
            (format!("{POD}/eviction"), "post", "200 201 202 401"),
            (format!("{POD}/exec"), "post", "200 401"),
        ] {
            assert_eq!(codes(&path, method), expected, "{method} {path}");
        }
    }

    #[test]
    fn operations_say_what_they_are_about() {
        for format in [Format::V2, Format::V3] {
            let (paths, _) = documents(format);
            let of = |path: &str, method: &str, member: &str| paths[path][method][member].clone();
            let exec = "/api/v1/namespaces/{namespace}/pods/{name}/exec";
            assert_eq!(of(exec, "get", "x-kubernetes-action"), "connect");
            let kind = |group: &str, kind: &str| json!({"group": group, "version": "v1", "kind": kind});
            assert_eq!(of(exec, "get", "x-kubernetes-group-version-kind"), kind("", "PodExecOptions"));
            let scale = "/apis/apps/v1/namespaces/{namespace}/replicasets/{name}/scale";
            assert_eq!(of(scale, "patch", "x-kubernetes-group-version-kind"), kind("autoscaling", "Scale"));
            assert_eq!(of(scale, "patch", "tags"), json!(["apps_v1"]));
            assert_eq!(of("/api/v1/watch/nodes", "get", "x-kubernetes-action"), "watchlist");
            assert_eq!(of("/api/v1/nodes/{name}/proxy/{path}", "head", "tags"), json!(["core_v1"]));
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
        const POD: &str = "/api/v1/namespaces/{namespace}/pods/{name}";
        for (sub, expected) in [
            ("exec", "command container name namespace stderr stdin stdout tty"),
            ("portforward", "name namespace ports"),
            ("proxy", "name namespace path"),
            ("proxy/{path}", "name namespace path path"),
            (
                "log",
                "container follow insecureSkipTLSVerifyBackend limitBytes name namespace pretty previous sinceSeconds \
                 stream tailLines timestamps",
            ),
            ("binding", "dryRun fieldManager fieldValidation name namespace pretty"),
            ("status", "name namespace pretty"),
        ] {
            assert_eq!(names(&paths[format!("{POD}/{sub}").as_str()]["parameters"]), expected, "{sub}");
        }
        let watch = names(&paths["/api/v1/watch/namespaces/{namespace}/pods/{name}"]["parameters"]);
        assert!(watch.contains(" labelSelector limit name namespace pretty ") && watch.ends_with("watch"), "{watch}");
    }
}
