//! Who asks, and what they may do.
//!
//! [`Authenticator`] turns a connection's certificate and a request's headers into a [`User`]; [`Authorizer`] decides
//! whether that user may do what [`Attributes`] say. Both answer from memory and never wait, but for the webhooks and
//! issuers of tokens that an operator names. Order, wording and the extra facts of a user follow `k8s.io/apiserver` 1.36.

mod authenticator;
mod authorizer;
mod certificate;
mod chain;
mod claim_rights;
mod config_file;
mod escalation;
mod front_proxy;
mod impersonation;
mod jwt;
mod node;
mod rbac;
mod rule;
mod secret_use;
mod service_account;
mod shown;
mod structured;
mod token_file;
mod web_keys;
mod webhook;

pub use authenticator::{Authenticator, AuthenticatorOptions};
pub use authorizer::{Attributes, Authorizer, Decision, Rules, forbidden, unanswered};
pub use certificate::{ClientAuthorities, any_client, certificate_user};
pub use chain::Chain;
pub use claim_rights::{ClaimWrite, new_claim, new_status};
pub use config_file::FileError;
pub use escalation::RbacWrite;
pub use front_proxy::{FrontProxy, ProxyHeaders};
pub use impersonation::{Impersonated, Impersonation};
pub use jwt::{KeyError, Keys};
pub use rbac::{Binding, Rbac, RoleRef, Subject};
pub use rule::Rule;
pub use secret_use::{SecretUse, label_used};
pub use service_account::ServiceAccountTokens;
pub use shown::{Certificates, Shown};
pub use structured::Structured;
pub use token_file::{TokenFile, TokenFileError};
pub use webhook::{AccessWebhook, Reviewer, TokenWebhook};

/// Key in a user's extra facts that names the credential used.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
