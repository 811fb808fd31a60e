//! The control plane hears from the node in time, and again soon after it was away; certificates are replaced in time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::ApiServer;
use tests::agent::{Agent, Place};

/// What an agent of a cluster needs, and a kubeconfig for it.
pub(crate) fn join(server: &ApiServer, place: &Place, settings: &str) -> Result<String> {
    place.configure(&format!(
        "authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {}/pki/ca.crt}}}}\n\
         authorization: {{mode: Webhook}}\n{settings}",
        server.dir.display()
    ))?;
    let kubeconfig = place.dir.join("agent.conf");
    let made = std::process::Command::new(tests::release_binary("apiserver-lite")?)
        .args(["kubeconfig", "--group", "system:nodes", "--user", "system:node:alone", "--data-dir"])
        .arg(&server.dir)
        .args(["--server", &format!("https://127.0.0.1:{}", server.port), "--out"])
        .arg(&kubeconfig)
        .status()?;
    ensure!(made.success(), "no kubeconfig");
    Ok(kubeconfig.display().to_string())
}

/// An agent that has joined and is watched as by systemd.
fn watched(place: &Place, kubeconfig: &str) -> Result<Agent> {
    let flags = ["--kubeconfig", kubeconfig, "--node-ip", "127.0.0.1"];
    let agent = Agent::start(place, &flags, &[("WATCHDOG_USEC", "4000000")])?;
    agent.hear_until("READY=1")?;
    Ok(agent)
}

fn renewed(server: &ApiServer) -> Result<String> {
    server.kubectl(&["get", "lease", "-n", "kube-node-lease", "alone", "-o", "jsonpath={.spec.renewTime}"])
}

