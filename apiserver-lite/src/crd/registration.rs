//! From a definition to the resources that the registry serves.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::closing::Keeper;
use super::path::Path;
use super::schema::Schema;
use super::{Definition, Scale, columns, fit, names, types};
use crate::resource::{Resource, Schema as Shape, Subresource, Verbs};
use crate::store::ObjectRef;

const EVERY_VERB: Verbs = Verbs::CREATE
    .union(Verbs::DELETE)
    .union(Verbs::DELETE_COLLECTION)
    .union(Verbs::GET)
    .union(Verbs::LIST)
    .union(Verbs::PATCH)
    .union(Verbs::UPDATE)
    .union(Verbs::WATCH);

fn texts(value: &Value) -> Vec<Box<str>> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(Into::into)).collect()
}

/// The resources of a definition's served versions. `keeper` tells their followers when they are served no more.
pub fn resources(definition: &Value, born: u64, keeper: Option<&Keeper>) -> Vec<Arc<Resource>> {
    build(definition, born, keeper, |version| version["served"] == true)
}

/// The resource of the version that objects are stored in, whether or not it is served.
pub fn stored(definition: &Value) -> Option<Arc<Resource>> {
    build(definition, 0, None, |version| version["storage"] == true).pop()
}

fn build(
    definition: &Value,
    born: u64,
    keeper: Option<&Keeper>,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<Arc<Resource>> {
    let spec = &definition["spec"];
    let accepted = &definition["status"]["acceptedNames"];
    let text = |value: &Value| -> Box<str> { value.as_str().unwrap_or_default().into() };
    let (group, plural) = (text(&spec["group"]), text(&accepted["plural"]));
    let kind = text(&accepted["kind"]);
    let versions = || spec["versions"].as_array().into_iter().flatten();
    let Some(stored) = versions().find(|v| v["storage"] == true) else { return Vec::new() };
    let schemas: BTreeMap<Box<str>, Schema> =
        versions().map(|v| (text(&v["name"]), schema(&v["schema"]["openAPIV3Schema"]))).collect();
    let schemas = Arc::new(schemas);
    let storage = text(&stored["name"]);
    let empty = Schema::default();
    let shapes: BTreeMap<&str, Shape> = versions()
        .filter(|v| wanted(v) || v["storage"] == true)
        .filter_map(|v| v["name"].as_str())
        .map(|name| (name, types::table(schemas.get(name).unwrap_or(&empty), &kind)))
        .collect();
    let terminating = names::is_true(definition, "Terminating");
    let identity = format!("{}/{}/{terminating}", definition["metadata"]["uid"], definition["metadata"]["generation"]);
    let (state, at_rest) = (fit::state(definition), Arc::new(at_rest(spec)));
    let stored_shape = shapes.get(&*storage).cloned();
    let resource = |version: &Value| {
        let name = text(&version["name"]);
        let shape = shapes.get(&*name)?.clone();
        let definition = Definition {
            identity: identity.clone(),
            state,
            version: name.clone(),
            schemas: schemas.clone(),
            storage: storage.clone(),
            converter: super::conversion::Converter::new(&spec["conversion"]),
            born,
            warning: warning(spec, version),
            scale: scale(&version["subresources"]["scale"]),
            columns: columns::of(version),
            selectable: selectable(version),
            at_rest: at_rest.clone(),
            closing: keeper.map(Keeper::closing),
            terminating,
            published: Arc::new(version["schema"]["openAPIV3Schema"].clone()),
            empty: Schema::default(),
        };
        Some(Arc::new(Resource {
            group: group.clone(),
            version: name,
            plural: plural.clone(),
            singular: text(&accepted["singular"]),
            kind: kind.clone(),
            list_kind: text(&accepted["listKind"]),
            namespaced: spec["scope"] == "Namespaced",
            short_names: texts(&accepted["shortNames"]),
            categories: texts(&accepted["categories"]),
            verbs: EVERY_VERB,
            subresources: subresources(version, &kind),
            schema: shape.clone(),
            storage: format!("{plural}.{group}").as_str().into(),
            storage_version: format!("{group}/{storage}").into(),
            stored: stored_shape.clone().unwrap_or(shape),
            custom: true,
            definition: Some(Arc::new(definition)),
            defaults: Default::default(),
        }))
    };
    versions().filter(|v| wanted(v)).filter_map(resource).collect()
}

/// A version's schema; its defaults have no unknown fields.
fn schema(value: &Value) -> Schema {
    let mut schema = Schema::parse(value);
    prune_defaults(&mut schema);
    schema
}

fn prune_defaults(schema: &mut Schema) {
    if let Some(mut default) = schema.default.take() {
        super::prune::prune_value(&mut default, schema);
        schema.default = Some(default);
    }
    schema.properties.values_mut().for_each(prune_defaults);
    schema.items.as_deref_mut().into_iter().for_each(prune_defaults);
    if let Some(super::schema::Additional::Values(values)) = schema.additional.as_deref_mut() {
        prune_defaults(values);
    }
}

fn subresources(version: &Value, kind: &str) -> Vec<Subresource> {
    let verbs = Verbs::GET.union(Verbs::PATCH).union(Verbs::UPDATE);
    let said = &version["subresources"];
    let mut out = Vec::new();
    if said["status"].is_object() {
        out.push(Subresource { name: "status".into(), group: "".into(), version: "".into(), kind: kind.into(), verbs });
    }
    if said["scale"].is_object() {
        out.push(Subresource {
            name: "scale".into(),
            group: "autoscaling".into(),
            version: "v1".into(),
            kind: "Scale".into(),
            verbs,
        });
    }
    out
}

fn scale(said: &Value) -> Option<Scale> {
    let path = |key: &str| -> Option<Vec<Box<str>>> {
        let text = said[key].as_str().filter(|p| !p.is_empty())?;
        Some(text.trim_start_matches('.').split('.').map(Into::into).collect())
    };
    Some(Scale {
        replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        selector: path("labelSelectorPath"),
    })
}

fn selectable(version: &Value) -> Vec<(Box<str>, Path)> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    fields
        .filter_map(|field| {
            let text = field["jsonPath"].as_str()?;
            Some((text.trim_start_matches('.').into(), Path::parse(text)?))
        })
        .collect()
}

