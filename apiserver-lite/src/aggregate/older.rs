//! What another server's part of the older OpenAPI document is: the paths below its group version, and the definitions
//! and parameters that they refer to.
//!
//! Clients ask us for one document of everything. What two servers have under one name and differ in is kept apart
//! under a name with a number, as upstream's merging does it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Name, Value};

const PREFIX: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// A server's part of the document.
#[derive(Debug, Default, PartialEq)]
pub struct Older {
    /// What its server calls this state of the document, for asking whether there is another.
    pub tag: String,
    /// Differs whenever the document does.
    pub mark: String,
    paths: Map<String, Value>,
    definitions: Map<String, Value>,
    parameters: Map<String, Value>,
}

impl Older {
    /// The part of a document that is below a path such as `/apis/GROUP/VERSION`.
    pub fn of(below: &str, tag: String, mark: String, document: &Value) -> Self {
        let is_ours =
            |path: &str| path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let entries = |key: &str| document[key].as_object().into_iter().flatten();
        let all = document["definitions"].as_object();
        let paths: Map<_, _> = entries("paths").filter(|(path, _)| is_ours(path)).map(owned).collect();
        let mut asked = Vec::new();
        paths.values().for_each(|item| references(item, PARAMETERS, &mut asked));
        let asked: BTreeSet<String> = asked.into_iter().collect();
        let parameters: Map<_, _> =
            entries("parameters").filter(|(name, _)| asked.contains(name.as_str())).map(owned).collect();
        let mut wanted = BTreeSet::new();
        let mut waiting = Vec::new();
        paths.values().chain(parameters.values()).for_each(|item| references(item, PREFIX, &mut waiting));
        while let Some(name) = waiting.pop() {
            if let Some(definition) = all.and_then(|all| all.get(&name))
                && wanted.insert(name)
            {
                references(definition, PREFIX, &mut waiting);
            }
        }
        let definitions =
            entries("definitions").filter(|(name, _)| wanted.contains(name.as_str())).map(owned).collect();
        Older { tag, mark, paths, definitions, parameters }
    }

    /// Adds the part to a document's paths, definitions and parameters. `copies` is what parts that came before have added.
    pub fn add_to<'a>(&'a self, document: [&mut Value; 3], copies: &mut Copies<'a>) {
        let [Value::Object(paths), Value::Object(definitions), Value::Object(parameters)] = document else { return };
        let names = copies.names(&self.definitions, definitions);
        let renamed: BTreeMap<&str, String> = names.into_iter().filter(|(name, now)| name != now).collect();
        let settled = |value: &Value| {
            let mut value = value.clone();
            if !renamed.is_empty() {
                rename(&mut value, PREFIX, &renamed);
            }
            value
        };
        for (name, said) in &self.definitions {
            let now = renamed.get(name.as_str()).map_or(name.as_str(), String::as_str);
            if let Some(known) = definitions.get_mut(now) {
                add_kinds(known, said);
                continue;
            }
            definitions.insert(now.into(), settled(said));
            let mut all = Vec::new();
            references(said, PREFIX, &mut all);
            let references = all.into_iter().map(|name| {
                let now = renamed.get(name.as_str()).unwrap_or(&name).clone();
                (name, now)
            });
            let copy = Copy { said, name: now.to_owned(), references: references.collect() };
            copies.0.entry(name).or_default().push(copy);
        }
        let mut moved = BTreeMap::new();
        for (name, said) in &self.parameters {
            let said = settled(said);
            let now = free_parameter(name, &said, parameters);
            if now != *name {
                moved.insert(name.as_str(), now.clone());
            }
            parameters.entry(now.as_str()).or_insert_with(|| said);
        }
        for (path, item) in &self.paths {
            let placed = || {
                let mut item = settled(item);
                if !moved.is_empty() {
                    rename(&mut item, PARAMETERS, &moved);
                }
                item
            };
            paths.entry(path.as_str()).or_insert_with(placed);
        }
    }
}

/// Definitions that parts have added to a document, by the names that the parts have for them. Servers that are made of
/// the same libraries have the same ones, which need not be there once for each of them.
#[derive(Default)]
pub struct Copies<'a>(BTreeMap<&'a str, Vec<Copy<'a>>>);

struct Copy<'a> {
    said: &'a Value,
    /// Its name in the document.
    name: String,
    /// What it refers to: the part's name for it, and the document's.
    references: Vec<(String, String)>,
}

