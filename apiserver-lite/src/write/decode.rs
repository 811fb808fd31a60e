//! Request bodies to trees, with the complaints that clients know.

use proto::json::{self, DecodeError};
use serde_json::Value;

use super::options::{FieldValidation, WriteOptions};
use crate::go_value::{TYPE_META, json_kind};
use crate::http::{Media, body_media};
use crate::resource::{Resource, Schema};
use crate::status::{ApiError, Result};

/// Reads an object of a resource's kind. Whoever sent it is warned of what is read in spite of a mistake, whatever comes
/// of the request.
///
/// # Errors
/// 400 for text that is none, 415 for a media type that is not known.
pub fn object(resource: &Resource, content_type: &str, body: &[u8], options: &WriteOptions) -> Result<Value> {
    let value = match resource.custom {
        true => custom(resource, content_type, body, options),
        false => {
            let name = (&*resource.group, &*resource.version, &*resource.kind);
            read(&resource.schema, name, &[], content_type, body, options)
        }
    }?;
    crate::audit::object(&value, || completed(resource, &value));
    Ok(value)
}

/// An object as it is logged: with its defaults, in the version that it came in.
fn completed(resource: &Resource, value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(definition) = &resource.definition {
        definition.default(resource, &mut value);
        return value;
    }
    super::to_stored_version(resource, &mut value);
    crate::defaults::apply(resource, &mut value);
    printed(&resource.schema, crate::read::convert(resource, value))
}

/// A tree as the server prints it.
fn printed(schema: &Schema, value: Value) -> Value {
    let mut out = Vec::new();
    json::write(schema.set(), schema.id, &value, &mut out);
    json::parse(&out).map_or(value, |parsed| parsed.value)
}

/// Reads an object of a custom kind. What kind it says to be is validation's business, its version is not.
fn custom(resource: &Resource, content_type: &str, body: &[u8], options: &WriteOptions) -> Result<Value> {
    let (kind, version) = (&resource.kind, &resource.version);
    let fitted = crate::crd::body(resource, content_type, body)?;
    match options.validation {
        FieldValidation::Strict if !fitted.strict.is_empty() => {
            let complaints = fitted.strict.join(", ");
            return Err(ApiError::bad_request(format!(
                "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {complaints}"
            )));
        }
        FieldValidation::Warn => fitted.strict.into_iter().for_each(crate::warning::add),
        _ => {}
    }
    let (said, expected) = (fitted.value["apiVersion"].as_str().unwrap_or_default(), resource.api_version());
    if said != expected {
        let text = format!("the API version in the data ({said}) does not match the expected API version ({expected})");
        return Err(ApiError::bad_request(text));
    }
    Ok(fitted.value)
}

/// Reads an object of a kind by schema. Kind and version may be left out of the body.
///
/// # Errors
/// As [`object`].
pub fn kind(
    schema: &Schema,
    name: (&str, &str, &str),
    content_type: &str,
    body: &[u8],
    options: &WriteOptions,
) -> Result<Value> {
    kind_of(schema, name, &[], content_type, body, options)
}

/// The same where the body may name other versions that have the same fields.
///
/// # Errors
/// As [`object`].
pub fn kind_of(
    schema: &Schema,
    name: (&str, &str, &str),
    also: &[&str],
    content_type: &str,
    body: &[u8],
    options: &WriteOptions,
) -> Result<Value> {
    let value = read(schema, name, also, content_type, body, options)?;
    crate::audit::object(&value, || printed(schema, value.clone()));
    Ok(value)
}

