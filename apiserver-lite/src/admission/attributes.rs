//! A request in the words of dynamic admission: which kind of object, of which resource, in which version.
//!
//! Policies and webhooks say in which version of a kind they want to see objects. The handlers work on the stored
//! version; what another version looks like is made here, and only for those who ask.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::subject::Forms;
use super::{Call, Operation};
use crate::resource::Resource;
use crate::selectors::Labels;
use crate::store::ResourceId;

/// Group, version and kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl Kind {
    fn to_json(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

pub struct Attributes<'a> {
    pub call: &'a Call<'a>,
    /// Of a namespace its own name, else where the object is.
    pub namespace: &'a str,
    siblings: OnceLock<Vec<Arc<Resource>>>,
    old: Forms,
}

/// Subresources whose object is the resource's own.
const OWN_KIND: [&str; 6] = ["", "status", "resize", "ephemeralcontainers", "approval", "finalize"];

impl<'a> Attributes<'a> {
    /// `new` is the object that came with the request, if one did.
    pub fn new(call: &'a Call<'a>, new: Option<&'a Value>) -> Self {
        let of_object = || new.and_then(|n| n["metadata"]["name"].as_str()).unwrap_or_default();
        let namespace = match call.concerns("", "namespaces") {
            true if call.name.is_empty() => of_object(),
            true => call.name,
            false => call.namespace,
        };
        Attributes { call, namespace, siblings: OnceLock::new(), old: Forms::default() }
    }

    /// Whether the object itself lies in a namespace.
    pub fn is_namespace(&self) -> bool {
        self.call.concerns("", "namespaces")
    }

    /// The kind of the object that the request brings, in the version of one of the resource's siblings.
    pub fn kind(&self, resource: &Resource) -> Kind {
        let mut kind = Kind {
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            kind: resource.kind.to_string(),
        };
        if let Some(part) = resource.subresource(self.call.subresource).filter(|part| !part.kind.is_empty()) {
            kind.kind = part.kind.to_string();
            if !part.version.is_empty() {
                (kind.group, kind.version) = (part.group.to_string(), part.version.to_string());
            }
        }
        kind
    }

    /// The same resource in its other versions and groups.
    pub fn siblings(&self) -> &[Arc<Resource>] {
        self.siblings.get_or_init(|| {
            let own = self.call.resource;
            let current = self.call.server.resources.current();
            let other = |r: &&Arc<Resource>| {
                r.storage == own.storage
                    && (r.group != own.group || r.version != own.version)
                    && (self.call.subresource.is_empty() || r.subresource(self.call.subresource).is_some())
            };
            current.all().iter().filter(other).cloned().collect()
        })
    }

    /// An object of the request in the version of a resource.
    pub fn versioned<'v>(&self, value: &'v Value, to: &Resource) -> Cow<'v, Value> {
        let own = OWN_KIND.contains(&self.call.subresource);
        if !own || value["apiVersion"].as_str() == Some(&to.api_version()) {
            return Cow::Borrowed(value);
        }
        let mut value = value.clone();
        if let Err(error) = crate::crd::to_version_now(self.call.server, to, &mut value, &to.api_version()) {
            tracing::warn!(error = %error.status().message, "an object is looked at in a version that it was not converted to");
        }
        Cow::Owned(crate::read::convert(to, value))
    }

    /// The stored object spelled out in the version of a resource.
    pub fn old(&self, to: &Resource) -> Option<&Value> {
        Some(self.old.of(self.call.old?, (&*to.group, &*to.version), |value| self.spelled_out(value, to)))
    }

    /// The same as Go writes it: with what its type always has, even empty. Expressions find that, and patches go there.
    /// What this makes is kept by [`Forms`].
    pub fn spelled_out<'v>(&self, value: &'v Value, to: &Resource) -> Cow<'v, Value> {
        let value = self.versioned(value, to);
        let kind = self.kind(to);
        let set = proto::schema::TypeSet::built_in();
        let id = Some(()).filter(|()| !to.custom && value["kind"].as_str().is_none_or(|said| *said == kind.kind));
        let Some(id) = id.and_then(|()| set.kind(&kind.group, &kind.version, &kind.kind)) else {
            return value;
        };
        let mut text = Vec::with_capacity(2048);
        proto::json::write(set, id, &value, &mut text);
        proto::json::parse(&text).map_or(value, |parsed| Cow::Owned(parsed.value))
    }

    /// The namespace that the object lies in; None for what lies in none.
    pub fn containing_namespace(&self) -> Option<&str> {
        (!self.is_namespace() && !self.namespace.is_empty()).then_some(self.namespace)
    }

    /// The labels of the object's namespace, or of the namespace that the object is; None when it does not exist.
    pub fn namespace_labels(&self, new: Option<&Value>) -> Option<Box<Labels>> {
        let call = self.call;
        if call.is("", "namespaces") && call.operation != Operation::Delete {
            return new.map(labels_of);
        }
        let found = call.server.store.get(&ResourceId::from("namespaces"), "", self.namespace)?;
        Some(found.keys.labels.clone())
    }

    /// `AdmissionRequest` without objects, as expressions and webhooks get it.
    pub fn request(&self, matched: &Resource) -> Value {
        let call = self.call;
        let resource = |r: &Resource| json!({"group": *r.group, "version": *r.version, "resource": *r.plural});
        let mut out = json!({
            "kind": self.kind(matched).to_json(),
            "resource": resource(matched),
            "requestKind": self.kind(call.resource).to_json(),
            "requestResource": resource(call.resource),
            "operation": call.operation.name(),
            "userInfo": self.user_info(),
            "dryRun": call.dry_run,
            "options": self.options(),
        });
        let texts = [
            ("subResource", call.subresource),
            ("requestSubResource", call.subresource),
            ("name", call.name),
            ("namespace", self.namespace),
        ];
        for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            out[name] = text.into();
        }
        out
    }

    fn user_info(&self) -> Value {
        let user = self.call.user;
        if user.name.is_empty() {
            // The server's own writes go by the name that upstream's loopback client has.
            return json!({"username": "system:apiserver", "groups": ["system:authenticated", "system:masters"]});
        }
        user.to_value()
    }

    fn options(&self) -> Value {
        let kind = match self.call.operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Value::Null,
        };
        let mut out = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        for (key, value) in self.call.said {
            out[key] = value.clone();
        }
        if self.call.dry_run {
            out["dryRun"] = json!(["All"]);
        }
        out
    }
}

/// The labels of an object, as selectors take them.
pub fn labels_of(object: &Value) -> Box<Labels> {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let mut labels: Vec<(Arc<str>, Arc<str>)> =
        labels.map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into())).collect();
    labels.sort_unstable();
    labels.into()
}
