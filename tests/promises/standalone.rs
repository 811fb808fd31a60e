//! A node without an API server runs the pods of its manifests and of a web server, and keeps them over its own restarts.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::free_port;
use tests::node::{IMAGE, Node};

const PATIENCE: Duration = Duration::from_secs(60);

/// A web server of files; ends when dropped.
struct Web {
    child: Child,
    folder: std::path::PathBuf,
    port: u16,
}

impl Web {
    /// Listens when this returns, on a port that nobody took meanwhile.
    fn start(folder: std::path::PathBuf) -> Result<Self> {
        let own = folder.to_string_lossy().into_owned();
        std::fs::write(folder.join("own"), &own)?;
        for _ in 0..5 {
            let port = free_port()?;
            let mut httpd = Command::new("busybox");
            httpd.args(["httpd", "-f", "-p", &format!("127.0.0.1:{port}"), "-h"]).arg(&folder);
            let child = httpd.stdin(Stdio::null()).spawn().context("starting busybox httpd")?;
            let mut web = Web { child, folder: folder.clone(), port };
            let begun = Instant::now();
            while web.child.try_wait()?.is_none() && begun.elapsed() < PATIENCE {
                let said = Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{port}/own")]).output()?;
                if said.stdout == own.as_bytes() {
                    return Ok(web);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        bail!("busybox httpd does not listen")
    }

    fn serve(&self, text: &str) -> Result<()> {
        // Never half a file: the agent may ask at any moment.
        std::fs::write(self.folder.join("new"), text)?;
        Ok(std::fs::rename(self.folder.join("new"), self.folder.join("pods"))?)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn manifest(name: &str, script: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
        "terminationGracePeriodSeconds": 1,
        "containers": [{{"name": "main", "image": "{IMAGE}", "command": ["sh", "-c", "{script}"],
            "volumeMounts": [{{"name": "kept", "mountPath": "/kept"}}]}}],
        "volumes": [{{"name": "kept", "emptyDir": {{}}}}]}}}}"#
    )
}

/// The container of a pod as its status shows it: null while there is none.
fn container(node: &Node, pod: &str) -> Result<Value> {
    let name = format!("{pod}-{}", node.name);
    let pods = node.pods()?;
    let found = pods.iter().find(|p| p["metadata"]["name"] == name);
    Ok(found.map(|p| p["status"]["containerStatuses"][0].clone()).unwrap_or_default())
}

fn wait_for_container(node: &Node, pod: &str, restarts: u64) -> Result<String> {
    node.wait_until(&format!("{pod} is ready after {restarts} restarts"), PATIENCE, || {
        let status = container(node, pod)?;
        Ok(status["ready"] == true && status["restartCount"] == restarts)
    })?;
    Ok(container(node, pod)?["containerID"].as_str().context("an id")?.to_owned())
}

#[test]
fn static_pods_run_without_an_api_server() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let web = Web::start(tests::scratch("alone-web")?)?;
    let settings = format!("staticPodURL: http://127.0.0.1:{}/pods\nhttpCheckFrequency: 1s\n", web.port);
    let mut node = Node::start_alone("alone", &settings)?;
    let file = node.manifests().join("steady.json");
    std::fs::write(&file, manifest("steady", "sleep 100000"))?;
    std::fs::write(
        node.manifests().join("again.json"),
        manifest("again", "test -e /kept/x && sleep 100000; touch /kept/x; exit 1"),
    )?;
    let steady = wait_for_container(&node, "steady", 0)?;
    let again = wait_for_container(&node, "again", 1)?;

    // The web server had nothing so far, and now gives two pods in a list.
    let list = |names: [&str; 2]| {
        let items = names.map(|name| manifest(name, "sleep 100000")).join(",");
        format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{items}]}}"#)
    };
    web.serve(&list(["first", "second"]))?;
    let first = wait_for_container(&node, "first", 0)?;
    wait_for_container(&node, "second", 0)?;
    web.serve(&list(["first", "third"]))?;
    wait_for_container(&node, "third", 0)?;
    node.wait_until("second is gone", PATIENCE, || Ok(container(&node, "second")?.is_null()))?;
    let source = |p: &Value| p["metadata"]["annotations"]["kubernetes.io/config.source"].clone();
    let sources: Vec<Value> = node.pods()?.iter().map(source).collect();
    assert_eq!(sources.iter().filter(|s| *s == "http").count(), 2, "{sources:?}");
    assert_eq!(sources.iter().filter(|s| *s == "file").count(), 2, "{sources:?}");

    // Neither the agent's death nor that of the web server ends anything.
    let processes = node.tasks()?;
    node.end_agent(Signal::SIGKILL);
    node.start_agent()?;
    assert_eq!(wait_for_container(&node, "steady", 0)?, steady);
    assert_eq!(wait_for_container(&node, "again", 1)?, again);
    assert_eq!(wait_for_container(&node, "first", 0)?, first);
    let folder = web.folder.clone();
    drop(web);
    std::fs::remove_dir_all(folder)?;
    std::fs::remove_file(file)?;
    node.wait_until("steady is gone", PATIENCE, || Ok(container(&node, "steady")?.is_null()))?;
    assert_eq!(wait_for_container(&node, "first", 0)?, first);
    let left = node.tasks()?;
    assert!(left.iter().all(|(id, process)| processes.get(id) == Some(process)), "{left:?} of {processes:?}");
    Ok(())
}
