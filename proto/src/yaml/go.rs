//! Values as Go prints them with `%#v`, the way go-yaml holds them: maps and lists of anything.

use std::fmt::Write as _;

use serde_json::Value;

use super::read::go_float;
use super::resolve::{Scalar, resolve};

/// A value that is printed by itself.
pub(super) fn outer(value: &Value) -> String {
    if value.is_null() { "<nil>".to_owned() } else { inner(value) }
}

/// A value inside of another, whose type has a name there.
pub(super) fn inner(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.to_string(),
            (None, Some(number)) => format!("{number:#x}"),
            (None, None) => number.as_f64().map_or_else(String::new, go_float),
        },
        Value::String(text) => format!("{text:?}"),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(inner).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let mut keys: Vec<&str> = map.keys().map(|key| &**key).collect();
            keys.sort_unstable();
            let mut out = "map[interface {}]interface {}{".to_owned();
            for (index, name) in keys.into_iter().enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                let _ = write!(out, "{comma}{}:{}", key(name), inner(&map[name]));
            }
            out + "}"
        }
    }
}

/// Keys are text by now; one that reads as a number or a truth was most likely that.
fn key(name: &str) -> String {
    match resolve(name) {
        Scalar::Bool(_) | Scalar::Int(_) | Scalar::Uint(_) | Scalar::Float(_) => name.to_owned(),
        _ => format!("{name:?}"),
    }
}
