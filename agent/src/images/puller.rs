//! Makes sure that an image is there before its container is created.
//!
//! Pull policy, events, texts and back-off are the kubelet's. Pulls run one at a time unless configured otherwise;
//! dropping the future gives up the pull. An image that is there is pulled all the same where the pod has to show that
//! it may have it (see [`super::records`]).
//!
//! Followed: `pkg/kubelet/images/image_manager.go`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proto::api::core::v1::{Pod, Secret};
use proto::cri;
use tokio::sync::Semaphore;

use crate::carried::Carried;
use crate::clock::steady_nanos;
use crate::cri::CriClient;
use crate::events::{EventType, Recorder};
use crate::metrics;
use crate::pod::backoff::{Backoff, INITIAL, MAX};
use crate::pod::spec::PodExt;
use crate::status::StartError;
use crate::status::manager::StatusManager;
use crate::status::start_time::pulling;

use super::credentials::{self, Credential};
use super::node_credentials::NodeCredentials;
use super::providers::Providers;
use super::records::Records;
use super::reference;
use crate::sockets::Bucket;

type Key = (String, String);

/// An image that a container runs, or that is a volume.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub pod: &'a Pod,
    /// `None` for a volume: events are the pod's then.
    pub container: Option<&'a str>,
    /// As the spec writes it.
    pub image: &'a str,
    /// Empty for `IfNotPresent`.
    pub policy: &'a str,
    /// Told that a pull may be given up.
    pub carried: &'a Carried,
    /// Told that what is said of the pod has not to wait for the container.
    pub status: &'a StatusManager,
}

impl Wanted<'_> {
    fn tell(&self, recorder: &Recorder, kind: EventType, reason: &str, message: String) {
        match self.container {
            Some(name) => recorder.container(self.pod, name, kind, reason, message),
            None => recorder.pod(self.pod, kind, reason, message),
        }
    }
}

/// How images are pulled on this node.
pub struct PullDeps {
    /// Pulls at once; one for `serializeImagePulls`.
    pub parallel: usize,
    /// Pulls a second and at once (`registryPullQPS`, `registryBurst`); zero for no limit.
    pub rate: (u32, u32),
    /// `None` with the gate `KubeletEnsureSecretPulledImages` off.
    pub records: Option<Arc<Records>>,
    pub node_credentials: NodeCredentials,
    pub providers: Providers,
}

/// Shared by all pods.
pub struct Puller {
    cri: CriClient,
    recorder: Recorder,
    slots: Semaphore,
    rate: Option<Bucket>,
    records: Option<Arc<Records>>,
    node_credentials: NodeCredentials,
    providers: Providers,
    state: Mutex<State>,
}

struct State {
    backoff: Backoff<Key>,
    errors: HashMap<Key, String>,
}

fn refusal(reason: &str, message: String) -> StartError {
    StartError { reason: reason.to_owned(), message }
}

/// The label of `kubelet_image_pull_duration_seconds`.
fn size_class(bytes: u64) -> &'static str {
    const MIB: u64 = 1 << 20;
    match bytes / MIB {
        0..10 => "0-10MB",
        10..100 => "10MB-100MB",
        100..500 => "100MB-500MB",
        500..1024 => "500MB-1GB",
        1024..5120 => "1GB-5GB",
        5120..10240 => "5GB-10GB",
        10240..20480 => "10GB-20GB",
        20480..30720 => "20GB-30GB",
        30720..40960 => "30GB-40GB",
        40960..61440 => "40GB-60GB",
        61440..102_400 => "60GB-100GB",
        _ => "GT100GB",
    }
}

