//! Rules of a schema (`x-kubernetes-validations`): compiled when a definition is written, evaluated for its objects.
//!
//! Follows `apiserver/schema/cel`. A rule sees its value as `self`, and the value before an update as `oldSelf`; rules
//! with `oldSelf` hold for updates of values that can be matched with old ones: members of objects, and items that have
//! keys. What an update leaves as it was only warns, where the schema knows all of it.

use std::sync::Arc;

use serde_json::Value;

use super::correlation::{Correlation, Pair};
use super::cost::Total;
use super::definition::{Found, Ruled, show_rule};
use super::schema::{ListType, Rule, Schema};
use crate::cel::{self, Budget, Failure, Field, ObjectType, Program, Type};
use crate::go_value;
use crate::status::{Cause, quote};

/// Steps that the rules of one object may take together.
pub const BUDGET: u64 = 10_000_000;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
/// Longest text that a message expression may make.
const LONGEST_MESSAGE: usize = 5 << 10;

/// A rule ready to be evaluated.
#[derive(Debug)]
pub struct Compiled {
    rule: Result<Program, String>,
    message: Option<Result<Program, String>>,
}

/// The type of a value as rules see it; None for values that they do not see.
pub fn declared(schema: &Schema, root: bool) -> Option<Type> {
    if schema.int_or_string {
        return Some(Type::Dyn);
    }
    let format = schema.checks.as_ref().map_or("", |c| &c.format);
    Some(match &*schema.ty {
        "array" => {
            let items = schema.items.as_deref()?;
            Type::list(declared(items, items.embedded)?)
        }
        "object" => match schema.values() {
            Some(values) if !root => Type::map(declared(values, values.embedded)?),
            _ => Type::Object(Arc::new(object(schema, root))),
        },
        "string" => match format {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Timestamp,
            _ => Type::Text,
        },
        "boolean" => Type::Bool,
        "number" => Type::Double,
        "integer" => Type::Int,
        _ => return None,
    })
}

fn object(schema: &Schema, root: bool) -> ObjectType {
    let mut out = ObjectType { name: "object".into(), ..ObjectType::default() };
    for (name, member) in &schema.properties {
        if let (Some(escaped), Some(ty)) = (cel::escape(name), declared(member, member.embedded)) {
            out.fields.insert(escaped, Field { json: name.to_string(), ty, order: (*member.order).clone() });
        }
    }
    if root {
        let text = |name: &str| (name.to_owned(), Field::new(name, Type::Text));
        let metadata = ObjectType { name: "object".into(), fields: [text("name"), text("generateName")].into() };
        out.fields.extend([text("kind"), text("apiVersion")]);
        out.fields.insert("metadata".into(), Field::new("metadata", Type::Object(metadata.into())));
    }
    out
}

impl Rule {
    fn compiled(&self, ty: &Type) -> &Compiled {
        self.compiled.get_or_init(|| {
            let old = if self.optional_old_self == Some(true) { Type::optional(ty.clone()) } else { ty.clone() };
            let variables = [("self", ty.clone()), ("oldSelf", old)];
            let message = Some(&self.message_expression).filter(|m| !m.is_empty());
            Compiled {
                rule: compile_to(
                    &self.rule,
                    &variables,
                    &Type::Bool,
                    "compilation failed: ",
                    "cel expression must evaluate to a bool",
                ),
                message: message.map(|text| {
                    let wrong = "messageExpression must evaluate to a string";
                    compile_to(text, &variables, &Type::Text, "messageExpression compilation failed: ", wrong)
                }),
            }
        })
    }

    /// What a failed rule is called.
    fn name(&self) -> &str {
        if self.message.is_empty() { self.rule.trim() } else { self.message.trim() }
    }
}

fn compile_to(
    text: &str,
    variables: cel::Variables<'_>,
    wanted: &Type,
    failed: &str,
    wrong: &str,
) -> Result<Program, String> {
    let program = cel::compile(text, variables).map_err(|why| format!("{failed}{why}"))?;
    if program.output == *wanted { Ok(program) } else { Err(wrong.to_owned()) }
}

