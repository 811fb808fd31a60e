//! Whether the expressions of a policy fit the types of what it is about, as far as its rules name those.
//!
//! A mistake is no reason to refuse the policy; its status tells. Follows
//! `apiserver/pkg/admission/plugin/policy/validating/typechecking.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::schema::{StructId, Type as Shape, TypeId, TypeSet};
use serde_json::Value;

use super::expression::Environment;
use crate::cel::{Field, ObjectType, Type, escape};
use crate::resource::{Resource, Set};

/// Types that are looked at for each rule.
const MOST_TYPES: usize = 10;

/// What is wrong with the expressions of a policy: the path of each and the complaints, by type.
pub fn type_warnings(policy: &Value, set: &Set) -> Vec<(String, String)> {
    let spec = &policy["spec"];
    let subjects = subjects(spec, set);
    if subjects.is_empty() {
        return Vec::new();
    }
    let params = param_type(spec, set);
    let environments: Vec<(String, Environment)> = subjects
        .iter()
        .map(|resource| {
            let version = if resource.group.is_empty() { "/v1".to_owned() } else { resource.api_version() };
            let mut environment = Environment {
                params: params.is_some(),
                authorizer: true,
                variables: Some(Vec::new()),
                typed: (Some(type_of(resource)), params.clone()),
                ..Environment::default()
            };
            for variable in list(spec, "variables") {
                let text = |name: &str| variable[name].as_str().unwrap_or_default();
                environment.variable(text("name"), text("expression"));
            }
            (format!("{version}, Kind={}", resource.kind), environment)
        })
        .collect();
    let mut warnings = Vec::new();
    for (at, validation) in list(spec, "validations").enumerate() {
        for name in ["expression", "messageExpression"] {
            let Some(text) = validation[name].as_str().filter(|text| !text.is_empty()) else { continue };
            let complaints: Vec<String> = environments
                .iter()
                .filter_map(|(kind, environment)| Some(format!("{kind}: {}\n", environment.issues(text)?)))
                .collect();
            if !complaints.is_empty() {
                warnings.push((format!("spec.validations[{at}].{name}"), complaints.join("\n")));
            }
        }
    }
    warnings
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// What the policy's rules name, in the order of group, version and kind.
fn subjects(spec: &Value, set: &Set) -> Vec<Arc<Resource>> {
    let mut found = BTreeMap::new();
    for rule in list(&spec["matchConstraints"], "resourceRules") {
        let names = |name: &str| -> BTreeSet<&str> { list(rule, name).filter_map(Value::as_str).collect() };
        let (groups, versions) = (names("apiGroups"), names("apiVersions"));
        // A rule for all groups or versions names none.
        if groups.iter().chain(&versions).any(|name| name.contains('*')) {
            continue;
        }
        let mut count = 0;
        for group in &groups {
            for version in &versions {
                for resource in names("resources").iter().filter(|name| !name.contains(['*', '/'])) {
                    let Some(resource) = set.lookup(group, version, resource) else { continue };
                    let key = (resource.group.clone(), resource.version.clone(), resource.kind.clone());
                    found.insert(key, resource);
                    count += 1;
                    if count == MOST_TYPES {
                        return found.into_values().collect();
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

/// The type of the policy's parameters; None where it has none or their kind is not known.
fn param_type(spec: &Value, set: &Set) -> Option<Type> {
    let text = |name: &str| spec["paramKind"][name].as_str();
    let (version, kind) = (text("apiVersion")?, text("kind")?);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    set.by_kind(group, version, kind).map(|resource| type_of(&resource))
}

/// The type of a resource's objects.
fn type_of(resource: &Resource) -> Type {
    let mut reader = Reader { set: resource.schema.set(), above: Vec::new() };
    reader.structure(resource.schema.id)
}

struct Reader<'a> {
    set: &'a TypeSet,
    /// Structs that the one at hand is part of.
    above: Vec<StructId>,
}

impl Reader<'_> {
    /// What contains itself, such as the schemas of definitions, is not followed further.
    fn structure(&mut self, id: StructId) -> Type {
        let structure = self.set.get(id);
        if structure.open || self.above.contains(&id) {
            return Type::Dyn;
        }
        self.above.push(id);
        let fields = structure
            .props
            .iter()
            .filter_map(|prop| Some((escape(&prop.name)?, Field::new(&prop.name, self.value(prop.ty)))));
        let fields = fields.collect();
        self.above.pop();
        Type::Object(Arc::new(ObjectType { name: "object".into(), fields }))
    }

    fn value(&mut self, id: TypeId) -> Type {
        match self.set.ty(id) {
            Shape::String | Shape::Quantity => Type::Text,
            Shape::Bytes => Type::Bytes,
            Shape::Bool => Type::Bool,
            Shape::Int32 | Shape::Int64 => Type::Int,
            Shape::Double => Type::Double,
            Shape::Time | Shape::MicroTime => Type::Timestamp,
            Shape::Duration => Type::Text,
            Shape::Struct(id) | Shape::AtomicStruct(id) => self.structure(*id),
            Shape::List(list) => Type::list(self.value(list.element)),
            Shape::Map(map) => Type::map(self.value(map.value)),
            Shape::IntOrString
            | Shape::Raw
            | Shape::Fields
            | Shape::Json
            | Shape::SchemaOrArray(_)
            | Shape::SchemaOrBool(_)
            | Shape::SchemaOrStrings(_) => Type::Dyn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;
    use serde_json::json;

    fn warnings(rules: Value, validations: Value) -> Vec<(String, String)> {
        let policy = json!({"spec": {"matchConstraints": {"resourceRules": rules}, "validations": validations,
            "variables": [{"name": "wanted", "expression": "object.spec.replicas"}]}});
        type_warnings(&policy, &Resources::built_in().current())
    }

    fn rule(group: &str, resources: Value) -> Value {
        json!([{"apiGroups": [group], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE"]}])
    }

    #[test]
    fn what_does_not_fit_the_type_is_told_with_its_place() {
        let found = warnings(
            rule("apps", json!(["deployments"])),
            json!([
                {"expression": "object.replicas > 1"},
                {"expression": "variables.wanted < 5 && object.metadata.name == 'a'",
                 "messageExpression": "'too many: ' + object.spec.replicas"},
            ]),
        );
        let at: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(at, ["spec.validations[0].expression", "spec.validations[1].messageExpression"]);
        assert_eq!(
            found[0].1,
            "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"
        );
    }

    #[test]
    fn every_type_is_looked_at_and_wildcards_are_none() {
        let validations = || json!([{"expression": "object.spec.replicas > 1"}]);
        let found = warnings(rule("", json!(["pods", "replicationcontrollers", "secrets"])), validations());
        let complaint = &found[0].1;
        assert!(complaint.contains("/v1, Kind=Pod: ERROR") && complaint.contains("/v1, Kind=Secret: ERROR"));
        assert!(!complaint.contains("ReplicationController"), "{complaint}");
        assert_eq!(warnings(rule("*", json!(["pods"])), validations()), []);
        assert_eq!(warnings(rule("", json!(["pods/status", "*"])), validations()), []);
    }
}
