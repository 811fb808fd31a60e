//! Every mistake in the agent's configuration has its message and its exit code, before anything is started.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::agent::{Place, STANDALONE, run_to_end};
use tests::release_binary;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Configuration, arguments and what the agent says; it ends with 1.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("", &[], "was empty"),
    ("kind: KubeletConfiguration\n", &[], "Object 'apiVersion' is missing"),
    ("apiVersion: v1\nkind: Pod\n", &[], "no kind \"Pod\" is registered for version \"v1\""),
    ("- a\n", &[], "cannot unmarshal array into Go value"),
    ("HEADport: [\n", &[], "failed to decode"),
    ("HEADport: 70000\n", &[], "port (--port) 70000 must be between 1 and 65535, inclusive"),
    ("HEADport: text\n", &[], "cannot unmarshal string into Go struct field KubeletConfiguration.port of type int32"),
    ("HEADsyncFrequency: soon\n", &[], "time: invalid duration"),
    ("HEADenableServer: 1\n", &[], "KubeletConfiguration.enableServer of type bool"),
    ("HEADimageGCHighThresholdPercent: 10\nimageGCLowThresholdPercent: 50\n", &[], "imageGCLowThresholdPercent"),
    ("HEADevictionHard: {memory.free: 1Mi}\n", &[], "memory.free"),
    ("HEADfeatureGates: {SystemdWatchdog: false}\n", &[], "cannot set feature gate SystemdWatchdog to false"),
    ("HEADcpuManagerPolicy: fast\n", &[], "fast"),
    ("HEADtopologyManagerPolicy: best\n", &[], "best"),
    ("HEADcontainerLogMaxFiles: 1\n", &[], "containerLogMaxFiles"),
    ("HEADrunOnce: true\n", &[], "runOnce"),
    ("HEADmaxPodz: 5\n", &["--strict-config"], "agent.yaml:3: unknown field \"maxPodz\""),
    ("HEAD", &["--no-such-flag"], "unknown flag: --no-such-flag"),
    ("HEAD", &["--max-pods=many"], "invalid argument \"many\" for \"--max-pods\" flag"),
    (
        "HEAD",
        &["--max-pods=3000000000"],
        "for \"--max-pods\" flag: strconv.ParseInt: parsing \"3000000000\": value out of range",
    ),
    ("HEAD", &["--v=-1"], "for \"-v, --v\" flag: strconv.ParseUint: parsing \"-1\": invalid syntax"),
    ("HEAD", &["--minimum-container-ttl-duration=-1s"], "invalid minimum garbage collection age: -1s"),
    ("HEAD", &["serve"], "unknown command serve"),
    ("HEAD", &["--address=here"], "\"here\" is not a valid IP address"),
    (
        "HEADcontainerRuntimeEndpoint: ftp://x\nauthentication: {webhook: {enabled: false}}\nauthorization: {mode: \
         AlwaysAllow}\n",
        &[],
        "protocol \"ftp\" not supported",
    ),
    ("HEAD", &["--node-ip=0.0.0.0,::"], "dual-stack node IP cannot include '0.0.0.0' or '::'"),
    ("HEAD", &["--cloud-provider=aws"], "unsupported value for --cloud-provider"),
    ("HEADaddress: foo\n", &[], "address \"foo\" is no address to listen on"),
    ("HEADsyncFrequency: -1s\n", &[], "failed to create kubelet: invalid sync frequency -1000000000"),
    ("HEADtlsCurvePreferences: [29, 29]\n", &[], "duplicate curve preference 29"),
    ("HEADshowHiddenMetricsForVersion: foo\n", &[], "--show-hidden-metrics-for-version must be omitted"),
    ("HEADallowedUnsafeSysctls: [vm.swappiness]\n", &[], "are not known to be namespaced"),
    ("HEADregisterWithTaints: [{key: a/b/c, effect: NoSchedule}]\n", &[], "invalid taint: {a/b/c"),
    ("HEAD", &["--register-with-taints=Bad Prefix/x=y:NoSchedule"], "invalid taint spec"),
    ("HEAD", &["--exit-on-lock-contention"], "no lock file specified"),
    ("HEAD", &["--settings=/nonexistent.toml"], "/nonexistent.toml: No such file or directory"),
    ("HEAD", &["--kubeconfig=/nonexistent.conf", "--fail-cgroupv1=false"], "/nonexistent.conf"),
    ("HEAD", &[], "no client provided, cannot use webhook authentication"),
];

