//! What a request asks for, read from its path and query: the input of authorization, audit and the handlers.

/// Who asks. Filled by authentication, or by impersonation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Sorted by key.
    pub extra: Vec<(String, Vec<String>)>,
}

impl User {
    /// The server's own controllers, and everyone in `system:masters`, may do anything.
    pub fn system(name: &str) -> Self {
        User {
            name: name.into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..User::default()
        }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// The parts of a path, after `k8s.io/apiserver/pkg/endpoints/request.RequestInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub is_resource: bool,
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the lower-case HTTP method
    /// for paths that are no resource.
    pub verb: &'static str,
    /// `api` or `apis`.
    pub prefix: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// Path elements after the subresource, for the proxies.
    pub rest: Vec<String>,
    pub label_selector: String,
    pub field_selector: String,
}
