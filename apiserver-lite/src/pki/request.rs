//! Certificates for the keys of others, as kube-controller-manager signs what it is asked for.
//!
//! Key, subject and names are the request's, usages and life the caller's; nothing else that a request says counts. Of a
//! subject there is what Go has a field for, put together anew; of several common names that is the last. Written here,
//! since a subject of rcgen holds one value of a kind. Followed: `pkg/controller/certificates/authority` and
//! `crypto/x509`.

use rcgen::{KeyPair, SigningKey as _};
use time::{OffsetDateTime, UtcOffset};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::X509Name;

use super::PkiError;
use super::der::{BITS, BOOLEAN, INTEGER, LATER_TIME, OCTETS, OID, PRINTABLE, SET, UTC_TIME, UTF8, element, sequence};

/// What of a subject there may be several of, as the last part of `2.5.4.` and in the order that it is written in:
/// country, organization, its unit, locality, province, street, postal code.
const SEVERAL: [u8; 7] = [6, 10, 11, 7, 8, 9, 17];
/// What there is one of, after the others: common name and serial number.
const SINGLE: [u8; 2] = [3, 5];

/// Usages of a key by the bits that stand for them.
const KEY_USAGES: [&[&str]; 9] = [
    &["signing", "digital signature"],
    &["content commitment"],
    &["key encipherment"],
    &["data encipherment"],
    &["key agreement"],
    &["cert sign"],
    &["crl sign"],
    &["encipher only"],
    &["decipher only"],
];

/// Purposes of a certificate in the order that they are written in, by their identifiers: of `2.5.29.37`, of PKIX, of
/// Microsoft and of Netscape.
const PURPOSES: [(&[&str], &[u8]); 12] = [
    (&["any"], &[0x55, 0x1d, 0x25, 0]),
    (&["server auth"], &[0x2b, 6, 1, 5, 5, 7, 3, 1]),
    (&["client auth"], &[0x2b, 6, 1, 5, 5, 7, 3, 2]),
    (&["code signing"], &[0x2b, 6, 1, 5, 5, 7, 3, 3]),
    (&["email protection", "s/mime"], &[0x2b, 6, 1, 5, 5, 7, 3, 4]),
    (&["ipsec end system"], &[0x2b, 6, 1, 5, 5, 7, 3, 5]),
    (&["ipsec tunnel"], &[0x2b, 6, 1, 5, 5, 7, 3, 6]),
    (&["ipsec user"], &[0x2b, 6, 1, 5, 5, 7, 3, 7]),
    (&["timestamping"], &[0x2b, 6, 1, 5, 5, 7, 3, 8]),
    (&["ocsp signing"], &[0x2b, 6, 1, 5, 5, 7, 3, 9]),
    (&["microsoft sgc"], &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 3]),
    (&["netscape sgc"], &[0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 4, 1]),
];

/// Extensions of `2.5.29.` by the last part.
const KEY_USAGE: u8 = 15;
const ALTERNATIVE_NAMES: u8 = 17;
const BASIC_CONSTRAINTS: u8 = 19;
const AUTHORITY_KEY: u8 = 35;
const PURPOSE: u8 = 37;

/// Version 3.
const VERSION: [u8; 5] = [0xa0, 3, INTEGER, 1, 2];

