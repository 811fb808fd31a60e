//! The flow schemas and levels of the moment, as they are stored, ready for requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderValue;
use serde_json::Value;

use super::bootstrap::{self, CATCH_ALL, EXEMPT};
use super::counters::Counters;
use super::level::{Kind, Level, Limited};
use super::pool::Pool;
use super::schema::{Schema, level_of};
use crate::request::{RequestInfo, User};
use crate::store::{ResourceId, Store};

pub const SCHEMAS: &str = "flowschemas.flowcontrol.apiserver.k8s.io";
pub const LEVELS: &str = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";

/// One state of the configuration.
pub struct Table {
    /// In the order in which they are asked.
    pub schemas: Vec<Arc<Schema>>,
    pub levels: BTreeMap<Box<str>, Arc<Level>>,
    /// For who fits nothing, which only a user of no group can.
    rest: Arc<Schema>,
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Objects at rest, and in place of those that are mandatory and not there what they would be.
fn objects(store: &Store, resource: &str, built_in: Vec<Value>) -> Vec<Value> {
    let snapshot = store.snapshot(&ResourceId::from(resource));
    let mut all: Vec<Value> = snapshot.range(None, None).map(|o| (*o.without_owners()).clone()).collect();
    let missing = built_in.into_iter().filter(|o| bootstrap::is_mandatory(name(o)));
    for object in missing {
        if !all.iter().any(|o| name(o) == name(&object)) {
            all.push(object);
        }
    }
    all
}

impl Table {
    /// Reads what is stored. Levels and counters of `before` go on where they have the same names.
    pub fn read(store: &Store, pool: &Pool, seats: u32, before: Option<&Table>) -> Self {
        let levels = objects(store, LEVELS, bootstrap::levels());
        let schemas = objects(store, SCHEMAS, bootstrap::schemas());
        let levels = arrange(&levels, pool, seats, before);
        let mut ready: Vec<Arc<Schema>> = Vec::with_capacity(schemas.len());
        for schema in &schemas {
            // One whose level does not exist is passed over; its status says so.
            let Some(level) = levels.get(level_of(schema)) else { continue };
            let old = before.and_then(|table| table.schemas.iter().find(|s| *s.name == *name(schema)));
            let counters = old.filter(|s| s.level.name == level.name).map(|s| s.counters.clone());
            ready.push(Arc::new(Schema::new(schema, level.clone(), counters.unwrap_or_default())));
        }
        ready.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let rest = ready.iter().find(|s| *s.name == *CATCH_ALL).cloned();
        let rest = rest.unwrap_or_else(|| {
            let level = levels.get(CATCH_ALL).or_else(|| levels.get(EXEMPT)).cloned().unwrap_or_else(unlimited);
            Arc::new(Schema::new(&Value::Null, level, Arc::default()))
        });
        Table { schemas: ready, levels, rest }
    }

    /// The schema of a request.
    pub fn classify(&self, user: &User, info: &RequestInfo) -> &Arc<Schema> {
        self.schemas.iter().find(|schema| schema.fits(user, info)).unwrap_or(&self.rest)
    }

    /// Every set of counters that may have counted something.
    pub fn counted(&self) -> impl Iterator<Item = (&Schema, &Counters)> {
        self.schemas.iter().map(|schema| (&**schema, &*schema.counters))
    }
}

fn unlimited() -> Arc<Level> {
    let uid = HeaderValue::from_static("");
    Arc::new(Level { name: EXEMPT.into(), uid, kind: Kind::Exempt, slot: None, widest: 1 })
}

/// Gives every level its seats.
fn arrange(objects: &[Value], pool: &Pool, seats: u32, before: Option<&Table>) -> BTreeMap<Box<str>, Arc<Level>> {
    let all_shares: u64 = objects.iter().map(|level| Kind::shares(&level["spec"])).sum();
    let old = |name: &str| before.and_then(|table| table.levels.get(name)).and_then(|level| level.slot);
    let kinds: Vec<(&Value, Kind)> = objects.iter().map(|level| (level, Kind::of(&level["spec"]))).collect();
    let wanted: Vec<_> = kinds
        .iter()
        .filter_map(|(level, kind)| match kind {
            Kind::Exempt => None,
            Kind::Limited(limited @ Limited { queuing, .. }) => {
                Some((old(name(level)), limited.share(seats, all_shares), *queuing))
            }
        })
        .collect();
    let mut places = pool.arrange(&wanted).into_iter();
    let level = |(object, kind): (&Value, Kind)| {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let (slot, widest) = match &kind {
            Kind::Exempt => (None, 1),
            Kind::Limited(limited) => (places.next(), limited.widest(limited.share(seats, all_shares).nominal)),
        };
        let uid = HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""));
        (name(object).into(), Arc::new(Level { name: name(object).into(), uid, kind, slot, widest }))
    };
    kinds.into_iter().map(level).collect()
}
