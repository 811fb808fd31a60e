//! `/checkpoint/NAMESPACE/POD/CONTAINER`: the runtime writes the state of a running container into an archive.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use http::{Response, StatusCode};
use proto::cri;

use super::answers::{Answer, json, plain};
use super::retention::Retention;
use super::route::query_pairs;
use crate::cri::CriClient;
use crate::pod::spec::{PodExt as _, find_container};
use crate::pods::{FindError, Handle};

/// A container by the names in the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

pub(super) async fn serve(
    pods: &Handle,
    cri: &CriClient,
    root_dir: &Path,
    names: &Names,
    query: &str,
    (retention, request_timeout): (Retention, Duration),
) -> Response<Answer> {
    let Names { namespace, pod: name, container } = names;
    let Ok(pod) = pods.find(namespace, name, None).await else {
        return plain(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if find_container(pod.spec(), container).is_none() {
        return plain(StatusCode::NOT_FOUND, format!("container {container} does not exist"));
    }
    let timeout = match query_pairs(query).into_iter().rfind(|(key, _)| key == "timeout") {
        None => 0,
        Some((_, text)) => match text.parse::<i64>() {
            Ok(seconds) => seconds,
            Err(_) => return plain(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter"),
        },
    };
    let failed = |why: &dyn std::fmt::Display| {
        let text = format!("checkpointing of {namespace}/{name}/{container} failed ({why})");
        plain(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let id = match pods.running(&pod, container).await {
        Ok(found) => found.id,
        Err(FindError::NoContainer(name)) => return failed(&format_args!("container {name} not found")),
        Err(error) => return failed(&error),
    };
    let timeout = match patience(timeout, request_timeout) {
        Ok(seconds) => seconds,
        Err(why) => return failed(&why),
    };
    let folder = root_dir.join("checkpoints");
    if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
        return failed(&error);
    }
    let time = proto::time::Timestamp::now().to_seconds_text();
    let prefix = format!("checkpoint-{name}_{namespace}-{container}-");
    let path = folder.join(format!("{prefix}{time}.tar"));
    let location = path.to_string_lossy().into_owned();
    let request = cri::CheckpointContainerRequest { container_id: id, location: location.clone(), timeout };
    // A moment more than the runtime has: it tells what went wrong.
    let limit = Duration::from_secs(timeout.unsigned_abs()).saturating_add(Duration::from_secs(5));
    if let Err(error) = cri.checkpoint_container(request, limit).await {
        return failed(&error);
    }
    // It holds the container's memory: for root alone, whatever the runtime's umask.
    if let Err(error) = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)) {
        tracing::warn!(%error, path = location, "cannot close a checkpoint to others");
    }
    match retention.apply(&folder, &prefix, std::time::SystemTime::now()) {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => tracing::info!(count = removed.len(), container, "removed old checkpoints"),
        Err(error) => tracing::warn!(%error, "cannot look for old checkpoints"),
    }
    json(serde_json::json!({"items": [location]}).to_string().into_bytes())
}

/// For how long the runtime may take, in seconds: no less than any call of it.
///
/// # Errors
/// In the kubelet's words, when it is less than nothing.
fn patience(asked: i64, request_timeout: Duration) -> Result<i64, &'static str> {
    if asked < 0 {
        return Err("CheckpointContainer requires the timeout value to be > 0");
    }
    Ok(asked.max(i64::try_from(request_timeout.as_secs()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timeout used to go to the runtime as it was asked for, and everything over two minutes was cut off at those.
    #[test]
    fn a_checkpoint_has_at_least_the_time_of_any_call() {
        let of = |asked| patience(asked, Duration::from_secs(120));
        assert_eq!((of(0), of(7), of(120), of(600)), (Ok(120), Ok(120), Ok(120), Ok(600)));
        assert_eq!(of(-1), Err("CheckpointContainer requires the timeout value to be > 0"));
    }
}
