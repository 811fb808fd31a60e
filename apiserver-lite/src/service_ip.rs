//! Addresses and node ports of services: handed out on create, known from the store, given back with the service.
//!
//! The set of what is taken is read from the store at the first use and kept after that; a service that is not stored
//! in the end gives back what it got.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::config::{Cidr, PortRange};
use crate::status::{ApiError, Cause, Result};
use crate::store::Store;
use crate::write::invalid;

#[derive(Debug)]
pub struct ServiceAllocator {
    ranges: Vec<Cidr>,
    ports: PortRange,
    taken: Mutex<Option<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

/// What one call handed out, to be given back if the service is not stored.
#[derive(Debug, Default)]
pub struct Allocation {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl ServiceAllocator {
    pub fn new(ranges: Vec<Cidr>, ports: PortRange) -> Self {
        ServiceAllocator { ranges, ports, taken: Mutex::new(None) }
    }

    /// Fills in addresses and ports of a new service.
    ///
    /// # Errors
    /// 422 when something asked for is taken or out of range; 500 when nothing is free.
    pub fn allocate(&self, store: &Store, service: &mut Value) -> Result<Allocation> {
        let mut guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = guard.get_or_insert_with(|| in_use(store));
        let mut got = Allocation::default();
        let result = self.addresses(taken, service, &mut got).and_then(|()| self.node_ports(taken, service, &mut got));
        if let Err(error) = result {
            give_back(taken, &got);
            return Err(error);
        }
        Ok(got)
    }

    /// Takes back what was handed out for a service that does not exist after all.
    pub fn release(&self, allocation: &Allocation) {
        let mut guard = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = guard.as_mut() {
            give_back(taken, allocation);
        }
    }

    /// Takes back what a deleted service had.
    pub fn release_service(&self, service: &Value) {
        self.release(&owned(service));
    }

    fn addresses(&self, taken: &mut Taken, service: &mut Value, got: &mut Allocation) -> Result<()> {
        let spec = &mut service["spec"];
        let headless = spec["clusterIP"] == "None";
        if spec["type"] == "ExternalName" {
            return Ok(());
        }
        let policy = spec["ipFamilyPolicy"].as_str().unwrap_or("SingleStack").to_owned();
        let family = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let count = if policy == "SingleStack" { 1 } else { self.ranges.len() };
        let mut families: Vec<String> =
            spec["ipFamilies"].as_array().into_iter().flatten().filter_map(|f| f.as_str().map(Into::into)).collect();
        for range in &self.ranges {
            let name = family(&range.address(0)).to_owned();
            if families.len() < count && !families.contains(&name) {
                families.push(name);
            }
        }
        let mut addresses = Vec::new();
        if !headless {
            let asked = match &spec["clusterIPs"] {
                Value::Array(list) if !list.is_empty() => list.clone(),
                _ => spec["clusterIP"].as_str().filter(|a| !a.is_empty()).map(Into::into).into_iter().collect(),
            };
            for (index, name) in families.iter().enumerate() {
                let range = self.ranges.iter().find(|r| family(&r.address(0)) == name.as_str());
                let range = range.ok_or_else(|| {
                    refuse(service_name(spec), "spec.ipFamilies", name, "not configured on this cluster")
                })?;
                let address = match asked.get(index).and_then(Value::as_str) {
                    Some(text) => take(taken, range, text)?,
                    None => find(taken, range)?,
                };
                got.addresses.push(address);
                addresses.push(address.to_string());
            }
        } else {
            addresses.push("None".to_owned());
        }
        if let Some(first) = addresses.first() {
            spec["clusterIP"] = first.as_str().into();
        }
        spec["clusterIPs"] = json!(addresses);
        spec["ipFamilies"] = json!(families);
        spec["ipFamilyPolicy"] = policy.into();
        Ok(())
    }

