//! Values as Go prints them with `%#v`, the way go-yaml holds them: maps and lists of anything.

use std::fmt::Write as _;

use serde_json::Value;

use super::read::go_float;
use super::resolve::{Scalar, resolve};

/// Values are not printed any further from there on.
const MAX_SHOWN_BYTES: usize = 256 << 10;

/// A value that is printed by itself.
pub(super) fn outer(value: &Value) -> String {
    if value.is_null() { "<nil>".to_owned() } else { inner(value) }
}

/// A value inside of another, whose type has a name there.
pub(super) fn inner(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    // A message that is as long already tells nobody more.
    if out.len() > MAX_SHOWN_BYTES {
        return;
    }
    // What is written to a text is always written.
    let _ = match value {
        Value::Null => write!(out, "interface {{}}(nil)"),
        Value::Bool(truth) => write!(out, "{truth}"),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => write!(out, "{number}"),
            (None, Some(number)) => write!(out, "{number:#x}"),
            (None, None) => write!(out, "{}", number.as_f64().map_or_else(String::new, go_float)),
        },
        Value::String(text) => write!(out, "{text:?}"),
        Value::Array(list) => {
            out.push_str("[]interface {}{");
            for (index, item) in list.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write(item, out);
            }
            write!(out, "}}")
        }
        Value::Object(map) => {
            let mut keys: Vec<&str> = map.keys().map(|key| &**key).collect();
            keys.sort_unstable();
            out.push_str("map[interface {}]interface {}{");
            for (index, name) in keys.into_iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                let _ = write!(out, "{}:", key(name));
                write(&map[name], out);
            }
            write!(out, "}}")
        }
    };
}

/// Keys are text by now; one that reads as a number or a truth was most likely that.
fn key(name: &str) -> String {
    match resolve(name) {
        Scalar::Bool(_) | Scalar::Int(_) | Scalar::Uint(_) | Scalar::Float(_) => name.to_owned(),
        _ => format!("{name:?}"),
    }
}
