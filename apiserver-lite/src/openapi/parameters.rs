//! Parameters of operations: those that the options of an action are made of, and those of paths.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use proto::schema::{StructId, Type, TypeId, TypeSet};
use serde_json::{Map, Value, json};

use super::routes::{Action, Route};
use super::schemas::{Schemas, meta_type};
use super::{Format, descriptions};

/// Parameters by name. Those of one place in a request have different names.
pub(super) type Named = BTreeMap<String, Value>;

/// Makes the parameters of a document.
pub(super) struct Parameters {
    format: Format,
    /// Those of types of options, each made once.
    options: BTreeMap<&'static str, Named>,
    /// Those that operations of the older format refer to.
    shared: Map<String, Value>,
}

/// What an action is asked with: types of options, each with the fields that do not count.
fn options(action: Action, custom: bool) -> &'static [(&'static str, &'static [&'static str])] {
    match action {
        Action::Get if custom => &[("GetOptions", &[])],
        Action::List | Action::Watch | Action::WatchList => &[("ListOptions", &[])],
        Action::DeleteCollection if custom => &[("ListOptions", &[])],
        Action::DeleteCollection => &[("ListOptions", &["watch", "allowWatchBookmarks"]), ("DeleteOptions", &[])],
        Action::Post => &[("CreateOptions", &[])],
        Action::Put => &[("UpdateOptions", &[])],
        Action::Patch => &[("PatchOptions", &[])],
        Action::Delete => &[("DeleteOptions", &[])],
        Action::Get | Action::Connect => &[],
    }
}

impl Parameters {
    pub fn new(format: Format) -> Self {
        Parameters { format, options: BTreeMap::new(), shared: Map::new() }
    }

    /// What an operation can be asked with beside its path.
    pub fn of(&mut self, route: &Route<'_>, action: Action) -> Named {
        let mut out = self.of_action(action, route.resource.custom);
        if let Some(own) = route.options(action) {
            out.extend(fields(own, self.format));
        }
        out
    }

    fn of_action(&mut self, action: Action, custom: bool) -> Named {
        let format = self.format;
        let mut out = Named::new();
        for (name, without) in options(action, custom) {
            let of_type = || meta_type(name).map(|id| fields(id, format)).unwrap_or_default();
            let all = self.options.entry(name).or_insert_with(of_type);
            let wanted = all.iter().filter(|(field, _)| !without.contains(&field.as_str()));
            out.extend(wanted.map(|(field, said)| (field.clone(), said.clone())));
        }
        // Answers of others are passed on as they are.
        if action != Action::Connect {
            out.insert("pretty".into(), query("pretty", "string", Some("Whether the answer is indented."), format));
        }
        out
    }

    /// What the variables of a path stand for.
    pub fn of_path(&self, route: &Route<'_>) -> Named {
        let name = format!("Name of the {}.", route.kind().2);
        let all =
            [("namespace", "Namespace of the objects."), ("name", name.as_str()), ("path", "Path on the other side.")];
        let there = all.into_iter().filter(|(variable, _)| route.path.contains(&format!("{{{variable}}}")));
        let parameter = |variable: &str, text: &str| {
            let mut out = query(variable, "string", Some(text), self.format);
            out["in"] = "path".into();
            out["required"] = true.into();
            out
        };
        // A query may have something of the same name.
        there.map(|(variable, text)| (format!("{variable} in the path"), parameter(variable, text))).collect()
    }

    /// Parameters as a document lists them. In the older format most of them stand there once, and are referred to.
    pub fn list(&mut self, parameters: Named) -> Value {
        parameters.into_values().map(|said| self.settled(said)).collect()
    }

    fn settled(&mut self, said: Value) -> Value {
        let name = said["name"].as_str().unwrap_or_default();
        // Clients look for two of them in the operations themselves.
        let own = match name {
            "name" | "fieldValidation" | "dryRun" => true,
            "body" => {
                let schema = said["schema"]["$ref"].as_str().unwrap_or_default();
                !schema.starts_with("#/definitions/io.k8s.apimachinery.")
            }
            _ => false,
        };
        if own || self.format == Format::V3 {
            return said;
        }
        let shared = format!("{name}-{}", mark(&said.to_string()));
        let reference = json!({"$ref": format!("#/parameters/{shared}")});
        self.shared.entry(shared.as_str()).or_insert_with(|| said);
        reference
    }

    /// What the document's operations refer to.
    pub fn finish(self) -> Value {
        self.shared.into()
    }
}

/// The body of an operation in the older format, which has it among the parameters.
pub(super) fn body(schema: &Value, required: bool) -> Value {
    let mut out = json!({"name": "body", "in": "body", "schema": schema});
    if required {
        out["required"] = true.into();
    }
    out
}

fn query(name: &str, kind: &str, text: Option<&str>, format: Format) -> Value {
    let mut out = match format {
        Format::V2 => json!({"name": name, "in": "query", "type": kind, "uniqueItems": true}),
        Format::V3 => json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}}),
    };
    if let Some(text) = text {
        out["description"] = text.into();
    }
    // Many operations have the same.
    out.share();
    out
}

/// The fields of a type of options that fit into a query.
fn fields(id: StructId, format: Format) -> Named {
    let set = TypeSet::built_in();
    let options = set.get(id);
    let own = options.props.iter().filter(|prop| !matches!(&*prop.name, "apiVersion" | "kind"));
    let parameter = |prop: &proto::schema::Prop| {
        let text = descriptions::of_field(&options.name, &prop.name);
        Some((prop.name.to_string(), query(&prop.name, query_type(set, prop.ty)?, text, format)))
    };
    own.filter_map(parameter).collect()
}

