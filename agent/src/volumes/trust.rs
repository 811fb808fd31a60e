//! Trust anchors of the cluster, for projected volumes: of one bundle, or of all of a signer that a selector matches.
//!
//! Each anchor comes once, whatever bundles it is in. Their order says nothing, and so that nobody builds on it, it differs
//! from one run of the agent to the next; within a run it stays, or files would change for no reason.
//!
//! Followed: kubelet `clustertrustbundle`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::api::certificates::v1beta1::ClusterTrustBundle;
use proto::api::core::v1::ClusterTrustBundleProjection;
use proto::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::objects::Objects;

/// The order of anchors in this run.
static ORDER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
/// PEM's.
const LINE: usize = 64;

/// The anchors as PEM; nothing where they are optional and missing.
///
/// # Errors
/// In the kubelet's words.
pub async fn anchors(objects: &dyn Objects, wanted: &ClusterTrustBundleProjection) -> Result<Vec<u8>, String> {
    let bundles = objects.trust_bundles().await.map_err(|e| e.to_string())?;
    let optional = wanted.optional == Some(true);
    if let Some(name) = &wanted.name {
        return match bundles.get(name) {
            Some(bundle) => Ok(pem([&**bundle])),
            None if optional => Ok(Vec::new()),
            None => Err(format!(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
            )),
        };
    }
    let Some(signer) = &wanted.signer_name else {
        return Err("ClusterTrustBundle projection requires either name or signerName to be set".into());
    };
    let of_signer = |bundle: &&ClusterTrustBundle| bundle.spec.as_ref().is_some_and(|spec| spec.signer_name == *signer);
    let mut found = Vec::new();
    for bundle in bundles.values().map(|bundle| &**bundle).filter(of_signer) {
        let empty = BTreeMap::new();
        let labels = bundle.metadata.as_ref().map_or(&empty, |meta| &meta.labels);
        // Without a selector nothing is selected; an empty one selects everything.
        let Some(selector) = &wanted.label_selector else { break };
        if selects(selector, labels).map_err(|why| format!("while parsing label selector: {why}"))? {
            found.push(bundle);
        }
    }
    match found.is_empty() {
        true if optional => Ok(Vec::new()),
        true => Err("combination of signerName and labelSelector matched zero ClusterTrustBundles".into()),
        false => Ok(pem(found)),
    }
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Result<bool, String> {
    let mut all = selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    for requirement in &selector.match_expressions {
        all &= meets(requirement, labels)?;
    }
    Ok(all)
}

fn meets(requirement: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> Result<bool, String> {
    let value = labels.get(&requirement.key);
    let listed = value.is_some_and(|value| requirement.values.contains(value));
    Ok(match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        other => return Err(format!("{other:?} is not a valid label selector operator")),
    })
}

/// Each certificate of the bundles once.
fn pem<'a>(bundles: impl IntoIterator<Item = &'a ClusterTrustBundle>) -> Vec<u8> {
    let texts = bundles.into_iter().filter_map(|bundle| bundle.spec.as_ref().map(|spec| spec.trust_bundle.as_bytes()));
    let certificates = texts.flat_map(|text| CertificateDer::pem_slice_iter(text).filter_map(Result::ok));
    let each: BTreeSet<Vec<u8>> = certificates.map(|certificate| certificate.to_vec()).collect();
    let mut each: Vec<_> = each.into_iter().collect();
    each.sort_by_cached_key(|certificate| ORDER.hash_one(certificate));
    each.iter().fold(Vec::new(), |mut out, certificate| {
        out.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
        for line in STANDARD.encode(certificate).as_bytes().chunks(LINE) {
            out.extend_from_slice(line);
            out.push(b'\n');
        }
        out.extend_from_slice(b"-----END CERTIFICATE-----\n");
        out
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::objects::{Answer, NoObjects, ObjectError, TrustBundles};
    use proto::api::certificates::v1beta1::ClusterTrustBundleSpec;
    use proto::api::core::v1::{ConfigMap, Pod, Secret, Service};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    struct Bundles(TrustBundles);

    impl Objects for Bundles {
        fn config_map<'a>(
            &'a self,
            namespace: &'a str,
            name: &'a str,
        ) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
            NoObjects.config_map(namespace, name)
        }
        fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
            NoObjects.secret(namespace, name)
        }
        fn services<'a>(&'a self, namespace: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
            NoObjects.services(namespace)
        }
        fn trust_bundles(&self) -> Answer<'_, Result<TrustBundles, ObjectError>> {
            Box::pin(std::future::ready(Ok(self.0.clone())))
        }
        fn register(&self, _: &Pod) {}
        fn unregister(&self, _: &str) {}
    }

    fn certificate(content: &str) -> String {
        let lines = STANDARD.encode(content.repeat(20));
        format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
    }

    fn bundle(name: &str, signer: &str, stage: &str, contents: &[&str]) -> (String, Arc<ClusterTrustBundle>) {
        let metadata = ObjectMeta {
            name: name.into(),
            labels: [("stage".to_owned(), stage.to_owned())].into(),
            ..Default::default()
        };
        let trust_bundle = contents.iter().map(|c| format!("# {c}\n{}", certificate(c))).collect();
        let spec = ClusterTrustBundleSpec { signer_name: signer.into(), trust_bundle };
        (name.to_owned(), Arc::new(ClusterTrustBundle { metadata: Some(metadata), spec: Some(spec) }))
    }

    /// The certificates of a file, in the order of their contents.
    fn contents(pem: &[u8]) -> Vec<String> {
        let all = CertificateDer::pem_slice_iter(pem).map(|c| String::from_utf8(c.unwrap().to_vec()).unwrap());
        let mut all: Vec<String> = all.map(|c| c[..1].to_owned()).collect();
        all.sort();
        all
    }

    async fn told(wanted: ClusterTrustBundleProjection) -> Result<Vec<String>, String> {
        let objects = Bundles(TrustBundles::from([
            bundle("one", "", "live", &["a", "b", "a"]),
            bundle("s:live", "s", "live", &["c", "d"]),
            bundle("s:next", "s", "next", &["d", "e"]),
            bundle("t:live", "t", "live", &["f"]),
        ]));
        let found = anchors(&objects, &wanted).await?;
        assert!(found.split(|b| *b == b'\n').all(|line| line.len() <= LINE));
        assert_eq!(anchors(&objects, &wanted).await.as_ref(), Ok(&found), "the order stays");
        Ok(contents(&found))
    }

    fn named(name: &str) -> ClusterTrustBundleProjection {
        ClusterTrustBundleProjection { name: Some(name.into()), ..Default::default() }
    }

    fn signed(selector: Option<LabelSelector>) -> ClusterTrustBundleProjection {
        ClusterTrustBundleProjection { signer_name: Some("s".into()), label_selector: selector, ..Default::default() }
    }

    fn staged(operator: &str, values: &[&str]) -> Option<LabelSelector> {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        let requirement = LabelSelectorRequirement { key: "stage".into(), operator: operator.into(), values };
        Some(LabelSelector { match_expressions: vec![requirement], ..Default::default() })
    }

    #[tokio::test]
    async fn a_bundle_is_had_by_its_name_and_each_anchor_once() {
        assert_eq!(told(named("one")).await.unwrap(), ["a", "b"]);
        let missing = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"two\" not found";
        assert_eq!(told(named("two")).await.unwrap_err(), missing);
        let optional = ClusterTrustBundleProjection { optional: Some(true), ..named("two") };
        assert!(told(optional).await.unwrap().is_empty());
        let neither = told(ClusterTrustBundleProjection::default()).await.unwrap_err();
        assert_eq!(neither, "ClusterTrustBundle projection requires either name or signerName to be set");
    }

    #[tokio::test]
    async fn bundles_of_a_signer_are_joined_as_the_selector_says() {
        let everything = Some(LabelSelector::default());
        let live = [("stage".to_owned(), "live".to_owned())].into();
        let live = Some(LabelSelector { match_labels: live, ..Default::default() });
        for (selector, wanted) in [
            (everything, &["c", "d", "e"][..]),
            (live, &["c", "d"]),
            (staged("In", &["next", "old"]), &["d", "e"]),
            (staged("NotIn", &["live"]), &["d", "e"]),
            (staged("Exists", &[]), &["c", "d", "e"]),
        ] {
            assert_eq!(told(signed(selector.clone())).await.unwrap(), wanted, "{selector:?}");
        }
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        for selector in [None, staged("DoesNotExist", &[])] {
            assert_eq!(told(signed(selector.clone())).await.unwrap_err(), none);
            let optional = ClusterTrustBundleProjection { optional: Some(true), ..signed(selector) };
            assert!(told(optional).await.unwrap().is_empty());
        }
        assert!(told(signed(staged("Near", &[]))).await.unwrap_err().starts_with("while parsing label selector: "));
    }

    #[tokio::test]
    async fn a_node_without_bundles_says_so() {
        let told = anchors(&NoObjects, &named("one")).await.unwrap_err();
        assert_eq!(told, "ClusterTrustBundle projection is not supported in static kubelet mode");
    }
}
