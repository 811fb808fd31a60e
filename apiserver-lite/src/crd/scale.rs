//! The scale subresource of custom kinds: where its numbers lie in the object.

use serde_json::{Map, Value};

use crate::go_value::{plain, type_name};
use crate::status::{ApiError, Result};

/// Paths of a version's scale, each a list of names.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    pub replicas: Vec<Box<str>>,
    pub status_replicas: Vec<Box<str>>,
    pub selector: Option<Vec<Box<str>>>,
}

/// What the scale of an object says.
#[derive(Debug, PartialEq)]
pub struct Numbers {
    /// None where the object has no such field.
    pub replicas: Option<i64>,
    pub status_replicas: i64,
    /// Empty where there is none.
    pub selector: String,
}

fn dotted(path: &[Box<str>]) -> String {
    format!(".{}", path.join("."))
}

/// A value at a path of names; None where there is none.
fn at<'a>(value: &'a Value, path: &[Box<str>]) -> std::result::Result<Option<&'a Value>, String> {
    let mut found = value;
    for (index, name) in path.iter().enumerate() {
        match found {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(&**name) {
                Some(inner) => found = inner,
                None => return Ok(None),
            },
            other => return Err(mismatch(&path[..=index], other, "map[string]interface {}")),
        }
    }
    Ok(Some(found))
}

fn mismatch(path: &[Box<str>], found: &Value, expected: &str) -> String {
    format!(
        "{} accessor error: {} is of the type {}, expected {expected}",
        dotted(path),
        plain(found),
        type_name(found)
    )
}

/// A whole number at a path; None where there is nothing.
///
/// # Errors
/// What is there instead, in Go's words.
pub fn number(value: &Value, path: &[Box<str>]) -> std::result::Result<Option<i64>, String> {
    let Some(found) = at(value, path)? else { return Ok(None) };
    found.as_i64().map(Some).ok_or_else(|| mismatch(path, found, "int64"))
}

/// The same for a text.
///
/// # Errors
/// As [`number`].
pub fn text<'a>(value: &'a Value, path: &[Box<str>]) -> std::result::Result<Option<&'a str>, String> {
    let Some(found) = at(value, path)? else { return Ok(None) };
    found.as_str().map(Some).ok_or_else(|| mismatch(path, found, "string"))
}

impl Scale {
    /// What an object's scale says.
    ///
    /// # Errors
    /// What is at a path instead of a number or a text, in Go's words.
    pub fn read(&self, value: &Value) -> std::result::Result<Numbers, String> {
        let replicas = number(value, &self.replicas)?;
        let status_replicas = number(value, &self.status_replicas)?.unwrap_or(0);
        let selector = match &self.selector {
            Some(path) => text(value, path)?.unwrap_or_default().to_owned(),
            None => String::new(),
        };
        Ok(Numbers { replicas, status_replicas, selector })
    }

    /// Where the number of replicas is, as the definition writes it.
    pub fn place(&self) -> String {
        dotted(&self.replicas)
    }

    /// Writes the number of replicas; objects on the way to it are made.
    ///
    /// # Errors
    /// 500 when something on the way is no object.
    pub fn set(&self, value: &mut Value, replicas: i64) -> Result<()> {
        let Some((last, parents)) = self.replicas.split_last() else { return Ok(()) };
        let mut place = value;
        for (index, name) in parents.iter().enumerate() {
            if place.get(&**name).is_none() {
                place[&**name] = Value::Object(Map::new());
            }
            place = &mut place[&**name];
            if !place.is_object() {
                let path = dotted(&self.replicas[..=index]);
                let why = format!("value cannot be set because {path} is not a map[string]interface{{}}");
                return Err(ApiError::new(500, "", why));
            }
        }
        place[&**last] = replicas.into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_no_number_is_told_by_its_place_and_type() {
        let path = |text: &str| text.split('.').map(Into::into).collect::<Vec<Box<str>>>();
        let scale =
            Scale { replicas: path("spec.n"), status_replicas: path("status.n"), selector: Some(path("status.s")) };
        let read = |value: Value| scale.read(&value);
        assert_eq!(
            read(json!({"spec": {"n": 3}, "status": {"s": "a=b"}})),
            Ok(Numbers { replicas: Some(3), status_replicas: 0, selector: "a=b".into() })
        );
        assert_eq!(read(json!({"spec": null})).map(|numbers| numbers.replicas), Ok(None));
        for (value, why) in [
            (json!({"spec": {"n": 1.5}}), ".spec.n accessor error: 1.5 is of the type float64, expected int64"),
            (json!({"spec": {"n": null}}), ".spec.n accessor error: <nil> is of the type <nil>, expected int64"),
            (
                json!({"spec": ["x"]}),
                ".spec.n accessor error: [x] is of the type []interface {}, expected map[string]interface {}",
            ),
            (json!({"status": {"n": "3"}}), ".status.n accessor error: 3 is of the type string, expected int64"),
            (
                json!({"status": {"s": {"a": 1}}}),
                ".status.s accessor error: map[a:1] is of the type map[string]interface {}, expected string",
            ),
        ] {
            assert_eq!(read(value), Err(why.to_owned()));
        }
    }
}
