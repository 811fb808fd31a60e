//! CertificateApproval, CertificateSigning, CertificateSubjectRestriction and ClusterTrustBundleAttest: who may speak
//! for a signer, and what no signer's request may ask for. Follows `plugin/pkg/admission/certificates`.

use base64::Engine as _;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use super::{Call, Operation};
use crate::status::{Result, quote};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
/// Signer of client certificates that the API server takes.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Whether the user may use a verb on a signer, by its name or for all of its domain.
fn may_for_signer(call: &Call<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    call.may(verb, GROUP, "signers", "", signer) || call.may(verb, GROUP, "signers", "", &format!("{domain}/*"))
}

pub fn approval(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.concerns(GROUP, REQUESTS) || call.subresource != "approval" || call.operation != Operation::Update {
        return Ok(());
    }
    let signer = call.old.unwrap_or(new)["spec"]["signerName"].as_str().unwrap_or_default();
    if may_for_signer(call, "approve", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {}", quote(signer));
    Err(call.refuse(Some(new), why))
}

pub fn signing(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.concerns(GROUP, REQUESTS) || call.subresource != "status" || call.operation != Operation::Update {
        return Ok(());
    }
    let old = call.old.unwrap_or(&Value::Null);
    let same = |key: &str| new["status"][key] == old["status"][key];
    if same("certificate") && same("conditions") {
        return Ok(());
    }
    let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
    if may_for_signer(call, "sign", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to sign requests with signerName {}", quote(signer));
    Err(call.refuse(Some(new), why))
}

/// Nobody becomes a member of `system:masters` by asking for a certificate.
pub fn subject(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.is(GROUP, REQUESTS) || call.operation != Operation::Create || new["spec"]["signerName"] != CLIENT_SIGNER {
        return Ok(());
    }
    let groups = match organizations(&new["spec"]["request"]) {
        Ok(groups) => groups,
        Err(why) => return Err(call.refuse(Some(new), format!("failed to parse CSR: {why}"))),
    };
    if groups.iter().any(|g| g == "system:masters") {
        let why = format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
        return Err(call.refuse(Some(new), why));
    }
    Ok(())
}

/// Organizations in the subject of a request: base64 of PEM of PKCS #10.
fn organizations(request: &Value) -> Result<Vec<String>, &'static str> {
    subject_of(request, |subject| subject.iter_organization().filter_map(|o| o.as_str().ok()).map(Into::into).collect())
}

/// Common name in the subject of a request.
pub(super) fn common_name(request: &Value) -> Result<String, &'static str> {
    subject_of(request, |subject| {
        subject.iter_common_name().last().and_then(|n| n.as_str().ok()).unwrap_or_default().to_owned()
    })
}

fn subject_of<T>(request: &Value, read: impl FnOnce(&X509Name<'_>) -> T) -> Result<T, &'static str> {
    const NOT_PEM: &str = "PEM block type must be CERTIFICATE REQUEST";
    let packed = request.as_str().unwrap_or_default();
    let pem = base64::engine::general_purpose::STANDARD.decode(packed).map_err(|_| NOT_PEM)?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).map_err(|_| NOT_PEM)?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(NOT_PEM);
    }
    let (_, request) =
        X509CertificationRequest::from_der(&pem.contents).map_err(|_| "malformed certificate request")?;
    Ok(read(&request.certification_request_info.subject))
}

/// A trust bundle that is linked to a signer is its signer's to write.
pub fn attest(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.is(GROUP, "clustertrustbundles") {
        return Ok(());
    }
    let signer = new["spec"]["signerName"].as_str().unwrap_or_default();
    if signer.is_empty() || call.old.is_some_and(|old| old["spec"] == new["spec"]) {
        return Ok(());
    }
    if may_for_signer(call, "attest", signer) {
        return Ok(());
    }
    let why = format!("user not permitted to attest for signerName {}", quote(signer));
    Err(call.refuse(Some(new), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(organization: &str) -> Value {
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = params.serialize_request(&key).expect("a request").pem().expect("its PEM");
        base64::engine::general_purpose::STANDARD.encode(pem).into()
    }

    #[test]
    fn the_groups_of_a_certificate_request_are_read() {
        assert_eq!(organizations(&request("system:masters")).expect("good"), ["system:masters"]);
        assert!(organizations(&"bm9uZQ==".into()).is_err());
        assert!(organizations(&Value::Null).is_err());
    }
}
