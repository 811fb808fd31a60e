//! Values against their schema, with the words of Kubernetes' OpenAPI validator.
//!
//! Follows kube-openapi's `validate`: which checks apply depends on the value's type, composed schemas tell the
//! complaints of the branch that fitted best, and an update forgives what it did not change.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::{Number, Value};

use super::correlation::{Correlation, Pair};
use super::schema::{Additional, Checks, Schema};
use crate::go_value;
use crate::status::quote;

/// A complaint. `field` is None for what concerns no field alone, which Go prints as `<nil>`.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub field: Option<String>,
    pub reason: &'static str,
    pub message: String,
    /// What tells equal complaints apart.
    text: String,
}

/// Checks a value. `path` is where it stands, empty for a whole object; `old` is what it was before an update.
pub fn check(schema: &Schema, path: &str, value: &Value, old: Option<&Value>) -> Vec<Problem> {
    checked(schema, path, value, old, path.is_empty())
}

/// As [`check`], of a part that is looked at by itself.
pub fn check_part(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<Problem> {
    checked(schema, "", value, old, false)
}

fn checked(schema: &Schema, path: &str, value: &Value, old: Option<&Value>, whole: bool) -> Vec<Problem> {
    let mut result = Outcome::default();
    let at = old.map(|old| Pair { new: value, old, schema });
    node(schema, &Place::Root(path), value, at, &mut Correlation::of(whole), &mut result);
    result.problems
}

/// Where a value stands. It becomes a text for a complaint alone, for most objects have none.
#[derive(Clone, Copy)]
enum Place<'p> {
    Root(&'p str),
    /// A member that has a schema of its own.
    Member(&'p Place<'p>, &'p str),
    /// Another member.
    Value(&'p Place<'p>, &'p str),
    Index(&'p Place<'p>, usize),
}

impl Place<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Place::Root(path) => path.is_empty(),
            Place::Member(parent, key) => key.is_empty() && parent.is_empty(),
            Place::Value(..) | Place::Index(..) => false,
        }
    }
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Root(path) => out.write_str(path),
            Place::Member(parent, key) if parent.is_empty() => out.write_str(key),
            Place::Member(parent, key) | Place::Value(parent, key) => write!(out, "{parent}.{key}"),
            Place::Index(parent, index) => write!(out, "{parent}[{index}]"),
        }
    }
}

/// Complaints, and how many checks were made: of failing branches the one with most checks tells.
#[derive(Debug, Default)]
struct Outcome {
    problems: Vec<Problem>,
    /// The texts of the complaints: of equal ones the first is kept.
    told: HashSet<String>,
    /// Of the complaints' texts.
    bytes: usize,
    count: usize,
}

/// Bytes of complaints beyond which no more are collected. Each names the whole way to its value, so that a small object of
/// great depth could have hundreds of megabytes of them.
const MAX_TOLD: usize = 32 << 20;

impl Outcome {
    fn is_full(&self) -> bool {
        self.bytes > MAX_TOLD
    }

