//! Admission: what a cluster adds to an object, or refuses, beyond what the object itself says.
//!
//! A write passes the chain twice: [`Admission::mutate`] right after defaulting, where plugins complete the object or
//! refuse it outright, and [`Admission::validate`] after the object's own validation, where they only look. Deletes pass
//! [`Admission::delete`]. The order of plugins is upstream's (`pkg/kubeapiserver/options/plugins.go`); which of them run
//! is decided by `--enable-admission-plugins` and `--disable-admission-plugins`.
//!
//! Plugins answer from memory and never wait, but for the one that asks about images. Policies and webhooks, which
//! clients store, come after the plugins of each pass; webhooks are waited for, without a lock and before anything is
//! written. Quota is reserved last.

mod attributes;
mod auto_provision;
mod certificates;
mod changes;
mod declared_features;
mod event_rate;
mod gang;
mod hooks;
mod image_policy;
mod limit_ranger;
mod matching;
mod namespace_lifecycle;
mod node_restriction;
mod node_selector;
mod optional;
mod owner_references;
mod plugins;
mod pod_resize;
mod pod_security;
mod pod_tolerations;
pub mod policy;
mod priority;
mod quota;
mod references;
pub mod resources;
mod runtime_class;
mod service_account;
mod settings;
pub mod storage;
mod subject;
mod tolerations;
mod topology_labels;
mod webhook;

use serde_json::Value;

pub use plugins::Admission;
pub use quota::{Counter, Reservation, counts_for};
pub use settings::Settings;
pub use webhook::{Asker, Endpoint, Expected, connector, failure_words, handshake_words, verifier};

use crate::auth::Attributes;
use crate::request::{RequestInfo, User};
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::ApiError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// To a pod or through to a server; the object is what is asked for.
    Connect,
}

impl Operation {
    /// As Go prints it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// What plugins know of a write beside the new object.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub server: &'a ApiServer,
    /// Without a name for the server's own writes.
    pub user: &'a User,
    pub operation: Operation,
    pub resource: &'a Resource,
    /// Empty, `status`, `binding`, ...
    pub subresource: &'a str,
    /// Empty for what belongs to the whole cluster.
    pub namespace: &'a str,
    /// Name of the object; empty when one is still to be generated.
    pub name: &'a str,
    /// The stored object; None on create.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
    /// Options of the request beside the dry run, as the client said them.
    pub said: &'a [(&'static str, Value)],
}

/// Notes something about the request in the audit log.
fn note(key: &str, value: &str) {
    crate::audit::annotate(key, value);
}

impl Call<'_> {
    /// Whether the call is about a resource itself and not one of its subresources.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.concerns(group, plural) && self.subresource.is_empty()
    }

    /// Whether the call is about a resource or one of its subresources.
    pub fn concerns(&self, group: &str, plural: &str) -> bool {
        &*self.resource.plural == plural && &*self.resource.group == group
    }

    /// A 403 about the object; `new` gives a name where the URL has none.
    pub fn refuse(&self, new: Option<&Value>, why: impl std::fmt::Display) -> ApiError {
        ApiError::forbidden(&self.resource.group, &self.resource.plural, self.shown_name(new), why)
    }

    fn shown_name<'b>(&'b self, new: Option<&'b Value>) -> &'b str {
        if !self.name.is_empty() {
            return self.name;
        }
        // A generated name is not there yet: its stem has to do.
        let texts = new.into_iter().flat_map(|n| [&n["metadata"]["name"], &n["metadata"]["generateName"]]);
        texts.filter_map(Value::as_str).find(|t| !t.is_empty()).unwrap_or("Unknown")
    }

    /// Whether the user may also do something else.
    pub fn may(&self, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> bool {
        if self.user.name.is_empty() {
            return true;
        }
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let info = RequestInfo {
            is_resource: true,
            verb: verb.into(),
            group: group.into(),
            version: "*".into(),
            namespace: namespace.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..RequestInfo::default()
        };
        self.server.authorizer.decide(&Attributes { user: self.user, info: &info }).allowed
    }
}
