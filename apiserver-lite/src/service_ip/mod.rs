//! Addresses and node ports of services: handed out on create and update, known from the store, given back with the
//! service or with what an update takes off it.
//!
//! The set of what is taken is read from the store at the first use and kept after that. What a call hands out is taken
//! at once, so that no other gets it, and given back where the write fails; what it lets go is free only once the write
//! has succeeded. An address that somebody else holds by an IPAddress of their own is looked up when it is wanted.

mod addresses;
mod fields;
mod ranges;

use std::cell::LazyCell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use self::addresses::is_held;
pub use self::addresses::run;
use self::fields::{text, texts};
use crate::config::{Cidr, PortRange};
use crate::field_error::Rules;
use crate::status::{ApiError, Cause, Result};
use crate::store::Store;
use crate::write::invalid;

#[derive(Debug)]
pub struct ServiceAllocator {
    ranges: Vec<Cidr>,
    ports: PortRange,
    rules: Rules,
    taken: Mutex<Option<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

/// Addresses and ports.
#[derive(Debug, Default)]
struct Lot {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// What one call handed out, and what the service had before and needs no more. Dropped before the write has begun, it
/// gives back what was handed out; a write whose end nobody saw leaves both taken.
#[derive(Debug)]
pub struct Allocation<'a> {
    allocator: &'a ServiceAllocator,
    got: Lot,
    let_go: Lot,
    writing: bool,
}

impl Allocation<'_> {
    /// The service is being written from here on.
    pub fn begin(&mut self) {
        self.writing = true;
    }

    /// What was let go is free where the service was stored, what was handed out where it was not.
    pub fn end(mut self, stored: bool) {
        self.writing = true;
        self.allocator.release(if stored { &self.let_go } else { &self.got });
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        if !self.writing {
            self.allocator.release(&self.got);
        }
    }
}

/// One call about one service.
struct Request<'a> {
    name: String,
    spec: &'a mut Value,
    old: Option<&'a Value>,
    got: Lot,
    let_go: Lot,
}

impl ServiceAllocator {
    pub fn new(ranges: Vec<Cidr>, ports: PortRange) -> Self {
        ServiceAllocator { ranges, ports, rules: Rules::default(), taken: Mutex::new(None) }
    }

    /// The same, with what feature gates make of the rules.
    pub fn by(self, rules: Rules) -> Self {
        ServiceAllocator { rules, ..self }
    }

