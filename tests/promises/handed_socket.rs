//! A socket that systemd made and hands over is the server's port.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tests::ApiServer;

/// Does what systemd does for a socket unit: argument 6 of the server's command line is its port.
const SYSTEMD: &str = "
import os, socket, sys
listening = socket.create_server(('127.0.0.1', int(sys.argv[6])))
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[1], sys.argv[1:])
";

/// Who comes before the server is there waits for it. A server that knew nothing of the socket could not have its port.
#[test]
fn clients_of_a_socket_that_was_handed_over_are_served() -> Result<()> {
    let server = ApiServer::start_under(&["python3", "-c", SYSTEMD], "handed-socket", &[])?;
    // It is written before the server answers, and after its port is there.
    let begun = Instant::now();
    while !server.kubeconfig().exists() {
        ensure!(begun.elapsed() < Duration::from_secs(20), "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = server.kubectl(&["get", "--raw", "/readyz"])?;
    ensure!(said == "ok", "{said}: {}", server.log());
    let refused = server.kubectl(&["get", "--raw", "/nowhere"]);
    ensure!(refused.is_err(), "{refused:?}");
    Ok(())
}
