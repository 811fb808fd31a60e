//! Applies and updates by several managers, against a model of who owns what.
//!
//! The model knows an object as paths with values: `.spec.hostname` is "a", `.spec.containers[name="c"]` is there. A
//! manager owns a set of paths.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{Fields, KINDS, Kind, Shape, chance, members, value};
use crate::apply::{Writer, apply, created, updated};
use crate::fuzz::{Random, rounds};

type Paths = BTreeMap<String, Value>;

/// Name of a manager, and whether it applies.
type Owner = (&'static str, bool);

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    object: Paths,
    owners: BTreeMap<Owner, BTreeSet<String>>,
}

fn text(value: &Value) -> String {
    value.to_string()
}

/// What stands at each path of an object: values that have one owner, and items of lists.
fn flat(fields: Fields, at: &str, value: &Value, out: &mut Paths) {
    for (name, shape) in fields {
        let Some(value) = value.get(*name).filter(|v| !v.is_null()) else { continue };
        let at = format!("{at}.{name}");
        match shape {
            Shape::Struct(inner) => flat(inner, &at, value, out),
            Shape::Labels => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    out.insert(format!("{at}.{key}"), value.clone());
                }
            }
            Shape::Values => {
                for value in value.as_array().into_iter().flatten() {
                    out.insert(format!("{at}[={}]", text(value)), json!({}));
                }
            }
            Shape::Items(keys, inner) => {
                for item in value.as_array().into_iter().flatten() {
                    let named: Vec<String> =
                        keys.iter().map(|(key, _)| format!("{key}={}", text(&item[*key]))).collect();
                    let at = format!("{at}[{}]", named.join(","));
                    out.insert(at.clone(), json!({}));
                    // An item of nothing but keys has one owner.
                    if !inner.is_empty() {
                        flat(keys, &at, item, out);
                        flat(inner, &at, item, out);
                    }
                }
            }
            _ => drop(out.insert(at, value.clone())),
        }
    }
}

fn flattened(kind: &Kind, object: &Value) -> Paths {
    let mut out = Paths::new();
    flat(kind.fields, "", object, &mut out);
    out
}

/// Whether one path leads through the other.
fn below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.starts_with(['.', '[']))
}

impl Model {
    /// Who else owns a path that would get another value.
    fn conflicts(&self, manager: Owner, config: &Paths) -> BTreeSet<(Owner, String)> {
        let mut out = BTreeSet::new();
        for (owner, owned) in self.owners.iter().filter(|(o, _)| **o != manager) {
            for path in owned {
                if config.get(path).is_some_and(|value| self.object.get(path) != Some(value)) {
                    out.insert((*owner, path.clone()));
                }
            }
        }
        out
    }

    /// What an object holds that nobody is known to own.
    fn give_away(&mut self) {
        self.owners.insert((BEFORE, false), self.object.keys().cloned().collect());
    }

    fn apply(&mut self, manager: Owner, config: Paths, force: bool) -> Result<(), BTreeSet<(Owner, String)>> {
        let conflicts = self.conflicts(manager, &config);
        if !conflicts.is_empty() && !force {
            return Err(conflicts);
        }
        for (owner, path) in conflicts {
            self.owners.entry(owner).or_default().remove(&path);
        }
        let now: BTreeSet<String> = config.keys().cloned().collect();
        let before = self.owners.insert(manager, now).unwrap_or_default();
        self.object.extend(config);
        // What it does not say any more goes, unless somebody else owns it. An item takes with it what others own in it.
        for path in before {
            if !self.owners.values().any(|owned| owned.contains(&path)) {
                let gone = |p: &String| *p == path || below(p, &path);
                self.object.retain(|p, _| !gone(p));
                self.owners.values_mut().for_each(|owned| owned.retain(|p| !gone(p)));
            }
        }
        self.owners.retain(|_, owned| !owned.is_empty());
        Ok(())
    }

    /// `owned` is false where nobody owns anything, and a mere update does not begin with it.
    fn update(&mut self, manager: Owner, object: Paths, owned: bool) {
        if !owned {
            self.object = object;
            return;
        }
        let taken: BTreeSet<String> = object
            .iter()
            .filter(|(path, value)| self.object.get(*path) != Some(value))
            .map(|(p, _)| p.clone())
            .collect();
        let own = self.owners.entry(manager).or_default();
        own.extend(taken.iter().cloned());
        for (owner, owned) in &mut self.owners {
            owned.retain(|path| object.contains_key(path) && (*owner == manager || !taken.contains(path)));
        }
        self.owners.retain(|_, owned| !owned.is_empty());
        self.object = object;
    }
}

