//! Names and addresses of a pod are those of its spec and of its status, and its logs are where people look for them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::node::Node;
use tests::pods::{Pods, condition};
use tests::{ApiServer, free_port};

const SETTINGS: &str = "clusterDNS: [10.9.8.7]\nclusterDomain: cluster.test\n";

fn names(pods: &Pods) -> Result<()> {
    let none = json!({});
    let said = pods.said("cluster-first", "cat /etc/resolv.conf", &none, &none)?;
    let expected = "search default.svc.cluster.test svc.cluster.test cluster.test";
    ensure!(
        said.contains("nameserver 10.9.8.7\n") && said.contains(expected) && said.contains("options ndots:5"),
        "{said}"
    );
    let own = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.2.3.4"], "searches": ["a.test"],
        "options": [{"name": "ndots", "value": "2"}]}});
    let said = pods.said("own-dns", "cat /etc/resolv.conf", &none, &own)?;
    ensure!(said == "search a.test\nnameserver 1.2.3.4\noptions ndots:2\n", "{said}");
    let named = json!({"hostname": "web", "subdomain": "team", "hostAliases": [{"ip": "4.3.2.1", "hostnames": ["old", "older"]}]});
    let said = pods.said("named", "hostname; cat /etc/hosts", &none, &named)?;
    let mut lines = said.lines();
    ensure!(lines.next() == Some("web") && lines.next() == Some("# Kubernetes-managed hosts file."), "{said}");
    ensure!(said.contains("\tweb.team.default.svc.cluster.test\tweb\n"), "{said}");
    ensure!(said.contains("# Entries added by HostAliases.\n4.3.2.1\told\tolder\n"), "{said}");
    let full = json!({"hostname": "web", "subdomain": "team", "setHostnameAsFQDN": true});
    ensure!(pods.said("full", "hostname", &none, &full)? == "web.team.default.svc.cluster.test\n", "the whole name");
    Ok(())
}

fn curl(address: &str) -> Result<String> {
    let mut command = Command::new("curl");
    let output = command.args(["-gs", "--max-time", "2", &format!("http://{address}/x")]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The ports of a pod at `ip` on the node, one of loopback alone and one of any address: until the pod is gone.
fn host_ports(pods: &Pods, ip: &str, (of_loopback, open): (u16, u16)) -> Result<()> {
    let config = std::fs::read_to_string(pods.node.dir.join("cni/net.d/10-pods.conflist"))?;
    if !config.contains("portmap") {
        tests::skipped("ports of the node for pods need iptables");
        return Ok(());
    }
    // The bridge's own address is the node's as well.
    let (network, _) = ip.rsplit_once('.').context("an IPv4 address")?;
    let gateway = format!("{network}.1");
    for address in [format!("127.0.0.1:{of_loopback}"), format!("127.0.0.1:{open}"), format!("{gateway}:{open}")] {
        ensure!(curl(&address)? == "found\n", "{address} does not lead to the pod");
    }
    ensure!(curl(&format!("{gateway}:{of_loopback}"))?.is_empty(), "a port of loopback is everybody's");
    pods.server.kubectl(&["delete", "pod", "web", "--timeout=30s"])?;
    ensure!(curl(&format!("{gateway}:{open}"))?.is_empty(), "the port outlives its pod");
    Ok(())
}

fn both_families(pods: &Pods) -> Result<()> {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let env = json!({"env": [field("POD_IP", "status.podIP"), field("POD_IPS", "status.podIPs"),
        field("HOST_IPS", "status.hostIPs")]});
    let script = "mkdir /www; echo found > /www/x; httpd -p [::]:8080 -h /www; \
                  echo $POD_IP $POD_IPS $HOST_IPS; cat /etc/hosts; exec sleep 1000";
    pods.create("both", &json!({"containers": [Pods::shell(script, &env)]}))?;
    let status = pods.wait("both", "Ready", |s| condition(s, "Ready")["status"] == "True")?;
    let ips = |list: &str| -> Vec<IpAddr> {
        let all = status[list].as_array().into_iter().flatten();
        all.filter_map(|entry| entry["ip"].as_str()?.parse().ok()).collect()
    };
    let (own, host) = (ips("podIPs"), ips("hostIPs"));
    ensure!(own.len() == 2 && own[0].is_ipv4() && own[1].is_ipv6(), "{status:#}");
    ensure!(status["podIP"] == own[0].to_string(), "{status:#}");
    ensure!(host == [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])], "{status:#}");
    let said = pods.server.kubectl(&["logs", "both"])?;
    let first = format!("{} {},{} {},{}", own[0], own[0], own[1], host[0], host[1]);
    ensure!(said.lines().next() == Some(first.as_str()), "{first}: {said}");
    for ip in &own {
        ensure!(said.contains(&format!("{ip}\tboth\n")), "{said}");
    }
    ensure!(curl(&format!("{}:8080", own[0]))? == "found\n", "over IPv4");
    // The bridge is as new as the pod, and the kernel first makes sure that nobody else has its address.
    pods.node.wait_until("the pod answers over IPv6", std::time::Duration::from_secs(15), || {
        Ok(curl(&format!("[{}]:8080", own[1]))? == "found\n")
    })
}

