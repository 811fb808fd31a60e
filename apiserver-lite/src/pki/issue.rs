//! Issuing certificates.

use std::net::IpAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::file::{read, tighten, write_private, write_public};
use super::{Pair, PkiError, request, rsa};

/// As kubeadm: authorities live ten years, the rest one.
const AUTHORITY_DAYS: i64 = 3650;
const LEAF_DAYS: i64 = 365;
/// What rcgen lets us write into one subject.
const MAX_GROUPS: usize = 2;
/// Clocks of other machines may be a little behind.
const BACKDATE: Duration = Duration::minutes(5);
/// kube-controller-manager dates certificates back that live this long or longer.
const SHORT: Duration = Duration::hours(8);

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Serving,
    Client,
}

/// A certificate to be issued.
#[derive(Debug, Clone)]
pub struct Leaf {
    pub usage: Usage,
    pub common_name: String,
    pub organizations: Vec<String>,
    /// Sorted.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub life: Duration,
}

impl Leaf {
    pub fn client(user: &str, groups: &[&str]) -> Self {
        Leaf {
            usage: Usage::Client,
            common_name: user.into(),
            organizations: groups.iter().map(|g| (*g).into()).collect(),
            names: Vec::new(),
            addresses: Vec::new(),
            life: Duration::days(LEAF_DAYS),
        }
    }

    pub fn serving(common_name: &str, names: &[String], addresses: &[IpAddr]) -> Self {
        Leaf {
            usage: Usage::Serving,
            names: names.to_vec(),
            addresses: addresses.to_vec(),
            ..Leaf::client(common_name, &[])
        }
    }

