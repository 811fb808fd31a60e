//! Addresses as the kubelet reads them.

use std::net::{IpAddr, Ipv4Addr};

/// An IP address, in which the numbers of IPv4 may begin with zeros; they are decimal all the same, as in Go's
/// `ParseIPSloppy`. None where the text is no address.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    match text.rsplit_once(':') {
        // Version 6 may end with an address of version 4.
        Some((above, last)) => {
            let [a, b, c, d] = sloppy_v4(last)?.octets();
            format!("{above}:{a}.{b}.{c}.{d}").parse().ok()
        }
        None => sloppy_v4(text).map(IpAddr::V4),
    }
}

fn sloppy_v4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = text.split('.');
    let mut octets = [0; 4];
    for octet in &mut octets {
        let digits = parts.next().filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))?;
        let number = digits.trim_start_matches('0');
        *octet = if number.is_empty() { 0 } else { number.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_begin_with_zeros() {
        for (text, meant) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.000.000.001", "127.0.0.1"),
            ("010.1.2.3", "10.1.2.3"),
            ("::", "::"),
            ("::ffff:010.0.0.1", "::ffff:10.0.0.1"),
        ] {
            assert_eq!(parse_ip(text), meant.parse().ok(), "{text}");
        }
        for bad in ["", "here", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1..2.3", "+1.2.3.4", "0x1.2.3.4", "1.2.3.4:80"] {
            assert_eq!(parse_ip(bad), None, "{bad}");
        }
    }
}