    fn add(&mut self, problem: Problem) {
        if !self.is_full() && self.told.insert(problem.text.clone()) {
            self.bytes += problem.text.len() + problem.message.len() + problem.field.as_ref().map_or(0, String::len);
            self.problems.push(problem);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.count += other.count;
        if self.problems.is_empty() {
            (self.problems, self.told, self.bytes) = (other.problems, other.told, other.bytes);
            return;
        }
        other.problems.into_iter().for_each(|p| self.add(p));
    }

    /// A complaint about a field that shows a value.
    fn invalid(&mut self, path: &Place<'_>, shown: &str, why: &str) {
        if self.is_full() {
            return;
        }
        self.push(path, "FieldValueInvalid", format!("Invalid value: {shown}: {}", body(path, why)), body(path, why));
    }

    fn push(&mut self, path: &Place<'_>, reason: &'static str, message: String, text: String) {
        let path = path.to_string();
        let field = path.trim_start_matches('.');
        let field = (!field.is_empty()).then(|| field.to_owned());
        self.add(Problem { field, reason, message, text });
    }

    /// A complaint about a composition, which upstream tells of no field.
    fn composed(&mut self, why: String) {
        let message = format!("Invalid value: \"\": {why}");
        self.add(Problem { field: None, reason: "FieldValueInvalid", message, text: why });
    }

    fn wrong_type(&mut self, path: &Place<'_>, expected: &str, found: &str) {
        if self.is_full() {
            return;
        }
        let why = body(path, &format!("must be of type {expected}: {}", quote(found)));
        self.push(path, "FieldValueTypeInvalid", format!("Invalid value: {}: {why}", quote(found)), why);
    }
}

fn body(path: &Place<'_>, why: &str) -> String {
    format!("{path} in body {why}")
}

/// The type of a value: `integer` for whole numbers as JSON writes them.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Floats up to here stand for one whole number.
const SAFE: f64 = 9_007_199_254_740_991.0;

fn is_whole(number: f64) -> bool {
    number.is_finite() && number.abs() <= SAFE && number.fract() == 0.0
}

/// `at` is what an update replaces here; None where values cannot be matched.
fn node<'a>(
    schema: &Schema,
    path: &Place<'_>,
    value: &'a Value,
    at: Option<Pair<'a>>,
    all: &mut Correlation<'a>,
    out: &mut Outcome,
) {
    let mut result = Outcome::default();
    checks_of(schema, path, value, at, all, &mut result);
    // What an update leaves as it was may stay as it is.
    if !result.problems.is_empty() && at.is_some_and(|at| all.equal(at)) {
        out.count += result.count;
    } else {
        out.merge(result);
    }
}

fn checks_of<'a>(
    schema: &Schema,
    path: &Place<'_>,
    value: &'a Value,
    at: Option<Pair<'a>>,
    all: &mut Correlation<'a>,
    out: &mut Outcome,
) {
    let none = Checks::default();
    let checks = schema.checks.as_deref().unwrap_or(&none);
    ty(schema, checks, path, value, out);
    if !value.is_null() {
        composed(checks, path, value, out);
        match value {
            Value::String(text) => string(checks, path, text, out),
            Value::Number(number) => self::number(schema, checks, path, number, out),
            Value::Array(items) => list(schema, checks, path, items, at, all, out),
            _ => {}
        }
    }
    one_of_values(checks, path, value, out);
    if let Value::Object(map) = value {
        object(schema, checks, path, map, at, all, out);
    }
    out.count += 1;
}

fn ty(schema: &Schema, checks: &Checks, path: &Place<'_>, value: &Value, out: &mut Outcome) {
    let expected = if schema.int_or_string { "integer,string" } else { &schema.ty };
    let format = &*checks.format;
    if expected.is_empty() && format.is_empty() {
        return;
    }
    out.count += 1;
    let found = type_of(value);
    if value.is_null() {
        if !expected.is_empty() && !schema.nullable {
            out.wrong_type(path, expected, "null");
        }
        return;
    }
    let expects = |ty: &str| expected.split(',').any(|e| e == ty);
    let whole = value.as_f64().is_some_and(is_whole);
    let fits =
        expects(found) || found == "number" && whole && expects("integer") || found == "integer" && expects("number");
    if !format.is_empty() && !fits && !matches!(value, Value::String(_) | Value::Array(_)) {
        let shown = match found {
            "integer" => "int64",
            "number" => "float64",
            _ => "",
        };
        return out.wrong_type(path, format, shown);
    }
    if !format.is_empty()
        && !expects("number")
        && !expects("integer")
        && matches!(value, Value::String(_) | Value::Array(_))
    {
        return;
    }
    if !fits {
        out.wrong_type(path, expected, found);
    }
}