    /// Fills in addresses and ports of a new service, or of one that replaces another.
    ///
    /// # Errors
    /// 422 when something asked for is wrong, taken or out of range; 500 when nothing is free.
    pub fn allocate(&self, store: &Store, service: &mut Value, old: Option<&Value>) -> Result<Allocation<'_>> {
        let allocation = |got, let_go| Allocation { allocator: self, got, let_go, writing: false };
        let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let old = old.map(|o| &o["spec"]);
        let spec = &mut service["spec"];
        if !spec.is_object() {
            return Ok(allocation(Lot::default(), Lot::default()));
        }
        fields::agree(spec, old);
        if let Some(old) = old {
            fields::keep(spec, old);
        }
        let mut request = Request { name, spec, old, got: Lot::default(), let_go: Lot::default() };
        self.families(&mut request)?;
        let mut guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = guard.get_or_insert_with(|| in_use(store));
        let result = self
            .addresses(taken, || self.ready_ranges(store), &|address| is_held(store, address), &mut request)
            .and_then(|()| self.node_ports(taken, &mut request))
            .and_then(|()| self.health_port(taken, &mut request));
        let Request { spec, got, let_go, .. } = request;
        if let Err(error) = result {
            give_back(taken, &got);
            return Err(error);
        }
        if let Some(old) = old {
            fields::drop_for_type(spec, old);
        }
        Ok(allocation(got, let_go))
    }

    /// Takes back what a deleted service had.
    pub fn release_service(&self, service: &Value) {
        self.release(&owned(&service["spec"]));
    }

    fn release(&self, lot: &Lot) {
        let mut guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = guard.as_mut() {
            give_back(taken, lot);
        }
    }

    /// The ranges that addresses come from; which families there are is configured alone.
    fn ready_ranges(&self, store: &Store) -> Vec<Cidr> {
        let objects = store.snapshot(&"servicecidrs.networking.k8s.io".into());
        let mut said = Vec::new();
        for object in objects.range(None, None) {
            let object = object.without_owners();
            let ready = is_ready(&object);
            said.extend(cidrs(&object).map(|range| (range, ready)));
        }
        serving(&self.ranges, &said)
    }

    fn range(&self, family: &str) -> Option<&Cidr> {
        self.ranges.iter().find(|r| r.is_ipv4() == (family == "IPv4"))
    }

    /// Settles the address families of a service and how many it has to have.
    fn families(&self, request: &mut Request<'_>) -> Result<()> {
        let Request { spec, old, .. } = request;
        if text(spec, "type") == "ExternalName" || keeps_both(spec, *old) {
            return Ok(());
        }
        let headless = spec["clusterIP"] == "None";
        let open = headless && spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
        if text(spec, "ipFamilyPolicy").is_empty() {
            let before = old.map(|o| text(o, "ipFamilyPolicy")).filter(|p| !p.is_empty());
            let policy = before.unwrap_or(if open { "RequireDualStack" } else { "SingleStack" }).to_owned();
            spec["ipFamilyPolicy"] = policy.into();
        }
        let mut causes: Vec<Cause> =
            crate::validate::cluster_ips(spec, *old, self.rules).into_iter().map(Into::into).collect();
        if !causes.is_empty() {
            return Err(invalid("", "Service", &request.name, causes));
        }
        let policy = text(spec, "ipFamilyPolicy").to_owned();
        let mut complain = |field: &str, value: &Value, why: String| causes.push(cause(field, value, &why));
        let policy_value = Value::from(&*policy);
        if let Some(old) = old {
            for (name, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
                let (now, before) = (texts(spec, name), texts(old, name));
                if policy != "SingleStack" {
                    if before.len() == 2 && now.len() == 1 && before[0] == now[0] {
                        let why = format!("must be 'SingleStack' to release the secondary {what}");
                        complain("spec.ipFamilyPolicy", &policy_value, why);
                    }
                } else if now == before && now.len() > 1 {
                    spec[name] = json!([now[0]]);
                }
            }
        }
        let (addresses, mut families) = (texts(spec, "clusterIPs"), texts(spec, "ipFamilies"));
        if policy == "SingleStack" {
            for (count, what) in [(addresses.len(), "cluster IPs"), (families.len(), "IP families")] {
                if count == 2 {
                    let why =
                        format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                    complain("spec.ipFamilyPolicy", &policy_value, why);
                }
            }
        }
        for (index, address) in addresses.iter().enumerate().take_while(|(_, a)| *a != "None") {
            let family = if address.contains(':') { "IPv6" } else { "IPv4" };
            if index < families.len() {
                continue;
            }
            match self.range(family) {
                Some(_) => families.push(family.into()),
                None => {
                    let field = format!("spec.clusterIPs[{index}]");
                    complain(&field, &spec["clusterIPs"], format!("{family} is not configured on this cluster"));
                }
            }
        }
        let default = if self.ranges.first().is_none_or(|r| r.is_ipv4()) { "IPv4" } else { "IPv6" };
        let other = |family: &str| if family == "IPv4" { "IPv6" } else { "IPv4" };
        let both = self.range("IPv4").is_some() && self.range("IPv6").is_some();
        if causes.is_empty() && !open {
            let mut complain = |field: &str, value: &Value, why: &str| causes.push(cause(field, value, why));
            if policy == "RequireDualStack" && !both {
                let why = "this cluster is not configured for dual-stack services";
                complain("spec.ipFamilyPolicy", &policy_value, why);
            }
            for (index, family) in families.iter().enumerate().filter(|(_, f)| self.range(f).is_none()) {
                let field = format!("spec.ipFamilies[{index}]");
                complain(&field, &Value::from(&**family), "not configured on this cluster");
            }
        }
        if !causes.is_empty() {
            return Err(invalid("", "Service", &request.name, causes));
        }
        if families.is_empty() {
            families.push(default.into());
        }
        if policy != "SingleStack" && families.len() == 1 && (both || open) {
            families.push(other(&families[0]).into());
        }
        spec["ipFamilies"] = json!(families);
        Ok(())
    }

    /// `ranges` are read where an address is needed, and whether one is `held` by others: most writes of services keep
    /// what they have.
    fn addresses(
        &self,
        taken: &mut Taken,
        ranges: impl FnOnce() -> Vec<Cidr>,
        held: &dyn Fn(IpAddr) -> bool,
        request: &mut Request<'_>,
    ) -> Result<()> {
        let Request { spec, old, got, let_go, .. } = request;
        let external = |spec: &Value| text(spec, "type") == "ExternalName";
        let old = old.filter(|o| !external(o));
        let had = old.map(|o| texts(o, "clusterIPs")).unwrap_or_default();
        if had.first().is_some_and(|a| a == "None") {
            return Ok(());
        }
        let free = |lot: &mut Lot, from: usize| {
            lot.addresses.extend(had.iter().skip(from).filter_map(|a| a.parse::<IpAddr>().ok()))
        };
        if external(spec) {
            free(let_go, 0);
            return Ok(());
        }
        if spec["clusterIP"] == "None" || old.is_some_and(|old| keeps_both(spec, Some(old))) {
            return Ok(());
        }
        let families = texts(spec, "ipFamilies");
        let mut all = texts(spec, "clusterIPs");
        if old.is_some() {
            free(let_go, families.len());
        }
        let shown = json!(all);
        // An update may add a second address or take it away; the first stays.
        let first = if old.is_some() { had.len() } else { 0 };
        let ranges = LazyCell::new(ranges);
        for (index, family) in families.iter().enumerate().skip(first) {
            if self.range(family).is_none() {
                continue;
            }
            let ranges = ranges.iter().filter(|r| r.is_ipv4() == (family == "IPv4"));
            let address = match all.get(index).filter(|a| !a.is_empty()) {
                Some(text) => take(taken, held, ranges, text)
                    .map_err(|why| refuse(&request.name, "spec.clusterIPs", &shown, &why))?,
                None => find(taken, held, ranges)?,
            };
            got.addresses.push(address);
            if index < all.len() {
                all[index] = address.to_string();
            } else {
                all.push(address.to_string());
            }
        }
        all.truncate(families.len());
        if let Some(first) = all.first() {
            spec["clusterIP"] = first.as_str().into();
            spec["clusterIPs"] = json!(all);
        }
        Ok(())
    }

    fn node_ports(&self, taken: &mut Taken, request: &mut Request<'_>) -> Result<()> {
        let Request { name, spec, old, got, let_go } = request;
        let had: Vec<u64> =
            old.filter(|o| fields::has_node_ports(o)).map(|o| fields::node_ports(o).collect()).unwrap_or_default();
        if fields::has_node_ports(spec) {
            let any = fields::gets_node_ports(spec);
            // The same port under two protocols gets the same number. An update shares a number that it has already taken
            // whatever the port.
            let mut by_port: Vec<(u64, u64)> = Vec::new();
            let asked: Vec<(u64, u64)> = list(spec).filter(|(_, n)| *n > 0).collect();
            for (index, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
                let (number, said) = (port["port"].as_u64().unwrap_or(0), port["nodePort"].as_u64().unwrap_or(0));
                let is_known = |(p, n): &&(u64, u64)| if old.is_some() { *n == said } else { *p == number };
                let known = by_port.iter().find(is_known).map(|(_, n)| *n);
                let wanted = match known {
                    Some(known) if said == 0 || said == known => Some((known, true)),
                    _ if said > 0 => Some((said, had.contains(&said))),
                    _ if !any => continue,
                    _ => asked.iter().find(|(p, _)| *p == number && old.is_none()).map(|(_, n)| (*n, false)),
                };
                let wanted = match wanted {
                    Some((number, true)) => number,
                    Some((number, false)) => {
                        let field = format!("spec.ports[{index}].nodePort");
                        let took = self.take_port(taken, number);
                        got.ports.push(took.map_err(|why| refuse(name, &field, &number.into(), &why))?);
                        number
                    }
                    None => {
                        let free = self.find_port(taken, "nodePort")?;
                        got.ports.push(free);
                        free.into()
                    }
                };
                if old.is_none() || said > 0 {
                    by_port.push((number, wanted));
                }
                port["nodePort"] = wanted.into();
            }
        }
        let now: Vec<u64> = if fields::has_node_ports(spec) { fields::node_ports(spec).collect() } else { Vec::new() };
        let_go.ports.extend(had.into_iter().filter(|p| !now.contains(p)).filter_map(|p| u16::try_from(p).ok()));
        Ok(())
    }

    fn health_port(&self, taken: &mut Taken, request: &mut Request<'_>) -> Result<()> {
        let Request { spec, old, got, let_go, .. } = request;
        let needed = old.is_some_and(fields::needs_health_port);
        match (needed, fields::needs_health_port(spec)) {
            (false, true) => {
                let port = match fields::health_port(spec) {
                    0 => self.find_port(taken, "HealthCheck NodePort 0")?,
                    asked => self.take_port(taken, asked).map_err(|why| {
                        ApiError::internal(format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"))
                    })?,
                };
                got.ports.push(port);
                spec["healthCheckNodePort"] = port.into();
            }
            (true, false) => let_go.ports.extend(old.and_then(|o| u16::try_from(fields::health_port(o)).ok())),
            _ => {}
        }
        Ok(())
    }

    fn take_port(&self, taken: &mut Taken, number: u64) -> Result<u16, String> {
        let PortRange { first, last } = self.ports;
        let port = u16::try_from(number).ok().filter(|n| (first..=last).contains(n)).ok_or_else(|| {
            format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
        })?;
        if taken.ports.insert(port) { Ok(port) } else { Err("provided port is already allocated".into()) }
    }

    /// A free port, from anywhere but the start of the range while there is one: that is for those who ask by number.
    fn find_port(&self, taken: &mut Taken, what: &str) -> Result<u16> {
        let PortRange { first, last } = self.ports;
        let size = u128::from(last - first) + 1;
        let reserved = if size < 32 { 0 } else { (size / 32).clamp(16, 128).min(size) };
        for offset in scattered(reserved, size).chain(0..reserved) {
            let port = first + u16::try_from(offset).unwrap_or_default();
            if taken.ports.insert(port) {
                return Ok(port);
            }
        }
        Err(ApiError::internal(format!("failed to allocate a {what}: range is full")))
    }
}

