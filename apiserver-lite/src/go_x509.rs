//! Whether somebody who is trusted vouches for a certificate, as Go's `crypto/x509` finds it out, and in its words when
//! not.
//!
//! Go's rules differ from webpki's, whose users rustls has in mind: a certificate that says it may be used for anything
//! may be used here, an authority may be a server or a client itself, a certificate that is trusted itself needs nobody
//! to vouch for it, and a trusted authority has to be in force. So chains are looked for here, in Go's order; then webpki is
//! asked as well, for what Go has no other opinion on (name constraints, how DER is written). A leaf that is an authority
//! webpki refuses before it looks for a chain: of such a one this search decides alone.
//!
//! Names are not looked at: that is for the ones who know which they want. Followed: `crypto/x509/verify.go`.

use std::cell::Cell;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter};
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate, X509Version};

/// Signatures that are checked for one certificate, as Go has it; who makes us check more wants to keep us busy.
const MOST_SIGNATURES: u32 = 100;

/// `anyExtendedKeyUsage`, `serverAuth` and `clientAuth`, in DER.
const ANY: KeyPurposeId<'static> = KeyPurposeId::new(&[0x55, 0x1d, 0x25, 0]);
const SERVER: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);
const CLIENT: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 2]);

/// What a certificate is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
}

/// Who is trusted.
#[derive(Debug)]
pub struct Trusted {
    certificates: Vec<CertificateDer<'static>>,
    roots: RootCertStore,
}

impl Trusted {
    /// Takes the certificates that can be read; None if there is none.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Option<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        (!roots.is_empty()).then_some(Trusted { certificates, roots })
    }

    pub fn roots(&self) -> &RootCertStore {
        &self.roots
    }

    /// Whether a certificate may be used now; `others` are what was shown with it.
    ///
    /// # Errors
    /// Why not, beginning with `x509: `.
    pub fn verify(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<(), String> {
        let leaf = parse(own).ok_or("x509: malformed certificate")?;
        let search = Search {
            roots: self.certificates.iter().filter_map(|der| parse(der)).collect(),
            others: others.iter().filter_map(|der| parse(der)).collect(),
            usage,
            now: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            signatures: Cell::new(0),
            is_constrained: Cell::new(false),
        };
        if let Some(why) = search.is_out_of_use(&leaf) {
            return Err(why);
        }
        let is_trusted_itself = self.certificates.iter().any(|trusted| trusted.as_ref() == own.as_ref());
        let fits = if is_trusted_itself { search.fits(&[&leaf]) } else { search.chain(&mut vec![&leaf])? };
        if !fits {
            return Err("x509: certificate specifies an incompatible key usage".into());
        }
        if is_trusted_itself {
            return Ok(());
        }
        match self.second_opinion(own, others, usage, now) {
            Err(webpki::Error::CaUsedAsEndEntity) if !search.is_constrained.get() => Ok(()),
            Err(webpki::Error::NameConstraintViolation | webpki::Error::CaUsedAsEndEntity) => {
                Err("x509: a root or intermediate certificate is not authorized to sign for this name".into())
            }
            Err(why) => Err(format!("x509: {why}")),
            Ok(()) => Ok(()),
        }
    }

    fn second_opinion(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
        EndEntityCert::try_from(own)?
            .verify_for_usage(algorithms, &self.roots.roots, others, now, usage, None, None)
            .map(drop)
    }
}

impl ExtendedKeyUsageValidator for Usage {
    fn validate(&self, said: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let (wanted, mut is_silent) = (if *self == Usage::Server { SERVER } else { CLIENT }, true);
        for purpose in said {
            let purpose = purpose?;
            if purpose == wanted || purpose == ANY {
                return Ok(());
            }
            is_silent = false;
        }
        if is_silent { Ok(()) } else { Err(webpki::Error::EmptyEkuExtension) }
    }
}

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, parsed) = X509Certificate::from_der(der).ok()?;
    let is_whole = rest.is_empty() && parsed.signature_algorithm == parsed.tbs_certificate.signature;
    // Every extension that counts is there once, and can be read.
    let counts = parsed.basic_constraints().is_ok()
        && parsed.key_usage().is_ok()
        && parsed.extended_key_usage().is_ok()
        && parsed.name_constraints().is_ok()
        && parsed.subject_alternative_name().is_ok();
    (is_whole && counts).then_some(parsed)
}

/// A search for somebody trusted who vouches for a certificate.
struct Search<'c> {
    roots: Vec<X509Certificate<'c>>,
    others: Vec<X509Certificate<'c>>,
    usage: Usage,
    /// Seconds since 1970.
    now: i64,
    /// Checked so far.
    signatures: Cell<u32>,
    /// An authority that was come by says for which names it may sign.
    is_constrained: Cell<bool>,
}

