//! The agent as systemd sees it: what it tells, how it takes signals, that there is one of it, and what it may do.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tests::agent::{Agent, Place, STANDALONE, Said};

const SOON: Duration = Duration::from_secs(30);

fn has(said: &[Said], line: &str) -> bool {
    said.iter().any(|s| s.text.lines().any(|l| l.starts_with(line)))
}

/// Moments of the keep-alives.
fn beats(said: &[Said]) -> Vec<Duration> {
    said.iter().filter(|s| s.text.lines().any(|l| l == "WATCHDOG=1")).map(|s| s.at).collect()
}

#[test]
fn systemd_is_told_that_it_is_up_how_it_is_and_that_it_lives() -> Result<()> {
    let place = Place::new("service", STANDALONE)?;
    let mut agent = Agent::start(&place, &[], &[("WATCHDOG_USEC", "2000000")])?;
    let starting = agent.hear_until("READY=1")?;
    ensure!(has(&starting, "STATUS=starting"), "{starting:?}");
    let running = agent.hear_for(Duration::from_secs(8))?;
    ensure!(has(&running, "STATUS=node alone is up with 0 pods"), "{running:?}");
    ensure!(!has(&running, "READY=1"), "it is up once: {running:?}");
    let beats = beats(&running);
    let gaps: Vec<f64> = beats.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    ensure!((7..=9).contains(&beats.len()), "one beat in half of two seconds: {beats:?}");
    // A machine under test is busy; systemd's own limit is 2 s.
    ensure!(gaps.iter().all(|gap| (0.3..1.8).contains(gap)), "{gaps:?}");
    let asked = Instant::now();
    agent.signal(Signal::SIGTERM)?;
    let status = agent.wait(SOON)?;
    ensure!(status.code() == Some(0) && asked.elapsed() < Duration::from_secs(5), "{status}\n{}", agent.log());
    ensure!(has(&agent.hear_for(Duration::from_millis(200))?, "STOPPING=1"), "it says that it stops");
    Ok(())
}

#[test]
fn a_loop_that_hangs_ends_the_keep_alives_and_is_named() -> Result<()> {
    let place = Place::new("hang", STANDALONE)?;
    let hang = [("WATCHDOG_USEC", "2000000"), ("ORCHESTRATOR_LITE_TEST_HANG", "pods")];
    let mut agent = Agent::start(&place, &[], &hang)?;
    agent.hear_until("STATUS=the pods loop is stuck")?;
    let after = agent.hear_for(Duration::from_secs(6))?;
    ensure!(beats(&after).is_empty(), "{after:?}");
    ensure!(agent.log().contains("stuck: systemd gets no keep-alive"), "{}", agent.log());
    ensure!(agent.alive(), "ending it is systemd's to do");
    Ok(())
}

#[test]
fn the_watchdog_takes_fractions_and_refuses_what_it_cannot_keep() -> Result<()> {
    let place = Place::new("watchdog", STANDALONE)?;
    for (text, code, words) in [
        ("1000000", Some(1), "configure watchdog timeout too small: 1s"),
        ("soon", Some(1), "strconv.Atoi: parsing \\\"soon\\\""),
        ("-5", Some(1), "WATCHDOG_USEC must be a positive number"),
    ] {
        let mut agent = Agent::start(&place, &[], &[("WATCHDOG_USEC", text)])?;
        let status = agent.wait(SOON)?;
        let log = agent.log().replace('\\', "");
        ensure!(status.code() == code && log.contains(&words.replace('\\', "")), "{text}: {status}\n{log}");
    }
    let mut agent = Agent::start(&place, &[], &[("WATCHDOG_USEC", "1500000")])?;
    agent.hear_until("READY=1")?;
    let count = beats(&agent.hear_for(Duration::from_secs(3))?).len();
    ensure!((3..=5).contains(&count), "{count} beats in 3 s at 0.75 s each");
    agent.signal(Signal::SIGTERM)?;
    agent.wait(SOON)?;
    for text in ["0", ""] {
        let agent = Agent::start(&place, &[], &[("WATCHDOG_USEC", text)])?;
        let mut heard = agent.hear_until("READY=1")?;
        heard.extend(agent.hear_for(Duration::from_secs(2))?);
        ensure!(beats(&heard).is_empty(), "{text:?} is off: {heard:?}");
    }
    let agent = Agent::start(&place, &[], &[("WATCHDOG_USEC", "900000000")])?;
    agent.hear_until("READY=1")?;
    ensure!(agent.log().contains("WatchdogSec is above ten minutes"), "{}", agent.log());
    Ok(())
}

