//! Where nodes, pods and services are.

use std::net::IpAddr;

use serde_json::Value;

use super::{Scheme, Target};
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result, quote};

/// A kubelet's port when its node does not say.
const KUBELET_PORT: u16 = 10250;

/// The kubelet of a node.
pub(super) fn kubelet(server: &ApiServer, request: &Request, node: &str, path: String) -> Result<Target> {
    // Upstream names the requested resource, not nodes, in this complaint.
    let missing = || ApiError::missing("", &request.info.resource, node);
    let found = server.store.get(&"nodes".into(), "", node).ok_or_else(missing)?;
    let value = found.value();
    let addresses = value["status"]["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_type = |wanted: &String| addresses.iter().find(|a| a["type"] == **wanted)?["address"].as_str();
    let mut hosts = server.kubelets.address_types.iter().filter_map(of_type).map(str::to_owned);
    let host = hosts.next().ok_or_else(|| {
        let known = Value::from(addresses.to_vec());
        ApiError::new(500, "", format!("no preferred addresses found; known addresses: {known}"))
    })?;
    let port = value["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0).unwrap_or(KUBELET_PORT);
    let (others, scheme) = (hosts.collect(), Scheme::Https);
    Ok(Target { host, others, port, says_port: true, scheme, path, to_kubelet: true, unverified: false })
}

/// A server that a client may make us talk to: never one that only this machine can reach.
fn backend(address: &str, port: u16, scheme: Scheme, path: String) -> Result<Target> {
    if !address.parse().is_ok_and(is_global_unicast) {
        return Err(ApiError::bad_request("address not allowed"));
    }
    let (host, others) = (address.into(), Vec::new());
    Ok(Target { host, others, port, says_port: true, scheme, path, to_kubelet: false, unverified: false })
}

fn is_global_unicast(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_unspecified() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified()),
    }
}

/// `[scheme:]name[:port]` of a `kind`.
fn split<'a>(kind: &str, text: &'a str) -> Result<(Scheme, &'a str, &'a str)> {
    let wrong = || ApiError::bad_request(format!("invalid {kind} request {}", quote(text)));
    let parts: Vec<&str> = text.split(':').collect();
    let scheme = |s: &str| match s {
        "" | "http" => Ok(Scheme::Http),
        "https" => Ok(Scheme::Https),
        _ => Err(wrong()),
    };
    let found = match parts.as_slice() {
        [name] => (Scheme::Http, *name, ""),
        // A known scheme in front wins over a port behind.
        [first @ ("http" | "https"), name] if !name.is_empty() => (scheme(first)?, *name, ""),
        [name, port] => (Scheme::Http, *name, *port),
        [first, name, port] => (scheme(first)?, *name, *port),
        _ => return Err(wrong()),
    };
    if found.1.is_empty() { Err(wrong()) } else { Ok(found) }
}

/// What follows `/proxy` in the request's path, as sent.
pub(super) fn beyond(request: &Request) -> &str {
    behind(request.uri.path(), !request.info.namespace.is_empty())
}

/// The path behind `/api/v1/[namespaces/NAMESPACE/]RESOURCE/NAME/proxy`: each of them may be called what another is.
fn behind(path: &str, namespaced: bool) -> &str {
    let segments = if namespaced { 7 } else { 5 };
    path.match_indices('/').nth(segments).map_or("", |(at, _)| &path[at..])
}

/// The same as a path of its own, with the query.
fn rest(request: &Request) -> String {
    let after = beyond(request);
    let mut out = if after.is_empty() { "/" } else { after }.to_owned();
    if let Some(query) = request.uri.query() {
        out.push('?');
        out.push_str(query);
    }
    out
}

pub(super) async fn node(server: &ApiServer, request: &Request) -> Result<Target> {
    let (scheme, name, port) = split("node", &request.info.name)?;
    let mut target = kubelet(server, request, name, rest(request))?;
    if port.is_empty() {
        return Ok(target);
    }
    let port = port.parse().map_err(|_| ApiError::bad_request(format!("invalid port {}", quote(port))))?;
    if port == target.port {
        return Ok(target);
    }
    // Some other server on the node: it does not get our certificate.
    let mut hosts = std::iter::once(&target.host).chain(&target.others);
    let address = match hosts.clone().find(|h| h.parse::<IpAddr>().is_ok()) {
        Some(address) => address.clone(),
        None => {
            let name = hosts.next().cloned().unwrap_or_default();
            let mut found =
                tokio::net::lookup_host((name, port)).await.map_err(|e| ApiError::bad_request(e.to_string()))?;
            found.next().map(|a| a.ip().to_string()).unwrap_or_default()
        }
    };
    backend(&address, port, scheme, std::mem::take(&mut target.path))
}

