//! What drivers publish in ResourceSlices: devices of complete pools in their newest generation, and who can reach them.
//! [`super::search`] chooses among them.
//!
//! Devices may draw on counters that a pool shares out among them ([`super::counters`]).
//!
//! Limits: taints that a DeviceTaintRule adds are not looked at.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::counters::Counters;
use super::node::NodeInfo;
use super::search::Wish;
use crate::cel::{self, Budget, Failure};
use crate::config::FeatureGates;
use crate::selectors::node_terms;
use crate::store::{ResourceId, Store};
use crate::tree::{list, text};

const SLICES: &str = "resourceslices.resource.k8s.io";
/// Cost that one selector may have for one device, as upstream.
const SELECTOR_COST: u64 = 1_000_000;

/// A device by its driver, pool and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    pub driver: Box<str>,
    pub pool: Box<str>,
    pub device: Box<str>,
}

impl DeviceId {
    /// Of an entry of an allocation's results.
    pub fn of(result: &Value) -> Self {
        let text = |key: &str| result[key].as_str().unwrap_or_default().into();
        DeviceId { driver: text("driver"), pool: text("pool"), device: text("device") }
    }
}

/// What the feature gates leave.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    /// Devices may serve several claims at once.
    pub shares: bool,
    /// Devices may have to be made ready before a pod is bound.
    pub conditions: bool,
    /// A pod whose binding takes a while tells at once where it is expected.
    pub nominates: bool,
}

impl Features {
    pub fn new(gates: &FeatureGates) -> Self {
        Features {
            shares: gates.enabled("DRAConsumableCapacity"),
            conditions: gates.enabled("DRADeviceBindingConditions") && gates.enabled("DRAResourceClaimDeviceStatus"),
            nominates: gates.enabled("NominatedNodeNameForExpectation"),
        }
    }
}

/// All that drivers offer.
pub struct Inventory {
    pub features: Features,
    slices: Vec<Arc<Value>>,
    /// Slices of pools that cannot be used now, with the reason.
    doubtful: Vec<(Arc<Value>, &'static str)>,
    /// What pools share out among their devices.
    counters: Counters,
}

/// What a node can reach.
pub struct Reachable<'a> {
    pub devices: Vec<Device<'a>>,
    /// Why it is not known what all devices are.
    pub doubt: Option<String>,
    pub counters: &'a Counters,
}

/// A device that a node can reach.
pub struct Device<'a> {
    pub id: DeviceId,
    value: &'a Value,
    /// It serves several claims at once.
    pub is_shared: bool,
    /// The node that alone has it, or the nodes that can reach it; None for all.
    pub place: Option<Place<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place<'a> {
    Node(&'a str),
    /// The node that it is given away on.
    Bound,
    /// A node selector.
    Selected(&'a Value),
}

impl Inventory {
    pub fn read(store: &Store, features: Features) -> Self {
        let snapshot = store.snapshot(&ResourceId::from(SLICES));
        let all: Vec<Arc<Value>> = snapshot.range(None, None).map(|slice| slice.without_owners()).collect();
        Self::of(all, features)
    }

    /// Slices of complete pools in their newest generation are used; the others are about to change, or wrong.
    pub fn of(all: Vec<Arc<Value>>, features: Features) -> Self {
        let mut pools: BTreeMap<DeviceId, Vec<Arc<Value>>> = BTreeMap::new();
        for slice in all {
            let known = pools.entry(id_in(&slice["spec"], "")).or_default();
            let generation = |slice: &Value| slice["spec"]["pool"]["generation"].as_i64().unwrap_or(0);
            let newest = known.first().map(|first| generation(first));
            if newest.is_some_and(|newest| newest < generation(&slice)) {
                known.clear();
            }
            if newest.is_none_or(|newest| newest <= generation(&slice)) {
                known.push(slice);
            }
        }
        let (slices, doubtful) = (Vec::new(), Vec::new());
        let mut out = Inventory { features, slices, doubtful, counters: Counters::default() };
        // Pools whose devices have to be made ready come after those that are.
        let mut later = Vec::new();
        for slices in pools.into_values() {
            let wanted = slices.first().and_then(|s| s["spec"]["pool"]["resourceSliceCount"].as_u64()).unwrap_or(1);
            let mut names = HashSet::new();
            let devices = slices.iter().flat_map(|slice| list(&slice["spec"], "devices"));
            let is_valid = devices.into_iter().all(|device| names.insert(text(device, "name").to_owned()));
            if usize::try_from(wanted) != Ok(slices.len()) {
                out.doubtful.extend(slices.into_iter().map(|slice| (slice, "is currently being updated")));
            } else if !is_valid || !out.counters.add(&slices) {
                out.doubtful.extend(slices.into_iter().map(|slice| (slice, "is currently invalid")));
            } else if slices.iter().flat_map(|slice| list(&slice["spec"], "devices")).any(waits) {
                later.extend(slices);
            } else {
                out.slices.extend(slices);
            }
        }
        out.slices.extend(later);
        out
    }

    /// What a node can reach.
    pub fn at(&self, node: &NodeInfo) -> Reachable<'_> {
        let doubtful = self.doubtful.iter().find(|(slice, _)| {
            let spec = &slice["spec"];
            spec["perDeviceNodeSelection"] == true || reach(spec, node).is_some()
        });
        let doubt =
            doubtful.map(|(slice, why)| format!("resource pool {} {why}", text(&slice["spec"]["pool"], "name")));
        let mut devices = Vec::new();
        for slice in &self.slices {
            let spec = &slice["spec"];
            let each = spec["perDeviceNodeSelection"] == true;
            let whole = reach(spec, node);
            let usable = |device: &&Value| self.features.conditions || !waits(device);
            for value in list(spec, "devices").filter(usable) {
                let Some(place) = (if each { reach(value, node) } else { whole }) else { continue };
                // Who binds to a node serves that one alone from then on.
                let place = if value["bindsToNode"] == true { Some(Place::Bound) } else { place };
                let is_shared = self.features.shares && value["allowMultipleAllocations"] == true;
                devices.push(Device { id: id_in(spec, text(value, "name")), value, is_shared, place });
            }
        }
        Reachable { devices, doubt, counters: &self.counters }
    }
}

