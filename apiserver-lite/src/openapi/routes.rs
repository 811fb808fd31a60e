//! Which operations a resource has and where, from its verbs and subresources alone: the paths and names that
//! kube-apiserver's `endpoints/installer.go` gives them, which generated clients are made of.

use proto::schema::{StructId, TypeSet};
use serde_json::{Value, json};

use crate::resource::{Resource, Subresource, Verbs};

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Get,
    List,
    Watch,
    WatchList,
    Post,
    Put,
    Patch,
    Delete,
    DeleteCollection,
    /// Passes the request on.
    Connect,
}

impl Action {
    /// As `x-kubernetes-action` has it.
    pub fn name(self) -> &'static str {
        match self {
            Action::Get => "get",
            Action::List => "list",
            Action::Watch => "watch",
            Action::WatchList => "watchlist",
            Action::Post => "post",
            Action::Put => "put",
            Action::Patch => "patch",
            Action::Delete => "delete",
            Action::DeleteCollection => "deletecollection",
            Action::Connect => "connect",
        }
    }

    /// As names of operations begin.
    fn verb(self) -> &'static str {
        match self {
            Action::Get => "read",
            Action::Post => "create",
            Action::Put => "replace",
            Action::DeleteCollection => "delete",
            Action::WatchList => "watch",
            other => other.name(),
        }
    }
}

/// A path of a resource, and what can be done there: methods and actions.
pub(super) struct Route<'a> {
    pub resource: &'a Resource,
    pub sub: Option<&'a Subresource>,
    pub path: String,
    pub operations: Vec<(&'static str, Action)>,
}

const ITEM: [(Verbs, &str, Action); 4] = [
    (Verbs::GET, "get", Action::Get),
    (Verbs::UPDATE, "put", Action::Put),
    (Verbs::PATCH, "patch", Action::Patch),
    (Verbs::DELETE, "delete", Action::Delete),
];
const COLLECTION: [(Verbs, &str, Action); 3] = [
    (Verbs::LIST, "get", Action::List),
    (Verbs::CREATE, "post", Action::Post),
    (Verbs::DELETE_COLLECTION, "delete", Action::DeleteCollection),
];
const SUBRESOURCE: [(Verbs, &str, Action); 4] = [
    (Verbs::GET, "get", Action::Get),
    (Verbs::CREATE, "post", Action::Post),
    (Verbs::UPDATE, "put", Action::Put),
    (Verbs::PATCH, "patch", Action::Patch),
];
const CONNECT: [(Verbs, &str, Action); 7] = [
    (Verbs::GET, "get", Action::Connect),
    (Verbs::CREATE, "post", Action::Connect),
    (Verbs::UPDATE, "put", Action::Connect),
    (Verbs::PATCH, "patch", Action::Connect),
    (Verbs::DELETE, "delete", Action::Connect),
    // No verbs are these, and what takes updates is a proxy, which takes everything.
    (Verbs::UPDATE, "head", Action::Connect),
    (Verbs::UPDATE, "options", Action::Connect),
];

