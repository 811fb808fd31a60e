//! TCP probes, and connection errors in Go's words.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;

use super::target::Target;

/// Connects; the error reads like Go's `net.OpError`.
pub async fn dial(target: &Target, timeout: Duration) -> Result<TcpStream, String> {
    let connecting = async {
        let addresses = addresses(target).await?;
        TcpStream::connect(&addresses[..]).await.map_err(|e| format!("dial tcp {target}: {}", connect_error(&e)))
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(format!("dial tcp {target}: i/o timeout")),
    }
}

/// Where a target is; a name is looked up.
async fn addresses(target: &Target) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = target.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, target.port)]);
    }
    match tokio::net::lookup_host((target.host.as_str(), target.port)).await {
        Ok(found) => Ok(found.collect()),
        Err(error) => {
            // The system's library has words of its own, and no number to go by.
            let why = match error.to_string().contains("emporary failure") {
                true => "server misbehaving",
                false => "no such host",
            };
            let servers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
            Err(format!("dial tcp: lookup {} on {}: {why}", target.host, name_server(&servers)))
        }
    }
}

/// The first name server of a `resolv.conf`, with its port as Go joins them.
fn name_server(text: &str) -> String {
    let mut servers = text.lines().filter_map(|line| line.strip_prefix("nameserver")?.split_whitespace().next());
    let host = servers.next().unwrap_or("127.0.0.1").to_owned();
    Target { host, port: 53 }.to_string()
}

/// In Go's words.
pub(crate) fn connect_error(e: &io::Error) -> String {
    let words = match e.raw_os_error() {
        Some(libc::ENOENT) => "no such file or directory",
        Some(libc::ECONNREFUSED) => "connection refused",
        Some(libc::EHOSTUNREACH) => "no route to host",
        Some(libc::ENETUNREACH) => "network is unreachable",
        Some(libc::ECONNRESET) => "connection reset by peer",
        Some(libc::ETIMEDOUT) => "connection timed out",
        Some(libc::EADDRNOTAVAIL) => "cannot assign requested address",
        Some(libc::EACCES) => "permission denied",
        Some(libc::EPERM) => "operation not permitted",
        _ => return e.to_string(),
    };
    format!("connect: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_server_is_asked() {
        let text = "# a\nsearch x\nnameserver\t192.0.2.53\nnameserver 192.0.2.54\n";
        assert_eq!((name_server(text), name_server("")), ("192.0.2.53:53".into(), "127.0.0.1:53".into()));
        assert_eq!(name_server("nameserver fd00::1"), "[fd00::1]:53");
    }

    #[tokio::test]
    async fn names_that_nobody_has_read_like_go() {
        let target = Target { host: "no such name.invalid".into(), port: 80 };
        let error = dial(&target, Duration::from_secs(30)).await.unwrap_err();
        assert!(error.starts_with("dial tcp: lookup no such name.invalid on "), "{error}");
    }
}
