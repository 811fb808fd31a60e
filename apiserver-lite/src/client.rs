//! The in-process client: what controllers and the scheduler write with.
//!
//! Reads are the store's own objects, without a copy. Writes take the same way as a request after authorization
//! (defaults, admission, strategy, validation, commit), but no bytes are parsed and nothing goes over a socket. Names of
//! resources are those of the store: `pods`, `deployments.apps`.

use std::sync::Arc;

use serde_json::Value;

use crate::request::User;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::{ApiError, Result};
use crate::store::{ObjectRef, ResourceId, Store};
use crate::write::{self, DeleteOptions, Target, WriteOptions};

/// A client that acts as one user; clones share the server.
#[derive(Clone)]
pub struct Client {
    server: Arc<ApiServer>,
    /// With the user.
    options: Arc<WriteOptions>,
}

impl Client {
    /// `user` is a name such as `system:kube-scheduler`; `manager` is what managed fields are kept under.
    pub fn new(server: Arc<ApiServer>, user: &str, manager: &str) -> Self {
        let options = WriteOptions { manager: manager.into(), user: User::system(user), ..WriteOptions::default() };
        Client { server, options: Arc::new(options) }
    }

    /// The same under another name as a manager of fields.
    #[must_use]
    pub fn named(&self, manager: &str) -> Self {
        let options = WriteOptions { manager: manager.into(), ..WriteOptions::clone(&self.options) };
        Client { options: Arc::new(options), ..self.clone() }
    }

    pub fn server(&self) -> &Arc<ApiServer> {
        &self.server
    }

    pub fn store(&self) -> &Store {
        &self.server.store
    }

