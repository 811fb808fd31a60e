//! Slices made by systemd, for runtimes with the systemd cgroup driver.
//!
//! systemd owns its tree: a cgroup that it does not know of would lose its limits at the next reload. So slices are
//! transient units, and their limits are set as properties first, then in the files (systemd knows no huge pages).

use std::time::Duration;

use futures_util::StreamExt as _;
use zbus::zvariant::{OwnedObjectPath, Value};
use zbus::{Connection, Proxy};

use super::limits::{Limits, cpu_weight};
use super::name::CgroupName;

const BUS: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// systemd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    #[error("systemd, about {unit}: {source}")]
    Bus { unit: String, source: Box<zbus::Error> },
    #[error("systemd ended the start of {unit} with {result}")]
    Job { unit: String, result: String },
    #[error("systemd did not answer about {unit} within {PATIENCE:?}")]
    Silent { unit: String },
}

/// The longest that systemd is waited for: what is asked of it takes milliseconds, and the set-up of every pod waits
/// behind the question about its tier.
const PATIENCE: Duration = Duration::from_secs(10);

type Properties = Vec<(&'static str, Value<'static>)>;

/// Starts the slice, or sets the limits of one that runs.
pub async fn start_slice(name: &CgroupName, limits: &Limits) -> Result<(), SystemdError> {
    in_time(name.slice(name.depth()), |unit| start(unit, limits)).await
}

/// Sets the limits of a slice that runs.
pub async fn set_properties(name: &CgroupName, limits: &Limits) -> Result<(), SystemdError> {
    in_time(name.slice(name.depth()), |unit| set(unit, limits)).await
}

/// Stops a slice whose cgroup is gone. One that systemd does not know is stopped.
pub async fn stop_slice(name: &CgroupName) -> Result<(), SystemdError> {
    in_time(name.slice(name.depth()), stop).await
}

/// What is asked about a unit, unless systemd or its bus hangs.
async fn in_time<F: Future<Output = Result<(), SystemdError>>>(
    unit: String,
    ask: impl FnOnce(String) -> F,
) -> Result<(), SystemdError> {
    match tokio::time::timeout(PATIENCE, ask(unit.clone())).await {
        Ok(done) => done,
        Err(_) => Err(SystemdError::Silent { unit }),
    }
}

async fn start(unit: String, limits: &Limits) -> Result<(), SystemdError> {
    let failed = |source| SystemdError::Bus { unit: unit.clone(), source: Box::new(source) };
    let manager = manager().await.map_err(failed)?;
    let mut properties: Properties = vec![
        ("Description", Value::from(format!("pods of node-agent: {unit}"))),
        ("DefaultDependencies", Value::from(false)),
    ];
    for accounting in ["CPUAccounting", "MemoryAccounting", "TasksAccounting", "IOAccounting"] {
        properties.push((accounting, Value::from(true)));
    }
    properties.extend(limit_properties(limits));
    // Listening starts before the job does, so its end cannot be missed.
    let mut ended = manager.receive_signal("JobRemoved").await.map_err(failed)?;
    let none: Vec<(&str, Properties)> = Vec::new();
    let started: zbus::Result<OwnedObjectPath> =
        manager.call("StartTransientUnit", &(&unit, "replace", properties, none)).await;
    let job = match started {
        Ok(job) => job,
        Err(zbus::Error::MethodError(error, ..)) if error.as_str() == "org.freedesktop.systemd1.UnitExists" => {
            return set(unit, limits).await;
        }
        Err(source) => return Err(failed(source)),
    };
    while let Some(signal) = ended.next().await {
        let body = signal.body();
        let (_, path, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize().map_err(failed)?;
        if path == job {
            return if result == "done" { Ok(()) } else { Err(SystemdError::Job { unit: unit.clone(), result }) };
        }
    }
    Ok(())
}

async fn set(unit: String, limits: &Limits) -> Result<(), SystemdError> {
    let properties = limit_properties(limits);
    if properties.is_empty() {
        return Ok(());
    }
    let failed = |source| SystemdError::Bus { unit: unit.clone(), source: Box::new(source) };
    let manager = manager().await.map_err(failed)?;
    manager.call::<_, _, ()>("SetUnitProperties", &(&unit, true, properties)).await.map_err(failed)
}

async fn stop(unit: String) -> Result<(), SystemdError> {
    let failed = |source| SystemdError::Bus { unit: unit.clone(), source: Box::new(source) };
    let manager = manager().await.map_err(failed)?;
    match manager.call::<_, _, OwnedObjectPath>("StopUnit", &(&unit, "replace")).await {
        Ok(_) => Ok(()),
        Err(zbus::Error::MethodError(name, ..)) if name.as_str() == "org.freedesktop.systemd1.NoSuchUnit" => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

/// One connection for the life of the agent; made again when systemd has closed it.
async fn manager() -> zbus::Result<Proxy<'static>> {
    static CONNECTION: tokio::sync::Mutex<Option<Connection>> = tokio::sync::Mutex::const_new(None);
    let mut kept = CONNECTION.lock().await;
    let connection = match kept.take() {
        Some(connection) if connection.peer_creds().await.is_ok() => connection,
        _ => Connection::system().await?,
    };
    *kept = Some(connection.clone());
    Proxy::new(&connection, BUS, PATH, MANAGER).await
}

fn limit_properties(limits: &Limits) -> Properties {
    let mut properties = Properties::new();
    let number = |value: i64| Value::from(u64::try_from(value).unwrap_or(u64::MAX));
    if let Some(shares) = limits.cpu_shares {
        properties.push(("CPUWeight", number(cpu_weight(shares))));
    }
    if let Some((quota, period)) = limits.cpu_quota {
        // Microseconds of each second, in the steps of ten milliseconds that systemd keeps.
        let per_second = match quota {
            ..0 => u64::MAX,
            _ => {
                let exact = u64::try_from(quota.saturating_mul(1_000_000) / period.max(1)).unwrap_or(u64::MAX);
                exact.div_ceil(10_000).saturating_mul(10_000)
            }
        };
        properties.push(("CPUQuotaPeriodUSec", number(period)));
        properties.push(("CPUQuotaPerSecUSec", Value::from(per_second)));
    }
    if let Some(bytes) = limits.memory {
        properties.push(("MemoryMax", number(bytes)));
    }
    if let Some(kept) = limits.memory_kept {
        properties.push(("MemoryMin", number(kept.min)));
        properties.push(("MemoryLow", number(kept.low)));
    }
    if let Some(count) = limits.pids {
        properties.push(("TasksMax", number(count)));
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod's set-up waited for ever, and with it all others.
    #[tokio::test(start_paused = true)]
    async fn a_systemd_that_hangs_is_not_waited_for() {
        let error = in_time("kubepods.slice".into(), |_| std::future::pending()).await.expect_err("silent");
        assert_eq!(error.to_string(), "systemd did not answer about kubepods.slice within 10s");
        in_time("kubepods.slice".into(), |_| std::future::ready(Ok(()))).await.expect("an answer");
    }

    #[test]
    fn quota_is_rounded_up_to_what_systemd_keeps() {
        let limits = Limits { cpu_quota: Some((12_345, 100_000)), ..Limits::default() };
        let properties = limit_properties(&limits);
        assert_eq!(properties[1], ("CPUQuotaPerSecUSec", Value::from(130_000_u64)));
        let unlimited = limit_properties(&Limits { cpu_quota: Some((-1, 100_000)), ..Limits::default() });
        assert_eq!(unlimited[1], ("CPUQuotaPerSecUSec", Value::from(u64::MAX)));
    }
}
