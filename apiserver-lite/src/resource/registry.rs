//! Which resources the server serves, replaceable while it runs: definitions of custom resources come and go.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{Defaults, Resource, table};
use crate::config::{FeatureGates, RuntimeConfig};

/// Group, version and plural.
type Path = (Box<str>, Box<str>, Box<str>);

/// One state of the registry.
#[derive(Debug, Default)]
pub struct Set {
    /// In discovery order.
    all: Vec<Arc<Resource>>,
    by_path: HashMap<Path, Arc<Resource>>,
}

/// The registry: readers take the current [`Set`] and keep it for a request.
#[derive(Debug)]
pub struct Resources(ArcSwap<Set>);

impl Resources {
    pub fn built_in() -> Self {
        Resources(ArcSwap::from_pointee(Set::new(table::built_in().into_iter().map(Arc::new).collect())))
    }

    /// The built-in resources that `--runtime-config` leaves, and those that it adds.
    pub fn chosen(runtime: &RuntimeConfig, gates: &FeatureGates) -> Self {
        let built_in = table::built_in().into_iter().map(|r| (true, r));
        let gated = |gate: Option<&str>| gate.is_none_or(|g| gates.enabled(g));
        let optional = table::optional().into_iter().filter(|(gate, _)| gated(*gate)).map(|(_, r)| (false, r));
        let all = built_in.chain(optional);
        let served = all.filter(|(on, r)| runtime.serves(&r.group, &r.version, &r.plural, *on));
        let defaults = Defaults { unavailable: gates.enabled("MaxUnavailableStatefulSet") };
        let made = |(_, resource): (bool, Resource)| Arc::new(Resource { defaults, ..resource });
        Resources(ArcSwap::from_pointee(Set::new(served.map(made).collect())))
    }

    pub fn current(&self) -> Arc<Set> {
        self.0.load_full()
    }

    /// Replaces every custom resource; the built-in ones stay.
    pub fn set_custom(&self, custom: Vec<Arc<Resource>>) {
        let all = self.0.load().all.iter().filter(|r| !r.custom).cloned().chain(custom).collect();
        self.0.store(Arc::new(Set::new(all)));
    }

    pub fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.0.load().lookup(group, version, plural)
    }
}

impl Set {
    fn new(all: Vec<Arc<Resource>>) -> Self {
        let by_path = all.iter().map(|r| ((r.group.clone(), r.version.clone(), r.plural.clone()), r.clone())).collect();
        Set { all, by_path }
    }

    pub fn all(&self) -> &[Arc<Resource>] {
        &self.all
    }

    pub fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.by_path.get(&(group.into(), version.into(), plural.into())).cloned()
    }

    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.all.iter().find(|r| *r.group == *group && *r.version == *version && *r.kind == *kind).cloned()
    }

    /// Versions of a group in order of preference; empty for a group that is not served.
    pub fn versions(&self, group: &str) -> Vec<&str> {
        let mut out: Vec<&str> = Vec::new();
        for resource in self.all.iter().filter(|r| *r.group == *group) {
            if !out.contains(&&*resource.version) {
                out.push(&resource.version);
            }
        }
        out
    }

    /// Groups in order of discovery, the core group (empty) first.
    pub fn groups(&self) -> Vec<&str> {
        let mut out: Vec<&str> = Vec::new();
        for resource in &self.all {
            if !out.contains(&&*resource.group) {
                out.push(&resource.group);
            }
        }
        out
    }
}