#[test]
fn systemd_starts_again_what_may_get_better_and_nothing_that_is_refused() -> Result<()> {
    let place = Place::new("hopeless", STANDALONE)?;
    let ends = |arguments: &[&str]| -> Result<Option<i32>> {
        let variables = [("INVOCATION_ID", "0123456789abcdef0123456789abcdef")];
        Ok(Agent::start(&place, arguments, &variables)?.wait(Duration::from_secs(30))?.code())
    };
    let mut alone = Agent::start(&place, &["--max-pods=many"], &[])?;
    ensure!(alone.wait(Duration::from_secs(30))?.code() == Some(1), "somebody else listens than systemd");
    ensure!(ends(&["--max-pods=many"])? == Some(64), "a flag that is refused");
    ensure!(ends(&["--config=/nonexistent.yaml"])? == Some(1), "a file that may come");
    place.configure(&format!("{STANDALONE}maxPods: -1\n"))?;
    ensure!(ends(&[])? == Some(64), "a value that is refused");
    for unit in ["node-agent", "apiserver-lite"] {
        let text = std::fs::read_to_string(tests::repository().join(format!("systemd/{unit}.service")))?;
        ensure!(text.lines().any(|line| line == "RestartPreventExitStatus=64"), "{unit} is started again:\n{text}");
    }
    Ok(())
}

/// What had waited for the runtime went on without it, and said READY after STOPPING.
#[test]
fn an_agent_that_waits_for_its_runtime_is_not_ready_whatever_it_is_told() -> Result<()> {
    let place = Place::new("no-runtime", STANDALONE)?;
    let nobody = format!("unix://{}/nobody.sock", place.dir.display());
    for round in 0..4 {
        let mut agent = Agent::start(&place, &["--container-runtime-endpoint", &nobody], &[])?;
        agent.hear_until("STATUS=waiting for the container runtime")?;
        agent.signal(Signal::SIGHUP)?;
        let heard = agent.hear_for(Duration::from_secs(1))?;
        let log = agent.log();
        let reloads = log.matches("read the configuration again").count();
        ensure!(reloads == round + 1, "{reloads} reloads in round {round}\n{log}");
        ensure!(!has(&heard, "RELOADING=1") && !has(&heard, "READY=1"), "{heard:?}");
        agent.signal(Signal::SIGTERM)?;
        let heard = agent.hear_until("STOPPING=1")?;
        let after = agent.hear_for(Duration::from_secs(1))?;
        ensure!(!has(&heard, "READY=1") && after.is_empty(), "{heard:?} {after:?}");
        ensure!(agent.wait(SOON)?.code() == Some(0), "{}", agent.log());
    }
    Ok(())
}

/// A server that takes connections and says nothing, and a kubeconfig for a node that has only a token.
fn silent_server(place: &Place) -> Result<(std::net::TcpListener, [String; 4])> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let bootstrap = place.dir.join("bootstrap.conf");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{}'}}}}]\nusers: [{{name: u, user: {{token: t.t}}}}]\n",
        listener.local_addr()?.port()
    );
    std::fs::write(&bootstrap, text)?;
    let target = place.dir.join("kubelet.conf").display().to_string();
    Ok((listener, ["--kubeconfig".into(), target, "--bootstrap-kubeconfig".into(), bootstrap.display().to_string()]))
}

