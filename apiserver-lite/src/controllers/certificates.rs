//! `certificatesigningrequest-approving-controller`, `-signing-` and `-cleaner-controller`: certificates that users ask
//! for through the API.
//!
//! Signed are the signers of Kubernetes itself, with the cluster's authority, and only what such a certificate may say:
//! subject, names and usages are checked before, and the certificate says nothing else.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::time::Timestamp;
use serde_json::{Value, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

use super::feed::Change;
use super::ownership::done;
use super::pods::{condition, seconds};
use super::queue::Queue;
use super::runner::Controller;
use crate::auth::Attributes;
use crate::client::Client;
use crate::pki::Authority;
use crate::request::{RequestInfo, User};
use crate::status::Result;
use crate::store::ResourceId;
use crate::write::DeleteOptions;

const REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const LEGACY: &str = "kubernetes.io/legacy-unknown";
const YEAR: i64 = 365 * 86_400;
/// The shortest life that a request may ask for.
const SHORTEST: i64 = 600;
/// How long requests stay: those that are done, denied or failed, and those that nobody decides or signs.
const DONE_KEPT: i64 = 3600;
const PENDING_KEPT: i64 = 86_400;

/// What a request asks to have certified.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    common_name: String,
    organizations: Vec<String>,
    dns: usize,
    addresses: usize,
    /// Mail addresses, URIs and the like.
    others: usize,
}

impl Asked {
    fn parse(pem: &[u8]) -> Option<Self> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        request.verify_signature().ok()?;
        let subject = &request.certification_request_info.subject;
        let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or_default().to_owned();
        let mut asked = Asked {
            common_name: subject.iter_common_name().last().map(text).unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect(),
            ..Asked::default()
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(_) => asked.dns += 1,
                    GeneralName::IPAddress(_) => asked.addresses += 1,
                    _ => asked.others += 1,
                }
            }
        }
        Some(asked)
    }

    fn of_node(&self) -> bool {
        self.organizations == ["system:nodes"] && self.common_name.starts_with("system:node:")
    }

    /// Why a signer does not sign this.
    fn refusal(&self, signer: &str, usages: &[&str]) -> Option<&'static str> {
        let only = |allowed: &[&str]| usages.iter().all(|u| allowed.contains(u));
        let client = only(&["digital signature", "key encipherment", "client auth"]) && usages.contains(&"client auth");
        let no_names = self.dns + self.addresses + self.others == 0;
        match signer {
            KUBELET_CLIENT if !self.of_node() => Some("subject organization is not system:nodes"),
            KUBELET_CLIENT if !no_names => Some("DNS and IP subjectAltNames are not allowed"),
            KUBELET_CLIENT | CLIENT if !client => Some("usages did not match"),
            KUBELET_SERVING if !self.of_node() => Some("subject organization is not system:nodes"),
            KUBELET_SERVING if self.dns + self.addresses == 0 || self.others > 0 => {
                Some("at least one DNS or IP subjectAltName is required")
            }
            KUBELET_SERVING
                if !only(&["digital signature", "key encipherment", "server auth"])
                    || !usages.contains(&"server auth") =>
            {
                Some("usages did not match")
            }
            _ => None,
        }
    }
}

fn pem_of(value: &Value) -> Vec<u8> {
    STANDARD.decode(value["spec"]["request"].as_str().unwrap_or_default()).unwrap_or_default()
}

fn usages(value: &Value) -> Vec<&str> {
    value["spec"]["usages"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn is(value: &Value, kind: &str) -> bool {
    condition(value, kind).is_some_and(|c| c["status"] == "True")
}

/// Adds a condition unless there is one of its type.
fn add_condition(value: &mut Value, kind: &str, reason: &str, message: &str) {
    let now = Timestamp::now().to_seconds_text();
    let condition = json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now});
    match value["status"]["conditions"].as_array_mut() {
        Some(list) if list.iter().any(|c| c["type"] == kind) => {}
        Some(list) => list.push(condition),
        None => value["status"]["conditions"] = json!([condition]),
    }
}

/// A request is looked at whenever it changes.
fn queue_name(change: &Change<'_>, queue: &mut Queue<Box<str>>) {
    if !change.deleted() {
        queue.add(change.object.key.name.clone());
    }
}

/// Approves the client certificates of kubelets whose askers may have them.
pub struct Approver(Client);

impl Approver {
    pub fn new(client: Client) -> Self {
        Approver(client)
    }

