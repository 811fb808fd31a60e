//! Which devices a claim could have on a node: the search through what drivers publish in ResourceSlices.
//!
//! Follows the allocator of dynamic resource allocation: devices of complete pools in their newest generation, in the
//! order in which they are published; the first set that satisfies every request and every constraint is taken.
//!
//! Devices may draw on counters that a pool shares out among them ([`super::counters`]).
//!
//! Limits: devices that serve several claims at once are given to nobody; taints that a DeviceTaintRule adds are not looked
//! at.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::counters::{Counters, Left};
use super::node::NodeInfo;
use crate::cel::{self, Budget, Failure};
use crate::selectors::node_terms;
use crate::store::{ResourceId, Store};
use crate::tree::{list, text};
use crate::validate::DEVICE_VARIABLES;

const SLICES: &str = "resourceslices.resource.k8s.io";
/// What one search may try before it gives up: claims with many requests over many like devices grow without bound.
const MOST_TRIES: usize = 20_000;
/// Devices that one claim may have, as its validation says.
const MOST_RESULTS: usize = 32;
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

/// All that drivers offer.
pub struct Inventory {
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
    doubt: Option<String>,
    counters: &'a Counters,
}

/// A device that a node can reach.
pub struct Device<'a> {
    pub id: DeviceId,
    value: &'a Value,
    /// Nobody can have it by itself: it serves several claims at once.
    left_alone: bool,
    /// The node that alone has it, or the nodes that can reach it; None for all.
    pub place: Option<Place<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place<'a> {
    Node(&'a str),
    /// A node selector.
    Selected(&'a Value),
}

impl Inventory {
    pub fn read(store: &Store) -> Self {
        let snapshot = store.snapshot(&ResourceId::from(SLICES));
        let all: Vec<Arc<Value>> = snapshot.range(None, None).map(|slice| slice.without_owners()).collect();
        Self::of(all)
    }

    /// Slices of complete pools in their newest generation are used; the others are about to change, or wrong.
    pub fn of(all: Vec<Arc<Value>>) -> Self {
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
        let mut out = Inventory { slices: Vec::new(), doubtful: Vec::new(), counters: Counters::default() };
        for slices in pools.into_values() {
            let wanted = slices.first().and_then(|s| s["spec"]["pool"]["resourceSliceCount"].as_u64()).unwrap_or(1);
            let mut names = HashSet::new();
            let devices = slices.iter().flat_map(|slice| list(&slice["spec"], "devices"));
            let is_valid = devices.into_iter().all(|device| names.insert(text(device, "name").to_owned()));
            if usize::try_from(wanted) != Ok(slices.len()) {
                out.doubtful.extend(slices.into_iter().map(|slice| (slice, "is currently being updated")));
            } else if !is_valid || !out.counters.add(&slices) {
                out.doubtful.extend(slices.into_iter().map(|slice| (slice, "is currently invalid")));
            } else {
                out.slices.extend(slices);
            }
        }
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
            for value in list(spec, "devices") {
                let Some(place) = (if each { reach(value, node) } else { whole }) else { continue };
                let left_alone = value["allowMultipleAllocations"] == true;
                devices.push(Device { id: id_in(spec, text(value, "name")), value, left_alone, place });
            }
        }
        Reachable { devices, doubt, counters: &self.counters }
    }
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

/// One way to satisfy a request.
#[derive(Debug)]
pub struct Wish {
    /// `request`, or `request/alternative`.
    pub name: String,
    /// None for all that match.
    pub count: Option<usize>,
    pub admin: bool,
    pub tolerations: Vec<Value>,
    selectors: Vec<cel::Program>,
    /// What the class adds for the driver.
    pub class_config: Vec<Value>,
}

/// What a claim asks for: requests, each with its alternatives in order of preference.
#[derive(Debug)]
pub struct Demand {
    pub requests: Vec<Vec<Wish>>,
    constraints: Vec<Value>,
}

impl Demand {
    /// Reads a claim's spec; `class` finds a DeviceClass by its name.
    ///
    /// # Errors
    /// Why it can be satisfied nowhere.
    pub fn read(spec: &Value, class: impl Fn(&str) -> Option<Arc<Value>>) -> Result<Self, String> {
        let devices = &spec["devices"];
        let mut requests = Vec::new();
        for request in list(devices, "requests") {
            let name = text(request, "name");
            let exactly = &request["exactly"];
            let wishes = match exactly.is_object() {
                true => vec![wish(name.to_owned(), exactly, &class)?],
                false => list(request, "firstAvailable")
                    .map(|sub| wish(format!("{name}/{}", text(sub, "name")), sub, &class))
                    .collect::<Result<_, _>>()?,
            };
            requests.push(wishes);
        }
        // The fewest that any choice among the alternatives takes.
        let fewest = |wishes: &Vec<Wish>| wishes.iter().map(|w| w.count.unwrap_or(1)).min().unwrap_or(0);
        if requests.iter().map(fewest).fold(0, usize::saturating_add) > MOST_RESULTS {
            return Err(format!("more than the {MOST_RESULTS} devices that a claim may have"));
        }
        Ok(Demand { requests, constraints: list(devices, "constraints").cloned().collect() })
    }
}

fn wish(name: String, wanted: &Value, class: &impl Fn(&str) -> Option<Arc<Value>>) -> Result<Wish, String> {
    let class_name = text(wanted, "deviceClassName");
    let class = class(class_name).ok_or_else(|| format!("request {name}: device class {class_name} does not exist"))?;
    let all = list(&class["spec"], "selectors").chain(list(wanted, "selectors"));
    let mut selectors = Vec::new();
    for selector in all {
        let expression = text(&selector["cel"], "expression");
        let program = cel::compile(expression, &*DEVICE_VARIABLES)
            .map_err(|why| format!("request {name}: selector {expression}: {why}"))?;
        selectors.push(program);
    }
    let count = match text(wanted, "allocationMode") {
        "All" => None,
        _ => Some(wanted["count"].as_u64().map_or(1, |n| usize::try_from(n).unwrap_or(usize::MAX))),
    };
    Ok(Wish {
        name,
        count,
        admin: wanted["adminAccess"] == true,
        tolerations: list(wanted, "tolerations").cloned().collect(),
        selectors,
        class_config: list(&class["spec"], "config").cloned().collect(),
    })
}

/// What a request got: the way it was satisfied, and a device's place in the list.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    pub wish: &'a Wish,
    pub device: usize,
}