#[test]
fn every_mistake_has_its_message_and_ends_with_1() -> Result<()> {
    let place = Place::new("refused", "")?;
    for (config, arguments, words) in REFUSED {
        std::fs::write(place.config(), config.replace("HEAD", HEAD))?;
        let given: Vec<OsString> = place.arguments().into_iter().chain(arguments.iter().map(Into::into)).collect();
        let (code, said) = run_to_end(&given, &place.dir)?;
        ensure!(
            code == Some(1) && said.contains(words),
            "{config:?} {arguments:?}: {code:?}, no {words:?} in:\n{said}"
        );
        let mut check: Vec<OsString> = vec!["config".into(), "check".into()];
        check.extend(given.iter().skip(1).cloned());
        let (code, said) = run_to_end(&check, &place.dir)?;
        ensure!(
            matches!(code, Some(1 | 64)) && said.contains(words),
            "config check of {config:?} {arguments:?}: {code:?}, no {words:?} in:\n{said}"
        );
        // What was refused has left nothing behind.
        ensure!(!place.dir.join("root/pods").exists(), "{config:?} made folders");
    }
    Ok(())
}

#[test]
fn files_that_are_not_there_are_told_before_the_start_as_at_it() -> Result<()> {
    let place = Place::new("missing", STANDALONE)?;
    for (argument, words) in [
        ("--client-ca-file=/nonexistent.crt", "/nonexistent.crt"),
        ("--image-credential-provider-bin-dir=/nonexistent", ""),
        ("--authorization-mode=Webhook", "no client provided, cannot use webhook authorization"),
    ] {
        let mut given = place.arguments();
        given.push(argument.into());
        let (code, said) = run_to_end(&given, &place.dir)?;
        ensure!(code == Some(1) && said.contains(words), "{argument}: {code:?}, no {words:?} in:\n{said}");
        given[0] = "check".into();
        given.insert(0, "config".into());
        let (code, said) = run_to_end(&given, &place.dir)?;
        ensure!(code == Some(1) && said.contains(words), "config check {argument}: {code:?}\n{said}");
    }
    Ok(())
}

#[test]
fn commands_that_are_called_wrongly_end_with_64() -> Result<()> {
    let place = Place::new("called-wrongly", STANDALONE)?;
    for words in [&["config"][..], &["config", "veiw"], &["config", "check", "--bogus"], &["doctor", "--bogus"]] {
        let arguments: Vec<OsString> = words.iter().map(Into::into).collect();
        let (code, said) = run_to_end(&arguments, &place.dir)?;
        ensure!(code == Some(64), "{words:?}: {code:?}\n{said}");
    }
    Ok(())
}

#[test]
fn settings_of_the_daemon_are_checked_with_file_and_line() -> Result<()> {
    let place = Place::new("settings", STANDALONE)?;
    let file = place.dir.join("own.toml");
    let drop_in = place.dir.join("own.toml.d/50-site.toml");
    std::fs::create_dir_all(drop_in.parent().context("a folder")?)?;
    let mut arguments = place.arguments();
    arguments.extend(["--settings".into(), file.clone().into()]);
    for (main, site, words) in [
        ("[log]\nformat = json\n", "", "own.toml:2: "),
        ("[log]\nformat = \"xml\"\n", "", "own.toml:2: log.format: must be one of auto, text, json, journal"),
        ("[service]\nthreads = 1\n", "", "own.toml:2: unknown setting \"service.threads\""),
        ("", "\n\nverbosity = 3\n", "own.toml.d/50-site.toml:3: unknown setting \"verbosity\""),
        ("", "[service]\nworker_threads = 0\n", "50-site.toml:2: service.worker_threads: must be a number from 1"),
    ] {
        std::fs::write(&file, main)?;
        std::fs::write(&drop_in, site)?;
        let (code, said) = run_to_end(&arguments, &place.dir)?;
        ensure!(code == Some(1) && said.contains(words), "{main:?} {site:?}: {code:?}, no {words:?} in:\n{said}");
        let mut check: Vec<OsString> = vec!["config".into(), "check".into()];
        check.extend(arguments.iter().skip(1).cloned());
        let (code, said) = run_to_end(&check, &place.dir)?;
        ensure!(code == Some(1) && said.contains(words), "config check: {code:?}\n{said}");
    }
    Ok(())
}

