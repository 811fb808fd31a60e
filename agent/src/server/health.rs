//! `/healthz`: one word when all is well; every check by name on demand.
//!
//! Followed: apiserver `server/healthz`.

use std::time::Duration;

use http::{Response, StatusCode};

use super::answers::{Answer, plain, text};
use super::route::query_pairs;
use crate::device_plugins::Devices;
use crate::metrics;
use crate::pods::Handle;

pub(super) const CHECKS: [&str; 4] = ["ping", "log", "syncloop", "device-plugin"];
/// The loop that owns the pods answers at once unless it hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// What checks look at; each is well that has nothing to look at.
#[derive(Clone, Copy, Default)]
pub(super) struct Parts<'a> {
    /// None before the runtime's first word; to wait for that is no hang.
    pub pods: Option<&'a Handle>,
    pub devices: Option<&'a Devices>,
}

/// Runs every check for those who read of them as metrics.
pub(super) async fn record(parts: Parts<'_>) {
    for check in CHECKS {
        is_well(check, parts).await;
    }
}

/// One check, counted; what cannot fail while this answers is well.
async fn is_well(check: &str, parts: Parts<'_>) -> bool {
    let well = match (check, parts) {
        ("syncloop", Parts { pods: Some(pods), .. }) => tokio::time::timeout(PATIENCE, pods.pods()).await.is_ok(),
        ("device-plugin", Parts { devices: Some(devices), .. }) => devices.serves(),
        _ => true,
    };
    let (word, value) = if well { ("success", 1.0) } else { ("error", 0.0) };
    for (state, results) in
        [(&metrics::HEALTH, &metrics::HEALTH_CHECKS), (&metrics::OWN_HEALTH, &metrics::OWN_HEALTH_CHECKS)]
    {
        state.set(&[check, "healthz"], value);
        results.inc(&[check, word, "healthz"]);
    }
    well
}

pub(super) async fn one(check: &str, parts: Parts<'_>) -> Response<Answer> {
    match is_well(check, parts).await {
        true => plain(StatusCode::OK, "ok"),
        false => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {check} does not answer\n")),
    }
}

pub(super) async fn all(checks: &[&str], query: &str, parts: Parts<'_>) -> Response<Answer> {
    let pairs = query_pairs(query);
    let mut excluded: Vec<String> = Vec::new();
    for (_, name) in pairs.iter().filter(|(key, _)| key == "exclude") {
        if !excluded.contains(name) {
            excluded.push(name.clone());
        }
    }
    let (mut page, mut failed) = (String::new(), false);
    for check in checks {
        if excluded.iter().any(|e| e == check) {
            excluded.retain(|e| e != check);
            page.push_str(&format!("[+]{check} excluded: ok\n"));
        } else if is_well(check, parts).await {
            page.push_str(&format!("[+]{check} ok\n"));
        } else {
            failed = true;
            page.push_str(&format!("[-]{check} failed: reason withheld\n"));
        }
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|e| format!("{e:?}")).collect();
        page.push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(",")));
    }
    if failed {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{page}healthz check failed\n"));
    }
    match pairs.iter().any(|(key, _)| key == "verbose") {
        true => text(StatusCode::OK, format!("{page}healthz check passed\n")),
        false => text(StatusCode::OK, "ok"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    async fn page(query: &str) -> String {
        let body = all(&["ping"], query, Parts::default()).await.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8_lossy(&body).into_owned()
    }

    #[tokio::test]
    async fn checks_are_told_by_name_and_unknown_exclusions_warned_of() {
        assert_eq!(page("").await, "ok");
        assert_eq!(page("exclude=ping&verbose").await, "[+]ping excluded: ok\nhealthz check passed\n");
        let warned = "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"log\",\"nothing\"\nhealthz check passed\n";
        assert_eq!(page("verbose&exclude=log&exclude=nothing").await, warned);
    }
}