/// A search over several claims at once.
struct Search<'a, 'r> {
    demands: &'a [Demand],
    devices: &'r [Device<'r>],
    doubt: Option<&'r str>,
    /// Devices that somebody has, or that this search gives away.
    taken: HashSet<usize>,
    /// What is left of shared counters.
    left: Left<'r>,
    /// For each claim, what its requests have so far.
    chosen: Vec<Vec<Chosen<'a>>>,
    matches: HashMap<*const Wish, Arc<[usize]>>,
    tries: usize,
}

/// Devices for all claims together; for each claim what it gets, in the order of its requests.
///
/// # Errors
/// Why there are none.
pub fn allocate<'a, 'r>(
    demands: &'a [Demand],
    reachable: &'r Reachable<'r>,
    used: &BTreeSet<DeviceId>,
) -> Result<Vec<Vec<Chosen<'a>>>, String> {
    let devices = &reachable.devices;
    let taken = devices.iter().enumerate().filter(|(_, d)| used.contains(&d.id)).map(|(at, _)| at).collect();
    let chosen = demands.iter().map(|_| Vec::new()).collect();
    let doubt = reachable.doubt.as_deref();
    let left = reachable.counters.left(used);
    let mut search = Search { demands, devices, doubt, taken, left, chosen, matches: HashMap::new(), tries: 0 };
    match search.request(0, 0)? {
        true => Ok(search.chosen),
        false => Err("cannot allocate all claims".into()),
    }
}

