//! Where the value stands that a problem is about: the file and line of the field that its text names.
//!
//! The kubelet's texts name fields by path, by flag, by the key of a map, or by the wrong value alone; in this order they
//! are looked for among what somebody has set.

use serde_json::Value;

use super::origins::{Origin, Origins, leaves};
use super::{Loaded, file};
use crate::cli;

/// `FILE:LINE` or `--FLAG`; None where the text names nothing that somebody has set.
pub fn place(loaded: &Loaded, problem: &str) -> Option<String> {
    let leaves = leaves(&loaded.document);
    let own = |path: &[String]| matches!(path[0].as_str(), "kind" | "apiVersion");
    let by_somebody = |path: &[String]| !matches!(loaded.origins.of(path), Origin::Default | Origin::Agent);
    let set = || leaves.iter().filter(|(path, _)| by_somebody(path) && !own(path));
    // The longest name says most; keys of maps (gates, thresholds) decide between leaves of one field.
    let named = set().filter_map(|(path, _)| Some((named(path, problem)?, path))).max_by_key(|(score, _)| *score);
    let found = named.map(|(_, path)| path).or_else(|| {
        let mut by_value = set().filter(|(_, value)| mentions(value, problem)).map(|(path, _)| path);
        // Two fields of the same value: either could be meant.
        by_value.next().filter(|_| by_value.next().is_none())
    })?;
    Some(shown(&loaded.origins, found))
}

/// The origin of a leaf with its line.
fn shown(origins: &Origins, path: &[String]) -> String {
    let origin = origins.of(path);
    if let Origin::File(name) = origin {
        let text = std::fs::read_to_string(name).unwrap_or_default();
        let line = (1..=path.len()).rev().find_map(|length| file::line_of_keys(&text, &path[..length]));
        if let Some(line) = line {
            return format!("{}:{line}", name.display());
        }
    }
    origin.to_string()
}

/// How much of a leaf's path the problem names.
fn named(path: &[String], problem: &str) -> Option<usize> {
    let dotted = path.join(".");
    if has_word(problem, &dotted) {
        return Some(1000 + dotted.len());
    }
    let field = (1..=path.len()).rev().find(|&length| {
        let above = path[..length].join(".");
        let flag = cli::flag_of_field(&above).is_some_and(|flag| has_word(problem, flag));
        flag || has_word(problem, &above)
    });
    let map = matches!(path[0].as_str(), "featureGates" | "evictionHard" | "evictionSoft")
        || path[0].starts_with("eviction")
        || path[0].ends_with("Options")
        || path[0].ends_with("Reserved");
    let key = path.last().filter(|_| map && path.len() > 1).filter(|key| has_word(problem, key));
    match (field, key) {
        (Some(length), Some(key)) => Some(500 + length * 10 + key.len()),
        (Some(length), None) => Some(100 + length),
        (None, Some(key)) if key.len() > 4 => Some(key.len()),
        _ => None,
    }
}

fn mentions(value: &Value, problem: &str) -> bool {
    match value {
        Value::String(text) => text.len() > 1 && has_word(problem, text),
        Value::Array(list) => list.iter().any(|item| mentions(item, problem)),
        Value::Object(map) => map.values().any(|item| mentions(item, problem)),
        _ => false,
    }
}

/// The word stands in the text, and is not part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].trim_end_matches("--");
        let before = if before.len() + 2 == at { None } else { text[..at].chars().next_back() };
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(inner) && !after.is_some_and(inner)
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{ConfigError, Sources, all_problems};
    use super::*;

    #[test]
    fn problems_have_the_line_of_the_field_that_they_name() {
        let dir = std::env::temp_dir().join(format!("places-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("d")).expect("creates");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let main = format!(
            "{head}port: 70000\nfeatureGates:\n  EventedPLEG: false\n  NoGate: true\nauthorization:\n  mode: Maybe\n\
             evictionHard:\n  memory.available: 1Mi\n  no.signal: 1Mi\ncpuManagerPolicy: fast\n"
        );
        std::fs::write(dir.join("main"), main).expect("writes");
        let site = format!("{head}logging: {{format: xml}}\nkubeReserved:\n  cpu: 1m\n  gpu: 1m\naddress: here\n");
        std::fs::write(dir.join("d/1.conf"), site).expect("writes");
        let flags = vec![super::super::Override {
            path: "maxPods",
            flag: "max-pods",
            value: serde_json::json!(-1),
            merge: false,
        }];
        let sources =
            Sources { file: Some(dir.join("main")), drop_ins: Some(dir.join("d")), flags, ..Sources::default() };
        let (loaded, problems) = all_problems(&sources);
        let loaded = loaded.expect("it can be read");
        let told: Vec<(String, Option<String>)> = problems
            .into_iter()
            .flat_map(ConfigError::split)
            .map(|p| {
                (
                    p.to_string(),
                    place(&loaded, &p.to_string()).map(|p| {
                        PathBuf::from(p).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
                    }),
                )
            })
            .collect();
        std::fs::remove_dir_all(&dir).expect("removes");
        for (words, at) in [
            ("port (--port) 70000", "main:3"),
            ("unrecognized feature gate: NoGate", "main:6"),
            ("unknown authorization mode Maybe", "main:8"),
            ("unsupported eviction signal no.signal", "main:11"),
            ("unknown policy: \"fast\"", "main:12"),
            ("logging.format", "1.conf:3"),
            ("cannot reserve \"gpu\"", "1.conf:6"),
            ("address \"here\"", "1.conf:7"),
            ("maxPods (--max-pods) -1", "--max-pods"),
        ] {
            let found =
                told.iter().find(|(text, _)| text.contains(words)).unwrap_or_else(|| panic!("{words}: {told:#?}"));
            assert_eq!(found.1.as_deref(), Some(at), "{told:#?}");
        }
    }

    #[test]
    fn a_word_is_no_part_of_another() {
        assert!(has_word("port (--port) 1", "port") && has_word("--port 1", "port") && has_word("a.b: c", "a.b"));
        assert!(!has_word("healthz-port", "port") && !has_word("ports", "port"));
    }
}
