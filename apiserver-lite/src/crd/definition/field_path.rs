//! Paths to fields of a schema, as rules (`fieldPath`) and selectable fields name them.
//!
//! Follows `ValidFieldPath` of `apiserver/schema/cel`: `.a`, and where brackets may be `['a.b']`; no indices.

use serde_json::Value;

/// A path that leads somewhere.
#[derive(Debug)]
pub struct FieldPath<'a> {
    /// As complaints print it, without a leading point: members by `.name`, values of maps by `[key]`.
    pub text: String,
    /// The first step.
    pub root: String,
    /// The schema at its end.
    pub schema: &'a Value,
}

/// Follows a path through a schema. `brackets` tells whether steps may be written as `['name']`.
///
/// # Errors
/// Why it is no path, or leads nowhere.
pub fn follow<'a>(path: &str, schema: &'a Value, brackets: bool) -> Result<FieldPath<'a>, String> {
    const END: &str = "unexpected end of JSON path";
    let mut found = FieldPath { text: String::new(), root: String::new(), schema };
    let mut rest = path;
    while let Some(first) = token(&mut rest) {
        match first {
            "[" => {
                if !brackets {
                    return Err("array notation is not allowed".into());
                }
                let quoted = token(&mut rest).ok_or(END)?;
                let name = quoted.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
                let name = name.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                found.step(&unescaped(name)?)?;
                match token(&mut rest).ok_or(END)? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => found.step(token(&mut rest).ok_or(END)?)?,
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(found)
}

impl FieldPath<'_> {
    fn step(&mut self, name: &str) -> Result<(), String> {
        let nowhere = || "does not refer to a valid field".to_owned();
        let properties = self.schema["properties"].as_object().filter(|properties| !properties.is_empty());
        let first = self.text.is_empty();
        match properties {
            Some(properties) => {
                self.schema = properties.get(name).ok_or_else(nowhere)?;
                self.text.push_str(if first { "" } else { "." });
                self.text.push_str(name);
            }
            None => {
                let values = &self.schema["additionalProperties"];
                self.schema = Some(values).filter(|values| values.is_object()).ok_or_else(nowhere)?;
                self.text.push_str(&format!("[{name}]"));
            }
        }
        if first {
            self.root = self.text.clone();
        }
        Ok(())
    }
}

/// The next token: one of `.`, `[` and `]`, a text in single quotes, or what stands before any of the former.
fn token<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let text = *rest;
    if text.is_empty() {
        return None;
    }
    let end = if text.starts_with('\'') {
        let bytes = text.as_bytes();
        let quote = (1..bytes.len()).find(|at| bytes[*at] == b'\'' && bytes[at - 1] != b'\\');
        quote.map_or(text.len(), |at| at + 1)
    } else {
        match text.find(['.', '[', ']']) {
            Some(0) => 1,
            Some(at) => at,
            None => text.len(),
        }
    };
    let (token, after) = text.split_at(end);
    *rest = after;
    Some(token)
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(c @ ('\'' | '\\')) => c,
            // Nothing comes after it: it stands for itself.
            None => '\\',
            Some(other) => return Err(format!("invalid string literal: invalid escape char \\{other}")),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_names_members_and_values_of_maps() {
        let text = json!({"type": "string"});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": text, "a.b": text, "it's": text, "list": {"type": "array", "items": text},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": text}}}}}}});
        let told = |path: &str, brackets: bool| match follow(path, &schema, brackets) {
            Ok(found) => format!("{} {} {}", found.text, found.root, found.schema["type"].as_str().unwrap_or("?")),
            Err(why) => format!("! {why}"),
        };
        for (path, expected) in [
            (".spec.a", "spec.a spec string"),
            (".spec['a']", "spec.a spec string"),
            (".spec['a.b']", "spec.a.b spec string"),
            ("['spec'].a", "spec.a spec string"),
            (r".spec['it\'s']", "spec.it's spec string"),
            (".spec.map.k.x", "spec.map[k].x spec string"),
            (".spec.map['k.1'].x", "spec.map[k.1].x spec string"),
            (".spec.nope", "! does not refer to a valid field"),
            (".spec.a.b", "! does not refer to a valid field"),
            (".spec.list[0]", "! expected single quoted string but got 0"),
            (".spec.list['0']", "! does not refer to a valid field"),
            (r".spec['a\q']", r"! invalid string literal: invalid escape char \q"),
            (".spec['a'", "! unexpected end of JSON path"),
            (".spec['a'.", "! expected ] but got ."),
            (".spec[", "! unexpected end of JSON path"),
            (".spec['a", "! expected single quoted string but got 'a"),
            (".", "! unexpected end of JSON path"),
            ("..spec", "! does not refer to a valid field"),
            ("spec.a", "! expected [ or . but got: spec"),
            (".spec]", "! expected [ or . but got: ]"),
        ] {
            assert_eq!(told(path, true), expected, "{path}");
        }
        assert_eq!(told(".spec['a']", false), "! array notation is not allowed");
        assert_eq!(told(".spec.a", false), "spec.a spec string");
    }
}
