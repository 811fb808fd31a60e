//! Paths that are of no resource: lists of groups, versions and resources, the server's version, and what others check
//! tokens of service accounts with.

use serde_json::{Map, Value, json};

use super::media::DISCOVERY;
use super::paths::Draft;
use super::routes::{group, tag, valid};

const JSON: &str = "application/json";

/// Adds what is served at the place that a document is called after: `api`, `apis/apps`, `apis/apps/v1`, `version`.
pub(super) fn add(key: &str, draft: &mut Draft) {
    let parts: Vec<&str> = key.split('/').collect();
    let mut told = |id: &str, text: &str, tag: String, kind: &str| {
        let schema = draft.schemas.meta(kind);
        let mut media = DISCOVERY.to_vec();
        if draft.cbor && kind == "APIResourceList" {
            media.push("application/cbor");
        }
        put(key, draft, (id, text, &tag), (&DISCOVERY, &media), &schema);
    };
    let resources = |name: &str, version: &str| {
        let id = format!("get{}{}APIResources", valid(group(name), true), valid(version, true));
        (id, tag(name, version))
    };
    match parts.as_slice() {
        ["api"] => told("getCoreAPIVersions", "get available API versions", "core".into(), "APIVersions"),
        ["apis"] => told("getAPIVersions", "get available API versions", "apis".into(), "APIGroupList"),
        ["apis", name] => {
            let id = format!("get{}APIGroup", valid(group(name), true));
            told(&id, "get information of a group", valid(group(name), false), "APIGroup");
        }
        ["api", version] => {
            let (id, tag) = resources("", version);
            told(&id, "get available resources", tag, "APIResourceList");
        }
        ["apis", name, version] => {
            let (id, tag) = resources(name, version);
            told(&id, "get available resources", tag, "APIResourceList");
        }
        ["version"] => {
            let schema = draft.schemas.own("io.k8s.apimachinery.pkg.version.Info", version());
            let said = ("getCodeVersion", "get the version information for this server", "version");
            put(key, draft, said, (&[JSON], &[JSON]), &schema);
        }
        [".well-known", ..] => {
            let text = "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'";
            let said = ("getServiceAccountIssuerOpenIDConfiguration", text, "WellKnown");
            put(key, draft, said, (&[], &[JSON]), &json!({"type": "string"}));
        }
        ["openid", ..] => {
            let text = "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)";
            let said = ("getServiceAccountIssuerOpenIDKeyset", text, "openid");
            put(key, draft, said, (&[], &["application/jwk-set+json"]), &json!({"type": "string"}));
        }
        _ => {}
    }
}

/// Adds one operation: its name, text and tag; what it takes and what it gives.
fn put(key: &str, draft: &mut Draft, said: (&str, &str, &str), media: (&[&str], &[&str]), schema: &Value) {
    let (id, text, tag) = said;
    let mut operation = json!({"description": text, "operationId": id, "tags": [tag]});
    if draft.format == super::Format::V2 && !media.0.is_empty() {
        operation["consumes"] = json!(media.0);
    }
    draft.answers(&mut operation, &[("200", "OK")], media.1, schema);
    draft.add_path(format!("/{key}/"), json!({"get": operation}));
}

/// The schema of `/version`, which is no type of the API.
fn version() -> Value {
    let may = ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];
    let must =
        ["major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
    let properties: Map<_, _> = may.iter().chain(&must).map(|name| (*name, json!({"type": "string"}))).collect();
    json!({
        "type": "object", "description": "What the server was built from.", "properties": properties, "required": must,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn places_of_discovery_are_told_of() {
        for (key, path, id, tag) in [
            ("api", "/api/", "getCoreAPIVersions", "core"),
            ("apis", "/apis/", "getAPIVersions", "apis"),
            ("api/v1", "/api/v1/", "getCoreV1APIResources", "core_v1"),
            ("apis/apps", "/apis/apps/", "getAppsAPIGroup", "apps"),
            (
                "apis/flowcontrol.apiserver.k8s.io/v1",
                "/apis/flowcontrol.apiserver.k8s.io/v1/",
                "getFlowcontrolApiserverV1APIResources",
                "flowcontrolApiserver_v1",
            ),
            ("version", "/version/", "getCodeVersion", "version"),
            (
                ".well-known/openid-configuration",
                "/.well-known/openid-configuration/",
                "getServiceAccountIssuerOpenIDConfiguration",
                "WellKnown",
            ),
            ("openid/v1/jwks", "/openid/v1/jwks/", "getServiceAccountIssuerOpenIDKeyset", "openid"),
        ] {
            for format in [Format::V2, Format::V3] {
                let mut draft = Draft::new(format, false);
                add(key, &mut draft);
                let [paths, schemas, _] = draft.finish();
                let said = &paths[path]["get"];
                assert_eq!((&said["operationId"], &said["tags"][0]), (&json!(id), &json!(tag)), "{key}: {paths}");
                let answer = &said["responses"]["200"];
                let content = answer["content"].as_object();
                let schema =
                    content.map_or(&answer["schema"], |all| all.values().next().map_or(answer, |m| &m["schema"]));
                match schema["$ref"].as_str().and_then(|place| place.rsplit('/').next()) {
                    Some(name) => assert!(schemas[name].is_object(), "{name}"),
                    None => assert_eq!(schema["type"], "string", "{key}"),
                }
            }
        }
    }
}
