//! Blocks of PEM as Go's decoder finds them: what is between blocks, and what is no sound block, is passed over.

use base64::Engine as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub struct Block<'a> {
    pub label: &'a str,
    pub has_headers: bool,
    pub bytes: Vec<u8>,
}

/// Every block of a text, in order.
pub fn blocks(text: &str) -> Vec<Block<'_>> {
    const BEGIN: &str = "-----BEGIN ";
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let starts_line = at == 0 || rest.as_bytes()[at - 1] == b'\n';
        let after = &rest[at + BEGIN.len()..];
        match starts_line.then(|| block(after)).flatten() {
            Some((block, following)) => {
                found.push(block);
                rest = following;
            }
            None => rest = after,
        }
    }
    found
}

/// The block whose label a text begins with, and what follows it.
fn block(text: &str) -> Option<(Block<'_>, &str)> {
    let (line, body) = text.split_once('\n')?;
    let label = line.trim_end().strip_suffix("-----")?;
    let end = format!("-----END {label}-----");
    let at = if body.starts_with(&end) { 0 } else { body.find(&format!("\n{end}"))? + 1 };
    let (mut inside, following) = (&body[..at], &body[at + end.len()..]);
    let mut has_headers = false;
    while let Some((line, after)) = inside.split_once('\n').filter(|(line, _)| line.contains(':')) {
        (inside, has_headers) = (after, !line.is_empty());
    }
    let packed: String = inside.split_ascii_whitespace().collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed).ok()?;
    Some((Block { label, has_headers, bytes }, following))
}

/// The certificate that a block holds.
pub fn certificate(bytes: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(bytes).ok().filter(|(rest, _)| rest.is_empty()).map(|(_, certificate)| certificate)
}

/// Why a text is no chain of certificates and nothing else.
///
/// # Errors
/// In the words of upstream's check of issued certificates.
pub fn only_certificates(text: &str) -> Result<(), String> {
    let blocks = blocks(text);
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            let found = crate::status::quote(block.label);
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {found}"));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".into());
        }
        let mut rest = &block.bytes[..];
        if rest.is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".into());
        }
        while !rest.is_empty() {
            rest = X509Certificate::from_der(rest).map_err(|_| "x509: malformed certificate".to_owned())?.0;
        }
    }
    if blocks.is_empty() { Err("must contain at least one CERTIFICATE PEM block".into()) } else { Ok(()) }
}

/// Why a text cannot be the authorities by which a server is checked.
///
/// # Errors
/// In the words of upstream's loader.
pub fn authorities(text: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(text);
    let blocks = blocks(&text);
    let mut certificates = blocks.iter().filter(|b| b.label == "CERTIFICATE" && !b.has_headers).peekable();
    if certificates.peek().is_none() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".into());
    }
    if certificates.any(|block| certificate(&block.bytes).is_none()) {
        return Err("unable to load root certificates: failed to parse certificate".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&key).unwrap().pem()
    }

    #[test]
    fn a_chain_is_certificates_and_nothing_else() {
        let good = pem();
        assert_eq!(only_certificates(&format!("words\n{good}{good}")), Ok(()));
        assert_eq!(only_certificates("words").unwrap_err(), "must contain at least one CERTIFICATE PEM block");
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let why = only_certificates(&format!("{good}{key}")).unwrap_err();
        assert_eq!(why, "only CERTIFICATE PEM blocks are allowed, found \"PRIVATE KEY\"");
        let headed = good.replacen("-----\n", "-----\na: b\n\n", 1);
        assert_eq!(only_certificates(&headed).unwrap_err(), "no PEM block headers are permitted");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(only_certificates(broken).unwrap_err(), "x509: malformed certificate");
        let empty = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n";
        assert_eq!(only_certificates(empty).unwrap_err(), "found CERTIFICATE PEM block containing 0 certificates");
    }

    #[test]
    fn a_bundle_without_certificates_is_no_authority() {
        let why = "unable to load root certificates: unable to parse bytes as PEM block";
        assert_eq!(authorities(b"\n").unwrap_err(), why);
        assert_eq!(authorities(pem().as_bytes()), Ok(()));
    }
}
