//! `node-agent doctor`: whether this machine can be a node, as a table, with what to do where it cannot.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use proto::cri::{RuntimeCondition, StatusRequest};

use crate::cli::{self, Command, Flags};
use crate::config::{self, ConfigError, Configuration, Loaded};
use crate::cri::CriClient;
use crate::settings::OwnSettings;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// Works, with something missing.
    Warning,
    Broken,
}

#[derive(Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// Empty when all is fine.
    advice: &'static str,
}

/// Older kernels lack what containers need on cgroup v2.
const OLDEST_KERNEL: (u32, u32) = (4, 19);
/// idmapped mounts of tmpfs, without which pods have no user namespaces.
const USER_NAMESPACES_KERNEL: (u32, u32) = (6, 3);
/// `mount_setattr` with AT_RECURSIVE.
const READ_ONLY_KERNEL: (u32, u32) = (5, 12);
const CONTROLLERS: &[&str] = &["cpu", "cpuset", "memory", "pids"];
const FILES: u64 = 65_536;

/// Runs when the first argument is `doctor`; what follows are the flags that the agent would be started with.
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    let [first, rest @ ..] = arguments else { return None };
    if first != "doctor" {
        return None;
    }
    let flags = match cli::parse(rest.iter().cloned()) {
        Ok(Command::Run(flags)) => *flags,
        Ok(Command::Help | Command::Version) => {
            println!("node-agent doctor [the agent's flags]: checks whether this machine can be a node");
            return Some(ExitCode::SUCCESS);
        }
        Err(error) => {
            eprintln!("Error: {error}");
            return Some(ExitCode::from(1));
        }
    };
    let loaded = config::load(&flags.sources);
    let needs = loaded.as_ref().map_or_else(|_| Needs::default(), |loaded| Needs::of(&loaded.config));
    let mut checks = vec![rights(), clock()];
    checks.extend(machine(Path::new("/"), &needs));
    checks.push(configuration(&flags, &loaded));
    checks.extend(runtime(&needs.runtime));
    // A reader that closed its end has seen enough.
    let _ = print(&checks, &mut std::io::stdout().lock());
    let broken = checks.iter().any(|c| c.verdict == Verdict::Broken);
    Some(if broken { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// One line a check, and one below where there is something to do.
fn print(checks: &[Check], out: &mut impl Write) -> std::io::Result<()> {
    for check in checks {
        let word = match check.verdict {
            Verdict::Fine => "ok",
            Verdict::Warning => "warning",
            Verdict::Broken => "BROKEN",
        };
        writeln!(out, "{word:<8} {:<17} {}", check.name, check.found)?;
        if !check.advice.is_empty() {
            writeln!(out, "{:26} -> {}", "", check.advice)?;
        }
    }
    Ok(())
}

/// What the configuration makes of the machine's shortcomings.
struct Needs {
    /// Cgroups of pods are the agent's to make.
    cgroups: bool,
    /// Swap keeps the agent from starting.
    no_swap: bool,
    /// The runtime's socket.
    runtime: String,
}

impl Default for Needs {
    fn default() -> Self {
        Needs { cgroups: true, no_swap: true, runtime: "unix:///run/containerd/containerd.sock".into() }
    }
}

impl Needs {
    fn of(config: &Configuration) -> Self {
        Needs {
            cgroups: config.cgroups_per_qos,
            no_swap: config.fail_swap_on,
            runtime: config.container_runtime_endpoint.clone(),
        }
    }
}

fn rights() -> Check {
    let root = nix::unistd::geteuid().is_root();
    Check {
        name: "user",
        verdict: if root { Verdict::Fine } else { Verdict::Broken },
        found: if root { "root".into() } else { format!("uid {}", nix::unistd::geteuid()) },
        advice: if root { "" } else { "run this and the agent as root; what follows may be wrong for want of rights" },
    }
}

/// Certificates, leases and tokens are of no use where the clock is wrong.
fn clock() -> Check {
    let synchronised = synchronised();
    Check {
        name: "time",
        verdict: if synchronised == Some(false) { Verdict::Warning } else { Verdict::Fine },
        found: match synchronised {
            Some(true) => "synchronised".into(),
            Some(false) => "not synchronised".into(),
            None => "unknown".into(),
        },
        advice: if synchronised == Some(false) { "start systemd-timesyncd or chrony" } else { "" },
    }
}

/// The kernel's word on its clock: adjtimex(2). None where it does not say.
#[allow(unsafe_code)]
fn synchronised() -> Option<bool> {
    // SAFETY: `timex` is plain numbers, for which zero is a value; with `modes` zero the call writes to it alone.
    let state = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        libc::adjtimex(&mut timex)
    };
    (state >= 0).then_some(state != libc::TIME_ERROR)
}

/// What the machine itself says; `root` is `/` outside tests.
fn machine(root: &Path, needs: &Needs) -> Vec<Check> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).map(|t| t.trim().to_owned()).unwrap_or_default();
    let release = read("proc/sys/kernel/osrelease");
    let kernel = version(&release);
    let at_least = |wanted: (u32, u32)| kernel >= wanted;
    let controllers = read("sys/fs/cgroup/cgroup.controllers");
    let missing: Vec<_> = CONTROLLERS.iter().copied().filter(|c| !controllers.split(' ').any(|w| w == *c)).collect();
    let swap = read("proc/swaps").lines().count() > 1;
    let files = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
    let check = |name, good: bool, otherwise, found: String, advice| Check {
        name,
        verdict: if good { Verdict::Fine } else { otherwise },
        found,
        advice: if good { "" } else { advice },
    };
    vec![
        check("kernel", at_least(OLDEST_KERNEL), Verdict::Broken, release.clone(), "install a kernel of 4.19 or newer"),
        check(
            "cgroup v2",
            missing.is_empty(),
            if needs.cgroups { Verdict::Broken } else { Verdict::Warning },
            match (controllers.is_empty(), missing.is_empty()) {
                (true, _) => "not mounted".into(),
                (false, true) => controllers.clone(),
                (false, false) => format!("without {}", missing.join(", ")),
            },
            "boot with systemd.unified_cgroup_hierarchy=1, or set cgroupsPerQOS: false, enforceNodeAllocatable: []",
        ),
        check(
            "PSI",
            root.join("proc/pressure/memory").exists(),
            Verdict::Warning,
            if root.join("proc/pressure/memory").exists() { "on".into() } else { "off".into() },
            "boot with psi=1 for pressure statistics",
        ),
        check(
            "swap",
            !swap || !needs.no_swap,
            Verdict::Broken,
            if swap { "on".into() } else { "off".into() },
            "swapoff -a, or set failSwapOn: false",
        ),
        check(
            "user namespaces",
            at_least(USER_NAMESPACES_KERNEL),
            Verdict::Warning,
            release.clone(),
            "pods with hostUsers: false need a kernel of 6.3 or newer",
        ),
        check(
            "read-only mounts",
            at_least(READ_ONLY_KERNEL),
            Verdict::Warning,
            release,
            "recursiveReadOnly needs a kernel of 5.12 or newer",
        ),
        check("open files", files >= FILES, Verdict::Warning, files.to_string(), "raise LimitNOFILE in the unit"),
    ]
}

