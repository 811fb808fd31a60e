//! Whether this machine can be a node, and what to do where it cannot: as a table by `node-agent doctor`, in the log when
//! the agent starts ([`log_machine`], [`log_runtime`]), and as a refusal where the configuration asks for one
//! ([`refuse`]).

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use proto::cri::{RuntimeCondition, RuntimeHandler, StatusRequest};

use crate::api::{Kubeconfig, io_words};
use crate::cli::{self, Command, Flags};
use crate::config::{self, ConfigError, Configuration, Loaded};
use crate::cri::CriClient;
use crate::daemon::wrong_at_start;
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
        Ok(Command::Help | Command::Version { .. }) => {
            println!("node-agent doctor [the agent's flags]: checks whether this machine can be a node");
            return Some(ExitCode::SUCCESS);
        }
        Err(error) => {
            eprintln!("Error: {error}");
            return Some(ExitCode::from(cli::CALLED_WRONGLY));
        }
    };
    let loaded = config::load(&flags.sources);
    let needs = loaded.as_ref().map_or_else(|_| Needs::default(), |loaded| Needs::of(&loaded.config));
    let mut checks = vec![rights(), clock()];
    checks.extend(machine(Path::new("/"), &needs));
    checks.push(configuration(&flags, &loaded));
    checks.extend(start(&flags, loaded.as_ref().ok()));
    checks.extend(api_server(&flags));
    let (about, handlers) = runtime(&needs.runtime);
    checks.extend(about);
    checks.extend(features(&kernel_release(Path::new("/")), handlers.as_deref()));
    // A reader that closed its end has seen enough.
    let _ = print(&checks, &mut std::io::stdout().lock());
    let broken = checks.iter().any(|c| c.verdict == Verdict::Broken);
    Some(if broken { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Whether the agent may start here at all; `root` is `/` outside tests.
///
/// # Errors
/// In the kubelet's words, with what the configuration does not put up with.
pub fn refuse(root: &Path, config: &Configuration) -> Result<(), String> {
    if config.fail_swap_on && has_swap(root) {
        return Err(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false".into()
        );
    }
    // Without cgroups of its own the agent does not mind which version they are.
    let unified = root.join("sys/fs/cgroup/cgroup.controllers").exists();
    if config.fail_cgroup_v1 && config.cgroups_per_qos && !unified {
        return Err(
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and \
                    will be removed in a future release"
                .into(),
        );
    }
    Ok(())
}

/// Says in the log what the machine lacks; `root` is `/` outside tests.
pub fn log_machine(root: &Path, config: &Configuration) {
    log(std::iter::once(clock()).chain(machine(root, &Needs::of(config))));
}

/// Says in the log what the runtime lacks that has just answered. `version` is as a node's status has it.
pub fn log_runtime(version: &str, handlers: &[RuntimeHandler]) {
    let (name, number) = version.split_once("://").unwrap_or((version, ""));
    log(std::iter::once(runtime_version(name, number)).chain(features(&kernel_release(Path::new("/")), Some(handlers))));
}

fn log(checks: impl Iterator<Item = Check>) {
    for check in checks.filter(|check| check.verdict != Verdict::Fine) {
        tracing::warn!(found = check.found, "check of {}: {}", check.name, check.advice);
    }
}

fn kernel_release(root: &Path) -> String {
    let release = std::fs::read_to_string(root.join("proc/sys/kernel/osrelease"));
    release.map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// A list with a line for each, after the heading.
fn has_swap(root: &Path) -> bool {
    std::fs::read_to_string(root.join("proc/swaps")).is_ok_and(|text| text.lines().count() > 1)
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
    let release = kernel_release(root);
    let kernel = version(&release);
    let controllers = read("sys/fs/cgroup/cgroup.controllers");
    let missing: Vec<_> = CONTROLLERS.iter().copied().filter(|c| !controllers.split(' ').any(|w| w == *c)).collect();
    let swap = has_swap(root);
    let files = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
    let check = |name, good: bool, otherwise, found: String, advice| Check {
        name,
        verdict: if good { Verdict::Fine } else { otherwise },
        found,
        advice: if good { "" } else { advice },
    };
    vec![
        check("kernel", kernel >= OLDEST_KERNEL, Verdict::Broken, release, "install a kernel of 4.19 or newer"),
        check(
            "cgroup v2",
            missing.is_empty(),
            if needs.cgroups { Verdict::Broken } else { Verdict::Warning },
            match (controllers.is_empty(), missing.is_empty()) {
                (true, _) => "not mounted".into(),
                (false, true) => controllers.clone(),
                (false, false) => format!("without {}", missing.join(", ")),
            },
            "boot with systemd.unified_cgroup_hierarchy=1, or set cgroupsPerQOS: false, enforceNodeAllocatable: [none]",
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
        check("open files", files >= FILES, Verdict::Warning, files.to_string(), "raise LimitNOFILE in the unit"),
    ]
}

/// What the kernel and the runtime have to have both. `handlers` are the runtime's, None while it does not answer.
fn features(release: &str, handlers: Option<&[RuntimeHandler]>) -> Vec<Check> {
    // The handler without a name is what pods get that ask for none.
    let default =
        handlers.map(|all| all.iter().find(|h| h.name.is_empty()).and_then(|h| h.features).unwrap_or_default());
    let check = |name, oldest, of_runtime: Option<bool>, kernel_advice, runtime_advice| {
        let kernel = version(release) >= oldest;
        let runtime = match of_runtime {
            Some(true) => "the runtime has them",
            Some(false) => "the runtime has them not",
            None => "the runtime does not answer",
        };
        let fine = kernel && of_runtime == Some(true);
        Check {
            name,
            verdict: if fine { Verdict::Fine } else { Verdict::Warning },
            found: format!("kernel {release}; {runtime}"),
            advice: match (fine, kernel) {
                (true, _) => "",
                (false, false) => kernel_advice,
                (false, true) => runtime_advice,
            },
        }
    };
    vec![
        check(
            "user namespaces",
            USER_NAMESPACES_KERNEL,
            default.map(|f| f.user_namespaces),
            "pods with hostUsers: false need a kernel of 6.3 or newer",
            "pods with hostUsers: false need containerd 2.0 or CRI-O 1.25, and runc 1.2 or crun 1.9",
        ),
        check(
            "read-only mounts",
            READ_ONLY_KERNEL,
            default.map(|f| f.recursive_read_only_mounts),
            "recursiveReadOnly needs a kernel of 5.12 or newer",
            "recursiveReadOnly needs containerd 2.0 or CRI-O 1.30, and runc 1.1 or crun 1.4",
        ),
    ]
}

/// How long the API server is waited for.
const API_SERVER: Duration = Duration::from_secs(5);

/// Whether somebody listens where the kubeconfig says that the API server is; None without one. The agent runs without it,
/// too, and what is wrong with a kubeconfig is told elsewhere.
fn api_server(flags: &Flags) -> Option<Check> {
    let files = [flags.kubeconfig.as_deref(), flags.bootstrap_kubeconfig.as_deref()];
    let config = files.into_iter().flatten().find_map(|path| Kubeconfig::load(path).ok())?;
    // A proxy is all that this machine has to reach.
    let reached = match config.proxy() {
        Ok(Some(proxy)) => connect(proxy.place()),
        Ok(None) => reach(&config.server),
        Err(error) => Err(error.to_string()),
    };
    Some(Check {
        name: "API server",
        verdict: if reached.is_ok() { Verdict::Fine } else { Verdict::Warning },
        found: match &reached {
            Ok(()) => config.server.clone(),
            Err(why) => format!("{}: {why}", config.server),
        },
        advice: match reached {
            Ok(()) => "",
            Err(_) => "pods on this node go on; see that the server runs and that nothing in between refuses the port",
        },
    })
}

/// Makes a connection and lets it go.
fn reach(server: &str) -> Result<(), String> {
    let uri: http::Uri = server.parse().map_err(|_| "is no URL".to_owned())?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
    connect((host, port))
}

fn connect((host, port): (&str, u16)) -> Result<(), String> {
    use std::net::{TcpStream, ToSocketAddrs};
    let addresses = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut why = "has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, API_SERVER) {
            Ok(_) => return Ok(()),
            Err(error) => why = format!("dial tcp {address}: {}", io_words(&error)),
        }
    }
    Err(why)
}

/// Runtimes from these versions on tell their cgroup driver, without which they are to be configured alike.
const RUNTIMES: &[(&str, (u32, u32))] = &[("containerd", (2, 0)), ("cri-o", (1, 28))];

fn runtime_version(name: &str, number: &str) -> Check {
    let known = RUNTIMES.iter().find(|(known, _)| *known == name);
    let fine = known.is_none_or(|(_, oldest)| version(number.trim_start_matches('v')) >= *oldest);
    Check {
        name: "runtime",
        verdict: if fine { Verdict::Fine } else { Verdict::Warning },
        found: format!("{name} {number}"),
        advice: if fine {
            ""
        } else {
            "see that cgroupDriver is the runtime's; containerd 2.0 and CRI-O 1.28 tell theirs"
        },
    }
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

/// What the start would refuse of a configuration that is valid, one for each.
fn start(flags: &Flags, loaded: Option<&Loaded>) -> Vec<Check> {
    let Some(loaded) = loaded else { return Vec::new() };
    let wrong = wrong_at_start(flags, loaded).into_iter().map(|error| error.to_string());
    let wrong = wrong.chain(refuse(Path::new("/"), &loaded.config).err());
    let broken = |found| Check {
        name: "start",
        verdict: Verdict::Broken,
        found,
        advice: "the agent would not start: mend this first",
    };
    wrong.map(broken).collect()
}

/// Whether the runtime answers, and whether it says that it can run pods and give them a network; with its handlers.
fn runtime(endpoint: &str) -> (Vec<Check>, Option<Vec<RuntimeHandler>>) {
    let asked = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string()).and_then(
        |executor| {
            executor.block_on(async {
                let patience = Duration::from_secs(5);
                let cri = CriClient::new(endpoint, None, patience).map_err(|e| e.to_string())?;
                match tokio::time::timeout(patience, cri.version()).await {
                    Ok(Ok(version)) => {
                        let status = tokio::time::timeout(patience, cri.status(StatusRequest { verbose: false })).await;
                        Ok((version, status.ok().and_then(Result::ok)))
                    }
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("no answer".into()),
                }
            })
        },
    );
    match asked {
        Ok((version, status)) => {
            let (conditions, handlers) = match status {
                Some(status) => (status.status.unwrap_or_default().conditions, Some(status.runtime_handlers)),
                None => (Vec::new(), None),
            };
            let first = runtime_version(&version.runtime_name, &version.runtime_version);
            let unready = conditions.iter().filter(|c| !c.status).map(not_ready);
            (std::iter::once(first).chain(unready).collect(), handlers)
        }
        Err(error) => {
            let broken = Check {
                name: "runtime",
                verdict: Verdict::Broken,
                found: format!("{endpoint}: {error}"),
                advice: "start the container runtime, or set containerRuntimeEndpoint",
            };
            (vec![broken], None)
        }
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
    use proto::cri::RuntimeHandlerFeatures;

    use super::*;

    #[test]
    fn a_server_that_nobody_listens_for_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        assert_eq!(reach(&url), Ok(()));
        drop(listener);
        let why = reach(&url).expect_err("nobody listens");
        assert!(why.starts_with("dial tcp 127.0.0.1:") && why.ends_with(": connection refused"), "{why}");
    }

    #[test]
    fn what_the_configuration_does_not_put_up_with_is_refused() {
        let root = std::env::temp_dir().join(format!("doctor-{}", crate::backoff::random_below(u32::MAX)));
        for folder in ["proc", "sys/fs/cgroup"] {
            std::fs::create_dir_all(root.join(folder)).expect("made");
        }
        let config = |fail_swap_on, fail_cgroup_v1, cgroups_per_qos| {
            let config = Configuration { fail_swap_on, fail_cgroup_v1, cgroups_per_qos, ..Configuration::default() };
            refuse(&root, &config).err().unwrap_or_default()
        };
        assert!(config(true, true, true).starts_with("kubelet is configured to not run on a host using cgroup v1."));
        assert_eq!((config(true, false, true), config(true, true, false)), Default::default());
        std::fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "cpu memory\n").expect("written");
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        std::fs::write(root.join("proc/swaps"), heading).expect("written");
        assert_eq!(config(true, true, true), "");
        let on = format!("{heading}/dev/dm-1 partition 16760828 0 -2\n");
        std::fs::write(root.join("proc/swaps"), on).expect("written");
        let words = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false";
        assert_eq!((config(true, true, true).as_str(), config(false, true, true).as_str()), (words, ""));
        std::fs::remove_dir_all(root).expect("removed");
    }

    #[test]
    fn features_need_the_kernel_and_the_default_handler() {
        let handler = |name: &str, on| RuntimeHandler {
            name: name.into(),
            features: Some(RuntimeHandlerFeatures { recursive_read_only_mounts: on, user_namespaces: on }),
        };
        let fine = |release, handlers: Option<&[RuntimeHandler]>| {
            let checks = features(release, handlers);
            assert!(checks.iter().all(|c| (c.verdict == Verdict::Fine) == c.advice.is_empty()));
            checks.iter().map(|c| c.verdict == Verdict::Fine).collect::<Vec<_>>()
        };
        let (with, other) = ([handler("", true)], [handler("", false), handler("kata", true)]);
        assert_eq!(fine("6.12.1", Some(&with)), [true, true]);
        assert_eq!(fine("6.12.1", Some(&other)), [false, false], "another handler's are not the default's");
        assert_eq!(fine("6.1.0-28-amd64", Some(&with)), [false, true]);
        assert_eq!((fine("6.12.1", Some(&[])), fine("6.12.1", None)), (vec![false; 2], vec![false; 2]));
        assert_eq!(runtime_version("containerd", "1.6.20~ds1").verdict, Verdict::Warning);
        assert_eq!(runtime_version("containerd", "v2.1.4").verdict, Verdict::Fine);
        assert_eq!(runtime_version("another", "0.1").verdict, Verdict::Fine);
    }

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
