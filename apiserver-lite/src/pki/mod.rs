//! Keys and certificates of a cluster: made at the first start, renewed before they expire, kept under `DIR/pki`.
//!
//! The layout follows kubeadm, so that its tools and habits work: `ca.crt`, `apiserver.crt`,
//! `apiserver-kubelet-client.crt`, `front-proxy-ca.crt`, `front-proxy-client.crt`, each with its `.key`, and `sa.key`
//! with `sa.pub` for service account tokens. Private files are 0600; every file is written beside its place and moved
//! there, so that no reader sees half of one. Leaf certificates with less than a third of their life left, or with
//! names that no longer fit, are issued anew at the start and while the server runs; authorities never are.

mod der;
mod file;
mod issue;
mod names;
mod request;
mod rsa;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use file::{private_folder, read, tighten, write_private, write_public};
pub(crate) use issue::pem;
pub use issue::{Authority, Leaf, Usage};
pub use names::{hostname, serving_names};

/// Why keys or certificates cannot be had. A person has to look, except after a full disk.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    #[error("a certificate can carry at most two groups")]
    TooManyGroups,
    /// Somebody else's request for a certificate is of no use.
    #[error("{0}")]
    Refused(String),
}

/// The files of a cluster's keys and certificates.
#[derive(Debug, Clone)]
pub struct Pki {
    folder: PathBuf,
}

/// A certificate file and its key's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pki {
    /// Makes what is missing under `folder` and renews what is about to expire.
    ///
    /// # Errors
    /// When a file cannot be read or written, or holds something else.
    pub fn ensure(folder: &Path, names: &[String], addresses: &[IpAddr]) -> Result<Self, PkiError> {
        file::private_folder(folder)?;
        let pki = Pki { folder: folder.into() };
        let authority = Authority::open(&pki.pair("ca"), "kubernetes")?;
        authority.ensure(&pki.pair("apiserver"), &Leaf::serving("kube-apiserver", names, addresses))?;
        let client = Leaf::client("kube-apiserver-kubelet-client", &["system:masters"]);
        authority.ensure(&pki.pair("apiserver-kubelet-client"), &client)?;
        let front = Authority::open(&pki.pair("front-proxy-ca"), "front-proxy-ca")?;
        front.ensure(&pki.pair("front-proxy-client"), &Leaf::client("front-proxy-client", &[]))?;
        issue::ensure_key(&pki.service_account_key(), &pki.folder.join("sa.pub"))?;
        Ok(pki)
    }

    pub fn pair(&self, name: &str) -> Pair {
        Pair { certificate: self.folder.join(format!("{name}.crt")), key: self.folder.join(format!("{name}.key")) }
    }

    pub fn service_account_key(&self) -> PathBuf {
        self.folder.join("sa.key")
    }

    /// The cluster's authority.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn authority(&self) -> Result<Authority, PkiError> {
        Authority::open(&self.pair("ca"), "kubernetes")
    }
}