/// Numbers of a span, from a random one on and around.
fn scattered(from: u128, to: u128) -> impl Iterator<Item = u128> {
    let size = to.saturating_sub(from);
    // Far more than can be tried; a span of addresses may be wider than any number here.
    let start = (crate::random::fraction() * size.min(1 << 48) as f64) as u128;
    (0..size).map(move |i| from + (start + i) % size.max(1))
}

/// The port and the node port of each of a service's ports.
fn list(spec: &Value) -> impl Iterator<Item = (u64, u64)> {
    let number = |port: &Value, name: &str| port[name].as_u64().unwrap_or(0);
    spec["ports"].as_array().into_iter().flatten().map(move |p| (number(p, "port"), number(p, "nodePort")))
}

/// A service that prefers two families is neither given nor robbed of one unless it asks.
fn keeps_both(new: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    let same = |name: &str| texts(new, name) == texts(old, name);
    text(old, "type") != "ExternalName"
        && [old, new].iter().all(|spec| text(spec, "ipFamilyPolicy") == "PreferDualStack")
        && same("clusterIPs")
        && same("ipFamilies")
}

/// The addresses and ports that a service holds.
fn owned(spec: &Value) -> Lot {
    let addresses = texts(spec, "clusterIPs").iter().filter_map(|a| a.parse().ok()).collect();
    let ports = fields::node_ports(spec).chain([fields::health_port(spec)]);
    Lot { addresses, ports: ports.filter_map(|p| u16::try_from(p).ok()).filter(|p| *p > 0).collect() }
}