#[test]
fn a_signal_ends_the_start_wherever_it_waits() -> Result<()> {
    let (first, second) = (Place::new("start-a", STANDALONE)?, Place::new("start-b", STANDALONE)?);
    let lock = first.dir.join("lock").display().to_string();
    let holder = Agent::start(&first, &["--lock-file", &lock], &[])?;
    holder.hear_until("READY=1")?;
    let ends = |mut waiter: Agent, at: &str, signal: Signal| -> Result<()> {
        waiter.hear_until(at)?;
        let asked = Instant::now();
        waiter.signal(signal)?;
        let status = waiter.wait(SOON)?;
        ensure!(
            status.code() == Some(0) && asked.elapsed() < Duration::from_secs(3),
            "{at}: {status}\n{}",
            waiter.log()
        );
        ensure!(has(&waiter.hear_for(Duration::from_millis(200))?, "STOPPING=1"), "{at}: it says that it stops");
        Ok(())
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        ends(Agent::start(&second, &["--lock-file", &lock], &[])?, "STATUS=waiting for process", signal)?;
    }
    let (_listener, arguments) = silent_server(&second)?;
    let arguments = arguments.each_ref().map(String::as_str);
    let key = second.dir.join("pki/kubelet-client.key.tmp");
    let mut kept = None;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        ends(Agent::start(&second, &arguments, &[])?, "STATUS=asking for a client certificate", signal)?;
        let now = std::fs::read(&key).ok();
        ensure!(kept.is_none() || now == kept, "a restart asks with another key");
        kept = now;
    }
    Ok(())
}

#[test]
fn the_lock_is_given_up_while_the_first_certificate_is_waited_for() -> Result<()> {
    let (first, second) = (Place::new("early-a", STANDALONE)?, Place::new("early-b", STANDALONE)?);
    let lock = first.dir.join("lock").display().to_string();
    let (_listener, [a, b, c, d]) = silent_server(&first)?;
    let mut holder = Agent::start(&first, &["--lock-file", &lock, "--exit-on-lock-contention", &a, &b, &c, &d], &[])?;
    holder.hear_until("STATUS=asking for a client certificate")?;
    let second = Agent::start(&second, &["--lock-file", &lock], &[])?;
    ensure!(holder.wait(SOON)?.code() == Some(0), "{}", holder.log());
    ensure!(holder.log().contains("another process wants the lock file; leaving"), "{}", holder.log());
    second.hear_until("READY=1")?;
    Ok(())
}

