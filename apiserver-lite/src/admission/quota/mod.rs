//! ResourceQuota: no namespace uses more than its quotas give it.
//!
//! A write that would use more is first charged to every quota it falls under, one durable update of the quota's status
//! each, and goes on only when all of them had room: of two writes that race for the last place one is refused. What is
//! charged for a write that then fails is given back. The quota controller counts afresh from time to time and takes
//! back what deleted objects used. Follows `k8s.io/apiserver/pkg/admission/plugin/resourcequota`.

mod limited;
mod usage;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Map, Value};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

pub use self::limited::Limited;
use self::limited::Uncovered;
pub use self::usage::{Counter, counts_for};
use super::resources::{self, Resources};
use super::{Call, Operation};
use crate::server::ApiServer;
use crate::status::{ApiError, Result};
use crate::write::{self, Target, WriteOptions};

/// What keeps the writes of one namespace apart.
#[derive(Debug, Default)]
struct Gate {
    /// Held while a write is charged, so that writers queue instead of colliding.
    charging: tokio::sync::Mutex<()>,
    /// Held by every write from its charge until it is stored, and alone by who counts afresh: a count in between would
    /// miss what is charged and not there yet.
    writes: Arc<RwLock<()>>,
}

/// The gates of namespaces in which quota is being charged or counted.
#[derive(Default)]
pub struct Locks(Mutex<HashMap<String, Weak<Gate>>>);

/// The right to count what a namespace uses; no write that was charged is on its way.
pub struct Recount {
    _alone: OwnedRwLockWriteGuard<()>,
    _gate: Arc<Gate>,
}

impl Locks {
    fn of(&self, namespace: &str) -> Arc<Gate> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = all.get(namespace).and_then(Weak::upgrade) {
            return gate;
        }
        all.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(Gate::default());
        all.insert(namespace.into(), Arc::downgrade(&gate));
        gate
    }

    /// Waits until a namespace can be counted.
    pub async fn recount(&self, namespace: &str) -> Recount {
        let gate = self.of(namespace);
        Recount { _alone: gate.writes.clone().write_owned().await, _gate: gate }
    }
}

/// What a write was charged.
#[derive(Debug, Default)]
#[must_use = "what is charged has to be given back when the write fails"]
pub struct Reservation {
    namespace: String,
    /// Quota and what was added to its usage.
    charged: Vec<(String, Resources)>,
    /// Nobody counts until the write is stored.
    _held: Option<(OwnedRwLockReadGuard<()>, Arc<Gate>)>,
}

impl Reservation {
    /// Gives back what was charged, because the write did not happen.
    pub async fn refund(self, server: &ApiServer) {
        for (quota, usage) in &self.charged {
            let refunded = update(server, &self.namespace, quota, |value| {
                let mut used = resources::parse(&value["status"]["used"]);
                for (name, quantity) in usage {
                    if let Some(have) = used.get_mut(name) {
                        have.subtract(*quantity);
                    }
                }
                used.retain(|name, _| !value["status"]["used"][name].is_null());
                Ok(used)
            });
            // Counted too high until the quota controller looks again.
            if let Err(error) = refunded.await {
                tracing::warn!(namespace = self.namespace, quota, %error, "quota could not be given back");
            }
        }
    }
}

/// Charges a write to the quotas of its namespace.
///
/// # Errors
/// 403 when a quota has no room, does not know its usage, or wants the object to say more.
pub async fn reserve(locks: &Locks, call: &Call<'_>, new: &Value) -> Result<Reservation> {
    let nothing = Reservation::default;
    if call.namespace.is_empty() || call.operation == Operation::Delete {
        return Ok(nothing());
    }
    let store = &call.server.store;
    let any = |namespace: &str| store.snapshot(&"resourcequotas".into()).range(Some(namespace), None).next().is_some();
    let limited = call.server.admission.settings().limited.iter().any(|l| l.is_of(call.resource));
    let concerns = |counter: &Counter| counter.handles(call) && (limited || any(call.namespace));
    let Some(counter) = Counter::of(call.resource).filter(concerns) else {
        return Ok(nothing());
    };
    let gate = locks.of(call.namespace);
    let held = gate.writes.clone().read_owned().await;
    let _alone = gate.charging.lock().await;
    let quotas = store.snapshot(&"resourcequotas".into());
    let quotas: Vec<Value> = quotas.range(Some(call.namespace), None).map(|o| o.value()).collect();
    let charges = charges(&counter, call, new, &quotas)?;
    let _held = Some((held, gate.clone()));
    let mut reservation = Reservation { namespace: call.namespace.into(), charged: Vec::new(), _held };
    if call.dry_run {
        return Ok(reservation);
    }
    for (quota, usage) in charges {
        let charged = update(call.server, call.namespace, &quota, |value| {
            with(value, &quota, &usage).map_err(|why| call.refuse(Some(new), why))
        });
        match charged.await {
            Ok(()) => reservation.charged.push((quota, usage)),
            // It was deleted meanwhile and limits nothing any more.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                reservation.refund(call.server).await;
                return Err(error);
            }
        }
    }
    Ok(reservation)
}