/// A certificate (DER) as `request` (PEM) asks for it, by an authority with this key.
///
/// # Errors
/// When the request does not parse or was not made with its key, for usages that do not exist, and when the authority is
/// over.
pub fn sign(
    request: &str,
    (authority, key): (&[u8], &KeyPair),
    usages: &[&str],
    (start, end): (OffsetDateTime, OffsetDateTime),
) -> Result<Vec<u8>, PkiError> {
    let unreadable = || refused("unable to parse certificate request");
    let (_, pem) = x509_parser::pem::parse_x509_pem(request.as_bytes()).map_err(|_| unreadable())?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(|_| unreadable())?;
    request.verify_signature().map_err(|_| refused("unable to verify certificate request signature"))?;
    let (_, authority) =
        X509Certificate::from_der(authority).map_err(|_| refused("the authority's certificate cannot be read"))?;
    let last = authority.validity().not_after.to_datetime();
    if start >= last {
        return Err(refused("the signer has expired"));
    }
    let asked = &request.certification_request_info;
    let algorithm = algorithm(key)?;
    let parts = [
        VERSION.to_vec(),
        element(INTEGER, &serial()),
        algorithm.clone(),
        authority.subject().as_raw().to_vec(),
        sequence(&[time(start), time(end.min(last))]),
        subject(&asked.subject),
        asked.subject_pki.raw.to_vec(),
        element(0xa3, &sequence(&extensions(&request, &authority, usages)?)),
    ];
    let certificate = sequence(&parts);
    let signature = key.sign(&certificate)?;
    Ok(sequence(&[certificate, algorithm, bits(0, &signature)]))
}

fn refused(why: &str) -> PkiError {
    PkiError::Refused(why.to_owned())
}

/// The name of how a key signs.
fn algorithm(key: &KeyPair) -> Result<Vec<u8>, PkiError> {
    const ECDSA: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3];
    const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    let named = |place: &[u8], last: u8| element(OID, &[place, &[last]].concat());
    let nothing = || vec![5, 0];
    let known = [
        (&rcgen::PKCS_ECDSA_P256_SHA256, sequence(&[named(&ECDSA, 2)])),
        (&rcgen::PKCS_ECDSA_P384_SHA384, sequence(&[named(&ECDSA, 3)])),
        (&rcgen::PKCS_ED25519, sequence(&[named(&[0x2b, 0x65], 0x70)])),
        (&rcgen::PKCS_RSA_SHA256, sequence(&[named(&RSA, 11), nothing()])),
        (&rcgen::PKCS_RSA_SHA384, sequence(&[named(&RSA, 12), nothing()])),
        (&rcgen::PKCS_RSA_SHA512, sequence(&[named(&RSA, 13), nothing()])),
    ];
    let own = key.algorithm();
    let found = known.into_iter().find(|(algorithm, _)| *algorithm == own);
    found.map(|(_, name)| name).ok_or_else(|| refused("the authority's key is of a kind that cannot sign"))
}

/// A number that no other certificate has, with as many bits as it may have.
fn serial() -> [u8; 16] {
    let mut serial: [u8; 16] = crate::random::secret();
    // The highest bit is the sign, and a number does not begin with nothing.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    serial
}

/// As certificates have it: in two digits of the year up to 2049.
fn time(at: OffsetDateTime) -> Vec<u8> {
    let at = at.to_offset(UtcOffset::UTC);
    let (year, month) = (at.year(), u8::from(at.month()));
    let rest = format!("{month:02}{:02}{:02}{:02}{:02}Z", at.day(), at.hour(), at.minute(), at.second());
    match year {
        1950..2050 => element(UTC_TIME, format!("{:02}{rest}", year % 100).as_bytes()),
        _ => element(LATER_TIME, format!("{year:04}{rest}").as_bytes()),
    }
}

/// A string of bits whose last ones are not meant.
fn bits(unused: u8, bytes: &[u8]) -> Vec<u8> {
    element(BITS, &[&[unused], bytes].concat())
}

/// A subject as Go would write it again. Values of one kind are one set; what is no text, or of no kind that Go knows, is
/// left out.
fn subject(asked: &X509Name<'_>) -> Vec<u8> {
    let values = |kind: u8| -> Vec<&str> {
        let of_kind = asked.iter_attributes().filter(|a| a.attr_type().as_bytes() == [0x55, 4, kind]);
        of_kind.filter_map(|a| a.as_str().ok()).collect()
    };
    let set = |kind: u8, values: &[&str]| -> Vec<u8> {
        let identifier = element(OID, &[0x55, 4, kind]);
        let mut all: Vec<Vec<u8>> = values.iter().map(|value| sequence(&[identifier.clone(), text(value)])).collect();
        all.sort();
        if all.is_empty() { Vec::new() } else { element(SET, &all.concat()) }
    };
    let several = SEVERAL.iter().map(|kind| set(*kind, &values(*kind)));
    let single = SINGLE.iter().map(|kind| {
        let last = values(*kind).pop().filter(|value| !value.is_empty());
        set(*kind, last.as_slice())
    });
    sequence(&several.chain(single).collect::<Vec<_>>())
}

