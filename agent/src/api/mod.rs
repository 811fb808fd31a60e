//! Client of the Kubernetes API: typed get, list, watch and writes over reused TLS connections.
//!
//! [`Client`] speaks protobuf or JSON (`contentType` of the configuration) through a [`Transport`]; the real one is
//! [`HttpTransport`], built from a [`Kubeconfig`], tests bring their own. [`Reflector`] keeps a set of objects by list
//! and watch and hands on what changed. Nothing here polls: an idle client holds one connection and no timer but the
//! connection's own keep-alive.

mod client;
mod error;
mod exec_login;
mod impersonation;
mod kind;
mod kubeconfig;
mod login;
mod media;
mod proxy;
mod rate;
mod reflector;
mod tls;
mod transport;
mod watch;

pub use client::{Client, ClientOptions, List, ListOptions, PatchType, WatchOptions};
pub use error::ApiError;
pub use kind::{Kind, timestamp};
pub use kubeconfig::{Kubeconfig, KubeconfigError, io_words};
pub use login::Login;
pub use media::ContentType;
pub use proxy::Proxy;
pub use rate::RateLimit;
pub use reflector::{Change, Reflector};
pub use tls::{TlsError, public_servers, server_name, trust_roots};
pub use transport::{Body, HttpTransport, NoServer, Transport};
pub use watch::{Watch, WatchEvent};