    /// The resource whose served version is the one at rest.
    ///
    /// # Errors
    /// 404 when nothing of that name is served (any more).
    pub fn resource(&self, name: &str) -> Result<Arc<Resource>> {
        let set = self.server.resources.current();
        let mut versions = set.all().iter().filter(|r| *r.storage.0 == *name);
        let first = versions.next().cloned();
        let found = match first {
            Some(first) if *first.storage_version == *first.api_version() => Some(first),
            first => versions.find(|r| *r.storage_version == *r.api_version()).cloned().or(first),
        };
        found.ok_or_else(crate::server::unknown_path)
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<ObjectRef> {
        self.store().get(&ResourceId::from(resource), namespace, name)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As a POST.
    pub async fn create(&self, resource: &str, namespace: &str, value: Value) -> Result<ObjectRef> {
        let resource = self.resource(resource)?;
        self.create_as(&resource, namespace, value).await
    }

    /// Creates an object, as one who speaks that version of its resource; the value may be in the one at rest.
    ///
    /// # Errors
    /// As a POST.
    pub async fn create_as(&self, resource: &Resource, namespace: &str, value: Value) -> Result<ObjectRef> {
        write::create(&self.server, resource, namespace, value, &self.options, &self.options.user).await
    }

    /// Changes an object as it is now: `change` gets the newest state, again when somebody was faster.
    ///
    /// # Errors
    /// As a PUT, and what `change` says.
    pub async fn update(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        change: impl FnMut(&mut Value) -> Result<()> + Send,
    ) -> Result<ObjectRef> {
        self.update_part(resource, "", namespace, name, change).await
    }

    /// Changes an object's status.
    ///
    /// # Errors
    /// As a PUT of the subresource, and what `change` says.
    pub async fn update_status(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        change: impl FnMut(&mut Value) -> Result<()> + Send,
    ) -> Result<ObjectRef> {
        self.update_part(resource, "status", namespace, name, change).await
    }

    /// Applies a configuration to an object's status, and takes over what others own of it.
    ///
    /// # Errors
    /// As a PATCH of that kind.
    pub async fn apply_status(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        configuration: &Value,
    ) -> Result<ObjectRef> {
        let resource = self.resource(resource)?;
        let target = Target { resource: &resource, subresource: "status", namespace, name };
        let options = WriteOptions { force: true, ..WriteOptions::clone(&self.options) };
        let body = configuration.to_string();
        write::apply(&self.server, target, body.as_bytes(), &options).await.map(|patched| patched.object)
    }

    /// Changes an object through one of its subresources.
    ///
    /// # Errors
    /// As [`Client::update_status`].
    pub async fn update_part(
        &self,
        resource: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
        change: impl FnMut(&mut Value) -> Result<()> + Send,
    ) -> Result<ObjectRef> {
        let resource = self.resource(resource)?;
        self.update_as(Target { resource: &resource, subresource, namespace, name }, change).await
    }

    /// Changes an object, which is given as it is at rest, as one who speaks the version of its resource in `target`.
    ///
    /// # Errors
    /// As [`Client::update`].
    pub async fn update_as(
        &self,
        target: Target<'_>,
        mut change: impl FnMut(&mut Value) -> Result<()> + Send,
    ) -> Result<ObjectRef> {
        let replaced = write::update(&self.server, target, &self.options, |_, old| {
            let mut value = old.clone();
            change(&mut value)?;
            Ok(value)
        });
        replaced.await
    }

    /// Deletes an object, or marks it as going away, if admission lets the user.
    ///
    /// # Errors
    /// As a DELETE.
    pub async fn delete(&self, resource: &str, namespace: &str, name: &str, options: &DeleteOptions) -> Result<()> {
        let resource = self.resource(resource)?;
        if resource.custom {
            return self.delete_aside(resource, namespace, name, options).await;
        }
        write::delete_as(&self.server, &self.options.user, &resource, namespace, name, options).await.map(|_| ())
    }

    /// What judges a custom object may have it converted first, and that holds up the task that it is done in: here one
    /// of its own, for controllers share theirs.
    async fn delete_aside(
        &self,
        resource: Arc<Resource>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<()> {
        let (server, user, options) = (self.server.clone(), self.options.user.clone(), options.clone());
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let deleted = tokio::spawn(async move {
            write::delete_as(&server, &user, &resource, &namespace, &name, &options).await.map(|_| ())
        });
        deleted.await.unwrap_or_else(|_| Err(ApiError::internal("the deletion was broken off")))
    }

    /// Deletes the object that `object` is a state of, and no later one of its name; gone already is fine.
    ///
    /// # Errors
    /// As a DELETE.
    pub async fn delete_object(&self, resource: &str, object: &ObjectRef, options: DeleteOptions) -> Result<()> {
        let options = DeleteOptions { uid: Some(object.keys.uid.to_string()), ..options };
        match self.delete(resource, &object.key.namespace, &object.key.name, &options).await {
            // A webhook may call its refusal a conflict as well.
            Err(error) if error.is_conflict() && self.is_there(resource, object) => Err(error),
            done => gone_is_fine(done),
        }
    }

    /// Whether the object is there, in whatever state.
    fn is_there(&self, resource: &str, object: &ObjectRef) -> bool {
        let found = self.get(resource, &object.key.namespace, &object.key.name);
        found.is_some_and(|found| found.keys.uid == object.keys.uid)
    }

    /// Removes an object whose time is over, as a store does that lets go of it by itself: admission is not asked, and
    /// gone already is fine.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub async fn expire(&self, resource: &str, object: &ObjectRef) -> Result<()> {
        let resource = self.resource(resource)?;
        let options = DeleteOptions { uid: Some(object.keys.uid.to_string()), ..DeleteOptions::default() };
        let gone = write::delete(&self.server, &resource, &object.key.namespace, &object.key.name, &options);
        gone_is_fine(gone.await.map(|_| ()))
    }

    /// Assigns a pod to a node.
    ///
    /// # Errors
    /// 404, 409 when the pod has a node, is going away or is another one by now.
    pub async fn bind(&self, pod: &ObjectRef, node: &str) -> Result<()> {
        let resource = self.resource("pods")?;
        let binding = serde_json::json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.key.name, "uid": pod.keys.uid},
            "target": {"kind": "Node", "name": node},
        });
        let (namespace, name) = (&*pod.key.namespace, &*pod.key.name);
        let target = Target { resource: &resource, subresource: "binding", namespace, name };
        write::bind(&self.server, target, binding, &self.options).await
    }
}

