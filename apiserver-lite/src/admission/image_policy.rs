//! ImagePolicyWebhook: somebody else decides about the images of pods, asked with an ImageReview of
//! `imagepolicy.k8s.io/v1alpha1`.
//!
//! The plugin's configuration has one member, `imagePolicy`: the kubeconfig to reach who decides, how long answers are
//! kept, how long to wait before asking again, and whether pods come in while nobody answers. Asked once a pod is valid,
//! in its place among the plugins. Follows `plugin/pkg/admission/imagepolicy`.
//!
//! Limits: a pod that comes in unasked is told in the audit log and not by an annotation of its own.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Call, Operation, note};
use crate::auth::Reviewer;
use crate::outgoing::Client;
use crate::status::Result;
use crate::tree::{list, text};

/// Annotations of pods that are shown to who decides have this in their key.
const SHOWN: &str = ".image-policy.k8s.io/";
/// What keys in the audit log begin with.
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;

/// Who decides, and what becomes of the answers.
pub struct ImagePolicy {
    reviewer: Reviewer,
    allowed_ttl: Duration,
    denied_ttl: Duration,
    /// While nobody answers.
    default_allow: bool,
}

/// Without what is secret.
impl std::fmt::Debug for ImagePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImagePolicy").field("default_allow", &self.default_allow).finish_non_exhaustive()
    }
}

impl ImagePolicy {
    /// Reads the plugin's configuration; the kubeconfig that it names is looked for from a folder.
    ///
    /// # Errors
    /// What is wrong with it, or with the kubeconfig that it names.
    pub fn read(configuration: &Value, folder: &Path) -> Result<Self, String> {
        let said = &configuration["imagePolicy"];
        let (pause, allowed_ttl, denied_ttl) = times(said)?;
        let file = folder.join(text(said, "kubeConfigFile"));
        let client = Client::from_kubeconfig(&file).map_err(|e| e.to_string())?;
        let reviewer = Reviewer::new(client, "imagepolicy.k8s.io", "v1alpha1", "ImageReview").after(pause);
        Ok(ImagePolicy { reviewer, allowed_ttl, denied_ttl, default_allow: said["defaultAllow"] == true })
    }

    /// Asks about a pod's images.
    ///
    /// # Errors
    /// 403 for an image that is not welcome, and where nobody answers unless that is no matter.
    pub async fn review(&self, call: &Call<'_>, new: &Value) -> Result<()> {
        let written = matches!(call.operation, Operation::Create | Operation::Update);
        if !written || !call.concerns("", "pods") || !matches!(call.subresource, "" | "ephemeralcontainers") {
            return Ok(());
        }
        let keep = |status: &Value| if status["allowed"] == true { self.allowed_ttl } else { self.denied_ttl };
        let status = match self.reviewer.ask(&question(call.namespace, call.subresource, new), keep).await {
            Ok(status) => status,
            Err(error) if self.default_allow => {
                tracing::warn!(%error, "nobody decides about the images of a pod, which comes in all the same");
                note(&format!("{AUDIT}failed-open"), "true");
                return Ok(());
            }
            Err(error) => return Err(call.refuse(Some(new), error)),
        };
        for (key, value) in status["auditAnnotations"].as_object().into_iter().flatten() {
            note(&format!("{AUDIT}{key}"), value.as_str().unwrap_or_default());
        }
        match (status["allowed"] == true, text(&status, "reason")) {
            (true, _) => Ok(()),
            (false, "") => Err(call.refuse(Some(new), "one or more images rejected by webhook backend")),
            (false, reason) => {
                let why = format!("image policy webhook backend denied one or more images: {reason}");
                Err(call.refuse(Some(new), why))
            }
        }
    }
}

/// The `spec` of an ImageReview.
fn question(namespace: &str, subresource: &str, pod: &Value) -> Value {
    let lists: &[&str] =
        if subresource.is_empty() { &["containers", "initContainers"] } else { &["ephemeralContainers"] };
    let containers = lists.iter().flat_map(|name| list(&pod["spec"], name));
    let images: Vec<Value> = containers.map(|container| json!({"image": text(container, "image")})).collect();
    let annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    let shown: Map<String, Value> = annotations
        .filter(|(key, _)| key.contains(SHOWN))
        .map(|(key, value)| (key.to_string(), value.clone()))
        .collect();
    let mut spec = json!({"containers": images, "namespace": namespace});
    if !shown.is_empty() {
        spec["annotations"] = shown.into();
    }
    spec
}

/// The pause before somebody is asked again, and how long they are taken at their word.
fn times(said: &Value) -> Result<(Duration, Duration, Duration), String> {
    let time = |key: &str, scale: i64, least: i64, most: i64, usual: i64| -> Result<Duration, String> {
        let number = match &said[key] {
            Value::Null => 0,
            number => number.as_i64().ok_or_else(|| format!("{key} must be a whole number"))?,
        };
        let nanos = match number {
            -1 => 0,
            0 => usual,
            number => number.saturating_mul(scale),
        };
        if ![-1, 0].contains(&number) && (nanos <= least || nanos > most) {
            let shown = proto::duration::format;
            return Err(format!("valid value is between {} and {}, got {}", shown(least), shown(most), shown(nanos)));
        }
        Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()))
    };
    Ok((
        time("retryBackoff", SECOND / 1000, 1, 5 * MINUTE, SECOND / 2)?,
        time("allowTTL", SECOND, SECOND, 30 * MINUTE, 5 * MINUTE)?,
        time("denyTTL", SECOND, SECOND, 30 * MINUTE, 30 * SECOND)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_the_annotations_about_them_are_shown() {
        let pod = json!({
            "metadata": {"annotations": {"a.image-policy.k8s.io/b": "c", "other": "d"}},
            "spec": {"containers": [{"image": "x"}], "initContainers": [{"image": "y"}],
                "ephemeralContainers": [{"image": "z"}]},
        });
        let shown = json!({"containers": [{"image": "x"}, {"image": "y"}], "namespace": "n",
            "annotations": {"a.image-policy.k8s.io/b": "c"}});
        assert_eq!(question("n", "", &pod), shown);
        assert_eq!(question("n", "ephemeralcontainers", &pod)["containers"], json!([{"image": "z"}]));
    }

    #[test]
    fn times_are_kept_in_bounds_and_may_be_switched_off() {
        let millis = |said: Value| times(&said).map(|(a, b, c)| [a, b, c].map(|d| d.as_millis()));
        assert_eq!(millis(json!({})), Ok([500, 300_000, 30_000]));
        assert_eq!(millis(json!({"retryBackoff": 20, "allowTTL": -1, "denyTTL": 5})), Ok([20, 0, 5000]));
        let told = millis(json!({"allowTTL": 3600})).expect_err("too long");
        assert_eq!(told, "valid value is between 1s and 30m0s, got 1h0m0s");
        assert!(millis(json!({"denyTTL": "5s"})).is_err() && millis(json!({"denyTTL": -2})).is_err());
        for (file, path) in [("/nowhere/at/all", "/nowhere/at/all: "), ("all", "/nowhere/else/all: ")] {
            let configuration = json!({"imagePolicy": {"kubeConfigFile": file}});
            let told = ImagePolicy::read(&configuration, Path::new("/nowhere/else")).expect_err("no file");
            assert!(told.starts_with(path), "{told}");
        }
    }
}