fn version(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn configuration(flags: &Flags, loaded: &Result<Loaded, ConfigError>) -> Check {
    if let Err(errors) = OwnSettings::load(flags.settings.as_deref()) {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        return Check {
            name: "settings",
            verdict: Verdict::Broken,
            found: errors.join("; "),
            advice: "see node-agent config check",
        };
    }
    match loaded {
        Ok(loaded) if loaded.oddities.is_empty() => {
            Check { name: "configuration", verdict: Verdict::Fine, found: "valid".into(), advice: "" }
        }
        Ok(loaded) => Check {
            name: "configuration",
            verdict: Verdict::Warning,
            found: loaded.oddities.join("; "),
            advice: "remove what no version knows",
        },
        Err(error) => Check {
            name: "configuration",
            verdict: Verdict::Broken,
            found: error.to_string(),
            advice: "see node-agent config check",
        },
    }
}

/// Whether the runtime answers, and whether it says that it can run pods and give them a network.
fn runtime(endpoint: &str) -> Vec<Check> {
    let broken = |found: String| Check {
        name: "runtime",
        verdict: Verdict::Broken,
        found,
        advice: "start the container runtime, or set containerRuntimeEndpoint",
    };
    let asked = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string()).and_then(
        |executor| {
            executor.block_on(async {
                let patience = Duration::from_secs(5);
                let cri = CriClient::new(endpoint, None, patience).map_err(|e| e.to_string())?;
                match tokio::time::timeout(patience, cri.version()).await {
                    Ok(Ok(version)) => {
                        let name = format!("{} {}", version.runtime_name, version.runtime_version);
                        let status = tokio::time::timeout(patience, cri.status(StatusRequest { verbose: false })).await;
                        let conditions = status.ok().and_then(Result::ok).and_then(|s| s.status);
                        Ok((name, conditions.unwrap_or_default().conditions))
                    }
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("no answer".into()),
                }
            })
        },
    );
    match asked {
        Ok((found, conditions)) => {
            std::iter::once(Check { name: "runtime", verdict: Verdict::Fine, found, advice: "" })
                .chain(conditions.iter().filter(|c| !c.status).map(not_ready))
                .collect()
        }
        Err(error) => vec![broken(format!("{endpoint}: {error}"))],
    }
}

fn not_ready(condition: &RuntimeCondition) -> Check {
    Check {
        name: "runtime",
        verdict: Verdict::Warning,
        found: format!("{} is false: {}", condition.r#type, condition.message),
        advice: match condition.r#type.as_str() {
            "NetworkReady" => "install a CNI plugin and its configuration (/etc/cni/net.d); pods wait for it",
            _ => "see the runtime's own log",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_machine_cannot_be_a_node_and_is_told_what_to_do() {
        let checks = machine(Path::new("/nonexistent"), &Needs::default());
        let broken: Vec<_> = checks.iter().filter(|c| c.verdict == Verdict::Broken).map(|c| c.name).collect();
        assert_eq!(broken, ["kernel", "cgroup v2"]);
        assert!(checks.iter().all(|c| (c.verdict == Verdict::Fine) == c.advice.is_empty()));
        let reduced = machine(Path::new("/nonexistent"), &Needs { cgroups: false, ..Needs::default() });
        let broken: Vec<_> = reduced.iter().filter(|c| c.verdict == Verdict::Broken).map(|c| c.name).collect();
        assert_eq!(broken, ["kernel"], "the reduced mode needs no cgroup v2");
        let mut shown = Vec::new();
        print(&checks[..2], &mut shown).expect("written");
        let shown = String::from_utf8(shown).expect("text");
        assert!(shown.contains("BROKEN   cgroup v2         not mounted\n"), "{shown}");
        assert!(shown.contains(" -> boot with systemd.unified_cgroup_hierarchy=1"), "{shown}");
        assert_eq!(version("6.12.107+deb13-cloud-amd64"), (6, 12));
    }
}