fn read(
    schema: &Schema,
    (group, version, kind): (&str, &str, &str),
    also: &[&str],
    content_type: &str,
    body: &[u8],
    options: &WriteOptions,
) -> Result<Value> {
    let set = schema.set();
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let (mut value, strict) = match body_media(content_type)? {
        Media::Protobuf => {
            let unrecognized = |error: String| unrecognized(kind, &error, body);
            let unknown = proto::protobuf::read_envelope(body).map_err(|e| unrecognized(e.to_string()))?;
            check_kind((group, kind), &api_version, unknown.kind, unknown.api_version)?;
            let value = proto::protobuf::decode(set, schema.id, unknown.raw);
            (value.map_err(|e| unrecognized(e.to_string()))?, Vec::new())
        }
        media => {
            let converted;
            let mut strict = Vec::new();
            let text = if media == Media::Yaml {
                let parsed = proto::yaml::read(body).map_err(|e| unrecognized(kind, &e.to_string(), body))?;
                strict = parsed.duplicates;
                let mut out = Vec::new();
                json::write_sorted(&parsed.value, &mut out);
                converted = out;
                &converted[..]
            } else {
                body
            };
            let decoded = json::decode(set, schema.id, text);
            let fits = |value: &Value| {
                let said = |key: &str| value[key].as_str().unwrap_or_default();
                is_ours(kind, &api_version, said("kind"), said("apiVersion"))
                    || said("kind") == kind && also.contains(&said("apiVersion"))
            };
            if !decoded.as_ref().is_ok_and(|d| fits(&d.value)) {
                // What it says it is comes before what is wrong with it.
                let (said_kind, said_version) = type_of(text).map_err(|error| unrecognized(kind, &error, body))?;
                match said_version.strip_suffix('/') {
                    // A group without a version is none, or ours, or no more than that.
                    Some(said) if said.is_empty() || said == group => {
                        check_kind((group, kind), &api_version, &said_kind, &api_version)?;
                    }
                    Some(_) => {
                        let said_kind = if said_kind.is_empty() { kind } else { &said_kind };
                        let body = String::from_utf8_lossy(body);
                        return Err(ApiError::bad_request(format!(
                            "{said_kind} in version \"\" cannot be handled as a {kind}: Object 'apiVersion' is missing in \
                             '{body}'"
                        )));
                    }
                    None => {
                        let other = also.contains(&said_version.as_str());
                        let said_version = if other { &api_version } else { &said_version };
                        check_kind((group, kind), &api_version, &said_kind, said_version)?;
                    }
                }
            }
            let decoded = decoded.map_err(|error| match error {
                DecodeError::Syntax(error) => {
                    unrecognized(kind, &format!("couldn't get version/kind; json parse error: {error}"), body)
                }
                DecodeError::Type(error) => ApiError::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {error}"
                )),
            })?;
            strict.extend(decoded.strict);
            (decoded.value, strict)
        }
    };
    match options.validation {
        FieldValidation::Strict if !strict.is_empty() => {
            let text = format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                strict.join(", ")
            );
            return Err(ApiError::bad_request(text));
        }
        FieldValidation::Warn => strict.into_iter().for_each(crate::warning::add),
        _ => {}
    }
    value["kind"] = kind.into();
    value["apiVersion"] = api_version.into();
    Ok(value)
}

/// Kind and version that a JSON body names.
///
/// # Errors
/// Why it names none, in upstream's words.
pub(super) fn type_of(text: &[u8]) -> std::result::Result<(String, String), String> {
    let parse_error = |error: &dyn std::fmt::Display| format!("couldn't get version/kind; json parse error: {error}");
    let value = json::parse_members(text, &["kind", "apiVersion"]).map_err(|e| parse_error(&e))?;
    let shape = match &value {
        Value::Object(object) => {
            let text = |key: &str| match object.get(key) {
                None | Some(Value::Null) => Ok(String::new()),
                Some(Value::String(text)) => Ok(text.clone()),
                Some(other) => {
                    let what = json_kind(other);
                    Err(parse_error(&format!(
                        "json: cannot unmarshal {what} into Go struct field .{key} of type string"
                    )))
                }
            };
            let (kind, version) = (text("kind")?, text("apiVersion")?);
            if version.matches('/').count() > 1 {
                return Err(format!("unexpected GroupVersion string: {version}"));
            }
            return Ok((kind, version));
        }
        Value::Null => return Ok(Default::default()),
        other => json_kind(other),
    };
    Err(parse_error(&format!("json: cannot unmarshal {shape} into Go value of type {TYPE_META}")))
}

/// Whether a body may be read as the kind; saying nothing is fine.
fn is_ours(kind: &str, api_version: &str, said_kind: &str, said_version: &str) -> bool {
    (said_kind.is_empty() || said_kind == kind) && (said_version.is_empty() || said_version == api_version)
}

