//! Rules of a schema (`x-kubernetes-validations`): compiled when a definition is written, evaluated for its objects.
//!
//! Follows `apiserver/schema/cel`. A rule sees its value as `self`, and the value before an update as `oldSelf`; rules
//! with `oldSelf` hold for updates of values that can be matched with old ones. What an update leaves as it was only
//! warns.

use std::sync::Arc;

use serde_json::Value;

use super::check::same_item;
use super::cost::Total;
use super::definition::{Found, Ruled, show_rule};
use super::schema::{ListType, Rule, Schema};
use crate::cel::{self, Budget, Failure, Field, ObjectType, Program, Type};
use crate::status::{Cause, quote};

/// Steps that the rules of one object may take together.
const BUDGET: u64 = 10_000_000;
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
            out.fields.insert(escaped, Field { json: name.to_string(), ty });
        }
    }
    if root {
        let text = |name: &str| (name.to_owned(), Field { json: name.to_owned(), ty: Type::Text });
        let metadata = ObjectType { name: "object".into(), fields: [text("name"), text("generateName")].into() };
        out.fields.extend([text("kind"), text("apiVersion")]);
        out.fields.insert("metadata".into(), Field { json: "metadata".into(), ty: Type::Object(metadata.into()) });
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
            total.rule(node, index, &ty, known, found);
            let shown = || show_rule(&node.shown[index]);
            let program = match &compiled.rule {
                Ok(program) => program,
                Err(why) => {
                    found.invalid(&at("rule"), &shown(), why);
                    continue;
                }
            };
            if let Some(Err(why)) = &compiled.message {
                found.invalid(&at("messageExpression"), &shown(), why);
            }
            if program.uses("oldSelf") {
                if let Some(place) = &node.uncorrelated {
                    let why =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {place}");
                    found.invalid(&at("rule"), &quote(&rule.rule), &why);
                }
            } else if let Some(said) = rule.optional_old_self {
                found.invalid(
                    &at("optionalOldSelf"),
                    &said.to_string(),
                    "may not be set if oldSelf is not used in rule",
                );
            }
        }
    }
    total.end(path, found);
}

/// Evaluates every rule of an object.
pub fn check(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    check_at(schema, true, new, old)
}

/// The same for a value that is or is not a whole object.
pub fn check_at(schema: &Schema, root: bool, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut walk = Walk { causes: Vec::new(), budget: Budget::new(BUDGET), exhausted: false };
    walk.node(schema, root, "", new, old, Same { here: old.map(|old| old == new), above: false });
    walk.causes
}

/// Whether an update leaves a value as it was: the value itself, None where it cannot be matched, and what it lies in.
#[derive(Clone, Copy)]
struct Same {
    here: Option<bool>,
    above: bool,
}

impl Same {
    fn below(self, new: &Value, old: Option<&Value>) -> Self {
        match self.here {
            None => self,
            Some(above) => Same { here: old.map(|old| old == new), above },
        }
    }
}

struct Walk {
    causes: Vec<Cause>,
    budget: Budget,
    /// Nothing is evaluated any more.
    exhausted: bool,
}

impl Walk {
    fn node(&mut self, schema: &Schema, root: bool, path: &str, new: &Value, old: Option<&Value>, same: Same) {
        if new.is_null() || self.exhausted {
            return;
        }
        let old = old.filter(|o| !o.is_null());
        self.rules(schema, root, path, new, old, same);
        let child = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match new {
            Value::Array(items) => {
                let Some(item) = schema.items.as_deref().filter(|item| item.ruled) else { return };
                for (index, inner) in items.iter().enumerate() {
                    let before = old.filter(|_| schema.list == ListType::Map).and_then(|o| same_item(schema, o, inner));
                    let same = same.below(inner, before);
                    self.node(item, item.embedded, &format!("{path}[{index}]"), inner, before, same);
                }
            }
            Value::Object(map) => {
                for (key, inner) in map {
                    let before = old.and_then(|o| o.get(key));
                    // Members of an atomic map are not matched.
                    let matched = before.filter(|_| !schema.atomic);
                    let same = same.below(inner, before);
                    if let Some(member) = schema.properties.get(&**key).filter(|member| member.ruled) {
                        self.node(member, member.embedded, &child(key), inner, matched, same);
                    } else if let Some(values) = schema.values().filter(|values| values.ruled) {
                        self.node(values, values.embedded, &format!("{path}[{key}]"), inner, matched, same);
                    }
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, schema: &Schema, root: bool, path: &str, new: &Value, old: Option<&Value>, same: Same) {
        if schema.rules.is_empty() {
            return;
        }
        let Some(ty) = schema.declared.get_or_init(|| declared(schema, root)) else { return };
        let new_self = cel::Value::of(new, ty);
        let old_self = old.map(|old| cel::Value::of(old, ty));
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
            let mut variables = vec![("self", new_self.clone())];
            match &old_self {
                Some(old) if optional => variables.push(("oldSelf", cel::Value::some(old.clone()))),
                None if optional => variables.push(("oldSelf", cel::Value::Optional(None))),
                Some(old) => variables.push(("oldSelf", old.clone())),
                None => {}
            }
            match program.eval(&variables, &mut self.budget) {
                Ok(cel::Value::Bool(true)) => {}
                Ok(_) => self.failed(schema, rule, compiled, path, new, &variables, same.forgives() && !transition),
                Err(Failure::OverBudget) => {
                    let why = if self.budget.total == 0 {
                        "validation failed due to running out of cost budget, no further validation rules will be run"
                            .into()
                    } else {
                        format!(
                            "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due \
                             to call cost exceeds limit for rule: {}",
                            rule.name()
                        )
                    };
                    self.complain(path, schema, &why);
                    self.exhausted = true;
                    return;
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
        let message = match &compiled.message {
            Some(Ok(program)) => self.message(program, variables),
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
            (_, other) => format!(": {other}"),
        };
        let (reason, message) = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => ("FieldValueForbidden", format!("Forbidden: {detail}")),
            Some("FieldValueRequired") => ("FieldValueRequired", format!("Required value: {detail}")),
            Some("FieldValueDuplicate") => ("FieldValueDuplicate", format!("Duplicate value{shown}")),
            _ => ("FieldValueInvalid", format!("Invalid value{shown}: {detail}")),
        };
        let own = rule.field_path.trim_start_matches('.').replace("['", "[").replace("']", "]");
        let path = match (path, &*own) {
            (path, "") => path.to_owned(),
            ("", own) => own.to_owned(),
            (path, own) if own.starts_with('[') => format!("{path}{own}"),
            (path, own) => format!("{path}.{own}"),
        };
        if forgiven {
            crate::warning::add(format!("{}: {message}", field(&path)));
        } else {
            self.causes.push(Cause { reason: reason.into(), message, field: field(&path) });
        }
    }

    /// The text that a message expression makes; None when it makes none that is fit to be shown.
    fn message(&mut self, program: &Program, variables: &[(&str, cel::Value<'_>)]) -> Option<String> {
        let Ok(cel::Value::Text(text)) = program.eval(variables, &mut self.budget) else { return None };
        let text = text.trim();
        (!text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n')).then(|| text.to_owned())
    }
}

impl Same {
    fn forgives(self) -> bool {
        self.here.unwrap_or(self.above)
    }
}

fn field(path: &str) -> String {
    if path.is_empty() { "<nil>".into() } else { path.to_owned() }
}
