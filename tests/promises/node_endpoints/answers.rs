//! Recorded requests are sent again, and what the answers differ in is told, but for what is of this machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Recorded;

/// What this machine is that the recorded one was not.
struct Machine {
    /// cgroup v1: no pressure figures, and no cgroups of pods in the node that a test starts.
    no_unified: bool,
    no_pressure: bool,
    /// containerd before 2 makes no checkpoints, does not tell a container's user, and has words of its own.
    old_runtime: bool,
}

impl Machine {
    fn new() -> Result<Self> {
        let no_unified = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let version = String::from_utf8(Command::new("containerd").arg("--version").output()?.stdout)?;
        let version =
            version.split_whitespace().nth(2).context("containerd's version")?.trim_start_matches('v').to_owned();
        let old_runtime = version.starts_with("1.");
        Ok(Machine { no_unified, no_pressure: no_unified || !Path::new("/proc/pressure").exists(), old_runtime })
    }

    /// Whether a difference at `at` of the answer to `request` is one of the machine.
    fn explains(&self, request: &Value, at: &str, want: Option<&Value>, have: Option<&Value>) -> bool {
        let (name, path) = (request["name"].as_str().unwrap_or_default(), request["path"].as_str().unwrap_or_default());
        let (plain, _) = path.split_once('?').unwrap_or((path, ""));
        match plain.trim_end_matches('/') {
            "/stats/summary" => return self.explains_figures(at, have),
            "/pods" | "/%70ods" => return self.explains_pod(at, want, have),
            _ => {}
        }
        let texts = || Some((want?.as_str()?, have?.as_str()?));
        let (want, have) = match (at, texts()) {
            ("/text", Some(texts)) => texts,
            // Status and headers are never another machine's, but for what its runtime cannot do.
            _ => return self.old_runtime && lacks(name, at, have),
        };
        match name {
            // There is no Go.
            "/statusz Accept application/yaml;as=Statusz;v=v1beta1;g=config.k8s.io" => {
                let rest = |text: &str| text.lines().filter(|l| !l.starts_with("goVersion: ")).collect::<String>();
                rest(want) == rest(have)
            }
            "run no cmd" | "run not found" | "POST /run/ns1/web/main as reader" => {
                self.old_runtime && have == format!("{want}: unknown")
            }
            "exec SPDY protocol []" | "exec unknown upgrade" | "attach SPDY protocol []" | "attach unknown upgrade" => {
                self.old_runtime && have == "unable to upgrade: X-Stream-Protocol-Version is required\n"
            }
            _ => self.old_runtime && lacks(name, at, Some(&have.into())),
        }
    }

    /// Figures that no file of this kernel has.
    fn explains_figures(&self, at: &str, have: Option<&Value>) -> bool {
        let of_cgroups = [
            "/shape/pods[]/memory/availableBytes",
            "/shape/pods[]/process_stats",
            "/shape/node/systemContainers[]/memory/availableBytes",
        ];
        let pressure = at.ends_with("/psi") || at.ends_with("/io");
        have.is_none() && (self.no_pressure && pressure || self.no_unified && of_cgroups.contains(&at))
    }

    fn explains_pod(&self, at: &str, want: Option<&Value>, have: Option<&Value>) -> bool {
        let users =
            ["/shape/items[]/status/containerStatuses[]/user", "/shape/items[]/status/initContainerStatuses[]/user"];
        want.is_some() && have.is_none() && self.old_runtime && users.contains(&at)
    }
}

/// What containerd before 2 answers where a newer one does something else, part by part.
fn lacks(name: &str, at: &str, have: Option<&Value>) -> bool {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    match (name, at) {
        ("checkpoint timeout zero" | "checkpoint success", _) => match at {
            "/status" => have == Some(&500.into()),
            "/content-type" => text(have).as_deref() == Some("text/plain; charset=utf-8"),
            "/text" => text(have).is_some_and(|t| {
                t.starts_with("checkpointing of ns1/web/main failed (")
                    && t.ends_with("CheckpointContainer not implemented)")
            }),
            _ => false,
        },
        // It takes a client without protocols for one of its own first version, and answers nothing, with 200.
        ("portForward web SPDY no protocol", "/status") => have == Some(&500.into()),
        ("portForward web SPDY no protocol", "/text") => {
            text(have).as_deref() == Some("invalid upgrade response: status code 200\n")
        }
        _ => false,
    }
}

