//! Printer columns: what `kubectl get` shows of a custom resource.

use serde_json::Value;

use super::path::Path;

/// A column of a definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: Box<str>,
    pub ty: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i64,
    path: Option<Path>,
}

/// The columns of a version; a version without any shows its age.
pub fn of(version: &Value) -> Vec<Column> {
    let said = version["additionalPrinterColumns"].as_array().filter(|c| !c.is_empty());
    let Some(said) = said else {
        return vec![Column {
            name: "Age".into(),
            ty: "date".into(),
            format: "".into(),
            description: "CreationTimestamp is a timestamp representing the server time when this object was created. \
                          It is not guaranteed to be set in happens-before order across separate operations. Clients \
                          may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the \
                          system. Read-only. Null for lists. More info: \
                          https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
                .into(),
            priority: 0,
            path: Path::parse(".metadata.creationTimestamp"),
        }];
    };
    let text = |column: &Value, key: &str| column[key].as_str().unwrap_or_default().into();
    let column = |column: &Value| Column {
        name: text(column, "name"),
        ty: text(column, "type"),
        format: text(column, "format"),
        description: match text(column, "description") {
            said if !said.is_empty() => said,
            _ => format!(
                "Custom resource definition column (in JSONPath format): {}",
                column["jsonPath"].as_str().unwrap_or_default()
            )
            .into(),
        },
        priority: column["priority"].as_i64().unwrap_or(0),
        path: Path::parse(column["jsonPath"].as_str().unwrap_or_default()),
    };
    said.iter().map(column).collect()
}

impl Column {
    /// The cell of an object; null where there is nothing to show.
    pub fn cell(&self, object: &Value) -> Value {
        let Some(path) = &self.path else { return Value::Null };
        let Some(first) = path.first(object) else { return Value::Null };
        match (&*self.ty, first) {
            (_, Value::Null) => Value::Null,
            ("integer", Value::Number(number)) if number.is_f64() => {
                number.as_f64().map_or(Value::Null, |f| (f as i64).into())
            }
            ("integer" | "number", Value::Number(_)) => first.clone(),
            ("boolean", Value::Bool(_)) => first.clone(),
            // No time at all is one that is not known.
            ("date", Value::String(text)) if text.is_empty() => crate::read::since(&Value::Null),
            ("date", Value::String(text)) => match proto::time::parse_rfc3339(text) {
                Ok(_) => crate::read::since(first),
                Err(_) => "<invalid>".into(),
            },
            ("string", _) => printed(first).into(),
            _ => Value::Null,
        }
    }
}

fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_date_is_shown_as_an_age() {
        let columns = of(&json!({"additionalPrinterColumns": [{"name": "When", "type": "date", "jsonPath": ".t"}]}));
        let cell = |time: Value| columns[0].cell(&json!({"t": time}));
        assert_eq!(cell("".into()), "<unknown>");
        assert_eq!(cell("noon".into()), "<invalid>");
        assert_eq!(cell(5.into()), Value::Null);
    }
}
