//! What the kubelet refuses only while it starts: reservations, thresholds, the managers' options, TLS settings.
//!
//! Nothing here needs more than the configuration and the machine's processors, so it is known before a port opens. What
//! depends on flags or other files is `daemon::wrong_at_start`'s.

use std::collections::{BTreeMap, BTreeSet};

use proto::quantity::{Format, Quantity};

use super::{Configuration, FeatureGates, eviction, parse_ip};

/// Problems that the kubelet meets when it builds what it needs: TLS.
pub(super) fn dependencies(c: &Configuration) -> Vec<String> {
    let mut errors = Vec::new();
    for name in &c.tls_cipher_suites {
        if !CIPHER_SUITES.contains(&name.as_str()) {
            errors.push(format!("Cipher suite {name} not supported or doesn't exist"));
        }
    }
    if !matches!(c.tls_min_version.as_str(), "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" | "VersionTLS13") {
        errors.push(format!("unknown tls version {:?}", c.tls_min_version));
    }
    for (at, curve) in c.tls_curve_preferences.iter().enumerate() {
        if !(1..=i32::from(u16::MAX)).contains(curve) {
            errors.push(format!("curve preference {curve} is out of range (must be 1-{})", u16::MAX));
        } else if c.tls_curve_preferences[..at].contains(curve) {
            errors.push(format!("duplicate curve preference {curve}"));
        } else if !CURVES.contains(curve) {
            errors.push(format!("curve preference {curve} is not supported by the current Go version"));
        }
    }
    errors
}

/// P-256, P-384, P-521, X25519, and the hybrids with ML-KEM.
const CURVES: &[i32] = &[23, 24, 25, 29, 4587, 4588, 4589];

/// The suites that Go knows by name, secure and insecure.
const CIPHER_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Problems that the kubelet meets on its way up, in its order.
pub(super) fn check(c: &Configuration, gates: &FeatureGates) -> Vec<String> {
    let mut errors = Vec::new();
    if !matches!(c.authorization.mode.as_str(), "AlwaysAllow" | "Webhook") {
        errors.push(if c.authorization.mode.is_empty() {
            "no authorization mode specified".into()
        } else {
            format!("unknown authorization mode {}", c.authorization.mode)
        });
    }
    if let Err(error) = reserved_cpus(&c.reserved_system_cpus) {
        errors.push(error);
    }
    for (flag, list) in [("kube-reserved", &c.kube_reserved), ("system-reserved", &c.system_reserved)] {
        errors.extend(reservation(list).map(|e| format!("--{flag} value failed to parse: {e}")));
    }
    errors.extend(eviction::wrong_hard(c));
    errors.extend(qos_reserved(&c.qos_reserved).map(|e| format!("--qos-reserved value failed to parse: {e}")));
    errors.extend(topology_options(c, gates));
    errors.extend(cpu_manager(c, gates));
    errors.extend(memory_manager(c));
    let never = Some(c.sync_frequency.nanos).filter(|nanos| *nanos <= 0);
    let built = never.map(|nanos| format!("invalid sync frequency {nanos}")).into_iter();
    let built = built.chain(eviction::wrong_soft(c));
    let built = built.chain(crate::container_logs::max_size(&c.container_log_max_size).err());
    let built = built.chain(c.allowed_unsafe_sysctls.iter().filter_map(|p| sysctl_pattern(p).err()));
    errors.extend(built.map(|e| format!("failed to create kubelet: {e}")));
    if c.enable_server && parse_ip(&c.address).is_none() {
        errors.push(format!("address {:?} is no address to listen on", c.address));
    }
    if !c.static_pod_path.as_os_str().is_empty() && c.file_check_frequency.nanos <= 0 {
        errors.push(format!("fileCheckFrequency {}: non-positive interval for NewTicker", c.file_check_frequency));
    }
    errors
}

/// A sysctl that pods may set, or the beginning of several with `*` at its end; of a namespace that pods can have.
fn sysctl_pattern(pattern: &str) -> Result<(), String> {
    let word = |part: &str, last: &[char]| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let ends = part.chars().next_back().is_some_and(|c| inner(c) || last.contains(&c));
        let body = part.get(..part.len().saturating_sub(1)).unwrap_or("*");
        ends && body.chars().all(|c| inner(c) || matches!(c, '-' | '_')) && body.chars().next().is_none_or(inner)
    };
    let (above, name) = pattern.rsplit_once(['.', '/']).map_or((None, pattern), |(above, name)| (Some(above), name));
    let fits = above.is_none_or(|above| above.split(['.', '/']).all(|part| word(part, &[]))) && word(name, &['*']);
    if pattern.len() > 253 || !fits {
        return Err(format!(
            "sysctl {pattern:?} must have at most 253 characters and match regex \
             ([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]"
        ));
    }
    let name = crate::pod::sysctl::dotted(pattern);
    if !crate::pod::sysctl::is_namespaced(name.trim_end_matches('*')) {
        return Err(format!("the sysctls {name:?} are not known to be namespaced"));
    }
    Ok(())
}