/// Checks that the rules of a definition's schema compile.
pub fn compile(nodes: &[Ruled], path: &str, known: bool, found: &mut Found) {
    let mut total = Total::default();
    for node in nodes {
        let Some(ty) = declared(&node.schema, node.root) else { continue };
        for (index, rule) in node.schema.rules.iter().enumerate() {
            if rule.rule.trim().is_empty() {
                continue;
            }
            let at = |key: &str| format!("{}.x-kubernetes-validations[{index}].{key}", node.path);
            let compiled = rule.compiled(&ty);
            let shown = || show_rule(&node.shown[index]);
            let transition = match &compiled.rule {
                Ok(program) => {
                    total.rule(node, index, &ty, known, found);
                    match &compiled.message {
                        Some(Err(why)) => found.invalid(&at("messageExpression"), &shown(), why),
                        Some(Ok(_)) => total.message(node, index, &ty, known, found),
                        None => {}
                    }
                    program.uses("oldSelf")
                }
                Err(why) => {
                    found.invalid(&at("rule"), &shown(), why);
                    false
                }
            };
            if transition {
                if let Some(place) = &node.uncorrelated {
                    let why =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {place}");
                    found.invalid(&at("rule"), &quote(&rule.rule), &why);
                }
            } else if let Some(said) = rule.optional_old_self {
                let why = "may not be set if oldSelf is not used in rule";
                found.invalid(&at("optionalOldSelf"), &said.to_string(), why);
            }
        }
    }
    total.end(path, found);
}

/// Evaluates every rule of an object; `old` is what an update replaces.
pub fn check(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    let here = old.map(|old| Pair { new, old, schema });
    evaluate(schema, true, (new, old), Matched { here, above: None }, &mut Budget::new(BUDGET))
}

/// The same for a value that is or is not a whole object, of which nothing is forgiven.
pub fn check_at(schema: &Schema, root: bool, new: &Value, old: Option<&Value>, budget: &mut Budget) -> Vec<Cause> {
    evaluate(schema, root, (new, old), Matched { here: None, above: None }, budget)
}

fn evaluate<'a>(
    schema: &'a Schema,
    root: bool,
    (new, old): (&'a Value, Option<&'a Value>),
    matched: Matched<'a>,
    budget: &mut Budget,
) -> Vec<Cause> {
    let mut walk = Walk { causes: Vec::new(), budget: *budget, exhausted: false, all: Correlation::default() };
    walk.node(schema, root, "", new, old, matched);
    *budget = if walk.exhausted { Budget::new(0) } else { walk.budget };
    walk.causes
}

/// What an update is matched with, to tell whether it left a value as it was: the value itself, None where it cannot be
/// matched, and the nearest that could above it.
#[derive(Clone, Copy)]
struct Matched<'a> {
    here: Option<Pair<'a>>,
    above: Option<Pair<'a>>,
}

impl<'a> Matched<'a> {
    /// `below` finds the pair of a part of the value.
    fn part(self, below: impl FnOnce(Pair<'a>) -> Option<Pair<'a>>) -> Self {
        match self.here {
            None => self,
            Some(here) => Matched { here: below(here), above: self.here },
        }
    }

    fn member(self, name: &str) -> Self {
        // Both sides of an update were brought into one kind and version, so that a change of these does not show.
        if self.above.is_none() && self.here.is_some() && matches!(name, "kind" | "apiVersion") {
            return Matched { here: None, above: None };
        }
        self.part(|here| Correlation::key(here, name))
    }
}

struct Walk<'a> {
    causes: Vec<Cause>,
    budget: Budget,
    /// Nothing is evaluated any more.
    exhausted: bool,
    all: Correlation<'a>,
}

