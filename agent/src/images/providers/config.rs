//! `CredentialProviderConfig`: which programs give credentials for which images.
//!
//! A file, or a folder of files (`.json`, `.yaml`, `.yml`, in order of their names). Unknown fields are errors.
//!
//! Followed: `pkg/credentialprovider/plugin/config.go`; the texts are the kubelet's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::digest;
use serde::Deserialize;

use crate::cli::name_errors;
use crate::metrics;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const VERSIONS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1beta1", "credentialprovider.kubelet.k8s.io/v1alpha1"];
const FILE_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<Written>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Written {
    name: String,
    #[serde(deserialize_with = "or_none")]
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    #[serde(deserialize_with = "or_none")]
    args: Vec<String>,
    #[serde(deserialize_with = "or_none")]
    env: Vec<Variable>,
    token_attributes: Option<TokenAttributes>,
}

/// Null is a list of nothing.
fn or_none<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Variable {
    pub name: String,
    pub value: String,
}

/// What of the pod's service account a program is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenAttributes {
    pub service_account_token_audience: String,
    /// `Token` or `ServiceAccount`: what credentials are remembered for.
    pub cache_type: String,
    pub require_service_account: Option<bool>,
    #[serde(deserialize_with = "or_none")]
    pub required_service_account_annotation_keys: Vec<String>,
    #[serde(deserialize_with = "or_none")]
    pub optional_service_account_annotation_keys: Vec<String>,
}

/// One program, as checked.
#[derive(Debug, Clone)]
pub struct Provider {
    pub program: PathBuf,
    pub name: String,
    pub match_images: Vec<String>,
    pub default_cache: Duration,
    pub api_version: String,
    pub args: Vec<String>,
    pub env: Vec<Variable>,
    pub tokens: Option<TokenAttributes>,
}

/// Reads and checks the configuration at `path`; the programs are in `folder`. `tokens` is the gate
/// `KubeletServiceAccountTokenForCredentialProviders`.
///
/// # Errors
/// The kubelet's text, for whoever wrote the files.
pub fn load(path: &Path, folder: &Path, tokens: bool) -> Result<Vec<Provider>, String> {
    load_hashed(path, folder, tokens).map(|(providers, hash)| {
        metrics::CREDENTIAL_PROVIDER_CONFIG.set_all([(vec![hash], 1.0)]);
        providers
    })
}

/// The same, with a hash of the files: of each its length and content.
fn load_hashed(path: &Path, folder: &Path, tokens: bool) -> Result<(Vec<Provider>, String), String> {
    match std::fs::metadata(folder) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("plugin binary directory {} did not exist", folder.display()));
        }
        Err(e) => return Err(format!("error inspecting binary directory {}: {e}", folder.display())),
    }
    let mut written: Vec<Written> = Vec::new();
    let mut hash = digest::Context::new(&digest::SHA256);
    for file in files(path)? {
        for provider in read(&file, &mut hash)? {
            if written.iter().any(|w| w.name == provider.name) && path.is_dir() {
                return Err(format!(
                    "duplicate provider name {:?} found in configuration file(s) in {}",
                    provider.name,
                    path.display()
                ));
            }
            written.push(provider);
        }
    }
    let errors = check(&written, tokens);
    match errors.as_slice() {
        [] => {}
        [one] => return Err(format!("failed to validate credential provider config: {one}")),
        many => return Err(format!("failed to validate credential provider config: [{}]", many.join(", "))),
    }
    let providers = written.into_iter().map(|w| made(w, folder, tokens)).collect::<Result<_, _>>()?;
    let hash: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((providers, format!("sha256:{hash}")))
}

fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e: std::io::Error| {
        format!(
            "unable to read external registry credential provider configuration from {:?}: {e}",
            path.display().to_string()
        )
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found: Vec<PathBuf> = path
        .read_dir()
        .map_err(failed)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|p| !p.is_dir() && p.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml"))
        .collect();
    found.sort();
    match found.is_empty() {
        true => Err(format!("no configuration files found in directory {:?}", path.display().to_string())),
        false => Ok(found),
    }
}

fn read(path: &Path, hash: &mut digest::Context) -> Result<Vec<Written>, String> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|e| {
        format!("unable to read external registry credential provider configuration from {path:?}: {e}")
    })?;
    hash.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
    hash.update(&text);
    let tree = proto::yaml::parse(&text).map_err(|e| format!("error decoding config {shown}: {e}"))?;
    let file: File = serde_json::from_value(tree).map_err(|e| format!("error decoding config {shown}: {e}"))?;
    if file.kind != "CredentialProviderConfig" {
        return Err(format!("failed to convert {:?} to CredentialProviderConfig in {shown}", file.kind));
    }
    if !FILE_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!(
            "error decoding config {shown}: no kind \"CredentialProviderConfig\" is registered for version {:?}",
            file.api_version
        ));
    }
    Ok(file.providers)
}