/// Another object of the name is as good as none.
fn gone_is_fine(deleted: Result<()>) -> Result<()> {
    match deleted {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        done => done,
    }
}

/// What a closure given to [`Client::update`] returns to give up without a write.
pub fn unchanged() -> ApiError {
    ApiError::new(304, "", "nothing to write")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SCHEDULER: &str = "system:kube-scheduler";

    /// A client of a server with a policy about some requests: whoever does not fit the expression is refused.
    async fn under(rule: Value, expression: &str) -> Client {
        const GROUP: &str = "admissionregistration.k8s.io";
        let server = crate::serve::testing::server().await;
        let client = Client::new(server, "system:apiserver", "test");
        let policy = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression}]}});
        client.create(&format!("validatingadmissionpolicies.{GROUP}"), "", policy).await.expect("a policy");
        let binding = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        client.create(&format!("validatingadmissionpolicybindings.{GROUP}"), "", binding).await.expect("a binding");
        client
    }

    fn rule(operations: &[&str], resources: &[&str]) -> Value {
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": resources})
    }

    async fn map(client: &Client) -> ObjectRef {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        client.create("configmaps", "default", map).await.expect("a map")
    }

    /// Policies and webhooks were asked about deletes over HTTP only, and not about those of controllers.
    #[tokio::test]
    async fn a_delete_by_a_controller_is_asked_about_as_any_other() {
        let expression = format!("request.userInfo.username == '{SCHEDULER}' && has(request.options.preconditions)");
        let client = under(rule(&["DELETE"], &["configmaps"]), &expression).await;
        let object = map(&client).await;
        let refused = client.delete_object("configmaps", &object, DeleteOptions::default()).await;
        let refused = refused.expect_err("it is another user");
        assert_eq!(refused.code(), 422, "{refused}");
        assert!(client.get("configmaps", "default", "m").is_some());
        let allowed = Client::new(client.server().clone(), SCHEDULER, "test").named("other");
        allowed.delete_object("configmaps", &object, DeleteOptions::default()).await.expect("it is that user");
        assert!(client.get("configmaps", "default", "m").is_none());
    }

    /// As upstream's store lets go of events by itself.
    #[tokio::test]
    async fn nobody_is_asked_about_what_has_run_out() {
        let client = under(rule(&["DELETE"], &["configmaps"]), "false").await;
        let object = map(&client).await;
        client.expire("configmaps", &object).await.expect("nobody is asked");
        assert!(client.get("configmaps", "default", "m").is_none());
        client.expire("configmaps", &object).await.expect("gone already is fine");
    }

    /// Only creates went by the client's user; everything else was shown as the server's own.
    #[tokio::test]
    async fn whatever_a_client_writes_is_shown_as_its_users() {
        let rule = rule(&["CREATE", "UPDATE"], &["pods", "pods/status", "pods/binding"]);
        let expression = format!("request.userInfo.username == '{SCHEDULER}'");
        let other = under(rule, &expression).await;
        let client = Client::new(other.server().clone(), SCHEDULER, "test");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(other.create("pods", "default", pod.clone()).await.expect_err("another user").code(), 422);
        client.create("pods", "default", pod).await.expect("created");
        let label = |value: &mut Value| {
            value["metadata"]["labels"]["a"] = "b".into();
            Ok(())
        };
        assert_eq!(other.update("pods", "default", "p", label).await.expect_err("another user").code(), 422);
        client.update("pods", "default", "p", label).await.expect("updated");
        let reason = |value: &mut Value| {
            value["status"]["reason"] = "R".into();
            Ok(())
        };
        client.update_status("pods", "default", "p", reason).await.expect("its status too");
        let said = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"message": "m"}});
        let pod = client.apply_status("pods", "default", "p", &said).await.expect("applied");
        assert_eq!(other.bind(&pod, "n").await.expect_err("another user").code(), 422);
        client.bind(&pod, "n").await.expect("bound");
    }
}
