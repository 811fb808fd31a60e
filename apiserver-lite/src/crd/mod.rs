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
mod closing;
mod columns;
mod controller;
mod conversion;
mod correlation;
mod cost;
mod decode;
mod definition;
mod fit;
mod formats;
mod names;
mod object;
mod path;
mod pattern;
mod pattern_size;
mod prune;
mod registration;
mod rules;
#[cfg(test)]
pub mod samples;
mod scale;
mod schema;
mod types;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Details, Result};
use crate::store::ObjectRef;

pub use closing::Closing;
#[cfg(test)]
pub use closing::Keeper;
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
    /// The definition's uid, its generation and whether it goes away, which tell one state of it from another.
    pub identity: String,
    /// A number for what the definition says, see [`fit`].
    state: u64,
    version: Box<str>,
    /// Schemas of every version by name.
    schemas: Arc<BTreeMap<Box<str>, Schema>>,
    storage: Box<str>,
    /// Who converts between versions; None where they differ in name alone.
    converter: Option<conversion::Converter>,
    /// Revision from which on the kind was served.
    pub born: u64,
    /// For every answer about a deprecated version.
    pub warning: Option<String>,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
    selectable: Vec<(Box<str>, Path)>,
    /// Selectable fields whose values are kept with an object at rest: those of all versions where the versions differ in
    /// name alone, else those of the version of storage.
    at_rest: Arc<Vec<(Box<str>, Path)>>,
    /// For who follows the objects; None where nobody does.
    pub closing: Option<Closing>,
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

    /// The values of selectable fields that are kept with an object, which is in the version of storage.
    pub fn fields(&self, value: &Value) -> Vec<(&str, String)> {
        fit::texts(&self.at_rest, value)
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
        let said = self.refresh(value);
        if said != *self.version {
            value["apiVersion"] = resource.api_version().into();
            prune::prune(value, Some(self.schema()));
            prune::drop_nulls(value, Some(self.schema()));
        }
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

/// Whether a write may go by the definition that it began with: not on an object that somebody else has written since
/// under the next one, of which this one does not know all.
///
/// # Errors
/// 503; who asks again meets the next one.
pub fn check_served(resource: &Resource, object: &ObjectRef) -> Result<()> {
    let definition = resource.definition.as_ref().filter(|definition| !definition.fits(object));
    let is_over = definition.and_then(|d| d.closing.as_ref()).is_some_and(Closing::has_begun);
    if is_over {
        let soon = Details { retry_after_seconds: 1, ..Details::default() };
        let why = "the definition of the resource has changed, please try again";
        return Err(ApiError::service_unavailable(why).with_details(soon));
    }
    Ok(())
}

/// A stored object's tree as the schema of storage has it now.
pub fn stored_value(resource: &Resource, object: &ObjectRef) -> Value {
    let mut value = object.value();
    settle(resource, object, &mut value);
    value
}

/// Brings the tree of a stored object, which is about to be stored again, into the version of storage.
///
/// # Errors
/// 500 without a reason when a webhook has to convert it and fails.
pub async fn restored(server: &ApiServer, resource: &Resource, object: &ObjectRef, value: &mut Value) -> Result<()> {
    settle(resource, object, value);
    to_version(server, resource, value, &resource.storage_version).await
}

/// What does not need the webhook of [`restored`].
fn settle(resource: &Resource, object: &ObjectRef, value: &mut Value) {
    let Some(definition) = resource.definition.as_ref().filter(|d| !d.fits(object)) else { return };
    definition.refresh(value);
    if !definition.is_converted() {
        value["apiVersion"] = (&*resource.storage_version).into();
    }
}
