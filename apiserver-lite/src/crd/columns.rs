//! Printer columns: what `kubectl get` shows of a custom resource.

use serde_json::Value;

use super::path::{Looks, Path};
use crate::field_error::escaped;
use crate::go_value;

/// A column of a definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: Box<str>,
    pub ty: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i64,
    path: Path,
}

/// The columns of a version; a version without any shows its age.
pub fn of(version: &Value) -> Vec<Column> {
    let said = version["additionalPrinterColumns"].as_array().filter(|c| !c.is_empty());
    let Some(said) = said else {
        let Some(path) = Path::parse(".metadata.creationTimestamp") else { return Vec::new() };
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
            path,
        }];
    };
    let text = |column: &Value, key: &str| column[key].as_str().unwrap_or_default().into();
    let column = |column: &Value| {
        let path = column["jsonPath"].as_str().unwrap_or_default();
        Some(Column {
            name: text(column, "name"),
            ty: text(column, "type"),
            format: text(column, "format"),
            description: match text(column, "description") {
                said if !said.is_empty() => said,
                _ => format!("Custom resource definition column (in JSONPath format): {path}").into(),
            },
            priority: column["priority"].as_i64().unwrap_or(0),
            path: Path::parse(path)?,
        })
    };
    // A path that cannot be read ends the table.
    said.iter().map_while(column).collect()
}

impl Column {
    /// The cell of an object; null where there is nothing to show. `looks` is what the cells of a table share.
    pub fn cell(&self, object: &Value, looks: &Looks) -> Value {
        let Some(first) = self.path.first_of_page(object, looks) else { return Value::Null };
        match (&*self.ty, first) {
            ("integer", Value::Number(number)) if number.is_f64() => {
                number.as_f64().map_or(Value::Null, |f| (f as i64).into())
            }
            ("integer" | "number", Value::Number(_)) => first.clone(),
            ("boolean", Value::Bool(_)) => first.clone(),
            // No time at all is one that is not known.
            ("date", Value::String(text)) if matches!(&**text, "" | "null") => crate::read::since(&Value::Null),
            ("date", Value::String(text)) => match proto::time::parse_rfc3339(text) {
                Ok(_) => crate::read::since(first),
                Err(_) => "<invalid>".into(),
            },
            ("string", _) => printed(first).into(),
            _ => Value::Null,
        }
    }
}

/// A value as Go's templates print it; lists and objects as JSON.
fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<no value>".into(),
        Value::Number(number) if number.is_f64() => go_value::float(number.as_f64().unwrap_or_default()),
        other => escaped(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_date_is_shown_as_an_age() {
        let columns = of(&json!({"additionalPrinterColumns": [{"name": "When", "type": "date", "jsonPath": ".t"}]}));
        let cell = |time: Value| columns[0].cell(&json!({"t": time}), &Looks::of_page());
        assert_eq!(cell("".into()), "<unknown>");
        assert_eq!(cell("noon".into()), "<invalid>");
        assert_eq!(cell(5.into()), Value::Null);
    }

    #[test]
    fn a_value_is_shown_where_it_fits_its_column() {
        let cell = |ty: &str, value: Value| {
            let version = json!({"additionalPrinterColumns": [{"name": "C", "type": ty, "jsonPath": ".v"}]});
            of(&version)[0].cell(&json!({"v": value}), &Looks::of_page())
        };
        for (ty, value, shown) in [
            ("integer", json!(3), json!(3)),
            ("integer", json!(3.9), json!(3)),
            ("integer", json!("3"), json!(null)),
            ("integer", json!(true), json!(null)),
            ("number", json!(3.5), json!(3.5)),
            ("number", json!("3.5"), json!(null)),
            ("boolean", json!(false), json!(false)),
            ("boolean", json!("false"), json!(null)),
            ("boolean", json!(null), json!(null)),
            ("string", json!("a"), json!("a")),
            ("string", json!(3), json!("3")),
            ("string", json!(2_000_000.0), json!("2e+06")),
            ("string", json!(true), json!("true")),
            ("string", json!(null), json!("<no value>")),
            ("string", json!({"a": ["<b>"]}), json!("{\"a\":[\"\\u003cb\\u003e\"]}")),
        ] {
            assert_eq!(cell(ty, value.clone()), shown, "{ty} {value}");
        }
        let columns = of(&json!({"additionalPrinterColumns": [{"type": "string", "jsonPath": ".v"}]}));
        assert_eq!(columns[0].cell(&json!({}), &Looks::of_page()), json!(null));
    }

    #[test]
    fn a_path_that_cannot_be_read_ends_the_table() {
        let column = |path: &str| json!({"name": path, "type": "string", "jsonPath": path});
        let columns = of(&json!({"additionalPrinterColumns": [column(".a"), column(".b[x]"), column(".c")]}));
        assert_eq!(columns.iter().map(|c| &*c.name).collect::<Vec<_>>(), [".a"]);
    }
}
