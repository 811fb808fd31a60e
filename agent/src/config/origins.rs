//! Who said what: the origin of each value in the merged configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

/// Who set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// The main file or a drop-in.
    File(PathBuf),
    /// Its name without dashes.
    Flag(&'static str),
    /// Found by the agent itself: certificates that it made, the runtime's cgroup driver.
    Agent,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Flag(name) => write!(f, "--{name}"),
            Origin::Agent => f.write_str("node-agent"),
        }
    }
}

/// Origins by the path of a leaf; a list is one leaf.
#[derive(Debug, Clone, Default)]
pub struct Origins(BTreeMap<Vec<String>, Origin>);

impl Origins {
    /// All leaves of a tree come from `origin`; null takes the word back, so that the default holds again.
    pub(super) fn mark(&mut self, tree: &Value, origin: &Origin) {
        self.mark_below(&mut Vec::new(), tree, origin);
    }

    /// A value at a dotted path of the configuration's own fields.
    pub(super) fn mark_at(&mut self, path: &str, value: &Value, replace: bool, origin: &Origin) {
        let mut at: Vec<String> = path.split('.').map(str::to_owned).collect();
        if replace {
            self.0.retain(|known, _| !known.starts_with(&at));
        }
        self.mark_below(&mut at, value, origin);
    }

    /// The agent found the value of a top field itself.
    pub fn found(&mut self, field: &str) {
        self.0.insert(vec![field.to_owned()], Origin::Agent);
    }

    fn mark_below(&mut self, at: &mut Vec<String>, tree: &Value, origin: &Origin) {
        match tree {
            Value::Object(map) if !map.is_empty() || at.is_empty() => {
                for (name, value) in map {
                    at.push(name.to_string());
                    self.mark_below(at, value, origin);
                    at.pop();
                }
            }
            Value::Null => self.0.retain(|known, _| !known.starts_with(at)),
            _ => {
                self.0.insert(at.clone(), origin.clone());
            }
        }
    }

    /// Who set the leaf.
    pub fn of(&self, path: &[String]) -> &Origin {
        (1..=path.len()).rev().find_map(|length| self.0.get(&path[..length])).unwrap_or(&Origin::Default)
    }
}

/// All leaves of a document in its order: path, value.
pub fn leaves(document: &Value) -> Vec<(Vec<String>, &Value)> {
    fn walk<'a>(at: &mut Vec<String>, value: &'a Value, out: &mut Vec<(Vec<String>, &'a Value)>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (name, value) in map {
                    at.push(name.to_string());
                    walk(at, value, out);
                    at.pop();
                }
            }
            _ => out.push((at.clone(), value)),
        }
    }
    let mut out = Vec::new();
    walk(&mut Vec::new(), document, &mut out);
    out
}
