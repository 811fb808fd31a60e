//! Where a probe or hook goes: address and port.

use proto::api::core::v1::{Container, HttpGetAction};
use proto::apimachinery::pkg::util::intstr::IntOrString;

/// Address and port, printed as Go joins them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    pub port: u16,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A number, a number as text, or the name of one of the container's ports.
///
/// # Errors
/// A message when no such port is there or it is out of range.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = if port.r#type == 0 {
        port.int_val
    } else if let Ok(number) = port.str_val.parse() {
        number
    } else {
        container
            .ports
            .iter()
            .find(|p| p.name == port.str_val)
            .map(|p| p.container_port)
            // The last resort is to take the name for a number, and that fails.
            .ok_or_else(|| format!("strconv.Atoi: parsing {:?}: invalid syntax", port.str_val))?
    };
    u16::try_from(number).ok().filter(|p| *p > 0).ok_or_else(|| format!("invalid port number: {number}"))
}

/// The URL parts of an `httpGet` action; `ip` is used where it names no host.
pub fn http_target(action: &HttpGetAction, container: &Container, ip: &str) -> Result<Target, String> {
    let port = action.port.as_ref().ok_or("no port is given")?;
    let host = if action.host.is_empty() { ip } else { &action.host };
    if host.is_empty() {
        return Err("the pod has no address".into());
    }
    Ok(Target { host: host.to_owned(), port: resolve_port(port, container)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::ContainerPort;

    #[test]
    fn ports_are_numbers_or_names() {
        let container = Container {
            ports: vec![ContainerPort { name: "web".into(), container_port: 8080, ..Default::default() }],
            ..Default::default()
        };
        let named = |s: &str| IntOrString { r#type: 1, str_val: s.into(), ..Default::default() };
        assert_eq!(resolve_port(&named("web"), &container), Ok(8080));
        assert_eq!(resolve_port(&named("81"), &container), Ok(81));
        let told = "strconv.Atoi: parsing \"x\": invalid syntax";
        assert_eq!(resolve_port(&named("x"), &container), Err(told.into()));
        assert!(resolve_port(&IntOrString { int_val: 70000, ..Default::default() }, &container).is_err());
    }
}