fn in_use(store: &Store) -> Taken {
    let mut taken = Taken::default();
    for service in store.snapshot(&"services".into()).range(None, None) {
        let owned = owned(&service.value()["spec"]);
        taken.addresses.extend(owned.addresses);
        taken.ports.extend(owned.ports);
    }
    taken
}

fn give_back(taken: &mut Taken, lot: &Lot) {
    lot.addresses.iter().for_each(|address| {
        taken.addresses.remove(address);
    });
    lot.ports.iter().for_each(|port| {
        taken.ports.remove(port);
    });
}

/// The configured ranges, and after them those that objects hold, each once. A range that objects hold counts only when
/// one of them is ready, a configured one as well.
fn serving(configured: &[Cidr], said: &[(Cidr, bool)]) -> Vec<Cidr> {
    let holds = |range: &Cidr| said.iter().any(|(other, _)| other == range);
    let kept = configured.iter().filter(|range| !holds(range) || said.contains(&(**range, true)));
    let mut all: Vec<Cidr> = kept.copied().collect();
    for (range, _) in said.iter().filter(|(_, ready)| *ready) {
        if !all.contains(range) {
            all.push(*range);
        }
    }
    all
}

/// The ranges of an object.
fn cidrs(object: &Value) -> impl Iterator<Item = Cidr> {
    texts(&object["spec"], "cidrs").into_iter().filter_map(|range| range.parse().ok())
}

