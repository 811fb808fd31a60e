//! Apply patches: a configuration is merged into the object, which is made when it is not there.

use serde_json::Value;

use super::create;
use super::meta::{self, text};
use super::options::{FieldValidation, WriteOptions};
use super::update::{self, Patched, Target};
use crate::apply::{self, Writer};
use crate::server::ApiServer;
use crate::status::{ApiError, Result};

pub(super) const MEDIA: &str = "application/apply-patch+yaml";

/// Times that an object may appear or vanish while it is applied.
const ATTEMPTS: usize = 5;

/// Applies a body in YAML or JSON.
///
/// # Errors
/// 400, 404 for a subresource of nothing, 409 for conflicts and other versions, 422, and as upstream 500 for a
/// configuration that the schema does not allow.
pub async fn apply(server: &ApiServer, target: Target<'_>, body: &[u8], options: &WriteOptions) -> Result<Patched> {
    let Target { resource, subresource, namespace, name } = target;
    let (config, duplicates) = parse(body)?;
    let writer = Writer { resource, subresource, manager: &options.manager };
    let merge = |live: Option<&Value>| -> Result<Value> {
        let value = apply::apply(writer, live, &config, options.force)?;
        if let (FieldValidation::Strict, Some(text)) = (options.validation, duplicates.first()) {
            let text = format!("error strict decoding YAML: error converting YAML to JSON: {text}");
            return Err(ApiError::bad_request(text));
        }
        if options.validation == FieldValidation::Warn {
            // One warning for each key; the first line of the text only introduces them.
            let lines = duplicates.iter().flat_map(|text| text.lines().skip(1)).map(str::trim);
            lines.for_each(crate::warning::add);
        }
        settle(target, value)
    };
    for _ in 0..ATTEMPTS {
        let done = if server.store.get(&resource.storage, namespace, name).is_some() {
            let changed = update::replace(server, target, options, update::Tracking::Said, |old, tree| {
                let value = merge(Some(tree))?;
                update::check_preconditions(target, old, update::parse_expected(text(&value, "resourceVersion"))?, "")?;
                Ok(value)
            });
            changed.await.map(|object| (object, false))
        } else {
            let mut value = merge(None)?;
            if !subresource.is_empty() {
                return Err(ApiError::missing(&resource.group, &resource.plural, name));
            }
            let uid = text(&value, "uid");
            if !uid.is_empty() {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(ApiError::conflict(&resource.group, &resource.plural, name, why));
            }
            ApiError::no_key(name)?;
            meta::metadata(&mut value).remove("resourceVersion");
            let made = create::place(server, target, value, options, &options.user, false);
            made.await.map(|object| (object, true))
        };
        match done {
            // It came or went in between.
            Err(error) if error.is_already_exists() || error.is_not_found() && vanished(server, target) => {}
            Err(error) => return Err(error),
            Ok((object, created)) => return Ok(Patched { object, created }),
        }
    }
    Err(ApiError::conflict(&resource.group, &resource.plural, name, super::MODIFIED))
}

/// Reads a configuration.
///
/// # Errors
/// 400.
pub(super) fn read(body: &[u8]) -> Result<Value> {
    parse(body).map(|(config, _)| config)
}

/// A configuration and what is said about keys that it has twice.
fn parse(body: &[u8]) -> Result<(Value, Vec<String>)> {
    let read = proto::yaml::read(body).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?;
    let config = match read.value {
        Value::Null => Value::Object(serde_json::Map::new()),
        config @ Value::Object(_) => config,
        other => {
            let what = crate::go_value::json_kind(&other);
            return Err(ApiError::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {what} into Go \
                 value of type map[string]interface {{}}"
            )));
        }
    };
    Ok((config, read.duplicates))
}

/// Whether an object is missing that was there.
fn vanished(server: &ApiServer, target: Target<'_>) -> bool {
    let missing = server.store.get(&target.resource.storage, target.namespace, target.name).is_none();
    let place = !target.resource.namespaced || server.store.get(&"namespaces".into(), "", target.namespace).is_some();
    missing && place
}

/// Gives a merged tree its normal form and defaults, and checks that it is the object of the URL.
fn settle(target: Target<'_>, value: Value) -> Result<Value> {
    let Target { resource, namespace, name, .. } = target;
    let decoded = match resource.custom {
        true => crate::crd::conform(resource, value.clone()).map(|f| f.value),
        false => proto::json::conform(resource.schema.set(), resource.schema.id, &value)
            .map(|d| d.value)
            .map_err(|e| e.to_string()),
    };
    let mut value = match decoded {
        Ok(value) => value,
        Err(error) => {
            let of = |key: &str| text(&value, key);
            let kind = format!("{}/{}, Kind={}", resource.group, resource.version, resource.kind);
            let text = format!(
                "failed to convert new object ({}/{}; {kind}) to proper version: unable to convert unstructured object to \
                 {kind}: {error}",
                of("namespace"),
                of("name")
            );
            return Err(ApiError::new(500, "", text));
        }
    };
    meta::settle_namespace(&mut value, namespace)?;
    meta::check_name(&value, name)?;
    create::to_stored_version(resource, &mut value);
    crate::defaults::apply(resource, &mut value);
    Ok(value)
}