/// Owners as the object lists them, as far as the model knows their paths.
fn listed(kind: &Kind, object: &Value) -> BTreeMap<Owner, BTreeSet<String>> {
    let mut out = BTreeMap::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let name = NAMES.iter().find(|name| entry["manager"] == **name).expect("a manager of ours");
        let mut owned = BTreeSet::new();
        fields_of(Some(&Shape::Struct(kind.fields)), "", &entry["fieldsV1"], &mut owned);
        if !owned.is_empty() {
            out.insert((*name, entry["operation"] == "Apply"), owned);
        }
    }
    out
}

/// Paths in a field set that lead to a value or to an item of a list.
fn fields_of(shape: Option<&Shape>, at: &str, fields: &Value, out: &mut BTreeSet<String>) {
    for (key, inner) in fields.as_object().into_iter().flatten() {
        let (sort, rest) = key.split_at_checked(2).unwrap_or((key, ""));
        let parsed = || serde_json::from_str::<Value>(rest).expect("JSON");
        let (path, next) = match (sort, shape) {
            (".", _) if at.ends_with(']') => (at.to_owned(), None),
            (".", _) => continue,
            ("v:", _) => (format!("{at}[={}]", text(&parsed())), Some(None)),
            ("k:", Some(Shape::Items(keys, _))) => {
                let item = parsed();
                let named: Vec<String> = keys.iter().map(|(key, _)| format!("{key}={}", text(&item[*key]))).collect();
                let at = format!("{at}[{}]", named.join(","));
                if inner.as_object().is_some_and(Map::is_empty) {
                    out.insert(at.clone());
                }
                fields_of(shape, &at, inner, out);
                continue;
            }
            ("f:", Some(Shape::Struct(fields))) => {
                (format!("{at}.{rest}"), Some(fields.iter().find(|f| f.0 == rest).map(|f| &f.1)))
            }
            ("f:", Some(Shape::Items(keys, fields))) => {
                (format!("{at}.{rest}"), Some(keys.iter().chain(*fields).find(|f| f.0 == rest).map(|f| &f.1)))
            }
            ("f:", Some(Shape::Labels)) => (format!("{at}.{rest}"), Some(Some(&Shape::Text))),
            other => panic!("{other:?} at {at}"),
        };
        match next {
            Some(Some(shape @ (Shape::Struct(_) | Shape::Labels | Shape::Items(..) | Shape::Values))) => {
                fields_of(Some(shape), &path, inner, out);
            }
            // A field that only the server has, like a time.
            Some(None) if sort == "f:" => {}
            _ => drop(out.insert(path)),
        }
    }
}

const BEFORE: &str = "before-first-apply";
const NAMES: [&str; 5] = ["ann", "bob", "cleo", "dan", BEFORE];

/// The conflicts that a refusal lists.
fn told(error: &crate::status::ApiError) -> BTreeSet<(Owner, String)> {
    let causes = error.status().details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
    let owner = |message: &str| {
        let name = NAMES.iter().find(|name| message.contains(&format!("\"{name}\""))).expect("a manager of ours");
        (*name, !message.contains(" using "))
    };
    causes.into_iter().map(|cause| (owner(&cause.message), cause.field)).collect()
}

/// An object with some of its fields changed, added and taken out.
fn changed(random: &mut Random, fields: Fields, object: &Value) -> Value {
    let mut out = object.as_object().cloned().unwrap_or_default();
    for (name, shape) in fields {
        if !chance(random, 30) {
            continue;
        }
        match (shape, out.get(*name).cloned()) {
            (Shape::Struct(inner), Some(old)) => drop(out.insert((*name).into(), changed(random, inner, &old))),
            (Shape::Items(_, inner), Some(Value::Array(old))) if chance(random, 70) => {
                let kept: Vec<Value> = old.iter().filter(|_| chance(random, 80)).cloned().collect();
                let items = kept.iter().map(|i| if chance(random, 50) { changed(random, inner, i) } else { i.clone() });
                out.insert((*name).into(), items.collect());
            }
            (_, Some(_)) if chance(random, 30) => drop(out.remove(*name)),
            _ => drop(out.insert((*name).into(), value(random, shape))),
        }
    }
    out.into()
}

/// Items of a list by their keys.
fn keys_of(keys: Fields, list: &Value) -> Vec<Vec<Value>> {
    let items = list.as_array().into_iter().flatten();
    items.map(|item| keys.iter().map(|(key, _)| item[*key].clone()).collect()).collect()
}