fn string(checks: &Checks, path: &Place<'_>, text: &str, out: &mut Outcome) {
    out.count += 1;
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    // Upstream looks at these one after the other and stops at the first.
    if let Some(most) = checks.max_length.filter(|most| length > *most) {
        let bytes = if most == 1 { "byte" } else { "bytes" };
        let why = body(path, &format!("should be at most {most} chars long"));
        out.push(path, "FieldValueTooLong", format!("Too long: may not be more than {most} {bytes}"), why);
    } else if let Some(least) = checks.min_length.filter(|least| length < *least) {
        out.invalid(path, &quote(text), &format!("should be at least {least} chars long"));
    } else if let Some(pattern) = &checks.pattern {
        match pattern.is_match(text) {
            Ok(true) => {}
            Ok(false) => out.invalid(path, &quote(text), &format!("should match '{}'", pattern.text)),
            Err(error) => {
                let shown = format!("should match '{}, but pattern is invalid: {error}'", pattern.text);
                out.invalid(path, &quote(text), &shown);
            }
        }
    }
    if !checks.format.is_empty() && !super::formats::fits(&checks.format, text) {
        out.wrong_type(path, &checks.format, text);
    }
}

fn number(schema: &Schema, checks: &Checks, path: &Place<'_>, number: &Number, out: &mut Outcome) {
    out.count += 1;
    let value = number.as_f64().unwrap_or_default();
    let whole = number.as_i64();
    let limit = |limit: f64| if whole.is_some() { format!("{}", limit.trunc()) } else { go_value::float(limit) };
    let shown = whole.map_or_else(|| go_value::float(value), |w| w.to_string());
    range(schema, checks, path, number, out);
    if let Some(factor) = checks.multiple_of {
        let fits = match whole {
            // A factor below one is no whole number, and a value is no multiple of zero.
            Some(whole) if factor >= 1.0 => whole % (factor as i64) == 0,
            _ if factor < 1.0 => is_whole(1.0 / factor * value),
            _ => is_whole(value / factor),
        };
        if !fits {
            out.invalid(path, &shown, &format!("should be a multiple of {}", limit(factor)));
        }
    }
    if let Some(most) = checks.maximum {
        let over = match whole {
            Some(whole) => compare_whole(whole, most),
            None => value.partial_cmp(&most),
        };
        if over == Some(std::cmp::Ordering::Greater)
            || checks.exclusive_maximum && over == Some(std::cmp::Ordering::Equal)
        {
            let words = if checks.exclusive_maximum { "less than" } else { "less than or equal to" };
            out.invalid(path, &shown, &format!("should be {words} {}", limit(most)));
        }
    }
    if let Some(least) = checks.minimum {
        let under = match whole {
            Some(whole) => compare_whole(whole, least),
            None => value.partial_cmp(&least),
        };
        if under == Some(std::cmp::Ordering::Less)
            || checks.exclusive_minimum && under == Some(std::cmp::Ordering::Equal)
        {
            let words = if checks.exclusive_minimum { "greater than" } else { "greater than or equal to" };
            out.invalid(path, &shown, &format!("should be {words} {}", limit(least)));
        }
    }
}

/// Go compares a whole number with the whole part of its limit.
fn compare_whole(value: i64, limit: f64) -> Option<std::cmp::Ordering> {
    Some(value.cmp(&(limit as i64)))
}

/// Numbers outside of what their format holds.
fn range(schema: &Schema, checks: &Checks, path: &Place<'_>, number: &Number, out: &mut Outcome) {
    let value = number.as_f64().unwrap_or_default();
    let fits = match (&*schema.ty, &*checks.format) {
        ("integer", "int32") => value >= f64::from(i32::MIN) && value <= f64::from(i32::MAX),
        ("integer", "int64") => number.is_i64() || number.is_f64() && is_whole(value),
        ("number", "float") => value.abs() <= f64::from(f32::MAX),
        _ => true,
    };
    if !fits {
        out.composed(format!("Checked value must be of type {} with format {} in {path}", schema.ty, checks.format));
    }
}

fn list<'a>(
    schema: &Schema,
    checks: &Checks,
    path: &Place<'_>,
    items: &'a [Value],
    at: Option<Pair<'a>>,
    all: &mut Correlation<'a>,
    out: &mut Outcome,
) {
    if let Some(item) = schema.items.as_deref() {
        for (index, inner) in items.iter().enumerate() {
            let below = at.and_then(|at| all.index(at, index));
            node(item, &Place::Index(path, index), inner, below, all, out);
        }
    }
    let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(least) = checks.min_items.filter(|least| size < *least) {
        out.invalid(path, &size.to_string(), &format!("should have at least {least} items"));
    }
    if let Some(most) = checks.max_items.filter(|most| size > *most) {
        too_many(path, size, most, "items", out);
    }
    out.count += 1;
}

