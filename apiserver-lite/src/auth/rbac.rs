//! Role based access control: roles and bindings as they lie in the store, parsed once and kept until they change.
//!
//! The parsed state follows the store's events and is brought up to date by whoever asks next, so a decision always
//! sees every write that was acknowledged before.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde_json::Value;

use super::authorizer::{Attributes, Decision};
use super::rule::Rule;
use crate::request::User;
use crate::store::{EventRef, ResourceId, Store, Watcher};

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Whom a binding names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

impl Subject {
    fn from_value(value: &Value, binding_namespace: &str) -> Option<Self> {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        match value["kind"].as_str()? {
            "User" => Some(Subject::User(text("name"))),
            "Group" => Some(Subject::Group(text("name"))),
            "ServiceAccount" => {
                let namespace = Some(text("namespace")).filter(|n| !n.is_empty());
                let namespace = namespace.unwrap_or_else(|| binding_namespace.to_owned());
                (!namespace.is_empty()).then(|| Subject::ServiceAccount { namespace, name: text("name") })
            }
            _ => None,
        }
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => *name == user.name,
            Subject::Group(group) => user.in_group(group),
            Subject::ServiceAccount { namespace, name } => user
                .name
                .strip_prefix("system:serviceaccount:")
                .and_then(|rest| rest.split_once(':'))
                .is_some_and(|(n, a)| n == namespace && a == name),
        }
    }

    /// As it appears in a reason: `User "alice"`.
    fn describe(&self) -> String {
        match self {
            Subject::User(name) => format!("User {}", crate::status::quote(name)),
            Subject::Group(name) => format!("Group {}", crate::status::quote(name)),
            Subject::ServiceAccount { namespace, name } => {
                format!("ServiceAccount {}", crate::status::quote(&format!("{name}/{namespace}")))
            }
        }
    }
}

/// The role that a binding gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoleRef {
    pub group: String,
    /// `Role` or `ClusterRole`.
    pub kind: String,
    pub name: String,
}

impl RoleRef {
    pub fn from_value(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        RoleRef { group: text("apiGroup"), kind: text("kind"), name: text("name") }
    }
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Debug, Clone)]
pub struct Binding {
    pub role: RoleRef,
    pub subjects: Vec<Subject>,
}

type Rules = Arc<[Rule]>;

/// Everything parsed. Bindings and roles by namespace (empty for the cluster), then name.
#[derive(Debug, Clone, Default)]
struct State {
    bindings: HashMap<Box<str>, BTreeMap<Box<str>, Arc<Binding>>>,
    roles: HashMap<Box<str>, HashMap<Box<str>, Rules>>,
}

struct Followed {
    resource: ResourceId,
    is_role: bool,
    watcher: Option<Watcher>,
}

/// Evaluates RBAC over a store.
pub struct Rbac {
    store: Store,
    state: ArcSwap<State>,
    /// Revision up to which `state` is known to be right.
    seen: std::sync::atomic::AtomicU64,
    followed: Mutex<Vec<Followed>>,
}

impl Rbac {
    pub fn new(store: Store) -> Self {
        let followed =
            [("roles", true), ("clusterroles", true), ("rolebindings", false), ("clusterrolebindings", false)];
        let followed = followed.map(|(plural, is_role)| Followed {
            resource: ResourceId::from(format!("{plural}.{GROUP}").as_str()),
            is_role,
            watcher: None,
        });
        Rbac { store, state: ArcSwap::default(), seen: 0.into(), followed: Mutex::new(followed.into()) }
    }

    /// The state as of the store's newest revision.
    fn state(&self) -> arc_swap::Guard<Arc<State>> {
        let revision = self.store.revision();
        if self.seen.load(std::sync::atomic::Ordering::Acquire) < revision {
            let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changed: Option<State> = None;
            for one in followed.iter_mut() {
                one.catch_up(&self.store, &self.state, &mut changed);
            }
            if let Some(state) = changed {
                self.state.store(Arc::new(state));
            }
            self.seen.fetch_max(revision, std::sync::atomic::Ordering::AcqRel);
        }
        self.state.load()
    }

    /// Whether a binding gives the user what the request needs; the reason names the binding.
    pub fn authorize(&self, request: &Attributes<'_>) -> Decision {
        let mut missing = Vec::new();
        let mut allowed = None;
        self.visit(request.user, &request.info.namespace, |reason, rules| match rules {
            Ok(rules) if rules.iter().any(|r| r.allows(request)) => {
                allowed = Some(reason());
                false
            }
            Ok(_) => true,
            Err(complaint) => {
                missing.push(complaint);
                true
            }
        });
        match allowed {
            Some(reason) => Decision::allow(format!("RBAC: allowed by {reason}")),
            None if missing.is_empty() => Decision::no_opinion(String::new()),
            None => Decision::no_opinion(format!("RBAC: {}", crate::status::aggregate(&missing))),
        }
    }