    fn node_ports(&self, taken: &mut Taken, service: &mut Value, got: &mut Allocation) -> Result<()> {
        let spec = &mut service["spec"];
        let wanted = match spec["type"].as_str() {
            Some("NodePort") => true,
            Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"] != false,
            _ => false,
        };
        for (index, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
            let asked = port["nodePort"].as_u64().filter(|p| *p > 0);
            let number = match asked {
                Some(number) => {
                    let field = format!("spec.ports[{index}].nodePort");
                    let number =
                        u16::try_from(number).ok().filter(|n| (self.ports.first..=self.ports.last).contains(n));
                    let number = number.ok_or_else(|| {
                        let text = format!(
                            "provided port is not in the valid range. The range of valid ports is {}-{}",
                            self.ports.first, self.ports.last
                        );
                        refuse_number("", &field, &port["nodePort"], &text)
                    })?;
                    if !taken.ports.insert(number) {
                        return Err(refuse_number("", &field, &port["nodePort"], "provided port is already allocated"));
                    }
                    number
                }
                None if wanted => {
                    let free = (self.ports.first..=self.ports.last).find(|n| !taken.ports.contains(n));
                    let free =
                        free.ok_or_else(|| ApiError::internal("failed to allocate a nodePort: range is full"))?;
                    taken.ports.insert(free);
                    port["nodePort"] = free.into();
                    free
                }
                None => continue,
            };
            got.ports.push(number);
        }
        Ok(())
    }
}

fn service_name(spec: &Value) -> &str {
    spec["name"].as_str().unwrap_or_default()
}

/// The addresses and ports that a service holds.
fn owned(service: &Value) -> Allocation {
    let spec = &service["spec"];
    let addresses =
        spec["clusterIPs"].as_array().into_iter().flatten().filter_map(|a| a.as_str()?.parse().ok()).collect();
    let ports =
        spec["ports"].as_array().into_iter().flatten().filter_map(|p| u16::try_from(p["nodePort"].as_u64()?).ok());
    Allocation { addresses, ports: ports.filter(|p| *p > 0).collect() }
}

fn in_use(store: &Store) -> Taken {
    let mut taken = Taken::default();
    for service in store.snapshot(&"services".into()).range(None, None) {
        let owned = owned(&service.value());
        taken.addresses.extend(owned.addresses);
        taken.ports.extend(owned.ports);
    }
    taken
}

fn give_back(taken: &mut Taken, allocation: &Allocation) {
    taken.addresses.retain(|a| !allocation.addresses.contains(a));
    taken.ports.retain(|p| !allocation.ports.contains(p));
}

fn take(taken: &mut Taken, range: &Cidr, text: &str) -> Result<IpAddr> {
    let address: IpAddr = text.parse().map_err(|_| {
        refuse("", "spec.clusterIPs[0]", text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
    })?;
    if !range.contains(address) {
        let why = format!(
            "failed to allocate IP {text}: the provided IP ({text}) is not in the valid range. The range of valid IPs is {range}"
        );
        return Err(refuse("", "spec.clusterIPs", text, &why));
    }
    if !taken.addresses.insert(address) {
        let why = format!("failed to allocate IP {text}: provided IP is already allocated");
        return Err(refuse("", "spec.clusterIPs", text, &why));
    }
    Ok(address)
}

/// Addresses at the start of a range are left to those who ask for one by number, as upstream does: 16 to 256 of them.
fn find(taken: &mut Taken, range: &Cidr) -> Result<IpAddr> {
    let size = range.size();
    let reserved = (size / 16).clamp(16, 256).min(size / 2);
    let all = (reserved..size.saturating_sub(1)).chain(1..reserved);
    for index in all {
        let address = range.address(index);
        if taken.addresses.insert(address) {
            return Ok(address);
        }
    }
    Err(ApiError::internal("failed to allocate a serviceIP: range is full"))
}

fn refuse(name: &str, field: &str, value: &str, why: &str) -> ApiError {
    refuse_number(name, field, &Value::from(value), why)
}

fn refuse_number(name: &str, field: &str, value: &Value, why: &str) -> ApiError {
    let cause = Cause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {value}: {why}"),
        field: field.into(),
    };
    invalid("", "Service", name, vec![cause])
}