impl<'a> Walk<'a> {
    fn node(
        &mut self,
        schema: &'a Schema,
        root: bool,
        path: &str,
        new: &'a Value,
        old: Option<&'a Value>,
        matched: Matched<'a>,
    ) {
        if new.is_null() || self.exhausted {
            return;
        }
        let old = old.filter(|o| !o.is_null());
        self.rules(schema, root, path, new, old, matched);
        match new {
            Value::Array(items) => {
                let Some(item) = schema.items.as_deref().filter(|item| item.ruled) else { return };
                for (index, inner) in items.iter().enumerate() {
                    let of_keys = old.filter(|_| schema.list == ListType::Map);
                    let before = of_keys.and_then(|old| self.all.item(schema, old, inner));
                    let matched = matched.part(|here| self.all.index(here, index));
                    self.node(item, item.embedded, &format!("{path}[{index}]"), inner, before, matched);
                }
            }
            Value::Object(map) => {
                for (key, inner) in map {
                    // Atomic or not, members of a map are the same as long as they have the same name.
                    let before = old.and_then(|o| o.get(key));
                    let (member, path) = match schema.properties.get(&**key) {
                        Some(member) if path.is_empty() => (member, key.to_string()),
                        Some(member) => (member, format!("{path}.{key}")),
                        None => match schema.values() {
                            Some(values) => (values, format!("{path}[{key}]")),
                            None => continue,
                        },
                    };
                    if member.ruled {
                        self.node(member, member.embedded, &path, inner, before, matched.member(key));
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a complaint about a value only warns, because an update left it as it was.
    fn forgives(&mut self, matched: Matched<'a>) -> bool {
        matched.here.or(matched.above).is_some_and(|pair| self.all.equal(pair))
    }

    fn rules(
        &mut self,
        schema: &'a Schema,
        root: bool,
        path: &str,
        new: &'a Value,
        old: Option<&'a Value>,
        matched: Matched<'a>,
    ) {
        if schema.rules.is_empty() {
            return;
        }
        if self.budget.is_exhausted() {
            return self.stop(path, schema, OUT_OF_BUDGET);
        }
        let Some(ty) = schema.declared.get_or_init(|| declared(schema, root)) else { return };
        let new_self = cel::Value::ordered(new, ty, &schema.order);
        let old_self = old.map(|old| cel::Value::ordered(old, ty, &schema.order));
        for rule in schema.rules.iter().filter(|r| !r.rule.trim().is_empty()) {
            let compiled = rule.compiled(ty);
            let program = match &compiled.rule {
                Ok(program) => program,
                Err(why) => {
                    self.complain(path, schema, &format!("rule compile error: {why}"));
                    continue;
                }
            };
            let transition = program.uses("oldSelf");
            let optional = rule.optional_old_self == Some(true);
            if transition && old_self.is_none() && !optional {
                continue;
            }
            // A message sees the old value itself, whatever the rule sees.
            let plain: Vec<_> = [("self", Some(&new_self)), ("oldSelf", old_self.as_ref())]
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?.clone())))
                .collect();
            let outcome = if optional {
                let old = old_self.clone().map_or(cel::Value::Optional(None), cel::Value::some);
                program.eval(&[("self", new_self.clone()), ("oldSelf", old)], &mut self.budget)
            } else {
                program.eval(&plain, &mut self.budget)
            };
            match outcome {
                Ok(cel::Value::Bool(true)) => {}
                Ok(_) => {
                    let forgiven = !transition && self.forgives(matched);
                    self.failed(schema, rule, compiled, path, new, &plain, forgiven);
                    if self.exhausted {
                        return;
                    }
                }
                Err(Failure::OverBudget) if self.budget.is_exhausted() => {
                    return self.stop(path, schema, OUT_OF_BUDGET);
                }
                Err(Failure::OverBudget) => {
                    let why = format!(
                        "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due \
                         to call cost exceeds limit for rule: {}",
                        rule.name()
                    );
                    return self.stop(path, schema, &why);
                }
                Err(Failure::Error(text)) if text.starts_with("no such overload") => {
                    let why = format!(
                        "'{text}': call arguments did not match a supported operator, function or macro signature for \
                         rule: {}",
                        rule.name()
                    );
                    self.complain(path, schema, &why);
                }
                Err(Failure::Error(text)) => {
                    self.complain(path, schema, &format!("{text} evaluating rule: {}", rule.name()));
                }
            }
        }
    }

    /// The last complaint: no more rules are evaluated.
    fn stop(&mut self, path: &str, schema: &Schema, why: &str) {
        self.complain(path, schema, why);
        self.exhausted = true;
    }

    /// A complaint that shows the type of the value.
    fn complain(&mut self, path: &str, schema: &Schema, why: &str) {
        self.causes.push(Cause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {}: {why}", quote(&schema.ty)),
            field: field(path),
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn failed(
        &mut self,
        schema: &Schema,
        rule: &Rule,
        compiled: &Compiled,
        path: &str,
        new: &Value,
        variables: &[(&str, cel::Value<'_>)],
        forgiven: bool,
    ) {
        let path = &*match (path, &*rule.field) {
            (path, "") => path.to_owned(),
            ("", own) => own.to_owned(),
            // A key that comes first stands behind a point, too.
            (path, own) => format!("{path}.{own}"),
        };
        let message = match &compiled.message {
            Some(Ok(program)) => match self.message(program, variables) {
                Ok(message) => message,
                Err(limit) => {
                    let why = match limit {
                        Limit::Total => "messageExpression evaluation failed due to running out of cost budget, no \
                                         further validation rules will be run"
                            .to_owned(),
                        Limit::Call => format!(
                            "no further validation rules will be run due to call cost exceeds limit for \
                             messageExpression: {}",
                            quote(&rule.message_expression)
                        ),
                    };
                    let message = format!("Invalid value: {}: {why}", quote(&schema.ty));
                    self.tell(path, "FieldValueInvalid", message, forgiven);
                    self.exhausted = true;
                    return;
                }
            },
            _ => None,
        };
        let detail = message.unwrap_or_else(|| {
            if rule.message.is_empty() {
                format!("failed rule: {}", rule.name())
            } else {
                rule.message.trim().to_owned()
            }
        });
        // Objects and lists are too long to be shown.
        let shown = match (&*schema.ty, new) {
            ("object" | "array", _) => String::new(),
            (_, Value::String(text)) => format!(": {}", quote(text)),
            (_, Value::Number(number)) if number.is_f64() => {
                format!(": {}", go_value::float(number.as_f64().unwrap_or_default()))
            }
            (_, other) => format!(": {other}"),
        };
        let (reason, message) = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => ("FieldValueForbidden", format!("Forbidden: {detail}")),
            Some("FieldValueRequired") => ("FieldValueRequired", format!("Required value: {detail}")),
            Some("FieldValueDuplicate") => ("FieldValueDuplicate", format!("Duplicate value{shown}")),
            _ => ("FieldValueInvalid", format!("Invalid value{shown}: {detail}")),
        };
        self.tell(path, reason, message, forgiven);
    }

    fn tell(&mut self, path: &str, reason: &str, message: String, forgiven: bool) {
        if forgiven {
            crate::warning::add(format!("{}: {message}", field(path)));
        } else {
            self.causes.push(Cause { reason: reason.into(), message, field: field(path) });
        }
    }

    /// The text that a message expression makes; None when it makes none that is fit to be shown.
    ///
    /// # Errors
    /// The budget that it went over.
    fn message(&mut self, program: &Program, variables: &[(&str, cel::Value<'_>)]) -> Result<Option<String>, Limit> {
        let text = match program.eval(variables, &mut self.budget) {
            Ok(cel::Value::Text(text)) => text,
            Err(Failure::OverBudget) if self.budget.is_exhausted() => return Err(Limit::Total),
            Err(Failure::OverBudget) => return Err(Limit::Call),
            _ => return Ok(None),
        };
        let text = text.trim();
        let fits = !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n');
        Ok(fits.then(|| text.to_owned()))
    }
}

/// Which budget was used up: that of one evaluation, or of all.
enum Limit {
    Call,
    Total,
}

fn field(path: &str) -> String {
    if path.is_empty() { "<nil>".into() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is said of an update, then what it is warned of.
    fn told(schema: &Value, new: &Value, old: &Value) -> (Vec<String>, Vec<String>) {
        let schema = Schema::parse(schema);
        let mut causes = Vec::new();
        let work = async {
            let found = check(&schema, new, Some(old));
            causes = found.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let ((), warnings) = runtime.block_on(crate::warning::collect(std::pin::pin!(work)));
        (causes, warnings)
    }

    fn spec(schema: Value) -> Value {
        json!({"type": "object", "properties": {"spec": schema}})
    }

    #[test]
    fn members_of_atomic_maps_are_matched_and_items_of_atomic_lists_are_not() {
        let same = json!([{"rule": "self == oldSelf", "message": "is immutable"}]);
        let atomic = spec(json!({"type": "object", "x-kubernetes-map-type": "atomic",
            "properties": {"a": {"type": "string", "x-kubernetes-validations": same}}}));
        let (causes, _) = told(&atomic, &json!({"spec": {"a": "x"}}), &json!({"spec": {"a": "y"}}));
        assert_eq!(causes, ["spec.a: Invalid value: \"x\": is immutable"]);
        let list = |ty: &str| {
            spec(json!({"type": "array", "x-kubernetes-list-type": ty, "x-kubernetes-list-map-keys": ["k"], "items":
                {"type": "object", "x-kubernetes-validations": same,
                "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}}))
        };
        let (new, old) = (json!({"spec": [{"k": "b", "v": 1}]}), json!({"spec": [{"k": "a"}, {"k": "b", "v": 2}]}));
        assert_eq!(told(&list("map"), &new, &old).0, ["spec[0]: Invalid value: is immutable"]);
        assert_eq!(told(&list("atomic"), &new, &old).0, [""; 0]);
    }

    #[test]
    fn lists_of_sets_and_maps_have_no_order() {
        let list = |ty: &str, items: Value, rule: &str| {
            let list = json!({"type": "array", "x-kubernetes-list-type": ty, "x-kubernetes-list-map-keys": ["k"],
                "items": items, "x-kubernetes-validations": [{"rule": rule, "message": "no"}]});
            json!({"type": "object", "properties": {"spec": list}})
        };
        let text = json!({"type": "string"});
        let pair = json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}});
        let holds = |ty: &str, items: &Value, rule: &str, new: Value, old: Value| {
            let (causes, _) = told(&list(ty, items.clone(), rule), &json!({"spec": new}), &json!({"spec": old}));
            causes.is_empty()
        };
        let same = "self == oldSelf";
        assert!(holds("set", &text, same, json!(["b", "a"]), json!(["a", "b"])));
        assert!(!holds("set", &text, same, json!(["b", "c"]), json!(["a", "b"])));
        assert!(!holds("set", &text, same, json!(["b"]), json!(["a", "b"])));
        assert!(!holds("atomic", &text, same, json!(["b", "a"]), json!(["a", "b"])));
        let (one, two) = (json!({"k": "a", "v": 1}), json!({"k": "b", "v": 2}));
        assert!(holds("map", &pair, same, json!([two, one]), json!([one, two])));
        assert!(!holds("map", &pair, same, json!([two, {"k": "a", "v": 3}]), json!([one, two])));
        // The first list keeps its places, and what is new comes behind.
        let union = "oldSelf + self == ['a', 'b', 'c'] || size(oldSelf + self) == 3";
        assert!(holds("set", &text, union, json!(["c", "a"]), json!(["a", "b"])));
        let merged = "(oldSelf + self).map(i, i.v) == [3, 2, 4]";
        assert!(holds("map", &pair, merged, json!([{"k": "c", "v": 4}, {"k": "a", "v": 3}]), json!([one, two])));
    }

    #[test]
    fn what_an_update_leaves_as_it_was_only_warns() {
        let short = json!([{"rule": "size(self.t) < 3", "message": "is too long"}]);
        let object = json!({"type": "object", "properties": {"t": {"type": "string"}, "k": {"type": "string"}},
            "x-kubernetes-validations": short});
        let members = spec(json!({"type": "object", "properties": {"a": object, "b": {"type": "integer"}}}));
        let of = |a: Value, b: i64| json!({"spec": {"a": a, "b": b}});
        let complaint = "spec.a: Invalid value: is too long";
        let long = json!({"t": "long"});
        assert_eq!(told(&members, &of(long.clone(), 2), &of(long.clone(), 1)), (vec![], vec![complaint.to_owned()]));
        assert_eq!(told(&members, &of(long.clone(), 2), &of(json!({"t": "lon"}), 1)).0, [complaint]);
        // Unknown members keep an object from being as it was.
        let open = json!({"t": "long", "u": 1});
        assert_eq!(told(&members, &of(open.clone(), 1), &of(open, 1)).0, [complaint]);
        // Items of a list are matched as the list says; those that cannot be follow the list as a whole.
        let list = |ty: Value| {
            spec(
                json!({"type": "array", "x-kubernetes-list-type": ty, "x-kubernetes-list-map-keys": ["k"], "items": object}),
            )
        };
        let (a, b) = (json!({"k": "a", "t": "long"}), json!({"k": "b", "t": "s"}));
        let (ab, ba) = (json!({"spec": [a, b]}), json!({"spec": [b, a]}));
        let more = json!({"spec": [a]});
        assert_eq!(told(&list(json!("map")), &ba, &ab).1.len(), 1);
        assert_eq!(told(&list(json!("map")), &more, &ab).1.len(), 1);
        assert_eq!(told(&list(json!("atomic")), &ab, &ab).1.len(), 1);
        assert_eq!(told(&list(json!("atomic")), &more, &ab).0.len(), 1);
        assert_eq!(told(&list(json!(null)), &more, &ab).1.len(), 1);
        assert_eq!(told(&list(json!(null)), &ba, &ab).0.len(), 1);
        // A whole object has metadata that its schema does not know.
        let root = json!({"type": "object", "properties": {"spec": {"type": "object"}}, "x-kubernetes-validations":
            [{"rule": "has(self.spec)", "message": "needs a spec"}]});
        let bare = json!({"metadata": {"name": "x"}});
        assert_eq!(told(&root, &bare, &bare).0, ["<nil>: Invalid value: needs a spec"]);
        // Rules about changes never only warn.
        let change = spec(json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}));
        assert_eq!(
            told(&change, &json!({"spec": 1}), &json!({"spec": 1})).0,
            ["spec: Invalid value: 1: failed rule: self > oldSelf"]
        );
    }

    #[test]
    fn an_old_value_that_may_be_missing_is_optional_for_the_rule_alone() {
        let rule = json!([{"rule": "oldSelf.orValue(0) < self", "optionalOldSelf": true, "message": "must grow",
            "messageExpression": "'was ' + string(oldSelf.value())"}]);
        let schema = spec(json!({"type": "object", "properties": {
            "n": {"type": "integer", "x-kubernetes-validations": rule}}}));
        let of = |n: i64| json!({"spec": {"n": n}});
        assert_eq!(told(&schema, &of(0), &json!({"spec": {}})).0, ["spec.n: Invalid value: 0: must grow"]);
        assert_eq!(told(&schema, &of(1), &json!({"spec": {}})).0, [""; 0]);
        assert_eq!(told(&schema, &of(1), &of(2)).0, ["spec.n: Invalid value: 1: must grow"]);
    }

    #[test]
    fn a_complaint_is_about_the_field_that_its_rule_names() {
        let schema = |path: &str, members: Value| {
            let mut node = json!({"type": "object", "x-kubernetes-validations":
                [{"rule": "false", "message": "no", "fieldPath": path, "reason": "FieldValueForbidden"}]});
            node.as_object_mut().expect("an object").extend(members.as_object().expect("an object").clone());
            node
        };
        let text = json!({"type": "string"});
        let members = json!({"properties": {"a.b": text, "m": {"type": "object", "additionalProperties": text}}});
        for (path, field) in
            [("['a.b']", "spec.a.b"), (".m.k", "spec.m[k]"), (".m['k.x']", "spec.m[k.x]"), ("", "spec")]
        {
            let (causes, _) = told(&spec(schema(path, members.clone())), &json!({"spec": {}}), &json!({}));
            assert_eq!(causes, [format!("{field}: Forbidden: no")]);
        }
        let map = spec(schema(".k", json!({"additionalProperties": text})));
        assert_eq!(told(&map, &json!({"spec": {}}), &json!({})).0, ["spec.[k]: Forbidden: no"]);
    }

    #[test]
    fn nothing_is_evaluated_after_the_budget() {
        let dear = "self.all(a, self.all(b, self.all(c, self.all(d, a == b || c == d || true))))";
        let numbers = json!({"spec": {"l": (0..200).collect::<Vec<i32>>()}});
        let schema = |rule: Value| {
            spec(json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"},
                "x-kubernetes-validations": [rule, {"rule": "false"}]}}}))
        };
        let (causes, _) = told(&schema(json!({"rule": dear})), &numbers, &json!({}));
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert!(causes[0].starts_with("spec.l: Invalid value: \"array\": 'operation cancelled: actual cost limit"));
        let message = format!("{dear} ? 'a' : 'b'");
        let (causes, _) = told(&schema(json!({"rule": "false", "messageExpression": message})), &numbers, &json!({}));
        let why = format!(
            "spec.l: Invalid value: \"array\": no further validation rules will be run due to call cost exceeds limit for \
             messageExpression: {}",
            quote(&message)
        );
        assert_eq!(causes, [why]);
    }
}