/// CPUs that are kept from pods; they must be ones that the machine has.
pub(super) fn reserved_cpus(list: &str) -> Result<BTreeSet<u32>, String> {
    let reserved = cpu_set(list).map_err(|e| format!("unable to parse reserved-cpus list: {e}"))?;
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match cpu_set(online.trim()) {
        Ok(online_set) if !online_set.is_empty() && !reserved.is_subset(&online_set) => {
            Err(format!("reserved-cpus: {list} is not a subset of online-cpus: {}", online.trim()))
        }
        _ => Ok(reserved),
    }
}

/// `0-3,8` as the kernel and the kubelet write sets of CPUs.
pub fn cpu_set(list: &str) -> Result<BTreeSet<u32>, String> {
    let number = |text: &str| -> Result<u32, String> {
        text.parse().map_err(|error: std::num::ParseIntError| {
            let why = match error.kind() {
                std::num::IntErrorKind::PosOverflow => "value out of range",
                _ => "invalid syntax",
            };
            format!("strconv.Atoi: parsing {text:?}: {why}")
        })
    };
    let mut set = BTreeSet::new();
    if list.is_empty() {
        return Ok(set);
    }
    for part in list.split(',') {
        match part.split_once('-') {
            None => {
                set.insert(number(part)?);
            }
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(format!("invalid range {part:?} ({first} > {last})"));
                }
                if last - first > 65536 {
                    return Err(format!("the range {part:?} has more CPUs than any machine"));
                }
                set.extend(first..=last);
            }
        }
    }
    Ok(set)
}

impl Configuration {
    /// The CPUs of `reservedSystemCPUs`; none when it names none that this machine has.
    pub fn reserved_cpus(&self) -> BTreeSet<u32> {
        reserved_cpus(&self.reserved_system_cpus).unwrap_or_default()
    }
}

fn reservation(list: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    list.iter().filter_map(|(name, text)| reserved_amount(name, text).err())
}

fn reserved_amount(name: &str, text: &str) -> Result<(), String> {
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pid") {
        return Err(format!("cannot reserve {name:?} resource"));
    }
    let amount: Quantity = text.parse().map_err(|e: proto::quantity::ParseError| {
        format!("failed to parse quantity {text:?} for {name:?} resource: {e}")
    })?;
    if amount.sign() < 0 {
        return Err(format!("resource quantity for {name:?} cannot be negative: {text}"));
    }
    Ok(())
}

fn qos_reserved(list: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    list.iter().filter_map(|(name, text)| {
        if name != "memory" {
            return Some(format!("cannot reserve {name:?} resource"));
        }
        let reason = match text.strip_suffix('%') {
            None => format!("percentage expected, got '{text}'"),
            Some(number) => match number.parse::<i64>() {
                Err(_) => format!("invalid number in percentage '{text}'"),
                Ok(0..=100) => return None,
                Ok(_) => "percentage must be between 0 and 100".to_owned(),
            },
        };
        Some(format!("failed to parse percentage {text:?} for {name:?} resource: {reason}"))
    })
}

