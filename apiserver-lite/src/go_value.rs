//! Values as Go prints its own types: JSON with the names of the struct's fields, in its order, with what is not set.
//!
//! Upstream checks objects in types of its own that have no JSON names; what it shows of a refused value reads so.

use serde_json::Value;

use crate::field_error::{Raw, escaped};

/// What complaints call a JSON value: `string`, `number`, `bool`, `array`, `object` or `null`.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A float as Go's `%v` prints it: with an exponent from 1e+06 on.
pub fn float(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{number}")
}

/// What was read from JSON as Go's `%v` prints it.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut members: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{}", plain(value))).collect();
            members.sort();
            format!("map[{}]", members.join(" "))
        }
    }
}

/// The type of what was read from JSON, as Go's `%T` names it.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The Go type that a document's kind and version are read into first.
pub const TYPE_META: &str =
    "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// What a value is in Go.
#[derive(Clone, Copy)]
pub enum Shape {
    Text,
    Number,
    Flag,
    /// Printed as it came; `null` where there is nothing.
    Any,
    Struct(&'static [Field]),
    /// `null` where there is nothing.
    Pointer(&'static Shape),
    List(&'static Shape),
}

/// Go's name of a field, its name in JSON, and what it holds.
pub struct Field(pub &'static str, pub &'static str, pub Shape);

/// A value in the words of its Go type.
pub fn shown(value: &Value, shape: &Shape) -> Raw {
    let mut out = String::new();
    write(value, shape, &mut out);
    Raw(escaped(out))
}

fn write(value: &Value, shape: &Shape, out: &mut String) {
    match shape {
        Shape::Text => out.push_str(&Value::from(value.as_str().unwrap_or_default()).to_string()),
        Shape::Number => out.push_str(&value.as_i64().unwrap_or_default().to_string()),
        Shape::Flag => out.push_str(if value.as_bool().unwrap_or_default() { "true" } else { "false" }),
        Shape::Any => out.push_str(&value.to_string()),
        Shape::Struct(fields) => {
            out.push('{');
            for (index, Field(name, key, shape)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push('"');
                out.push_str(name);
                out.push_str("\":");
                write(&value[*key], shape, out);
            }
            out.push('}');
        }
        Shape::Pointer(_) | Shape::List(_) if value.is_null() => out.push_str("null"),
        Shape::Pointer(shape) => write(value, shape, out),
        Shape::List(shape) => {
            out.push('[');
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, shape, out);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_values_are_printed_as_go_does() {
        let value = json!({"b": [1, "x", null, 1.5], "a": {"t": true}});
        assert_eq!(plain(&value), "map[a:map[t:true] b:[1 x <nil> 1.5]]");
        for (number, shown) in [
            (999_999.5, "999999.5"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (-2.5e21, "-2.5e+21"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (0.0, "0"),
        ] {
            assert_eq!(float(number), shown);
        }
    }

    #[test]
    fn what_is_not_set_is_printed_as_go_does() {
        const INNER: Shape = Shape::Struct(&[Field("B", "b", Shape::Text)]);
        const OUTER: Shape = Shape::Struct(&[
            Field("Two", "two", Shape::Pointer(&INNER)),
            Field("One", "one", Shape::List(&INNER)),
            Field("N", "n", Shape::Number),
            Field("Yes", "yes", Shape::Flag),
        ]);
        assert_eq!(shown(&json!({}), &OUTER).0, r#"{"Two":null,"One":null,"N":0,"Yes":false}"#);
        let full = json!({"two": {}, "one": [{"b": "x\""}], "n": 3, "yes": true});
        assert_eq!(shown(&full, &OUTER).0, r#"{"Two":{"B":""},"One":[{"B":"x\""}],"N":3,"Yes":true}"#);
    }
}
