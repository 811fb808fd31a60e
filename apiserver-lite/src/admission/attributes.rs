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
use crate::status::Result;
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
    ///
    /// # Errors
    /// 500 when it cannot be converted: nobody may judge it as what it is not.
    pub fn versioned<'v>(&self, value: &'v Value, to: &Resource) -> Result<Cow<'v, Value>> {
        let own = OWN_KIND.contains(&self.call.subresource);
        if !own || value["apiVersion"].as_str() == Some(&to.api_version()) {
            return Ok(Cow::Borrowed(value));
        }
        let mut value = value.clone();
        crate::crd::to_version_now(self.call.server, to, &mut value, &to.api_version())?;
        Ok(Cow::Owned(crate::read::convert(to, value)))
    }

    /// The stored object spelled out in the version of a resource.
    ///
    /// # Errors
    /// As [`Attributes::versioned`].
    pub fn old(&self, to: &Resource) -> Result<Option<&Value>> {
        let Some(old) = self.call.old else { return Ok(None) };
        self.old.of(old, (&*to.group, &*to.version), |value| self.spelled_out(value, to)).map(Some)
    }

    /// The same as Go writes it: with what its type always has, even empty. Expressions find that, and patches go there.
    /// What this makes is kept by [`Forms`].
    ///
    /// # Errors
    /// As [`Attributes::versioned`].
    pub fn spelled_out<'v>(&self, value: &'v Value, to: &Resource) -> Result<Cow<'v, Value>> {
        let value = self.versioned(value, to)?;
        let kind = self.kind(to);
        let set = proto::schema::TypeSet::built_in();
        let id = Some(()).filter(|()| !to.custom && value["kind"].as_str().is_none_or(|said| *said == kind.kind));
        let Some(id) = id.and_then(|()| set.kind(&kind.group, &kind.version, &kind.kind)) else {
            return Ok(value);
        };
        let mut text = Vec::with_capacity(2048);
        proto::json::write(set, id, &value, &mut text);
        Ok(proto::json::parse(&text).map_or(value, |parsed| Cow::Owned(parsed.value)))
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

#[cfg(test)]
mod tests {
    use super::super::policy::{self, Binding, Compiled, Policy};
    use super::super::subject::Subject;
    use super::super::webhook::{self, Clients, Webhook};
    use super::*;
    use crate::request::User;

    /// Of two versions of a kind, which are converted by a server that is not there.
    fn versions() -> Vec<Arc<Resource>> {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version =
            |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
        let webhook =
            json!({"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]});
        let names = json!({"plural": "foos", "kind": "Foo"});
        let definition = json!({"metadata": {"name": "foos.g.io"}, "spec": {
            "group": "g.io", "scope": "Cluster", "names": names,
            "conversion": {"strategy": "Webhook", "webhook": webhook},
            "versions": [version("v1", true), version("v2", false)]},
            "status": {"acceptedNames": names, "storedVersions": ["v1"]}});
        crate::crd::resources(&definition, 0, None)
    }

    fn policy_that(failure: &str) -> Policy {
        let rule = json!({"apiGroups": ["g.io"], "apiVersions": ["v2"], "operations": ["*"], "resources": ["*"]});
        let policy = json!({"metadata": {"name": "p"}, "spec": {"failurePolicy": failure,
            "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "!has(object.wrong)"}]}});
        let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        Policy { compiled: Arc::new(Compiled::new(&policy, 1)), bindings: vec![Binding::new(&binding)] }
    }

    /// It was relabelled and pruned by the schema of the other version, and judged as that.
    #[tokio::test]
    async fn nobody_judges_an_object_that_could_not_be_converted() {
        let server = crate::serve::testing::server().await;
        let all = versions();
        let of = |version: &str| all.iter().find(|r| &*r.version == version).expect("it is served").clone();
        let (own, other) = (of("v1"), of("v2"));
        let user = User::default();
        let call = Call {
            server: &server,
            user: &user,
            operation: Operation::Create,
            resource: &own,
            subresource: "",
            namespace: "",
            name: "a",
            old: None,
            dry_run: false,
            said: &[],
        };
        let object = json!({"apiVersion": "g.io/v1", "kind": "Foo", "metadata": {"name": "a"}, "wrong": true});
        let attributes = Attributes::new(&call, Some(&object));
        assert!(attributes.siblings.set(vec![other.clone()]).is_ok(), "nobody has looked");
        assert!(attributes.versioned(&object, &own).is_ok_and(|same| *same == object));
        assert_eq!(attributes.versioned(&object, &other).expect_err("nobody converts it").code(), 500);
        let subject = Subject::seen(Some(&object));
        let refused = policy::validate(&[policy_that("Fail")], &attributes, &subject).expect_err("it counts");
        let text = &refused.status().message;
        assert!(text.contains("failed to configure binding: failed to convert object version: "), "{text}");
        policy::validate(&[policy_that("Ignore")], &attributes, &subject).expect("it does not count");
        let rule = json!({"apiGroups": ["g.io"], "apiVersions": ["v2"], "operations": ["*"], "resources": ["*"]});
        let hooks = json!({"metadata": {"name": "c"}, "webhooks": [{"name": "w.x.io", "rules": [rule],
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"}}]});
        let hooks: Vec<Arc<Webhook>> = Webhook::all(&hooks, 1).into_iter().map(Arc::new).collect();
        let refused = webhook::validate(&Clients::default(), &hooks, &attributes, &subject).await;
        let refused = refused.expect_err("whatever the webhook's policy is");
        assert_eq!(refused.code(), 500);
        assert!(refused.status().message.starts_with("Internal error occurred: "), "{refused}");
    }
}
