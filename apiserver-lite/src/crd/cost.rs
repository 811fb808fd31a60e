//! Refuses rules that could cost too much, before any object is checked by them.
//!
//! How much that is depends on how large and how many the values may be that a rule is about, which the schema's limits
//! tell. Follows `apiserver/pkg/cel/common/schemas.go` and apiextensions' `validation.go`.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::definition::{Found, Ruled};
use crate::cel::{self, Bounds, Inner, Type};

/// Most bytes of a request.
const REQUEST: u64 = 3 << 20;
/// Most that a rule may cost, and all rules of a definition.
const PER_RULE: u64 = 10_000_000;
const PER_DEFINITION: u64 = 100_000_000;
/// So many rules are named when all together cost too much.
const NAMED: usize = 4;

/// The limits of values of a schema; None for values that rules do not see.
pub fn bounds(schema: &Value, root: bool) -> Option<Bounds> {
    let number = |name: &str| schema[name].as_i64().map(|n| u64::try_from(n).unwrap_or(0));
    let sized = |max: u64, smallest: u64| Bounds { max, inner: Inner::Nothing, smallest };
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(sized(number("maxLength").map_or(REQUEST - 2, |most| most.saturating_mul(4)), 1));
    }
    Some(match schema["type"].as_str().unwrap_or_default() {
        "array" => {
            let item = bounds(&schema["items"], schema["items"]["x-kubernetes-embedded-resource"] == true)?;
            let max = number("maxItems").unwrap_or((REQUEST - 2) / (item.smallest + 1));
            Bounds { max, inner: Inner::Items(Arc::new(item)), smallest: 2 }
        }
        "object" if schema["additionalProperties"].is_object() => {
            let value = bounds(&schema["additionalProperties"], false)?;
            let max = number("maxProperties").unwrap_or((REQUEST - 2) / (value.smallest + 6));
            Bounds { max, inner: Inner::Values(Arc::new(value)), smallest: 2 }
        }
        "object" => object(schema, root),
        "string" => {
            let free = || number("maxLength").unwrap_or(REQUEST - 2);
            match schema["format"].as_str().unwrap_or_default() {
                "byte" => sized(free(), 2),
                "duration" => sized(32, 3),
                "date" => sized(12, 12),
                "date-time" => sized(32, 21),
                _ => {
                    let choices = schema["enum"].as_array().filter(|choices| !choices.is_empty());
                    let longest = choices.map(|c| c.iter().filter_map(Value::as_str).map(str::len).max().unwrap_or(0));
                    let of_choices = longest.map_or(REQUEST - 2, |longest| longest as u64);
                    sized(number("maxLength").map_or(of_choices, |most| most.saturating_mul(4)), 2)
                }
            }
        }
        "boolean" => sized(0, 4),
        "number" | "integer" => sized(0, 1),
        _ => return None,
    })
}

fn object(schema: &Value, root: bool) -> Bounds {
    let required = schema["required"].as_array().into_iter().flatten();
    let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
    let (mut fields, mut smallest) = (Vec::new(), 2);
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        if root && matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
            continue;
        }
        let Some(inner) = bounds(member, member["x-kubernetes-embedded-resource"] == true) else { continue };
        if required.contains(&**name) && member["default"].is_null() {
            smallest += name.len() as u64 + inner.smallest + 4;
        }
        if let Some(escaped) = cel::escape(name) {
            fields.push((escaped, Arc::new(inner)));
        }
    }
    if root {
        let text = || Arc::new(Bounds { max: REQUEST - 2, inner: Inner::Nothing, smallest: 2 });
        let metadata = vec![("name".to_owned(), text()), ("generateName".to_owned(), text())];
        let metadata = Bounds { max: 0, inner: Inner::Fields(metadata), smallest: 2 };
        fields.extend([("kind".into(), text()), ("apiVersion".into(), text()), ("metadata".into(), metadata.into())]);
    }
    Bounds { max: 0, inner: Inner::Fields(fields), smallest }
}

/// How many values a node's schema lets each of its own values have; None without limit.
pub fn cardinality(schema: &Value) -> Option<u64> {
    let limit = |name: &str| schema[name].as_i64().map(|n| u64::try_from(n).unwrap_or(0));
    match schema["type"].as_str() {
        Some("object") if !schema["additionalProperties"].is_null() => limit("maxProperties"),
        Some("array") => limit("maxItems"),
        _ => Some(1),
    }
}

/// What the rules of a schema cost together.
#[derive(Default)]
pub struct Total {
    sum: u64,
    most: Vec<(String, u64)>,
}

impl Total {
    fn observe(&mut self, path: String, cost: u64) {
        self.sum = self.sum.saturating_add(cost);
        if cost >= PER_DEFINITION / 100 {
            self.most.push((path, cost));
            self.most.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.most.truncate(NAMED);
        }
    }

    /// Prices a rule, and complains when it alone is too dear; `known` for one that was accepted before.
    pub fn rule(&mut self, node: &Ruled, index: usize, ty: &Type, known: bool, found: &mut Found) {
        let Some(bounds) = &node.bounds else { return };
        let times = node.cardinality.unwrap_or(REQUEST / (bounds.smallest + 1));
        let cost = estimate(node, index, &node.schema.rules[index].rule, ty).saturating_mul(times);
        self.one(node, index, "rule", "estimated rule cost", (cost, known), found);
    }