    /// Whether who asked may have certificates of a kind.
    fn may(&self, value: &Value, subresource: &str) -> bool {
        let spec = &value["spec"];
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
        };
        let extra = spec["extra"].as_object().into_iter().flatten();
        let user = User {
            name: spec["username"].as_str().unwrap_or_default().into(),
            uid: spec["uid"].as_str().unwrap_or_default().into(),
            groups: texts(&spec["groups"]),
            extra: extra.map(|(key, list)| (key.to_string(), texts(list))).collect(),
        };
        let info = RequestInfo {
            is_resource: true,
            verb: "create".into(),
            group: "certificates.k8s.io".into(),
            version: "*".into(),
            resource: "certificatesigningrequests".into(),
            subresource: subresource.into(),
            ..RequestInfo::default()
        };
        self.0.server().authorizer.decide(&Attributes { user: &user, info: &info }).allowed
    }
}

impl Controller for Approver {
    const NAME: &'static str = "certificatesigningrequest-approving-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![REQUESTS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        queue_name(&change, queue);
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(value) = self.0.get(REQUESTS, "", name).map(|r| r.value()) else { return Ok(None) };
        if value["spec"]["signerName"] != KUBELET_CLIENT || is(&value, "Approved") || is(&value, "Denied") {
            return Ok(None);
        }
        let asked = Asked::parse(&pem_of(&value));
        let Some(asked) = asked.filter(|a| a.refusal(KUBELET_CLIENT, &usages(&value)).is_none()) else {
            return Ok(None);
        };
        // A node may renew its own; others need the right to ask for any node's.
        let own = value["spec"]["username"] == asked.common_name.as_str();
        let message = if own && self.may(&value, "selfnodeclient") {
            "Auto approving self kubelet client certificate after SubjectAccessReview."
        } else if self.may(&value, "nodeclient") {
            "Auto approving kubelet client certificate after SubjectAccessReview."
        } else {
            return Ok(None);
        };
        let written = self.0.update_part(REQUESTS, "approval", "", name, |value| {
            add_condition(value, "Approved", "AutoApproved", message);
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| None)
    }
}

/// Signs what is approved.
pub struct Signer {
    client: Client,
    authority: Arc<Authority>,
    /// What a certificate lives that asks for nothing, and the longest that one may ask for.
    life: time::Duration,
}

impl Signer {
    pub fn new(client: Client, authority: Arc<Authority>, life: Duration) -> Self {
        let life = time::Duration::seconds(i64::try_from(life.as_secs()).unwrap_or(YEAR));
        Signer { client, authority, life }
    }

    /// At least ten minutes for those who ask, and never more than there is to give.
    fn life(&self, asked: Option<i64>) -> time::Duration {
        asked.map_or(self.life, |seconds| time::Duration::seconds(seconds.max(SHORTEST)).min(self.life))
    }
}

impl Controller for Signer {
    const NAME: &'static str = "certificatesigningrequest-signing-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![REQUESTS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        queue_name(&change, queue);
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(value) = self.client.get(REQUESTS, "", name).map(|r| r.value()) else { return Ok(None) };
        let signer = value["spec"]["signerName"].as_str().unwrap_or_default();
        let waits = is(&value, "Approved") && !is(&value, "Denied") && !is(&value, "Failed");
        let done_already = value["status"]["certificate"].as_str().is_some_and(|c| !c.is_empty());
        if !matches!(signer, KUBELET_CLIENT | CLIENT | KUBELET_SERVING | LEGACY) || !waits || done_already {
            return Ok(None);
        }
        let pem = pem_of(&value);
        let usages = usages(&value);
        let life = self.life(value["spec"]["expirationSeconds"].as_i64());
        let signed = match Asked::parse(&pem) {
            None => Err("unable to parse the request".to_owned()),
            Some(asked) => match asked.refusal(signer, &usages) {
                Some(why) => Err(why.to_owned()),
                None => {
                    let signed = self.authority.sign(&String::from_utf8_lossy(&pem), &usages, life);
                    signed.map_err(|e| e.to_string())
                }
            },
        };
        let written = self.client.update_status(REQUESTS, "", name, |value| {
            match &signed {
                Ok(certificate) => value["status"]["certificate"] = STANDARD.encode(certificate).into(),
                Err(why) => add_condition(value, "Failed", "SignerValidationFailure", why),
            }
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| None)
    }
}

/// Deletes requests that nobody needs any more.
pub struct Cleaner(Client);

impl Cleaner {
    pub fn new(client: Client) -> Self {
        Cleaner(client)
    }
}

impl Controller for Cleaner {
    const NAME: &'static str = "certificatesigningrequest-cleaner-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        vec![REQUESTS.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        queue_name(&change, queue);
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(request) = self.0.get(REQUESTS, "", name) else { return Ok(None) };
        let Some(goes_at) = goes_at(&request.value()) else { return Ok(None) };
        let left = goes_at - Timestamp::now().seconds;
        if left > 0 {
            return Ok(Some(Duration::from_secs(left.unsigned_abs())));
        }
        self.0.delete_object(REQUESTS, &request, DeleteOptions::default()).await?;
        Ok(None)
    }
}