impl Copies<'_> {
    /// What the definitions of a part are to be called in a document.
    fn names<'p>(&self, own: &'p Map<String, Value>, document: &Map<String, Value>) -> BTreeMap<&'p str, String> {
        // Those that may stand for a definition, the best last. None where it has its own name and nobody else has.
        let mut fitting: BTreeMap<&str, Vec<&Copy<'_>>> = BTreeMap::new();
        for (name, said) in own {
            let copies = self.0.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
            let known = document.get(name).filter(|_| copies.iter().all(|copy| copy.name != *name));
            if copies.is_empty() && known.is_none() || known.is_some_and(|known| same(known, said)) {
                continue;
            }
            fitting.insert(name, copies.iter().filter(|copy| same(copy.said, said)).rev().collect());
        }
        // One that refers to something else does not fit, though it says the same.
        loop {
            let stays = |(name, now): &(String, String)| match fitting.get(name.as_str()) {
                None => name == now && (document.contains_key(name) || !own.contains_key(name)),
                Some(copies) => copies.last().is_some_and(|copy| copy.name == *now),
            };
            let fits = |copy: &&Copy<'_>| copy.references.iter().all(stays);
            let bad = |copies: &Vec<&Copy<'_>>| copies.last().is_some_and(|copy| !fits(copy));
            let bad: Vec<&str> = fitting.iter().filter(|(_, copies)| bad(copies)).map(|(name, _)| *name).collect();
            if bad.is_empty() {
                break;
            }
            for name in bad {
                fitting.get_mut(name).and_then(Vec::pop);
            }
        }
        let free = |name: &str| {
            let mut names = (2_u32..).map(|number| format!("{name}_v{number}"));
            names.find(|other| !document.contains_key(other) && !own.contains_key(other))
        };
        let named = own.keys().map(|name| {
            let now = match fitting.get(name.as_str()).map(|copies| copies.last()) {
                None => None,
                Some(Some(copy)) => Some(copy.name.clone()),
                Some(None) => free(name),
            };
            (name.as_str(), now.unwrap_or_else(|| name.to_string()))
        });
        named.collect()
    }
}

/// Whether two definitions say the same. Which kinds they are of may differ from server to server.
fn same(one: &Value, other: &Value) -> bool {
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return one == other };
    let size = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key(KINDS));
    size(one) == size(other) && one.iter().all(|(key, value)| key == KINDS || other.get(key) == Some(value))
}

/// Adds the kinds of one definition to those of another.
fn add_kinds(known: &mut Value, said: &Value) {
    let Some(more) = said[KINDS].as_array() else { return };
    let Some(known) = known.as_object_mut() else { return };
    let list = known.entry(KINDS).or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list {
        for kind in more {
            if !list.contains(kind) {
                list.push(kind.clone());
            }
        }
    }
}

fn owned((key, value): (&Name, &Value)) -> (Name, Value) {
    (key.clone(), value.clone())
}

/// The name under which a document has a parameter, or can have it.
fn free_parameter(name: &str, said: &Value, document: &Map<String, Value>) -> String {
    let numbered = (2_u32..).map(|number| format!("{name}_v{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let free = names.find(|name| document.get(name).is_none_or(|known| known == said));
    free.unwrap_or_else(|| name.to_owned())
}

/// Collects the names of what a value refers to below some place of its document.
fn references(value: &Value, prefix: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str().and_then(|text| text.strip_prefix(prefix)) {
                    Some(name) if key == "$ref" => out.push(name.to_owned()),
                    _ => references(value, prefix, out),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, prefix, out)),
        _ => {}
    }
}