/// The moments at which another renewal was seen.
fn renewals(server: &ApiServer, time: Duration) -> Vec<Instant> {
    let (begun, mut last, mut seen) = (Instant::now(), String::new(), Vec::new());
    while begun.elapsed() < time {
        if let Ok(now) = renewed(server)
            && !now.is_empty()
            && now != last
        {
            last = now;
            seen.push(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    seen
}

#[test]
fn the_lease_is_renewed_every_ten_seconds_and_soon_after_the_server_is_back() -> Result<()> {
    let mut server = ApiServer::start("heartbeats", &[])?;
    let place = Place::new("heartbeats-node", "")?;
    let kubeconfig = join(&server, &place, "")?;
    let mut agent = watched(&place, &kubeconfig)?;
    let seen = renewals(&server, Duration::from_secs(43));
    let gaps: Vec<f64> = seen.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    // The first was there before it was looked for.
    let whole = gaps.get(1..).unwrap_or_default();
    ensure!(whole.len() >= 2 && whole.iter().all(|gap| (9.0..12.5).contains(gap)), "{gaps:?}\n{}", agent.log());
    let before = renewed(&server)?;
    for _ in 0..2 {
        server.stop();
        std::thread::sleep(Duration::from_secs(15));
        server.launch()?;
        // The back-off ends at 7 s, and a busy machine takes its time.
        let back = Instant::now();
        while renewed(&server).map_or(true, |now| now == before) {
            ensure!(
                back.elapsed() < Duration::from_secs(12),
                "no renewal 12 s after the server came back\n{}",
                agent.log()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    ensure!(agent.alive(), "{}", agent.log());
    let heard = agent.hear_for(Duration::from_secs(5))?;
    ensure!(heard.iter().any(|s| s.text == "WATCHDOG=1"), "the server's absence is no hang: {heard:?}");
    Ok(())
}

/// A file system over a folder that answers nothing, as a disk that hangs; whoever waits gets an error when it is dropped.
struct Hung {
    at: std::path::PathBuf,
    /// Closing it ends the waiting.
    device: Option<std::fs::File>,
}

impl Hung {
    fn over(at: &std::path::Path) -> Result<Self> {
        use std::os::fd::AsRawFd as _;
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        nix::mount::mount(Some("hung"), at, Some("fuse"), nix::mount::MsFlags::empty(), Some(options.as_str()))?;
        Ok(Hung { at: at.to_owned(), device: Some(device) })
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        drop(self.device.take());
        // What is left of it goes with the last who uses it.
        let _ = nix::mount::umount2(&self.at, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn lease_and_status_go_on_while_the_disk_hangs() -> Result<()> {
    if !nix::unistd::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse, for a disk that hangs");
        return Ok(());
    }
    let server = ApiServer::start("hung-disk", &[])?;
    let place = Place::new("hung-disk-node", "")?;
    let kubeconfig = join(&server, &place, "nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 1s\n")?;
    let mut agent = watched(&place, &kubeconfig)?;
    let status = |path: &str| server.kubectl(&["get", "node", "alone", "-o", &format!("jsonpath={{.status.{path}}}")]);
    let beat = || status("conditions[?(@.type==\"Ready\")].lastHeartbeatTime");
    let storage = status("capacity.ephemeral-storage")?;
    ensure!(!storage.is_empty(), "the size of the disk is known");
    let hung = Hung::over(&place.dir.join("root"))?;
    let first = beat()?;
    let seen = renewals(&server, Duration::from_secs(24));
    ensure!(seen.len() >= 3, "{} renewals in 24 s of a disk that hangs\n{}", seen.len(), agent.log());
    ensure!(beat()? != first, "the status is not sent while the disk hangs\n{}", agent.log());
    ensure!(status("capacity.ephemeral-storage")? == storage, "what was known of the disk stays");
    let heard = agent.hear_for(Duration::from_secs(5))?;
    ensure!(heard.iter().any(|s| s.text == "WATCHDOG=1"), "a disk that hangs is no loop that hangs: {heard:?}");
    let threads = std::fs::read_dir(format!("/proc/{}/task", agent.pid()))?.count();
    ensure!(threads < 40, "{threads} threads wait for the disk");
    drop(hung);
    ensure!(agent.alive(), "{}", agent.log());
    Ok(())
}

/// An address of the machine that nothing else uses; taken away when dropped. Its interface is down: an agent that is given
/// the address may have it, and no other takes it for its own.
struct Address {
    interface: String,
}

impl Address {
    fn add(address: &str) -> Result<Self> {
        let own = Address { interface: format!("down-{}", std::process::id()) };
        shell(&format!("ip link add {0} type bridge; ip addr add {address}/32 dev {0}", own.interface))?;
        Ok(own)
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip").args(["link", "del", &self.interface]).status();
    }
}

#[test]
fn the_nodes_addresses_are_the_machines_and_follow_them() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root, for addresses of the machine");
        return Ok(());
    }
    let server = ApiServer::start("addresses", &[])?;
    let place = Place::new("addresses-node", "")?;
    let kubeconfig = join(&server, &place, "serverTLSBootstrap: true\nnodeStatusUpdateFrequency: 1s\n")?;
    let shown = || server.kubectl(&["get", "node", "alone", "-o", "jsonpath={.status.addresses[*].address}"]);
    let wait = |wanted: &str, agent: &Agent| -> Result<()> {
        let begun = Instant::now();
        while shown()? != wanted {
            ensure!(begun.elapsed() < Duration::from_secs(15), "{:?}, not {wanted:?}\n{}", shown()?, agent.log());
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    };
    // Of a range that is for documentation alone, and this process's own.
    let address = format!("198.51.100.{}", std::process::id() % 250 + 1);
    let arguments = ["--kubeconfig", &kubeconfig, "--node-ip", &address];
    let agent = Agent::start(&place, &arguments, &[])?;
    agent.hear_until("READY=1")?;
    let words = format!("failed to validate nodeIP: node IP: \"{address}\" not found in the host's network interfaces");
    ensure!(agent.log().contains(&words), "{}", agent.log());
    wait("", &agent)?;
    ensure!(server.kubectl(&["get", "csr", "-o", "name"])?.trim().is_empty(), "a certificate for no address");
    let added = Address::add(&address)?;
    wait(&format!("{address} alone"), &agent)?;
    let begun = Instant::now();
    while server.kubectl(&["get", "csr", "-o", "name"])?.trim().is_empty() {
        ensure!(begun.elapsed() < Duration::from_secs(15), "no certificate is asked for\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    drop((agent, added));
    // An address that a cloud controller is to give is not guessed.
    server.kubectl(&["delete", "node", "alone"])?;
    let agent = Agent::start(&place, &["--kubeconfig", &kubeconfig, "--cloud-provider=external"], &[])?;
    agent.hear_until("READY=1")?;
    wait("alone", &agent)
}

/// The serial number of what the agent shows on its port, and of its client certificate.
fn current(place: &Place, kind: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(place.dir.join(format!("pki/kubelet-{kind}-current.pem"))).ok()
}

#[test]
fn certificates_that_live_a_minute_are_replaced_in_time() -> Result<()> {
    let server = ApiServer::start("rotation", &["--cluster-signing-duration=1m"])?;
    let place = Place::new("rotation-node", "")?;
    let by_hand = join(&server, &place, "rotateCertificates: true\nserverTLSBootstrap: true\n")?;
    // The kubeconfig made by hand stands for a bootstrap token: it may ask for the node's certificate.
    let kubeconfig = place.dir.join("kubelet.conf").display().to_string();
    let arguments = ["--kubeconfig", &kubeconfig, "--bootstrap-kubeconfig", &by_hand, "--node-ip", "127.0.0.1"];
    let agent = Agent::start(&place, &arguments, &[])?;
    agent.hear_until("READY=1")?;
    let begun = Instant::now();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    // Two replacements each, at 42 to 54 seconds; what comes too early would be the third by then.
    while begun.elapsed() < Duration::from_secs(130) && (clients.len() < 3 || servers.len() < 3) {
        // Serving certificates wait for somebody to approve them.
        let list: Value = serde_json::from_str(&server.kubectl(&["get", "csr", "-o", "json"])?)?;
        for request in list["items"].as_array().into_iter().flatten() {
            let pending = request["status"]["conditions"].is_null();
            if pending && request["spec"]["signerName"] == "kubernetes.io/kubelet-serving" {
                let name = request["metadata"]["name"].as_str().context("a name")?;
                server.kubectl(&["certificate", "approve", name])?;
            }
        }
        for (kind, seen) in [("client", &mut clients), ("server", &mut servers)] {
            let now = current(&place, kind);
            if now.is_some() && seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    ensure!(begun.elapsed() > Duration::from_secs(80), "two replacements after {:?}", begun.elapsed());
    ensure!((3..=5).contains(&clients.len()), "client certificates: {clients:?}\n{}", agent.log());
    ensure!((3..=5).contains(&servers.len()), "serving certificates: {servers:?}\n{}", agent.log());
    // The first two are long over, so what renews the lease and what is served now are later ones.
    let before = renewed(&server)?;
    let waited = Instant::now();
    while renewed(&server)? == before {
        ensure!(waited.elapsed() < Duration::from_secs(15), "the lease is not renewed\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    let shown = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(
            "openssl s_client -connect 127.0.0.1:{} </dev/null 2>/dev/null | openssl x509 -noout -checkend 0",
            place.port
        ))
        .output()?;
    ensure!(shown.status.success(), "the port shows an expired certificate: {shown:?}");
    Ok(())
}

fn shell(script: &str) -> Result<String> {
    let output = std::process::Command::new("sh").args(["-ec", script]).output()?;
    ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

pub(crate) fn until(agent: &Agent, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < Duration::from_secs(30), "{what}\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// A certificate inside the kubeconfig was never replaced, and taking the current one away ended the node's identity.
#[test]
fn a_certificate_inside_the_kubeconfig_is_replaced_when_asked_and_the_new_one_is_used() -> Result<()> {
    let server = ApiServer::start("renewal", &[])?;
    let place = Place::new("renewal-node", "")?;
    let kubeconfig = join(&server, &place, "rotateCertificates: true\n")?;
    let arguments = ["--kubeconfig", &kubeconfig, "--node-ip", "127.0.0.1"];
    let mut agent = Agent::start(&place, &arguments, &[])?;
    agent.hear_until("READY=1")?;
    ensure!(current(&place, "client").is_none(), "its own certificate is young");
    // The first lease waits for the node, and a new certificate may be there sooner.
    until(&agent, "there is no lease", || Ok(renewed(&server).is_ok()))?;
    agent.signal(nix::sys::signal::Signal::SIGUSR1)?;
    until(&agent, "no new certificate", || Ok(current(&place, "client").is_some()))?;
    let before = renewed(&server)?;
    until(&agent, "the lease is not renewed with it", || Ok(renewed(&server)? != before))?;
    agent.signal(nix::sys::signal::Signal::SIGTERM)?;
    agent.wait(Duration::from_secs(10))?;
    // With the pair in the file alone, the server would not know the node any more.
    shell(&format!(
        "cd {}; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=nobody -keyout n.key \
         -out n.crt -days 1 2>/dev/null\n\
         sed -i \"s|client-certificate-data:.*|client-certificate-data: $(base64 -w0 n.crt)|; \
         s|client-key-data:.*|client-key-data: $(base64 -w0 n.key)|\" agent.conf",
        place.dir.display()
    ))?;
    let before = renewed(&server)?;
    let agent = Agent::start(&place, &arguments, &[])?;
    agent.hear_until("READY=1")?;
    until(&agent, "the lease is not renewed", || Ok(renewed(&server)? != before))
}

/// An unknown client certificate broke the connection, and a new authority waited for a restart.
#[test]
fn client_authorities_are_followed_and_strangers_get_401() -> Result<()> {
    let server = ApiServer::start("authorities", &[])?;
    let place = Place::new("authorities-node", "")?;
    let kubeconfig = join(&server, &place, "")?;
    let authorities = place.dir.join("clients.crt");
    std::fs::copy(server.dir.join("pki/ca.crt"), &authorities)?;
    let config = std::fs::read_to_string(place.config())?;
    let own = format!("{}/pki/ca.crt", server.dir.display());
    std::fs::write(place.config(), config.replace(&own, &authorities.display().to_string()))?;
    let agent = Agent::start(&place, &["--kubeconfig", &kubeconfig, "--node-ip", "127.0.0.1"], &[])?;
    agent.hear_until("READY=1")?;
    shell(&format!(
        "cd {}; key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'; exec 2>/dev/null\n\
         openssl req -x509 $key -subj /CN=other -keyout other.key -out other.crt -days 1\n\
         openssl req $key -subj /O=system:masters/CN=boss -keyout boss.key -out boss.csr\n\
         echo extendedKeyUsage=clientAuth >ext\n\
         openssl x509 -req -in boss.csr -CA other.crt -CAkey other.key -CAcreateserial -days 1 -extfile ext -out boss.crt",
        place.dir.display()
    ))?;
    let code = || {
        shell(&format!(
            "cd {}; curl -sk --cert boss.crt --key boss.key -o /dev/null -w '%{{http_code}}' https://127.0.0.1:{}/pods",
            place.dir.display(),
            place.port
        ))
    };
    ensure!(code()? == "401", "{}", code()?);
    // As certificate managers replace files.
    shell(&format!("cd {}; cat clients.crt other.crt >new; mv new clients.crt", place.dir.display()))?;
    until(&agent, "the new authority is not taken", || Ok(code()? == "200"))
}
