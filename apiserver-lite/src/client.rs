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
    user: Arc<User>,
    options: Arc<WriteOptions>,
}

impl Client {
    /// `user` is a name such as `system:kube-scheduler`; `manager` is what managed fields are kept under.
    pub fn new(server: Arc<ApiServer>, user: &str, manager: &str) -> Self {
        let options = WriteOptions { manager: manager.into(), ..WriteOptions::default() };
        Client { server, user: Arc::new(User::system(user)), options: Arc::new(options) }
    }

    /// The same under another name as a manager of fields.
    #[must_use]
    pub fn named(&self, manager: &str) -> Self {
        let options = WriteOptions { manager: manager.into(), ..WriteOptions::default() };
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
        write::create(&self.server, resource, namespace, value, &self.options, &self.user).await
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

    /// Deletes an object, or marks it as going away.
    ///
    /// # Errors
    /// As a DELETE.
    pub async fn delete(&self, resource: &str, namespace: &str, name: &str, options: &DeleteOptions) -> Result<()> {
        let resource = self.resource(resource)?;
        write::delete(&self.server, &resource, namespace, name, options).await.map(|_| ())
    }

    /// Deletes the object that `object` is a state of, and no later one of its name; gone already is fine.
    ///
    /// # Errors
    /// As a DELETE.
    pub async fn delete_object(&self, resource: &str, object: &ObjectRef, options: DeleteOptions) -> Result<()> {
        let options = DeleteOptions { uid: Some(object.keys.uid.to_string()), ..options };
        match self.delete(resource, &object.key.namespace, &object.key.name, &options).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            done => done,
        }
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

/// What a closure given to [`Client::update`] returns to give up without a write.
pub fn unchanged() -> ApiError {
    ApiError::new(304, "", "nothing to write")
}
