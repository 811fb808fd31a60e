//! Where pods come from: the API server, and manifest files of this node.

pub mod api;
pub mod files;
pub mod manifest;

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
}

impl Source {
    /// The value of the source annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::File => "file",
        }
    }
}