impl Puller {
    pub fn new(cri: CriClient, recorder: Recorder, deps: PullDeps) -> Self {
        let state = State { backoff: Backoff::new(INITIAL, MAX), errors: HashMap::new() };
        let slots = Semaphore::new(deps.parallel.clamp(1, Semaphore::MAX_PERMITS));
        let (qps, burst) = deps.rate;
        let rate = (qps > 0).then(|| Bucket::new(Duration::from_secs(1) / qps, burst.max(1)));
        let PullDeps { records, node_credentials, providers, .. } = deps;
        Self { cri, recorder, slots, rate, records, node_credentials, providers, state: Mutex::new(state) }
    }

    pub fn records(&self) -> Option<Arc<Records>> {
        self.records.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image as the runtime has it.
    ///
    /// # Errors
    /// The waiting reason and message of the container.
    pub async fn ensure(
        &self,
        wanted: Wanted<'_>,
        sandbox: &cri::PodSandboxConfig,
        secrets: &[Arc<Secret>],
    ) -> Result<cri::Image, StartError> {
        let event = |kind, reason: &str, message: String| wanted.tell(&self.recorder, kind, reason, message);
        let written = wanted.image;
        let image = reference::with_default_tag(written).map_err(|why| {
            let message = format!("Failed to apply default image tag {written:?}: {why}");
            event(EventType::Warning, "InspectFailed", message.clone());
            refusal("InvalidImageName", message)
        })?;
        let spec = cri::ImageSpec {
            image: image.clone(),
            annotations: wanted.pod.meta().annotations.clone(),
            runtime_handler: String::new(),
            ..Default::default()
        };
        let (found, is_open, credentials) = match wanted.policy {
            // Nobody asks for what is pulled in any case.
            "Always" => (None, false, self.credentials(&image, wanted.pod, secrets).await),
            _ => {
                let present = self.cri.image_status(spec.clone()).await.map_err(|e| {
                    // The kubelet prints a name that it does not have yet.
                    let message = format!("Failed to inspect image \"\": {e}");
                    event(EventType::Warning, "InspectFailed", message.clone());
                    refusal("ImageInspectError", message)
                })?;
                let records = self.records.as_ref();
                let is_open = |found: &cri::Image| records.is_none_or(|r| r.is_open(written, &found.id));
                let is_open = present.as_ref().is_some_and(is_open);
                // Programs that give credentials take their time, and are asked only where there is need of some.
                let credentials = match is_open || present.is_none() && wanted.policy == "Never" {
                    true => Vec::new(),
                    false => self.credentials(&image, wanted.pod, secrets).await,
                };
                (present, is_open, credentials)
            }
        };
        let must_pull =
            |found: &cri::Image| self.records.as_ref().is_some_and(|r| r.must_pull(written, &found.id, &credentials));
        let may_have = |found: &cri::Image| is_open || !must_pull(found);
        let next = next(wanted.policy, found.as_ref().map(may_have));
        let is_present = match (wanted.policy, &found) {
            ("Always", _) => "unknown",
            (_, Some(_)) => "true",
            (_, None) => "false",
        };
        let policy = if wanted.policy.is_empty() { "ifnotpresent".to_owned() } else { wanted.policy.to_lowercase() };
        let required = match next {
            Next::Use => "false",
            Next::Refuse if found.is_none() => "unknown",
            Next::Refuse | Next::Pull => "true",
        };
        metrics::IMAGE_REQUESTS.inc(&[is_present, &policy, required]);
        match (next, found) {
            (Next::Use, Some(found)) => {
                let message =
                    format!("Container image {written:?} already present on machine and can be accessed by the pod");
                event(EventType::Normal, "Pulled", message);
                Ok(found)
            }
            (Next::Refuse, _) => {
                // Who may not have the image does not learn that it is there.
                let message = format!("Container image {written:?} is not present with pull policy of Never");
                event(EventType::Warning, "ErrImageNeverPull", message.clone());
                Err(refusal("ErrImageNeverPull", message))
            }
            (Next::Pull | Next::Use, _) => self.pull(wanted, spec, sandbox, credentials).await,
        }
    }

    /// What the registry may be shown for the pod: its pull secrets, then what the node has, then what its programs give.
    async fn credentials(&self, image: &str, pod: &Pod, secrets: &[Arc<Secret>]) -> Vec<Credential> {
        let mut found = credentials::for_image(image, secrets);
        found.extend(self.node_credentials.for_image(image).await);
        if let Ok(name) = reference::parse(image) {
            found.extend(self.providers.credentials(&format!("{}/{}", name.domain, name.path), pod).await);
        }
        found
    }

    async fn pull(
        &self,
        wanted: Wanted<'_>,
        spec: cri::ImageSpec,
        sandbox: &cri::PodSandboxConfig,
        credentials: Vec<Credential>,
    ) -> Result<cri::Image, StartError> {
        let event = |kind, reason: &str, message: String| wanted.tell(&self.recorder, kind, reason, message);
        let written = wanted.image;
        let key = (wanted.pod.uid().to_owned(), spec.image.clone());
        self.refuse_held_back(wanted, &key)?;
        let recorded = Recorded::begin(self.records.clone(), written).map_err(|e| {
            let why = format!("Failed to record image pull intent for container image {written:?}: {e}");
            event(EventType::Warning, "Failed", why.clone());
            refusal("ErrImagePull", why)
        })?;
        event(EventType::Normal, "Pulling", format!("Pulling image {written:?}"));
        wanted.status.hurry(wanted.pod.uid());
        let asked = Instant::now();
        let _waits = (pulling(wanted.pod.uid()), wanted.carried.aside());
        let slot = self.slots.acquire().await.map_err(|e| refusal("ErrImagePull", e.to_string()))?;
        let begun = Instant::now();
        let pulled = self.try_credentials(&spec, sandbox, credentials).await;
        drop(slot);
        let now = steady_nanos();
        match pulled {
            Ok((found, used)) => {
                recorded.done(&found.id, used.as_ref());
                // The wait is not forgotten: the next failure goes on with it, unless that comes much later.
                self.state().errors.remove(&key);
                let (pull, total) = (go_millis(begun.elapsed()), go_millis(asked.elapsed()));
                let size = found.size;
                metrics::IMAGE_PULL_SECONDS.observe(&[size_class(size)], asked.elapsed().as_secs_f64());
                event(
                    EventType::Normal,
                    "Pulled",
                    format!(
                        "Successfully pulled image {written:?} in {pull} ({total} including waiting). Image size: {size} bytes."
                    ),
                );
                Ok(found)
            }
            Err(why) => {
                event(EventType::Warning, "Failed", format!("Failed to pull image {written:?}: {why}"));
                let (reason, message) = pull_error(written, &why);
                let mut state = self.state();
                state.backoff.next(key.clone(), now, now);
                state.errors.insert(key, format!("{reason}: {message}"));
                Err(refusal(reason, message))
            }
        }
    }

    /// An image that could not be pulled a short while ago has to wait.
    fn refuse_held_back(&self, wanted: Wanted<'_>, key: &Key) -> Result<(), StartError> {
        let state = self.state();
        if state.backoff.remaining_since_update(key, steady_nanos()).is_none() {
            return Ok(());
        }
        let message = format!("Back-off pulling image {:?}", wanted.image);
        wanted.tell(&self.recorder, EventType::Normal, "BackOff", message.clone());
        let message = match state.errors.get(key) {
            Some(error) => format!("{message}: {error}"),
            None => message,
        };
        Err(refusal("ImagePullBackOff", message))
    }

    /// The image, and the credential that it was had with; `None` for none at all.
    async fn try_credentials(
        &self,
        spec: &cri::ImageSpec,
        sandbox: &cri::PodSandboxConfig,
        credentials: Vec<Credential>,
    ) -> Result<(cri::Image, Option<Credential>), String> {
        let mut tries: Vec<Option<Credential>> = credentials.into_iter().map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut errors: Vec<String> = Vec::new();
        for credential in tries {
            if !self.rate.as_ref().is_none_or(Bucket::take) {
                return Err("pull QPS exceeded".to_owned());
            }
            let auth = credential.as_ref().map(|c| c.auth.clone());
            let request =
                cri::PullImageRequest { image: Some(spec.clone()), auth, sandbox_config: Some(sandbox.clone()) };
            match self.cri.pull_image(request).await {
                Ok(reference) => {
                    let by_reference = cri::ImageSpec { image: reference, ..spec.clone() };
                    let found = self.cri.image_status(by_reference).await.map_err(|e| e.to_string())?;
                    let found = found.ok_or_else(|| "the runtime pulled the image but does not have it".to_owned())?;
                    return Ok((found, credential));
                }
                Err(e) => {
                    let text = e.of_pull();
                    if !errors.contains(&text) {
                        errors.push(text);
                    }
                }
            }
        }
        Err(match errors.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        })
    }