/// Every path of a resource that has any operation.
pub(super) fn of<'a>(resource: &'a Resource) -> Vec<Route<'a>> {
    let root = match &*resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let (plural, scope) = (&resource.plural, if resource.namespaced { "/namespaces/{namespace}" } else { "" });
    let item = format!("{root}{scope}/{plural}/{{name}}");
    let mut out = Vec::new();
    let mut add = |sub: Option<&'a Subresource>, path: String, wanted: &[(Verbs, &'static str, Action)]| {
        let verbs = sub.map_or(resource.verbs, |sub| sub.verbs);
        let wanted = wanted.iter().filter(|(verb, ..)| verbs.contains(*verb));
        let operations: Vec<_> = wanted.map(|(_, method, action)| (*method, *action)).collect();
        if !operations.is_empty() {
            out.push(Route { resource, sub, path, operations });
        }
    };
    add(None, format!("{root}{scope}/{plural}"), &COLLECTION);
    add(None, item.clone(), &ITEM);
    if resource.namespaced {
        add(None, format!("{root}/{plural}"), &COLLECTION[..1]);
    }
    // Custom resources can be watched at these paths as well, but no document says so.
    if !resource.custom {
        let list = [(Verbs::WATCH, "get", Action::WatchList)];
        add(None, format!("{root}/watch{scope}/{plural}"), &list);
        add(None, format!("{root}/watch{scope}/{plural}/{{name}}"), &[(Verbs::WATCH, "get", Action::Watch)]);
        if resource.namespaced {
            add(None, format!("{root}/watch/{plural}"), &list);
        }
    }
    for sub in &resource.subresources {
        let path = format!("{item}/{}", sub.name);
        if !connects(sub) {
            add(Some(sub), path, &SUBRESOURCE);
            continue;
        }
        if sub.verbs.contains(Verbs::UPDATE) {
            add(Some(sub), format!("{path}/{{path}}"), &CONNECT);
        }
        add(Some(sub), path, &CONNECT);
    }
    out
}

/// Whether requests for a subresource are passed on. What it is asked with is its kind then.
fn connects(sub: &Subresource) -> bool {
    sub.kind.ends_with("Options")
}

impl Route<'_> {
    /// Group, version and kind of what is sent and answered.
    pub fn kind(&self) -> (&str, &str, &str) {
        let resource = self.resource;
        match self.sub {
            Some(sub) if !sub.version.is_empty() => (&sub.group, &sub.version, &sub.kind),
            Some(sub) => (&resource.group, &resource.version, &sub.kind),
            None => (&resource.group, &resource.version, &resource.kind),
        }
    }

    /// `x-kubernetes-group-version-kind`, which for custom resources is always that of the resource.
    pub fn group_version_kind(&self) -> Value {
        let resource = self.resource;
        let (group, version, kind) = match resource.custom {
            true => (&*resource.group, &*resource.version, &*resource.kind),
            false => self.kind(),
        };
        json!({"group": group, "version": version, "kind": kind})
    }

    /// The options that a subresource is asked with, where it has a type of its own for them.
    pub fn options(&self, action: Action) -> Option<StructId> {
        let sub = self.sub.filter(|_| !self.resource.custom)?;
        let kind = match action {
            Action::Connect => sub.kind.to_string(),
            Action::Get => format!("{}{}Options", self.resource.kind, capital(&sub.name)),
            _ => return None,
        };
        let set = TypeSet::built_in();
        let package = set.get(self.resource.schema.id).name.rsplit_once('.')?.0;
        set.struct_named(&format!("{package}.{kind}"))
    }

    /// Whether the answer is no object but text or whatever is on the other side: what is read by options is a log.
    pub fn is_text(&self, action: Action) -> bool {
        action == Action::Connect || action == Action::Get && self.options(action).is_some()
    }

    /// A name that no other operation has, such as `readAppsV1NamespacedDeploymentStatus`.
    pub fn id(&self, method: &str, action: Action) -> String {
        let resource = self.resource;
        let before = match action {
            Action::DeleteCollection => "Collection".to_owned(),
            Action::Connect => capital(method),
            _ => String::new(),
        };
        let namespaced = if self.path.contains("{namespace}") { "Namespaced" } else { "" };
        let sub = self.sub.map(|sub| capital(&sub.name)).unwrap_or_default();
        let after = match action {
            Action::WatchList => "List",
            _ if self.path.ends_with("{path}") => "WithPath",
            _ => "",
        };
        let all = if resource.namespaced && namespaced.is_empty() { "ForAllNamespaces" } else { "" };
        let group = valid(group(&resource.group), true);
        let (verb, version) = (action.verb(), capital(&resource.version));
        format!("{verb}{group}{version}{before}{namespaced}{}{sub}{after}{all}", resource.kind)
    }

    pub fn description(&self, method: &str, action: Action) -> String {
        let resource = self.resource;
        let (kind, sub) = (&*resource.kind, self.sub.map(|sub| format!("{} of ", sub.name)).unwrap_or_default());
        match action {
            Action::Get => format!("read {sub}the specified {kind}"),
            Action::List if resource.verbs.contains(Verbs::WATCH) && !resource.custom => {
                format!("list or watch objects of kind {kind}")
            }
            Action::List => format!("list objects of kind {kind}"),
            Action::Post => format!("create {sub}{}{kind}", article(kind)),
            Action::Put => format!("replace {sub}the specified {kind}"),
            Action::Patch => format!("partially update {sub}the specified {kind}"),
            Action::Delete => format!("delete {sub}{}{kind}", article(kind)),
            Action::DeleteCollection => format!("delete collection of {kind}"),
            Action::Watch => format!(
                "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list operation \
                 instead, filtered to a single item with the 'fieldSelector' parameter."
            ),
            Action::WatchList => format!(
                "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list \
                 operation instead."
            ),
            Action::Connect => format!("connect {} requests to {sub}{kind}", method.to_ascii_uppercase()),
        }
    }
}