impl<'c> Search<'c> {
    /// Whether a chain from somebody trusted to the last of `chain` fits the usage; false where there are only others.
    fn chain<'s>(&'s self, chain: &mut Vec<&'s X509Certificate<'c>>) -> Result<bool, String> {
        let Some(last) = chain.last().copied() else { return Ok(false) };
        let (mut found, mut hint, mut error) = (false, None, None);
        let mut candidates: Vec<_> = self.roots.iter().map(|c| (true, c)).collect();
        candidates.extend(self.others.iter().map(|c| (false, c)));
        for (is_root, candidate) in candidates {
            if candidate.subject().as_raw() != last.issuer().as_raw() || chain.iter().any(|c| is_same(c, candidate)) {
                continue;
            }
            self.signatures.set(self.signatures.get() + 1);
            if self.signatures.get() > MOST_SIGNATURES {
                error = Some("x509: signature check attempts limit reached while verifying certificate chain".into());
                break;
            }
            if let Some(why) = not_signed(last, candidate) {
                hint.get_or_insert((why, candidate));
                continue;
            }
            error = self.may_not_sign(candidate, is_root, chain.len() - 1);
            if error.is_some() {
                continue;
            }
            chain.push(candidate);
            let complete = if is_root { Ok(self.fits(chain)) } else { self.chain(chain) };
            chain.pop();
            match complete {
                Ok(true) => return Ok(true),
                Ok(false) => found = true,
                Err(why) => error = Some(why),
            }
        }
        if found { Ok(false) } else { Err(error.unwrap_or_else(|| unknown_authority(hint))) }
    }

    /// Why an authority may not vouch for a chain with `between` others between it and the first.
    fn may_not_sign(&self, authority: &X509Certificate<'_>, is_root: bool, between: usize) -> Option<String> {
        if let Some(why) = self.is_out_of_use(authority) {
            return Some(why);
        }
        if authority.name_constraints().is_ok_and(|constraints| constraints.is_some()) {
            self.is_constrained.set(true);
        }
        let basic = authority.basic_constraints().ok().flatten().map(|basic| basic.value);
        if !is_root && !basic.is_some_and(|basic| basic.ca) {
            return Some("x509: certificate is not authorized to sign other certificates".into());
        }
        let most = basic.and_then(|basic| basic.path_len_constraint);
        if most.is_some_and(|most| usize::try_from(most).is_ok_and(|most| between > most)) {
            return Some("x509: too many intermediates for path length constraint".into());
        }
        None
    }

    fn is_out_of_use(&self, certificate: &X509Certificate<'_>) -> Option<String> {
        if certificate.extensions().iter().any(|e| e.critical && !is_understood(e.parsed_extension())) {
            return Some("x509: unhandled critical extension".into());
        }
        out_of_force(certificate, self.now)
    }

    /// Whether every certificate of a chain may be used so; one that says nothing may.
    fn fits(&self, chain: &[&X509Certificate<'_>]) -> bool {
        chain.iter().all(|certificate| match certificate.extended_key_usage() {
            Ok(None) => true,
            Ok(Some(said)) => {
                let said = said.value;
                let usual = said.server_auth || said.client_auth || said.code_signing || said.email_protection;
                let is_silent = !usual && !said.time_stamping && !said.ocsp_signing && said.other.is_empty();
                let wanted = if self.usage == Usage::Server { said.server_auth } else { said.client_auth };
                said.any || wanted || is_silent
            }
            Err(_) => false,
        })
    }
}

/// Whether a critical extension is one whose meaning is heeded.
fn is_understood(extension: &ParsedExtension<'_>) -> bool {
    match extension {
        ParsedExtension::SubjectAlternativeName(names) => names.general_names.iter().any(|name| {
            use GeneralName::{DNSName, IPAddress, RFC822Name, URI};
            matches!(name, DNSName(_) | IPAddress(_) | RFC822Name(_) | URI(_))
        }),
        ParsedExtension::SubjectKeyIdentifier(_)
        | ParsedExtension::AuthorityKeyIdentifier(_)
        | ParsedExtension::KeyUsage(_)
        | ParsedExtension::BasicConstraints(_)
        | ParsedExtension::NameConstraints(_)
        | ParsedExtension::CRLDistributionPoints(_)
        | ParsedExtension::CertificatePolicies(_)
        | ParsedExtension::PolicyMappings(_)
        | ParsedExtension::ExtendedKeyUsage(_) => true,
        _ => false,
    }
}

/// Whether two certificates stand for the same: a chain does not go in circles.
fn is_same(one: &X509Certificate<'_>, other: &X509Certificate<'_>) -> bool {
    one.subject().as_raw() == other.subject().as_raw()
        && one.public_key().raw == other.public_key().raw
        && names(one) == names(other)
}

