//! One aggregated group version: what its APIService says, and what its server said last.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::documents::Documents;
use crate::outgoing::{Dialer, Identity, Trust, certificates_of, tls};
use crate::store::Store;

/// The port of a service that an APIService does not name another of.
const PORT: u16 = 443;

/// Why a server cannot be asked: reason and message of the `Available` condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone)]
pub struct Remote {
    /// Of the APIService.
    pub name: String,
    pub group: String,
    pub version: String,
    /// Larger comes first in discovery.
    pub group_priority: i64,
    pub version_priority: i64,
    pub dialer: Result<Dialer, Unavailable>,
    /// The same for whom any certificate will do: to see whether somebody is there.
    pub checker: Result<Dialer, Unavailable>,
    pub available: bool,
    /// Its `APIResourceList`.
    pub resources: Option<Value>,
    /// Its schemas, as they were last told.
    pub documents: Arc<Documents>,
}

impl Remote {
    /// Reads an APIService; None for one that is served here.
    pub fn read(store: &Store, value: &Value, identity: Option<Identity>) -> Option<Self> {
        let spec = &value["spec"];
        let service = spec["service"].as_object()?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, name) = (text(service.get("namespace")), text(service.get("name")));
        let port = service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(PORT);
        let unusable = |message: String| Unavailable { reason: "FailedDiscoveryCheck", message };
        let place = address(store, &namespace, &name, port);
        let dialer_of = |trust: Trust, identity: Option<Identity>| -> Result<Dialer, Unavailable> {
            let (host, port) = place.clone()?;
            let tls = tls(trust, identity).map_err(|e| unusable(e.to_string()))?;
            Ok(Dialer { host, port, tls: Some(tls), name: format!("{name}.{namespace}.svc") })
        };
        let own = identity.as_ref().map(|(certificates, key)| (certificates.clone(), key.clone_key()));
        let checker = dialer_of(Trust::Anything, own);
        let trusted = || -> Result<Trust, Unavailable> {
            Ok(match &spec["caBundle"] {
                _ if spec["insecureSkipTLSVerify"] == true => Trust::Anything,
                Value::String(bundle) => {
                    let pem = STANDARD.decode(bundle).map_err(|e| unusable(format!("caBundle: {e}")))?;
                    Trust::Certificates(certificates_of(&pem).map_err(|e| unusable(format!("caBundle: {e}")))?)
                }
                _ => Trust::System,
            })
        };
        // Where nothing is there, that is what is said.
        let dialer = place.clone().and_then(|_| trusted()).and_then(|trust| dialer_of(trust, identity));
        Some(Remote {
            name: text(value["metadata"].get("name")),
            group: text(spec.get("group")),
            version: text(spec.get("version")),
            group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
            version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
            dialer,
            checker,
            available: is_available(value),
            resources: None,
            documents: Arc::new(Documents::of(spec)),
        })
    }
}

impl Remote {
    /// The same after a look at its server. What that said last is still shown when it says nothing.
    pub fn after(&self, available: bool, resources: Option<Value>) -> Self {
        let back = available && !self.available;
        Remote {
            available,
            resources: resources.or_else(|| self.resources.clone()),
            documents: if back { self.documents.again() } else { self.documents.clone() },
            ..self.clone()
        }
    }
}

/// Whether an APIService's server was there when somebody looked last; that may have been the server before this one.
fn is_available(value: &Value) -> bool {
    let mut conditions = value["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == "Available" && c["status"] == "True")
}

/// Where a service's port is served: a ready endpoint, since this process may run where no proxy serves cluster addresses.
fn address(store: &Store, namespace: &str, name: &str, port: u16) -> Result<(String, u16), Unavailable> {
    let because = |reason, message| Unavailable { reason, message };
    let found = store
        .get(&"services".into(), namespace, name)
        .ok_or_else(|| because("ServiceNotFound", format!("service/{name} in {namespace:?} is not present")))?;
    let service = found.value();
    if service["spec"]["type"] == "ExternalName" {
        return Ok((service["spec"]["externalName"].as_str().unwrap_or_default().to_owned(), port));
    }
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let own = ports.into_iter().find(|p| p["port"].as_u64() == Some(port.into())).ok_or_else(|| {
        because("ServicePortError", format!("service/{name} in {namespace:?} is not listening on port {port}"))
    })?;
    let port_name = own["name"].as_str().unwrap_or_default();
    let mut slices = false;
    for slice in store.snapshot(&"endpointslices.discovery.k8s.io".into()).range(Some(namespace), None) {
        if slice.label("kubernetes.io/service-name") != Some(name) {
            continue;
        }
        slices = true;
        let value = slice.value();
        let ports = value["ports"].as_array().into_iter().flatten();
        let mut ports = ports.filter(|p| p["name"].as_str().unwrap_or_default() == port_name);
        let endpoints = value["endpoints"].as_array().into_iter().flatten();
        let mut ready = endpoints.filter(|e| e["conditions"]["ready"] != false);
        if let (Some(port), Some(address)) = (
            ports.find_map(|p| p["port"].as_u64().and_then(|p| u16::try_from(p).ok())),
            ready.find_map(|e| e["addresses"][0].as_str()),
        ) {
            return Ok((address.to_owned(), port));
        }
    }
    Err(if slices {
        let text =
            format!("endpoints for service/{name} in {namespace:?} have no addresses with port name {port_name:?}");
        because("MissingEndpoints", text)
    } else {
        because("EndpointsNotFound", format!("cannot find endpointslices for service/{name} in {namespace:?}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let store = Store::open(None).expect("in memory");
        let local = json!({"spec": {"group": "g", "version": "v1"}});
        assert!(Remote::read(&store, &local, None).is_none());
        let remote = json!({"metadata": {"name": "v1.g"}, "spec": {"group": "g", "version": "v1",
            "service": {"namespace": "n", "name": "s"}}});
        let remote = Remote::read(&store, &remote, None).expect("somebody else's");
        let why = remote.dialer.err().expect("there is no service");
        assert_eq!((why.reason, why.message.as_str()), ("ServiceNotFound", "service/s in \"n\" is not present"));
    }
}
