//! Who the agent is: its client certificate towards the API server and its serving certificate.
//!
//! A node that only has a bootstrap token asks for its first client certificate with it ([`bootstrap`]). Both
//! certificates are asked for anew at 70 to 90 % of their life ([`keep_client`], [`keep_serving`]), so that nodes which
//! joined together do not ask together. Files are the kubelet's: `kubelet-client-DATE.pem` holds certificate and key,
//! `kubelet-client-current.pem` is a link that is moved in one step.
//!
//! Followed: client-go `util/certificate`, kubelet `pkg/kubelet/certificate`.

mod bootstrap;
mod request;
mod rotation;
mod self_made;
mod serving;
mod store;

pub use bootstrap::{bootstrap, can_bootstrap, is_usable, login_to_come, write_login};
pub use request::RequestError;
pub use rotation::{ClientLogin, Renewal, keep_client, keep_serving};
pub use self_made::{SelfMade, keep_self_made};
pub use serving::{Serving, follow_files};
pub use store::{Store, Validity};

/// Why there is no identity; retrying helps when the API server or the approver was away.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot read {path}: {source}")]
    Read { path: std::path::PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: std::path::PathBuf, source: std::io::Error },
    #[error("bootstrap kubeconfig {path}: {reason}")]
    Bootstrap { path: std::path::PathBuf, reason: String },
    /// Nobody here can mend it: the agent ends, so that somebody sees it.
    #[error(
        "the client certificate is over and the API server, which answers, gives no new one for it; give the node a \
         bootstrap kubeconfig or a new certificate ({0})"
    )]
    Over(RequestError),
    #[error(transparent)]
    Request(#[from] RequestError),
}
