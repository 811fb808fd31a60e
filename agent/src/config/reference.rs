//! The configuration reference, made of the schema, the defaults, the flags and the gates: `docs/configuration.md`.

use std::fmt::Write as _;

use proto::schema::{StructId, Type, TypeId, TypeSet};
use serde_json::Value;

use super::{FeatureGates, GATES, Stage, defaults, file, no_effect};
use crate::cli;
use crate::settings;

const HEAD: &str = "\
<!-- Made by `node-agent config reference`; a test keeps this file equal to the code. -->
# Configuration of node-agent

Three sources, each winning over the one before: the file that `--config` names (`kubelet.config.k8s.io/v1beta1`,
KubeletConfiguration, YAML or JSON), the `*.conf` files below `--config-dir` in lexical order, and flags. Drop-ins merge:
scalars override, maps key by key, lists as a whole, null gives a field back to its default. What came of it:
`node-agent config view`; what is wrong with it: `node-agent config check`. The agent's own settings are a file of their own.

A field that no version has, or that is repeated, is reported with file and line, and refused with `--strict-config`.
";

const OWN: &str = "\
## The daemon's own settings

TOML: `/etc/orchestrator-lite/node-agent.toml` (or what `--settings` names), then `*.toml` in the folder of that name with
`.d` behind it, in lexical order. Neither has to be there. Later scalars and lists replace earlier ones, tables are merged
key by key. A setting that is not in this table is refused with file and line.

";

/// The whole page.
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    page.push_str("\n## Fields\n\nThe default is that of a configuration file with nothing in it; without any, the kubelet's older defaults hold\n(anonymous users, no authorization, port 10255 open, no eviction). The last column says which fields are accepted and do\nnothing, and why; `node-agent config check` warns of them.\n\n| field | type | default | flag | no effect |\n|---|---|---|---|---|\n");
    let mut document = Value::Object(serde_json::Map::new());
    defaults::apply_eviction(&mut document);
    defaults::apply(&mut document, &FeatureGates::default());
    if let (set, Some(id)) = file::schema() {
        fields(set, id, "", &document, &mut page);
    }
    page.push('\n');
    page.push_str(OWN);
    page.push_str("| setting | default | |\n|---|---|---|\n");
    for (key, default, what) in settings::KNOWN {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(page, "| `{key}` | {} | {what} |", code(default));
    }
    page.push_str("\n## Flags of their own\n\n| flag | |\n|---|---|\n");
    for (flag, what) in cli::own_flags() {
        let _ = writeln!(page, "| `--{flag}` | {what} |");
    }
    page.push_str("\n## Feature gates\n\nGates without a mark in the last column are accepted, and the agent behaves as with their default.\n\n| gate | stage | default | can be switched |\n|---|---|---|---|\n");
    for (name, stage, default) in GATES {
        let stage = match stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Ga => "GA",
            Stage::Deprecated => "deprecated",
        };
        let switched = if no_effect::is_switched(name) { "yes" } else { "" };
        let _ = writeln!(page, "| `{name}` | {stage} | {} | {switched} |", if *default { "on" } else { "off" });
    }
    page
}

/// A row for each field; structs are followed, lists and maps are one row.
fn fields(set: &TypeSet, id: StructId, above: &str, defaults: &Value, page: &mut String) {
    for prop in &set.get(id).props {
        if above.is_empty() && matches!(&*prop.name, "apiVersion" | "kind") {
            continue;
        }
        let path = if above.is_empty() { prop.name.to_string() } else { format!("{above}.{}", prop.name) };
        let default = defaults.get(&*prop.name).unwrap_or(&Value::Null);
        match set.ty(prop.ty) {
            Type::Struct(inner) | Type::AtomicStruct(inner) => fields(set, *inner, &path, default, page),
            _ => {
                let flag = cli::flag_of_field(&path).map(|flag| format!("`--{flag}`")).unwrap_or_default();
                let idle = no_effect::reason(&path).unwrap_or_default();
                let _ = writeln!(page, "| `{path}` | {} | {} | {flag} | {idle} |", kind(set, prop.ty), shown(default));
            }
        }
    }
}

fn kind(set: &TypeSet, ty: TypeId) -> String {
    match set.ty(ty) {
        Type::String | Type::Bytes | Type::Time | Type::MicroTime => "text".into(),
        Type::Bool => "true or false".into(),
        Type::Int32 | Type::Int64 | Type::Double => "number".into(),
        Type::Quantity => "quantity".into(),
        Type::Duration => "duration".into(),
        Type::List(list) => format!("list of {}", kind(set, list.element)),
        Type::Map(map) => format!("map to {}", kind(set, map.value)),
        Type::Struct(id) | Type::AtomicStruct(id) => {
            let names: Vec<String> = set.get(*id).props.iter().map(|p| format!("`{}`", p.name)).collect();
            format!("{{{}}}", names.join(", "))
        }
        _ => "any".into(),
    }
}

fn shown(default: &Value) -> String {
    match default {
        Value::Null => String::new(),
        Value::String(text) => code(text),
        other => code(&other.to_string()),
    }
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_reference_is_the_codes() {
        let page = include_str!("../../../docs/configuration.md");
        assert_eq!(page, reference(), "write docs/configuration.md anew with `node-agent config reference`");
    }

    #[test]
    fn every_field_and_its_default_is_there() {
        let page = reference();
        for row in [
            "| `syncFrequency` | duration | `1m0s` | `--sync-frequency` |  |",
            "| `maxPods` | number | `110` | `--max-pods` |  |",
            "| `authentication.webhook.cacheTTL` | duration | `2m0s` | `--authentication-token-webhook-cache-ttl` |  |",
            "| `hairpinMode` | text | `promiscuous-bridge` | `--hairpin-mode` | the network plugin",
            "| `ContainerCheckpoint` | beta | on | yes |",
            "| `SidecarContainers` | GA | on |  |",
            "| `evictionHard` | map to text | ",
        ] {
            assert!(page.contains(row), "{row}");
        }
    }
}