    /// The same for the expression that makes a rule's message, which is evaluated once.
    pub fn message(&mut self, node: &Ruled, index: usize, ty: &Type, known: bool, found: &mut Found) {
        let cost = estimate(node, index, &node.schema.rules[index].message_expression, ty);
        self.one(node, index, "messageExpression", "estimated messageExpression cost", (cost, known), found);
    }

    fn one(&mut self, node: &Ruled, index: usize, key: &str, what: &str, cost: (u64, bool), found: &mut Found) {
        let (cost, known) = cost;
        let at = format!("{}.x-kubernetes-validations[{index}].{key}", node.path);
        if cost > PER_RULE && !known {
            found.forbidden(&at, &exceeds(what, cost, PER_RULE));
        }
        self.observe(at, cost);
    }

    /// Complains when all rules together are too dear; `path` is that of the whole schema.
    pub fn end(self, path: &str, found: &mut Found) {
        if self.sum <= PER_DEFINITION {
            return;
        }
        for (path, _) in &self.most {
            found.forbidden(
                path,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            );
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        found.forbidden(path, &exceeds(what, self.sum, PER_DEFINITION));
    }
}

/// What one evaluation of an expression of a rule may cost.
fn estimate(node: &Ruled, index: usize, expression: &str, ty: &Type) -> u64 {
    let Some(bounds) = &node.bounds else { return 0 };
    let optional = node.schema.rules[index].optional_old_self == Some(true);
    let old = if optional { Type::optional(ty.clone()) } else { ty.clone() };
    let variables = [("self", ty.clone()), ("oldSelf", old)];
    cel::estimate(expression, &variables, &[("self", bounds), ("oldSelf", bounds)]).unwrap_or(0)
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let shown = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {shown} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cost(schema: &Value, rule: &str) -> u64 {
        let parsed = super::super::schema::Schema::parse(schema);
        let ty = super::super::rules::declared(&parsed, false).expect("a type");
        let bounds = bounds(schema, false).expect("bounds");
        cel::estimate(rule, &[("self", ty)], &[("self", &bounds)]).expect("an expression")
    }

    #[test]
    fn loops_count_for_every_item_that_there_may_be() {
        let list = |more: Value| {
            let mut schema = json!({"type": "array", "items": {"type": "integer"}});
            schema.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            schema
        };
        // range 1, result 1, and for each item: the condition 2, the accumulator 1, and a comparison of 2.
        assert_eq!(cost(&list(json!({"maxItems": 10})), "self.all(x, x > 0)"), 1 + 1 + 10 * (2 + 1 + 2));
        let unlimited = (REQUEST - 2) / 2;
        assert_eq!(cost(&list(json!({})), "self.all(x, x > 0)"), 1 + 1 + unlimited * 5);
        let nested = "self.all(x, self.all(y, x == y))";
        assert!(cost(&list(json!({})), nested) > 100 * PER_RULE && cost(&list(json!({"maxItems": 10})), nested) < 1000);
    }

    #[test]
    fn texts_cost_their_length() {
        let text = json!({"type": "string", "maxLength": 10});
        // A letter has up to four bytes, and ten bytes cost one.
        assert_eq!(cost(&text, "self.startsWith('abcdefghijk')"), 1 + 2);
        assert_eq!(cost(&text, "self == 'abcdefghijklmnopqrstuvwxyz'"), 1 + 3);
        assert_eq!(cost(&text, "self.contains('a')"), 1 + 4);
        assert_eq!(cost(&json!({"type": "integer"}), "self > 1 && self < 5"), 2 + 2);
        assert_eq!(cost(&json!({"type": "string"}), "self.size() > 1"), 3);
        // What kind of value it is has no length.
        let number_or_text = json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true}}});
        assert!(cost(&number_or_text, "type(self.a) == int || self.a == '5%'") < 10);
    }

    #[test]
    fn keys_have_no_length_and_entries_a_place_only_by_index() {
        let map = json!({
            "type": "object", "maxProperties": 10, "additionalProperties": {"type": "string", "maxLength": 10},
        });
        // For each entry: the loop 3, the key 1, the entry 3, and nothing for looking for it in what has no length.
        assert_eq!(cost(&map, "self.all(k, k.contains(self[k]))"), 2 + 10 * 7);
        assert!(cost(&map, "self.all(k, k.matches('^[a-z]+$'))") < 100);
        assert!(cost(&map, "self.all(k, v, k.matches('^[a-z]+$') && v.matches('^[a-z]+$'))") < 1000);
        assert!(cost(&map, "self['x'].contains('a')") < 10);
        assert!(cost(&map, "self.x.contains('a')") > 100 * PER_RULE);
        let numbers = json!({"type": "object", "additionalProperties": {"type": "number"}});
        let list = json!({"type": "array", "maxItems": 12, "items": numbers});
        assert_eq!(cost(&list, "self.all(x, x.y == 25.2)"), 2 + 12 * 6);
    }

    #[test]
    fn a_factor_is_shown_as_precisely_as_it_matters() {
        assert!(exceeds("x", 11_000_000, PER_RULE).starts_with("x exceeds budget by factor of 1.100000x (try"));
        assert!(exceeds("x", 25_000_000, PER_RULE).contains(" 2.5x "));
        assert!(exceeds("x", u64::MAX, PER_RULE).contains(" more than 100x "));
    }
}