/// Lists follow the configuration where it names items, and the object before where it does not.
fn ordered(fields: Fields, before: &Value, config: &Value, after: &Value) {
    for (name, shape) in fields {
        let (before, config, after) = (&before[*name], &config[*name], &after[*name]);
        match shape {
            Shape::Struct(inner) => ordered(inner, before, config, after),
            Shape::Items(keys, _) => in_order(&keys_of(keys, before), &keys_of(keys, config), &keys_of(keys, after)),
            Shape::Values => {
                let values = |list: &Value| list.as_array().cloned().unwrap_or_default();
                in_order(&values(before), &values(config), &values(after));
            }
            _ => {}
        }
    }
}

fn in_order<T: PartialEq + Clone + std::fmt::Debug>(before: &[T], config: &[T], after: &[T]) {
    let told: Vec<T> = after.iter().filter(|item| config.contains(item)).cloned().collect();
    assert_eq!(told, config, "{before:?} {after:?}");
    let others: Vec<T> = after.iter().filter(|item| !config.contains(item)).cloned().collect();
    let kept: Vec<T> = before.iter().filter(|item| others.contains(item)).cloned().collect();
    assert_eq!(others, kept, "{before:?} {config:?} {after:?}");
}

/// One object and its model, and what was done to both.
struct Story<'a> {
    kind: &'a Kind,
    live: Option<Value>,
    model: Model,
    told: Vec<String>,
}

impl Story<'_> {
    fn applies(&mut self, random: &mut Random, manager: &'static str, last: &mut BTreeMap<&'static str, Value>) {
        let kind = self.kind;
        let resource = kind.resource();
        let fields = match last.get(manager).filter(|_| chance(random, 60)) {
            Some(before) => changed(random, kind.fields, before).as_object().cloned().unwrap_or_default(),
            None => members(random, kind.fields, 70),
        };
        let config = kind.object(without_owners(fields));
        let force = chance(random, 40);
        self.told.push(format!("{manager} applies (force {force}) {config}"));
        let writer = Writer { resource: &resource, subresource: "", manager };
        let done = apply(writer, self.live.as_ref(), &config, force);
        let before = self.model.clone();
        if self.live.as_ref().is_some_and(|live| !is_owned(live)) {
            self.model.give_away();
        }
        let wanted = self.model.apply((manager, true), flattened(kind, &config), force);
        match (done, wanted) {
            (Ok(after), Ok(())) => {
                let after = kind.normal(after);
                ordered(kind.fields, self.live.as_ref().unwrap_or(&Value::Null), &config, &after);
                self.live = Some(after);
                last.insert(manager, config);
            }
            (Err(error), Err(wanted)) => {
                assert_eq!(told(&error), wanted, "\n{self}");
                self.model = before;
            }
            (done, wanted) => panic!("{done:?}, but the model says {wanted:?}\n{self}"),
        }
    }

    fn updates(&mut self, random: &mut Random, manager: &'static str) {
        let kind = self.kind;
        let resource = kind.resource();
        let writer = Writer { resource: &resource, subresource: "", manager };
        let mut new = match &self.live {
            Some(live) => kind.normal(changed(random, kind.fields, live)),
            None => kind.object(members(random, kind.fields, 70)),
        };
        self.told.push(format!("{manager} updates to {}", bare(&new)));
        match &self.live {
            Some(live) => updated(writer, live, &mut new),
            None => created(writer, &mut new),
        }
        let owned = self.live.as_ref().is_none_or(is_owned);
        self.model.update((manager, false), flattened(kind, &new), owned);
        self.live = Some(new);
    }
}

fn is_owned(object: &Value) -> bool {
    object["metadata"]["managedFields"].as_array().is_some_and(|list| !list.is_empty())
}

fn without_owners(mut fields: Map<String, Value>) -> Map<String, Value> {
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    fields
}

fn bare(object: &Value) -> Value {
    Value::Object(without_owners(object.as_object().cloned().unwrap_or_default()))
}

impl std::fmt::Display for Story<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.told.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[test]
fn owners_and_fields_are_those_of_the_model() {
    rounds(400, |random| {
        let kind = random.pick(&KINDS);
        let mut story = Story { kind, live: None, model: Model::default(), told: Vec::new() };
        let mut last = BTreeMap::new();
        for _ in 0..8 {
            let manager = *random.pick(&NAMES[..4]);
            match chance(random, 70) {
                true => story.applies(random, manager, &mut last),
                false => story.updates(random, manager),
            }
            let Some(live) = &story.live else { continue };
            assert_eq!(flattened(kind, live), story.model.object, "\n{story}");
            assert_eq!(listed(kind, live), story.model.owners, "\n{story}");
        }
    });
}
