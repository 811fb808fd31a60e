//! The scale subresource of custom kinds: where its numbers lie in the object.

use serde_json::{Map, Value, json};

use crate::status::{ApiError, Result};

/// Paths of a version's scale, each a list of names.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    pub replicas: Vec<Box<str>>,
    pub status_replicas: Vec<Box<str>>,
    pub selector: Option<Vec<Box<str>>>,
}

/// A value at a path of names; None where there is none.
pub fn at<'a>(value: &'a Value, path: &[Box<str>]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, name| value.get(&**name))
}

impl Scale {
    /// `spec` and `status` of the object's scale.
    pub fn parts(&self, value: &Value) -> (Value, Value) {
        let number = |path: &[Box<str>]| at(value, path).and_then(Value::as_i64).unwrap_or(0);
        let selector = self.selector.as_ref().and_then(|path| at(value, path)?.as_str()).unwrap_or_default();
        (
            json!({"replicas": number(&self.replicas)}),
            json!({"replicas": number(&self.status_replicas), "selector": selector}),
        )
    }

    /// Refuses to show a scale of an object that says no number of replicas.
    ///
    /// # Errors
    /// 500, as upstream.
    pub fn check(&self, value: &Value) -> Result<()> {
        if at(value, &self.replicas).is_some() {
            return Ok(());
        }
        let path = self.replicas.join(".");
        Err(ApiError::internal(format!("the spec replicas field \".{path}\" does not exist")))
    }

    /// Writes the number of replicas; objects on the way to it are made.
    ///
    /// # Errors
    /// 500 when something on the way is no object.
    pub fn set(&self, value: &mut Value, replicas: i64) -> Result<()> {
        let Some((last, parents)) = self.replicas.split_last() else { return Ok(()) };
        let mut place = value;
        for name in parents {
            if place.get(&**name).is_none_or(Value::is_null) {
                place[&**name] = Value::Object(Map::new());
            }
            place = &mut place[&**name];
            if !place.is_object() {
                let path = self.replicas.join(".");
                return Err(ApiError::internal(format!(
                    "value cannot be set because .{path} is not a map[string]interface{{}}"
                )));
            }
        }
        place[&**last] = replicas.into();
        Ok(())
    }
}