/// Whether a device has to be made ready before it is used.
fn waits(device: &Value) -> bool {
    list(device, "bindingConditions").next().is_some()
}

/// A device of a slice's pool.
fn id_in(spec: &Value, device: &str) -> DeviceId {
    DeviceId { driver: text(spec, "driver").into(), pool: text(&spec["pool"], "name").into(), device: device.into() }
}

/// Whether a node reaches what a slice or a device describes, and who else does.
fn reach<'a>(what: &'a Value, node: &NodeInfo) -> Option<Option<Place<'a>>> {
    if let Some(name) = what["nodeName"].as_str().filter(|n| !n.is_empty()) {
        return (*name == *node.name()).then_some(Some(Place::Node(name)));
    }
    if what["allNodes"] == true {
        return Some(None);
    }
    let selector = what.get("nodeSelector").filter(|s| s.is_object())?;
    let fits = node_terms(selector).iter().any(|term| term.matches(node.labels(), node.name()));
    fits.then_some(Some(Place::Selected(selector)))
}

impl Device<'_> {
    pub fn capacity(&self) -> &Value {
        &self.value["capacity"]
    }

    /// Conditions that the device waits for, and those that end the waiting; as the field of that name.
    pub fn conditions(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|list| list.as_array().is_some_and(|list| !list.is_empty()))
    }

    /// An attribute by its full name, `domain/name`; without a domain it is the driver's.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        let attributes = &self.value["attributes"];
        let own = name.split_once('/').filter(|(domain, _)| **domain == *self.id.driver).map(|(_, rest)| rest);
        attributes.get(name).or_else(|| attributes.get(own?))
    }

    /// Whether nothing keeps claims away from the device.
    pub fn is_tolerated(&self, tolerations: &[Value]) -> bool {
        list(self.value, "taints").all(|taint| {
            let effect = text(taint, "effect");
            !matches!(effect, "NoSchedule" | "NoExecute") || tolerations.iter().any(|t| bears_taint(t, taint))
        })
    }

    pub fn fits(&self, wish: &Wish) -> Result<bool, String> {
        if wish.selectors.is_empty() {
            return Ok(true);
        }
        let device = self.shown();
        for selector in &wish.selectors {
            let mut budget = Budget::new(SELECTOR_COST);
            match selector.eval(&[("device", device.clone())], &mut budget) {
                Ok(cel::Value::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(Failure::Error(why)) => return Err(format!("request {}: CEL runtime error: {why}", wish.name)),
                Err(_) => return Err(format!("request {}: CEL cost limit exceeded", wish.name)),
            }
        }
        Ok(true)
    }

    /// The device as expressions see it: attributes and capacities by domain, then by name.
    fn shown(&self) -> cel::Value<'static> {
        let empty = Map::new();
        let of = |key: &str| self.value[key].as_object().unwrap_or(&empty);
        let attributes = by_domain(&self.id.driver, of("attributes"), attribute_value);
        let capacity = by_domain(&self.id.driver, of("capacity"), |amount| {
            amount["value"].as_str()?.parse().ok().map(cel::Value::Quantity)
        });
        let fields = [
            ("driver", cel::Value::text(self.id.driver.to_string())),
            ("attributes", attributes),
            ("capacity", capacity),
            ("allowMultipleAllocations", cel::Value::Bool(self.is_shared)),
        ];
        cel::Value::Map(fields.map(|(name, value)| (cel::Value::text(name), value)).to_vec().into())
    }
}

fn attribute_value(attribute: &Value) -> Option<cel::Value<'static>> {
    let (kind, value) = attribute.as_object()?.iter().next()?;
    Some(match (kind.as_str(), value) {
        ("version", Value::String(text)) => cel::Value::Semver(Arc::new(cel::parse_version(text).ok()?)),
        (_, Value::Bool(truth)) => cel::Value::Bool(*truth),
        (_, Value::Number(number)) => cel::Value::Int(number.as_i64()?),
        (_, Value::String(text)) => cel::Value::text(text.clone()),
        _ => return None,
    })
}

fn by_domain(
    driver: &str,
    entries: &Map<String, Value>,
    read: impl Fn(&Value) -> Option<cel::Value<'static>>,
) -> cel::Value<'static> {
    // The driver's own names stand under its domain, which is there even when it has none.
    let mut domains: BTreeMap<&str, Vec<(cel::Value<'static>, cel::Value<'static>)>> =
        BTreeMap::from([(driver, Vec::new())]);
    for (name, value) in entries {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        if let Some(value) = read(value) {
            domains.entry(domain).or_default().push((cel::Value::text(id.to_owned()), value));
        }
    }
    let map = domains
        .into_iter()
        .map(|(domain, values)| (cel::Value::text(domain.to_owned()), cel::Value::Map(values.into())));
    cel::Value::Map(map.collect::<Vec<_>>().into())
}

/// Whether a request bears a taint.
pub fn bears_taint(toleration: &Value, taint: &Value) -> bool {
    let effect = text(toleration, "effect");
    if !effect.is_empty() && effect != text(taint, "effect") {
        return false;
    }
    let key = text(toleration, "key");
    if !key.is_empty() && key != text(taint, "key") {
        return false;
    }
    text(toleration, "operator") == "Exists" || text(toleration, "value") == text(taint, "value")
}