/// Whether services get addresses of a range: unless it says that it is not ready, or goes.
fn is_ready(range: &Value) -> bool {
    let conditions = range["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    range["metadata"]["deletionTimestamp"].is_null() && ready.is_none_or(|c| c["status"] == "True")
}

/// Whether a range has an address for services: not the one of the network, nor that of the broadcast.
fn serves(range: Cidr, address: IpAddr) -> bool {
    let last = if range.is_ipv4() { Some(range.size() - 1) } else { None };
    range.offset(address).is_some_and(|offset| offset > 0 && Some(offset) != last)
}

fn take<'r>(
    taken: &mut Taken,
    held: &dyn Fn(IpAddr) -> bool,
    mut ranges: impl Iterator<Item = &'r Cidr>,
    text: &str,
) -> Result<IpAddr, String> {
    let failed = |why: &str| format!("failed to allocate IP {text}: {why}");
    let address = text.parse::<IpAddr>().ok().filter(|address| ranges.any(|range| serves(*range, *address)));
    let address = address.ok_or_else(|| failed("the provided network does not match the current range"))?;
    if held(address) || !taken.addresses.insert(address) {
        return Err(failed("provided IP is already allocated"));
    }
    Ok(address)
}

/// A free address of the first range that has one.
fn find<'r>(
    taken: &mut Taken,
    held: &dyn Fn(IpAddr) -> bool,
    ranges: impl Iterator<Item = &'r Cidr>,
) -> Result<IpAddr> {
    for range in ranges {
        // Addresses at the start of a range are left to those who ask for one by number, as upstream does: 16 to 256.
        let size = range.size();
        let reserved = (size / 16).clamp(16, 256).min(size / 2);
        // The last one of IPv4 is the broadcast address.
        let end = size - u128::from(range.is_ipv4());
        for index in scattered(reserved, end).chain(1..reserved) {
            let address = range.address(index);
            if !taken.addresses.contains(&address) && !held(address) {
                taken.addresses.insert(address);
                return Ok(address);
            }
        }
    }
    Err(ApiError::internal("failed to allocate a serviceIP: range is full"))
}

fn cause(field: &str, value: &Value, why: &str) -> Cause {
    Cause { reason: "FieldValueInvalid".into(), message: format!("Invalid value: {value}: {why}"), field: field.into() }
}

