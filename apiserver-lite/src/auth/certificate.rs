//! Users from client certificates: the common name is the user, organizations are the groups.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::CREDENTIAL_ID;
use crate::request::User;

/// Attribute of the subject that holds the user's uid: `1.3.6.1.4.1.57683.2`.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Checks client certificates against authorities; clients without one are let through.
///
/// # Errors
/// When no authority is usable.
pub fn client_verifier(authorities: &[CertificateDer<'_>]) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(authorities.iter().map(|c| c.clone().into_owned()));
    if added == 0 {
        return Err("no certificate of an authority found".into());
    }
    WebPkiClientVerifier::builder(roots.into()).allow_unauthenticated().build().map_err(|e| e.to_string())
}

/// The user that a verified certificate names; None when it has no common name. Of several the last counts, as Go reads them.
pub fn certificate_user(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().last()?.as_str().ok().filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(Into::into).collect();
    let uid = subject.iter_attributes().find(|a| a.attr_type().to_id_string() == UID).and_then(|a| a.as_str().ok());
    let fingerprint: String = digest(&SHA256, certificate).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    Some(User {
        name: name.into(),
        uid: uid.unwrap_or_default().into(),
        groups,
        extra: vec![(CREDENTIAL_ID.into(), vec![format!("X509SHA256={fingerprint}")])],
    })
}