fn boolean_option(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("bad value for option {name:?}: strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

/// Options by the gate that they need; those of stable quality need none.
struct OptionGates {
    kind: &'static str,
    alpha: (&'static str, &'static [&'static str]),
    beta: (&'static str, &'static [&'static str]),
    stable: &'static [&'static str],
}

impl OptionGates {
    fn check(&self, name: &str, gates: &FeatureGates) -> Result<(), String> {
        for (word, (gate, names)) in [("Alpha", self.alpha), ("Beta", self.beta)] {
            if names.contains(&name) {
                return if gates.enabled(gate) {
                    Ok(())
                } else {
                    Err(format!(
                        "{} Manager Policy {word}-level Options not enabled, but option {name:?} provided",
                        self.kind
                    ))
                };
            }
        }
        if self.stable.contains(&name) {
            return Ok(());
        }
        Err(format!("unknown {} Manager Policy option: {name:?}", self.kind))
    }
}

const CPU_OPTIONS: OptionGates = OptionGates {
    kind: "CPU",
    alpha: ("CPUManagerPolicyAlphaOptions", &["align-by-socket", "distribute-cpus-across-cores"]),
    beta: ("CPUManagerPolicyBetaOptions", &["distribute-cpus-across-numa"]),
    stable: &["full-pcpus-only", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"],
};

const TOPOLOGY_OPTIONS: OptionGates = OptionGates {
    kind: "Topology",
    alpha: ("TopologyManagerPolicyAlphaOptions", &[]),
    beta: ("TopologyManagerPolicyBetaOptions", &[]),
    stable: &["prefer-closest-numa-nodes", "max-allowable-numa-nodes"],
};

fn topology_options(c: &Configuration, gates: &FeatureGates) -> Vec<String> {
    let options = c.topology_manager_policy_options.iter();
    options.filter_map(|(name, text)| topology_option(name, text, gates).err()).collect()
}

fn topology_option(name: &str, text: &str, gates: &FeatureGates) -> Result<(), String> {
    TOPOLOGY_OPTIONS.check(name, gates)?;
    if name != "max-allowable-numa-nodes" {
        return boolean_option(name, text).map(drop);
    }
    let count: i64 = text.parse().map_err(|_| {
        format!("unable to convert policy option to integer {name:?}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })?;
    if count < 8 {
        return Err(format!("the minimum value of {name:?} should not be less than 8"));
    }
    Ok(())
}

fn cpu_manager(c: &Configuration, gates: &FeatureGates) -> Vec<String> {
    match c.cpu_manager_policy.as_str() {
        "none" if c.cpu_manager_policy_options.is_empty() => Vec::new(),
        "none" => vec![format!(
            "new none policy error: none policy: received unsupported options=map[{}]",
            c.cpu_manager_policy_options.iter().map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" ")
        )],
        "static" => {
            let options = c.cpu_manager_policy_options.iter().filter_map(|(name, text)| {
                let checked = CPU_OPTIONS.check(name, gates).and_then(|()| boolean_option(name, text));
                checked.err().map(|e| format!("new static policy error: {e}"))
            });
            static_cpus(c).err().into_iter().chain(options).collect()
        }
        other => vec![format!("unknown policy: {other:?}")],
    }
}

/// The static policy needs CPUs that pods do not get.
fn static_cpus(c: &Configuration) -> Result<(), String> {
    let mut reserved = Quantity::from_integer(0, Format::DecimalSi);
    for list in [&c.kube_reserved, &c.system_reserved] {
        if let Some(amount) = list.get("cpu").and_then(|text| text.parse().ok()) {
            reserved.add(amount);
        }
    }
    let chosen = !c.reserved_system_cpus.is_empty();
    if !chosen && !c.kube_reserved.contains_key("cpu") && !c.system_reserved.contains_key("cpu") {
        return Err("[cpumanager] unable to determine reserved CPU resources for static policy".into());
    }
    if !chosen && reserved.is_zero() {
        return Err(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
                .into(),
        );
    }
    Ok(())
}

/// What the Static policy is given of each kind must be what pods do not get: reservations and hard eviction.
fn memory_manager(c: &Configuration) -> Vec<String> {
    match c.memory_manager_policy.as_str() {
        "None" => return Vec::new(),
        "Static" => {}
        other => return vec![format!("unknown policy: {other:?}")],
    }
    let mut given: BTreeMap<&str, Quantity> = BTreeMap::new();
    for node in &c.reserved_memory {
        for (kind, text) in &node.limits {
            if let Ok(amount) = text.parse::<Quantity>() {
                given.entry(kind).or_insert_with(|| Quantity::from_integer(0, amount.format())).add(amount);
            }
        }
    }
    let mut wanted = Quantity::from_integer(0, Format::BinarySi);
    for list in [&c.kube_reserved, &c.system_reserved] {
        if let Some(amount) = list.get("memory").and_then(|text| text.parse().ok()) {
            wanted.add(amount);
        }
    }
    for threshold in eviction::kept_from_pods(c).filter(|t| t.signal == eviction::Signal::MemoryAvailable) {
        let capacity = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let capacity = i64::try_from(crate::node::meminfo(&capacity, "MemTotal") * 1024).unwrap_or(i64::MAX);
        wanted.add(Quantity::from_integer(threshold.value.of(capacity), Format::BinarySi));
    }
    let zero = Quantity::from_integer(0, Format::DecimalSi);
    // Of huge pages nothing is taken from pods but what the policy is given.
    let kinds: BTreeSet<&str> = given.keys().copied().chain(["memory"]).collect();
    let unequal = kinds.into_iter().filter_map(|kind| {
        let have = given.get(kind).unwrap_or(&zero);
        let wanted = if kind == "memory" { &wanted } else { &zero };
        (have.value() != wanted.value()).then(|| {
            format!(
                "the total amount \"{have}\" of type {kind:?} is not equal to the value \"{wanted}\" determined by \
                 Node Allocatable feature"
            )
        })
    });
    unequal.collect()
}

#[cfg(test)]
mod tests {
    use super::super::ReservedMemory;
    use super::*;

    #[test]
    fn curves_are_numbers_of_go_each_once() {
        let errors = |list: &[i32]| {
            dependencies(&Configuration { tls_curve_preferences: list.to_vec(), ..Configuration::default() })
        };
        assert_eq!(errors(&[29, 23, 25, 4588]), Vec::<String>::new());
        assert_eq!(errors(&[29, 29]), ["duplicate curve preference 29"]);
        assert_eq!(
            errors(&[0, 65536]),
            [
                "curve preference 0 is out of range (must be 1-65535)",
                "curve preference 65536 is out of range (must be 1-65535)",
            ]
        );
        assert_eq!(errors(&[9999]), ["curve preference 9999 is not supported by the current Go version"]);
    }

    /// Workers without a pause took a processor each.
    #[test]
    fn pods_are_looked_at_now_and_then() {
        for nanos in [0, -1_000_000_000] {
            let sync_frequency = super::super::GoDuration { nanos };
            let errors = check(&Configuration { sync_frequency, ..Configuration::default() }, &FeatureGates::default());
            let told = format!("failed to create kubelet: invalid sync frequency {nanos}");
            assert!(errors.contains(&told), "{errors:?}");
        }
    }

    #[test]
    fn addresses_count_where_somebody_listens() {
        let of = |server, address: &str| {
            let config = Configuration { enable_server: server, address: address.into(), ..Configuration::default() };
            check(&config, &FeatureGates::default()).iter().filter(|e| e.starts_with("address")).count()
        };
        assert_eq!((of(true, "here"), of(false, "here"), of(true, "127.000.000.001"), of(true, "::")), (1, 0, 0, 0));
    }

    #[test]
    fn sets_of_cpus_are_lists_of_ranges() {
        assert_eq!(cpu_set("0-2,5").expect("valid").into_iter().collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(cpu_set("zero").expect_err("refused"), "strconv.Atoi: parsing \"zero\": invalid syntax");
        // A space does not belong to a number.
        assert_eq!(cpu_set("0, 1").expect_err("refused"), "strconv.Atoi: parsing \" 1\": invalid syntax");
        assert!(cpu_set("99999999999999999999").is_err_and(|e| e.ends_with("value out of range")));
        assert!(cpu_set("3-1").is_err() && cpu_set("0-4000000000").is_err() && cpu_set("").expect("empty").is_empty());
    }

    #[test]
    fn the_static_cpu_policy_needs_a_reservation_and_known_options() {
        let gates = FeatureGates::default();
        let mut config = Configuration { cpu_manager_policy: "static".into(), ..Configuration::default() };
        assert!(cpu_manager(&config, &gates)[0].contains("unable to determine reserved"));
        config.kube_reserved.insert("cpu".into(), "1".into());
        assert!(cpu_manager(&config, &gates).is_empty());
        config.cpu_manager_policy_options.insert("align-by-socket".into(), "true".into());
        config.cpu_manager_policy_options.insert("fast".into(), "true".into());
        let errors = cpu_manager(&config, &gates);
        assert!(errors[0].contains("Alpha-level Options not enabled") && errors[1].contains("\"fast\""), "{errors:?}");
    }

    #[test]
    fn patterns_of_sysctls_are_those_of_namespaces_that_pods_have() {
        for good in ["net.core.somaxconn", "kernel.msg*", "net/ipv4/tcp_*", "kernel.sem", "fs.mqueue.*", "net.*"] {
            assert_eq!(sysctl_pattern(good), Ok(()), "{good}");
        }
        for bad in ["vm.swappiness", "kernel.*", "*", "kernel.panic"] {
            assert!(sysctl_pattern(bad).is_err_and(|e| e.ends_with("are not known to be namespaced")), "{bad}");
        }
        for bad in ["", "net.ipv4.*.x", "Net.core", "net..core", "net.core.", "net.a*b", "-a"] {
            assert!(sysctl_pattern(bad).is_err_and(|e| e.contains("match regex")), "{bad}");
        }
    }

    #[test]
    fn the_static_memory_policy_wants_what_is_reserved() {
        let mut config = Configuration { memory_manager_policy: "Static".into(), ..Configuration::default() };
        config.eviction_hard.insert("memory.available".into(), "100Mi".into());
        let error = memory_manager(&config).remove(0);
        assert!(
            error.starts_with("the total amount \"0\" of type \"memory\" is not equal to the value \"100Mi\""),
            "{error}"
        );
        let limits = [("memory", "100Mi"), ("hugepages-2Mi", "2Mi")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        config.reserved_memory = vec![ReservedMemory { numa_node: 0, limits: limits.into() }];
        assert_eq!(
            memory_manager(&config),
            ["the total amount \"2Mi\" of type \"hugepages-2Mi\" is not equal to the value \"0\" determined by Node \
              Allocatable feature"]
        );
        config.reserved_memory[0].limits.remove("hugepages-2Mi");
        assert_eq!(memory_manager(&config), Vec::<String>::new());
    }
}