/// Lets references to some things below a place of the document lead to others there.
fn rename(value: &mut Value, prefix: &str, names: &BTreeMap<&str, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = value.as_str().and_then(|text| text.strip_prefix(prefix));
                match name.filter(|_| key == "$ref").and_then(|name| names.get(name)) {
                    Some(other) => *value = format!("{prefix}{other}").into(),
                    None => rename(value, prefix, names),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, prefix, names)),
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
        part.add_to([&mut paths, &mut definitions, &mut json!({})], &mut Copies::default());
        assert_eq!(paths["/apis/g/v1/"]["schema"]["$ref"], "#/definitions/Thing");
        assert_eq!(definitions["Thing"]["properties"]["meta"]["$ref"], "#/definitions/Meta", "it is the same");

        let (mut paths, mut definitions) = (json!({}), json!({"Meta": {"type": "string"}}));
        part.add_to([&mut paths, &mut definitions, &mut json!({})], &mut Copies::default());
        assert_eq!(definitions["Thing"]["properties"]["meta"]["$ref"], "#/definitions/Meta_v2");
        assert_eq!(
            (&definitions["Meta"]["type"], &definitions["Meta_v2"]["type"]),
            (&json!("string"), &json!("object"))
        );
    }

    /// A part whose things refer to `List`, which refers to `Meta` of some type.
    fn shared(group: &str, meta: &str) -> Older {
        let reference = |name: &str| json!({"$ref": format!("{PREFIX}{name}")});
        let below = format!("/apis/{group}/v1");
        let document = json!({
            "paths": {(&below): {"schema": reference("List")}},
            "definitions": {
                "List": {"properties": {"meta": reference("Meta"), "more": reference("List")}},
                "Meta": {"type": meta, KINDS: [{"group": group}]},
            },
        });
        Older::of(&below, String::new(), String::new(), &document)
    }

    #[test]
    fn parts_share_what_they_have_in_common() {
        let parts = [shared("a", "object"), shared("b", "object"), shared("c", "array"), shared("d", "string")];
        let mut paths = json!({});
        let mut definitions = json!({"Meta": {"type": "string"}, "List": {"type": "other"}});
        let mut copies = Copies::default();
        parts.iter().for_each(|part| part.add_to([&mut paths, &mut definitions, &mut json!({})], &mut copies));
        let list = |group: &str| paths[format!("/apis/{group}/v1")]["schema"]["$ref"].as_str().unwrap_or_default();
        let of = |name: &str| definitions[name.trim_start_matches(PREFIX)].clone();
        let meta = |group: &str| of(of(list(group))["properties"]["meta"]["$ref"].as_str().unwrap_or_default());
        assert_eq!(list("a"), "#/definitions/List_v2");
        assert_eq!(list("b"), "#/definitions/List_v2");
        assert_eq!(definitions["List_v2"]["properties"]["more"]["$ref"], list("a"));
        assert_eq!(
            meta("b"),
            json!({"type": "object", KINDS: [{"group": "a"}, {"group": "b"}]}),
            "of the kinds of both"
        );
        // Their lists read the same, and are lists of something else.
        assert_eq!((list("c"), &meta("c")["type"]), ("#/definitions/List_v3", &json!("array")));
        assert_eq!((list("d"), &meta("d")["type"]), ("#/definitions/List_v4", &json!("string")));
        assert_eq!(
            definitions["Meta"],
            json!({"type": "string", KINDS: [{"group": "d"}]}),
            "as ours, but for its kinds"
        );
        assert_eq!(definitions.as_object().map(Map::len), Some(7));
    }

    #[test]
    fn what_only_other_servers_have_is_shared_too() {
        let parts = [shared("a", "object"), shared("b", "object")];
        let (mut paths, mut definitions, mut copies) =
            (json!({}), json!({"Meta": {"type": "string"}}), Copies::default());
        parts.iter().for_each(|part| part.add_to([&mut paths, &mut definitions, &mut json!({})], &mut copies));
        let names: BTreeSet<&Name> = definitions.as_object().into_iter().flatten().map(|(name, _)| name).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["List", "Meta", "Meta_v2"]);
    }

    #[test]
    fn parameters_that_paths_refer_to_come_with_them() {
        let document = json!({
            "paths": {"/apis/g/v1/": {"parameters": [{"$ref": "#/parameters/a"}, {"$ref": "#/parameters/b"}]}},
            "parameters": {"a": {"name": "a"}, "b": {"schema": {"$ref": "#/definitions/Meta"}}, "c": {"name": "c"}},
            "definitions": {"Meta": {"type": "object"}},
        });
        let part = Older::of("/apis/g/v1", String::new(), String::new(), &document);
        let mut paths = json!({});
        let mut definitions = json!({"Meta": {"type": "string"}});
        let mut parameters = json!({"a": {"name": "other"}});
        part.add_to([&mut paths, &mut definitions, &mut parameters], &mut Copies::default());
        let asked = &paths["/apis/g/v1/"]["parameters"];
        assert_eq!(*asked, json!([{"$ref": "#/parameters/a_v2"}, {"$ref": "#/parameters/b"}]));
        let body = json!({"schema": {"$ref": "#/definitions/Meta_v2"}});
        assert_eq!(parameters, json!({"a": {"name": "other"}, "a_v2": {"name": "a"}, "b": body}));
        let mut again = json!({});
        part.add_to([&mut again, &mut json!({}), &mut parameters], &mut Copies::default());
        assert_eq!(again["/apis/g/v1/"]["parameters"][0], json!({"$ref": "#/parameters/a_v2"}), "it is there already");
    }
}
