//! `node-agent doctor`: whether this machine can be a node, as a table, with what to do where it cannot.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::cli::{self, Command, Flags};
use crate::config;
use crate::cri::CriClient;

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
    let mut checks = machine(Path::new("/"));
    checks.push(configuration(&flags));
    checks.push(runtime(&flags));
    let mut out = std::io::stdout().lock();
    for check in &checks {
        let word = match check.verdict {
            Verdict::Fine => "ok",
            Verdict::Warning => "warning",
            Verdict::Broken => "BROKEN",
        };
        // A reader that closed its end has seen enough.
        if writeln!(out, "{word:<8} {:<16} {:<40} {}", check.name, check.found, check.advice).is_err() {
            break;
        }
    }
    let broken = checks.iter().any(|c| c.verdict == Verdict::Broken);
    Some(if broken { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// What the machine itself says; `root` is `/` outside tests.
fn machine(root: &Path) -> Vec<Check> {
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
            Verdict::Broken,
            if controllers.is_empty() { "not mounted".into() } else { controllers.clone() },
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
            !swap,
            Verdict::Warning,
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

fn configuration(flags: &Flags) -> Check {
    match config::load(&flags.sources) {
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

fn runtime(flags: &Flags) -> Check {
    let endpoint = config::load(&flags.sources)
        .map_or_else(|_| "unix:///run/containerd/containerd.sock".to_owned(), |l| l.config.container_runtime_endpoint);
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
                let cri = CriClient::new(&endpoint, None, patience).map_err(|e| e.to_string())?;
                match tokio::time::timeout(patience, cri.version()).await {
                    Ok(Ok(version)) => Ok(format!("{} {}", version.runtime_name, version.runtime_version)),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("no answer".into()),
                }
            })
        },
    );
    match asked {
        Ok(found) => Check { name: "runtime", verdict: Verdict::Fine, found, advice: "" },
        Err(error) => broken(format!("{endpoint}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_machine_cannot_be_a_node_and_is_told_what_to_do() {
        let checks = machine(Path::new("/nonexistent"));
        let broken: Vec<_> = checks.iter().filter(|c| c.verdict == Verdict::Broken).map(|c| c.name).collect();
        assert_eq!(broken, ["kernel", "cgroup v2"]);
        assert!(checks.iter().all(|c| (c.verdict == Verdict::Fine) == c.advice.is_empty()));
        assert_eq!(version("6.12.107+deb13-cloud-amd64"), (6, 12));
    }
}
