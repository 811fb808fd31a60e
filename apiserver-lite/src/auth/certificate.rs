//! Users from client certificates: the common name is the user, organizations are the groups.

use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::digest::{SHA256, digest};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::CREDENTIAL_ID;
use crate::go_x509::{Trusted, Usage};
use crate::request::User;

/// Attribute of the subject that holds the user's uid: `1.3.6.1.4.1.57683.2`.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Who vouches for client certificates, by the rules of Go. They may be replaced while the server runs.
#[derive(Debug)]
pub struct ClientAuthorities(ArcSwap<Authorities>);

#[derive(Debug)]
struct Authorities {
    trusted: Trusted,
    /// See [`turns`].
    turns: Vec<i64>,
}

impl ClientAuthorities {
    /// # Errors
    /// When no authority is usable.
    pub fn new(authorities: &[CertificateDer<'_>]) -> Result<Self, String> {
        known(authorities).map(|known| ClientAuthorities(ArcSwap::from_pointee(known)))
    }

    /// # Errors
    /// When no authority is usable; then those from before stay.
    pub fn replace(&self, authorities: &[CertificateDer<'_>]) -> Result<(), String> {
        known(authorities).map(|known| self.0.store(Arc::new(known)))
    }

    /// Whether one of them vouches for a certificate, which came with others.
    pub fn vouch_for(&self, own: &CertificateDer<'_>, others: &[CertificateDer<'_>], now: UnixTime) -> bool {
        self.0.load().trusted.verify(own, others, Usage::Client, now).is_ok()
    }

    /// When one of them begins or ends next.
    pub fn next_turn(&self, now: i64) -> Option<i64> {
        self.0.load().turns.iter().copied().filter(|turn| *turn > now).min()
    }
}

fn known(authorities: &[CertificateDer<'_>]) -> Result<Authorities, String> {
    let turns = authorities.iter().flat_map(turns).collect();
    trusted(authorities).map(|trusted| Authorities { trusted, turns })
}

fn trusted(authorities: &[CertificateDer<'_>]) -> Result<Trusted, String> {
    let authorities = authorities.iter().map(|c| c.clone().into_owned()).collect();
    Trusted::new(authorities).ok_or_else(|| "no certificate of an authority found".to_owned())
}

/// Asks clients for a certificate of these authorities and takes any: who shows one has to hold its key, and what it is
/// good for is found out afterwards. A request may have another credential, and without one its client is to hear an
/// answer and not a broken connection.
///
/// # Errors
/// When no authority is usable.
pub fn any_client(authorities: &[CertificateDer<'_>]) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let roots = Arc::new(trusted(authorities)?.roots().clone());
    let usual = WebPkiClientVerifier::builder(roots).allow_unauthenticated().build().map_err(|e| e.to_string())?;
    Ok(Arc::new(AnyClient(usual)))
}

/// Checks that a client holds the key of what it shows. What is inside knows whose certificates are asked for, and how
/// signatures are checked.
#[derive(Debug)]
struct AnyClient(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The user that a verified certificate names; None when it has no common name. Of several the last counts, as Go reads
/// them. With `uids`, an attribute of the subject is the user's uid.
///
/// # Errors
/// Several uids, or one that is empty or no text: whose the certificate is cannot be told.
pub fn certificate_user(certificate: &CertificateDer<'_>, uids: bool) -> Result<Option<User>, &'static str> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Ok(None) };
    let subject = parsed.subject();
    let name = subject.iter_common_name().last().and_then(|name| name.as_str().ok()).filter(|name| !name.is_empty());
    let Some(name) = name else { return Ok(None) };
    let said = subject.iter_attributes().filter(|a| uids && a.attr_type().to_id_string() == UID);
    let uid = only_uid(said.map(|a| a.as_str().ok()))?;
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(Into::into).collect();
    let fingerprint: String = digest(&SHA256, certificate).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    Ok(Some(User {
        name: name.into(),
        uid: uid.into(),
        groups,
        extra: vec![(CREDENTIAL_ID.into(), vec![format!("X509SHA256={fingerprint}")])],
    }))
}

/// Until when a certificate is good, in seconds since 1970.
pub fn good_until(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

/// When a certificate begins to be good and when it is over, in seconds since 1970; nothing for what is no certificate.
pub fn turns(certificate: &CertificateDer<'_>) -> impl Iterator<Item = i64> + use<> {
    let both = X509Certificate::from_der(certificate).ok().map(|(_, parsed)| {
        let validity = parsed.validity();
        // It is good in its last second.
        [validity.not_before.timestamp(), validity.not_after.timestamp().saturating_add(1)]
    });
    both.into_iter().flatten()
}

/// The uid of a subject, empty for one without.
fn only_uid<'c>(mut said: impl Iterator<Item = Option<&'c str>>) -> Result<&'c str, &'static str> {
    match (said.next(), said.next()) {
        (None, _) => Ok(""),
        (Some(Some("")), None) => Err("UID cannot be an empty string"),
        (Some(Some(uid)), None) => Ok(uid),
        (Some(None), None) => Err("unable to parse UID into a string"),
        (Some(_), Some(_)) => Err("expected 1 UID, but found multiple"),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn of(names: &[(DnType, &str)], uids: bool) -> Result<Option<(String, String)>, &'static str> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let certificate = params.self_signed(&key).expect("a certificate");
        certificate_user(certificate.der(), uids).map(|user| user.map(|user| (user.name, user.uid)))
    }

    #[test]
    fn a_certificate_may_hold_a_uid() {
        let name = || (DnType::CommonName, "ann");
        let uid = |text| (DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), text);
        let ann = |uid: &str| Ok(Some(("ann".into(), uid.into())));
        assert_eq!(of(&[name(), uid("7")], true), ann("7"));
        assert_eq!(of(&[name(), uid("7")], false), ann(""));
        assert_eq!(of(&[name()], true), ann(""));
        assert_eq!(of(&[name(), uid("")], true), Err("UID cannot be an empty string"));
        assert_eq!(of(&[uid("7")], true), Ok(None));
        let two = [Some("7"), Some("7")].into_iter();
        assert_eq!(only_uid(two), Err("expected 1 UID, but found multiple"));
        assert_eq!(only_uid([None].into_iter()), Err("unable to parse UID into a string"));
    }
}
