//! The `spec` of a definition, its schemas apart: group, scope, names, versions, conversion, columns, subresources.

use std::collections::HashSet;

use base64::Engine as _;
use serde_json::Value;

use super::found::Found;
use super::{items, schema, shown, text};
use crate::go_url;
use crate::names;
use crate::status::quote;

/// Parts of a version that upstream moves beside the versions when all have the same.
const SHARED: [&str; 4] = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];

/// The internal form: what all versions share stands in the spec (`validation` for the schema) and in no version.
pub fn internal(spec: &Value) -> Value {
    let mut out = spec.clone();
    let versions = items(&spec["versions"]);
    let Some(first) = versions.first() else { return out };
    for key in SHARED {
        let common = &first[key];
        if versions.iter().any(|v| v[key] != *common) {
            continue;
        }
        let place = if key == "schema" { "validation" } else { key };
        out[place] = common.clone();
        for version in out["versions"].as_array_mut().into_iter().flatten() {
            if let Some(version) = version.as_object_mut() {
                version.remove(key);
            }
        }
    }
    out
}

pub fn check(value: &Value, old: Option<&Value>, found: &mut Found) {
    let spec = internal(&value["spec"]);
    let group = text(&spec, "group");
    if group.is_empty() {
        found.required("spec.group", "");
    } else {
        let complaints = names::dns_subdomain(group);
        if !complaints.is_empty() {
            found.invalid("spec.group", &quote(group), &complaints.join(","));
        } else if !group.contains('.') {
            found.invalid("spec.group", &quote(group), "should be a domain with at least one dot");
        }
    }
    one_of(&spec, "scope", "spec.scope", &["Cluster", "Namespaced"], found);
    versions(&spec, old, found);
    let names = &spec["names"];
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(names, key).is_empty() {
            found.required(&format!("spec.names.{key}"), "");
        }
    }
    self::names(names, "spec.names", found);
    if !spec["validation"].is_null() {
        let status = items(&spec["versions"]).iter().chain([&spec]).any(|v| has_status(&v["subresources"]));
        // Upstream asks for the version that stands beside the versions, which is the first.
        let first = items(&spec["versions"]).first().map_or("", |version| text(version, "name"));
        let known = was_there(first, &spec["validation"], old);
        schema::check(&spec["validation"], "spec.validation", status, known, found);
    }
    subresources(&spec["subresources"], "spec.subresources", found);
    columns(&spec["additionalPrinterColumns"], "spec.additionalPrinterColumns", found);
    let selectable = items(&spec["selectableFields"]);
    if !selectable.is_empty() {
        if spec["validation"].is_null() {
            found.invalid("spec.selectableFields", "\"\"", "may only be set when validations.schema is included");
        } else {
            selectable_fields(selectable, &spec["validation"]["openAPIV3Schema"], "spec.selectableFields", found);
        }
    }
    if spec["preserveUnknownFields"] == true && !matches!(text(&spec["conversion"], "strategy"), "" | "None") {
        let why = "must be None if spec.preserveUnknownFields is true";
        found.invalid("spec.conversion.strategy", &quote(text(&spec["conversion"], "strategy")), why);
    }
    conversion(&spec["conversion"], old, found);
    if let Some(old) = old {
        frozen(value, old, found);
    }
}

fn has_status(subresources: &Value) -> bool {
    subresources["status"].is_object()
}

fn one_of(value: &Value, key: &str, path: &str, accepted: &[&str], found: &mut Found) {
    match text(value, key) {
        "" => found.required(path, ""),
        said if accepted.contains(&said) => {}
        said => found.not_supported(path, said, accepted),
    }
}

/// Whether a version of this name had this very schema before.
fn was_there(name: &str, validation: &Value, old: Option<&Value>) -> bool {
    let versions = old.map(|old| items(&old["spec"]["versions"])).unwrap_or_default();
    let before = versions.iter().find(|version| text(version, "name") == name);
    before.is_some_and(|version| version["schema"]["openAPIV3Schema"] == validation["openAPIV3Schema"])
}