pub(super) fn pod(server: &ApiServer, request: &Request) -> Result<Target> {
    let (scheme, name, port) = split("pod", &request.info.name)?;
    let found = server.store.get(&"pods".into(), &request.info.namespace, name);
    let value = found.ok_or_else(|| ApiError::missing("", "pods", name))?.value();
    let ports = value["spec"]["containers"].as_array().into_iter().flatten();
    let ports: Vec<&Value> = ports.flat_map(|c| c["ports"].as_array().into_iter().flatten()).collect();
    let number = |v: &Value| v["containerPort"].as_u64().and_then(|p| u16::try_from(p).ok());
    let first = ports.first().and_then(|p| number(p));
    let says_port = !port.is_empty() || first.is_some();
    let port = match port {
        "" => first.unwrap_or(if scheme == Scheme::Https { 443 } else { 80 }),
        text => match text.parse() {
            Ok(port) => port,
            Err(_) => ports
                .iter()
                .find(|p| p["name"] == text)
                .and_then(|p| number(p))
                .ok_or_else(|| ApiError::bad_request(format!("pod {} has no port {}", quote(name), quote(text))))?,
        },
    };
    // One without an address yet is nowhere that is allowed.
    let host = value["status"]["podIP"].as_str().unwrap_or_default();
    Ok(Target { says_port, ..backend(host, port, scheme, rest(request))? })
}

/// A ready endpoint of a service.
pub(super) fn service(server: &ApiServer, request: &Request) -> Result<Target> {
    let (scheme, name, port) = split("service", &request.info.name)?;
    let namespace = &request.info.namespace;
    let unavailable = |why: String| ApiError::service_unavailable(why);
    let found = server.store.get(&"services".into(), namespace, name);
    let service = found.ok_or_else(|| ApiError::missing("", "services", name))?.value();
    let ports: Vec<&Value> = service["spec"]["ports"].as_array().into_iter().flatten().collect();
    let chosen = match port {
        "" => ports.first().copied().filter(|_| ports.len() == 1),
        text => ports
            .iter()
            .copied()
            .find(|p| p["name"] == text || p["port"].as_u64().is_some_and(|n| Ok(n) == text.parse())),
    };
    let port_name = chosen.and_then(|p| p["name"].as_str()).unwrap_or_default();
    if chosen.is_none() && !port.is_empty() {
        return Err(unavailable(format!("no service port {} found for service {}", quote(port), quote(name))));
    }
    for slice in server.store.snapshot(&"endpointslices.discovery.k8s.io".into()).range(Some(namespace), None) {
        if slice.label("kubernetes.io/service-name") != Some(name) {
            continue;
        }
        let value = slice.value();
        let target = value["ports"].as_array().into_iter().flatten();
        let target =
            target.filter(|p| p["name"].as_str().unwrap_or_default() == port_name).find_map(|p| p["port"].as_u64());
        let ready = value["endpoints"].as_array().into_iter().flatten().find(|e| e["conditions"]["ready"] != false);
        let address = ready.and_then(|e| e["addresses"][0].as_str());
        if let (Some(port), Some(address)) = (target.and_then(|p| u16::try_from(p).ok()), address) {
            return backend(address, port, scheme, rest(request));
        }
    }
    Err(unavailable(format!("no endpoints available for service {}", quote(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_has_to_be_named() {
        for text in [":80", "", "http::80", "ftp:a:80", "a:b:c:d"] {
            let told = split("pod", text).err().map(|error| (error.code(), error.status().message.clone()));
            assert_eq!(told, Some((400, format!("invalid pod request \"{text}\""))));
        }
        let found = |text: &'static str| split("pod", text).map(|(_, name, port)| (name, port)).expect(text);
        assert_eq!(found("a:80"), ("a", "80"));
        assert_eq!(found("https:a:"), ("a", ""));
        assert_eq!(found("https:"), ("https", ""));
    }

    #[test]
    fn what_follows_is_found_whatever_the_others_are_called() {
        for (path, namespaced, after) in [
            ("/api/v1/nodes/n/proxy", false, ""),
            ("/api/v1/nodes/proxy/proxy/proxy/x", false, "/proxy/x"),
            ("/api/v1/namespaces/pods/pods/proxy-x/proxy/foo", true, "/foo"),
            ("/api/v1/namespaces/services/services/proxy/proxy", true, ""),
            ("/api/v1/namespaces/n/pods/http:p:80/proxy//a%2F/", true, "//a%2F/"),
        ] {
            assert_eq!(behind(path, namespaced), after, "{path}");
        }
    }
}