fn duration(text: &str) -> Option<i64> {
    proto::duration::parse(text).ok()
}

fn check(providers: &[Written], tokens: bool) -> Vec<String> {
    let mut errors = Vec::new();
    if providers.is_empty() {
        errors.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    let mut seen = BTreeSet::new();
    for provider in providers {
        let mut say = |field: &str, what: String| errors.push(format!("providers.{field}: {what}"));
        let name = &provider.name;
        let invalid = |why: &str| format!("Invalid value: {name:?}: {why}");
        if name.contains('/') {
            say("name", invalid("provider name cannot contain path separators"));
        }
        if name == "." || name == ".." {
            say("name", invalid(&format!("provider name cannot be '{name}'")));
        }
        if name.contains(' ') {
            say("name", invalid("provider name cannot contain spaces"));
        }
        if name.is_empty() {
            say("name", "Required value: provider name cannot be empty".to_owned());
        }
        if !seen.insert(name) {
            say("name", format!("Duplicate value: {name:?}"));
        }
        if provider.api_version.is_empty() {
            say("apiVersion", "Required value: apiVersion is required".to_owned());
        } else if !VERSIONS.contains(&provider.api_version.as_str()) {
            let known = VERSIONS.map(|v| format!("{v:?}")).join(", ");
            say("apiVersion", format!("Unsupported value: {:?}: supported values: {known}", provider.api_version));
        }
        if provider.match_images.is_empty() {
            say("matchImages", "Required value: at least 1 item in matchImages is required".to_owned());
        }
        for pattern in &provider.match_images {
            if !is_pattern(pattern) {
                say("matchImages", format!("Invalid value: {pattern:?}: match image is invalid"));
            }
        }
        match provider.default_cache_duration.as_deref().map(duration) {
            None => say("defaultCacheDuration", "Required value: defaultCacheDuration is required".to_owned()),
            Some(Some(nanos)) if nanos >= 0 => {}
            Some(_) => say(
                "defaultCacheDuration",
                format!(
                    "Invalid value: {:?}: defaultCacheDuration must be greater than or equal to 0",
                    provider.default_cache_duration.as_deref().unwrap_or_default()
                ),
            ),
        }
        if let Some(attributes) = &provider.token_attributes {
            for (field, what) in check_tokens(attributes, &provider.api_version, tokens) {
                say(&format!("tokenAttributes{field}"), what);
            }
        }
    }
    errors
}

fn check_tokens(attributes: &TokenAttributes, version: &str, enabled: bool) -> Vec<(&'static str, String)> {
    let mut errors = Vec::new();
    if !enabled {
        let why = "Forbidden: tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders \
                   feature gate is disabled";
        return vec![("", why.to_owned())];
    }
    if attributes.service_account_token_audience.is_empty() {
        errors.push((".serviceAccountTokenAudience", "Required value: serviceAccountTokenAudience is required".into()));
    }
    match attributes.cache_type.as_str() {
        "Token" | "ServiceAccount" => {}
        "" => errors.push((".cacheType", "Required value: cacheType is required to be set when serviceAccountTokenAudience is specified. Supported values are: ServiceAccount, Token".into())),
        other => errors.push((
            ".cacheType",
            format!("Unsupported value: {other:?}: supported values: \"ServiceAccount\", \"Token\""),
        )),
    }
    let required = &attributes.required_service_account_annotation_keys;
    match attributes.require_service_account {
        None => errors.push((".requireServiceAccount", "Required value: requireServiceAccount is required".into())),
        Some(false) if !required.is_empty() => errors.push((
            ".requiredServiceAccountAnnotationKeys",
            "Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set".into(),
        )),
        Some(_) => {}
    }
    let optional = &attributes.optional_service_account_annotation_keys;
    for (field, keys) in
        [(".requiredServiceAccountAnnotationKeys", required), (".optionalServiceAccountAnnotationKeys", optional)]
    {
        errors.extend(wrong_keys(keys).into_iter().map(|what| (field, what)));
    }
    let both: Vec<&String> =
        required.iter().filter(|k| attributes.optional_service_account_annotation_keys.contains(k)).collect();
    if !both.is_empty() {
        errors.push(("", format!("Invalid value: {both:?}: annotation keys cannot be both required and optional")));
    }
    if version != V1 {
        errors.push(("", format!("Forbidden: tokenAttributes is only supported for {V1} API version")));
    }
    errors
}

/// Keys of annotations are qualified names in which case does not matter, and each stands once.
fn wrong_keys(keys: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let told = name_errors(&key.to_lowercase()).into_iter();
        wrong.extend(told.map(|why| format!("Invalid value: {key:?}: {why}")));
        if keys[..at].contains(key) {
            wrong.push(format!("Duplicate value: {key:?}"));
        }
    }
    wrong
}

