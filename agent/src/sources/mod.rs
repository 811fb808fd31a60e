//! Where pods come from: the API server, manifest files of this node, and a URL.

mod affinity;
pub mod api;
pub mod files;
pub mod manifest;
mod mount_rules;
mod pod_rules;
mod resource_rules;
mod rules;
pub mod url;

use proto::api::core::v1::Pod;

/// What a source says.
#[derive(Debug)]
pub enum Update {
    /// All pods of the source; what is not listed is gone.
    Listed(Source, Vec<Pod>),
    Applied(Pod),
    /// The last state of a pod that is gone.
    Deleted(Pod),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    Api,
    File,
    Http,
}

impl Source {
    /// The value of the source annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::File => "file",
            Self::Http => "http",
        }
    }

    /// Whether its pods are static ones: nobody but this node knows of them, unless it makes mirrors.
    pub fn is_static(self) -> bool {
        self != Self::Api
    }
}