/// `a ` or `an `, and nothing before what is several.
fn article(noun: &str) -> &'static str {
    if noun.ends_with('s') && !noun.ends_with("ss") {
        return "";
    }
    if noun.starts_with(['A', 'E', 'I', 'O', 'U']) { "an " } else { "a " }
}

/// A group as names of operations and tags have it.
pub(super) fn group(name: &str) -> &str {
    match name {
        "" => "core",
        name => name.strip_suffix(".k8s.io").unwrap_or(name),
    }
}

/// What sorts operations: `core_v1`, `rbacAuthorization_v1`.
pub(super) fn tag(name: &str, version: &str) -> String {
    format!("{}_{}", valid(group(name), false), valid(version, false))
}

/// Text without whatever can't stand in a name; what follows such begins with a capital.
pub(super) fn valid(text: &str, mut capital: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match c {
            _ if !(c.is_alphabetic() || c == '_' || at > 0 && c.is_numeric()) => capital = true,
            _ if capital => {
                out.extend(c.to_uppercase());
                capital = false;
            }
            _ => out.push(c),
        }
    }
    out
}

pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::resource::table;

    /// Name, method, path and description of every operation of what is built in.
    fn operations() -> Vec<(String, String, String)> {
        let mut out = Vec::new();
        for resource in table::built_in() {
            for route in of(&resource) {
                for (method, action) in &route.operations {
                    let place = format!("{method} {}", route.path);
                    out.push((route.id(method, *action), place, route.description(method, *action)));
                }
            }
        }
        out
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let all = operations();
        let names: BTreeSet<&str> = all.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(all.len(), names.len());
        assert!(names.iter().all(|name| name.chars().all(char::is_alphanumeric)));
    }

    #[test]
    fn operations_go_by_the_names_that_generated_clients_know() {
        let all = operations();
        let by_name: BTreeMap<&str, (&str, &str)> =
            all.iter().map(|(name, place, text)| (name.as_str(), (place.as_str(), text.as_str()))).collect();
        const POD: &str = "/api/v1/namespaces/{namespace}/pods/{name}";
        for (name, place, text) in [
            ("createCoreV1NamespacedPod", "post /api/v1/namespaces/{namespace}/pods".into(), "create a Pod"),
            ("listCoreV1PodForAllNamespaces", "get /api/v1/pods".into(), "list or watch objects of kind Pod"),
            ("readCoreV1NamespacedPodStatus", format!("get {POD}/status"), "read status of the specified Pod"),
            ("readCoreV1NamespacedPodLog", format!("get {POD}/log"), "read log of the specified Pod"),
            ("createCoreV1NamespacedPodEviction", format!("post {POD}/eviction"), "create eviction of a Pod"),
            (
                "patchCoreV1NamespacedPodEphemeralcontainers",
                format!("patch {POD}/ephemeralcontainers"),
                "partially update ephemeralcontainers of the specified Pod",
            ),
            ("connectCoreV1GetNamespacedPodExec", format!("get {POD}/exec"), "connect GET requests to exec of Pod"),
            (
                "connectCoreV1OptionsNamespacedPodProxyWithPath",
                format!("options {POD}/proxy/{{path}}"),
                "connect OPTIONS requests to proxy of Pod",
            ),
            (
                "connectCoreV1HeadNodeProxy",
                "head /api/v1/nodes/{name}/proxy".into(),
                "connect HEAD requests to proxy of Node",
            ),
            (
                "replaceCoreV1NamespaceFinalize",
                "put /api/v1/namespaces/{name}/finalize".into(),
                "replace finalize of the specified Namespace",
            ),
            (
                "deleteAppsV1CollectionNamespacedDeployment",
                "delete /apis/apps/v1/namespaces/{namespace}/deployments".into(),
                "delete collection of Deployment",
            ),
            (
                "readAppsV1NamespacedDeploymentScale",
                "get /apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale".into(),
                "read scale of the specified Deployment",
            ),
            (
                "createCoreV1NamespacedEndpoints",
                "post /api/v1/namespaces/{namespace}/endpoints".into(),
                "create Endpoints",
            ),
            (
                "deleteNetworkingV1NamespacedIngress",
                "delete /apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses/{name}".into(),
                "delete an Ingress",
            ),
            (
                "listCoreV1ComponentStatus",
                "get /api/v1/componentstatuses".into(),
                "list objects of kind ComponentStatus",
            ),
        ] {
            assert_eq!(by_name.get(name), Some(&(place.as_str(), text)), "{name}");
        }
        for (name, place) in [
            ("watchCoreV1NamespacedPod", "get /api/v1/watch/namespaces/{namespace}/pods/{name}"),
            ("watchCoreV1NamespacedPodList", "get /api/v1/watch/namespaces/{namespace}/pods"),
            ("watchCoreV1PodListForAllNamespaces", "get /api/v1/watch/pods"),
            ("watchRbacAuthorizationV1ClusterRoleList", "get /apis/rbac.authorization.k8s.io/v1/watch/clusterroles"),
        ] {
            let found = by_name.get(name);
            assert!(
                found.is_some_and(|(at, text)| *at == place && text.contains(". deprecated: ")),
                "{name}: {found:?}"
            );
        }
        for missing in
            ["watchCoreV1ComponentStatusList", "deleteCoreV1CollectionNamespace", "listCoreV1NamespacedBinding"]
        {
            assert!(!by_name.contains_key(missing), "{missing}");
        }
    }

    #[test]
    fn names_leave_out_what_cannot_stand_in_them() {
        for (group, version, expected) in [
            ("", "v1", "core_v1"),
            ("apps", "v1", "apps_v1"),
            ("flowcontrol.apiserver.k8s.io", "v1", "flowcontrolApiserver_v1"),
            ("x-y.example.com", "v1beta1", "xYExampleCom_v1beta1"),
        ] {
            assert_eq!(tag(group, version), expected);
        }
        assert_eq!(valid(".well-known", false), "WellKnown");
        assert_eq!(valid("4th.k8s", true), "ThK8s");
    }

    #[test]
    fn what_subresources_are_asked_with_has_types() {
        let all = table::built_in();
        let pods = all.iter().find(|r| &*r.plural == "pods").expect("pods are built in");
        for route in of(pods).iter().filter(|route| route.sub.is_some()) {
            for (_, action) in &route.operations {
                let name = route.sub.map(|sub| &*sub.name).unwrap_or_default();
                let expected = matches!(name, "attach" | "exec" | "log" | "portforward" | "proxy");
                assert_eq!(route.options(*action).is_some(), expected, "{}", route.path);
                assert_eq!(route.is_text(*action), expected, "{}", route.path);
            }
        }
    }
}