#[test]
fn pods_have_addresses_of_both_families_where_the_node_has() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    if let Some(why) = Node::why_not_dual() {
        tests::skipped(why);
        return Ok(());
    }
    let server = ApiServer::start("dual", &[])?;
    let node = Node::start_dual("dual-node", &server, SETTINGS)?;
    both_families(&Pods { node, server })
}

fn addresses(pods: &Pods) -> Result<()> {
    let port = free_port()?;
    let open = free_port()?;
    let ports = json!({"ports": [{"containerPort": 8080, "hostPort": port, "hostIP": "127.0.0.1"},
        {"name": "open", "containerPort": 8080, "hostPort": open}]});
    let script = "mkdir /www; echo found > /www/x; httpd -p 8080 -h /www; ip -4 addr show eth0; exec sleep 1000";
    pods.create("web", &json!({"containers": [Pods::shell(script, &ports)]}))?;
    let status = pods.wait("web", "Ready", |s| condition(s, "Ready")["status"] == "True")?;
    let ip = status["podIP"].as_str().context("an address")?;
    ensure!(status["podIPs"][0]["ip"] == ip && status["hostIP"] == "127.0.0.1", "{status:#}");
    ensure!(pods.server.kubectl(&["logs", "web"])?.contains(&format!("inet {ip}/")), "the pod has another address");
    ensure!(curl(&format!("{ip}:8080"))? == "found\n", "the pod's own address");
    host_ports(pods, ip, (port, open))?;
    let host = json!({"hostNetwork": true});
    let said = pods.said("of-host", "hostname; ip addr show lo", &json!({}), &host)?;
    let status = pods.server.get("pod", "of-host")?["status"].take();
    ensure!(
        status["podIP"] == "127.0.0.1" && said.starts_with(nix::unistd::gethostname()?.to_string_lossy().as_ref()),
        "{said}"
    );
    Ok(())
}

/// In the form of the CRI, by pod and container, and found through the folder of links.
fn logs(pods: &Pods) -> Result<()> {
    pods.said("teller", "echo out; echo err >&2; printf part", &json!({}), &json!({}))?;
    let pod = pods.server.get("pod", "teller")?;
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    let file = pods.node.dir.join(format!("pod-logs/default_teller_{uid}/main/0.log"));
    let text = std::fs::read_to_string(&file)?;
    let parts: Vec<Vec<&str>> = text.lines().map(|line| line.splitn(4, ' ').collect()).collect();
    let has = |stream: &str, tag: &str, words: &str| parts.iter().any(|p| p[1..] == [stream, tag, words]);
    ensure!(has("stdout", "F", "out") && has("stderr", "F", "err"), "{text}");
    ensure!(has("stdout", "P", "part") || has("stdout", "F", "part"), "{text}");
    ensure!(parts.iter().all(|p| p[0].contains('T') && p[0].ends_with(['Z', '0'])), "{text}");
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().and_then(|id| id.split("://").nth(1));
    let link = PathBuf::from(format!("/var/log/containers/teller_default_main-{}.log", id.context("an id")?));
    ensure!(std::fs::read_link(&link)? == file, "{}", link.display());
    pods.server.kubectl(&["delete", "pod", "teller", "--timeout=30s"])?;
    pods.node.wait_until("its logs are gone", std::time::Duration::from_secs(30), || {
        Ok(!file.exists() && link.symlink_metadata().is_err())
    })
}

#[test]
fn pods_are_found_by_their_names_and_addresses() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("network", SETTINGS)?;
    names(&pods)?;
    addresses(&pods)?;
    logs(&pods)
}