/// The selectable fields whose values are kept with an object at rest. Versions that differ in name alone have the same
/// values, so that an object has those of all, whichever wrote it.
fn at_rest(spec: &Value) -> Vec<(Box<str>, Path)> {
    let by_webhook = spec["conversion"]["strategy"] == "Webhook";
    let versions = spec["versions"].as_array().into_iter().flatten();
    let mut all: Vec<(Box<str>, Path)> = Vec::new();
    for field in versions.filter(|v| !by_webhook || v["storage"] == true).flat_map(selectable) {
        if all.iter().all(|(name, _)| *name != field.0) {
            all.push(field);
        }
    }
    all
}

/// What every answer about a deprecated version warns of: the definition's own words, or where to go instead.
fn warning(spec: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(said) = version["deprecationWarning"].as_str() {
        return Some(said.to_owned());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind, name) = (text(&spec["group"]), text(&spec["names"]["kind"]), text(&version["name"]));
    let mut better: Vec<String> = spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| v["served"] == true && v["deprecated"] != true)
        .map(|v| text(&v["name"]))
        .filter(|other| compare_versions(&name, other).is_lt())
        .collect();
    better.sort_by(|a, b| compare_versions(b, a));
    let instead = better.first().map(|v| format!("; use {group}/{v} {kind}")).unwrap_or_default();
    Some(format!("{group}/{name} {kind} is deprecated{instead}"))
}

/// Versions as Kubernetes ranks them: stable above beta above alpha, then by number; other names below, by the alphabet.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability, major and minor number of a name such as `v1beta2`.
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let number = |text: &str| -> Option<u64> {
        (!text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse().ok())?
    };
    for (word, stability) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

/// The label of APIServices that come and go with definitions.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Whether an APIService is one of [`api_service`].
pub fn is_announced(service: &ObjectRef) -> bool {
    service.without_owners()["metadata"]["labels"][AUTOMANAGED] == "true"
}

/// The APIService that tells of a group version.
pub fn api_service(group: &str, version: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{version}.{group}"), "labels": {AUTOMANAGED: "true"}},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 100},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rank_by_stability_and_number() {
        let mut all = vec!["v1alpha1", "foo1", "v2", "v1beta1", "v10", "v1", "bar", "v11alpha2", "v1beta2"];
        all.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(all, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v11alpha2", "v1alpha1", "bar", "foo1"]);
    }

    #[test]
    fn a_deprecated_version_names_the_next_better_one() {
        let spec = json!({"group": "g.io", "names": {"kind": "K"}, "versions": [
            {"name": "v1", "served": true}, {"name": "v2", "served": true}, {"name": "v1beta1", "served": true, "deprecated": true}]});
        assert_eq!(
            warning(&spec, &spec["versions"][2]).as_deref(),
            Some("g.io/v1beta1 K is deprecated; use g.io/v2 K")
        );
        let own = json!({"name": "v1", "deprecated": true, "deprecationWarning": "old"});
        assert_eq!(warning(&spec, &own).as_deref(), Some("old"));
    }
}
