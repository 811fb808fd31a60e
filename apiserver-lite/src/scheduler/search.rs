//! The search for devices: which of those a node can reach satisfy every request and every constraint of the claims.
//!
//! Follows the allocator of dynamic resource allocation: devices are tried in the order in which they are published, and the
//! first set that satisfies everything is taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::counters::Left;
use super::devices::{Device, Reachable};
use super::shares::{self, Amounts, Used};
use crate::cel;
use crate::tree::{list, text};
use crate::validate::DEVICE_VARIABLES;

/// What one search may try before it gives up: claims with many requests over many like devices grow without bound.
const MOST_TRIES: usize = 20_000;
/// Devices that one claim may have, as its validation says.
const MOST_RESULTS: usize = 32;

/// One way to satisfy a request.
#[derive(Debug)]
pub struct Wish {
    /// `request`, or `request/alternative`.
    pub name: String,
    /// None for all that match.
    pub count: Option<usize>,
    pub admin: bool,
    pub tolerations: Vec<Value>,
    pub selectors: Vec<cel::Program>,
    /// What is asked for of the device's capacities.
    pub capacity: Amounts,
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
        capacity: shares::amounts(&wanted["capacity"]["requests"]),
        class_config: list(&class["spec"], "config").cloned().collect(),
    })
}

/// What a request got: the way it was satisfied, and a device's place in the list.
#[derive(Debug, Clone)]
pub struct Chosen<'a> {
    pub wish: &'a Wish,
    pub device: usize,
    /// What it takes of the device's capacities, where that serves others too.
    pub share: Option<Amounts>,
}

/// Shares of a device that a search gives away.
#[derive(Debug, Default)]
struct Given {
    /// Those that draw on counters.
    count: usize,
    amounts: Amounts,
}

/// A search over several claims at once.
struct Search<'a, 'r> {
    demands: &'a [Demand],
    devices: &'r [Device<'r>],
    doubt: Option<&'r str>,
    /// Devices that somebody has, or that this search gives away.
    taken: HashSet<usize>,
    used: &'r Used,
    /// Of devices that serve several claims.
    given: HashMap<usize, Given>,
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
    used: &'r Used,
) -> Result<Vec<Vec<Chosen<'a>>>, String> {
    let devices = &reachable.devices;
    let is_taken = |d: &Device<'_>| used.is_whole(&d.id) || !d.is_shared && used.of_shares(&d.id).is_some();
    let taken = devices.iter().enumerate().filter(|(_, d)| is_taken(d)).map(|(at, _)| at).collect();
    let chosen = demands.iter().map(|_| Vec::new()).collect();
    let doubt = reachable.doubt.as_deref();
    let left = reachable.counters.left(used);
    let (given, matches) = (HashMap::new(), HashMap::new());
    let mut search = Search { demands, devices, doubt, taken, used, given, left, chosen, matches, tries: 0 };
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
        if self.chosen[claim].len() >= MOST_RESULTS
            || !found.is_shared && self.chosen[claim].iter().any(|c| c.device == device)
            || !wish.admin && self.taken.contains(&device)
            || !found.is_tolerated(&wish.tolerations)
            || !self.keeps_constraints(claim, wish, device)
        {
            return Ok(false);
        }
        let Some(taken) = self.share(wish, device, true) else { return Ok(false) };
        // What draws on counters does so once, however many share it.
        if !wish.admin && !self.has_shares(device) && !self.left.take(&found.id) {
            return Ok(false);
        }
        if found.is_shared {
            let given = self.given.entry(device).or_default();
            given.count += usize::from(!wish.admin);
            shares::add(&mut given.amounts, &taken);
        } else if !wish.admin {
            self.taken.insert(device);
        }
        self.chosen[claim].push(Chosen { wish, device, share: found.is_shared.then_some(taken) });
        Ok(true)
    }

    fn put_back(&mut self, claim: usize) {
        let Some(chosen) = self.chosen[claim].pop() else { return };
        let device = chosen.device;
        match (chosen.share, self.given.get_mut(&device)) {
            (Some(taken), Some(given)) => {
                given.count -= usize::from(!chosen.wish.admin);
                shares::subtract(&mut given.amounts, &taken);
            }
            _ if !chosen.wish.admin => drop(self.taken.remove(&device)),
            _ => {}
        }
        if !chosen.wish.admin && !self.has_shares(device) {
            self.left.put_back(&self.devices[device].id);
        }
    }

    /// Whether somebody has a share of a device.
    fn has_shares(&self, device: usize) -> bool {
        self.given.get(&device).is_some_and(|given| given.count > 0)
            || self.used.of_shares(&self.devices[device].id).is_some()
    }

    /// What a wish takes of a device's capacities; none where they do not allow it. `search`: beside what this search gives
    /// away too.
    fn share(&self, wish: &Wish, device: usize, search: bool) -> Option<Amounts> {
        let found = &self.devices[device];
        if !found.is_shared && wish.capacity.is_empty() {
            return Some(Amounts::new());
        }
        let given = self.given.get(&device).filter(|_| search).map(|given| &given.amounts);
        shares::fitting(found.capacity(), &wish.capacity, [self.used.of_shares(&found.id), given])
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
            // All devices are all that have enough left, but for what the same pod asks for besides.
            let is_enough = || wish.count.is_some() || self.share(wish, at, false).is_some();
            if device.fits(wish)? && is_enough() {
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