fn versions(spec: &Value, old: Option<&Value>, found: &mut Found) {
    let versions = items(&spec["versions"]);
    if spec["validation"]["openAPIV3Schema"].is_null() {
        for (index, _) in versions.iter().enumerate().filter(|(_, v)| v["schema"]["openAPIV3Schema"].is_null()) {
            found.required(&format!("spec.versions[{index}].schema.openAPIV3Schema"), "");
        }
    }
    let has_defaults = |version: &Value| {
        let mut has = false;
        schema::visit(&version["openAPIV3Schema"], &mut |node| has |= !node["default"].is_null());
        has
    };
    if spec["preserveUnknownFields"] == true
        && (has_defaults(&spec["validation"]) || versions.iter().any(|version| has_defaults(&version["schema"])))
    {
        let why = "must be false in order to use defaults in the schema";
        found.invalid("spec.preserveUnknownFields", "true", why);
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        let name = text(version, "name");
        seen.push(name);
        let complaints = names::dns_1035_label(name);
        if !complaints.is_empty() {
            found.invalid(&format!("{path}.name"), &quote(name), &complaints.join(","));
        }
        deprecation(version, &path, found);
        if !version["schema"].is_null() {
            let per_version = versions.iter().any(|v| !v["subresources"].is_null());
            let status = has_status(if per_version { &version["subresources"] } else { &spec["subresources"] });
            let known = was_there(name, &version["schema"], old);
            schema::check(&version["schema"], &format!("{path}.schema"), status, known, found);
        }
        subresources(&version["subresources"], &format!("{path}.subresources"), found);
        columns(&version["additionalPrinterColumns"], &format!("{path}.additionalPrinterColumns"), found);
        let selectable = items(&version["selectableFields"]);
        if !selectable.is_empty() {
            let path = format!("{path}.selectableFields");
            match &version["schema"]["openAPIV3Schema"] {
                // The schema may stand beside the versions, and upstream does not look there.
                Value::Null => {
                    let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
                    found.invalid(&path, "\"\"", why);
                }
                schema => selectable_fields(selectable, schema, &path, found),
            }
        }
    }
    let shown = || shown::versions(&spec["versions"]);
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    if seen.len() != count {
        found.invalid("spec.versions", &shown(), "must contain unique version names");
    }
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        found.invalid("spec.versions", &shown(), "must have exactly one version marked as storage version");
    }
    if let Some(first) = versions.first() {
        let name = text(first, "name");
        let complaints = names::dns_1035_label(name);
        if !name.is_empty() && !complaints.is_empty() {
            found.invalid("spec.version", &quote(name), &complaints.join(","));
        }
    }
}

fn deprecation(version: &Value, path: &str, found: &mut Found) {
    let path = format!("{path}.deprecationWarning");
    let Some(said) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    if version["deprecated"] != true {
        return found.invalid(&path, &quote(said), "can only be set for deprecated versions");
    }
    if said.len() > 256 {
        found.invalid(&path, &quote(said), "must be <= 256 characters long");
    }
    if said.is_empty() {
        found.invalid(&path, &quote(said), "must not be an empty string");
    }
    if let Some((at, _)) = said.char_indices().find(|(_, c)| !crate::status::is_printed(*c)) {
        let why = format!("must only contain printable UTF-8 characters; non-printable character found at index {at}");
        found.invalid(&path, &quote(said), &why);
    }
}

/// Names as they are asked for, or as they were accepted.
pub fn names(names: &Value, path: &str, found: &mut Found) {
    let at = |key: &str| format!("{path}.{key}");
    for key in ["plural", "singular", "kind", "listKind"] {
        let said = text(names, key);
        let mixed = matches!(key, "kind" | "listKind");
        let complaints = names::dns_1035_label(&if mixed { said.to_lowercase() } else { said.to_owned() });
        if said.is_empty() || complaints.is_empty() {
            continue;
        }
        let before = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
        found.invalid(&at(key), &quote(said), &format!("{before}{}", complaints.join(",")));
    }
    let list = |key: &str, found: &mut Found| {
        for (index, name) in items(&names[key]).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let complaints = names::dns_1035_label(name);
            if !complaints.is_empty() {
                found.invalid(&format!("{}[{index}]", at(key)), &quote(name), &complaints.join(","));
            }
        }
    };
    list("shortNames", found);
    let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        found.invalid(&at("listKind"), &quote(list_kind), "kind and listKind may not be the same");
    }
    list("categories", found);
}

fn simple_path(path: &str, said: &str, found: &mut Found) -> bool {
    if said.starts_with('.') {
        return true;
    }
    found.invalid(path, &quote(said), "must be a simple json path starting with .");
    false
}

fn subresources(value: &Value, path: &str, found: &mut Found) {
    let scale = &value["scale"];
    if !scale.is_object() {
        return;
    }
    for (key, under) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = format!("{path}.scale.{key}");
        let said = text(scale, key);
        if said.is_empty() {
            found.required(&path, "");
        } else if simple_path(&path, said, found) && !said.starts_with(under) {
            found.invalid(&path, &quote(said), &format!("should be a json path under {}", under.trim_end_matches('.')));
        }
    }
    let said = text(scale, "labelSelectorPath");
    let path = format!("{path}.scale.labelSelectorPath");
    if !said.is_empty()
        && simple_path(&path, said, found)
        && !said.starts_with(".spec.")
        && !said.starts_with(".status.")
    {
        found.invalid(&path, &quote(said), "should be a json path under either .spec or .status");
    }
}

fn columns(value: &Value, path: &str, found: &mut Found) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    for (index, column) in items(value).iter().enumerate() {
        let at = |key: &str| format!("{path}[{index}].{key}");
        if text(column, "name").is_empty() {
            found.required(&at("name"), "");
        }
        let ty = text(column, "type");
        let one_of = format!("must be one of {}", TYPES.join(","));
        if ty.is_empty() {
            found.required(&at("type"), &one_of);
        } else if !TYPES.contains(&ty) {
            found.invalid(&at("type"), &quote(ty), &one_of);
        }
        let format = text(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            found.invalid(&at("format"), &quote(format), &format!("must be one of {}", FORMATS.join(",")));
        }
        let said = text(column, "jsonPath");
        if said.is_empty() {
            found.required(&at("JSONPath"), "");
        } else {
            simple_path(&at("JSONPath"), said, found);
        }
    }
}