fn too_many(path: &Place<'_>, size: i64, most: i64, what: &str, out: &mut Outcome) {
    let unit = if most == 1 { "item" } else { "items" };
    let why = body(path, &format!("should have at most {most} {what}"));
    out.push(path, "FieldValueTooMany", format!("Too many: {size}: must have at most {most} {unit}"), why);
}

fn one_of_values(checks: &Checks, path: &Place<'_>, value: &Value, out: &mut Outcome) {
    if checks.values.is_empty() {
        return;
    }
    let equal = |allowed: &Value| match (allowed, value) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    };
    if checks.values.iter().any(equal) {
        return;
    }
    let shown = match value {
        Value::String(text) => quote(text),
        other => other.to_string(),
    };
    let mut allowed = String::new();
    for (index, value) in checks.values.iter().enumerate() {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        // Writing into a String cannot fail.
        let _ = write!(allowed, "{}{}", if index > 0 { ", " } else { "" }, quote(&text));
    }
    let message = format!("Unsupported value: {shown}: supported values: {allowed}");
    out.push(path, "FieldValueNotSupported", message, body(path, &format!("should be one of [{allowed}]")));
}

fn object<'a>(
    schema: &Schema,
    checks: &Checks,
    path: &Place<'_>,
    map: &'a serde_json::Map<String, Value>,
    at: Option<Pair<'a>>,
    all: &mut Correlation<'a>,
    out: &mut Outcome,
) {
    let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
    if let Some(least) = checks.min_properties.filter(|least| size < *least) {
        return out.invalid(path, &size.to_string(), &format!("should have at least {least} properties"));
    }
    if let Some(most) = checks.max_properties.filter(|most| size > *most) {
        return too_many(path, size, most, "properties", out);
    }
    for (key, inner) in map {
        // Kind and version of a whole object are never what they were: both sides were brought into the version at hand.
        let hidden = all.whole && path.is_empty() && matches!(key.as_str(), "kind" | "apiVersion");
        let below = at.filter(|_| !hidden).and_then(|at| Correlation::key(at, key));
        match (schema.properties.get(&**key), schema.additional.as_deref()) {
            (Some(member), _) => {
                node(member, &Place::Member(path, key), inner, below, all, out);
            }
            (None, Some(Additional::Values(values))) => {
                node(values, &Place::Value(path, key), inner, below, all, out);
            }
            (None, Some(Additional::Allowed(false))) => {
                let why = format!("{path}.{key} in body is a forbidden property");
                out.push(path, "FieldValueInvalid", format!("Invalid value: {}: {why}", quote(key)), why);
            }
            (None, _) => {}
        }
    }
    for key in &checks.required {
        if !map.contains_key(&**key) {
            let path = Place::Value(path, key);
            out.push(&path, "FieldValueRequired", "Required value".into(), body(&path, "is required"));
        }
    }
}