impl<'a> Search<'a, '_> {
    /// Satisfies a request and all that come after it.
    fn request(&mut self, claim: usize, request: usize) -> Result<bool, String> {
        let demands = self.demands;
        let Some(demand) = demands.get(claim) else { return Ok(true) };
        let Some(wishes) = demand.requests.get(request) else { return self.request(claim + 1, 0) };
        for wish in wishes {
            let matching = self.matching(wish)?;
            let found = match wish.count {
                Some(count) => self.pick((claim, request), wish, &matching, count)?,
                None => self.pick_all((claim, request), wish, &matching)?,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes `count` more of the devices that match, then goes on with the next request.
    fn pick(&mut self, at: (usize, usize), wish: &'a Wish, from: &[usize], count: usize) -> Result<bool, String> {
        if count == 0 {
            return self.request(at.0, at.1 + 1);
        }
        for (skipped, &device) in from.iter().enumerate() {
            if from.len() - skipped < count {
                break;
            }
            if !self.take(at.0, wish, device)? {
                continue;
            }
            if self.pick(at, wish, &from[skipped + 1..], count - 1)? {
                return Ok(true);
            }
            self.put_back(at.0);
        }
        Ok(false)
    }

    /// Takes every device that matches; somebody else may have none of them.
    fn pick_all(&mut self, at: (usize, usize), wish: &'a Wish, from: &[usize]) -> Result<bool, String> {
        if let Some(doubt) = self.doubt {
            return Err(format!("request {}: asks for all devices, but {doubt}", wish.name));
        }
        let mut count = 0;
        for &device in from {
            if !self.take(at.0, wish, device)? {
                break;
            }
            count += 1;
        }
        if count == from.len() && count > 0 && self.request(at.0, at.1 + 1)? {
            return Ok(true);
        }
        (0..count).for_each(|_| self.put_back(at.0));
        Ok(false)
    }

    /// Gives a device to a claim unless it is taken or would break a constraint.
    fn take(&mut self, claim: usize, wish: &'a Wish, device: usize) -> Result<bool, String> {
        self.tries += 1;
        if self.tries > MOST_TRIES {
            return Err("too many combinations of devices to try them all".into());
        }
        let found = &self.devices[device];
        if found.left_alone
            || self.chosen[claim].len() >= MOST_RESULTS
            || self.chosen[claim].iter().any(|c| c.device == device)
            || !wish.admin && self.taken.contains(&device)
            || !found.is_tolerated(&wish.tolerations)
            || !self.keeps_constraints(claim, wish, device)
            || !wish.admin && !self.left.take(&found.id)
        {
            return Ok(false);
        }
        if !wish.admin {
            self.taken.insert(device);
        }
        self.chosen[claim].push(Chosen { wish, device });
        Ok(true)
    }

    fn put_back(&mut self, claim: usize) {
        if let Some(chosen) = self.chosen[claim].pop()
            && !chosen.wish.admin
        {
            self.taken.remove(&chosen.device);
            self.left.put_back(&self.devices[chosen.device].id);
        }
    }

    fn keeps_constraints(&self, claim: usize, wish: &Wish, device: usize) -> bool {
        self.demands[claim].constraints.iter().all(|constraint| {
            if !concerns(constraint, &wish.name) {
                return true;
            }
            let others = self.chosen[claim].iter().filter(|c| concerns(constraint, &c.wish.name));
            let others = others.map(|c| &self.devices[c.device]);
            match (constraint["matchAttribute"].as_str(), constraint["distinctAttribute"].as_str()) {
                (Some(name), _) => match self.devices[device].attribute(name) {
                    Some(own) => others.into_iter().all(|o| o.attribute(name) == Some(own)),
                    None => false,
                },
                (None, Some(name)) => match self.devices[device].attribute(name) {
                    Some(own) => others.into_iter().all(|o| o.attribute(name) != Some(own)),
                    None => false,
                },
                // A constraint of a later version: it cannot be kept, so nothing may be given away under it.
                (None, None) => false,
            }
        })
    }

    /// Places of the devices that fit a wish, taken or not.
    fn matching(&mut self, wish: &'a Wish) -> Result<Arc<[usize]>, String> {
        if let Some(known) = self.matches.get(&std::ptr::from_ref(wish)) {
            return Ok(known.clone());
        }
        let mut out = Vec::new();
        for (at, device) in self.devices.iter().enumerate() {
            if device.fits(wish)? {
                out.push(at);
            }
        }
        let out: Arc<[usize]> = out.into();
        self.matches.insert(std::ptr::from_ref(wish), out.clone());
        Ok(out)
    }
}

/// Whether a constraint is about a request; one that lists a request is about its alternatives too.
fn concerns(constraint: &Value, request: &str) -> bool {
    let main = request.split('/').next().unwrap_or(request);
    let mut listed = list(constraint, "requests").peekable();
    listed.peek().is_none() || listed.any(|name| *name == *request || *name == *main)
}

impl Device<'_> {
    /// An attribute by its full name, `domain/name`; without a domain it is the driver's.
    fn attribute(&self, name: &str) -> Option<&Value> {
        let attributes = &self.value["attributes"];
        let own = name.split_once('/').filter(|(domain, _)| **domain == *self.id.driver).map(|(_, rest)| rest);
        attributes.get(name).or_else(|| attributes.get(own?))
    }

    /// Whether nothing keeps claims away from the device.
    fn is_tolerated(&self, tolerations: &[Value]) -> bool {
        list(self.value, "taints").all(|taint| {
            let effect = text(taint, "effect");
            !matches!(effect, "NoSchedule" | "NoExecute") || tolerations.iter().any(|t| tolerates(t, taint))
        })
    }

    fn fits(&self, wish: &Wish) -> Result<bool, String> {
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
            ("allowMultipleAllocations", cel::Value::Bool(false)),
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
fn tolerates(toleration: &Value, taint: &Value) -> bool {
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