fn query_type(set: &TypeSet, id: TypeId) -> Option<&'static str> {
    match set.ty(id) {
        Type::String => Some("string"),
        Type::Bool => Some("boolean"),
        Type::Int32 | Type::Int64 => Some("integer"),
        // One that may be there several times.
        Type::List(list) => query_type(set, list.element),
        _ => None,
    }
}

/// Tells parameters of one name apart: eight characters from FNV-1 of what they say, as upstream makes them.
fn mark(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    URL_SAFE.encode(&hash.to_be_bytes()[..6])
}

/// The schema of an operation's body, and whether there has to be one; None where there is none.
pub(super) fn body_schema(route: &Route<'_>, action: Action, schemas: &mut Schemas) -> Option<(Value, bool)> {
    match action {
        Action::Post | Action::Put => Some((schemas.of_route(route), true)),
        Action::Patch => Some((schemas.meta("Patch"), true)),
        Action::Delete => Some((schemas.meta("DeleteOptions"), false)),
        Action::DeleteCollection if !route.resource.custom => Some((schemas.meta("DeleteOptions"), false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::routes;
    use super::*;
    use crate::resource::table;

    fn names(action: Action, custom: bool) -> String {
        let all = Parameters::new(Format::V2).of_action(action, custom);
        assert!(all.values().all(|said| said["description"].is_string()), "{action:?}: {all:?}");
        all.into_keys().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_action_is_asked_with_all_of_its_options() {
        let list = "continue fieldSelector labelSelector limit";
        let versions = "resourceVersion resourceVersionMatch sendInitialEvents shardSelector timeoutSeconds";
        let delete = "gracePeriodSeconds ignoreStoreReadErrorWithClusterBreakingPotential";
        let watch = format!("allowWatchBookmarks {list} pretty {versions} watch");
        for (action, custom, expected) in [
            (Action::Get, false, "pretty".to_owned()),
            (Action::Get, true, "pretty resourceVersion".to_owned()),
            (Action::List, false, watch.clone()),
            (Action::DeleteCollection, true, watch),
            (
                Action::DeleteCollection,
                false,
                format!(
                    "continue dryRun fieldSelector {delete} labelSelector limit orphanDependents pretty \
                     propagationPolicy {versions}"
                ),
            ),
            (Action::Post, false, "dryRun fieldManager fieldValidation pretty".to_owned()),
            (Action::Put, false, "dryRun fieldManager fieldValidation pretty".to_owned()),
            (Action::Patch, true, "dryRun fieldManager fieldValidation force pretty".to_owned()),
            (Action::Delete, false, format!("dryRun {delete} orphanDependents pretty propagationPolicy")),
        ] {
            assert_eq!(names(action, custom), expected, "{action:?}");
        }
    }

    #[test]
    fn whatever_a_subresource_is_asked_with_is_described() {
        let mut parameters = Parameters::new(Format::V3);
        for resource in table::built_in() {
            for route in routes::of(&resource) {
                for (_, action) in &route.operations {
                    let all = parameters.of(&route, *action);
                    assert!(all.values().all(|said| said["description"].is_string()), "{}: {all:?}", route.path);
                }
            }
        }
    }

    #[test]
    fn types_are_those_of_a_query() {
        for (format, place) in [(Format::V2, "/type"), (Format::V3, "/schema/type")] {
            let all = Parameters::new(format).of_action(Action::DeleteCollection, false);
            let ty = |name: &str| all[name].pointer(place).and_then(Value::as_str).map(ToOwned::to_owned);
            assert_eq!(ty("limit").as_deref(), Some("integer"));
            assert_eq!(ty("sendInitialEvents").as_deref(), Some("boolean"));
            assert_eq!(ty("dryRun").as_deref(), Some("string"));
        }
    }

    #[test]
    fn the_older_format_refers_to_what_operations_share() {
        let mut parameters = Parameters::new(Format::V2);
        let all = parameters.of_action(Action::Delete, false);
        let body = |schema: &str| body(&json!({"$ref": format!("#/definitions/{schema}")}), false);
        let mut more = all.clone();
        more.insert("body".into(), body("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"));
        let listed = parameters.list(more);
        let referred: Vec<&str> = listed.as_array().into_iter().flatten().filter_map(|p| p["$ref"].as_str()).collect();
        assert_eq!(referred.len(), all.len(), "all but dryRun, and the body");
        assert_eq!(parameters.list(all.clone())[1], listed[2], "once for all");
        let own = parameters.list(Named::from([("body".to_owned(), body("io.k8s.api.core.v1.Pod"))]));
        assert_eq!(own[0]["in"], "body");
        let shared = parameters.finish();
        for reference in referred {
            let name = reference.strip_prefix("#/parameters/").expect("of the document");
            assert_eq!(shared[name]["name"], name[..name.len() - 9]);
        }
        assert_eq!(shared.as_object().map(Map::len), Some(all.len()));
    }

    #[test]
    fn marks_are_those_of_fnv() {
        // The published offset basis, and the published hash of one letter.
        assert_eq!(mark(""), URL_SAFE.encode([0xcb, 0xf2, 0x9c, 0xe4, 0x84, 0x22]));
        assert_eq!(mark("a"), URL_SAFE.encode([0xaf, 0x63, 0xbd, 0x4c, 0x86, 0x01]));
    }
}
