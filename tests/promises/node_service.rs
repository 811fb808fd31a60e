//! The agent talks to systemd as a kubelet does, where the recordings lie beside the checkout: notify messages, watchdog,
//! lock file, signals, exit codes. Where ours is to do better than the kubelet, the difference is named here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::agent::{Agent, Place, STANDALONE, Said};

const SOON: Duration = Duration::from_secs(30);

fn recorded(folder: &Path, file: &str) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join(file))?)?)
}

fn lines(said: &[Said], line: &str) -> Vec<f64> {
    let are = said.iter().filter(|s| s.text.lines().any(|l| l == line));
    are.map(|s| s.at.as_secs_f64()).collect()
}

/// Seconds between the keep-alives of a recording, the shortest and the longest.
fn gaps(times: &[f64]) -> Vec<f64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// One agent with a recorded environment: what it says, and how it ends.
fn notified(name: &str, case: &Value) -> Result<()> {
    let place = Place::new(&format!("notify-{name}"), STANDALONE)?;
    let env = case["env"].as_object().context("an environment")?;
    let mut variables: Vec<(&str, &str)> = Vec::new();
    for (key, value) in env.iter().filter(|(key, _)| *key != "NOTIFY_SOCKET") {
        variables.push((key, value.as_str().context("text")?));
    }
    let flags: Vec<&str> = case["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(text) = case["config"].as_str() {
        std::fs::write(place.config(), text)?;
    }
    let socket = env["NOTIFY_SOCKET"].as_str();
    let mut agent = match socket {
        // Nobody listens.
        None => Agent::start_under(&place, &["env", "-u", "NOTIFY_SOCKET"], &flags, &variables)?,
        Some(_) => Agent::start(&place, &flags, &variables)?,
    };
    if let Some(error) = case["error"].as_str() {
        let status = agent.wait(SOON)?;
        let log = agent.log().replace('\\', "");
        ensure!(status.code() == case["exit"].as_i64().and_then(|c| c.try_into().ok()), "{status}\n{log}");
        // The path of a field's type is Go's.
        let words = error.split(", path: ").next().unwrap_or_default().replace('\\', "");
        let words = words.rsplit(": ").next().unwrap_or_default();
        ensure!(log.contains(words), "no {words:?} in\n{log}");
        ensure!(
            !agent.hear_for(Duration::from_millis(300))?.iter().any(|s| s.text.contains("READY=1")),
            "it was ready"
        );
        return Ok(());
    }
    let theirs: Vec<(f64, &str)> = case["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|m| Some((m["at"].as_f64()?, m["message"].as_str()?)))
        .collect();
    let wanted: Vec<f64> = theirs.iter().filter(|(_, m)| *m == "WATCHDOG=1").map(|(at, _)| *at).collect();
    if socket.is_none() {
        std::thread::sleep(Duration::from_secs(2));
        ensure!(agent.alive(), "{}", agent.log());
    } else {
        let mut said = agent.hear_until("READY=1")?;
        let ready = said.last().map(|s| s.at.as_secs_f64()).unwrap_or_default();
        said.extend(agent.hear_for(Duration::from_secs(7))?);
        ensure!(lines(&said, "READY=1").len() == 1, "{said:?}");
        let beats = lines(&said, "WATCHDOG=1");
        ensure!(beats.is_empty() == wanted.is_empty(), "{beats:?}, not {wanted:?}");
        if let (Some(first), Some(recorded)) = (beats.first(), wanted.first()) {
            let their_ready = theirs.iter().find(|(_, m)| *m == "READY=1").context("READY=1")?.0;
            ensure!((first < &ready) == (recorded < &their_ready), "the first beat at {first}, ready at {ready}");
            let mean = |all: &[f64]| all.iter().sum::<f64>() / f64::from(u32::try_from(all.len()).unwrap_or(1));
            let (own, recorded) = (mean(&gaps(&beats)), mean(&gaps(&wanted)));
            ensure!((own - recorded).abs() < recorded * 0.25, "a beat each {own} s, not {recorded} s: {beats:?}");
        }
    }
    agent.signal(Signal::SIGTERM)?;
    let status = agent.wait(SOON)?;
    ensure!(status.code() == case["exit"].as_i64().and_then(|c| c.try_into().ok()), "{status}\n{}", agent.log());
    if socket.is_some() {
        let after = agent.hear_for(Duration::from_millis(300))?;
        // The kubelet goes without a word; ours says that it stops, and nothing else.
        let other = after.iter().filter(|s| !s.text.contains("STOPPING=1") && !s.text.starts_with("STATUS="));
        ensure!(other.count() <= usize::from(!wanted.is_empty()), "after the signal: {after:?}");
    }
    Ok(())
}

#[test]
fn systemd_hears_what_a_kubelet_says() -> Result<()> {
    let Some(shared) = tests::recordings("node-endpoints/systemd/notify.json") else {
        tests::skipped("no recordings beside the checkout");
        return Ok(());
    };
    let all = recorded(&shared.join("node-endpoints/systemd"), "notify.json")?;
    for (name, case) in all.as_object().into_iter().flatten() {
        match name.as_str() {
            // Ours takes it for no watchdog, as systemd's manual has it for 0.
            "watchdog-zero" => {}
            // The socket of a test has a path; the name without one is a unit test of the messages.
            "abstract-socket" => {}
            _ => notified(name, case).with_context(|| name.clone())?,
        }
    }
    Ok(())
}

#[test]
fn signals_are_taken_as_recorded() -> Result<()> {
    let Some(shared) = tests::recordings("node-endpoints/systemd/signals.json") else {
        tests::skipped("no recordings beside the checkout");
        return Ok(());
    };
    let all = recorded(&shared.join("node-endpoints/systemd"), "signals.json")?;
    let place = Place::new("signals", STANDALONE)?;
    for (name, case) in all.as_object().into_iter().flatten() {
        let (name, delay) = name.split_once(' ').map_or((name.as_str(), None), |(name, rest)| (name, Some(rest)));
        let signal: Signal = name.parse()?;
        let mut agent = Agent::start(&place, &[], &[])?;
        if delay.is_some() {
            // Wherever in its start that is, it ends in good order; the kubelet dies with 1.
            std::thread::sleep(Duration::from_millis(150));
            agent.signal(signal)?;
            let status = agent.wait(SOON)?;
            ensure!(matches!(status.code(), Some(0 | 1)) || status.code().is_none(), "{status}");
            continue;
        }
        agent.hear_until("READY=1")?;
        agent.signal(signal)?;
        match (&case["exit"], signal) {
            // Ours reads its configuration again, where the kubelet dies.
            (_, Signal::SIGHUP) => {
                agent.hear_until("READY=1")?;
                ensure!(agent.alive(), "{}", agent.log());
            }
            // A dump ends it; the number is the kernel's here, and Go's there.
            (_, Signal::SIGABRT) => ensure!(!agent.wait(SOON)?.success(), "it is no good end"),
            (Value::String(_), _) => {
                std::thread::sleep(Duration::from_millis(500));
                ensure!(agent.alive(), "{name}\n{}", agent.log());
            }
            (code, _) => {
                let status = agent.wait(SOON)?;
                ensure!(status.code().map(i64::from) == code.as_i64(), "{name}: {status}\n{}", agent.log());
            }
        }
    }
    // Go's runtime ignores the rest of those that would end a program by default, and so does the agent.
    let mut agent = Agent::start(&place, &[], &[])?;
    agent.hear_until("READY=1")?;
    for signal in [Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGPROF, Signal::SIGVTALRM, Signal::SIGIO, Signal::SIGXFSZ]
    {
        agent.signal(signal)?;
    }
    std::thread::sleep(Duration::from_millis(500));
    ensure!(agent.alive(), "{}", agent.log());
    Ok(())
}

#[test]
fn the_lock_file_is_held_as_recorded() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(shared) = tests::recordings("node-endpoints/systemd/locks.json") else {
        tests::skipped("no recordings beside the checkout");
        return Ok(());
    };
    let all = recorded(&shared.join("node-endpoints/systemd"), "locks.json")?;
    let place = Place::new("locks", STANDALONE)?;
    let lock = place.dir.join("lock");
    let flag = format!("--lock-file={}", lock.display());
    let recorded = |case: &str, row: &str| -> Result<Vec<Value>> {
        let rows = all[case].as_array().into_iter().flatten().filter_map(Value::as_array);
        let mut rows = rows.filter(|r| r.get(1).and_then(Value::as_str) == Some(row));
        rows.next().cloned().with_context(|| format!("{case}: {row}"))
    };
    let facts = || -> Result<(String, u64)> {
        let found = std::fs::metadata(&lock)?;
        Ok((format!("{:#o}", found.permissions().mode() & 0o777), found.len()))
    };
    let said = |row: &[Value]| (row[3].as_str().unwrap_or_default().to_owned(), row[5].as_u64().unwrap_or(99));
    let mut agent = Agent::start(&place, &[&flag], &[])?;
    agent.hear_until("READY=1")?;
    ensure!(facts()? == said(&recorded("two-processes", "lock file")?), "{:?}", facts()?);
    // Nobody minds that it is deleted while nobody else asks for it.
    recorded("lock-file-deleted", "still runs 5 s after the file was deleted")?;
    std::fs::remove_file(&lock)?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(agent.alive(), "{}", agent.log());
    agent.signal(Signal::SIGTERM)?;
    agent.wait(SOON)?;
    std::fs::write(&lock, "abc")?;
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644))?;
    let mut agent = Agent::start(&place, &[&flag], &[])?;
    agent.hear_until("READY=1")?;
    ensure!(facts()? == said(&recorded("existing-file", "existing lock file")?), "{:?}", facts()?);
    recorded("existing-file", "flock by another: refused")?;
    let other = std::process::Command::new("flock").arg("-n").arg(&lock).arg("true").status()?;
    ensure!(!other.success(), "somebody else has the lock, too");
    agent.signal(Signal::SIGTERM)?;
    agent.wait(SOON)?;
    Ok(())
}