/// In the narrower form where that will do.
fn text(value: &str) -> Vec<u8> {
    let is_printable = value.bytes().all(|b| b.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&b));
    element(if is_printable { PRINTABLE } else { UTF8 }, value.as_bytes())
}

fn extensions(
    request: &X509CertificationRequest<'_>,
    authority: &X509Certificate<'_>,
    usages: &[&str],
) -> Result<Vec<Vec<u8>>, PkiError> {
    let is_known = |usage: &&&str| {
        KEY_USAGES.iter().any(|names| names.contains(usage)) || PURPOSES.iter().any(|(names, _)| names.contains(usage))
    };
    let unknown: Vec<String> = usages.iter().filter(|usage| !is_known(usage)).map(|u| format!("{u:?}")).collect();
    if !unknown.is_empty() {
        return Err(refused(&format!("unrecognized usage values: [{}]", unknown.join(" "))));
    }
    let is_wanted = |names: &[&str]| names.iter().any(|name| usages.contains(name));
    let mut out = Vec::new();
    out.extend(key_usage(&is_wanted).map(|value| extension(KEY_USAGE, true, &value)));
    let purposes: Vec<Vec<u8>> =
        PURPOSES.iter().filter(|(names, _)| is_wanted(names)).map(|(_, identifier)| element(OID, identifier)).collect();
    if !purposes.is_empty() {
        out.push(extension(PURPOSE, false, &sequence(&purposes)));
    }
    // Whoever gets it is no authority.
    out.push(extension(BASIC_CONSTRAINTS, true, &sequence(&[])));
    let key = authority.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0),
        _ => None,
    });
    out.extend(key.map(|key| extension(AUTHORITY_KEY, false, &sequence(&[element(0x80, key)]))));
    let names = alternative_names(request)?;
    if !names.is_empty() {
        // Where nothing else says whose it is, that has to be understood.
        let is_all = subject(&request.certification_request_info.subject) == sequence(&[]);
        out.push(extension(ALTERNATIVE_NAMES, is_all, &sequence(&names)));
    }
    Ok(out)
}

fn extension(kind: u8, is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if is_critical { element(BOOLEAN, &[0xff]) } else { Vec::new() };
    sequence(&[element(OID, &[0x55, 0x1d, kind]), critical, element(OCTETS, value)])
}

fn key_usage(is_wanted: &dyn Fn(&[&str]) -> bool) -> Option<Vec<u8>> {
    let wanted = KEY_USAGES.iter().enumerate().filter(|(_, names)| is_wanted(names));
    let all = wanted.fold(0_u16, |all, (at, _)| all | (0x8000 >> at));
    let unused = u8::try_from(all.trailing_zeros()).ok().filter(|_| all != 0)?;
    let bytes = all.to_be_bytes();
    Some(if unused >= 8 { bits(unused - 8, &bytes[..1]) } else { bits(unused, &bytes) })
}

/// The names that a request asks for: DNS names, then mail addresses, IP addresses and URIs.
fn alternative_names(request: &X509CertificationRequest<'_>) -> Result<Vec<Vec<u8>>, PkiError> {
    let invalid = || refused("unable to parse certificate request: x509: invalid subject alternative names");
    let mut kinds: [Vec<Vec<u8>>; 4] = Default::default();
    let [dns, mail, addresses, uris] = &mut kinds;
    for extension in asked_extensions(request).filter(|e| e.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
        let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
            return Err(invalid());
        };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => dns.push(element(0x82, name.as_bytes())),
                GeneralName::RFC822Name(name) => mail.push(element(0x81, name.as_bytes())),
                GeneralName::IPAddress(bytes) if matches!(bytes.len(), 4 | 16) => addresses.push(element(0x87, bytes)),
                GeneralName::URI(name) => uris.push(element(0x86, name.as_bytes())),
                GeneralName::IPAddress(_) | GeneralName::Invalid(..) => return Err(invalid()),
                _ => {}
            }
        }
    }
    Ok(kinds.concat())
}