/// Hears of a place, and what was wanted and is there.
type Differs<'a> = dyn FnMut(&str, Option<&Value>, Option<&Value>) + 'a;

/// Calls `differs` with the place, and what was wanted and is there, for each difference. Lists of shapes have one element.
fn differences(want: Option<&Value>, have: Option<&Value>, at: &str, differs: &mut Differs<'_>) {
    match (want, have) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut keys: Vec<&serde_json::Name> = a.keys().chain(b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                differences(a.get(key), b.get(key), &format!("{at}/{key}"), differs);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (a, b) in a.iter().zip(b) {
                differences(Some(a), Some(b), &format!("{at}[]"), differs);
            }
        }
        _ if want == have => {}
        _ => differs(at, want, have),
    }
}

/// Sends the requests of `exchanges-NAME.json` and returns what differs from the answers there.
pub fn replay(recorded: &Recorded, names: &[&str]) -> Result<Vec<String>> {
    let machine = Machine::new()?;
    let (mut wrong, mut explained, mut count) = (Vec::new(), 0, 0);
    let script = recorded.recordings.join("endpoints.py");
    for name in names {
        let file = format!("exchanges-{name}.json");
        let wanted = recorded.file(&file)?;
        // The script leaves whole answers in the file that it is given, of which it shows beginnings otherwise.
        let copy = recorded.node.dir.join(&file);
        std::fs::copy(recorded.recordings.join(&file), &copy)?;
        std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let output = Command::new("python3")
            .arg(&script)
            .args(["record", "--seconds", "10", "--creds"])
            .arg(&recorded.credentials)
            .args(["--server", &recorded.main, "--read-only", &recorded.read_only, "--healthz", &recorded.healthz])
            .arg(&copy)
            .output()?;
        ensure!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let have: Value = serde_json::from_slice(&std::fs::read(&copy)?)?;
        let (wanted, have) = (wanted.as_array().context("requests")?, have.as_array().context("requests")?);
        ensure!(wanted.len() == have.len() && !wanted.is_empty(), "{file}: {} of {}", have.len(), wanted.len());
        count += wanted.len();
        for (request, now) in wanted.iter().zip(have) {
            let mut tell = |at: &str, want: Option<&Value>, have: Option<&Value>| {
                if machine.explains(request, at, want, have) {
                    explained += 1;
                    return;
                }
                let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
                wrong.push(format!("{} {at}: {} instead of {}", request["name"], show(have), show(want)));
            };
            differences(Some(&request["answer"]), Some(&now["answer"]), "", &mut tell);
        }
    }
    println!("{count} requests of {names:?}; {explained} parts of answers are this machine's own");
    Ok(wrong)
}

/// Whole answers that were kept for some pods: those have the same members here. Values are measured, and may differ.
pub fn shapes(recorded: &Recorded) -> Result<Vec<String>> {
    let machine = Machine::new()?;
    let mut wrong = Vec::new();
    let kept = [
        ("runningpods.json", "/runningpods/", "items", "/metadata/name", "/spec/containers"),
        ("stats-summary.json", "/stats/summary", "pods", "/podRef/name", "/containers"),
    ];
    for (file, path, list, name, containers) in kept {
        let (want, mut have) = (recorded.file(file)?, serde_json::from_str::<Value>(&recorded.page(path)?)?);
        let request = serde_json::json!({"name": file, "path": path});
        let sort = |pod: &mut Value| {
            if let Some(Value::Array(all)) = pod.pointer_mut(containers) {
                all.sort_by_key(|c| c["name"].as_str().unwrap_or_default().to_owned());
            }
        };
        for mut want in want[list].as_array().context("pods")?.clone() {
            let have = have[list].as_array_mut().context("pods")?;
            let Some(have) = have.iter_mut().find(|p| p.pointer(name) == want.pointer(name)) else {
                wrong.push(format!("{path} has no {:?}", want.pointer(name)));
                continue;
            };
            sort(&mut want);
            sort(&mut *have);
            let mut tell = |at: &str, want: Option<&Value>, have: Option<&Value>| {
                let measured = [want, have].iter().all(|v| v.is_some_and(|v| v.is_string() || v.is_number()));
                if !measured && !machine.explains(&request, at, want, have) {
                    wrong.push(format!("{path} {at}: {have:?} instead of {want:?}"));
                }
            };
            differences(Some(&want), Some(&*have), &format!("/shape/{list}[]"), &mut tell);
        }
    }
    Ok(wrong)
}