/// When a request goes, in seconds since 1970, by the first of what its conditions say; None for one that stays.
fn goes_at(request: &Value) -> Option<i64> {
    let after = |time: &Value, kept: i64| Some(seconds(time)).filter(|at| *at != 0).map(|at| at + kept);
    let conditions = request["status"]["conditions"].as_array().filter(|conditions| !conditions.is_empty());
    let Some(conditions) = conditions else {
        return after(&request["metadata"]["creationTimestamp"], PENDING_KEPT);
    };
    let issued = request["status"]["certificate"].as_str().filter(|certificate| !certificate.is_empty());
    let ends = conditions.iter().flat_map(|condition| {
        let decided = &condition["lastUpdateTime"];
        match condition["type"].as_str() {
            Some("Approved") => match issued {
                Some(certificate) => [after(decided, DONE_KEPT), good_until(certificate)],
                None => [after(decided, PENDING_KEPT), None],
            },
            Some("Denied" | "Failed") => [after(decided, DONE_KEPT), None],
            _ => [None, None],
        }
    });
    ends.flatten().min()
}

/// Until when a certificate is good, in seconds since 1970; None for what is none.
fn good_until(certificate: &str) -> Option<i64> {
    let text = STANDARD.decode(certificate).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text).ok()?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, organization: &str, dns: &[&str]) -> String {
        let names: Vec<String> = dns.iter().map(|n| (*n).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).expect("names are fine");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.serialize_request(&key).expect("a request").pem().expect("as text")
    }

    const CLIENT_USAGES: &[&str] = &["digital signature", "client auth"];

    #[test]
    fn a_node_gets_a_client_certificate_for_itself_only_as_node() {
        let node = Asked::parse(request("system:node:n", "system:nodes", &[]).as_bytes()).expect("readable");
        assert_eq!(node.refusal(KUBELET_CLIENT, CLIENT_USAGES), None);
        assert!(node.refusal(KUBELET_CLIENT, &["server auth"]).is_some());
        let admin = Asked::parse(request("admin", "system:masters", &[]).as_bytes()).expect("readable");
        assert!(admin.refusal(KUBELET_CLIENT, CLIENT_USAGES).is_some());
        let named = Asked::parse(request("system:node:n", "system:nodes", &["n"]).as_bytes()).expect("readable");
        assert!(named.refusal(KUBELET_CLIENT, CLIENT_USAGES).is_some());
        assert_eq!(named.refusal(KUBELET_SERVING, &["digital signature", "server auth"]), None);
        assert!(node.refusal(KUBELET_SERVING, &["digital signature", "server auth"]).is_some());
    }

    #[test]
    fn nonsense_is_no_request() {
        assert_eq!(Asked::parse(b""), None);
        assert_eq!(
            Asked::parse(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"),
            None
        );
    }

    /// What was approved and waited for its signature went after an hour, and a certificate that was good no more stayed as
    /// long as any other.
    #[test]
    fn requests_stay_as_long_as_somebody_may_still_need_them() {
        let goes_at = |conditions: &[(&str, &str)], certificate: &str| {
            let condition = |(kind, at): &(&str, &str)| json!({"type": kind, "status": "True", "lastUpdateTime": at});
            let conditions: Vec<Value> = conditions.iter().map(condition).collect();
            goes_at(&json!({"metadata": {"creationTimestamp": "1970-01-01T00:01:40Z"},
                "status": {"conditions": conditions, "certificate": STANDARD.encode(certificate)}}))
        };
        let at = "1970-01-01T00:03:20Z";
        assert_eq!(goes_at(&[], ""), Some(100 + PENDING_KEPT));
        assert_eq!(goes_at(&[("Approved", at)], ""), Some(200 + PENDING_KEPT));
        assert_eq!(goes_at(&[("Denied", at)], ""), Some(200 + DONE_KEPT));
        let failed = [("Approved", at), ("Failed", "1970-01-01T00:05:00Z")];
        assert_eq!(goes_at(&failed, ""), Some(300 + DONE_KEPT));
        assert_eq!(goes_at(&[("Approved", at)], "of another kind"), Some(200 + DONE_KEPT));
        assert_eq!(goes_at(&[("Other", at)], ""), None);
        let certificate = |year| {
            let mut params = rcgen::CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("a certificate").pem()
        };
        let late = "2000-12-31T23:59:00Z";
        assert_eq!(goes_at(&[("Approved", late)], &certificate(2001)), Some(978_307_200));
        assert_eq!(goes_at(&[("Approved", late)], &certificate(2002)), Some(978_307_140 + DONE_KEPT));
    }
}
