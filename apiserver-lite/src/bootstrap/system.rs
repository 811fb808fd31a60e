//! The server's own service with its endpoints, the service range, and the two priority classes of the system.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::config::Config;

pub(super) fn priority_classes() -> impl Iterator<Item = Value> {
    let class = |name: &str, value: i64, what: &str| {
        json!({
            "kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": name}, "value": value,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": format!("Used for system critical pods that must {what}"),
        })
    };
    [
        class("system-node-critical", 2_000_001_000, "not be moved from their current node."),
        class(
            "system-cluster-critical",
            2_000_000_000,
            "run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
    .into_iter()
}

/// Certificates (PEM) of those whose word is believed here.
#[derive(Debug, Clone)]
pub struct Authorities {
    pub clients: String,
    pub front_proxy: String,
    /// Who has signed the serving certificate; None where that is not our own authority.
    pub serving: Option<String>,
}

/// The config map of [`extension_authentication`].
pub(super) const AUTHENTICATION: &str = "extension-apiserver-authentication";

/// What the servers of aggregated APIs need to know to believe us.
pub(super) fn extension_authentication(config: &Config, authorities: &Authorities) -> Value {
    let args = &config.args;
    // Lists are JSON in text here.
    let list = |names: &[String]| Value::from(json!(names).to_string());
    let data = json!({
        "client-ca-file": authorities.clients,
        "requestheader-allowed-names": list(&args.requestheader_allowed_names),
        "requestheader-client-ca-file": authorities.front_proxy,
        "requestheader-extra-headers-prefix": list(&args.requestheader_extra_headers_prefix),
        "requestheader-group-headers": list(&args.requestheader_group_headers),
        "requestheader-uid-headers": list(&args.requestheader_uid_headers),
        "requestheader-username-headers": list(&args.requestheader_username_headers),
    });
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": AUTHENTICATION, "namespace": "kube-system"},
        "data": super::trust::combined(&Value::Null, &data, proto::time::Timestamp::now().seconds),
    })
}

/// Since when it is noted which tokens in secrets are used.
pub(super) fn token_tracking() -> Value {
    let today = proto::time::Timestamp::now().to_seconds_text();
    let date = today.split('T').next().unwrap_or_default();
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"},
        "data": {"since": date},
    })
}

pub(super) fn service_cidr(config: &Config) -> Value {
    let cidrs: Vec<String> = config.service_cidrs.iter().map(ToString::to_string).collect();
    json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
    })
}

fn labels() -> Value {
    json!({"component": "apiserver", "provider": "kubernetes"})
}

/// `default/kubernetes`.
pub(super) fn service(config: &Config) -> Value {
    let first = config.service_cidrs.first();
    let address = first.map(|c| c.address(1).to_string()).unwrap_or_default();
    let family = if first.is_none_or(|c| c.is_ipv4()) { "IPv4" } else { "IPv6" };
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels()},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": [family], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": config.args.secure_port}],
        },
    })
}

/// Where the server's own service leads, in both forms.
pub(super) fn endpoints(address: IpAddr, port: u16) -> (Value, Value) {
    let slice = json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "protocol": "TCP", "port": port}],
    });
    let endpoints = json!({
        "kind": "Endpoints", "apiVersion": "v1",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": [{"ip": address.to_string()}],
            "ports": [{"name": "https", "protocol": "TCP", "port": port}],
        }],
    });
    (slice, endpoints)
}