/// Such an agent went on, and no pod had room on its node.
#[test]
fn more_reserved_than_there_is_ends_the_agent_once_its_settings_can_be_looked_at() -> Result<()> {
    let place = Place::new("reserved", &format!("{STANDALONE}systemReserved: {{cpu: \"4000\"}}\n"))?;
    let mut agent = Agent::start(&place, &[], &[])?;
    let begun = Instant::now();
    let url = format!("https://127.0.0.1:{}/configz", place.port);
    let served = || std::process::Command::new("curl").args(["-skf", &url]).output();
    while !String::from_utf8_lossy(&served()?.stdout).contains("\"4000\"") {
        ensure!(begun.elapsed() < SOON, "{}", agent.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = agent.wait(SOON)?;
    let words = "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of {{4000 0} {<nil>}  DecimalSI} \
                 but capacity of {{";
    let log = agent.log().replace('\\', "");
    ensure!(status.code() == Some(1) && log.contains(words), "{status}\n{log}");
    Ok(())
}

#[test]
fn a_hangup_reads_the_configuration_again() -> Result<()> {
    let place = Place::new("reload", STANDALONE)?;
    let agent = Agent::start(&place, &[], &[])?;
    agent.hear_until("READY=1")?;
    place.configure(&format!("{STANDALONE}maxPods: 7\nlogging: {{verbosity: 4}}\n"))?;
    agent.signal(Signal::SIGHUP)?;
    let heard = agent.hear_until("READY=1")?;
    let reloading = heard.iter().find(|s| s.text.contains("RELOADING=1")).context("it says that it reloads")?;
    ensure!(reloading.text.contains("MONOTONIC_USEC="), "systemd wants the time with it: {reloading:?}");
    ensure!(agent.log().contains("these wait for a restart fields=\"maxPods\""), "{}", agent.log());
    place.configure("port: 70000")?;
    agent.signal(Signal::SIGHUP)?;
    agent.hear_until("READY=1")?;
    ensure!(agent.log().contains("the new configuration is refused; the old one stays"), "{}", agent.log());
    Ok(())
}

#[test]
fn a_second_agent_waits_for_the_lock_and_says_for_whom() -> Result<()> {
    let (first, second) = (Place::new("lock-a", STANDALONE)?, Place::new("lock-b", STANDALONE)?);
    let lock = first.dir.join("lock").display().to_string();
    let mut holder = Agent::start(&first, &["--lock-file", &lock], &[])?;
    holder.hear_until("READY=1")?;
    let waiter = Agent::start(&second, &["--lock-file", &lock], &[])?;
    let line = format!("STATUS=waiting for process {}, which holds {lock}", holder.pid());
    waiter.hear_until(&line)?;
    ensure!(!has(&waiter.hear_for(Duration::from_secs(2))?, "READY=1"), "two agents at once");
    ensure!(holder.alive(), "the first did not ask to leave");
    holder.signal(Signal::SIGTERM)?;
    ensure!(holder.wait(SOON)?.code() == Some(0), "{}", holder.log());
    waiter.hear_until("READY=1")?;
    Ok(())
}

#[test]
fn the_first_agent_leaves_when_contention_is_asked_for() -> Result<()> {
    let (first, second) = (Place::new("contend-a", STANDALONE)?, Place::new("contend-b", STANDALONE)?);
    let lock = first.dir.join("lock").display().to_string();
    let mut holder = Agent::start(&first, &["--lock-file", &lock, "--exit-on-lock-contention"], &[])?;
    holder.hear_until("READY=1")?;
    let second = Agent::start(&second, &["--lock-file", &lock], &[])?;
    ensure!(holder.wait(SOON)?.code() == Some(0), "{}", holder.log());
    ensure!(holder.log().contains("another process wants the lock file; leaving"), "{}", holder.log());
    second.hear_until("READY=1")?;
    Ok(())
}

#[test]
fn what_is_not_needed_is_given_up() -> Result<()> {
    let place = Place::new("capabilities", STANDALONE)?;
    let settings = place.dir.join("own.toml");
    let named = settings.display().to_string();
    let status = |agent: &Agent| std::fs::read_to_string(format!("/proc/{}/status", agent.pid()));
    let field = |text: &str, name: &str| -> Result<u64> {
        let line = text.lines().find_map(|l| l.strip_prefix(name)).context("a line")?;
        Ok(u64::from_str_radix(line.trim_start_matches(':').trim(), 16)?)
    };
    std::fs::write(&settings, "")?;
    let agent = Agent::start(&place, &["--settings", &named], &[])?;
    agent.hear_until("READY=1")?;
    let text = status(&agent)?;
    // chown, dac_override, dac_read_search, fowner, fsetid, net_bind_service, sys_admin, sys_resource, syslog
    let kept = [0, 1, 2, 3, 4, 10, 21, 24, 34].iter().fold(0, |all, bit| all | 1 << bit);
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        ensure!(field(&text, set)? & !kept == 0, "{set} has more than documented: {text}");
    }
    ensure!(field(&text, "CapInh")? == 0 && field(&text, "CapAmb")? == 0, "{text}");
    ensure!(text.contains("NoNewPrivs:\t1"), "{text}");
    // What is kept is enough for the kernel's settings, where anybody may change them.
    let overcommit = "/proc/sys/vm/overcommit_memory";
    if std::fs::OpenOptions::new().write(true).open(overcommit).is_ok() {
        ensure!(std::fs::read_to_string(overcommit)?.trim() == "1", "{}", agent.log());
    }
    let own = std::fs::read_to_string("/proc/self/status")?;
    ensure!(field(&text, "CapEff")? == field(&own, "CapEff")? & kept, "nothing that is needed is given up: {text}");
    drop(agent);
    std::fs::write(&settings, "[service]\ndrop_capabilities = false\n")?;
    let agent = Agent::start(&place, &["--settings", &named], &[])?;
    agent.hear_until("READY=1")?;
    ensure!(field(&status(&agent)?, "CapEff")? == field(&own, "CapEff")?, "the setting is heeded");
    Ok(())
}
