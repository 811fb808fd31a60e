//! Component statuses: the one kind whose objects are asked for when they are read, and kept nowhere.

use futures_util::future;

use crate::components::NAMES;
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::store::{Key, ObjectRef};

/// Whether a kind is that one.
pub(super) fn is_asked(resource: &Resource) -> bool {
    resource.group.is_empty() && &*resource.plural == "componentstatuses"
}

/// How one part is now; None for what is no part.
pub(super) async fn get(server: &ApiServer, resource: &Resource, name: &str) -> Option<ObjectRef> {
    let mut value = server.components.status(&server.store, name).await?;
    Some(crate::store::encode(resource, &mut value, Vec::new(), None).unsaved(Key::new("", name), ""))
}

/// How all parts are now, asked at the same time.
pub(super) async fn list(server: &ApiServer, resource: &Resource) -> Vec<ObjectRef> {
    future::join_all(NAMES.map(|name| get(server, resource, name))).await.into_iter().flatten().collect()
}