/// Which quotas a write has to be charged to, and how much; every one of them has room at the moment.
fn charges(counter: &Counter, call: &Call<'_>, new: &Value, quotas: &[Value]) -> Result<Vec<(String, Resources)>> {
    let mut interesting = Vec::new();
    let mut covered = BTreeSet::new();
    for quota in quotas {
        let name = quota["metadata"]["name"].as_str().unwrap_or_default();
        let mut hard = resources::parse(&quota["status"]["hard"]);
        hard.retain(|resource, _| counter.counts(resource));
        if hard.is_empty() || !counter.in_scopes(quota, new) {
            continue;
        }
        counter
            .check_constraints(&hard, new)
            .map_err(|why| call.refuse(Some(new), format!("failed quota: {name}: {why}")))?;
        if hard.keys().any(|resource| quota["status"]["used"][resource].is_null()) {
            let names: Vec<&str> = hard.keys().map(String::as_str).collect();
            let why = format!("status unknown for quota: {name}, resources: {}", names.join(","));
            return Err(call.refuse(Some(new), why));
        }
        interesting.push((quota, name));
        covered.extend(hard.into_keys());
    }
    let mut limited = call.server.admission.settings().limited.iter().filter(|l| l.is_of(call.resource)).peekable();
    if limited.peek().is_some() {
        limited::check(limited, counter, new, quotas, &covered).map_err(|why| match why {
            Uncovered::Use(_) => call.refuse(Some(new), why),
            Uncovered::Scopes(_) => ApiError::new(500, "", why.to_string()),
        })?;
    }
    if interesting.is_empty() {
        return Ok(Vec::new());
    }
    let usage = counter.usage(new);
    let negative: Vec<&str> = usage.iter().filter(|(_, q)| q.sign() < 0).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        let why = format!("quota usage is negative for resource(s): {}", negative.join(","));
        return Err(call.refuse(Some(new), why));
    }
    let mut out = Vec::new();
    for (quota, name) in interesting {
        let mut delta = usage.clone();
        // An object that was counted before costs what it uses more than before.
        if let Some(old) = call.old.filter(|old| counter.in_scopes(quota, old)) {
            for (resource, before) in counter.usage(old) {
                if let Some(now) = delta.get_mut(&resource) {
                    now.subtract(before);
                }
            }
        }
        let hard = &quota["status"]["hard"];
        delta.retain(|resource, quantity| quantity.sign() > 0 && !hard[resource].is_null());
        if delta.is_empty() {
            continue;
        }
        if call.subresource != "status" {
            with(quota, name, &delta).map_err(|why| call.refuse(Some(new), why))?;
        }
        out.push((name.to_owned(), delta));
    }
    Ok(out)
}

/// A quota's usage with something added.
///
/// # Errors
/// `exceeded quota: ...` when there is no room.
fn with(quota: &Value, name: &str, more: &Resources) -> Result<Resources, String> {
    let (hard, before) = (resources::parse(&quota["status"]["hard"]), resources::parse(&quota["status"]["used"]));
    let mut used = before.clone();
    resources::add(&mut used, more);
    let exceeded: Vec<&String> =
        more.keys().filter(|r| matches!((used.get(*r), hard.get(*r)), (Some(u), Some(h)) if u > h)).collect();
    if exceeded.is_empty() {
        return Ok(used);
    }
    let shown = |from: &Resources| {
        let parts = exceeded.iter().filter_map(|r| from.get(*r).map(|quantity| format!("{r}={quantity}")));
        parts.collect::<Vec<_>>().join(",")
    };
    let (requested, used, limited) = (shown(more), shown(&before), shown(&hard));
    Err(format!("exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"))
}

/// Writes a quota's usage as `change` finds it for the newest state.
async fn update(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    mut change: impl FnMut(&Value) -> Result<Resources> + Send,
) -> Result<()> {
    let resource = server.resources.lookup("", "v1", "resourcequotas");
    let resource = resource.ok_or_else(|| ApiError::internal("resourcequotas are not served"))?;
    let options = WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() };
    let target = Target { resource: &resource, subresource: "status", namespace, name };
    let written = write::update(server, target, &options, |_, value| {
        let used: Map<String, Value> = change(value)?.into_iter().map(|(r, q)| (r, q.to_string().into())).collect();
        let mut value = value.clone();
        value["status"]["used"] = used.into();
        Ok(value)
    });
    // Boxed: this is a write inside of a write.
    Box::pin(written).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quota_takes_what_it_has_room_for() {
        let quota = json!({"status": {"hard": {"pods": "2", "requests.cpu": "1"}, "used": {"pods": "1", "requests.cpu": "900m"}}});
        let more = |pods: &str, cpu: &str| resources::parse(&json!({"pods": pods, "requests.cpu": cpu}));
        let used = with(&quota, "q", &more("1", "100m")).expect("room");
        assert_eq!((used["pods"].to_string(), used["requests.cpu"].to_string()), ("2".into(), "1".into()));
        assert_eq!(
            with(&quota, "q", &more("2", "1500m")).expect_err("no room"),
            "exceeded quota: q, requested: pods=2,requests.cpu=1500m, used: pods=1,requests.cpu=900m, limited: \
             pods=2,requests.cpu=1"
        );
    }
}