    /// Every rule that a user has in a namespace, cluster wide ones included, and complaints about missing roles.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let (mut out, mut missing) = (Vec::new(), Vec::new());
        self.visit(user, namespace, |_, rules| {
            match rules {
                Ok(rules) => out.extend(rules.iter().cloned()),
                Err(complaint) => missing.push(complaint),
            }
            true
        });
        (out, missing)
    }

    /// The rules that a role reference stands for.
    ///
    /// # Errors
    /// The resource (`roles`, `clusterroles`) when there is no such role.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Vec<Rule>, &'static str> {
        self.state().rules_of(role, namespace).map(|r| r.to_vec())
    }

    /// Goes through the bindings that name a user: cluster wide ones first, each in order of names. `each` gets the
    /// means to describe the binding, and the role's rules or the complaint that there is no such role; it returns
    /// whether to go on.
    fn visit(
        &self,
        user: &User,
        namespace: &str,
        mut each: impl FnMut(&dyn Fn() -> String, Result<&[Rule], String>) -> bool,
    ) {
        let state = self.state();
        let places = if namespace.is_empty() { &[""][..] } else { &["", namespace] };
        for place in places {
            for (name, binding) in state.bindings.get(*place).into_iter().flatten() {
                let Some(subject) = binding.subjects.iter().find(|s| s.is(user)) else { continue };
                let describe = || {
                    let (kind, full) = match *place {
                        "" => ("ClusterRoleBinding", name.to_string()),
                        namespace => ("RoleBinding", format!("{name}/{namespace}")),
                    };
                    let role = &binding.role;
                    let (full, role_name) = (crate::status::quote(&full), crate::status::quote(&role.name));
                    format!("{kind} {full} of {} {role_name} to {}", role.kind, subject.describe())
                };
                let rules = state.rules_of(&binding.role, place);
                let rules = rules.as_ref().map(|r| &r[..]).map_err(|resource| {
                    format!("{resource}.{GROUP} {} not found", crate::status::quote(&binding.role.name))
                });
                if !each(&describe, rules) {
                    return;
                }
            }
        }
    }
}

impl State {
    fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Rules, &'static str> {
        let (place, resource) = match role.kind.as_str() {
            "Role" => (namespace, "role"),
            _ => ("", "clusterrole"),
        };
        self.roles.get(place).and_then(|r| r.get(role.name.as_str())).cloned().ok_or(resource)
    }

    fn put(&mut self, is_role: bool, namespace: &str, name: &str, object: &Value) {
        if is_role {
            self.roles.entry(namespace.into()).or_default().insert(name.into(), Rule::all_from(object).into());
            return;
        }
        let subjects = object["subjects"].as_array().into_iter().flatten();
        let binding = Binding {
            role: RoleRef::from_value(&object["roleRef"]),
            subjects: subjects.filter_map(|s| Subject::from_value(s, namespace)).collect(),
        };
        self.bindings.entry(namespace.into()).or_default().insert(name.into(), Arc::new(binding));
    }

    fn remove(&mut self, is_role: bool, namespace: &str, name: &str) {
        if is_role {
            if let Some(roles) = self.roles.get_mut(namespace) {
                roles.remove(name);
            }
        } else if let Some(bindings) = self.bindings.get_mut(namespace) {
            bindings.remove(name);
        }
    }

    /// Forgets everything of one collection.
    fn clear(&mut self, is_role: bool, cluster: bool) {
        if is_role {
            self.roles.retain(|namespace, _| namespace.is_empty() != cluster);
        } else {
            self.bindings.retain(|namespace, _| namespace.is_empty() != cluster);
        }
    }
}

impl Followed {
    /// Takes in what happened since the last time; starts over when too much did.
    fn catch_up(&mut self, store: &Store, current: &ArcSwap<State>, changed: &mut Option<State>) {
        let mut events: Vec<EventRef> = Vec::new();
        loop {
            events.clear();
            match self.watcher.as_mut().map(|w| w.ready(&mut events)) {
                Some(Ok(true)) => {}
                Some(Ok(false)) => return,
                // Not followed yet, or fell behind.
                None | Some(Err(_)) => {
                    self.start_over(store, changed.get_or_insert_with(|| State::clone(&current.load())));
                    continue;
                }
            }
            let state = changed.get_or_insert_with(|| State::clone(&current.load()));
            for event in &events {
                let key = &event.object.key;
                match event.kind {
                    crate::store::EventKind::Deleted => state.remove(self.is_role, &key.namespace, &key.name),
                    _ => state.put(self.is_role, &key.namespace, &key.name, &event.object.value()),
                }
            }
        }
    }

    fn start_over(&mut self, store: &Store, state: &mut State) {
        let snapshot = store.snapshot(&self.resource);
        state.clear(self.is_role, self.resource.0.starts_with("cluster"));
        for object in snapshot.range(None, None) {
            state.put(self.is_role, &object.key.namespace, &object.key.name, &object.value());
        }
        // The snapshot is as new as can be; when its revision is too old all the same, the next round tries again.
        self.watcher = store.watch(&self.resource, snapshot.revision).ok();
    }
}
