//! Names of kernel settings, and which of them a pod can have for itself.

/// `net/ipv4/x` and `net.ipv4.x` name the same; a separator after the first slash is kept as its counterpart.
pub fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// The setting, or those that begin with the name, belong to the IPC namespace.
pub fn of_ipc(name: &str) -> bool {
    name == "kernel.sem" || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p))
}

/// The setting, or those that begin with the name, belong to the network namespace.
pub fn of_network(name: &str) -> bool {
    name.starts_with("net.")
}

/// A change of it stays within a pod that has its own namespaces.
pub fn is_namespaced(name: &str) -> bool {
    of_ipc(name) || of_network(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_are_dotted() {
        assert_eq!(dotted("net/ipv4/ip_forward"), "net.ipv4.ip_forward");
        assert_eq!(dotted("net.ipv4.ip_forward"), "net.ipv4.ip_forward");
        assert_eq!(dotted("net/ipv4/conf/eth0.1/forwarding"), "net.ipv4.conf.eth0/1.forwarding");
    }

    #[test]
    fn namespaced_are_those_that_a_pod_has_for_itself() {
        assert!(
            ["kernel.sem", "kernel.shmmax", "fs.mqueue.msg_max", "net.core.somaxconn"].iter().all(|n| is_namespaced(n))
        );
        assert!(!["vm.swappiness", "kernel.panic", "fs.mqueue", "net"].iter().any(|n| is_namespaced(n)));
    }
}