    /// How long a pull of the image is still held back.
    pub fn remaining(&self, uid: &str, image: &str) -> Option<Duration> {
        let image = reference::with_default_tag(image).ok()?;
        let held = self.state().backoff.remaining_since_update(&(uid.to_owned(), image), steady_nanos());
        held.map(|(rest, _)| rest)
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &str) {
        let mut state = self.state();
        state.backoff.keep_only(|key| key.0 != uid);
        state.errors.retain(|key, _| key.0 != uid);
    }
}

/// What follows from a pull policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Use,
    Refuse,
    Pull,
}

/// `may_have`: whether the pod may have the image that is there.
fn next(policy: &str, may_have: Option<bool>) -> Next {
    match (policy, may_have) {
        ("Always", _) => Next::Pull,
        (_, Some(true)) => Next::Use,
        ("Never", _) => Next::Refuse,
        _ => Next::Pull,
    }
}

/// A pull on record; one that is given up is taken off when it is dropped.
struct Recorded {
    records: Option<Arc<Records>>,
    image: String,
}

impl Recorded {
    fn begin(records: Option<Arc<Records>>, image: &str) -> std::io::Result<Self> {
        if let Some(records) = &records {
            records.begin(image)?;
        }
        Ok(Recorded { records, image: image.to_owned() })
    }