#[test]
fn view_names_the_origin_of_each_value_and_check_every_problem() -> Result<()> {
    let place = Place::new("view", STANDALONE)?;
    let (file, drop_ins) = (place.dir.join("own.toml"), place.dir.join("conf.d"));
    std::fs::write(&file, "[log]\nfilter = \"agent=debug\"\n")?;
    std::fs::create_dir_all(&drop_ins)?;
    // A list of nothing in the main file does not outlast a folder of drop-ins.
    let text = format!("{HEAD}maxPods: 5\nsystemReserved: {{cpu: 100m}}\nenforceNodeAllocatable: []\n");
    std::fs::write(drop_ins.join("10-a.conf"), text)?;
    let mut arguments: Vec<OsString> = vec!["config".into(), "view".into()];
    arguments.extend(place.arguments().into_iter().skip(1));
    arguments.extend(["--config-dir".into(), drop_ins.clone().into(), "--settings".into(), file.into()]);
    arguments.push("--kube-api-qps=9".into());
    let (code, said) = run_to_end(&arguments, &place.dir)?;
    ensure!(code == Some(0), "{said}");
    for (key, value, origin) in [
        ("maxPods", "5", "conf.d/10-a.conf"),
        ("systemReserved.cpu", "100m", "conf.d/10-a.conf"),
        ("healthzPort", "", "agent.yaml"),
        ("kubeAPIQPS", "9", "--kube-api-qps"),
        ("syncFrequency", "1m0s", "default"),
        ("log.filter", "agent=debug", "own.toml:2"),
        ("service.worker_threads", "2", "default"),
    ] {
        let row = said.lines().find(|l| l.split_whitespace().next() == Some(key)).with_context(|| key.to_owned())?;
        ensure!(row.contains(value) && row.ends_with(origin), "{row}");
    }
    arguments[1] = "check".into();
    let (code, said) = run_to_end(&arguments, &place.dir)?;
    ensure!((code, said.as_str()) == (Some(0), "the configuration is valid\n"), "{said}");
    std::fs::write(
        drop_ins.join("20-b.conf"),
        format!(
            "{HEAD}maxPodz: 1\nport: 0\nhealthzPort: 99999\nimageGCHighThresholdPercent: 101\nhairpinMode: none\n\
             featureGates: {{NoGate: true, NoOther: true, SidecarContainers: true}}\nlogging: {{format: xml}}\n"
        ),
    )?;
    std::fs::write(drop_ins.join("30-c.conf"), "kind: [\n")?;
    std::fs::write(drop_ins.join("40-d.conf"), "kind: Pod\napiVersion: v1\n")?;
    let (code, said) = run_to_end(&arguments, &place.dir)?;
    ensure!(code == Some(1), "{said}");
    for words in [
        "20-b.conf:3: unknown field \"maxPodz\"",
        "99999",
        "20-b.conf:5)",
        "imageGCHighThresholdPercent",
        "20-b.conf:6)",
        "hairpinMode has no effect",
        "unrecognized feature gate: NoGate",
        "unrecognized feature gate: NoOther",
        "Setting GA feature gate SidecarContainers=true",
        "logging.format",
        "30-c.conf",
        "40-d.conf",
    ] {
        ensure!(said.contains(words), "no {words} in {said}");
    }
    Ok(())
}