/// A host with an optional port and path, and no scheme.
fn is_pattern(pattern: &str) -> bool {
    let host = pattern.split('/').next().unwrap_or_default();
    let (name, port) = host.split_once(':').unwrap_or((host, "0"));
    !pattern.contains("://")
        && !pattern.contains(char::is_whitespace)
        && !name.is_empty()
        && port.bytes().all(|b| b.is_ascii_digit())
        && !port.is_empty()
}

fn made(written: Written, folder: &Path, tokens: bool) -> Result<Provider, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let program = folder.join(&written.name);
    match std::fs::metadata(&program) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => {}
        Ok(_) => return Err(format!("error inspecting binary executable {}: permission denied", program.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("plugin binary executable {} did not exist", program.display()));
        }
        Err(e) => return Err(format!("error inspecting binary executable {}: {e}", program.display())),
    }
    let nanos = written.default_cache_duration.as_deref().and_then(duration).unwrap_or(0);
    Ok(Provider {
        program,
        name: written.name,
        match_images: written.match_images,
        default_cache: Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)),
        api_version: written.api_version,
        args: written.args,
        env: written.env,
        tokens: written.token_attributes.filter(|_| tokens),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider() -> Written {
        Written {
            name: "p".into(),
            match_images: vec!["*.example.com".into()],
            default_cache_duration: Some("10m".into()),
            api_version: V1.into(),
            ..Written::default()
        }
    }

    #[test]
    fn keys_of_annotations_are_qualified_names_and_nothing_may_be_null() {
        let keys = |list: &[&str]| wrong_keys(&list.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(keys(&["a", "example.com/B"]), Vec::<String>::new());
        assert_eq!(keys(&["a", "a"]), ["Duplicate value: \"a\""]);
        assert!(keys(&["bad key"]).first().is_some_and(|why| why.starts_with("Invalid value: \"bad key\": ")));
        let written: Written = serde_json::from_str(r#"{"name": "n", "args": null, "env": [{"name": "A"}]}"#).unwrap();
        assert!(written.args.is_empty() && written.env[0].value.is_empty());
    }

    #[test]
    fn a_whole_provider_is_taken_and_each_mistake_is_named() {
        assert_eq!(check(&[provider()], true), Vec::<String>::new());
        assert!(check(&[], true)[0].contains("at least 1 item in plugins is required"));
        let said = |change: fn(&mut Written)| {
            let mut one = provider();
            change(&mut one);
            check(&[one], true).join("; ")
        };
        assert!(said(|p| p.name = "a/b".into()).contains("path separators"));
        assert!(said(|p| p.api_version = "v2".into()).contains("Unsupported value: \"v2\""));
        assert!(said(|p| p.match_images = vec!["https://x".into()]).contains("match image is invalid"));
        assert!(said(|p| p.default_cache_duration = Some("-1s".into())).contains("greater than or equal to 0"));
        assert!(said(|p| p.default_cache_duration = None).contains("is required"));
        assert!(
            said(|p| p.token_attributes = Some(TokenAttributes::default())).contains("serviceAccountTokenAudience")
        );
        assert!(check(&[provider(), provider()], true)[0].contains("Duplicate value"));
    }

    #[test]
    fn a_folder_is_read_in_order_and_names_are_its_files_own() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = std::env::temp_dir().join(format!("providers-{}", std::process::id()));
        let (files, bin) = (dir.join("conf"), dir.join("bin"));
        std::fs::create_dir_all(&files).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        let text = |name: &str| {
            format!(
                "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: {name}\n  \
                 matchImages: [a.b]\n  defaultCacheDuration: 1m\n  apiVersion: {V1}\n"
            )
        };
        for name in ["two", "one"] {
            std::fs::write(files.join(format!("{name}.yaml")), text(name)).unwrap();
            std::fs::write(bin.join(name), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::write(files.join("notes.txt"), "no configuration").unwrap();
        let found: Vec<_> = load(&files, &bin, true).unwrap().into_iter().map(|p| p.name).collect();
        assert_eq!(found, ["one", "two"]);
        let (one, two) = (text("one"), text("two"));
        let hashed =
            [one.as_str(), &two].map(|t| [&(t.len() as u64).to_be_bytes()[..], t.as_bytes()].concat()).concat();
        let want: String =
            digest::digest(&digest::SHA256, &hashed).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(load_hashed(&files, &bin, true).unwrap().1, format!("sha256:{want}"));
        std::fs::write(files.join("z.yaml"), text("one")).unwrap();
        assert!(load(&files, &bin, true).unwrap_err().contains("duplicate provider name \"one\""));
        std::fs::remove_file(files.join("z.yaml")).unwrap();
        std::fs::remove_file(bin.join("one")).unwrap();
        assert!(load(&files, &bin, true).unwrap_err().ends_with("bin/one did not exist"));
        assert!(load(&files, &dir.join("none"), true).unwrap_err().contains("plugin binary directory"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
