//! The watchdog: telling systemd that every loop of the agent gets on. sd_watchdog_enabled(3).

use std::time::Duration;

use service::notify::{NotifyState, status, tell};

use super::Progress;
use crate::pods;

/// Systemd's shortest timeout that leaves room for a late beat; the kubelet's limit.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longer than this a hang goes unseen for so long that it is probably a slip of the unit's author.
const LONGEST: Duration = Duration::from_secs(600);
/// The pods' loop answers at once unless it hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The watchdog's timeout by the environment: none when it is off or meant for another process.
///
/// # Errors
/// With the kubelet's words for a value that is no number or is too short to keep.
pub fn watchdog_timeout(micros: Option<&str>, pid: Option<&str>) -> Result<Option<Duration>, String> {
    let Some(text) = micros.filter(|t| !t.is_empty()) else { return Ok(None) };
    let bad = |what: String| Err(format!("create health checker: configure watchdog{what}"));
    let Ok(micros) = text.parse::<i64>() else {
        return bad(format!(": error converting WATCHDOG_USEC: strconv.Atoi: parsing {text:?}: invalid syntax"));
    };
    let Ok(micros) = u64::try_from(micros) else {
        return bad(": error WATCHDOG_USEC must be a positive number".into());
    };
    if micros == 0 {
        return Ok(None);
    }
    if let Some(text) = pid.filter(|p| !p.is_empty()) {
        let Ok(pid) = text.parse::<i64>() else {
            return bad(format!(": error converting WATCHDOG_PID: strconv.Atoi: parsing {text:?}: invalid syntax"));
        };
        if pid != i64::from(std::process::id()) {
            return Ok(None);
        }
    }
    let timeout = Duration::from_micros(micros);
    if timeout <= SHORTEST {
        let shown = proto::duration::format(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX));
        return bad(format!(" timeout too small: {shown}"));
    }
    Ok(Some(timeout))
}

/// The same from this process's environment.
///
/// # Errors
/// As [`watchdog_timeout`].
pub fn own_watchdog() -> Result<Option<Duration>, String> {
    let read = |name: &str| std::env::var(name).ok();
    let timeout = watchdog_timeout(read("WATCHDOG_USEC").as_deref(), read("WATCHDOG_PID").as_deref())?;
    if let Some(timeout) = timeout.filter(|t| *t > LONGEST) {
        tracing::warn!(?timeout, "WatchdogSec is above ten minutes: a hang would go unseen for that long");
    }
    Ok(timeout)
}

/// Beats every half of the timeout while all loops get on; a stuck one is named in the log instead.
pub async fn watchdog(timeout: Duration, progress: Progress, pods: tokio::sync::watch::Receiver<Option<pods::Handle>>) {
    let mut beat = tokio::time::interval(timeout / 2);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let mut stuck = progress.stuck();
        let handle = pods.borrow().clone();
        if let Some(handle) = handle
            && tokio::time::timeout(PATIENCE.min(timeout / 4), handle.pods()).await.is_err()
        {
            stuck.push(("pods", PATIENCE.min(timeout / 4)));
        }
        if stuck.is_empty() {
            tell(&[NotifyState::Watchdog]);
            continue;
        }
        for (name, busy) in stuck {
            tracing::error!(r#loop = name, ?busy, "stuck: systemd gets no keep-alive and will restart the agent");
            status(&format!("the {name} loop is stuck"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_follows_the_environment() {
        let seconds = |text: &str| watchdog_timeout(Some(text), None);
        assert_eq!(seconds("4000000"), Ok(Some(Duration::from_secs(4))));
        assert_eq!(seconds("1500000"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!((seconds("0"), watchdog_timeout(None, None)), (Ok(None), Ok(None)));
        assert_eq!(watchdog_timeout(Some("4000000"), Some("1")), Ok(None));
        let pid = watchdog_timeout(Some("4000000"), Some("x")).expect_err("no number");
        assert!(pid.ends_with("error converting WATCHDOG_PID: strconv.Atoi: parsing \"x\": invalid syntax"), "{pid}");
        assert!(seconds("1000000").expect_err("too short").ends_with("configure watchdog timeout too small: 1s"));
        assert!(seconds("soon").expect_err("no number").contains("strconv.Atoi: parsing \"soon\""));
        assert!(seconds("-1").expect_err("negative").ends_with("WATCHDOG_USEC must be a positive number"));
        assert!(seconds("1000001").is_ok_and(|t| t.is_some()));
    }
}