fn names<'a, 'c>(certificate: &'a X509Certificate<'c>) -> Option<&'a [GeneralName<'c>]> {
    let names = certificate.subject_alternative_name().ok().flatten();
    names.map(|names| names.value.general_names.as_slice())
}

/// The complaint about a certificate that is not in force at a time in seconds since 1970.
pub fn out_of_force(certificate: &X509Certificate<'_>, now: i64) -> Option<String> {
    let validity = certificate.validity();
    let (start, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let (side, limit) = match now {
        now if now < start => ("before", start),
        now if now > end => ("after", end),
        _ => return None,
    };
    let shown = |seconds| proto::time::Timestamp { seconds, nanos: 0 }.to_seconds_text();
    let (now, limit) = (shown(now), shown(limit));
    Some(format!("x509: certificate has expired or is not yet valid: current time {now} is {side} {limit}"))
}

/// The complaint about a certificate that nobody known signed; the hint is the first who might have, and why he did not.
fn unknown_authority(hint: Option<(String, &X509Certificate<'_>)>) -> String {
    let plain = "x509: certificate signed by unknown authority";
    let Some((why, authority)) = hint else { return plain.into() };
    let subject = authority.subject();
    let first = subject.iter_common_name().chain(subject.iter_organization()).find_map(|name| name.as_str().ok());
    let name = first.map_or_else(|| format!("serial:{}", authority.tbs_certificate.serial), str::to_owned);
    let (why, name) = (crate::status::quote(&why), crate::status::quote(&name));
    format!("{plain} (possibly because of {why} while trying to verify candidate authority certificate {name})")
}

/// Why an authority did not sign a certificate.
fn not_signed(leaf: &X509Certificate<'_>, authority: &X509Certificate<'_>) -> Option<String> {
    let basic = authority.basic_constraints().ok().flatten().map(|basic| basic.value.ca);
    let keys = authority.key_usage().ok().flatten().map(|usage| usage.value.key_cert_sign());
    if basic == Some(false) || basic.is_none() && authority.version() == X509Version::V3 || keys == Some(false) {
        return Some("x509: invalid signature: parent certificate cannot sign this kind of certificate".into());
    }
    // 1.2.840.113549 is RSA's arc, 1.3.101.112 Ed25519.
    let algorithm = leaf.signature_algorithm.algorithm.to_id_string();
    if matches!(algorithm.as_str(), "1.2.840.113549.1.1.5" | "1.3.14.3.2.29") {
        return Some("x509: cannot verify signature: insecure algorithm SHA1-RSA".into());
    }
    if leaf.verify_signature(Some(authority.public_key())).is_ok() {
        return None;
    }
    Some(match algorithm.as_str() {
        rsa if rsa.starts_with("1.2.840.113549.1.1.") => "crypto/rsa: verification error".into(),
        "1.3.101.112" => "x509: Ed25519 verification failure".into(),
        _ => "x509: ECDSA verification failure".into(),
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    /// An authority of a name, that signs.
    struct Signer(CertificateDer<'static>, Issuer<'static, KeyPair>);

    fn params(name: &str, is_ca: Option<BasicConstraints>, usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = is_ca.map_or(IsCa::NoCa, IsCa::Ca);
        params.extended_key_usages = usages.to_vec();
        params
    }

    fn root(params: CertificateParams) -> Signer {
        let key = KeyPair::generate().expect("a key");
        let der = params.self_signed(&key).expect("a certificate").der().clone();
        Signer(der, Issuer::new(params, key))
    }

    fn by(signer: &Signer, params: CertificateParams) -> Signer {
        let key = KeyPair::generate().expect("a key");
        let der = params.signed_by(&key, &signer.1).expect("a certificate").der().clone();
        Signer(der, Issuer::new(params, key))
    }

    fn verified(root: &Signer, own: &Signer, others: &[&Signer], usage: Usage) -> Result<(), String> {
        let others: Vec<_> = others.iter().map(|other| other.0.clone()).collect();
        Trusted::new(vec![root.0.clone()]).expect("a root").verify(&own.0, &others, usage, UnixTime::now())
    }

    const INCOMPATIBLE: &str = "x509: certificate specifies an incompatible key usage";

    #[test]
    fn any_usage_is_every_usage_and_so_is_none() {
        use ExtendedKeyUsagePurpose::{Any, ClientAuth, CodeSigning, ServerAuth};
        let ca = root(params("ca", Some(BasicConstraints::Unconstrained), &[]));
        for (usages, server, client) in [
            (vec![], true, true),
            (vec![Any], true, true),
            (vec![CodeSigning, Any], true, true),
            (vec![ServerAuth], true, false),
            (vec![ClientAuth], false, true),
            (vec![CodeSigning], false, false),
        ] {
            let leaf = by(&ca, params("leaf", None, &usages));
            let said = |fits: bool| if fits { Ok(()) } else { Err(INCOMPATIBLE.to_owned()) };
            assert_eq!(verified(&ca, &leaf, &[], Usage::Server), said(server), "{usages:?}");
            assert_eq!(verified(&ca, &leaf, &[], Usage::Client), said(client), "{usages:?}");
        }
        let between = by(&ca, params("between", Some(BasicConstraints::Unconstrained), &[ServerAuth]));
        let leaf = by(&between, params("leaf", None, &[Any]));
        assert_eq!(verified(&ca, &leaf, &[&between], Usage::Server), Ok(()));
        assert_eq!(verified(&ca, &leaf, &[&between], Usage::Client), Err(INCOMPATIBLE.into()));
    }

    #[test]
    fn an_authority_may_be_a_server_itself() {
        let ca = root(params("ca", Some(BasicConstraints::Unconstrained), &[]));
        let own = by(&ca, params("own", Some(BasicConstraints::Unconstrained), &[]));
        assert_eq!(verified(&ca, &own, &[], Usage::Server), Ok(()));
        assert_eq!(verified(&own, &own, &[], Usage::Server), Ok(()), "it is trusted itself");
        assert_eq!(verified(&ca, &ca, &[], Usage::Client), Ok(()));
        let stranger = root(params("stranger", Some(BasicConstraints::Unconstrained), &[]));
        let unknown = "x509: certificate signed by unknown authority";
        assert_eq!(verified(&ca, &stranger, &[], Usage::Server), Err(unknown.into()));
    }

    #[test]
    fn who_may_not_sign_vouches_for_nobody() {
        let ca = root(params("ca", Some(BasicConstraints::Constrained(0)), &[]));
        let between = by(&ca, params("between", Some(BasicConstraints::Unconstrained), &[]));
        let leaf = by(&between, params("leaf", None, &[]));
        let long = "x509: too many intermediates for path length constraint";
        assert_eq!(verified(&ca, &leaf, &[&between], Usage::Server), Err(long.into()));
        let ca = root(params("ca", Some(BasicConstraints::Unconstrained), &[]));
        let between = by(&ca, params("between", None, &[]));
        let leaf = by(&between, params("leaf", None, &[]));
        let hint = "x509: certificate signed by unknown authority (possibly because of \"x509: invalid signature: parent \
                    certificate cannot sign this kind of certificate\" while trying to verify candidate authority \
                    certificate \"between\")";
        assert_eq!(verified(&ca, &leaf, &[&between], Usage::Server), Err(hint.into()));
    }

    #[test]
    fn a_trusted_authority_has_to_be_in_force() {
        let mut old = params("ca", Some(BasicConstraints::Unconstrained), &[]);
        old.not_before = rcgen::date_time_ymd(2000, 1, 1);
        old.not_after = rcgen::date_time_ymd(2001, 1, 1);
        let ca = root(old);
        let leaf = by(&ca, params("leaf", None, &[]));
        let said = verified(&ca, &leaf, &[], Usage::Server).expect_err("it is over");
        assert!(said.starts_with("x509: certificate has expired or is not yet valid: current time "), "{said}");
        assert!(said.ends_with(" is after 2001-01-01T00:00:00Z"), "{said}");
    }

    #[test]
    fn an_authority_of_the_same_name_is_told() {
        let ca = || root(params("twin", Some(BasicConstraints::Unconstrained), &[]));
        let (one, other) = (ca(), ca());
        let leaf = by(&one, params("leaf", None, &[]));
        let hint = "x509: certificate signed by unknown authority (possibly because of \"x509: ECDSA verification \
                    failure\" while trying to verify candidate authority certificate \"twin\")";
        assert_eq!(verified(&other, &leaf, &[], Usage::Server), Err(hint.into()));
        assert_eq!(verified(&one, &leaf, &[], Usage::Server), Ok(()));
    }

    #[test]
    fn an_authority_for_some_names_vouches_for_no_others() {
        let mut some = params("ca", Some(BasicConstraints::Unconstrained), &[]);
        let permitted_subtrees = vec![rcgen::GeneralSubtree::DnsName("a.example".into())];
        let constraints = rcgen::NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() };
        some.name_constraints = Some(constraints);
        let ca = root(some);
        let named = |name: &str, is_ca: Option<BasicConstraints>| {
            let mut leaf = params("leaf", is_ca, &[]);
            leaf.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into().expect("a name"))];
            by(&ca, leaf)
        };
        assert_eq!(verified(&ca, &named("x.a.example", None), &[], Usage::Server), Ok(()));
        assert!(verified(&ca, &named("b.example", None), &[], Usage::Server).is_err());
        let authority = named("b.example", Some(BasicConstraints::Unconstrained));
        assert!(verified(&ca, &authority, &[], Usage::Server).is_err());
    }
}