fn refuse(name: &str, field: &str, value: &Value, why: &str) -> ApiError {
    invalid("", "Service", name, vec![cause(field, value, why)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[&str]) -> Vec<Cidr> {
        all.iter().map(|range| range.parse().expect("a range")).collect()
    }

    #[test]
    fn addresses_come_from_every_range() {
        let all = ranges(&["10.0.0.0/30", "10.1.0.0/29"]);
        let mut taken = Taken::default();
        let asked = |taken: &mut Taken, text: &str| take(taken, &|_| false, all.iter(), text);
        assert_eq!(asked(&mut taken, "10.1.0.6"), Ok([10, 1, 0, 6].into()));
        let why = "failed to allocate IP 10.1.0.6: provided IP is already allocated";
        assert_eq!(asked(&mut taken, "10.1.0.6"), Err(why.into()));
        for outside in ["10.1.0.0", "10.1.0.7", "10.2.0.1", "10.0.0.3"] {
            let why = format!("failed to allocate IP {outside}: the provided network does not match the current range");
            assert_eq!(asked(&mut taken, outside), Err(why));
        }
        let mut found: Vec<String> = Vec::new();
        while let Ok(address) = find(&mut taken, &|_| false, all.iter()) {
            found.push(address.to_string());
        }
        found.sort();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"]);
    }

    #[test]
    fn the_last_address_of_a_wide_range_is_like_the_others() {
        let range = ranges(&["fd00::/120"])[0];
        let served = |text: &str| serves(range, text.parse().expect("an address"));
        assert!(served("fd00::ff") && served("fd00::1") && !served("fd00::") && !served("fd00::100"));
    }

    #[test]
    fn the_last_address_of_a_wide_range_is_found() {
        let all = ranges(&["fd00::/126"]);
        let mut taken = Taken::default();
        let mut found: Vec<String> = Vec::new();
        while let Ok(address) = find(&mut taken, &|_| false, all.iter()) {
            found.push(address.to_string());
        }
        found.sort();
        assert_eq!(found, ["fd00::1", "fd00::2", "fd00::3"]);
    }

    #[test]
    fn an_address_that_somebody_holds_is_given_to_no_service() {
        let all = ranges(&["10.0.0.0/29"]);
        let held = |address: IpAddr| address == IpAddr::from([10, 0, 0, 2]);
        let mut taken = Taken::default();
        let why = "failed to allocate IP 10.0.0.2: provided IP is already allocated";
        assert_eq!(take(&mut taken, &held, all.iter(), "10.0.0.2"), Err(why.into()));
        let mut found = HashSet::new();
        while let Ok(address) = find(&mut taken, &held, all.iter()) {
            found.insert(address.to_string());
        }
        assert!(found.len() == 5 && !found.contains("10.0.0.2"), "{found:?}");
    }

    /// An update that put a new number under two ports at once was refused the second time.
    #[test]
    fn an_update_shares_its_new_node_ports_whatever_the_port() {
        let allocator = ServiceAllocator::new(ranges(&["10.0.0.0/24"]), PortRange { first: 30000, last: 30100 });
        let service = |ports: &[(u64, &str, u64)]| {
            let port = |(port, protocol, number): &(u64, &str, u64)| json!({"port": port, "protocol": protocol, "nodePort": number});
            json!({"type": "NodePort", "ports": ports.iter().map(port).collect::<Vec<_>>()})
        };
        let mut taken = Taken { ports: HashSet::from([30001, 30009]), ..Taken::default() };
        let old = service(&[(80, "TCP", 30001)]);
        let mut update = |ports: &[(u64, &str, u64)]| {
            let mut spec = service(ports);
            let (got, let_go) = (Lot::default(), Lot::default());
            let mut request = Request { name: "a".into(), spec: &mut spec, old: Some(&old), got, let_go };
            let result = allocator.node_ports(&mut taken, &mut request);
            let got = std::mem::take(&mut request.got.ports);
            result.map(|()| (got, fields::node_ports(&spec).collect::<Vec<_>>()))
        };
        let shared = update(&[(80, "TCP", 30001), (81, "UDP", 30001), (82, "TCP", 30002), (83, "UDP", 30002)]);
        assert_eq!(shared.expect("free"), (vec![30002], vec![30001, 30001, 30002, 30002]));
        let (got, numbers) = update(&[(80, "TCP", 30003), (80, "UDP", 0)]).expect("free");
        assert!(got.len() == 2 && numbers[0] == 30003 && numbers[1] != 30003, "{numbers:?}");
        let error = update(&[(80, "TCP", 30009)]).expect_err("another service has it");
        assert!(error.status().message.contains("provided port is already allocated"), "{}", error.status().message);
    }

    #[test]
    fn a_range_counts_once_and_not_while_its_objects_go() {
        let all = ranges(&["10.0.0.0/24", "fd00::/112", "10.1.0.0/24"]);
        let [first, second, other] = all[..] else { panic!("three ranges") };
        let configured = [first, second];
        assert_eq!(serving(&configured, &[]), configured);
        assert_eq!(serving(&configured, &[(other, true), (second, true), (first, true)]), [first, second, other]);
        assert_eq!(serving(&configured, &[(first, false), (second, false), (other, false)]), []);
        assert_eq!(serving(&configured, &[(first, false), (first, true)]), [first, second]);
        assert_eq!(serving(&configured, &[(other, true), (other, true)]), [first, second, other]);
    }

    #[test]
    fn ranges_are_read_only_for_who_needs_an_address() {
        let allocator = ServiceAllocator::new(ranges(&["10.0.0.0/24"]), PortRange { first: 30000, last: 30010 });
        let spec = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"});
        let read = |spec: &mut Value, old: Option<&Value>| {
            let mut times = 0;
            let mut request = Request { name: "a".into(), spec, old, got: Lot::default(), let_go: Lot::default() };
            let ranges = || {
                times += 1;
                ranges(&["10.0.0.0/24"])
            };
            let taken = &mut Taken::default();
            allocator.addresses(taken, ranges, &|_| false, &mut request).expect("there are addresses");
            times
        };
        assert_eq!(read(&mut spec.clone(), None), 1);
        assert_eq!(read(&mut spec.clone(), Some(&spec)), 0);
    }

    #[test]
    fn a_range_serves_unless_it_says_no() {
        let range =
            |status: &str| json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": status}]}});
        assert!(is_ready(&range("True")) && !is_ready(&range("False")));
        assert!(is_ready(&json!({"metadata": {}})));
        assert!(!is_ready(&json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}})));
    }
}
