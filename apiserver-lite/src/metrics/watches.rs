//! Events that watches have sent, by resource.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::page::{escaped, head};
use crate::resource::Resource;

/// Group, version and plural.
type Kind = [Box<str>; 3];

/// Looked up when a watch begins; each event is one addition.
#[derive(Debug, Default)]
pub struct Watches(Mutex<BTreeMap<Kind, Arc<AtomicU64>>>);

/// The counter of one resource.
#[derive(Debug, Clone)]
pub struct Sent(Arc<AtomicU64>);

impl Sent {
    pub fn add(&self, events: u64) {
        self.0.fetch_add(events, Ordering::Relaxed);
    }
}

impl Watches {
    pub fn sent(&self, resource: &Resource) -> Sent {
        let kind = [&resource.group, &resource.version, &resource.plural].map(Clone::clone);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Sent(all.entry(kind).or_default().clone())
    }

    /// Begins again; watches that are open count on.
    pub fn reset(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub fn write(&self, out: &mut String) {
        let name = "apiserver_watch_events_total";
        head(out, name, "counter", "[ALPHA] Number of events sent in watch clients");
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, count) in all.iter() {
            let [group, version, resource] = kind.each_ref().map(|text| escaped(text));
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let _ =
                    writeln!(out, "{name}{{group=\"{group}\",resource=\"{resource}\",version=\"{version}\"}} {count}");
            }
        }
    }
}
