//! CustomResourceDefinitions: kinds that clients bring themselves.
//!
//! A definition is an object like any other ([`definition`] checks it). A controller of the server's own
//! ([`controller`]) accepts its names and puts its versions into the registry, from where on the generic path serves
//! them. What the path asks of a custom kind is here: bodies fit the schema ([`decode`], [`prune`]), values are checked
//! ([`check`], [`object`]), and objects that were stored under another schema are brought up to date when read.
//!
//! Versions are converted by name alone (strategy `None`), or by a webhook ([`conversion`]). Limits: where a webhook
//! converts, the owners of an object's fields are compared in the version of the request, whatever version they wrote.

mod check;
mod columns;
mod controller;
mod conversion;
mod correlation;
mod cost;
mod decode;
mod definition;
mod formats;
mod names;
mod object;
mod path;
mod pattern;
mod pattern_size;
mod prune;
mod registration;
mod rules;
mod scale;
mod schema;
mod types;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::Result;
use crate::store::ObjectRef;

pub use columns::Column;
pub use controller::run;
pub use conversion::{served, served_one, to_version, to_version_now};
pub use decode::{body, conform, settle_accept};
pub use definition::{
    begin_delete, check as check_definition, default as default_definition, is_definition,
    prepare as prepare_definition, warn_of_formats,
};
pub use formats::fits as has_format;
pub use object::misnamed;
pub use object::{create as check_new, update as check_update};
pub(crate) use path::{Looks, Path};
pub use pattern::{check as check_pattern, compile as compile_pattern, size as pattern_states};
#[cfg(test)]
pub use registration::resources;
pub use scale::Scale;
use schema::Schema;

/// One served version of a definition.
pub struct Definition {
    /// The definition's name and generation, which tell one state of it from another.
    pub identity: String,
    version: Box<str>,
    /// Schemas of every version by name.
    schemas: Arc<BTreeMap<Box<str>, Schema>>,
    storage: Box<str>,
    /// Who converts between versions; None where they differ in name alone.
    converter: Option<conversion::Converter>,
    /// Objects stored at a later revision already fit the schema of storage.
    since: u64,
    /// Revision from which on the kind was served.
    pub born: u64,
    /// For every answer about a deprecated version.
    pub warning: Option<String>,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
    selectable: Vec<(Box<str>, Path)>,
    /// The definition is going away: nothing is created any more.
    pub terminating: bool,
    /// `openAPIV3Schema` as the client wrote it, for publishing.
    pub published: Arc<Value>,
    /// The schema of an empty version.
    empty: Schema,
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Definition({})", self.identity)
    }
}

impl Definition {
    /// The schema of the version at hand.
    fn schema(&self) -> &Schema {
        self.schemas.get(&self.version).unwrap_or(&self.empty)
    }

    /// Fills in defaults of the version at hand.
    pub fn default(&self, resource: &Resource, value: &mut Value) {
        // What says to be something else is refused later, as it stands.
        if value["kind"] == *resource.kind {
            prune::default(value, self.schema());
        }
    }

    /// Paths that a field selector may name.
    pub fn selectable(&self) -> impl Iterator<Item = &str> {
        self.selectable.iter().map(|(name, _)| &**name)
    }

    /// The values of an object's selectable fields.
    pub fn fields(&self, value: &Value) -> Vec<(&str, String)> {
        let text = |path: &Path| match path.first(value) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        self.selectable.iter().map(|(name, path)| (&**name, text(path))).collect()
    }

    /// Whether versions differ in more than their name.
    pub fn is_converted(&self) -> bool {
        self.converter.is_some()
    }

    /// Drops what the version of storage has no place for, when it is another than the one that was written.
    pub fn to_storage(&self, value: &mut Value) {
        if self.version != self.storage {
            prune::prune(value, self.schemas.get(&self.storage));
            prune::drop_nulls(value, self.schemas.get(&self.storage));
        }
    }

    /// Brings a tree that was stored in any version into the one at hand.
    pub fn convert(&self, resource: &Resource, value: &mut Value) {
        let said = version_of(value);
        let stored = self.schemas.get(&*said);
        prune::prune(value, stored);
        prune::drop_nulls(value, stored);
        if let Some(schema) = stored {
            prune::default(value, schema);
        }
        if said != *self.version {
            value["apiVersion"] = resource.api_version().into();
            prune::prune(value, Some(self.schema()));
            prune::drop_nulls(value, Some(self.schema()));
        }
    }

    /// Whether a stored object can be given out as it lies there.
    pub fn is_current(&self, object: &ObjectRef) -> bool {
        self.version == self.storage && object.revision > self.since
    }
}

/// The version that an object says to be of.
fn version_of(value: &Value) -> String {
    value["apiVersion"].as_str().and_then(|v| v.rsplit('/').next()).unwrap_or_default().to_owned()
}

/// A stored object's tree, as it is worked on: as the schema of storage has it now, or where a webhook converts, in the
/// version of the resource.
///
/// # Errors
/// 500 without a reason when the webhook fails.
pub async fn worked_on(server: &ApiServer, resource: &Resource, object: &ObjectRef) -> Result<Value> {
    let mut value = stored_value(resource, object);
    if let Some(definition) = resource.definition.as_ref().filter(|d| d.is_converted()) {
        to_version(server, resource, &mut value, &resource.api_version()).await?;
        definition.convert(resource, &mut value);
    }
    Ok(value)
}

/// A stored object's tree as the schema of storage has it now.
pub fn stored_value(resource: &Resource, object: &ObjectRef) -> Value {
    let mut value = object.value();
    settle(resource, object.revision, &mut value);
    value
}

/// Brings a tree that was stored at a revision, and is about to be stored again, into the version of storage. With a new
/// revision it is taken for what the definition as it is now had stored.
///
/// # Errors
/// 500 without a reason when a webhook has to convert it and fails.
pub async fn restored(server: &ApiServer, resource: &Resource, revision: u64, value: &mut Value) -> Result<()> {
    settle(resource, revision, value);
    to_version(server, resource, value, &resource.storage_version).await
}

/// What does not need the webhook of [`restored`].
fn settle(resource: &Resource, revision: u64, value: &mut Value) {
    let Some(definition) = resource.definition.as_ref().filter(|d| revision <= d.since) else { return };
    let written = definition.schemas.get(&*version_of(value));
    prune::prune(value, written);
    prune::drop_nulls(value, written);
    if let Some(schema) = written {
        prune::default(value, schema);
    }
    if !definition.is_converted() {
        value["apiVersion"] = (&*resource.storage_version).into();
    }
}