fn composed(checks: &Checks, path: &Place<'_>, value: &Value, out: &mut Outcome) {
    // Branches are not matched with the old value: what they say of an unchanged part of a changed one stands.
    let branch = |schema: &Schema| {
        let mut result = Outcome::default();
        checks_of(schema, path, value, None, &mut Correlation::default(), &mut result);
        result
    };
    let name = || quote(&path.to_string());
    if !checks.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut fitted = None;
        for schema in &checks.any_of {
            let result = branch(schema);
            if result.problems.is_empty() {
                fitted = Some(result);
                break;
            }
            if best.as_ref().is_none_or(|b| result.count > b.count) {
                best = Some(result);
            }
        }
        match (fitted, best) {
            (Some(result), _) => out.merge(result),
            (None, best) => {
                out.composed(format!("{} must validate at least one schema (anyOf)", name()));
                best.into_iter().for_each(|b| out.merge(b));
            }
        }
    }
    if !checks.one_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut first = None;
        let mut fitting = 0;
        for schema in &checks.one_of {
            let result = branch(schema);
            if result.problems.is_empty() {
                fitting += 1;
                first.get_or_insert(result);
                best = None;
            } else if fitting == 0 && best.as_ref().is_none_or(|b| result.count > b.count) {
                best = Some(result);
            }
        }
        match (fitting, first) {
            (1, Some(result)) => out.merge(result),
            (fitting, _) => {
                let found = if fitting == 0 {
                    "Found none valid".into()
                } else {
                    format!("Found {fitting} valid alternatives")
                };
                out.composed(format!("{} must validate one and only one schema (oneOf). {found}", name()));
                best.into_iter().for_each(|b| out.merge(b));
            }
        }
    }
    if !checks.all_of.is_empty() {
        let mut fitting = 0;
        for schema in &checks.all_of {
            let result = branch(schema);
            fitting += usize::from(result.problems.is_empty());
            out.merge(result);
        }
        if fitting != checks.all_of.len() {
            let none = if fitting == 0 { ". None validated" } else { "" };
            out.composed(format!("{} must validate all the schemas (allOf){none}", name()));
        }
    }
    if let Some(not) = &checks.not
        && branch(not).problems.is_empty()
    {
        out.composed(format!("{} must not validate the schema (not)", name()));
    }
    out.count += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(schema: Value, value: Value) -> Vec<String> {
        let problems = check(&Schema::parse(&schema), "", &value, None);
        problems.into_iter().map(|p| format!("{}: {}", p.field.as_deref().unwrap_or("<nil>"), p.message)).collect()
    }

    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": {"s": {"type": "object", "properties": properties}}})
    }

    /// A quarter of a megabyte became four hundred.
    #[test]
    fn complaints_come_to_an_end() {
        let mut schema = json!({"type": "array", "items": {"type": "integer"}});
        let mut value: Value = vec![json!("no number"); 2_000].into();
        for _ in 0..40 {
            let name = "n".repeat(1_000);
            schema = json!({"type": "object", "properties": {name.as_str(): schema}});
            value = json!({name.as_str(): value});
        }
        let told: Vec<usize> = texts(schema, value).iter().map(String::len).collect();
        assert!(told.len() > 100 && told.iter().sum::<usize>() < 64 << 20, "{} complaints", told.len());
    }

    #[test]
    fn complaints_read_as_upstream_writes_them() {
        let schema = object(json!({
            "n": {"type": "integer", "maximum": 100}, "w": {"type": "number"}, "p": {"x-kubernetes-int-or-string": true},
            "t": {"type": "string", "pattern": "^a$", "maxLength": 3}, "l": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
            "ip": {"type": "string", "format": "ipv4"}, "e": {"type": "string", "enum": ["x", "y"]},
        }));
        assert_eq!(
            texts(
                schema,
                json!({"s": {"e": "z", "ip": "a", "l": ["a", 1], "n": 101, "p": 1.5, "t": "b", "w": "heavy"}})
            ),
            [
                "s.e: Unsupported value: \"z\": supported values: \"x\", \"y\"",
                "s.ip: Invalid value: \"a\": s.ip in body must be of type ipv4: \"a\"",
                "s.l[1]: Invalid value: \"integer\": s.l[1] in body must be of type string: \"integer\"",
                "s.l: Too many: 2: must have at most 1 item",
                "s.n: Invalid value: 101: s.n in body should be less than or equal to 100",
                "s.p: Invalid value: \"number\": s.p in body must be of type integer,string: \"number\"",
                "s.t: Invalid value: \"b\": s.t in body should match '^a$'",
                "s.w: Invalid value: \"string\": s.w in body must be of type number: \"string\"",
            ]
        );
    }

    #[test]
    fn compositions_are_complaints_of_their_own() {
        let one =
            object(json!({"v": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}));
        assert_eq!(
            texts(one.clone(), json!({"s": {"v": {"a": "", "b": ""}}})),
            [
                "<nil>: Invalid value: \"\": \"s.v\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
            ]
        );
        assert_eq!(
            texts(one, json!({"s": {"v": {}}})),
            [
                "<nil>: Invalid value: \"\": \"s.v\" must validate one and only one schema (oneOf). Found none valid",
                "s.v.a: Required value",
            ]
        );
        let not = object(json!({"v": {"type": "string", "not": {"enum": ["no"]}}}));
        assert_eq!(
            texts(not, json!({"s": {"v": "no"}})),
            ["<nil>: Invalid value: \"\": \"s.v\" must not validate the schema (not)"]
        );
    }

    #[test]
    fn a_whole_float_is_an_integer_and_null_is_not() {
        let schema = object(json!({"n": {"type": "integer"}, "o": {"type": "string", "nullable": true}}));
        assert!(texts(schema.clone(), json!({"s": {"n": 2.0, "o": null}})).is_empty());
        assert_eq!(
            texts(schema, json!({"s": {"n": null}})),
            ["s.n: Invalid value: \"null\": s.n in body must be of type integer: \"null\""]
        );
    }

    #[test]
    fn an_update_forgives_what_it_does_not_change() {
        let schema = Schema::parse(&object(json!({"a": {"type": "string", "maxLength": 1}, "b": {"type": "string"}})));
        let old = json!({"s": {"a": "long", "b": "x"}});
        assert!(check(&schema, "", &json!({"s": {"a": "long", "b": "y"}}), Some(&old)).is_empty());
        assert_eq!(check(&schema, "", &json!({"s": {"a": "longer", "b": "x"}}), Some(&old)).len(), 1);
        // A kind is only hidden where it is the object's.
        let schema = json!({"properties": {"kind": {"type": "string", "maxLength": 1}, "n": {"type": "integer"}}});
        let (schema, old) = (Schema::parse(&schema), json!({"kind": "long", "n": 1}));
        let new = json!({"kind": "long", "n": 2});
        assert_eq!((check_part(&schema, &new, Some(&old)).len(), check(&schema, "", &new, Some(&old)).len()), (0, 1));
    }

    #[test]
    fn what_an_update_forgives_is_told_by_the_schema() {
        let of = |schema: Value, new: Value, old: Value| {
            let problems = check(&Schema::parse(&schema), "", &new, Some(&old));
            problems.into_iter().map(|p| p.field.unwrap_or_default()).collect::<Vec<_>>()
        };
        let short = json!({"type": "string", "maxLength": 1});
        let list = |ty: Value| object(json!({"l": {"type": "array", "x-kubernetes-list-type": ty, "items": short}}));
        let items = |items: Value| json!({"s": {"l": items}});
        // By place where the type is not said, and only as a whole where it is.
        assert_eq!(of(list(json!(null)), items(json!(["aa", "x"])), items(json!(["aa"]))), [""; 0]);
        assert_eq!(of(list(json!(null)), items(json!(["x", "aa"])), items(json!(["aa"]))), ["s.l[1]"]);
        assert_eq!(of(list(json!("set")), items(json!(["aa", "x"])), items(json!(["aa"]))), ["s.l[0]"]);
        assert_eq!(of(list(json!("set")), items(json!(["aa"])), items(json!(["aa"]))), [""; 0]);
        // Branches are not matched, unless what holds them is as it was.
        let all =
            object(json!({"o": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "allOf": [{"properties": {"a": {"maxLength": 1}}}]}}));
        let value = |a: &str, b: &str| json!({"s": {"o": {"a": a, "b": b}}});
        assert_eq!(of(all.clone(), value("aa", "y"), value("aa", "x")), ["s.o.a", ""]);
        assert_eq!(of(all, value("aa", "x"), value("aa", "x")), [""; 0]);
        // A whole object is never as it was: the schema does not know its metadata.
        let root = json!({"type": "object", "required": ["x"], "properties": {"metadata": {"type": "object"}}});
        let bare = json!({"metadata": {"name": "a"}});
        assert_eq!(of(root, bare.clone(), bare), ["x"]);
    }

    #[test]
    fn many_complaints_are_told_apart_in_one_pass() {
        let schema = object(json!({"l": {"type": "array", "items": {"type": "string"}}}));
        let items: Vec<i32> = (0..100_000).collect();
        assert_eq!(texts(schema, json!({"s": {"l": items}})).len(), 100_000);
    }
}