/// What the body says it is has to be what the path is for.
fn check_kind((group, kind): (&str, &str), api_version: &str, said_kind: &str, said_version: &str) -> Result<()> {
    if is_ours(kind, api_version, said_kind, said_version) {
        return Ok(());
    }
    let said_kind = if said_kind.is_empty() { kind } else { said_kind };
    let said_version = if said_version.is_empty() { api_version } else { said_version };
    let version = said_version.rsplit('/').next().unwrap_or(said_version);
    let cannot = |why: String| {
        ApiError::bad_request(format!("{said_kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    if !is_registered(said_kind, said_version) {
        return Err(cannot(not_registered(said_kind, said_version)));
    }
    if said_kind != kind {
        return Err(cannot(no_conversion(said_version, said_kind, group, kind)));
    }
    Err(ApiError::bad_request(format!(
        "the API version in the data ({said_version}) does not match the expected API version ({api_version})"
    )))
}

/// Versions that upstream can read but, by default, does not serve, with the kinds that each of them has.
const UNSERVED: [(&str, &[&str]); 34] = [
    ("admission.k8s.io/v1", &["AdmissionReview"]),
    ("admission.k8s.io/v1beta1", &["AdmissionReview"]),
    ("admissionregistration.k8s.io/v1alpha1", POLICIES),
    ("admissionregistration.k8s.io/v1beta1", POLICIES),
    ("admissionregistration.k8s.io/v1beta1", &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]),
    ("apps/v1beta1", &["ControllerRevision", "Deployment", "DeploymentRollback", "Scale", "StatefulSet"]),
    ("apps/v1beta2", &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "Scale", "StatefulSet"]),
    ("authentication.k8s.io/v1alpha1", &["SelfSubjectReview"]),
    ("authentication.k8s.io/v1beta1", &["SelfSubjectReview", "TokenReview"]),
    (
        "authorization.k8s.io/v1beta1",
        &["LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"],
    ),
    ("batch/v1beta1", &["CronJob"]),
    ("certificates.k8s.io/v1alpha1", &["ClusterTrustBundle"]),
    ("certificates.k8s.io/v1beta1", &["CertificateSigningRequest", "ClusterTrustBundle", "PodCertificateRequest"]),
    ("coordination.k8s.io/v1alpha2", &["LeaseCandidate"]),
    ("coordination.k8s.io/v1beta1", &["Lease", "LeaseCandidate"]),
    ("discovery.k8s.io/v1beta1", &["EndpointSlice"]),
    ("events.k8s.io/v1beta1", &["Event"]),
    (
        "extensions/v1beta1",
        &["DaemonSet", "Deployment", "DeploymentRollback", "Ingress", "NetworkPolicy", "ReplicaSet", "Scale"],
    ),
    ("flowcontrol.apiserver.k8s.io/v1beta1", FLOWS),
    ("flowcontrol.apiserver.k8s.io/v1beta2", FLOWS),
    ("flowcontrol.apiserver.k8s.io/v1beta3", FLOWS),
    ("networking.k8s.io/v1beta1", &["IPAddress", "Ingress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io/v1alpha1", &["RuntimeClass"]),
    ("node.k8s.io/v1beta1", &["RuntimeClass"]),
    ("policy/v1beta1", &["Eviction", "PodDisruptionBudget"]),
    ("rbac.authorization.k8s.io/v1alpha1", ROLES),
    ("rbac.authorization.k8s.io/v1beta1", ROLES),
    ("resource.k8s.io/v1alpha3", &["DeviceTaintRule"]),
    ("resource.k8s.io/v1beta1", DEVICES),
    ("resource.k8s.io/v1beta2", DEVICES),
    ("scheduling.k8s.io/v1beta1", &["PriorityClass"]),
    ("storage.k8s.io/v1alpha1", &["CSIStorageCapacity", "VolumeAttachment", "VolumeAttributesClass"]),
    (
        "storage.k8s.io/v1beta1",
        &["CSIDriver", "CSINode", "CSIStorageCapacity", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"],
    ),
    ("storagemigration.k8s.io/v1beta1", &["StorageVersionMigration"]),
];

const POLICIES: &[&str] = &[
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];
const FLOWS: &[&str] = &["FlowSchema", "PriorityLevelConfiguration"];
const ROLES: &[&str] = &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
const DEVICES: &[&str] = &["DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"];

/// Whether upstream knows a kind, served or not.
fn is_registered(kind: &str, api_version: &str) -> bool {
    let set = proto::schema::TypeSet::built_in();
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    if set.kind(group, version, kind).is_some() {
        return true;
    }
    let single = kind.strip_suffix("List").unwrap_or(kind);
    let has = |kinds: &[&str]| kinds.contains(&kind) || kinds.contains(&single);
    UNSERVED.iter().any(|(version, kinds)| *version == api_version && has(kinds))
}

/// Upstream's words for a kind that it does not know.
pub(crate) fn not_registered(kind: &str, api_version: &str) -> String {
    format!(
        "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
    )
}

/// Upstream's words for an object of another kind than was asked for.
pub(crate) fn no_conversion(said_version: &str, said_kind: &str, group: &str, kind: &str) -> String {
    let version = said_version.rsplit('/').next().unwrap_or(said_version);
    let package = crate::resource::go_package(group);
    format!("converting ({version}.{said_kind}) to ({package}.{kind}): unknown conversion")
}

/// Longest piece of a body that a complaint shows.
const SHOWN: usize = 30;

fn unrecognized(kind: &str, error: &str, body: &[u8]) -> ApiError {
    let (piece, more) = match body.get(..SHOWN) {
        Some(piece) if body.len() > SHOWN => (piece, " ..."),
        _ => (body, ""),
    };
    let shown = match piece.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(piece).into_owned(),
        // What is no JSON object may be anything.
        Some(_) => piece.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let shown = shown + more;
    ApiError::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {error} ({shown})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;

    fn read_as(group: &str, version: &str, plural: &str, body: &str) -> Result<Value> {
        let resource = Resources::built_in().current().lookup(group, version, plural).expect("a built-in kind");
        object(&resource, "application/json", body.as_bytes(), &WriteOptions::default())
    }

    #[test]
    fn a_version_that_is_none_is_told_before_anything_else() {
        let told = |body: &str| read_as("apps", "v1", "deployments", body).expect_err(body).status().message.clone();
        let slashes = told(r#"{"apiVersion":"a/b/c","kind":"Deployment"}"#);
        assert_eq!(
            slashes,
            "the object provided is unrecognized (must be of type Deployment): unexpected GroupVersion string: a/b/c \
             ({\"apiVersion\":\"a/b/c\",\"kind\":\" ...)"
        );
        let group = r#"{"apiVersion":"batch/","kind":"Job"}"#;
        assert_eq!(
            told(group),
            format!(
                "Job in version \"\" cannot be handled as a Deployment: Object 'apiVersion' is missing in '{group}'"
            )
        );
        for said in ["/", "apps/", "", "apps/v1"] {
            let body = format!(r#"{{"apiVersion":"{said}","kind":"Deployment"}}"#);
            let value = read_as("apps", "v1", "deployments", &body).expect(said);
            assert_eq!(value["apiVersion"], "apps/v1", "{said}");
        }
    }

    #[test]
    fn what_is_no_object_is_shown_by_its_bytes() {
        let told = |body: &str| read_as("", "v1", "configmaps", body).expect_err(body).status().message.clone();
        assert!(told("[1]").ends_with("(5b315d)"), "{}", told("[1]"));
        assert!(told(&format!("\"{}", "a".repeat(40))).ends_with(&format!("(22{} ...)", "61".repeat(29))));
        assert!(told("{").ends_with("({)"));
        assert!(told("").ends_with("(<empty>)"));
    }

    #[test]
    fn a_version_has_the_kinds_that_it_had() {
        for (version, kind) in [
            ("extensions/v1beta1", "Ingress"),
            ("extensions/v1beta1", "DeploymentList"),
            ("networking.k8s.io/v1beta1", "IngressClass"),
            ("apps/v1", "StatefulSet"),
            ("policy/v1beta1", "Eviction"),
        ] {
            assert!(is_registered(kind, version), "{version} {kind}");
        }
        for (version, kind) in [
            ("extensions/v1beta1", "StatefulSet"),
            ("networking.k8s.io/v1beta1", "NetworkPolicy"),
            ("apps/v1beta1", "DaemonSet"),
            ("batch/v1beta1", "Job"),
            ("batch/v2alpha1", "CronJob"),
        ] {
            assert!(!is_registered(kind, version), "{version} {kind}");
        }
    }
}
