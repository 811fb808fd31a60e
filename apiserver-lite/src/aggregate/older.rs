//! What another server's part of the older OpenAPI document is: the paths below its group version, and the definitions
//! that they refer to.
//!
//! Clients ask us for one document of everything. Definitions that two servers have under one name and differ in are
//! kept apart under a name with a number, as upstream's merging does it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

const PREFIX: &str = "#/definitions/";

/// A server's part of the document.
#[derive(Debug, Default, PartialEq)]
pub struct Older {
    /// What its server calls this state of the document, for asking whether there is another.
    pub tag: String,
    /// Differs whenever the document does.
    pub mark: String,
    paths: Map<String, Value>,
    definitions: Map<String, Value>,
}

impl Older {
    /// The part of a document that is below a path such as `/apis/GROUP/VERSION`.
    pub fn of(below: &str, tag: String, mark: String, document: &Value) -> Self {
        let is_ours =
            |path: &str| path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let entries = |key: &str| document[key].as_object().into_iter().flatten();
        let all = document["definitions"].as_object();
        let paths: Map<_, _> = entries("paths").filter(|(path, _)| is_ours(path)).map(owned).collect();
        let mut wanted = BTreeSet::new();
        let mut waiting = Vec::new();
        paths.values().for_each(|item| references(item, &mut waiting));
        while let Some(name) = waiting.pop() {
            if let Some(definition) = all.and_then(|all| all.get(&name))
                && wanted.insert(name)
            {
                references(definition, &mut waiting);
            }
        }
        let definitions = entries("definitions").filter(|(name, _)| wanted.contains(*name)).map(owned).collect();
        Older { tag, mark, paths, definitions }
    }

    /// Adds the part to a document's paths and definitions.
    pub fn add_to(&self, paths: &mut Value, definitions: &mut Value) {
        let (Value::Object(paths), Value::Object(definitions)) = (paths, definitions) else { return };
        let mut renamed: BTreeMap<&str, String> = BTreeMap::new();
        for (name, definition) in &self.definitions {
            if definitions.get(name).is_some_and(|known| known != definition) {
                let mut numbers = 2_u32..;
                let free = numbers.find_map(|number| {
                    let other = format!("{name}_v{number}");
                    (!definitions.contains_key(&other) && !self.definitions.contains_key(&other)).then_some(other)
                });
                renamed.extend(free.map(|free| (name.as_str(), free)));
            }
        }
        let settled = |value: &Value| {
            let mut value = value.clone();
            if !renamed.is_empty() {
                rename(&mut value, &renamed);
            }
            value
        };
        for (name, definition) in &self.definitions {
            let name = renamed.get(name.as_str()).unwrap_or(name);
            definitions.entry(name.as_str()).or_insert_with(|| settled(definition));
        }
        for (path, item) in &self.paths {
            paths.entry(path.as_str()).or_insert_with(|| settled(item));
        }
    }
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// Collects the names of the definitions that a value refers to.
fn references(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str().and_then(|text| text.strip_prefix(PREFIX)) {
                    Some(name) if key == "$ref" => out.push(name.to_owned()),
                    _ => references(value, out),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, out)),
        _ => {}
    }
}

/// Lets references to some definitions lead to others.
fn rename(value: &mut Value, names: &BTreeMap<&str, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = value.as_str().and_then(|text| text.strip_prefix(PREFIX));
                match name.filter(|_| key == "$ref").and_then(|name| names.get(name)) {
                    Some(other) => *value = format!("{PREFIX}{other}").into(),
                    None => rename(value, names),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn part() -> Older {
        let schema = |name: &str| json!({"schema": {"$ref": format!("{PREFIX}{name}")}});
        let document = json!({
            "paths": {"/apis/g/v1/": schema("Thing"), "/apis/g/v10/": schema("Other"), "/version": schema("Info")},
            "definitions": {
                "Thing": {"properties": {"meta": {"$ref": "#/definitions/Meta"}}},
                "Meta": {"type": "object"}, "Other": {}, "Info": {},
            },
        });
        Older::of("/apis/g/v1", String::new(), String::new(), &document)
    }

    #[test]
    fn a_part_has_its_own_paths_and_what_they_refer_to() {
        let part = part();
        assert_eq!(part.paths.keys().collect::<Vec<_>>(), ["/apis/g/v1/"]);
        assert_eq!(part.definitions.keys().collect::<BTreeSet<_>>().len(), 2);
        assert!(part.definitions.contains_key("Meta") && part.definitions.contains_key("Thing"));
    }

    #[test]
    fn definitions_that_differ_are_kept_apart() {
        let part = part();
        let (mut paths, mut definitions) = (json!({"/api": {}}), json!({"Meta": {"type": "object"}}));
        part.add_to(&mut paths, &mut definitions);
        assert_eq!(paths["/apis/g/v1/"]["schema"]["$ref"], "#/definitions/Thing");
        assert_eq!(definitions["Thing"]["properties"]["meta"]["$ref"], "#/definitions/Meta", "it is the same");

        let (mut paths, mut definitions) = (json!({}), json!({"Meta": {"type": "string"}}));
        part.add_to(&mut paths, &mut definitions);
        assert_eq!(definitions["Thing"]["properties"]["meta"]["$ref"], "#/definitions/Meta_v2");
        assert_eq!(
            (&definitions["Meta"]["type"], &definitions["Meta_v2"]["type"]),
            (&json!("string"), &json!("object"))
        );
    }
}