    fn done(mut self, id: &str, used: Option<&Credential>) {
        if let Some(records) = self.records.take() {
            records.end(&self.image, Some((id, used)));
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(records) = &self.records {
            records.end(&self.image, None);
        }
    }
}

/// Reasons that runtimes put at the start of their message.
fn pull_error(image: &str, why: &str) -> (&'static str, String) {
    if let Some(rest) = why.strip_prefix("RegistryUnavailable") {
        return (
            "RegistryUnavailable",
            format!("image pull failed for {image} because the registry is unavailable{rest}"),
        );
    }
    if let Some(rest) = why.strip_prefix("SignatureValidationFailed") {
        return (
            "SignatureValidationFailed",
            format!("image pull failed for {image} because the signature validation failed{rest}"),
        );
    }
    ("ErrImagePull", why.to_owned())
}

/// A duration in whole milliseconds, in Go's form.
fn go_millis(d: Duration) -> String {
    proto::duration::format(i64::try_from(d.as_millis()).unwrap_or(i64::MAX / 1_000_000).saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_may_not_have_an_image_is_told_as_if_it_were_not_there() {
        for (policy, may_have, wanted) in [
            ("Always", Some(true), Next::Pull),
            ("IfNotPresent", Some(true), Next::Use),
            ("IfNotPresent", Some(false), Next::Pull),
            ("IfNotPresent", None, Next::Pull),
            ("", None, Next::Pull),
            ("Never", Some(true), Next::Use),
            ("Never", Some(false), Next::Refuse),
            ("Never", None, Next::Refuse),
        ] {
            assert_eq!(next(policy, may_have), wanted, "{policy} {may_have:?}");
        }
    }
}
