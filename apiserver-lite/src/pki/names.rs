//! What the API server is called: the names and addresses in its serving certificate.

use std::net::IpAddr;

/// The machine's name, `localhost` when it has none.
pub fn hostname() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = text.trim().to_ascii_lowercase();
    if name.is_empty() || name == "(none)" { "localhost".into() } else { name }
}

/// Names and addresses under which clients may reach the server: this machine's, the ones pods use, and those that the
/// operator added.
pub fn serving_names(
    service: IpAddr,
    bind: IpAddr,
    advertise: Option<IpAddr>,
    added: &[String],
) -> (Vec<String>, Vec<IpAddr>) {
    let mut names: Vec<String> = vec!["localhost".into(), hostname()];
    for name in ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"] {
        names.push(name.into());
    }
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from(std::net::Ipv6Addr::LOCALHOST), service];
    addresses.extend([Some(bind), advertise].into_iter().flatten().filter(|a| !a.is_unspecified()));
    for entry in added {
        match entry.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => names.push(entry.clone()),
        }
    }
    names.sort();
    names.dedup();
    addresses.sort();
    addresses.dedup();
    (names, addresses)
}