const MOST_SELECTABLE: usize = 8;

fn selectable_fields(fields: &[Value], schema: &Value, path: &str, found: &mut Found) {
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = format!("{path}[{index}].jsonPath");
        let said = text(field, "jsonPath");
        if said.is_empty() {
            found.required(&path, "");
            continue;
        }
        match super::follow_path(said, schema, false) {
            Err(why) => {
                found.invalid(&path, &quote(said), &format!("is an invalid path: {why}"));
                continue;
            }
            Ok(led) => {
                if led.root == "metadata" {
                    found.invalid(&path, &quote(said), "must not point to fields in metadata");
                }
                if !matches!(text(led.schema, "type"), "string" | "boolean" | "integer") {
                    let why = "must point to a field of type string, boolean or integer. Enum string fields and strings \
                               with formats are allowed.";
                    found.invalid(&path, &quote(said), why);
                }
                if !seen.insert(led.text) {
                    found.duplicate(&path, &quote(said));
                }
            }
        }
    }
    if seen.len() > MOST_SELECTABLE {
        found.too_many(path, seen.len(), MOST_SELECTABLE);
    }
}

fn conversion(value: &Value, old: Option<&Value>, found: &mut Found) {
    // One that is wrong keeps a definition from being established, and is not brought into one that has a right one.
    let any_bundle = old.is_none_or(|old| !crate::crd::names::trusts(old));
    if value.is_null() {
        return;
    }
    let path = "spec.conversion";
    one_of(value, "strategy", &format!("{path}.strategy"), &["None", "Webhook"], found);
    let client = &value["webhook"]["clientConfig"];
    let versions = items(&value["webhook"]["conversionReviewVersions"]);
    if text(value, "strategy") != "Webhook" {
        if !client.is_null() {
            let why = "should not be set when strategy is not set to Webhook";
            found.forbidden(&format!("{path}.webhookClientConfig"), why);
        }
        if !versions.is_empty() {
            let why = "should not be set when strategy is not set to Webhook";
            found.forbidden(&format!("{path}.conversionReviewVersions"), why);
        }
        return;
    }
    let at = format!("{path}.webhookClientConfig");
    if client.is_null() {
        found.required(&at, "required when strategy is set to Webhook");
    } else if client["url"].is_string() == client["service"].is_object() {
        found.required(&at, "exactly one of url or service is required");
    } else if let Some(url) = client["url"].as_str() {
        webhook_url(url, &format!("{at}.url"), found);
    } else if old.map(|old| &old["spec"]["conversion"]["webhook"]["clientConfig"]["service"])
        != Some(&client["service"])
    {
        // One that was stored before these rules stays.
        found.causes.extend(
            crate::validate::webhook_service(&format!("{at}.service"), &client["service"]).into_iter().map(Into::into),
        );
    }
    let bundle = text(client, "caBundle");
    if !any_bundle && !bundle.is_empty() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(bundle).unwrap_or_default();
        if let Err(why) = crate::validate::authorities(&bytes) {
            found.invalid(&format!("{at}.caBundle"), &quote(bundle), &why);
        }
    }
    let at = format!("{path}.conversionReviewVersions");
    if versions.is_empty() {
        return found.required(&at, "");
    }
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if !seen.insert(name) {
            found.invalid(&format!("{at}[{index}]"), &quote(name), "duplicate version");
            continue;
        }
        for why in names::dns_1035_label(name) {
            found.invalid(&format!("{at}[{index}]"), &quote(name), &why);
        }
    }
    if !versions.iter().any(|v| v == "v1" || v == "v1beta1") {
        let shown = value["webhook"]["conversionReviewVersions"].to_string();
        found.invalid(&at, &shown, "must include at least one of v1, v1beta1");
    }
}

fn webhook_url(url: &str, path: &str, found: &mut Found) {
    match go_url::webhook_faults(url) {
        Ok(faults) => faults.iter().for_each(|(part, why)| found.invalid(path, &quote(part), why)),
        Err(why) => found.required(path, &why),
    }
}

/// Names that objects are stored under.
fn frozen(value: &Value, old: &Value, found: &mut Found) {
    let (spec, before) = (&value["spec"], &old["spec"]);
    let immutable = |path: &str, new: &Value, old: &Value, found: &mut Found| {
        if new != old {
            found.invalid(path, &quote(new.as_str().unwrap_or_default()), "field is immutable");
        }
    };
    if crate::crd::names::is_true(old, "Established") {
        immutable("spec.scope", &spec["scope"], &before["scope"], found);
        immutable("spec.names.kind", &spec["names"]["kind"], &before["names"]["kind"], found);
    }
    immutable("spec.group", &spec["group"], &before["group"], found);
    immutable("spec.names.plural", &spec["names"]["plural"], &before["names"]["plural"], found);
}