    fn params(&self) -> Result<CertificateParams, PkiError> {
        if self.organizations.len() > MAX_GROUPS {
            return Err(PkiError::TooManyGroups);
        }
        let mut params = CertificateParams::new(self.names.clone())?;
        params.subject_alt_names.extend(self.addresses.iter().map(|a| SanType::IpAddress(*a)));
        params.distinguished_name = subject(&self.common_name, &self.organizations);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![match self.usage {
            Usage::Serving => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(self.life);
        Ok(params)
    }

    /// Whether a certificate says what this one would, and does so for a while yet.
    fn is_met_by(&self, certificate: &X509Certificate<'_>, authority: &[u8], now: OffsetDateTime) -> bool {
        let validity = certificate.validity();
        let (start, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let left = end - now.unix_timestamp();
        if left < (end - start) / 3 || start > now.unix_timestamp() {
            return false;
        }
        let signer = X509Certificate::from_der(authority).map(|(_, c)| c);
        let from_authority = signer.is_ok_and(|s| {
            s.subject() == certificate.issuer() && certificate.verify_signature(Some(s.public_key())).is_ok()
        });
        let mut names = Vec::new();
        let mut addresses = Vec::new();
        if let Ok(Some(extension)) = certificate.subject_alternative_name() {
            for name in &extension.value.general_names {
                match name {
                    GeneralName::DNSName(name) => names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
                    _ => {}
                }
            }
        }
        from_authority
            && self.names.iter().all(|n| names.contains(n))
            && self.addresses.iter().all(|a| addresses.contains(a))
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn subject(common_name: &str, organizations: &[String]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    // rcgen keeps one value per type; the same attribute under its number is a second place.
    let places = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    for (place, organization) in places.into_iter().zip(organizations) {
        name.push(place, organization.as_str());
    }
    name
}

/// Begins a little before now, for clocks that are behind; not where that would be a good part of the life, by whose
/// share clients reckon when to ask for the next one.
fn validity(life: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    let backdate = if life < SHORT { Duration::ZERO } else { BACKDATE };
    (now - backdate, now + life)
}

/// A certificate authority that can sign.
pub struct Authority {
    certificate: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens an authority, or makes it when neither of its files is there.
    ///
    /// # Errors
    /// When one file is missing, or they hold something else.
    pub fn open(pair: &Pair, common_name: &str) -> Result<Self, PkiError> {
        tighten(&pair.key)?;
        let unusable = |path: &Path, reason: String| PkiError::Unusable { path: path.into(), reason };
        let (certificate, key) = match (read(&pair.certificate)?, read(&pair.key)?) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) => Self::make(pair, common_name)?,
            (Some(_), None) => return Err(unusable(&pair.key, "the key of the authority is missing".into())),
            (None, Some(_)) => {
                return Err(unusable(&pair.certificate, "the certificate of the authority is missing".into()));
            }
        };
        let bad = |e: rcgen::Error| unusable(&pair.key, e.to_string());
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|e| unusable(&pair.certificate, format!("not a certificate: {e}")))?;
        let key = KeyPair::from_pem(&key).map_err(bad)?;
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(bad)?;
        Ok(Authority { certificate, der, issuer })
    }

    /// Opens the cluster's authority under a folder without making anything.
    ///
    /// # Errors
    /// When it is not there.
    pub fn existing(folder: &Path) -> Result<Self, PkiError> {
        let pair = Pair { certificate: folder.join("ca.crt"), key: folder.join("ca.key") };
        if read(&pair.certificate)?.is_none() {
            let reason = "there is no cluster authority here yet; start the server once".into();
            return Err(PkiError::Unusable { path: pair.certificate, reason });
        }
        Self::open(&pair, "kubernetes")
    }

    fn make(pair: &Pair, common_name: &str) -> Result<(String, String), PkiError> {
        let mut params = CertificateParams::new(vec![common_name.to_owned()])?;
        params.distinguished_name = subject(common_name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = validity(Duration::days(AUTHORITY_DAYS));
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        // The key first: a certificate alone would look like a lost key at the next start.
        write_private(&pair.key, &key.serialize_pem())?;
        write_public(&pair.certificate, &certificate)?;
        Ok((certificate, key.serialize_pem()))
    }

    /// The authority's own certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.certificate
    }

    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    pub fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// Issues a certificate with a new key; returns both as PEM.
    ///
    /// # Errors
    /// When a name cannot be in a certificate.
    pub fn issue(&self, leaf: &Leaf) -> Result<(String, String), PkiError> {
        let key = KeyPair::generate()?;
        let certificate = leaf.params()?.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Signs a request (PEM): its key, its subject and its alternative names, with usages and a life that the caller has
    /// checked. Usages are those of the certificates API.
    ///
    /// # Errors
    /// When the request does not parse or was not made with its key, and for usages that do not exist.
    pub fn sign(&self, request: &str, usages: &[&str], life: Duration) -> Result<String, PkiError> {
        let signed = request::sign(request, (&self.der, self.issuer.key()), usages, validity(life))?;
        Ok(pem("CERTIFICATE", &signed))
    }

    /// Whether a certificate (PEM) still does for `leaf`.
    pub fn still_good(&self, pem: &str, leaf: &Leaf) -> bool {
        let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
        X509Certificate::from_der(&der).is_ok_and(|(_, c)| leaf.is_met_by(&c, &self.der, OffsetDateTime::now_utc()))
    }

    /// Issues a certificate unless the one in place still does.
    ///
    /// # Errors
    /// As [`Authority::issue`], and when the files cannot be written.
    pub fn ensure(&self, pair: &Pair, leaf: &Leaf) -> Result<(), PkiError> {
        tighten(&pair.key)?;
        if let (Some(certificate), Some(_)) = (read(&pair.certificate)?, read(&pair.key)?)
            && self.still_good(&certificate, leaf)
        {
            return Ok(());
        }
        let (certificate, key) = self.issue(leaf)?;
        write_private(&pair.key, &key)?;
        write_public(&pair.certificate, &certificate)
    }
}

/// Makes a signing key and its public half unless there is one; an RSA or elliptic curve key that is there stays.
pub(super) fn ensure_key(private: &Path, public: &Path) -> Result<(), PkiError> {
    tighten(private)?;
    let unusable = |reason: String| PkiError::Unusable { path: private.into(), reason };
    let key = match read(private)? {
        Some(text) => PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|e| unusable(e.to_string()))?,
        None => {
            let key = rsa::generate();
            write_private(private, &pem("PRIVATE KEY", key.secret_pkcs8_der()))?;
            PrivateKeyDer::from(key)
        }
    };
    if read(public)?.is_none() {
        let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|e| unusable(e.to_string()))?;
        let half = key.public_key().ok_or_else(|| unusable("it does not tell its public half".into()))?;
        write_public(public, &pem("PUBLIC KEY", &half))?;
    }
    Ok(())
}

/// RFC 7468.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for at in (0..text.len()).step_by(64) {
        out.push_str(&text[at..(at + 64).min(text.len())]);
        out.push('\n');
    }
    out + &format!("-----END {label}-----\n")
}