/// Cases whose result the machine decides: the name's begin, and whether it can be compared here.
fn of_the_machine(case: &str) -> bool {
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let two = std::thread::available_parallelism().is_ok_and(|n| n.get() == 2);
    (case.contains("reserved-cpus") && !two)
        || (case.contains("oom-kill-single") && !unified)
        || case.contains("memory-static-")
}

#[test]
fn the_recorded_configurations_are_read_as_the_kubelet_reads_them() -> Result<()> {
    let Some(shared) = tests::recordings("node-endpoints/config/configz.py") else {
        tests::skipped("no recordings beside the checkout");
        return Ok(());
    };
    let Some(python) = tests::python("yaml").filter(|_| nix::unistd::geteuid().is_root()) else {
        tests::skipped("root or Python with PyYAML is missing");
        return Ok(());
    };
    let recordings = shared.join("node-endpoints/config");
    let place = Place::new("recorded", "")?;
    let agent = format!("{} {{args}}", release_binary("node-agent")?.display());
    // The agent owns port 10250 there. And it is not on cgroup v1, which the recorded defaults refuse to be on.
    let prepare = "ip link set lo up; [ -e /sys/fs/cgroup/cgroup.controllers ] || \
                   { mount -t tmpfs none /sys/fs/cgroup && : >/sys/fs/cgroup/cgroup.controllers; }; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-mn", "sh", "-c", prepare, "sh"])
        .arg(python)
        .arg(recordings.join("configz.py"))
        .args(["check", "--agent", &agent, "--cri", &format!("unix://{}", place.socket().display())])
        .env_remove("NOTIFY_SOCKET")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary = said.lines().last().unwrap_or_default();
    ensure!(summary.contains(" cases, "), "the replay ended early: {said}{}", String::from_utf8_lossy(&output.stderr));
    let differs = said.lines().filter_map(|line| line.strip_prefix("DIFFERS "));
    let unexpected: Vec<&str> = differs.filter(|case| !of_the_machine(case)).collect();
    ensure!(unexpected.is_empty(), "{}\n{said}", unexpected.join("\n"));
    println!("{summary}");
    Ok(())
}

/// The package restarts the agent only when its configuration is found good with the flags of the unit.
#[test]
fn what_the_package_brings_passes_the_check_that_an_upgrade_makes() -> Result<()> {
    let place = Place::new("packaged", "")?;
    let files = tests::repository().join("packaging/package/node-agent/files/etc/orchestrator-lite");
    let kubeconfig = place.dir.join("node-agent.kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                clusters: [{name: a, cluster: {server: \"https://127.0.0.1:1\"}}]\nusers: [{name: a, user: {token: t}}]\n";
    std::fs::write(&kubeconfig, text)?;
    let unit = std::fs::read_to_string(tests::repository().join("systemd/node-agent.service"))?;
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("an ExecStart")?;
    // As they stand in the unit, but for where files are.
    let flags = start.split_whitespace().skip(2).map(|flag| {
        let flag = flag.replace("/etc/orchestrator-lite/node-agent.kubeconfig", &kubeconfig.to_string_lossy());
        flag.replace("/etc/orchestrator-lite", &files.to_string_lossy())
    });
    let check = ["config", "check"].into_iter().map(OsString::from);
    let arguments: Vec<OsString> = check.chain(flags.map(OsString::from)).collect();
    let (code, said) = run_to_end(&arguments, &place.dir)?;
    ensure!(code == Some(0), "{arguments:?}: {code:?}\n{said}");
    // An upgrade also asks whether this machine is fit, which only words tell of: it may have swap, or old cgroups.
    let here: Vec<OsString> = arguments.into_iter().chain(["--this-machine".into()]).collect();
    let (code, said) = run_to_end(&here, &place.dir)?;
    let unfit = said.contains("running with swap on") || said.contains("using cgroup v1");
    ensure!(code == Some(i32::from(unfit)), "{code:?}\n{said}");
    Ok(())
}