fn asked_extensions<'r>(request: &'r X509CertificationRequest<'r>) -> impl Iterator<Item = &'r X509Extension<'r>> {
    let asked = request.certification_request_info.iter_attributes().find_map(|a| match a.parsed_attribute() {
        ParsedCriAttribute::ExtensionRequest(asked) => Some(&asked.extensions),
        _ => None,
    });
    asked.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, IsCa, Issuer, PublicKeyData as _};
    use rustls_pki_types::{CertificateDer, UnixTime};
    use time::Duration;

    use super::*;
    use crate::go_x509::{Trusted, Usage};

    const CLIENT: &[&str] = &["digital signature", "key encipherment", "client auth"];

    struct Signer {
        der: CertificateDer<'static>,
        issuer: Issuer<'static, KeyPair>,
    }

    impl Signer {
        /// With a key that signs in this way.
        fn new(algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
            Self::with(KeyPair::generate_for(algorithm).expect("a key"))
        }

        fn with(key: KeyPair) -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            (params.not_before, params.not_after) = life(40);
            let der = params.self_signed(&key).expect("a certificate").der().clone();
            Signer { issuer: Issuer::from_ca_cert_der(&der, key).expect("an issuer"), der }
        }

        fn sign(&self, request: &str, usages: &[&str], days: i64) -> Result<CertificateDer<'static>, PkiError> {
            sign(request, (&self.der, self.issuer.key()), usages, life(days)).map(CertificateDer::from)
        }
    }

    fn life(days: i64) -> (OffsetDateTime, OffsetDateTime) {
        let now = OffsetDateTime::now_utc();
        (now - Duration::minutes(5), now + Duration::days(days))
    }

    /// A request with a subject of these values, each a set of its own.
    fn request(values: &[(&[u8], &str)]) -> String {
        let key = KeyPair::generate().expect("a key");
        let name: Vec<Vec<u8>> = values
            .iter()
            .map(|(kind, value)| element(SET, &sequence(&[element(OID, kind), element(UTF8, value.as_bytes())])))
            .collect();
        let info =
            sequence(&[element(INTEGER, &[0]), sequence(&name), key.subject_public_key_info(), element(0xa0, &[])]);
        let signature = key.sign(&info).expect("signed");
        let algorithm = algorithm(&key).expect("known");
        super::super::pem("CERTIFICATE REQUEST", &sequence(&[info, algorithm, bits(0, &signature)]))
    }

    /// Whoever was in more than two groups got no certificate, and of a subject there was nothing left but groups and name.
    #[test]
    fn a_subject_may_have_many_groups_and_stays_what_it_was() {
        let attribute = |kind: u8| [0x55, 4, kind];
        let (name, group, unit, country) = (attribute(3), attribute(10), attribute(11), attribute(6));
        // A user's uid, which nobody may ask for.
        let uid = [0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];
        let asked = request(&[
            (&name, "nobody"),
            (&group, "c"),
            (&group, "a"),
            (&group, "b\u{e9}"),
            (&unit, "unit"),
            (&country, "AT"),
            (&uid, "7"),
            (&name, "jane"),
        ]);
        let rsa = super::super::pem("PRIVATE KEY", super::super::rsa::generate().secret_pkcs8_der());
        for signer in [
            Signer::new(&rcgen::PKCS_ECDSA_P256_SHA256),
            Signer::new(&rcgen::PKCS_ECDSA_P384_SHA384),
            Signer::new(&rcgen::PKCS_ED25519),
            Signer::with(KeyPair::from_pem(&rsa).expect("a key")),
        ] {
            let der = signer.sign(&asked, CLIENT, 30).expect("signed");
            let trusted = Trusted::new(vec![signer.der.clone()]).expect("an authority");
            assert_eq!(trusted.verify(&der, &[], Usage::Client, UnixTime::now()), Ok(()));
            let (rest, read) = X509Certificate::from_der(&der).expect("a certificate");
            assert!(rest.is_empty() && read.validity().is_valid());
            let texts: Vec<&str> = read.subject().iter_attributes().filter_map(|a| a.as_str().ok()).collect();
            assert_eq!(texts, ["AT", "a", "c", "b\u{e9}", "unit", "jane"]);
            assert!(read.subject_alternative_name().expect("readable").is_none());
            assert_eq!(read.basic_constraints().expect("readable").map(|b| b.value.ca), Some(false));
        }
    }

    /// One extension that nobody here knows was enough to get no certificate.
    #[test]
    fn names_are_taken_over_and_other_extensions_are_not() {
        let mut params = CertificateParams::new(vec!["n.example".to_owned()]).expect("a name");
        params.subject_alt_names.push(rcgen::SanType::IpAddress([10, 0, 0, 1].into()));
        params.subject_alt_names.push(rcgen::SanType::URI("spiffe://n".try_into().expect("a URI")));
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let other = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 311, 20, 2], vec![UTF8, 1, b'x']);
        params.custom_extensions.push(other);
        let key = KeyPair::generate().expect("a key");
        let asked = params.serialize_request(&key).expect("a request").pem().expect("as text");
        let signer = Signer::new(&rcgen::PKCS_ECDSA_P256_SHA256);
        let der = signer.sign(&asked, &["signing", "decipher only", "server auth", "any"], 60).expect("signed");
        let (_, read) = X509Certificate::from_der(&der).expect("a certificate");
        let kinds: Vec<String> = read.extensions().iter().map(|e| e.oid.to_id_string()).collect();
        assert_eq!(kinds, ["2.5.29.15", "2.5.29.37", "2.5.29.19", "2.5.29.35", "2.5.29.17"]);
        assert!(!read.is_ca());
        let names = read.subject_alternative_name().expect("readable").expect("names");
        let expected =
            [GeneralName::DNSName("n.example"), GeneralName::IPAddress(&[10, 0, 0, 1]), GeneralName::URI("spiffe://n")];
        assert_eq!(names.value.general_names, expected);
        let usage = read.key_usage().expect("readable").expect("usages").value;
        assert!(usage.digital_signature() && usage.decipher_only() && !usage.key_encipherment());
        let purposes = read.extended_key_usage().expect("readable").expect("purposes").value;
        assert!(purposes.any && purposes.server_auth && !purposes.client_auth);
        assert_eq!(read.public_key().raw, key.subject_public_key_info());
        let (_, authority) = X509Certificate::from_der(&signer.der).expect("a certificate");
        assert_eq!(read.validity().not_after, authority.validity().not_after, "nothing outlives who vouches for it");
    }

    #[test]
    fn what_was_not_made_with_its_key_is_refused() {
        let signer = Signer::new(&rcgen::PKCS_ECDSA_P256_SHA256);
        let one = request(&[(&[0x55, 4, 3], "jane")]);
        let mut changed = x509_parser::pem::parse_x509_pem(one.as_bytes()).expect("PEM").1.contents;
        let name = changed.windows(4).position(|part| part == b"jane").expect("a name");
        changed[name + 1] = b'u';
        let why = |text: &str, usages: &[&str]| signer.sign(text, usages, 1).expect_err("refused").to_string();
        let changed = super::super::pem("CERTIFICATE REQUEST", &changed);
        assert_eq!(why(&changed, CLIENT), "unable to verify certificate request signature");
        assert_eq!(why("nothing", CLIENT), "unable to parse certificate request");
        assert_eq!(why(&one, &["any", "x", "y"]), "unrecognized usage values: [\"x\" \"y\"]");
    }

    #[test]
    fn years_from_2050_on_are_written_in_full() {
        let at = |seconds| time(OffsetDateTime::from_unix_timestamp(seconds).expect("a time"));
        assert_eq!(at(2_524_607_999), [&[UTC_TIME, 13], &b"491231235959Z"[..]].concat());
        assert_eq!(at(2_524_608_000), [&[LATER_TIME, 15], &b"20500101000000Z"[..]].concat());
    }
}
